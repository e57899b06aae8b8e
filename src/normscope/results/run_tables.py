"""The tables that every run or comparison writes, whatever its analyses."""

import json
import re
from collections.abc import Iterable, Mapping

from normscope.analyses.info import AnalysisInfo
from normscope.analyses.registry import analyses
from normscope.distribution import RUN_SCHEMA
from normscope.results.axes import HEAD, LAYER, in_stream
from normscope.results.checkup_tables import CHECKUP
from normscope.results.declare import Axis, Column, Table

_CURVE_DEPTH = "Layer divided by the number of the model's layers, to compare models of different depth."


def _text(meaning: str) -> Column:
    return Column(meaning, kind="text")


def _whole(meaning: str) -> Column:
    return Column(meaning, kind="whole")


RUN_TABLES = {
    "curves": Table(
        rows=(Axis("curve", "Name of the curve, `<analysis>/<curve>`."), LAYER.but("Layer.")),
        values={
            "depth": _CURVE_DEPTH,
            "value": "Value in this layer.",
        },
    ),
    "sequences": Table(
        rows=(
            Axis("metric", "Name of the metric, `<analysis>/<metric>`."),
            Axis("sequence", "A number that depends only on the sequence's tokens.", kind="whole"),
        ),
        per="metric and sequence, for metrics that are means over tokens; at most 10,000 sequences, the same ones in every run "
        "over a corpus",
        values={
            "count": _whole("Number of tokens; those of equal sequences together."),
            "value": "Mean over the sequence's tokens.",
        },
    ),
    "comparison": Table(
        rows=(),
        per="number that the run measured and the paper published, if `experiment` selects a paper's preset",
        values={
            "metric": _text("Name of the metric, or of the table and the row."),
            "measure": _text("What the number measures, in words."),
            "value": "The measured number.",
            "published": "The published number.",
            "difference": "Measured minus published.",
            "tolerance": "Largest difference that counts as agreement.",
            "within": Column("Whether the difference is within the tolerance.", kind="truth"),
            "differs_in": _text(
                "Keys of the config whose values are not the paper's, separated by commas; empty if none."
            ),
            "exhibit": _text("The paper's table or figure, or section, that has the number."),
            "source": _text("Where the number is in the paper."),
        },
    ),
}
"""Tables in the folder `tables/` of a run."""

MAPS = Table(
    rows=(),
    per="layer, head and pair of tokens of a text in the explorer",
    values={
        "layer": _whole(LAYER.meaning),
        "head": _whole(f"{HEAD.meaning} 0 stands for all heads together."),
        "query": _whole("Position of the query, from 0."),
        "key": _whole("Position of the key, from 0."),
        "query_token": _text("The query's token."),
        "key_token": _text("The key's token."),
        "attn_w": "α; for all heads together, its mean.",
        "attn_n": in_stream("‖αf(x)‖; for all heads together, ‖F‖, the norm of the sum."),
        "attnres_n": in_stream("‖R‖: with the residual connection; only for all heads together."),
        "attnresln_n": in_stream(
            "‖T‖: with the residual connection and the layer normalisation; only for all heads together."
        ),
        "share": "Signed share of the key in the query's output at the end of the attention block; with the biases, those "
        "of a query add up to 1. Only for all heads together.",
        "attn_s": "The score before the softmax, in maps that `normscope attention` writes.",
        "atbff_n": in_stream(
            "‖FF‖: what the feed-forward network makes of T, if an analysis needs the networks. This and the next "
            "two are only for all heads together."
        ),
        "atbffres_n": in_stream("‖FF + T‖: with the network's residual connection."),
        "atbffresln_n": in_stream("‖LN(FF + T)‖: with the network's layer normalisation, so for the whole layer."),
        "rollout": "Rollout of weights, if an analysis attributes. This and the next five: from the input to the layer.",
        "norm_rollout": "Rollout of norms.",
        "globenc": "GlobEnc.",
        "alti": "ALTI.",
        "value_zeroing": "Value zeroing.",
        "decompx": "DecompX: norms of the vectors.",
        "sentence": _whole("Number of the text, from 1."),
        "f_n": "‖f(x)‖ of the key; only for single heads.",
    },
)
"""The file `maps.parquet` of a run."""

