"""Weights & Biases: the only file that knows it. Nothing depends on it for data."""

import abc
import contextlib
import io
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from normscope.config.schema import NAME_LENGTH, RunOptions, TrackingMode, TrackingOptions, enabled_analyses, plain
from normscope.errors import one_line
from normscope.reporting.terminal import say
from normscope.reporting.threads import contained_threads

# A server that has not answered by then is taken for unreachable.
_INIT_SECONDS = 15
_FINISH_SECONDS = 60
# wandb cuts longer tables with only a warning; ours are whole in the run folder.
# A table is checked cell by cell on its way: a hundred thousand rows take half a minute, and the browser shows the first ten
# thousand.
_TABLE_ROWS = 20_000


class Tracker(abc.ABC):
    """Where a run is told about, beside its folder."""

    @abc.abstractmethod
    def table(self, name: str, table: pd.DataFrame, path: Path) -> None:
        """A whole table: as a table, or as its file if it has very many rows."""

    @abc.abstractmethod
    def figure(self, name: str, picture: Path, caption: str) -> None:
        """A picture that has been drawn."""

    @abc.abstractmethod
    def page(self, name: str, path: Path) -> None:
        """A page that holds everything that it shows."""

    @abc.abstractmethod
    def curves(self, curves: Mapping[str, pd.Series]) -> None:
        """Values by layer."""

    @abc.abstractmethod
    def summary(self, metrics: Mapping[str, float], provenance: Mapping[str, object]) -> None:
        """The final numbers of a completed run."""


class NoTracker(Tracker):
    """Tracks nothing."""

    def table(self, name: str, table: pd.DataFrame, path: Path) -> None:
        """Do nothing, as all methods."""

    def figure(self, name: str, picture: Path, caption: str) -> None:
        """Do nothing."""

    def page(self, name: str, path: Path) -> None:
        """Do nothing."""

    def curves(self, curves: Mapping[str, pd.Series]) -> None:
        """Do nothing."""

    def summary(self, metrics: Mapping[str, float], provenance: Mapping[str, object]) -> None:
        """Do nothing."""


class _Outage:
    """What has gone wrong with Weights & Biases during one run. The user hears of it once.

    Args:
        folder: The run folder.
        online: Whether there is a server that may stop answering.
    """

    def __init__(self, folder: Path, *, online: bool) -> None:
        self._folder, self._online = folder, online
        self._reported = False
        self.lost = False
        """Whether nothing more can be logged."""
        self.offline = False
        """Whether the server stopped answering. W&B still keeps metrics and pictures on disk."""

    def note(self, error: Exception) -> None:
        """Decide what an error that W&B raised leaves of it, and report the first one."""
        import wandb

        if self._online and isinstance(error, wandb.Error):
            self.offline = True
            self.report(
                f"Weights & Biases cannot be reached any more ({one_line(error)}); what could not be sent stays in "
                f"{self._folder / 'wandb'} for `wandb sync`, and tables in {self._folder / 'tables'}"
            )
            return
        self.lost = True
        self.report(
            f"Weights & Biases has failed ({_reason(error)}); the run goes on untracked, and what was logged before is in "
            f"{self._folder / 'wandb'} for `wandb sync`"
        )

    def report(self, sentence: str) -> None:
        """Say the first thing that went wrong; the rest follows from it."""
        if not self._reported:
            self._reported = True
            say(sentence)


class _Wandb(Tracker):
    """A Weights & Biases run. Whatever W&B raises ends at most the tracking, never the run.

    Args:
        run: What `wandb.init` returned.
        outage: Learns of every error.
    """

    def __init__(self, run: Any, outage: _Outage) -> None:
        self._run, self._outage = run, outage
        self._send(lambda: run.define_metric("layer"))

    def _send(self, call: Callable[[], object]) -> None:
        """Make a call to W&B unless it has failed for good. Only W&B's own code belongs in the call."""
        if self._outage.lost:
            return
        try:
            call()
        except Exception as error:  # W&B raises what its service, its files and its dependencies raise
            self._outage.note(error)

    def finish(self, status: int) -> None:
        """Send what is left; what cannot be sent stays on disk."""
        self._send(lambda: self._run.finish(exit_code=status))

    def table(self, name: str, table: pd.DataFrame, path: Path) -> None:
        import wandb

        if self._outage.offline:
            return  # A table asks the server first, and waits for an answer.
        if len(table) <= _TABLE_ROWS:
            self._send(lambda: self._run.log({f"tables/{name}": wandb.Table(dataframe=table)}))
            return
        with contextlib.redirect_stderr(io.StringIO()):  # where it warns of what it was asked to do
            self._send(lambda: self._run.save(str(path), base_path=str(path.parent), policy="now", glob=False))

    def figure(self, name: str, picture: Path, caption: str) -> None:
        import wandb

        self._send(lambda: self._run.log({f"figures/{name}": wandb.Image(str(picture), caption=caption)}))

    def page(self, name: str, path: Path) -> None:
        import wandb

        self._send(lambda: self._run.log({name: wandb.Html(str(path), inject=False)}))

    def curves(self, curves: Mapping[str, pd.Series]) -> None:
        names = {name: f"by_layer/{name}" for name in curves}
        layers = sorted({layer for values in curves.values() for layer in values.index})
        points = [
            {"layer": int(layer)}
            | {names[name]: float(values[layer]) for name, values in curves.items() if layer in values.index}
            for layer in layers
        ]

        def send() -> None:
            for name in names.values():
                self._run.define_metric(name, step_metric="layer")
            for point in points:
                self._run.log(point)

        self._send(send)

    def summary(self, metrics: Mapping[str, float], provenance: Mapping[str, object]) -> None:
        def send() -> None:
            # Set one by one: summaries declared through define_metric become dicts.
            for name, value in metrics.items():
                self._run.summary[name] = value
            self._run.summary["provenance"] = dict(provenance)

        self._send(send)


