"""Error rates of word alignments in files, without a model; and symmetrisation of two directions.

python -m normscope.alignment.link_scores --gold GOLD --gold-base 1 forward.talp backward.talp:target-source
python -m normscope.alignment.link_scores --gold GOLD --symmetrise grow-diag-final forward.talp backward.talp:target-source
"""

import argparse
import collections
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from normscope.alignment.error_rates import RATES, evaluate
from normscope.alignment.links import DIRECTIONS, LinkFile, pharaoh
from normscope.alignment.symmetrisation import Heuristic, symmetrised
from normscope.config.arguments import ArgumentParser
from normscope.data.examples import Links
from normscope.data.lines import Malformed, lines
from normscope.errors import InputError, message, one_line
from normscope.streams import open_streams
from normscope.untrusted.writing import write_named

# More words than any sentence has. Without the texts, only the numbers of lines can be checked.
_ANY_LENGTH = 10**6


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table of error rates, or the symmetrised links."""
    given = _arguments(arguments)
    try:
        return _run(given)
    except InputError as error:
        print(message(error), file=sys.stderr)
        return 2


def _run(given: argparse.Namespace) -> int:
    pairs = _lines(given.gold)
    gold = _read(str(given.gold), "--gold", given.gold_base, pairs)
    links = {file: [pair.possible for pair in _read(file, "FILE", given.base, pairs)] for file in given.files}
    names = {file: Path(file.partition(":")[0]).name for file in links}
    repeated = {name for name, count in collections.Counter(names.values()).items() if count > 1}
    alignments = {file if names[file] in repeated else names[file]: read for file, read in links.items()}
    if given.symmetrise is not None:
        if len(alignments) != 2:
            raise InputError(f"--symmetrise: expected two files, in opposite directions, got {len(alignments)}")
        directions = zip(*alignments.values(), strict=True)
        combined = [symmetrised(forward, backward, Heuristic(given.symmetrise)) for forward, backward in directions]
        alignments = {given.symmetrise: combined}
        if given.output is not None:
            _write(given.output, "".join(f"{pharaoh(pairs)}\n" for pairs in combined))
    rates = {name: evaluate(links, gold) for name, links in alignments.items()}
    table = pd.DataFrame.from_dict(rates, orient="index")[list(RATES)] * 100
    table.columns = pd.Index([f"{rate.replace('aer', 'AER')} %" for rate in RATES])
    print(table.to_string(float_format=lambda value: f"{value:.1f}"))
    return 0


def _write(path: Path, content: str) -> None:
    try:
        write_named(path, content.encode())
    except (OSError, ValueError) as error:
        raise InputError(f"--output={path}: cannot be written: {one_line(error)}") from error


def _lines(path: Path) -> int:
    """The number of lines in a file of links, plain or gzipped."""
    try:
        if not path.is_file():
            raise InputError(f"--gold={path}: no such file")
        return sum(1 for _ in lines(path))
    except (OSError, ValueError, Malformed) as error:
        raise InputError(f"--gold={path}: cannot be read: {one_line(error)}") from error


def _read(file: str, key: str, base: int, pairs: int) -> list[Links]:
    path, _, direction = file.partition(":")
    link_file = LinkFile(Path(path), key, base, direction or DIRECTIONS[0])  # type: ignore[arg-type]
    return link_file.read([(_ANY_LENGTH, _ANY_LENGTH)] * pairs)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = ArgumentParser(
        prog="python -m normscope.alignment.link_scores",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="+", metavar="FILE[:target-source]", help="links in Pharaoh format")
    parser.add_argument("--gold", type=Path, required=True, help="human links: 1-2 is sure, 3p4 possible")
    parser.add_argument(
        "--gold-base", type=int, default=0, help="number of a sentence's first word in GOLD (default: 0)"
    )
    parser.add_argument("--base", type=int, default=0, help="the same for the other files (default: 0)")
    parser.add_argument("--symmetrise", choices=[str(heuristic) for heuristic in Heuristic])
    parser.add_argument("--output", type=Path, help="file to write the symmetrised links to")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    open_streams()
    sys.exit(main())
