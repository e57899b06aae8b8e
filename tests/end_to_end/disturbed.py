"""What the tests of runs that are disturbed share."""

import json
import os
import subprocess
import sys

from tests.end_to_end.shell import ROOT

ANALYSES = "analysis=[mixing,norms,frequency,outliers,score]"
SMALL = [
    ANALYSES,
    "device=cpu",
    "device.batch_tokens=256",
    "tracking=disabled",
    "report.enabled=false",
    "dataset.limit=60",
    "analysis.score.ablation=false",
    "analysis.score.controls=1",
    "analysis.score.intervention_sequences=4",
    "analysis.norms.exact_pairs=20000",
]


def results(folder):
    return json.loads((folder / "results.json").read_text())


def torchrun(processes: int, *arguments: str, program: str = "run.py") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}"),
            *("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", program, *arguments),
        ],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
