"""Weights & Biases: the only module that imports wandb. No result depends on it."""

import concurrent.futures
import contextlib
import filecmp
import functools
import html
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any

import pandas as pd
import psutil

from normscope.errors import InputError, one_line
from normscope.reporting.figure_text import caption_of
from normscope.reporting.options import TrackingMode, TrackingOptions
from normscope.reporting.run_folder import REPORT, published_files
from normscope.reporting.terminal import say
from normscope.reporting.tracking import RunDescription, chart_key, chart_title, figure_key
from normscope.results.findings import Sentence
from normscope.results.measures import Family, families, title
from normscope.results.result import Result
from normscope.results.run_files import RESULTS, read_results
from normscope.results.run_tables import RUN_TABLES
from normscope.untrusted.plain_data import LONGEST_NAME, text
from normscope.untrusted.writing import write_file


@contextlib.contextmanager
def contained_threads(package: str, note: Callable[[Exception], None]) -> Iterator[None]:
    """Report uncaught exceptions of a package's threads instead of printing their tracebacks. Other threads keep theirs.

    Args:
        package: The top-level package; the exception must have passed through one of its functions.
        note: Called with the exception, in the thread that raised it.
    """
    previous = threading.excepthook

    def hook(uncaught: threading.ExceptHookArgs) -> None:
        if isinstance(uncaught.exc_value, Exception) and _passed(package, uncaught.exc_traceback):
            note(uncaught.exc_value)
        else:
            previous(uncaught)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = previous


def _passed(package: str, trace: TracebackType | None) -> bool:
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] == package:
            return True
        trace = trace.tb_next
    return False


# A server that has not answered by then counts as unreachable.
_INIT_SECONDS = 15
_FINISH_SECONDS = 20
# Whatever W&B has not done by then is given up: it may also hang, or wait for its own service.
_END_SECONDS = 30
_DISCARD_SECONDS = 5
# Every table is on disk three times, as JSON: wandb adds an artifact to its file. Longer ones are only in the artifact with the
# run folder, as Parquet and CSV.
_TABLE_ROWS = 500
_PANELS = 8
"""Panels of one analysis at most, which are a section: figures come first, then a chart for each measure."""
_CHART_TABLES = "Custom Chart Tables/*"
"""The keys of the tables behind charts."""
_RUN_ID = "run_id"
"""File in the run folder's `wandb/` with the W&B run's id, by which a resumed run continues it."""


class _Outage:
    """Failures of Weights & Biases during one run, of which only the first is reported.

    Args:
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
            f"Weights & Biases failed ({reason(error)}); the run continues without tracking, and earlier logs are in "
            f"{self._folder / 'wandb'} for `wandb sync`"
        )

    def attempt(self, call: Callable[[], object]) -> None:
        """Call W&B. The call must contain nothing but W&B's own code."""
        try:
            call()
        except Exception as error:  # W&B raises what its service, its files and its dependencies raise
            self.note(error)

    def give_up(self) -> None:
        """Abandon W&B, which did not finish in time: calls that still wait for its service fail."""
        self.lost = True
        self.report(
            f"Weights & Biases has not finished within {_END_SECONDS} s; the run ends without it; use `wandb sync` to "
            f"upload what it saved in {self._folder / 'wandb'}"
        )
        logging.getLogger("wandb").propagate = False  # its threads complain of the service that is gone
        for process in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if process.name().startswith("wandb"):
                    process.kill()
        concurrent.futures.wait([in_background(_discard)], _DISCARD_SECONDS)

    def report(self, warning: str) -> None:
        """Print the first failure; later ones follow from it."""
        if not self._reported:
            self._reported = True
            say(warning)


