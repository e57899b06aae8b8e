"""What the alignment analysis publishes."""

from normscope.analyses.columns import LAYER
from normscope.analyses.info import Outputs, TableInfo

_METHOD = "`attn_w`: weights; `attn_n`: vector norms."
_SETTING = "`awo`: alignment with output; `awi`: alignment with input."
_RATES = {
    "aer": "Alignment error rate, in [0, 1].",
    "precision": "Share of the links found that are possible links of the reference.",
    "recall": "Share of the reference's sure links that are found.",
}
_SENTENCES = "Number of sentence pairs."

OUTPUTS = Outputs(
    tables={
        "aer": TableInfo(
            row="layer, head, method and setting, and one per other aligner",
            columns={
                "layer": "Layer, from 1; 0 for other aligners.",
                "head": "Head, from 1; 0 stands for the layer as a whole.",
                "method": f"{_METHOD} Otherwise the name of another aligner.",
                "setting": f"{_SETTING} `none` for other aligners.",
                **_RATES,
                "sentences": _SENTENCES,
                "mean_norm": "Mean α (`attn_w`) or norm (`attn_n`) over pairs of tokens; missing for other aligners.",
            },
        ),
        "links": TableInfo(
            row="sentence pair, layer, method and setting",
            columns={
                "row": "Row of the corpus, from 1.",
                "layer": LAYER,
                "method": _METHOD,
                "setting": _SETTING,
                "links": "The links in Pharaoh format, `source-target`, from 0.",
            },
        ),
        "maps": TableInfo(
            row="sentence pair, layer, head, method, setting, target word and source word",
            columns={
                "row": "Row of the corpus, from 1.",
                "layer": LAYER,
                "head": "Head, from 1; 0 stands for the layer as a whole.",
                "method": _METHOD,
                "setting": _SETTING,
                "target": "Number of the target word, from 0.",
                "source": "Number of the source word, from 0; the last is the end of the sentence.",
                "target_word": "The target word.",
                "source_word": "The source word, or `</s>`.",
                "value": "α or norm: the sum over the source word's tokens, averaged over the target word's tokens.",
                "gold": "Whether the reference has the link: `sure`, `possible` or `none`.",
            },
        ),
        "symmetrised": TableInfo(
            row="method, setting and heuristic, if `analysis.alignment.reverse` is set",
            columns={
                "method": _METHOD,
                "setting": _SETTING,
                "heuristic": "How the two directions are merged.",
                "layer": "The layer with the lowest error rate in this direction.",
                "reverse_layer": "The layer with the lowest error rate in the other direction.",
                **_RATES,
                "sentences": _SENTENCES,
            },
        ),
    },
    metrics={
        "<method>/<setting>/layer_mean/aer": "Mean error rate over layers.",
        "<method>/<setting>/best_layer/layer": "The layer with the lowest error rate.",
        "<method>/<setting>/best_layer/<rate>": "Its `aer`, `precision` and `recall`.",
        "<method>/<setting>/best_head/layer": "Layer of the head with the lowest error rate.",
        "<method>/<setting>/best_head/head": "The head with the lowest error rate.",
        "<method>/<setting>/best_head/aer": "Its error rate.",
        "attn_n/<setting>/largest_norm_layer/layer": "The layer with the largest mean norm.",
        "attn_n/<setting>/largest_norm_layer/aer": "Its error rate.",
        "attn_n/<setting>/largest_norm_head/layer": "Layer of the head with the largest mean norm.",
        "attn_n/<setting>/largest_norm_head/head": "The head with the largest mean norm.",
        "attn_n/<setting>/largest_norm_head/aer": "Its error rate.",
        "attn_n/<setting>/heads/spearman_norm_aer": "Spearman's ρ between heads' mean norms and error rates; negative if "
        "heads with large norms align well.",
        "<method>/<setting>/<heuristic>/aer": "Error rate of the symmetrised alignment.",
        "<aligner>/<rate>": "`aer`, `precision` and `recall` of another aligner.",
    },
    curves={"<method>/<setting>/aer": "Alignment error rate of a layer as a whole."},
    labels={"<method>/<setting>/aer": "alignment error rate (%)"},
    names={
        "attn_w": "weights",
        "attn_n": "vectors",
        "awo": "with output",
        "awi": "with input",
    },
)
