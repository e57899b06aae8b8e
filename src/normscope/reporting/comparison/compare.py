"""Runs side by side: their metrics and layers, differences from one of them, means over seeds; on a page and in files.

python -m normscope.reporting.comparison.compare outputs/multirun/2026-01-31_12-00-00
python -m normscope.reporting.comparison.compare outputs/first outputs/second --baseline outputs/first --output outputs/both
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.stats

from normscope.config.arguments import ArgumentParser
from normscope.errors import InputError, message, one_line
from normscope.reporting.comparison import runs as run_folders
from normscope.reporting.comparison.page import comparison_page
from normscope.reporting.comparison.runs import Run
from normscope.reporting.run_folder import RESULTS, write_atomically

CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class RunComparison:
    """Several runs side by side."""

    runs: pd.DataFrame
    """A row per run: run, label, status, model, sequences, tokens, seconds, error."""
    values: pd.DataFrame
    """A row per run, metric and layer (0: the run as a whole): label, group, metric, layer, depth, value, difference."""
    metrics: pd.DataFrame
    """A row per metric, a column per run."""
    seeds: pd.DataFrame
    """Mean and interval over runs that differ in their seeds alone: group, metric, runs, mean, low, high."""
    baseline: str
    """Label of the run that differences are from."""
    failures: Sequence[str]


def compared(runs: Sequence[Run], failures: Sequence[str], baseline: Path | None = None) -> RunComparison:
    """Put runs side by side.

    Args:
        runs: Finished ones; those that did not complete are named, and left out of the numbers.
        failures: Jobs that left no run.
        baseline: Folder of the run that differences are from; the first that completed by default.

    Raises:
        InputError: If no run has completed, or the baseline is none of them.
    """
    completed = [run for run in runs if run.status == "completed"]
    if not completed:
        raise InputError("no run has completed: there is nothing to compare")
    chosen = completed[0]
    if baseline is not None:
        matching = [
            run for run in completed if run.folder.resolve() == baseline.resolve() or run.folder.name == str(baseline)
        ]
        if not matching:
            raise InputError(f"baseline {baseline}: expected one of {', '.join(run.folder.name for run in completed)}")
        chosen = matching[0]
    names = _names(completed)
    groups = run_folders.labels(completed, seeds=False, analyses=False)
    told = zip(completed, names, groups, strict=True)
    values = pd.concat(
        [_values(run).assign(run=run.folder.name, label=name, group=group) for run, name, group in told],
        ignore_index=True,
    )
    own = values[values["label"] == names[completed.index(chosen)]].set_index(["metric", "layer"])["value"]
    reference = own.reindex(pd.MultiIndex.from_frame(values[["metric", "layer"]])).to_numpy()
    values["difference"] = values["value"] - reference
    whole = values[values["layer"] == 0]
    label_of = {id(run): name for run, name in zip(completed, names, strict=True)}
    return RunComparison(
        runs=pd.DataFrame(_facts(run, label_of.get(id(run), "")) for run in runs),
        values=values[["run", "label", "group", "metric", "layer", "depth", "value", "difference"]],
        metrics=_side_by_side(whole, names),
        seeds=_over_seeds(whole),
        baseline=names[completed.index(chosen)],
        failures=[
            *failures,
            *(f"{run.folder.name}: {run.status}: {run.error}" for run in runs if run.status != "completed"),
        ],
    )


def write(comparison: RunComparison, folder: Path) -> Path:
    """Write `comparison.html`, `.parquet` (every value), `.csv` and `.tex` (the metrics); returns the page's path."""
    page = comparison_page(comparison).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        comparison.values.to_parquet(folder / "comparison.parquet", index=False)
        write_atomically(folder / "comparison.csv", comparison.metrics.to_csv(index=False).encode())
        write_atomically(folder / "comparison.tex", latex(comparison.metrics).encode())
        write_atomically(folder / "comparison.html", page)
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be written to: {one_line(error)}; set --output to another folder"
        ) from error
    return folder / "comparison.html"


def latex(table: pd.DataFrame) -> str:
    """A table in LaTeX, for booktabs; signs that mean something there are escaped."""
    escaped = table.rename(columns=_escaped)
    for name in escaped.columns[[not pd.api.types.is_numeric_dtype(escaped[name]) for name in escaped]]:
        escaped[name] = escaped[name].map(lambda cell: _escaped(str(cell)))
    return escaped.to_latex(index=False, float_format="%.4f", na_rep="--", escape=False)


def _escaped(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(sign, f"\\{sign}" if sign in "&%$#_{}" else sign) for sign in text)


def _values(run: Run) -> pd.DataFrame:
    metrics = pd.DataFrame({"metric": list(run.metrics), "value": list(run.metrics.values())})
    metrics = metrics.assign(layer=0, depth=np.nan)
    if run.curves.empty:
        return metrics
    return pd.concat([metrics, run.curves.rename(columns={"curve": "metric"})], ignore_index=True)


def _side_by_side(values: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """A row per metric in the order of the runs', a column per run."""
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


def _over_seeds(values: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for (group, metric), chosen in values.groupby(["group", "metric"], sort=False):
        count, mean = len(chosen), chosen["value"].mean()
        if count < 2:
            continue
        half = scipy.stats.t.ppf((1 + CONFIDENCE) / 2, count - 1) * chosen["value"].std() / np.sqrt(count)
        rows.append(
            {"group": group, "metric": metric, "runs": count, "mean": mean, "low": mean - half, "high": mean + half}
        )
    return pd.DataFrame(rows, columns=["group", "metric", "runs", "mean", "low", "high"])


def _names(runs: Sequence[Run]) -> list[str]:
    """Labels by which no number is told twice: analyses of one model on one corpus have one, and make one column."""
    names = run_folders.labels(runs, analyses=False)
    told = [(name, metric) for name, run in zip(names, runs, strict=True) for metric in run.metrics]
    return names if len(set(told)) == len(told) else _unique(run_folders.labels(runs))


def _unique(names: Sequence[str]) -> list[str]:
    """Labels that are all different: what is told alike is numbered."""
    return [
        name if names.count(name) == 1 else f"{name} #{names[: index + 1].count(name)}"
        for index, name in enumerate(names)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the runs in some folders."""
    parser = ArgumentParser(
        prog="python -m normscope.reporting.comparison.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="run folders, or folders of them")
    parser.add_argument("--baseline", type=Path, help="folder of the run that differences are from (the first)")
    parser.add_argument(
        "--output", type=Path, help="where the comparison is written (the first folder, or outputs/comparison)"
    )
    given = parser.parse_args(arguments)
    try:
        runs, failures = run_folders.read(given.folders)
        alone = len(given.folders) == 1 and not (given.folders[0] / RESULTS).exists()
        folder = given.output or (given.folders[0] if alone else Path("outputs/comparison"))
        print(write(compared(runs, failures, given.baseline), folder))
    except InputError as error:
        print(message(error), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
