"""MLflow: the only module that imports mlflow. Runs go to a SQLite file and a folder of artifacts, without a server.

MLflow no longer maintains its plain-file store (`mlruns/`) and refuses to open it unless told to, so SQLite it is.
"""

import contextlib
import functools
import logging
import os
import re
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from normscope.config.sections import flat
from normscope.errors import InputError
from normscope.reporting.background import started_in_background
from normscope.reporting.options import TrackingOptions
from normscope.reporting.run_description import parameters
from normscope.reporting.run_folder import CSV_ROWS
from normscope.reporting.spreadsheets import as_csv
from normscope.reporting.threads import contained_threads
from normscope.reporting.tracker import NoTracker, RunDescription, Tracker, as_markdown
from normscope.reporting.trackers.failures import Failures
from normscope.untrusted.files import LONGEST_NAME, text
from normscope.untrusted.writing import write_file

_BATCH = 100
"""Parameters or tags in one call, at most; there may be ten times as many metrics."""

_RUN_ID = "mlflow_run_id"
"""File in the run folder with the MLflow run's id, by which a resumed run continues it."""


@contextlib.contextmanager
def mlflow_run(options: TrackingOptions, description: RunDescription, folder: Path) -> Iterator[Tracker]:
    """An MLflow run in `mlflow.db` next to the run folder, or where MLFLOW_TRACKING_URI says, for the duration of a run.

    Args:
        options: The tracking options; `project` is the experiment.
    """
    failures = Failures("MLflow")
    # MLflow would report its use to its makers.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    with (
        _quiet(),
        contained_threads("mlflow", failures.note),
        started_in_background(_tracker(options, description, folder, failures)) as tracker,
    ):
        yield tracker


@contextlib.contextmanager
def _tracker(
    options: TrackingOptions, description: RunDescription, folder: Path, failures: Failures
) -> Iterator[Tracker]:
    tracker = failures.attempt(lambda: _start(options, description, folder, failures))
    if tracker is None:
        yield NoTracker()
        return
    status = "FAILED"
    try:
        yield tracker
        status = "FINISHED"
    finally:
        tracker.finish(status)