COMPARISON = Table(
    rows=(),
    per="run, metric and layer",
    values={
        "run": _text("Name of the run directory."),
        "label": _text("What distinguishes the run from the others."),
        "group": _text("The label without seeds, shared by runs that differ only in their seeds."),
        "metric": _text("Name of the metric or curve."),
        "layer": _whole("Layer of a curve; 0 for a metric."),
        "depth": f"{_CURVE_DEPTH} Missing for a metric.",
        "step": _whole("Training step of the checkpoint, if it is known."),
        "value": "The value.",
        "difference": "The value minus that of the baseline; missing if the baseline does not have it.",
    },
)
"""The table `comparison.parquet` of a sweep, or of `normscope compare`."""

_TRAINING_GROUP = "What distinguishes the training run from others; shared by its seeds."
_MEASURE = {"metric": _text("Name of the metric or curve."), "layer": _whole("Layer of a curve; 0 for a metric.")}
_INTERVAL = {
    "low": "Lower end of the mean's 95% confidence interval (Student's t; of shares, of log-odds); missing for one run.",
    "high": "Upper end of the mean's 95% confidence interval (Student's t; of shares, of log-odds); missing for one run.",
}

TRAINING = Table(
    rows=(),
    per="training run, metric, layer and training step, if the runs are checkpoints",
    values={
        "group": _text(_TRAINING_GROUP),
        **_MEASURE,
        "step": _whole("Training step."),
        "runs": _whole("Number of seeds."),
        "mean": "Mean over seeds.",
        **_INTERVAL,
    },
)
"""The table `training.parquet` of a sweep over checkpoints."""

CROSSINGS = Table(
    rows=(),
    per="training run, metric and layer: the first training step beyond a threshold",
    values={
        "group": _text(_TRAINING_GROUP),
        **_MEASURE,
        "threshold": "The threshold: `--threshold METRIC=VALUE`, or half-way between the means at the first and the last step.",
        "runs": _whole("Number of seeds."),
        "crossed": _whole("Number of seeds that cross the threshold."),
        "step": "First measured step at which the value is on the other side of the threshold than at the first step; mean "
        "over the seeds that cross.",
        **_INTERVAL,
    },
)
"""The table `crossings.csv` of a sweep over checkpoints."""


_BESIDE = {
    "maps.parquet": MAPS,
    "comparison.parquet": COMPARISON,
    "training.parquet": TRAINING,
    "crossings.csv": CROSSINGS,
    **CHECKUP,
}
"""Tables that runs do not have in their folder `tables/`: those beside it, of sweeps and of checkups, by file name."""

_PLACEHOLDER = re.compile(r"<\w+>")


def tables_of(infos: Iterable[AnalysisInfo]) -> dict[str, Table]:
    """The tables in the folder `tables/` of a run, by file name."""
    own = {f"{info.name}_{name}": table for info in infos for name, table in info.declared.tables.items()}
    return own | RUN_TABLES


def described(name: str) -> Table | None:
    """The declaration of a table; None if it has none."""
    return (tables_of(analyses().values()) | _BESIDE).get(name)


def metadata(name: str, columns: Iterable[str], identity: Mapping[str, object]) -> dict[str, str]:
    """The metadata of a Parquet file, as keys and values.

    Args:
        name: The name of its table, as in `tables_of`, or of another file.
        columns: The columns of the table.
        identity: What distinguishes its run from others.
    """
    table = described(name)
    meanings = {} if table is None else {column: _described(table, column) for column in columns}
    values: dict[str, object] = {"schema": RUN_SCHEMA, "table": name, "columns": meanings, "run": dict(identity)}
    return {
        f"normscope.{key}": value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in values.items()
    }


def _described(table: Table, name: str) -> dict[str, str]:
    """Type, unit and meaning of a column; empty if the column is not declared."""
    declared = next((one for one in table.columns if re.fullmatch(_pattern(one), name)), None)
    if declared is None:
        return {}
    unit = {"unit": table.units[declared]} if declared in table.units else {}
    return {"type": table.kinds[declared], **unit, "meaning": table.columns[declared]}


def _pattern(name: str) -> str:
    """A regular expression for a name in which a part such as `<method>` stands for several."""
    return "[^/]+".join(map(re.escape, _PLACEHOLDER.split(name)))
