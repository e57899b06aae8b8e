"""`normscope page RUN` and `normscope compare RUN …`: views of results on disk. Nothing here imports torch."""

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from normscope.config.arguments import ArgumentParser
from normscope.config.schema import check_options
from normscope.errors import InputError, one_line
from normscope.reporting.comparison import in_terminal, runs
from normscope.reporting.comparison.compare import compared, write
from normscope.reporting.drawing import figure_files
from normscope.reporting.options import Appearance, FigureOptions, appearance
from normscope.reporting.page.report import page
from normscope.reporting.run_folder import REPORT
from normscope.results.result import Result
from normscope.results.run_files import RESULTS, Status
from normscope.untrusted.writing import write_file

_REDRAWN = "figures and report, remade from its results"


def draw_again(folder: Path) -> Path:
    """Remake the figures and the report of a completed run.

    Args:
        folder: The folder of the run.

    Returns:
        The report.

    Raises:
        InputError: If the folder does not hold a completed run, is damaged, or cannot be written to.
    """
    result = Result.read(folder)
    if result.status != Status.COMPLETED:
        raise InputError(
            f"{folder}: expected a completed run, but it is {result.status}: {result.error or 'no results'}"
        )
    try:
        content = page(result).encode()
        for name, picture in figure_files(result.figures, _look(result)):
            write_file(folder, name, picture)
        return write_file(folder, REPORT, content)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written to: {one_line(error)}") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # What normscope saves can be drawn, so someone has changed the files.
        raise InputError(f"{folder}: cannot be drawn: {type(error).__name__}: {one_line(error)}") from error


def _look(result: Result) -> Appearance:
    """The appearance of figures that the run's config asks for."""
    options = FigureOptions(**result.config["figures"])
    check_options(options, "figures.")
    return appearance(options)


def compare(
    folders: Sequence[Path],
    output: Path,
    baseline: Path | None = None,
    thresholds: Mapping[str, float] = MappingProxyType({}),
) -> Path:
    """Compare the runs in the given folders: print the verdict, and write the page and the tables.

    Args:
        folders: Runs, or folders that contain them.
        output: The folder for the comparison.
        baseline: See `compared`.
        thresholds: See `compared`.

    Returns:
        The page.

    Raises:
        InputError: If there is nothing to compare, a run is damaged, or the folder cannot be written to.
    """
    comparison = compared(*runs.read(folders), baseline, thresholds)
    written = write(comparison, output)
    in_terminal.show(comparison)
    return written


def command(words: Sequence[str], program: str) -> Path:
    """Run `page` or `compare`, and return the page that it writes.

    Args:
        words: The words of the command line, `page` or `compare` first.
        program: The command as typed, `normscope`.

    Raises:
        InputError: If the page cannot be made.
    """
    parsed = _parser(program).parse_args(words)
    if parsed.view == "page":
        return draw_again(parsed.run)
    is_sweep = len(parsed.runs) == 1 and not os.path.exists(parsed.runs[0] / RESULTS)
    output = parsed.output or (parsed.runs[0] if is_sweep else Path("outputs/comparison"))
    return compare(parsed.runs, output, parsed.baseline, dict(parsed.threshold))


def _parser(program: str) -> ArgumentParser:
    parser = ArgumentParser(prog=program)
    views = parser.add_subparsers(dest="view", required=True)
    one = views.add_parser(
        "page", help=f"a run's {_REDRAWN}", description="Remake a run's figures and report from its results."
    )
    one.add_argument("run", type=Path, metavar="RUN", help="directory of the run")
    several = views.add_parser(
        "compare",
        help="a page that compares runs",
        description="Compare runs: metrics and curves by layer, differences from a baseline, means over seeds.",
    )
    several.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="run directories, or folders that contain them"
    )
    several.add_argument(
        "--baseline", type=Path, help="directory of the run to measure differences from (default: the first run)"
    )
    several.add_argument(
        "--output", type=Path, help="folder for the comparison (default: the sweep's folder, or outputs/comparison)"
    )
    several.add_argument(
        "--threshold",
        action="append",
        default=[],
        type=_threshold,
        metavar="METRIC=VALUE",
        help="find the training step at which a metric crosses this value (default: half-way through its change; repeatable)",
    )
    return parser


def _threshold(text: str) -> tuple[str, float]:
    metric, _, value = text.rpartition("=")
    if not metric or not math.isfinite(float(value)):
        raise argparse.ArgumentTypeError(f"expected METRIC=VALUE, got {text!r}")
    return metric, float(value)
