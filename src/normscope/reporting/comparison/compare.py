"""Compare runs: metrics and curves by layer, differences from a baseline, means over seeds; as a page and as files.

python -m normscope.reporting.comparison.compare outputs/multirun/2026-01-31_12-00-00
python -m normscope.reporting.comparison.compare outputs/first outputs/second --baseline outputs/first --output outputs/both
"""

import argparse
import difflib
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd

from normscope.config.arguments import ArgumentParser
from normscope.errors import InputError, message, one_line
from normscope.reporting.comparison import runs as run_folders
from normscope.reporting.comparison import significance, swept, training
from normscope.reporting.comparison.page import comparison_page
from normscope.reporting.comparison.run_comparison import RunComparison
from normscope.reporting.comparison.runs import Run
from normscope.reporting.earlier_runs import RESULTS
from normscope.reporting.run_folder import write_parquet
from normscope.reporting.run_tables import metadata
from normscope.reporting.spreadsheets import as_csv
from normscope.streams import open_streams
from normscope.untrusted.writing import new_file, write_file


def compared(
    runs: Sequence[Run],
    failures: Sequence[str],
    baseline: Path | None = None,
    thresholds: Mapping[str, float] = MappingProxyType({}),
) -> RunComparison:
    """Compare finished runs.

    Args:
        runs: Finished runs. Those that did not complete are listed as failures and excluded from the numbers.
        failures: Jobs that left no run folder.
        baseline: Folder of the baseline run; by default the first completed one.
        thresholds: Thresholds of measures over training, by metric; by default half-way between the first and the last step.

    Raises:
        InputError: If no run has completed, or the baseline or a metric is not among those that have.
    """
    completed = [run for run in runs if run.status == "completed"]
    if not completed:
        raise InputError("no run has completed, so there is nothing to compare")
    reference_run = completed[0] if baseline is None else _baseline(baseline, completed)
    names = _names(completed)
    groups = swept.labels(completed, seeds=False, analyses=False)
    values = _all_values(completed, names, groups)
    _check_thresholds(thresholds, values["metric"])
    trainings = values.assign(group=values["training"])
    reference = values[values["label"] == names[completed.index(reference_run)]].set_index(["metric", "layer"])["value"]
    keys = pd.MultiIndex.from_frame(values[["metric", "layer"]])
    values["difference"] = values["value"] - reference.reindex(keys).to_numpy()
    whole = values[values["layer"] == 0]
    label_of = {id(run): name for run, name in zip(completed, names, strict=True)}
    baseline_group = groups[completed.index(reference_run)]
    keys_swept = swept.keys(runs)
    facts = pd.DataFrame(_facts(run, label_of.get(id(run), "")) for run in runs)
    for place, (key, column) in enumerate(swept.columns(runs, keys_swept).items(), start=3):
        facts.insert(place, key, column)
    return RunComparison(
        runs=facts,
        swept=keys_swept,
        title=swept.title(runs),
        values=values[["run", "label", "group", "metric", "layer", "depth", "step", "value", "difference"]],
        metrics=_side_by_side(whole, names),
        seeds=significance.over_seeds(whole, ["group", "metric"]),
        seed_curves=significance.over_seeds(values[values["layer"] > 0], ["group", "metric", "layer", "depth"]),
        tests=significance.tests(whole, baseline_group),
        sequence_tests=significance.over_sequences(_sequences_by_group(completed, groups), baseline_group),
        heatmaps=_heatmaps(completed, groups),
        training=training.over_training(trainings),
        crossings=training.crossings(trainings, thresholds),
        baseline=names[completed.index(reference_run)],
        baseline_group=baseline_group,
        folders=[run.folder for run in runs],
        failures=[
            *failures,
            *(f"{run.folder.name}: {run.status}: {run.error}" for run in runs if run.status != "completed"),
        ],
    )


def _baseline(folder: Path, runs: Sequence[Run]) -> Run:
    """The run in a folder, or the first in a folder of that name."""
    for run in runs:
        if run.folder.resolve() == folder.resolve() or run.folder.name == str(folder):
            return run
    raise InputError(f"--baseline={folder}: expected one of {', '.join(run.folder.name for run in runs)}")


def write(comparison: RunComparison, folder: Path) -> Path:
    """Write a comparison, and return the path of its page.

    The files are `comparison.html`, `comparison.parquet` (every value) and `comparison.csv` (the metrics); for checkpoints of a
    training, `training.parquet` and `crossings.csv` as well.
    """
    page = comparison_page(comparison, folder).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_parquet(folder, "comparison.parquet", comparison.values)
        write_file(folder, "comparison.csv", as_csv(comparison.metrics).encode())
        write_file(folder, "comparison.html", page)
        if len(comparison.crossings):
            _write_parquet(folder, "training.parquet", comparison.training)
            write_file(folder, "crossings.csv", as_csv(comparison.crossings).encode())
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be written to: {one_line(error)}; set --output to another folder"
        ) from error
    return folder / "comparison.html"


def _write_parquet(folder: Path, name: str, table: pd.DataFrame) -> None:
    with new_file(folder, name) as stream:
        write_parquet(stream, table, metadata(name, table.columns, {}))


