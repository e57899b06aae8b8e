"""The HTML page of a comparison of runs."""

from typing import TYPE_CHECKING

import pandas as pd

from normscope.reporting.page.elements import asset, environment, script_data, table

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
    return (
        environment()
        .get_template("comparison.html")
        .render(
            css=asset("page.css"),
            script=asset("tables.js") + asset("comparison.js"),
            count=len(comparison.runs),
            failures=comparison.failures,
            runs=table(comparison.runs),
            metrics=table(comparison.metrics, limit=2000),
            differences=table(_differences(comparison), limit=2000) if len(comparison.metrics.columns) > 2 else None,
            baseline=comparison.baseline,
            seeds=table(comparison.seeds, limit=2000) if len(comparison.seeds) else None,
            curves=script_data({"curves": curves}) if curves else None,
        )
    )


def _differences(comparison: "RunComparison") -> pd.DataFrame:
    numbers = comparison.metrics.drop(columns="metric")
    return pd.concat([comparison.metrics["metric"], numbers.sub(numbers[comparison.baseline], axis=0)], axis=1)
