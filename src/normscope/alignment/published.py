"""What the alignment analysis publishes."""

from collections.abc import Mapping
from typing import Any

from normscope.results.axes import HEAD, LAYER, STREAM
from normscope.results.declare import Axis, Column, Published, Rollup, Table, Where, at_largest, at_smallest

_METHOD = Axis(
    "method", "`attn_w`: weights; `attn_n`: vector norms.", titles={"attn_w": "weights", "attn_n": "vectors"}
)
_SETTING = Axis(
    "setting",
    "`awo`: alignment with output; `awi`: alignment with input.",
    titles={"awo": "with output", "awi": "with input"},
)
_ERROR_RATE = "alignment error rate"
_RATES: Mapping[str, Column | str] = {
    "aer": Column("Alignment error rate, in [0, 1].", label=f"{_ERROR_RATE} (%)"),
    "precision": Column("Share of the links found that are possible links of the reference.", label="precision (%)"),
    "recall": Column("Share of the reference's sure links that are found.", label="recall (%)"),
}
_SENTENCES = Column("Number of sentence pairs.", kind="whole")
_ROW = Axis("row", "Row of the corpus, from 1.", noun="sentence pair", kind="whole")
_HEAD = HEAD.but("Head, from 1; 0 stands for the layer as a whole.")


def _of_model(layers: Any) -> Any:
    return layers > 0


def _single(heads: Any) -> Any:
    return heads > 0


def _norm_and_rate(rows: Any, _column: str) -> Any:
    if rows["aer"].nunique() < 2:
        return float("nan")
    return rows["mean_norm"].rank().corr(rows["aer"].rank())


_LAYERS: Where = {"layer": _of_model, "head": 0}
_HEADS: Where = {"layer": _of_model, "head": _single}
_LAYERS_BY_NORM: Where = {"method": "attn_n", **_LAYERS}
_HEADS_BY_NORM: Where = {"method": "attn_n", **_HEADS}
_BEST, _LONGEST = at_smallest("aer"), at_largest("mean_norm")
_NAME = "<method>/<setting>"

