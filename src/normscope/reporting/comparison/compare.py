"""Compare runs: metrics and curves by layer, differences from a baseline, means over seeds; as a page and as files."""

import difflib
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd

from normscope.errors import InputError, one_line
from normscope.reporting.comparison import along, significance, swept
from normscope.reporting.comparison.identity import identities, is_random
from normscope.reporting.comparison.page import addresses, comparison_page
from normscope.reporting.comparison.run_comparison import RunComparison
from normscope.reporting.comparison.runs import cells_of, depth, settings, table_of
from normscope.results.result import Result
from normscope.results.run_files import Status
from normscope.results.run_tables import metadata
from normscope.results.table_files import as_csv, write_parquet
from normscope.rounding import ordinal
from normscope.untrusted.writing import new_file, write_file


def compared(
    runs: Mapping[Path, Result],
    failures: Sequence[str],
    baseline: Path | None = None,
    thresholds: Mapping[str, float] = MappingProxyType({}),
) -> RunComparison:
    """Compare finished runs.

    Args:
        runs: Finished runs, by their folders. Those that did not complete are listed as failures and excluded from the numbers.
        failures: Jobs that left no run folder.
        baseline: Folder of the baseline run; by default the first completed one.
        thresholds: Thresholds of measures over training, by metric; by default half-way between the first and the last step.

    Raises:
        InputError: If no run has completed, or the baseline or a metric is not among those that have.
    """
    completed = {folder: result for folder, result in runs.items() if result.status == Status.COMPLETED}
    if not completed:
        raise InputError("no run has completed, so there is nothing to compare")
    place = 0 if baseline is None else _baseline(baseline, list(completed))
    results, configs = list(completed.values()), [settings(result) for result in completed.values()]
    runs_are = identities(results, configs)
    folders = [folder.name for folder in completed]
    names = _labels([identity.run for identity in runs_are], configs, folders, seeds=True)
    groups = _labels([identity.group for identity in runs_are], configs, folders, seeds=False)
    values = _all_values(completed, configs, names, groups)
    _check_thresholds(thresholds, values["metric"])
    trainings = values.assign(group=values["training"])
    reference = values[values["label"] == names[place]].set_index(["metric", "layer"])["value"]
    keys = pd.MultiIndex.from_frame(values[["metric", "layer"]])
    values["difference"] = values["value"] - reference.reindex(keys).to_numpy()
    whole = values[values["layer"] == 0]
    every = [settings(result) for result in runs.values()]
    return RunComparison(
        runs=_facts(runs, dict(zip(completed, names, strict=True)), every),
        swept=swept.keys(every),
        title=swept.title(every),
        values=values[["run", "label", "group", "metric", "layer", "depth", "step", "value", "difference"]],
        metrics=_side_by_side(whole, names),
        seeds=significance.over_seeds(whole, ["group", "metric"]).query("runs > 1").reset_index(drop=True),
        tests=significance.tests(whole, groups[place]),
        sequence_tests=significance.over_sequences(_sequences_by_group(results, names, groups), groups[place]),
        heatmaps=_heatmaps(results, names, groups),
        repeated=_repeated(results, names),
        training=along.over_training(trainings),
        crossings=along.crossings(trainings, thresholds),
        baseline=names[place],
        baseline_group=groups[place],
        folders=list(runs),
        failures=[
            *failures,
            *(
                f"{folder.name}: {result.status}: {result.error}"
                for folder, result in runs.items()
                if folder not in completed
            ),
        ],
    )


def _baseline(folder: Path, runs: Sequence[Path]) -> int:
    """The place of the run in a folder, or of the first in a folder of that name."""
    for place, run in enumerate(runs):
        if run.resolve() == folder.resolve() or run.name == str(folder):
            return place
    raise InputError(f"--baseline={folder}: expected one of {', '.join(run.name for run in runs)}")


def write(comparison: RunComparison, folder: Path) -> Path:
    """Write a comparison, and return the path of its page.

    The files are `comparison.html`, `comparison.parquet` (every value) and `comparison.csv` (the metrics); for checkpoints of a
    training, `training.parquet` and `crossings.csv` as well.
    """
    page = comparison_page(comparison, addresses(comparison, folder)).encode()
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


def _values(result: Result) -> pd.DataFrame:
    metrics = pd.DataFrame({"metric": list(result.metrics), "value": list(result.metrics.values())})
    metrics = metrics.assign(layer=0, depth=np.nan)
    curves = table_of(result, "curves")
    if curves.empty:
        return metrics
    return pd.concat([metrics, curves.rename(columns={"curve": "metric"})], ignore_index=True)


def _all_values(
    runs: Mapping[Path, Result], configs: Sequence[swept.Config], names: Sequence[str], groups: Sequence[str]
) -> pd.DataFrame:
    """Metrics and curves of all runs, labelled; without training steps in `line`, and without steps and seeds in `training`."""
    lines, trainings = (swept.labels(configs, seeds=seeds, analyses=False, steps=False) for seeds in (True, False))
    tables = [
        _values(result).assign(
            run=folder.name,
            label=name,
            group=group,
            line=line,
            training=training,
            step=config.get("model.step"),
        )
        for (folder, result), config, name, group, line, training in zip(
            runs.items(), configs, names, groups, lines, trainings, strict=True
        )
    ]
    values = pd.concat(tables, ignore_index=True).astype({"step": "Int64"})
    # What was measured again counts once.
    return values.drop_duplicates(["label", "metric", "layer"], ignore_index=True)


