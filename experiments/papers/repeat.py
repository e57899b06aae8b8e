"""Run every preset of the papers whose tables and figures are listed, and make one page for each paper.

python experiments/papers/repeat.py                        # make papers
python experiments/papers/repeat.py --paper kobayashi2020 --model bert dataset=clark

By default offline: on MiniLM and the sample corpus, and on the English DistilBERT that experiments/real_weights/fetch.py makes,
if its folder exists. Runs that are complete are kept, and others resumed, so an interrupted command can be started again.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from normscope.reporting.exhibits import reproduction_of
from normscope.reporting.page.paper import numbers_of_paper
from normscope.reporting.published import PAPERS
from normscope.results.result import Result
from normscope.results.run_files import CONFIG, RESULTS, Status

ROOT = Path(__file__).parents[2]
DISTILBERT = ROOT / "outputs/real_weights/quire-distilbert"

KEYS = ("tracking=disabled", "figures.format=[png]")


def main() -> int:
    """Run what is missing, and make the pages; the exit status is 1 if a run or a page failed."""
    arguments = _arguments()
    models = arguments.model or ["minilm", *([str(DISTILBERT)] if DISTILBERT.is_dir() else [])]
    failed: list[str] = []
    for paper in arguments.paper or papers():
        complete = []
        for name, words in jobs(paper, models).items():
            folder = arguments.output / paper / name
            if completed(folder, words, [*arguments.overrides, *KEYS]):
                complete.append(str(folder))
            else:
                failed.append(str(folder))
        page = arguments.output / paper / "index.html"
        if complete and not _started(["page", *complete, "--output", str(page)]):
            failed.append(str(page))
        elif complete and arguments.record:
            numbers = numbers_of_paper(map(Result.read, complete))
            if len(numbers):  # none if all are of places in the paper's own weights
                numbers.to_csv(ROOT / "experiments" / paper / "measured.csv", index=False, float_format="%.4g")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def papers() -> list[str]:
    """The papers with a list of their tables and figures."""
    return sorted(path.parent.name for path in Path(str(PAPERS)).glob("*/exhibits.yaml"))


def jobs(paper: str, models: list[str]) -> dict[str, list[str]]:
    """The runs of a paper: the words of each command, by the name of its folder.

    A preset whose model or data only its authors have is run by the preset that stands in for it, with that one's own model.
    """
    reproduction = reproduction_of(paper)
    runs = {}
    for model in models:
        key = "model.name" if Path(model).is_dir() else "model"
        for preset in reproduction.presets:
            if preset not in reproduction.offline:
                runs[f"{Path(model).name}/{preset}"] = [f"experiment={preset}", f"{key}={model}"]
    for other in reproduction.offline.values():
        runs[other] = [f"experiment={other}", f"recipe.paper={paper}"]
    return runs


def completed(folder: Path, words: Sequence[str], keys: Sequence[str] = ()) -> bool:
    """Run a command that writes to a folder, unless that is complete; return whether it is.

    Args:
        folder: What is not complete there is resumed.
        words: The words of the command, which a resumed run has in its config.
        keys: More of them, which a resumed run takes as well.
    """
    begun = [f"resume={folder}"] if (folder / CONFIG).is_file() else [*words, f"output_dir={folder}"]
    return _is_complete(folder) or _started([*begun, *keys])


def _is_complete(folder: Path) -> bool:
    results = folder / RESULTS
    return results.is_file() and json.loads(results.read_text()).get("status") == Status.COMPLETED


def _started(words: list[str]) -> bool:
    """Run a command; return whether it succeeded."""
    print(f"normscope {' '.join(words)}", flush=True)
    return subprocess.run([sys.executable, str(ROOT / "run.py"), *words], check=False).returncode == 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--paper", action="append", choices=papers(), help="only this paper (repeatable)")
    parser.add_argument("--model", action="append", help="a preset of conf/model, or a model's folder (repeatable)")
    parser.add_argument("--output", type=Path, default=Path("outputs/papers"), help="default: outputs/papers")
    parser.add_argument("--record", action="store_true", help="keep the numbers in experiments/PAPER/measured.csv")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="keys of every run, such as dataset.limit=20")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