@contextlib.contextmanager
def track(options: RunOptions, folder: Path) -> Iterator[Tracker]:
    """The tracker that the config asks for, for the time of one run.

    An online run whose server cannot be reached is tracked offline; what a server that goes away later has not received
    stays on disk. If W&B fails in any other way, at any moment and in any of its threads, the run goes on untracked. All
    of this is reported in one line, once. The tracking options are complete: see `tracking_environment`.
    """
    if options.tracking.mode is TrackingMode.disabled:
        yield NoTracker()
        return
    outage = _Outage(folder, online=options.tracking.mode is TrackingMode.online)
    with _environment(options.tracking, folder), contained_threads("wandb", outage.note):
        run = _start(options, folder, outage)
        if run is None:
            yield NoTracker()
            return
        # Not `with run`: wandb prints the traceback of whatever passes it, bad input and interrupts among them.
        tracker, status = _Wandb(run, outage), 1
        try:
            yield tracker
            status = 0
        finally:
            tracker.finish(status)
            if outage.lost:
                _discard()


@contextlib.contextmanager
def _environment(options: TrackingOptions, folder: Path) -> Iterator[None]:
    """Settings of W&B for the time of one run.

    It stages pictures and tables in the run folder, not in the user's home. WANDB_MODE is what our config says: W&B
    refuses to start on a value that it does not know, even if another one is passed to it.
    """
    settings = {"WANDB_DATA_DIR": str(folder / "wandb"), "WANDB_MODE": str(options.mode), "WANDB_SILENT": "true"}
    previous = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    # A log file of W&B that cannot be written, on a full disk say, would print a traceback for every line of it.
    raises, logging.raiseExceptions = logging.raiseExceptions, False
    try:
        yield
    finally:
        logging.raiseExceptions = raises
        for name, value in previous.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(error)}" if str(error) else type(error).__name__


def _start(options: RunOptions, folder: Path, outage: _Outage) -> Any:
    """A W&B run, or None if W&B cannot be started."""
    errors = []
    online = options.tracking.mode is TrackingMode.online
    for mode in (TrackingMode.online, TrackingMode.offline) if online else (TrackingMode.offline,):
        try:
            run = _init(options, folder, mode)
        except Exception as error:  # W&B raises what its settings, its service and its files raise
            errors.append(_reason(error))
            _discard()
            continue
        if errors:
            outage.report(
                f"Weights & Biases cannot be used online ({errors[0]}); the run is tracked offline, see `wandb sync` later"
            )
        return run
    outage.report(f"Weights & Biases cannot be started ({errors[-1]}); the run goes on untracked")
    return None


def _init(options: RunOptions, folder: Path, mode: TrackingMode) -> Any:
    import wandb

    tracking = options.tracking
    name = tracking.name or os.environ.get("WANDB_NAME")
    return wandb.init(
        mode=str(mode),  # type: ignore[arg-type]
        dir=str(folder),
        project=tracking.project,
        entity=tracking.entity,
        group=tracking.group,
        # A model may be a long path.
        name=name or f"{'+'.join(enabled_analyses(options.analysis))} {options.model.name}"[:NAME_LENGTH],
        tags=tracking.tags or None,
        # Under one key: the parameters of a sweep would overwrite it otherwise.
        config={"cfg": plain(options)},
        # A failed job of a multirun must not hand its run to the next.
        reinit="finish_previous",
        settings=wandb.Settings(
            silent=True, symlink=False, init_timeout=_INIT_SECONDS, finish_timeout=_FINISH_SECONDS, console="off"
        ),
    )


def _discard() -> None:
    """Let go of a W&B that has failed: it would fail once more when Python ends, and take the next run of a sweep with it."""
    with contextlib.suppress(Exception):
        import wandb

        wandb.teardown()
    wandb_log = logging.getLogger("wandb")
    for handler in list(wandb_log.handlers):
        wandb_log.removeHandler(handler)
        with contextlib.suppress(OSError):
            handler.close()