class Tracker:
    """What a run logs to Weights & Biases besides its folder. An error in W&B can end the tracking but never the run.

    Figures, charts, findings and the page are collected, and logged as one step of the history. Tables are in the summary,
    where reports find them: in the history, each would be a panel.

    Progress is kept until W&B has started; everything else waits for it, and so does the end of the run, which W&B can hold for
    at most _END_SECONDS. A signal interrupts the wait.

    Args:
        started: What `wandb.init` returns, once it has; None if nothing is logged.
        description: The run, as it is tracked; None if nothing is logged.
        outage: Receives every error.
    """

    def __init__(self, started: "Future[Any]", description: RunDescription | None, outage: "_Outage") -> None:
        self._started, self._description, self._outage = started, description, outage
        self._early: list[tuple[int, Mapping[str, float]]] = []
        self._media: dict[str, Any] = {}
        self._tables: dict[str, Any] = {}
        self._curves: Mapping[str, pd.Series[float]] = {}
        """Values by layer, which charts show."""
        self._deadline: float | None = None
        """When the end of the run no longer waits for W&B, by `time.monotonic`; None before the end."""
        self._originals: list[Path] = []
        """The files of the run folder that W&B has copied."""

    @property
    def logs(self) -> bool:
        """Whether anything is logged."""
        return self._description is not None

    def wait(self) -> Any:
        """W&B's run, once it has started and has the progress that was made meanwhile; None if there is none."""
        run = self._started.result()
        while self._early:
            self._log_progress(run, *self._early.pop(0))
        return run

    def _send(self, call: Callable[[], object]) -> None:
        """Call W&B unless it has failed for good. The call must contain nothing but W&B's own code."""
        if self.wait() is not None and not self._outage.lost:
            self._outage.attempt(call)

    def _within_limit(self, call: Callable[[], None]) -> None:
        """Let W&B do something at the end of the run, or give it up when that takes too long."""
        if self._deadline is None:
            self._deadline = time.monotonic() + _END_SECONDS
        left = self._deadline - time.monotonic()
        if left <= 0:  # it has been given up
            return
        done = in_background(call)
        try:
            concurrent.futures.wait([done], left)
        except BaseException:  # a signal
            self._outage.lost = True
            raise
        if done.done():
            done.result()
        else:
            self._outage.give_up()

    def finish(self, status: int) -> None:
        """Send what is pending; anything that cannot be sent stays on disk."""
        if self.logs:
            self._within_limit(lambda: self._finish(status))

    def _finish(self, status: int) -> None:
        run = self.wait()
        if run is None:
            return
        self._send(lambda: run.finish(exit_code=status))
        if self._outage.lost:
            _discard()
        with contextlib.suppress(OSError):  # where links are impossible, copies stay
            _link_copies(Path(run.dir) / "media", self._originals)

    def progress(self, examples: int, values: Mapping[str, float]) -> None:
        """Log throughput, memory and remaining time, after so many examples."""
        if self._started.done():
            self._log_progress(self.wait(), examples, values)
        else:
            self._early.append((examples, values))

    def _log_progress(self, run: Any, examples: int, values: Mapping[str, float]) -> None:
        named = {f"progress/{name}": value for name, value in values.items()}
        if run is not None and not self._outage.lost:
            self._outage.attempt(lambda: run.log({"progress/examples": examples} | named))

    def result(self, result: Result, folder: Path, pictures: Mapping[str, Path]) -> None:
        """Log the results of a completed run, and its folder as a whole.

        Args:
            result: The results.
            folder: The run folder, in which they are saved.
            pictures: Its figures as PNGs, by name.
        """
        if self.logs:
            self._within_limit(lambda: self._log_result(result, folder, pictures))

    def _log_result(self, result: Result, folder: Path, pictures: Mapping[str, Path]) -> None:
        for name, rows in result.tables.items():
            self._table(name, rows)
        self._curves = result.curves
        if self._curves:
            rows = result.tables["curves"][["curve", "layer", "value"]]
            self._send(lambda: self._tables.update({"tables/curves": _table(rows)}))
        self._findings(result.sentences)
        for analysis in result.analyses:
            for name in result.owned_by(analysis, pictures):
                self._figure(figure_key(analysis, name), pictures[name], caption_of(result.figures[name]))
        if (folder / REPORT).exists():
            self._originals.append(folder / REPORT)
            self._collect("report", lambda: _html(str(folder / REPORT), inject=False))
        self._summary(result.metrics, result.facts)
        self._run_folder(folder)

    def _table(self, name: str, table: pd.DataFrame) -> None:
        """Log a table, unless it has no rows, or more than W&B should show."""
        if name not in RUN_TABLES.keys() - {"comparison"} and 0 < len(table) <= _TABLE_ROWS:
            self._send(lambda: self._tables.update({f"tables/{name}": _table(table)}))

    def _figure(self, key: str, path: Path, caption: str) -> None:
        """Log a figure that has been drawn."""

        def image() -> object:
            import wandb

            return wandb.Image(str(path), caption=caption)

        self._originals.append(path)
        self._collect(key, image)

    def _collect(self, key: str, medium: Callable[[], object]) -> None:
        self._send(lambda: self._media.update({key: medium()}))

    def _findings(self, sentences: Sequence[str]) -> None:
        """Log the findings of each analysis in words."""
        of_analyses: dict[str, list[str]] = {}
        for sentence in map(Sentence.of, sentences):
            of_analyses.setdefault(sentence.analysis, []).append(f"<li>{html.escape(sentence)}</li>")
        if of_analyses:
            page = "".join(
                f"<h3>{html.escape(title(name))}</h3><ul>{''.join(said)}</ul>" for name, said in of_analyses.items()
            )
            self._collect("findings", lambda: _html(page))

    def _collect_charts(self) -> None:
        """A chart for as many measures of each analysis as leave it with _PANELS panels; reports find the others' tables."""
        charts = families(self._curves)
        for analysis in dict.fromkeys(family.analysis for family in charts):
            figures = sum(key.startswith(f"{analysis}/") for key in self._media)
            own = [family for family in charts if family.analysis == analysis]
            room = max(0, _PANELS - figures)
            for family in own[:room]:
                self._collect(chart_key(family), functools.partial(_line_series, family, self._curves))
            for family in own[room:]:
                self._send(functools.partial(self._keep_table, family))

    def _keep_table(self, family: Family) -> None:
        drawn = _line_series(family, self._curves)
        drawn.set_key(chart_key(family))
        self._tables[drawn.spec.table_key] = drawn.table

    def _summary(self, metrics: Mapping[str, float], facts: Mapping[str, object]) -> None:
        """Log the final metrics of a completed run."""
        if not self._outage.offline:  # Logging a table would wait for an answer from the server.
            self._collect_charts()
        media, tables = self._media, {} if self._outage.offline else self._tables
        self._media, self._tables, self._curves = {}, {}, {}

        def send() -> None:
            if media:
                self.wait().log(media)
            # Set them one by one: summaries declared through define_metric become dicts.
            for name, value in {**metrics, **tables}.items():
                self.wait().summary[name] = value
            self.wait().summary["facts"] = dict(facts)

        self._send(send)

    def _run_folder(self, folder: Path) -> None:
        """Log the run folder as a whole, after everything else."""
        if self._outage.offline or self._description is None:
            return  # It would wait for an answer from the server.
        import wandb

        description = self._description

        def send() -> None:
            artifact = wandb.Artifact(
                description.slug,
                type="normscope-run",
                description=description.notes,
                metadata=read_results(folder),
            )
            for name, path in published_files(folder).items():
                # Nothing changes these files any more, so they need not be copied; results.json gets its times at the end.
                own = {} if name == RESULTS else {"policy": "immutable", "skip_cache": True}
                artifact.add_file(str(path), name=name, **own)
            self.wait().log_artifact(artifact, aliases=["latest", f"run-{self.wait().id}"])

        self._send(send)


