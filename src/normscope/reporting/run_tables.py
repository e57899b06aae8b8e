"""The tables that a run or a comparison writes whatever the analysis."""

from normscope.results.axes import HEAD, LAYER
from normscope.results.declare import Table

_CURVE_DEPTH = "Layer divided by the number of the model's layers, to compare models of different depth."

RUN_TABLES = {
    "curves": Table(
        rows=(),
        per="curve and layer",
        values={
            "curve": "Name of the curve, `<analysis>/<curve>`.",
            "layer": "Layer.",
            "depth": _CURVE_DEPTH,
            "value": "Value in this layer.",
        },
    ),
    "sequences": Table(
        rows=(),
        per="metric and sequence, for metrics that are means over tokens; at most 10,000 sequences, the same ones in every run "
        "over a corpus",
        values={
            "metric": "Name of the metric, `<analysis>/<metric>`.",
            "sequence": "A number that depends only on the sequence's tokens.",
            "count": "Number of tokens; those of equal sequences together.",
            "value": "Mean over the sequence's tokens.",
        },
    ),
    "heatmaps": Table(
        rows=(),
        per="heat map and cell",
        values={
            "figure": "Name of the figure, `<analysis>/<figure>`.",
            "panel": "Title of the map within the figure.",
            "row": "Row: the layer, in most maps.",
            "column": "Column: the head or category, in most maps.",
            "value": "Value of the cell.",
            "row_title": "What the rows are.",
            "column_title": "What the columns are.",
            "value_title": "What the values are.",
        },
    ),
    "explorer_pairs": Table(
        rows=(),
        per="layer, head and pair of tokens of a text in the explorer",
        values={
            "layer": LAYER.meaning,
            "head": f"{HEAD.meaning} 0 stands for all heads together.",
            "query": "Position of the query, from 0.",
            "key": "Position of the key, from 0.",
            "query_token": "The query's token.",
            "key_token": "The key's token.",
            "attn_w": "α; for all heads together, its mean.",
            "attn_n": "‖αf(x)‖; for all heads together, ‖F‖, the norm of the sum.",
            "attnres_n": "‖R‖: with the residual connection; only for all heads together.",
            "attnresln_n": "‖T‖: with the residual connection and the layer normalisation; only for all heads together.",
            "share": "Signed share of the key in the query's output at the end of the attention block; with the biases, those "
            "of a query add up to 1. Only for all heads together.",
            "atbff_n": "‖FF‖: what the feed-forward network makes of it, if an analysis needs the networks. This and the next "
            "two are only for all heads together.",
            "atbffres_n": "‖FF + T‖: with the network's residual connection.",
            "atbffresln_n": "‖LN(FF + T)‖: with the network's layer normalisation, so for the whole layer.",
            "rollout": "Rollout of weights, if an analysis attributes. This and the next five: from the input up to the layer.",
            "norm_rollout": "Rollout of norms.",
            "globenc": "GlobEnc.",
            "alti": "ALTI.",
            "value_zeroing": "Value zeroing.",
            "decompx": "DecompX: norms of the vectors.",
            "sentence": "Number of the text, from 1.",
        },
    ),
    "comparison": Table(
        rows=(),
        per="number that the run measured and the paper published, if `experiment` selects a paper's preset",
        values={
            "metric": "Name of the metric, or of the table and the row.",
            "value": "The measured number.",
            "published": "The published number.",
            "difference": "Measured minus published.",
            "tolerance": "Largest difference that counts as agreement.",
            "within": "Whether the difference is within the tolerance.",
            "source": "Where the number is in the paper.",
        },
    ),
}
"""Tables in the folder `tables/` of a run."""

COMPARISON = Table(
    rows=(),
    per="run, metric and layer",
    values={
        "run": "Name of the run directory.",
        "label": "What distinguishes the run from the others.",
        "group": "The label without seeds, shared by runs that differ only in their seeds.",
        "metric": "Name of the metric or curve.",
        "layer": "Layer of a curve; 0 for a metric.",
        "depth": f"{_CURVE_DEPTH} Missing for a metric.",
        "step": "Training step of the checkpoint, if it is known.",
        "value": "The value.",
        "difference": "The value minus that of the baseline; missing if the baseline does not have it.",
    },
)
"""The table `comparison.parquet` of a sweep, or of `normscope.reporting.comparison.compare`."""

_TRAINING_GROUP = "What distinguishes the training run from others; shared by its seeds."
_MEASURE = {"metric": "Name of the metric or curve.", "layer": "Layer of a curve; 0 for a metric."}
_INTERVAL = {
    "low": "Lower end of the mean's 95% confidence interval (Student's t); missing for one run.",
    "high": "Upper end of the mean's 95% confidence interval (Student's t); missing for one run.",
}

TRAINING = Table(
    rows=(),
    per="training run, metric, layer and training step, if the runs are checkpoints",
    values={
        "group": _TRAINING_GROUP,
        **_MEASURE,
        "step": "Training step.",
        "runs": "Number of seeds.",
        "mean": "Mean over seeds.",
        **_INTERVAL,
    },
)
"""The table `training.parquet` of a sweep over checkpoints."""

CROSSINGS = Table(
    rows=(),
    per="training run, metric and layer: the first training step beyond a threshold",
    values={
        "group": _TRAINING_GROUP,
        **_MEASURE,
        "threshold": "The threshold: `--threshold METRIC=VALUE`, or half-way between the means at the first and the last step.",
        "runs": "Number of seeds.",
        "crossed": "Number of seeds that cross the threshold.",
        "step": "First measured step at which the value is on the other side of the threshold than at the first step; mean "
        "over the seeds that cross.",
        **_INTERVAL,
    },
)
"""The table `crossings.csv` of a sweep over checkpoints."""
