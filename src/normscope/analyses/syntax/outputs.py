"""What the syntax analysis publishes."""

from normscope.analyses.info import Outputs, TableInfo

_LAYER = "Layer, from 1; 0 for a baseline."
_HEAD = "Head, from 1; 0 stands for all heads: the map of the whole block or layer, or a baseline."
_MEASURE = (
    "`attn_w` (weights), `attn_n` (vectors), `attnres_n` (with the residual connection), `attnresln_n` (with the "
    "normalisation), `layer` (to the end of the layer); or a baseline: `fixed_offset` (the syntactic head is always the same "
    "number of words away), `right_branching` (it is the next word)."
)
_RELATION = "Relation of the dependent to its syntactic head; `all` stands for all but `root` and, by default, `punct`."
_DIRECTION = (
    "`dependent-head` if the largest entry in the dependent's row should be its syntactic head, `head-dependent` for the "
    "reverse."
)
_CANDIDATES = (
    "Which keys compete: `all`, `no_self` (without the word itself), `no_special` (without special tokens) or `words` (without "
    "both)."
)
_LOW = "Lower end of the 95% interval (Clopper–Pearson) over sentences; missing with fewer than two."
_HIGH = "Upper end of the 95% interval (Clopper–Pearson) over sentences; missing with fewer than two."

OUTPUTS = Outputs(
    tables={
        "heads": TableInfo(
            row="layer, head, measure, relation, direction, kind of candidates and half of the corpus",
            columns={
                "layer": _LAYER,
                "head": _HEAD,
                "measure": _MEASURE,
                "relation": _RELATION,
                "direction": _DIRECTION,
                "candidates": _CANDIDATES,
                "half": "`odd` or `even` sentences of the corpus, or `both`.",
                "accuracy": "Share of the arcs at which the largest entry is the correct word.",
                "low": _LOW,
                "high": _HIGH,
                "count": "Number of arcs.",
                "baseline": "Accuracy of the best fixed offset on these arcs, chosen on the other half; for `both`, on both.",
            },
        ),
        "best": TableInfo(
            row="measure, relation, kind of candidates and half of the corpus",
            columns={
                "measure": "Measure. Single heads compete for `attn_w` and `attn_n`, layers for the others.",
                "relation": _RELATION,
                "candidates": _CANDIDATES,
                "half": "Half of the corpus on which the choice is scored; it was made on the other half.",
                "layer": "Chosen layer, from 1.",
                "head": "Chosen head, from 1; 0 if layers compete.",
                "direction": "Chosen direction.",
                "accuracy": "Accuracy of the choice on this half.",
                "low": _LOW,
                "high": _HIGH,
                "count": "Number of arcs of this half.",
                "offset": "Best fixed offset of the relation on the other half: 1 if the syntactic head is the next word.",
                "baseline": "Accuracy of this offset on this half.",
                "right_branching": "Accuracy on this half of always choosing the next word as the syntactic head.",
            },
        ),
        "trees": TableInfo(
            row="layer, head and measure",
            columns={
                "layer": _LAYER,
                "head": _HEAD,
                "measure": "Measure; `right_branching` is the baseline that joins adjacent words.",
                "candidates": "`words`: trees span only words.",
                "uuas": "Share of the arcs that are edges of the maximum spanning tree, ignoring direction.",
                "low": _LOW,
                "high": _HIGH,
                "edges": "Number of arcs.",
            },
        ),
        "probe": TableInfo(
            row="model, measure and kind of maps",
            columns={
                "model": "`trained`, or `random` for a model of the same shape with random weights; `none` for the baseline.",
                "measure": "`attn_w` or `attn_n`, all heads together; or `right_branching`.",
                "maps": "`raw`, or `normalised` so that what a word takes from the others adds up to 1.",
                "candidates": "`words`: the syntactic head is one of the other words.",
                "uas": "Share of the words whose most probable syntactic head is correct.",
                "low": _LOW,
                "high": _HIGH,
                "count": "Number of words.",
                "training_sentences": "Number of sentences that the probe was trained on.",
            },
        ),
    },
    metrics={
        "<measure>/best/<relation>": "Accuracy of the best head (for whole blocks: layer) for the relation, with `words` as "
        "candidates; selected on one half of the corpus and scored on the other, for both halves.",
        "gain/<sinks>": "What norms add to weights: accuracy over `all` relations of the best head by `attn_n` minus that of "
        "the best head by `attn_w`, with all other tokens (`with_sinks`) or only words (`sinks_masked`) as candidates.",
        "<measure>/uuas": "Largest share of undirected arcs in the trees of a whole block or layer.",
        "<measure>/best_head_uuas": "Largest share of undirected arcs in the trees of a single head.",
        "probe/<model>/<measure>/<maps>": "Share of the words whose syntactic head the probe finds.",
        "right_branching/<score>": "The baseline: accuracy over `all` relations (`all`) and share of undirected arcs (`uuas`).",
        "dropped/<reason>": "Number of arcs that were excluded: between words that share the same tokens (`inside` a "
        "multi-word token), or at a word without a token (`missing`).",
    },
    curves={
        "<measure>/uuas": "Share of undirected arcs in the trees of the block or layer.",
        "<measure>/all": "Largest accuracy over `all` relations of a head (for whole blocks: of the layer), with `words` as "
        "candidates, in either direction.",
    },
    labels={"<measure>/uuas": "undirected arcs found (%)", "<measure>/all": "largest accuracy of a head (%)"},
)
