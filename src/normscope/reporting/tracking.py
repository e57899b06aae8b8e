"""Weights & Biases: the only module that imports wandb. No result depends on it."""

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

# A server that has not answered by then counts as unreachable.
_INIT_SECONDS = 15
_FINISH_SECONDS = 60
# wandb validates tables cell by cell: a hundred thousand rows take half a minute, and its browser view shows only the first ten
# thousand. Longer tables are uploaded as files; the run folder holds all of them in full.
_TABLE_ROWS = 20_000


class Tracker(abc.ABC):
    """Where a run logs its results besides its folder."""

    @abc.abstractmethod
    def table(self, name: str, table: pd.DataFrame, path: Path) -> None:
        """Log a table, or its file if it has very many rows."""

    @abc.abstractmethod
    def figure(self, name: str, path: Path, caption: str) -> None:
        """Log a figure that has been drawn."""

    @abc.abstractmethod
    def page(self, name: str, path: Path) -> None:
        """Log a self-contained HTML page."""

    @abc.abstractmethod
    def curves(self, curves: Mapping[str, pd.Series]) -> None:
        """Log values by layer."""

    @abc.abstractmethod
    def summary(self, metrics: Mapping[str, float], provenance: Mapping[str, object]) -> None:
        """Log the final metrics of a completed run."""


class NoTracker(Tracker):
    """Logs nothing."""

    def table(self, name: str, table: pd.DataFrame, path: Path) -> None:
        """Do nothing."""

    def figure(self, name: str, path: Path, caption: str) -> None:
        """Do nothing."""

    def page(self, name: str, path: Path) -> None:
        """Do nothing."""

    def curves(self, curves: Mapping[str, pd.Series]) -> None:
        """Do nothing."""

    def summary(self, metrics: Mapping[str, float], provenance: Mapping[str, object]) -> None:
        """Do nothing."""


class _Outage:
    """Failures of Weights & Biases during one run, of which only the first is reported.

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
        """Whether the server stopped answering. W&B still keeps metrics and figures on disk."""

    def note(self, error: Exception) -> None:
        """Handle an error that W&B raised: the run loses the connection or its tracking. Only the first error is reported."""
        import wandb

        if self._online and isinstance(error, wandb.Error):
            self.offline = True
            self.report(
                f"lost connection to Weights & Biases ({one_line(error)}); unsent data stays in "
                f"{self._folder / 'wandb'} for `wandb sync`, and tables in {self._folder / 'tables'}"
            )
            return
        self.lost = True
        self.report(
            f"Weights & Biases failed ({_reason(error)}); the run continues without tracking, and earlier logs are in "
            f"{self._folder / 'wandb'} for `wandb sync`"
        )

    def report(self, warning: str) -> None:
        """Print the first failure; later ones follow from it."""
        if not self._reported:
            self._reported = True
            say(warning)


class _Wandb(Tracker):
    """A Weights & Biases run. An error in W&B can end the tracking but never the run.

    Args:
        run: What `wandb.init` returned.
        outage: Receives every error.
    """

    def __init__(self, run: Any, outage: _Outage) -> None:
        self._run, self._outage = run, outage
        self._send(lambda: run.define_metric("layer"))

    def _send(self, call: Callable[[], object]) -> None:
        """Call W&B unless it has failed for good. The call must contain nothing but W&B's own code."""
        if self._outage.lost:
            return
        try:
            call()
        except Exception as error:  # W&B raises what its service, its files and its dependencies raise
            self._outage.note(error)

    def finish(self, status: int) -> None:
        """Send what is pending; anything that cannot be sent stays on disk."""
        self._send(lambda: self._run.finish(exit_code=status))

    def table(self, name: str, table: pd.DataFrame, path: Path) -> None:
        import wandb

        if self._outage.offline:
            return  # Logging a table would wait for an answer from the server.
        if len(table) <= _TABLE_ROWS:
            self._send(lambda: self._run.log({f"tables/{name}": wandb.Table(dataframe=table)}))
            return
        with contextlib.redirect_stderr(io.StringIO()):  # wandb warns even though policy and base path are set
            self._send(lambda: self._run.save(str(path), base_path=str(path.parent), policy="now", glob=False))

    def figure(self, name: str, path: Path, caption: str) -> None:
        import wandb

        self._send(lambda: self._run.log({f"figures/{name}": wandb.Image(str(path), caption=caption)}))

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
            # Set them one by one: summaries declared through define_metric become dicts.
            for name, value in metrics.items():
                self._run.summary[name] = value
            self._run.summary["provenance"] = dict(provenance)

        self._send(send)


@contextlib.contextmanager
def track(options: RunOptions, folder: Path) -> Iterator[Tracker]:
    """The tracker that the config selects, for the duration of one run.

    If the server is unreachable, an online run is tracked offline; if the connection is lost later, unsent data stays on
    disk. If W&B fails in any other way, at any time and in any of its threads, the run continues without tracking. Each run
    logs at most one warning about this. `tracking_environment` must have filled in the tracking options.
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
    """W&B's environment variables for the duration of one run.

    Figures and tables are staged in the run folder, not in the user's home. WANDB_MODE is set from our config, since W&B
    refuses to start if the variable holds an unknown value, even when the mode is passed as an argument.
    """
    settings = {"WANDB_DATA_DIR": str(folder / "wandb"), "WANDB_MODE": str(options.mode), "WANDB_SILENT": "true"}
    previous = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    # If W&B cannot write its log file, on a full disk for instance, logging would print a traceback for every line.
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
    """A W&B run, or None if W&B does not start."""
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
                f"Weights & Biases is unreachable ({errors[0]}); the run is tracked offline, upload it with `wandb sync`"
            )
        return run
    outage.report(f"Weights & Biases did not start ({errors[-1]}); the run continues without tracking")
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
        # The model name may be a long path.
        name=name or f"{'+'.join(enabled_analyses(options.analysis))} {options.model.name}"[:NAME_LENGTH],
        tags=tracking.tags or None,
        # Under one key, since a sweep's parameters would overwrite top-level ones.
        config={"cfg": plain(options)},
        # The next job of a multirun must not continue a failed job's run.
        reinit="finish_previous",
        settings=wandb.Settings(
            silent=True, symlink=False, init_timeout=_INIT_SECONDS, finish_timeout=_FINISH_SECONDS, console="off"
        ),
    )


def _discard() -> None:
    """Shut down a failed W&B, which would otherwise fail again at exit and in the next run of a sweep."""
    with contextlib.suppress(Exception):
        import wandb

        wandb.teardown()
    wandb_log = logging.getLogger("wandb")
    for handler in list(wandb_log.handlers):
        wandb_log.removeHandler(handler)
        with contextlib.suppress(OSError):
            handler.close()