class _MLflow(Tracker):
    """An MLflow run. Its artifacts are the files of the run folder.

    Args:
        client: MLflow's client.
        run: The id of the run.
        failures: Receives every error.
    """

    def __init__(self, client: Any, run: str, failures: Failures) -> None:
        self._client, self._run, self._failures = client, run, failures
        self._captions: dict[str, str] = {}
        self._logged: set[str] = set()

    def finish(self, status: str) -> None:
        """Record how the run ended."""
        self._failures.attempt(lambda: self._client.set_terminated(self._run, status))

    def progress(self, examples: int, values: Mapping[str, float]) -> None:
        self._metrics([(f"progress/{name}", value, examples) for name, value in values.items()])

    def table(self, name: str, table: pd.DataFrame) -> None:
        # MLflow shows CSV files as tables. Its own tables are JSON, which keeps only ten decimals.
        if 0 < len(table) <= CSV_ROWS:
            content, file = as_csv(table), f"tables/{name}.csv"
            self._logged.add(file)
            self._failures.attempt(lambda: self._client.log_text(self._run, content, file))

    def figure(self, name: str, path: Path, caption: str) -> None:
        self._captions[name] = caption
        self._file(f"figures/{name}{path.suffix}", path)

    def page(self, name: str, path: Path) -> None:
        self._file(f"{name}{path.suffix}", path)

    def findings(self, sentences: Mapping[str, Sequence[str]]) -> None:
        self._failures.attempt(lambda: self._client.log_text(self._run, as_markdown(sentences), "findings.md"))

    def curves(self, curves: "Mapping[str, pd.Series[float]]") -> None:
        self._metrics(
            (f"by_layer/{name}", float(value), int(str(layer)))
            for name, values in curves.items()
            for layer, value in values.items()
        )

    def summary(self, metrics: Mapping[str, float], provenance: Mapping[str, object]) -> None:
        self._metrics((name, value, 0) for name, value in metrics.items())
        facts = {f"provenance.{name}": value for name, value in flat(provenance).items() if value is not None}
        self._failures.attempt(lambda: _log_tags(self._client, self._run, facts))
        if self._captions:
            self._failures.attempt(lambda: self._client.log_dict(self._run, self._captions, "figures/captions.json"))

    def run_folder(self, files: Mapping[str, Path], results: bytes) -> None:
        for name, path in files.items():
            self._file(name, path)
        self._failures.attempt(lambda: self._client.log_text(self._run, results.decode(), "results.json"))

    def _file(self, name: str, path: Path) -> None:
        """Log a file under a name unless it has been logged already."""
        if name in self._logged:
            return
        self._logged.add(name)
        folder = Path(name).parent.as_posix()
        self._failures.attempt(
            lambda: self._client.log_artifact(self._run, str(path), None if folder == "." else folder)
        )

    def _metrics(self, values: Iterable[tuple[str, float, int]]) -> None:
        """Log values under their names at their steps."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        points = [Metric(_name(name), float(value), now, step) for name, value, step in values]
        for start in range(0, len(points), 10 * _BATCH):
            batch = points[start : start + 10 * _BATCH]
            self._failures.attempt(functools.partial(self._client.log_batch, self._run, metrics=batch))


def _start(options: TrackingOptions, description: RunDescription, folder: Path, failures: Failures) -> _MLflow:
    """The started run: new, or that of a run folder that is resumed."""
    from mlflow import MlflowClient

    elsewhere = os.environ.get("MLFLOW_TRACKING_URI")
    client = MlflowClient(elsewhere or _store(folder.parent.resolve()))
    run = _earlier_run(client, folder)
    if run is None:
        artifacts = None if elsewhere else (folder.parent.resolve() / "mlflow-artifacts").as_uri()
        experiment = _experiment(client, str(options.project), artifacts)
        run = client.create_run(experiment, run_name=description.name).info.run_id
        write_file(folder, _RUN_ID, run.encode())
        _log_params(client, run, parameters(description.config))
    client.update_run(run, status="RUNNING")
    tags = {"job_type": description.job_type, "tags": ", ".join(description.tags), "group": options.group}
    _log_tags(client, run, tags | {"mlflow.note.content": description.notes})
    return _MLflow(client, run, failures)


def _store(folder: Path) -> str:
    """The address of the SQLite file in a folder."""
    path = folder / "mlflow.db"
    if re.search(r"[?#%]", str(path)):
        raise ValueError(f"{path}: a SQLite file cannot have ?, # or % in its path; set MLFLOW_TRACKING_URI")
    # MLflow would wait for almost two minutes for a file that cannot be opened.
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA schema_version")
    return f"sqlite:///{path}"


def _experiment(client: Any, name: str, artifacts: str | None) -> str:
    """The id of the experiment of a name, which another run may be creating at the same time."""
    from mlflow.exceptions import MlflowException

    existing = client.get_experiment_by_name(name)
    if existing is not None:
        return str(existing.experiment_id)
    try:
        return str(client.create_experiment(name, artifact_location=artifacts))
    except MlflowException:
        existing = client.get_experiment_by_name(name)
        if existing is None:
            raise
        return str(existing.experiment_id)


def _earlier_run(client: Any, folder: Path) -> str | None:
    """Id of the MLflow run of a run that is resumed; None for a new run, or one that the store does not have."""
    from mlflow.exceptions import MlflowException

    try:
        run = text(folder / _RUN_ID, LONGEST_NAME).strip()
        client.get_run(run)
    except (InputError, MlflowException):
        return None
    return run


def _log_params(client: Any, run: str, values: Mapping[str, object]) -> None:
    from mlflow.entities import Param

    params = [Param(_name(key), str(value)) for key, value in values.items()]
    for start in range(0, len(params), _BATCH):
        client.log_batch(run, params=params[start : start + _BATCH])


def _log_tags(client: Any, run: str, values: Mapping[str, object]) -> None:
    from mlflow.entities import RunTag

    tags = [RunTag(_name(key), str(value)) for key, value in values.items() if value is not None]
    for start in range(0, len(tags), _BATCH):
        client.log_batch(run, tags=tags[start : start + _BATCH])


def _name(name: str) -> str:
    """A name with underscores for the characters that MLflow allows in none."""
    return re.sub(r"[^/\w.\- :]", "_", name)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """MLflow logs every step of setting up its store; its warnings are kept."""
    log = logging.getLogger("mlflow")
    environment, level = os.environ.get("MLFLOW_LOGGING_LEVEL"), log.level
    os.environ["MLFLOW_LOGGING_LEVEL"] = "WARNING"  # read when mlflow is imported
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(level)
        if environment is None:
            del os.environ["MLFLOW_LOGGING_LEVEL"]
        else:
            os.environ["MLFLOW_LOGGING_LEVEL"] = environment
