"""The HTML page of a comparison of runs."""

from typing import TYPE_CHECKING

import pandas as pd

from normscope.reporting.page.elements import asset, environment, script, script_data, table, table_data, vega

if TYPE_CHECKING:
    from normscope.reporting.comparison.compare import RunComparison


def comparison_page(comparison: "RunComparison") -> str:
    """The page as self-contained HTML."""
    layers = comparison.values[comparison.values["layer"] > 0]
    curves = {
        str(metric): [
            {
                "label": str(label),
                "layer": rows["layer"].astype(int).tolist(),
                "depth": rows["depth"].astype(float).tolist(),
                "value": rows["value"].astype(float).tolist(),
            }
            for label, rows in metric_rows.groupby("label", sort=False)
        ]
        for metric, metric_rows in layers.groupby("metric", sort=False)
    }
    tables = {"metrics-table": table_data(comparison.metrics, "Metrics of the runs", limit=_ROWS, digits=9)}
    if len(comparison.metrics.columns) > 2:
        caption = f"Metrics less those of {comparison.baseline}"
        tables["differences-table"] = table_data(_differences(comparison), caption, limit=_ROWS, digits=9)
    if len(comparison.seeds):
        tables["seeds-table"] = table_data(comparison.seeds, "Means over seeds", limit=_ROWS, digits=9)
    return (
        environment()
        .get_template("comparison.html")
        .render(
            css=asset("page.css"),
            libraries=vega() if curves else "",
            script=script("rounding.js", "dom.js", "charts.js", "tables.js", "comparison.js"),
            count=len(comparison.runs),
            failures=comparison.failures,
            runs=table(comparison.runs, "Runs"),
            names=list(tables),
            tables=script_data(tables),
            baseline=comparison.baseline,
            curves=script_data({"curves": curves}) if curves else None,
        )
    )


_ROWS = 2_000
"""Rows of a table that the page holds at most."""


def _differences(comparison: "RunComparison") -> pd.DataFrame:
    numbers = comparison.metrics.drop(columns="metric")
    return pd.concat([comparison.metrics["metric"], numbers.sub(numbers[comparison.baseline], axis=0)], axis=1)
