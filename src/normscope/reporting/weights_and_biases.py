"""The process that logs a run to Weights & Biases: the only module that imports wandb. No result depends on it.

It reads messages from standard input, each a line of JSON, and prints a warning when W&B fails; `Tracker` starts it. What W&B
raises, prints or leaves behind stays in this process.
"""

import functools
import html
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import wandb

from normscope.errors import InputError, one_line
from normscope.reporting.figure_text import caption_of
from normscope.reporting.options import TrackingMode, TrackingOptions
from normscope.reporting.run_folder import REPORT, own_files
from normscope.reporting.tracking import RunDescription, chart_key, chart_title, figure_key
from normscope.results.findings import Sentence
from normscope.results.measures import Family, families, title
from normscope.results.result import Result
from normscope.results.run_files import RESULTS, read_results
from normscope.results.run_tables import RUN_TABLES
from normscope.untrusted.plain_data import LONGEST_NAME, text
from normscope.untrusted.writing import write_file

Warn = Callable[[str], None]

_INIT_SECONDS = 15
"""A server that has not answered by then counts as unreachable."""
_TABLE_ROWS = 500
"""Every table is on disk three times, as JSON: wandb adds an artifact to its file. Longer ones are only in the artifact with
the run folder, as Parquet and CSV."""
_PANELS = 8
"""Panels of one analysis at most, which are a section: figures come first, then a chart for each measure."""
_CHART_TABLES = "Custom Chart Tables/*"
"""The keys of the tables behind charts."""
_RUN_ID = "run_id"
"""File in the run folder's `wandb/` with the W&B run's id, by which a resumed run continues it."""


def log(messages: Iterator[Mapping[str, Any]], warn: Warn) -> None:
    """Log a run. Whatever W&B raises is one warning, and nothing more is logged.

    Args:
        messages: First the run; then its progress, where its pictures are once its results are complete, and how it ended.
            Without the last, the run was killed.
        warn: Called with each warning.
    """
    try:
        begin = next(messages)
        description, folder = RunDescription(**begin["description"]), Path(begin["folder"])
        run = _start(TrackingOptions(**begin["options"]), description, folder, warn)
        status = 1
        for message in messages:
            if "progress" in message:
                run.log({f"progress/{name}": value for name, value in message["progress"].items()})
            elif "pictures" in message:
                _log_result(run, description, folder, Path(message["pictures"]))
            else:
                status = message["status"]
                break
        run.finish(exit_code=status)
    except Exception as error:  # W&B raises what its settings, its service, its files and its dependencies raise
        warn(f"Weights & Biases failed ({_reason(error)}); the run continues without tracking")


def _reason(error: Exception) -> str:
    """An error of a library in one line, with its type."""
    return f"{type(error).__name__}: {one_line(error)}" if str(error) else type(error).__name__


def _start(options: TrackingOptions, description: RunDescription, folder: Path, warn: Warn) -> wandb.Run:
    """The W&B run, which is offline if the server is unreachable."""
    try:
        run = _init(options, description, folder, options.mode)
    except Exception as error:
        if options.mode != TrackingMode.online:
            raise
        run = _init(options, description, folder, TrackingMode.offline)
        warn(
            f"Weights & Biases is unreachable ({_reason(error)}); the run is tracked offline, upload it with `wandb sync`"
        )
    write_file(folder, f"wandb/{_RUN_ID}", run.id.encode())
    # Progress has steps of its own, no panels, and last values that are no results of the run.
    run.define_metric("progress/examples", summary="none", hidden=True)
    run.define_metric("progress/*", step_metric="progress/examples", summary="none", hidden=True)
    run.define_metric(_CHART_TABLES, hidden=True)
    return run


def _init(tracking: TrackingOptions, description: RunDescription, folder: Path, mode: TrackingMode | None) -> wandb.Run:
    environment = os.environ
    earlier = _earlier_run(folder)
    tags = environment.get("WANDB_TAGS", "").split(",") if not tracking.tags else []
    config = dict(description.config)
    if "WANDB_SWEEP_ID" in environment:
        # The sweep's parameters, such as `model: bert`, replace whole sections of the config.
        config["cfg"] = dict(description.config)
    return wandb.init(
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
        settings=wandb.Settings(
            silent=True, symlink=False, init_timeout=_INIT_SECONDS, console="off", x_stats_pid=os.getppid()
        ),
    )


def _earlier_run(folder: Path) -> str | None:
    """Id of the W&B run of a run that is resumed; None for a new run."""
    try:
        return text(folder / "wandb" / _RUN_ID, LONGEST_NAME).strip() or None
    except InputError:
        return None