def no_tracker() -> Tracker:
    """A tracker that logs nothing."""
    started: Future[Any] = Future()
    started.set_result(None)
    return Tracker(started, None, _Outage(Path(), online=False))


@contextlib.contextmanager
def track(options: TrackingOptions, description: RunDescription, folder: Path) -> Iterator[Tracker]:
    """A Weights & Biases run, for the duration of a run; nothing is logged if the mode is `disabled`.

    W&B starts in a thread, beside the first batches: importing and starting it takes seconds. If the server is unreachable, an
    online run is tracked offline; if the connection is lost later, unsent data stays on disk. If W&B fails in any other way, at
    any time and in any of its threads, the run continues without tracking. Each run logs at most one warning about this.

    Args:
        options: The tracking options, completed by `with_environment`.
        description: The run, as it is tracked.
        folder: The run folder.
    """
    if options.mode is TrackingMode.disabled:
        yield no_tracker()
        return
    outage = _Outage(folder, online=options.mode is TrackingMode.online)
    with _environment(options, folder), contained_threads("wandb", outage.note):
        tracker = Tracker(in_background(lambda: _start(options, description, folder, outage)), description, outage)
        # Not `with run`: wandb prints the traceback of whatever passes it, bad input and interrupts among them.
        status = 1
        try:
            yield tracker
            status = 0
        finally:
            tracker.finish(status)


