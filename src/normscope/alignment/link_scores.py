"""Error rates of word alignments in files, without a model; and two directions made into one alignment.

python -m normscope.alignment.link_scores --gold GOLD --gold-base 1 forward.talp backward.talp:target-source
python -m normscope.alignment.link_scores --gold GOLD --symmetrise grow-diag-final forward.talp backward.talp:target-source
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from normscope.alignment.links import DIRECTIONS, LinkFile, pharaoh
from normscope.alignment.symmetrisation import Heuristic, symmetrised
from normscope.alignment.word_maps import agreement
from normscope.config.arguments import ArgumentParser
from normscope.data.examples import Links
from normscope.data.lines import Malformed, lines
from normscope.errors import InputError, message, one_line

# No sentence has so many words: what the files alone can tell is that they have as many lines.
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
    found = {}
    for file in given.files:
        links = _read(file, "FILE", given.base, pairs)
        found[Path(file.partition(":")[0]).name] = [pair.possible for pair in links]
    if given.symmetrise is not None:
        if len(given.files) != 2:
            raise InputError(f"--symmetrise: expected two files, in opposite directions, got {len(given.files)}")
        both = zip(*found.values(), strict=True)
        joined = [symmetrised(forward, backward, Heuristic(given.symmetrise)) for forward, backward in both]
        found = {given.symmetrise: joined}
        if given.output is not None:
            _write(given.output, "".join(f"{pharaoh(links)}\n" for links in joined))
    sure, possible = ([getattr(links, kind) for links in gold] for kind in ("sure", "possible"))
    rates = {name: agreement(alignments, sure, possible) for name, alignments in found.items()}
    table = pd.DataFrame(
        {"AER %": rate.error_rate * 100, "precision %": rate.precision * 100, "recall %": rate.recall * 100}
        for rate in rates.values()
    )
    table.index = pd.Index(rates)
    print(table.to_string(float_format=lambda value: f"{value:.1f}"))
    return 0


def _write(path: Path, content: str) -> None:
    try:
        path.write_text(content)
    except (OSError, ValueError) as error:
        raise InputError(f"--output={path}: cannot be written to: {one_line(error)}") from error


def _lines(path: Path) -> int:
    """Lines of a file of links, plain or gzipped."""
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
    parser.add_argument("--gold", type=Path, required=True, help="what people aligned: 1-2 sure, 3p4 possible")
    parser.add_argument("--gold-base", type=int, default=0, help="number of a sentence's first word in it (0)")
    parser.add_argument("--base", type=int, default=0, help="the same in the other files (0)")
    parser.add_argument("--symmetrise", choices=[str(heuristic) for heuristic in Heuristic])
    parser.add_argument("--output", type=Path, help="where symmetrised links are written")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