PUBLISHED = Published(
    tables={
        "aer": Table(
            rows=(
                LAYER.but("Layer, from 1; 0 for other aligners."),
                _HEAD,
                _METHOD.but(f"{_METHOD.meaning} Otherwise the name of another aligner."),
                _SETTING.but(f"{_SETTING.meaning} `none` for other aligners."),
            ),
            per="layer, head, method and setting, and one per other aligner",
            values={
                **_RATES,
                "sentences": _SENTENCES,
                "mean_norm": Column(
                    "Mean α (`attn_w`) or norm (`attn_n`) over pairs of tokens; missing for other aligners.",
                    unit=f"{STREAM} for `attn_n`",
                ),
            },
        ),
        "links": Table(
            rows=(_ROW, LAYER, _METHOD, _SETTING),
            values={"links": Column("The links in Pharaoh format, `source-target`, from 0.", kind="text")},
        ),
        "maps": Table(
            rows=(
                _ROW,
                LAYER,
                _HEAD,
                _METHOD,
                _SETTING,
                Axis("target", "Number of the target word, from 0.", noun="target word", kind="whole"),
                Axis(
                    "source",
                    "Number of the source word, from 0; the last is the end of the sentence.",
                    noun="source word",
                    kind="whole",
                ),
            ),
            values={
                "target_word": Column("The target word.", kind="text"),
                "source_word": Column("The source word, or `</s>`.", kind="text"),
                "value": Column(
                    "α or norm: the sum over the source word's tokens, averaged over the target word's tokens.",
                    unit=f"{STREAM} for `attn_n`",
                ),
                "gold": Column("Whether the reference has the link: `sure`, `possible` or `none`.", kind="text"),
            },
        ),
        "symmetrised": Table(
            rows=(_METHOD, _SETTING, Axis("heuristic", "How the two directions are merged.")),
            per="method, setting and heuristic, if `analysis.alignment.reverse` is set",
            values={
                "layer": Column("The layer with the lowest error rate in this direction.", kind="whole"),
                "reverse_layer": Column("The layer with the lowest error rate in the other direction.", kind="whole"),
                **_RATES,
                "sentences": _SENTENCES,
            },
        ),
    },
    metrics=(
        Rollup(
            f"{_NAME}/layer_mean/aer",
            "Mean error rate over layers.",
            of="aer.aer",
            where=_LAYERS,
            label=f"mean {_ERROR_RATE} over layers (%)",
        ),
        Rollup(
            f"{_NAME}/best_layer/layer",
            "The layer with the lowest error rate.",
            of="aer.layer",
            how=_BEST,
            where=_LAYERS,
            label="best layer",
        ),
        *(
            Rollup(
                f"{_NAME}/best_layer/{rate}",
                f"Its {name}.",
                of=f"aer.{rate}",
                how=_BEST,
                where=_LAYERS,
                label=f"{label} of the best layer (%)",
            )
            for rate, name, label in (
                ("aer", "error rate", _ERROR_RATE),
                ("precision", "precision", "precision"),
                ("recall", "recall", "recall"),
            )
        ),
        Rollup(
            f"{_NAME}/best_head/layer",
            "Layer of the head with the lowest error rate.",
            of="aer.layer",
            how=_BEST,
            where=_HEADS,
            label="layer of the best head",
        ),
        Rollup(
            f"{_NAME}/best_head/head",
            "The head with the lowest error rate.",
            of="aer.head",
            how=_BEST,
            where=_HEADS,
            label="best head",
        ),
        Rollup(
            f"{_NAME}/best_head/aer",
            "Its error rate.",
            of="aer.aer",
            how=_BEST,
            where=_HEADS,
            label=f"{_ERROR_RATE} of the best head (%)",
        ),
        Rollup(
            "attn_n/<setting>/largest_norm_layer/layer",
            "The layer with the largest mean norm.",
            of="aer.layer",
            how=_LONGEST,
            where=_LAYERS_BY_NORM,
            label="layer with the largest mean norm",
        ),
        Rollup(
            "attn_n/<setting>/largest_norm_layer/aer",
            "Its error rate.",
            of="aer.aer",
            how=_LONGEST,
            where=_LAYERS_BY_NORM,
            label=f"{_ERROR_RATE} of the layer with the largest mean norm (%)",
        ),
        Rollup(
            "attn_n/<setting>/largest_norm_head/layer",
            "Layer of the head with the largest mean norm.",
            of="aer.layer",
            how=_LONGEST,
            where=_HEADS_BY_NORM,
            label="layer of the head with the largest mean norm",
        ),
        Rollup(
            "attn_n/<setting>/largest_norm_head/head",
            "The head with the largest mean norm.",
            of="aer.head",
            how=_LONGEST,
            where=_HEADS_BY_NORM,
            label="head with the largest mean norm",
        ),
        Rollup(
            "attn_n/<setting>/largest_norm_head/aer",
            "Its error rate.",
            of="aer.aer",
            how=_LONGEST,
            where=_HEADS_BY_NORM,
            label=f"{_ERROR_RATE} of the head with the largest mean norm (%)",
        ),
        Rollup(
            "attn_n/<setting>/heads/spearman_norm_aer",
            "Spearman's ρ between heads' mean norms and error rates; negative if heads with large norms align well.",
            of="aer.aer",
            how=_norm_and_rate,
            where=_HEADS_BY_NORM,
            label=f"Spearman’s ρ of heads’ mean norms and {_ERROR_RATE}s",
        ),
        Rollup(
            f"{_NAME}/<heuristic>/aer",
            "Error rate of the symmetrised alignment.",
            of="symmetrised.aer",
            label=f"merged {_ERROR_RATE} (%)",
        ),
        *(
            Rollup(f"<method>/{rate}", f"{meaning} of another aligner.", of=f"aer.{rate}", where={"layer": 0})
            for rate, meaning in (("aer", "Error rate"), ("precision", "Precision"), ("recall", "Recall"))
        ),
    ),
    curves=(Rollup(f"{_NAME}/aer", "Alignment error rate of a layer as a whole.", of="aer.aer", where=_LAYERS),),
)
