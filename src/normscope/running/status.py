"""The status of a run, recorded in its folder however the run ends."""

import contextlib
import re
from collections.abc import Iterator, Sequence

from normscope.config.sections import plain
from normscope.distribution import RUN_SCHEMA
from normscope.errors import InputError
from normscope.reporting.options import NAME_LENGTH, TAG_LENGTH
from normscope.reporting.run_folder import RunFolder, fail_abandoned
from normscope.reporting.tracking import RunDescription, dataset_label, layers_label, model_label
from normscope.reporting.weights_and_biases import Tracker, no_tracker, track
from normscope.results.result import Result
from normscope.results.run_files import Status
from normscope.running.options import RunOptions, enabled_analyses
from normscope.running.run import Run
from normscope.running.shutdown import Terminated, deferred_signals

_NAME_LENGTH = 60
"""Characters of a run's name, which stands in a narrow column."""
_SHORTEST = 10
"""Characters of a part that is not cut any further."""


@contextlib.contextmanager
def tracked(run: Run) -> Iterator[Tracker]:
    """Start a run and its tracker. If the run fails, its status is recorded before the tracker finishes, which may take long.

    Only the main process records and tracks. The others mark the run as failed if the main process dies.

    Raises:
        InputError: If the run folder cannot be written to.
    """
    results = run.results
    if results is None:
        with _main_process_watched(run):
            run.start()
            yield no_tracker()
        return
    with _recorded(run, results):
        run.start()
        description = describe(run.plan.options, run.provenance.origin.command, run.plan.model.layout.family)
        with track(run.plan.options.tracking, description, results.path) as tracker, _recorded(run, results):
            yield tracker


@contextlib.contextmanager
def _recorded(run: Run, results: RunFolder) -> Iterator[None]:
    """Record the status of a run that fails or is interrupted."""
    try:
        yield
    except BaseException as error:
        status, text = Status.FAILED, str(error)
        if isinstance(error, KeyboardInterrupt):
            # torchrun sends SIGTERM to all processes when one of them dies.
            if run.group.size > 1 and isinstance(error, Terminated):
                text = f"ended by SIGTERM: another of the {run.group.size} processes died, or torchrun was stopped"
            else:
                status = Status.INTERRUPTED
        # Another signal must not lose the status. If the folder is not writable, the original error says so already.
        with deferred_signals(), contextlib.suppress(InputError):
            if results.begun and not results.ended:
                results.save_facts(Result(facts=run.provenance.facts(), status=status, error=text))
        raise


@contextlib.contextmanager
def _main_process_watched(run: Run) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with deferred_signals():
            fail_abandoned(run.folder, f"the first of {run.group.size} processes died")
        raise


def describe(options: RunOptions, command: str, family: str) -> RunDescription:
    """The description of a run.

    Args:
        command: What the user typed.
        family: The model's family.
    """
    analyses, tracking = enabled_analyses(options.analysis), options.tracking
    dataset = dataset_label(options.dataset)
    layers = [] if options.layers == "all" else [layers_label(options.layers)]
    parts = [
        "+".join(analyses),
        model_label(options.model),
        dataset,
        *layers,
        *_seeds(options.seed, options.model.seed),
    ]
    name = " · ".join(parts)
    kind = (
        "reproduction"
        if options.reproduce is not None
        else "experiment"
        if options.recipe.name is not None
        else "analysis"
    )
    config = plain(options)
    config["dataset"]["name"] = dataset
    return RunDescription(
        name=tracking.name or _short(analyses, parts),
        slug=re.sub(r"[^\w.]+", "-", name, flags=re.ASCII).strip("-")[:NAME_LENGTH],
        job_type=tracking.job_type or kind,
        tags=[tag[:TAG_LENGTH] for tag in dict.fromkeys([family, dataset, *analyses, *tracking.tags]) if tag.strip()],
        notes=tracking.notes or command,
        config=config | {"analyses": analyses, "model_family": family, "schema": RUN_SCHEMA},
    )


def _short(analyses: Sequence[str], parts: Sequence[str]) -> str:
    """The parts of a name as people read it in a list of hundreds: many analyses as their number, and the longest part cut."""
    short = list(parts)
    if len(" · ".join(short)) > _NAME_LENGTH and len(analyses) > 1:
        short[0] = f"{len(analyses)} analyses"
    while (beyond := len(" · ".join(short)) - _NAME_LENGTH) > 0:
        longest = max(range(len(short)), key=lambda place: len(short[place]))
        if len(short[longest]) <= _SHORTEST:
            break
        short[longest] = f"{short[longest][: max(_SHORTEST - 1, len(short[longest]) - beyond - 1)]}…"
    return " · ".join(short)[:_NAME_LENGTH]


def _seeds(seed: int, of_model: int) -> list[str]:
    return [f"seed {seed}"] if of_model == seed else [f"seed {seed}", f"model seed {of_model}"]
