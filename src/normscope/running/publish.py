"""Results to disk, and from there to figures, page, tracker and terminal."""

import contextlib
import dataclasses
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from normscope.data.batching import Batch
from normscope.errors import message, one_line
from normscope.reporting.drawing import drawn, figure_files
from normscope.reporting.options import Appearance
from normscope.reporting.page.report import page
from normscope.reporting.run_folder import REPORT, RunFolder
from normscope.reporting.terminal import say, say_detail, show
from normscope.reporting.weights_and_biases import Tracker
from normscope.results.maps import TokenMaps
from normscope.results.result import Result
from normscope.rounding import counted
from normscope.running.checkpoint import remove_checkpoints
from normscope.running.conclusions import conclude, missing_categories, runner_of
from normscope.running.loop import Run
from normscope.running.memory import explain_out_of_memory
from normscope.running.progress import Phase
from normscope.running.token_maps import token_maps
from normscope.untrusted.writing import write_file


def save(run: Run, folder: RunFolder) -> Result:
    """Turn the state of the analyses into results, and write them to the run folder, which completes the run.

    Raises:
        InputError: If there was nothing to analyse, a number is not finite, or the run folder is not writable.
    """
    with explain_out_of_memory(run.plan.options.device.batch_tokens, run.plan.model.device):
        if run.counts.used:
            _show_counts(run)
        result = conclude(run)
        maps, not_shown = _maps(run)
    run.phases.begin(Phase.PUBLISHING)
    facts = run.facts.so_far() | {"not_shown": list(not_shown)}
    result = dataclasses.replace(result, maps=maps, facts=facts)
    folder.save(result)
    if run.checkpoint is not None:
        remove_checkpoints(folder.path)
    return result


def publish(run: Run, result: Result, folder: RunFolder, tracker: Tracker) -> None:
    """Make every view of the results. A view that fails is a line on stderr: the results are on disk, and it can be remade."""
    look, again = run.plan.look, f"run `normscope page {folder.path}` to retry"
    with _contained("the figures were not drawn", again):
        for name, content in figure_files(result.figures, look):
            folder.write(name, content)
    if run.plan.options.report.enabled:
        with _contained("the report was not written", again):
            folder.write(REPORT, page(result).encode())
    if tracker.logs:
        with (
            _contained("nothing was logged to Weights & Biases", f"the results are in {folder.path}"),
            tempfile.TemporaryDirectory(prefix="normscope-") as temporary,
        ):
            pictures = {name: _picture(result, name, folder, look, Path(temporary)) for name in result.figures}
            tracker.result(result, folder.path, pictures)


def _picture(result: Result, name: str, folder: RunFolder, look: Appearance, beside: Path) -> Path:
    """A figure as PNG: that of the run, or a temporary one if the config asks for other formats."""
    file = folder.path / "figures" / f"{name}.png"
    return file if file.exists() else write_file(beside, file.name, drawn(result.figures[name], ["png"], look)[0])


@contextlib.contextmanager
def _contained(what: str, then: str) -> Iterator[None]:
    """Print whatever goes wrong with a view."""
    try:
        yield
    except Exception as error:  # a library's, ours, or a full disk: the results are right all the same
        print(message(RuntimeError(f"{what}: {one_line(error)}; {then}")), file=sys.stderr)


def finish(run: Run, result: Result, folder: RunFolder) -> None:
    """Record how long the views took, and print the results."""
    run.phases.end()
    folder.save_facts(dataclasses.replace(result, facts={**result.facts, **run.facts.so_far()}))
    with _contained("the results were not printed", f"they are in {folder.path}"):
        show(result)
    has_page = run.plan.options.report.enabled and (folder.path / REPORT).exists()
    say_detail(f"results in {folder.path}{f'; open {folder.path / REPORT}' if has_page else ''}")


def _show_counts(run: Run) -> None:
    """Report how much was read, and which categories are missing."""
    for view, counts in run.plan.by_view(run.counts):
        who = "" if view is run.plan.views[0] else f"{view.names}: "
        tokens = ", ".join(f"{number:,} {category}" for category, number in counts.categories.items() if number)
        say_detail(f"{who}{counted(counts.sequences, 'sequence')}, {counted(counts.tokens, 'token')}: {tokens}")
    options = run.plan.options
    expects_masks = options.dataset.mask_fraction > 0 or options.categories != "all"
    missing = [category for category in missing_categories(run) if category != "mask" or expects_masks]
    if missing:
        say(f"no token of category {', '.join(missing)} occurs in the corpus: the tables have no rows for it")


def _maps(run: Run) -> tuple[Sequence[TokenMaps], Sequence[str]]:
    """The token maps of the report, and what is left out of them."""
    maps = run.plan.maps
    if not maps.texts:
        return [], []
    run.phases.begin(Phase.MAPS)
    found, left_out = token_maps(
        run.plan.model,
        run.plan.encoder,
        maps.texts,
        run.plan.layers,
        feed_forward=maps.feed_forward,
        added_maps=maps.added,
        add=_maps_of_analyses(run),
    )
    if left_out:
        say(f"token maps: {'; '.join(left_out)}")
    return found, left_out


def _maps_of_analyses(run: Run) -> Callable[[Batch], dict[str, np.ndarray]]:
    """Returns the token maps that the analyses have of a batch of one text."""
    runner = runner_of(run)
    return lambda batch: {
        name: values for analysis in run.plan.analyses for name, values in analysis.token_maps(runner, batch).items()
    }