def _values(run: Run) -> pd.DataFrame:
    metrics = pd.DataFrame({"metric": list(run.metrics), "value": list(run.metrics.values())})
    metrics = metrics.assign(layer=0, depth=np.nan)
    if run.curves.empty:
        return metrics
    return pd.concat([metrics, run.curves.rename(columns={"curve": "metric"})], ignore_index=True)


def _all_values(runs: Sequence[Run], names: Sequence[str], groups: Sequence[str]) -> pd.DataFrame:
    """Metrics and curves of all runs, labelled; without training steps in `line`, and without steps and seeds in `training`."""
    lines, trainings = (swept.labels(runs, seeds=seeds, analyses=False, steps=False) for seeds in (True, False))
    tables = [
        _values(run).assign(
            run=run.folder.name,
            label=name,
            group=group,
            line=line,
            training=training,
            step=run.config.get("model.step"),
        )
        for run, name, group, line, training in zip(runs, names, groups, lines, trainings, strict=True)
    ]
    return pd.concat(tables, ignore_index=True).astype({"step": "Int64"})


def _check_thresholds(thresholds: Mapping[str, float], metrics: "pd.Series[str]") -> None:
    for metric in thresholds:
        if metric not in set(metrics):
            close = difflib.get_close_matches(metric, sorted(set(metrics)), n=3, cutoff=0.3)
            raise InputError(f"--threshold {metric}: no run has this metric; expected one such as {', '.join(close)}")


def _sequences_by_group(runs: Sequence[Run], groups: Sequence[str]) -> dict[str, list[pd.DataFrame]]:
    """Means of single sequences by group: a table for each choice of seeds, of which runs with different analyses are parts.

    Randomly initialised models have none: another seed could reverse a difference, whatever their sequences say.
    """
    parts: dict[tuple[str, str], list[pd.DataFrame]] = {}
    for run, group, label in zip(runs, groups, swept.labels(runs, analyses=False), strict=True):
        if len(run.sequences) and not run.is_random:
            parts.setdefault((group, label), []).append(run.sequences)
    samples: dict[str, list[pd.DataFrame]] = {}
    for (group, _), tables in parts.items():
        whole = pd.concat(tables).drop_duplicates(["metric", "sequence"])
        samples.setdefault(group, []).append(whole)
    return samples


def _heatmaps(runs: Sequence[Run], groups: Sequence[str]) -> pd.DataFrame:
    """The cells of the runs' heat maps, averaged over the runs of a group."""
    tables = [
        run.heatmaps.assign(group=group, depth=run.depth)
        for run, group in zip(runs, groups, strict=True)
        if len(run.heatmaps)
    ]
    if not tables:
        return runs[0].heatmaps.assign(group="", depth=0).head(0)
    cells = pd.concat(tables, ignore_index=True)
    keys = [name for name in cells.columns if name != "value"]
    return cells.groupby(keys, sort=False, dropna=False)["value"].mean().reset_index()


def _side_by_side(values: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """One row per metric, in the order of the runs' own metrics, and one column per run."""
    wide = values.pivot(index="metric", columns="label", values="value").reindex(columns=list(dict.fromkeys(names)))
    wide.columns.name = None
    return wide.loc[list(dict.fromkeys(values["metric"]))].reset_index()


def _facts(run: Run, label: str) -> dict[str, object]:
    facts = run.provenance
    return {
        "run": run.folder.name,
        "label": label,
        "status": run.status,
        **{name: facts.get(name) for name in ("model", "sequences", "tokens", "seconds")},
        "error": run.error,
    }


def _names(runs: Sequence[Run]) -> list[str]:
    """Labels under which every metric has one value: different analyses of one model and corpus share a label and a column."""
    names = swept.labels(runs, analyses=False)
    cells = [(name, metric) for name, run in zip(names, runs, strict=True) for metric in run.metrics]
    return names if len(set(cells)) == len(cells) else _unique(swept.labels(runs))


def _unique(names: Sequence[str]) -> list[str]:
    """Distinct labels: equal ones are numbered."""
    return [
        name if names.count(name) == 1 else f"{name} #{names[: index + 1].count(name)}"
        for index, name in enumerate(names)
    ]


def _threshold(text: str) -> tuple[str, float]:
    metric, _, value = text.rpartition("=")
    if not metric or not math.isfinite(float(value)):
        raise ValueError(text)
    return metric, float(value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the runs in the given folders."""
    parser = ArgumentParser(
        prog="python -m normscope.reporting.comparison.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="FOLDER", help="run directories, or folders that contain them"
    )
    parser.add_argument(
        "--baseline", type=Path, help="directory of the run to measure differences from (default: the first run)"
    )
    parser.add_argument(
        "--output", type=Path, help="folder for the comparison (default: the sweep's folder, or outputs/comparison)"
    )
    parser.add_argument(
        "--threshold",
        action="append",
        default=[],
        type=_threshold,
        metavar="METRIC=VALUE",
        help="find the training step at which a metric crosses this value (default: half-way through its change; repeatable)",
    )
    parsed = parser.parse_args(arguments)
    try:
        runs, failures = run_folders.read(parsed.folders)
        is_sweep = len(parsed.folders) == 1 and not (parsed.folders[0] / RESULTS).exists()
        folder = parsed.output or (parsed.folders[0] if is_sweep else Path("outputs/comparison"))
        print(write(compared(runs, failures, parsed.baseline, dict(parsed.threshold)), folder))
    except InputError as error:
        print(message(error), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    open_streams()
    sys.exit(main())