def in_background(start: Callable[[], Any]) -> "Future[Any]":
    """What a function returns, called in a thread."""
    started: Future[Any] = Future()

    def run() -> None:
        try:
            started.set_result(start())
        except BaseException as error:  # raised again by whatever waits for the result
            started.set_exception(error)

    # A daemon, so that a process that is interrupted again while it waits can end.
    threading.Thread(target=run, name="normscope-tracker", daemon=True).start()
    return started


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


def _start(options: TrackingOptions, description: RunDescription, folder: Path, outage: _Outage) -> Any:
    """A W&B run, or None if W&B does not start."""
    errors = []
    online = options.mode is TrackingMode.online
    for mode in (TrackingMode.online, TrackingMode.offline) if online else (TrackingMode.offline,):
        try:
            run = _init(options, description, folder, mode)
        except Exception as error:  # W&B raises what its settings, its service and its files raise
            errors.append(reason(error))
            _discard()
            continue
        if errors:
            outage.report(
                f"Weights & Biases is unreachable ({errors[0]}); the run is tracked offline, upload it with `wandb sync`"
            )
        outage.attempt(functools.partial(_define_metrics, run))
        return run
    outage.report(f"Weights & Biases did not start ({errors[-1]}); the run continues without tracking")
    return None


def _define_metrics(run: Any) -> None:
    """Progress has steps of its own, no panels, and last values that are no results of the run."""
    run.define_metric("progress/examples", summary="none", hidden=True)
    run.define_metric("progress/*", step_metric="progress/examples", summary="none", hidden=True)
    run.define_metric(_CHART_TABLES, hidden=True)


def _html(*arguments: Any, **options: Any) -> Any:
    import wandb

    return wandb.Html(*arguments, **options)


def _link_copies(media: Path, originals: Iterable[Path]) -> None:
    """Replace W&B's copies of figures and of the report by links to the originals, which nothing changes any more."""
    by_size = {path.stat().st_size: path for path in originals if path.is_file()}
    for copy in [path for path in media.rglob("*") if path.is_file()]:
        original = by_size.get(copy.stat().st_size)
        if original is not None and filecmp.cmp(original, copy, shallow=False):
            link = copy.with_name(f"{copy.name}.link")
            os.link(original, link)
            link.replace(copy)


def _table(table: pd.DataFrame) -> Any:
    import wandb

    # Of a data frame, W&B would look up every cell by itself, which takes three times as long.
    columns = {str(column): _cells(values) for column, values in table.items()}
    return wandb.Table(columns=list(columns), data=[list(row) for row in zip(*columns.values(), strict=True)])


def _line_series(family: Family, curves: "Mapping[str, pd.Series[float]]") -> Any:
    """The chart of a family of curves, with layers across; in per cent if its title says so."""
    import wandb

    lines = {panel.title or panel.words: panel.factor * curves[name] for name, panel in family.panels.items()}
    return wandb.plot.line_series(
        xs=[[int(str(layer)) for layer in values.index] for values in lines.values()],
        ys=[[float(value) for value in values] for values in lines.values()],
        keys=list(lines),
        title=chart_title(family),
        xname="layer",
        split_table=True,
    )


