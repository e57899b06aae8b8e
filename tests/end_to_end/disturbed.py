"""What the tests of runs that are disturbed share."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.end_to_end.shell import ROOT

ANALYSES = "analysis=[mixing,norms,frequency,outliers,score]"
SMALL = [
    ANALYSES,
    "device=cpu",
    "device.batch_tokens=256",
    "tracking=disabled",
    "report.enabled=false",
    "dataset.limit=24",
    "analysis.score.controls=1",
    "analysis.score.intervention_sequences=4",
]


def results(folder):
    return json.loads((folder / "results.json").read_text())


def python(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Python in a process of its own, to its end, without the service that wandb has started for the tests' own process."""
    inherited = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=inherited | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def torchrun(
    processes: int, *arguments: str, program: str = "run.py", launcher: Sequence[str] = (), **environment: str
) -> "subprocess.CompletedProcess[str]":
    """`torchrun` on this machine."""
    rendezvous = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", f"--nproc-per-node={processes}", *launcher]
    return python(
        "-m", "torch.distributed.run", *rendezvous, program, *arguments, **{"OMP_NUM_THREADS": "1"} | environment
    )


@contextlib.contextmanager
def mounted(folder, options: str):
    """A file system in memory, as only the system's administrator can make one."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