def _check_thresholds(thresholds: Mapping[str, float], metrics: "pd.Series[str]") -> None:
    for metric in thresholds:
        if metric not in set(metrics):
            close = difflib.get_close_matches(metric, sorted(set(metrics)), n=3, cutoff=0.3)
            raise InputError(f"--threshold {metric}: no run has this metric; expected one such as {', '.join(close)}")


def _sequences_by_group(
    runs: Sequence[Result], names: Sequence[str], groups: Sequence[str]
) -> dict[str, list[pd.DataFrame]]:
    """Means of single sequences by group: a table for each choice of seeds, of which runs with different analyses are parts.

    Randomly initialised models have none: another seed could reverse a difference, whatever their sequences say.
    """
    parts: dict[tuple[str, str], list[pd.DataFrame]] = {}
    for result, name, group in zip(runs, names, groups, strict=True):
        sequences = table_of(result, "sequences")
        if len(sequences) and not is_random(result):
            parts.setdefault((group, name), []).append(sequences)
    samples: dict[str, list[pd.DataFrame]] = {}
    for (group, _), tables in parts.items():
        whole = pd.concat(tables).drop_duplicates(["metric", "sequence"])
        samples.setdefault(group, []).append(whole)
    return samples


def _heatmaps(runs: Sequence[Result], names: Sequence[str], groups: Sequence[str]) -> pd.DataFrame:
    """The cells of the runs' heat maps, averaged over the runs of a group; of a repeated run, once."""
    tables = [
        cells_of(result).assign(label=name, group=group, depth=depth(result))
        for result, name, group in zip(runs, names, groups, strict=True)
    ]
    tables = [table for table in tables if len(table)] or tables[:1]
    cells = pd.concat(tables, ignore_index=True)
    keys = [name for name in cells.columns if name != "value"]
    cells = cells.drop_duplicates(keys)
    keys.remove("label")
    return cells.groupby(keys, sort=False, dropna=False)["value"].mean().reset_index()


def _repeated(runs: Sequence[Result], names: Sequence[str]) -> dict[str, int]:
    """How many runs have measured the same, in whole or in part, by label."""
    alike: list[tuple[str, set[str], int]] = []
    for result, name in zip(runs, names, strict=True):
        for place, (other, metrics, number) in enumerate(alike):
            if other == name and not metrics.isdisjoint(result.metrics):
                alike[place] = (name, metrics | set(result.metrics), number + 1)
                break
        else:
            alike.append((name, set(result.metrics), 1))
    return {name: number for name, _, number in alike if number > 1}


def _side_by_side(values: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """One row per metric, in the order of the runs' own metrics, and one column per run."""
    wide = values.pivot(index="metric", columns="label", values="value").reindex(columns=list(dict.fromkeys(names)))
    wide.columns.name = None
    return wide.loc[list(dict.fromkeys(values["metric"]))].reset_index()


def _facts(runs: Mapping[Path, Result], labels: Mapping[Path, str], configs: Sequence[swept.Config]) -> pd.DataFrame:
    """One row per run: what it is, the config keys that were swept, and how it ended."""
    rows = [
        {
            "run": folder.name,
            "label": labels.get(folder, ""),
            "status": result.status,
            **{name: result.facts.get(name) for name in ("model", "sequences", "tokens", "seconds")},
            "error": result.error,
        }
        for folder, result in runs.items()
    ]
    facts = pd.DataFrame(rows)
    for place, (key, column) in enumerate(swept.columns(configs, swept.keys(configs)).items(), start=3):
        facts.insert(place, key, column)
    return facts


def _labels(
    keys: Sequence[Hashable], configs: Sequence[swept.Config], folders: Sequence[str], *, seeds: bool
) -> list[str]:
    """A label for each run, the same for those that share a key and for no others; different analyses tell none apart.

    Digests tell nobody which run is which. Where only these would tell runs apart, the names of the folders do, or the place
    in order if these are the numbers of a sweep's jobs or of results in memory.
    """
    first = {key: keys.index(key) for key in keys}
    own = [configs[place] for place in first.values()]
    names = swept.labels(own, seeds=seeds, analyses=False)
    if len(set(names)) < len(names):
        names = swept.labels(own, seeds=seeds)
    if len(set(names)) < len(names) or swept.DIGESTS.keys() & swept.keys(own):
        named = [folders[place] for place in first.values()]
        if len(set(named)) == len(named) and not any(map(str.isdecimal, named)):
            names = named
        else:
            names = [f"{name} ({ordinal(place + 1)} run)" for name, place in zip(names, first.values(), strict=True)]
    by_key = dict(zip(first, _unique(names), strict=True))
    return [by_key[key] for key in keys]


def _unique(names: Sequence[str]) -> list[str]:
    """Distinct labels: equal ones are numbered."""
    return [
        name if names.count(name) == 1 else f"{name} #{names[: index + 1].count(name)}"
        for index, name in enumerate(names)
    ]
