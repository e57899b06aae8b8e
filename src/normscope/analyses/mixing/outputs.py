"""What the mixing analysis publishes."""

from normscope.analyses.columns import CATEGORY_OF_TOKEN, LAYER, METHODS, TOKENS
from normscope.analyses.info import Outputs, TableInfo

OUTPUTS = Outputs(
    tables={
        "by_layer": TableInfo(
            row="layer, method and category",
            columns={
                "layer": LAYER,
                "method": "What the ratio takes into account: `attn_w`, `attn_n`, `attnres_w`, `attnres_n` or `attnresln_n`.",
                "category": CATEGORY_OF_TOKEN,
                "mean": "Mean mixing ratio of the tokens, in [0, 1].",
                "sequence_mean": "Mean mixing ratio over each sequence's tokens of the category first, then over the "
                "sequences that have any.",
                "max": "Largest mixing ratio of a token.",
                "min": "Smallest mixing ratio of a token.",
                "count": TOKENS,
            },
        )
    },
    metrics={
        "<method>/mean": "Mean mixing ratio of all tokens in all chosen layers.",
        "<method>/max": "Largest mixing ratio of a token in any chosen layer.",
        "<method>/min": "Smallest mixing ratio of a token in any chosen layer.",
    },
    curves={"<method>/mean": "Mean mixing ratio of all tokens."},
    labels={"<method>/mean": "mixing ratio (%)"},
    names=METHODS,
)
