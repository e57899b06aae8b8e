"""The status of a run, recorded in its folder however the run ends."""

import contextlib
from collections.abc import Iterator

from normscope.errors import InputError
from normscope.reporting.earlier_runs import Status
from normscope.reporting.run_folder import RunFolder, fail_abandoned
from normscope.reporting.tracker import NoTracker, Tracker
from normscope.reporting.tracking import track
from normscope.running.description import describe
from normscope.running.session import Session
from normscope.running.shutdown import Terminated, deferred_signals


@contextlib.contextmanager
def tracked(session: Session) -> Iterator[Tracker]:
    """Start a run and its tracker. If the run fails, its status is recorded before the tracker finishes, which may take long.

    Only the main process records and tracks. The others mark the run as failed if the main process dies.

    Raises:
        InputError: If the run folder cannot be written to.
    """
    results = session.results
    if results is None:
        with _main_process_watched(session):
            session.start()
            yield NoTracker()
        return
    with _recorded(session, results):
        session.start()
        description = describe(session.options, session.provenance.origin.command, session.model.layout.family)
        with track(session.options.tracking, description, results.path) as tracker, _recorded(session, results):
            yield tracker


@contextlib.contextmanager
def _recorded(session: Session, results: RunFolder) -> Iterator[None]:
    """Record the status of a run that fails or is interrupted."""
    try:
        yield
    except BaseException as error:
        status, text = Status.FAILED, str(error)
        if isinstance(error, KeyboardInterrupt):
            # torchrun sends SIGTERM to all processes when one of them dies.
            if session.group.size > 1 and isinstance(error, Terminated):
                text = f"ended by SIGTERM: another of the {session.group.size} processes died, or torchrun was stopped"
            else:
                status = Status.INTERRUPTED
        # Another signal must not lose the status. If the folder is not writable, the original error says so already.
        with deferred_signals(), contextlib.suppress(InputError):
            if results.begun and not results.ended:
                results.finish(status, {}, session.provenance.facts(), error=text)
        raise


@contextlib.contextmanager
def _main_process_watched(session: Session) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with deferred_signals():
            fail_abandoned(session.folder, f"the first of {session.group.size} processes died")
        raise
