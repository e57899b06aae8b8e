"""Weights & Biases: the only file that knows it. Nothing depends on it for data."""

import abc
import contextlib
import functools
import io
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVarTuple

import pandas as pd

from normscope.errors import InputError, one_line
from normscope.reporting.terminal import say
from normscope.schema import RunOptions, TrackingMode, enabled_analyses, plain

# A server that has not answered by then is taken for unreachable.
_INIT_SECONDS = 15
_FINISH_SECONDS = 60
# wandb cuts longer tables with only a warning; ours are whole in the run folder.
# A table is checked cell by cell on its way: a hundred thousand rows take half a minute, and the browser shows the first ten
# thousand.
_TABLE_ROWS = 20_000

log = logging.getLogger("normscope")


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


class _Nowhere(Tracker):
    """Tracking that is disabled."""

    def table(self, name: str, table: pd.DataFrame, path: Path) -> None: ...
    def figure(self, name: str, picture: Path, caption: str) -> None: ...
    def page(self, name: str, path: Path) -> None: ...
    def curves(self, curves: Mapping[str, pd.Series]) -> None: ...
    def summary(self, metrics: Mapping[str, float], provenance: Mapping[str, object]) -> None: ...


Told = TypeVarTuple("Told")


def _if_it_is_there(tell: "Callable[[_Wandb, *Told], None]") -> "Callable[[_Wandb, *Told], None]":
    """Tell Weights & Biases unless its service has died; that it has, and that its server is gone, is said once each."""

    @functools.wraps(tell)
    def told(self: "_Wandb", *arguments: *Told) -> None:
        import wandb
        from wandb.sdk.mailbox import HandleAbandonedError, MailboxClosedError

        if self.dead:
            return
        died = (ConnectionError, HandleAbandonedError, MailboxClosedError)
        try:
            tell(self, *arguments)
        except wandb.Error as error:
            if self.unreachable:
                return
            self.unreachable = True
            say(
                f"Weights & Biases cannot be reached any more ({one_line(error)}); what could not be sent stays in "
                f"{self.folder / 'wandb'} for `wandb sync`, and tables in {self.folder / 'tables'}"
            )
        except died as error:
            self.dead = True
            say(
                f"the service of Weights & Biases has died ({one_line(error)}); the run goes on untracked, its results are "
                f"whole in {self.folder}, and what had been told before is in {self.folder / 'wandb'} for `wandb sync`"
            )
            # Else it would fail once more when Python ends, and take the next run of a sweep with it.
            with contextlib.suppress(*died):
                wandb.teardown()

    return told


class _Wandb(Tracker):
    """A Weights & Biases run."""

    def __init__(self, run: Any, folder: Path) -> None:
        self._run, self.folder = run, folder
        self.dead = False
        """Whether wandb's own process is gone, so that there is nobody to tell."""
        self.unreachable = False
        """Whether its server did not answer; numbers and pictures are then kept for later by wandb itself."""
        self._begin()

    @_if_it_is_there
    def _begin(self) -> None:
        self._run.define_metric("layer")

    @_if_it_is_there
    def finish(self, status: int) -> None:
        """Send what is left; what cannot be sent stays on disk, and wandb says so."""
        self._run.finish(exit_code=status)

    @_if_it_is_there
    def table(self, name: str, table: pd.DataFrame, path: Path) -> None:
        import wandb

        if self.unreachable:
            return  # A table asks the server first, and waits for an answer.
        if len(table) > _TABLE_ROWS:
            with contextlib.redirect_stderr(io.StringIO()):  # where it warns of what it was asked to do
                self._run.save(str(path), base_path=str(path.parent), policy="now", glob=False)
        else:
            self._run.log({f"tables/{name}": wandb.Table(dataframe=table)})

    @_if_it_is_there
    def figure(self, name: str, picture: Path, caption: str) -> None:
        import wandb

        self._run.log({f"figures/{name}": wandb.Image(str(picture), caption=caption)})

    @_if_it_is_there
    def page(self, name: str, path: Path) -> None:
        import wandb

        self._run.log({name: wandb.Html(str(path), inject=False)})

    @_if_it_is_there
    def curves(self, curves: Mapping[str, pd.Series]) -> None:
        names = {name: f"by_layer/{name}" for name in curves}
        for name in names.values():
            self._run.define_metric(name, step_metric="layer")
        layers = sorted({layer for values in curves.values() for layer in values.index})
        for layer in layers:
            point = {names[name]: float(values[layer]) for name, values in curves.items() if layer in values.index}
            self._run.log({"layer": int(layer), **point})

    @_if_it_is_there
    def summary(self, metrics: Mapping[str, float], provenance: Mapping[str, object]) -> None:
        # Set one by one: summaries declared through define_metric become dicts.
        for name, value in metrics.items():
            self._run.summary[name] = value
        self._run.summary["provenance"] = dict(provenance)


@contextlib.contextmanager
def track(options: RunOptions, folder: Path) -> Iterator[Tracker]:
    """The tracker that the config asks for, for the time of one run.

    An online run whose server cannot be reached goes on offline, says so, and loses nothing; a server that goes away later
    costs what had not been sent, which stays on disk.
    """
    mode = options.tracking.mode
    if mode is TrackingMode.disabled:
        yield _Nowhere()
        return
    with _data_in(folder):
        run = _start(options, folder, mode)
        # Not `with run`: wandb prints the traceback of whatever passes it, bad input and interrupts among them.
        tracker, status = _Wandb(run, folder), 1
        try:
            yield tracker
            status = 0
        finally:
            tracker.finish(status)


@contextlib.contextmanager
def _data_in(folder: Path) -> Iterator[None]:
    """Have wandb stage pictures and tables in the run folder, not in the user's home, for the time of one run."""
    previous = os.environ.get("WANDB_DATA_DIR")
    os.environ["WANDB_DATA_DIR"] = str(folder / "wandb")
    try:
        yield
    finally:
        if previous is None:
            del os.environ["WANDB_DATA_DIR"]
        else:
            os.environ["WANDB_DATA_DIR"] = previous


def _start(options: RunOptions, folder: Path, mode: TrackingMode) -> Any:
    import wandb
    from wandb.errors import CommError, UsageError

    def init(chosen: TrackingMode) -> Any:
        return wandb.init(
            mode=str(chosen),  # type: ignore[arg-type]
            dir=str(folder),
            project=options.tracking.project,
            entity=options.tracking.entity,
            group=options.tracking.group,
            name=options.tracking.name or f"{'+'.join(enabled_analyses(options.analysis))} {options.model.name}",
            tags=options.tracking.tags or None,
            # Under one key: the parameters of a sweep would overwrite it otherwise.
            config={"cfg": plain(options)},
            # A failed job of a multirun must not hand its run to the next.
            reinit="finish_previous",
            settings=wandb.Settings(
                silent=True, symlink=False, init_timeout=_INIT_SECONDS, finish_timeout=_FINISH_SECONDS, console="off"
            ),
        )

    if mode is TrackingMode.offline:
        try:
            return init(mode)
        except UsageError as error:
            raise InputError(f"tracking: Weights & Biases refuses a setting: {' '.join(str(error).split())}") from error
    try:
        return init(mode)
    except (CommError, UsageError) as error:
        reason = " ".join(str(error).split())
        say(f"Weights & Biases cannot be used online ({reason}); the run is tracked offline, see `wandb sync` later")
        return init(TrackingMode.offline)