def _log_result(run: wandb.Run, description: RunDescription, folder: Path, pictures: Path) -> None:
    """Log the results that a folder holds, and the folder as a whole.

    Metrics come first, and what may have to wait for the server last. Figures, charts, findings and the page are one step of
    the history. Tables are in the summary, where reports find them: in the history, each would be a panel.
    """
    result = Result.read(folder)
    # One by one: summaries declared through define_metric become dicts.
    for name, value in {**result.metrics, "facts": dict(result.facts)}.items():
        run.summary[name] = value
    media = {
        figure_key(analysis, name): wandb.Image(str(path), caption=caption_of(result.figures[name]))
        for analysis in result.analyses
        for name in result.owned_by(analysis, result.figures)
        if (path := pictures / f"{name}.png").exists()
    }
    charts, tables = _charts(result, media)
    page = {"report": wandb.Html(str(folder / REPORT), inject=False)} if (folder / REPORT).exists() else {}
    run.log(_findings(result) | media | page | charts)
    for name, value in (_tables(result) | tables).items():
        run.summary[name] = value
    run.log_artifact(_artifact(description, folder), aliases=["latest", f"run-{run.id}"])


def _findings(result: Result) -> dict[str, Any]:
    """The findings of each analysis in words."""
    of_analyses: dict[str, list[str]] = {}
    for sentence in map(Sentence.of, result.sentences):
        of_analyses.setdefault(sentence.analysis, []).append(f"<li>{html.escape(sentence)}</li>")
    page = "".join(f"<h3>{html.escape(title(name))}</h3><ul>{''.join(said)}</ul>" for name, said in of_analyses.items())
    return {"findings": wandb.Html(page)} if page else {}


def _tables(result: Result) -> dict[str, Any]:
    """The tables that have rows, and not more than W&B should show."""
    shown = {name: rows for name, rows in result.tables.items() if name not in RUN_TABLES.keys() - {"comparison"}}
    tables = {f"tables/{name}": _table(rows) for name, rows in shown.items() if 0 < len(rows) <= _TABLE_ROWS}
    if result.curves:
        tables["tables/curves"] = _table(result.tables["curves"][["curve", "layer", "value"]])
    return tables


def _charts(result: Result, media: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A chart for as many measures of each analysis as leave it with _PANELS panels, and the tables of the others' charts."""
    charts, tables = dict[str, Any](), dict[str, Any]()
    for family in families(result.curves):
        section = f"{family.analysis}/"
        drawn = _line_series(family, result.curves)
        if sum(key.startswith(section) for key in [*media, *charts]) < _PANELS:
            charts[chart_key(family)] = drawn
        else:
            drawn.set_key(chart_key(family))
            tables[drawn.spec.table_key] = drawn.table
    return charts, tables


def _line_series(family: Family, curves: "Mapping[str, pd.Series[float]]") -> Any:
    """The chart of a family of curves, with layers across; in per cent if its title says so."""
    lines = {panel.title or panel.words: panel.factor * curves[name] for name, panel in family.panels.items()}
    return wandb.plot.line_series(
        xs=[[int(str(layer)) for layer in values.index] for values in lines.values()],
        ys=[[float(value) for value in values] for values in lines.values()],
        keys=list(lines),
        title=chart_title(family),
        xname="layer",
        split_table=True,
    )


def _table(table: pd.DataFrame) -> wandb.Table:
    # Of a data frame, W&B would look up every cell by itself, which takes three times as long.
    columns = {str(column): _cells(values) for column, values in table.items()}
    return wandb.Table(columns=list(columns), data=[list(row) for row in zip(*columns.values(), strict=True)])


def _cells(values: "pd.Series[Any]") -> list[Any]:
    """The values of a column; None where one of integers or categories has none, for which W&B has no type otherwise."""
    if pd.api.types.is_extension_array_dtype(values.dtype):
        return [None if missing else value for value, missing in zip(values, values.isna(), strict=True)]
    return values.tolist()


def _artifact(description: RunDescription, folder: Path) -> wandb.Artifact:
    """The run folder."""
    artifact = wandb.Artifact(
        description.slug, type="normscope-run", description=description.notes, metadata=read_results(folder)
    )
    for name, path in own_files(folder).items():
        # Nothing changes these files any more, so they need not be copied; results.json gets its times at the end.
        own = {} if name == RESULTS else {"policy": "immutable", "skip_cache": True}
        artifact.add_file(str(path), name=name, **own)
    return artifact


def main() -> None:
    """Log the run that standard input tells about."""
    # What W&B and its service print is not for the run.
    warnings, nowhere = os.fdopen(os.dup(1), "w"), os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    parent = os.getppid()
    try:
        log(map(json.loads, sys.stdin), functools.partial(print, file=warnings, flush=True))
    except KeyboardInterrupt:  # of W&B's, when somebody stops the run on its page
        if os.getppid() == parent:
            os.kill(parent, signal.SIGINT)


if __name__ == "__main__":
    main()
