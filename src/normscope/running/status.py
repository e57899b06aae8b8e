"""The status of a run, recorded in its folder however the run ends."""

import contextlib
from collections.abc import Iterator

from normscope.errors import InputError
from normscope.reporting.earlier_runs import Status
from normscope.reporting.run_folder import RunFolder, fail_abandoned
from normscope.reporting.tracker import NoTracker, Tracker
from normscope.reporting.tracking import track
from normscope.running.description import describe
from normscope.running.run import Run
from normscope.running.shutdown import Terminated, deferred_signals


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
            yield NoTracker()
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
                results.finish(status, {}, run.provenance.facts(), error=text)
        raise


@contextlib.contextmanager
def _main_process_watched(run: Run) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with deferred_signals():
            fail_abandoned(run.folder, f"the first of {run.group.size} processes died")
        raise
