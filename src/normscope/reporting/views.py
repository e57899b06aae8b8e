"""The views of a run's results: figures, report, tracker and terminal, each of which may fail without harm to the results."""

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from normscope.errors import message, one_line
from normscope.reporting.drawing import drawn, figure_files
from normscope.reporting.options import Appearance
from normscope.reporting.page.report import page
from normscope.reporting.run_folder import REPORT, RunFolder
from normscope.reporting.terminal import say_detail, show
from normscope.reporting.tracker import Tracker
from normscope.results.result import Result
from normscope.streams import Progress, no_bar
from normscope.untrusted.writing import write_file


def make_views(
    result: Result,
    folder: RunFolder,
    tracker: Tracker,
    look: Appearance,
    *,
    report: bool,
    progress: Progress = no_bar,
) -> None:
    """Make every view of the results. A view that fails is a line on stderr: the results are on disk, and it can be remade.

    Args:
        result: The results, which the folder holds already.
        folder: The folder of the run.
        tracker: Receives figures and numbers.
        look: How figures are drawn.
        report: Whether to write the report.
        progress: Shows how far it is.
    """
    again = f"run `normscope page {folder.path}` to retry"
    with _contained("the figures were not drawn", again):
        files = len(result.figures) * (len(look.formats) + (not look.caption))
        for name, content in progress(figure_files(result.figures, look), files, "figures"):
            folder.write(name, content)
    if report:
        with _contained("the report was not written", again):
            folder.write(REPORT, page(result, progress).encode())
    if tracker.logs:
        with (
            _contained("nothing was logged to Weights & Biases", f"the results are in {folder.path}"),
            tempfile.TemporaryDirectory(prefix="normscope-") as temporary,
        ):
            for _ in progress([tracker], 1, "Weights & Biases"):
                pictures = folder.path / "figures"
                if "png" not in look.formats:
                    pictures = Path(temporary)
                    for name, figure in result.figures.items():
                        write_file(pictures, f"{name}.png", drawn(figure, ["png"], look)[0])
                tracker.result(pictures)


def print_results(result: Result, folder: Path, *, report: bool) -> None:
    """Print the results, and where they are.

    Args:
        report: Whether the run writes a report.
    """
    with _contained("the results were not printed", f"they are in {folder}"):
        show(result)
    has_page = report and (folder / REPORT).exists()
    say_detail(f"results in {folder}{f'; open {folder / REPORT}' if has_page else ''}")


@contextlib.contextmanager
def _contained(what: str, then: str) -> Iterator[None]:
    """Print whatever goes wrong with a view."""
    try:
        yield
    except Exception as error:  # a library's, ours, or a full disk: the results are right all the same
        print(message(RuntimeError(f"{what}: {one_line(error)}; {then}")), file=sys.stderr)