def _cells(values: "pd.Series[Any]") -> list[Any]:
    """The values of a column; None where one of integers or categories has none, for which W&B has no type otherwise."""
    if pd.api.types.is_extension_array_dtype(values.dtype):
        return [None if missing else value for value, missing in zip(values, values.isna(), strict=True)]
    return values.tolist()


@contextlib.contextmanager
def _without_launcher() -> Iterator[None]:
    """While this context is open, W&B does not import its launcher to look for inputs staged for it.

    They can only have been staged by code that has imported the launcher. With all our libraries in memory, that import takes a
    second of processor time, while the first batches run.
    """
    from wandb import Run

    name = "_detect_and_apply_job_inputs"
    look = vars(Run).get(name)
    if look is None or "wandb.sdk.launch" in sys.modules:
        yield
        return
    setattr(Run, name, lambda _run: None)
    try:
        yield
    finally:
        setattr(Run, name, look)


def _init(tracking: TrackingOptions, description: RunDescription, folder: Path, mode: TrackingMode) -> Any:
    import wandb

    environment = os.environ
    earlier = _earlier_run(folder)
    tags = environment.get("WANDB_TAGS", "").split(",") if not tracking.tags else []
    config = dict(description.config)
    if "WANDB_SWEEP_ID" in environment:
        # The sweep's parameters, such as `model: bert`, replace whole sections of the config.
        config["cfg"] = dict(description.config)
    with _without_launcher():
        run = wandb.init(
            mode=str(mode),  # type: ignore[arg-type]
            dir=str(folder),
            project=tracking.project,
            entity=tracking.entity,
            group=tracking.group,
            name=tracking.name or environment.get("WANDB_NAME") or description.name,
            job_type=tracking.job_type or environment.get("WANDB_JOB_TYPE") or description.job_type,
            notes=tracking.notes or environment.get("WANDB_NOTES") or description.notes,
            tags=[*dict.fromkeys([*description.tags, *(tag.strip() for tag in tags if tag.strip())])],
            config=config,
            id=earlier,
            resume=None if earlier is None else "allow",
            # The next job of a multirun must not continue a failed job's run.
            reinit="finish_previous",
            settings=wandb.Settings(
                silent=True, symlink=False, init_timeout=_INIT_SECONDS, finish_timeout=_FINISH_SECONDS, console="off"
            ),
        )
    (folder / "wandb").mkdir(exist_ok=True)
    write_file(folder, f"wandb/{_RUN_ID}", run.id.encode())
    return run


def log_to_active_run(metrics: Mapping[str, float], training_step: int) -> None:
    """Log to the W&B run that this process has active, if there is one, on the axis that transformers' trainer uses."""
    wandb = sys.modules.get("wandb")
    # A module that another thread is importing has no attributes yet.
    if wandb is not None and getattr(wandb, "run", None) is not None:
        try:
            wandb.log({**metrics, "train/global_step": training_step})
        except Exception as error:  # its service may be gone, and a training must not end for that
            logging.getLogger("normscope").warning("step %d is not logged to W&B: %s", training_step, one_line(error))


def reason(error: Exception) -> str:
    """An error of a library in one line, with its type."""
    return f"{type(error).__name__}: {one_line(error)}" if str(error) else type(error).__name__


def _earlier_run(folder: Path) -> str | None:
    """Id of the W&B run of a run that is resumed; None for a new run."""
    try:
        return text(folder / "wandb" / _RUN_ID, LONGEST_NAME).strip() or None
    except InputError:
        return None


def _discard() -> None:
    """Shut down a failed W&B, which would otherwise fail again at exit and in the next run of a sweep."""
    with contextlib.suppress(Exception):
        import wandb

        wandb.teardown()
        wandb.sdk.lib.module.unset_globals()  # or it keeps the run that is gone as the active one
    wandb_log = logging.getLogger("wandb")
    for handler in list(wandb_log.handlers):
        wandb_log.removeHandler(handler)
        with contextlib.suppress(OSError):
            handler.close()
