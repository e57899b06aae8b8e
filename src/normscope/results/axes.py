"""Axes, columns and rollups that several analyses share."""

from collections.abc import Mapping

from normscope.results.declare import Axis, Column, Rollup

LAYER = Axis("layer", "Layer, from 1.", kind="whole")
HEAD = Axis("head", "Head, from 1.", kind="whole")
DIMENSION = Axis("dimension", "Dimension of the hidden vectors, from 0.", kind="whole")
CATEGORY_OF_TOKEN = Axis("category", "Category of the token; `all` stands for every token.")
CATEGORY_OF_KEY = Axis("category", "Category of the key; `all` stands for every key.")

STREAM = "residual stream"
"""The unit of vectors, and of their norms, that are added to the residual stream or read from it."""

TOKEN_ID = Axis("token_id", "Number of the token in the vocabulary.", kind="whole")
VOCABULARY = (Axis("token", "The token."), TOKEN_ID)
"""The tokens of a vocabulary."""


def in_stream(meaning: str, label: str = "") -> Column:
    """A column in units of the residual stream."""
    return Column(meaning, label, unit=STREAM)


TOKENS = Column("Number of tokens.", kind="whole")
SEQUENCES = Column("Number of sequences that were measured: as many as the requested precision took.", kind="whole")
SPEARMAN = "Spearman's ρ; missing if it is undefined."
ERROR_BOUND = "Largest possible error of ρ, which is estimated from a histogram; rounding included."
REASON = Column("Why ρ is undefined; empty if it is defined.", kind="text")

TOGETHER = "outliers"
"""In the column `removed`: all outlier dimensions at once."""

CHANGES = {
    "before": "α of the unchanged model, summed over the category's keys: the mean over queries and heads, then sequences.",
    "after": "α summed over the category's keys, as in `before`, without the removed dimensions.",
    "change": "`after` minus `before`.",
    "controls_mean": "Mean change when as many random dimensions are removed instead; missing without controls.",
    "controls_low": "Lower end of the 95% interval of these changes, from their percentiles.",
    "controls_high": "Upper end of that interval.",
}
"""Columns of the tables that compare attention with and without some dimensions."""

SIGNED_SHARES = (
    "Signed shares add up to 100%: a share exceeds 100% if others point against the vector, and so are negative."
)
"""What readers need to know about signed shares."""

MIXING: Mapping[str, Column | str] = {
    "mean": Column("Mean mixing ratio of the tokens, in [0, 1].", label="mixing ratio (%)"),
    "sequence_mean": "Mean mixing ratio over each sequence's tokens of the category first, then over the sequences that have "
    "any.",
    "max": Column("Largest mixing ratio of a token.", label="largest mixing ratio (%)"),
    "min": Column("Smallest mixing ratio of a token.", label="smallest mixing ratio (%)"),
    "count": TOKENS,
}
"""Columns of mixing ratios by layer, method and category."""


SHARES: Mapping[str, Column | str] = {
    "share": Column(
        "Mean signed share of the other tokens in a token's vector: the part of what they contribute that points along it.",
        label="signed share of other tokens (%)",
    ),
    "own": Column("Mean share of the token itself, through attention.", label="signed share of the token itself (%)"),
    "residual": Column(
        "Mean share of what the residual connection carries.", label="signed share of the residual connection (%)"
    ),
    "bias": Column(
        "Mean share of what comes from no token: biases and β. The four shares add up to 1.",
        label="signed share of biases (%)",
    ),
    "count": TOKENS,
}
"""Columns of signed shares by layer, method and category."""


def share_metrics(table: str, parts: Mapping[str, str]) -> tuple[Rollup, ...]:
    """Mean shares by method over all tokens, from a table with some of the columns SHARES.

    Args:
        parts: The columns, and what they are the shares of.
    """
    everything = {"category": "all"}
    return tuple(
        Rollup(
            f"<method>/{part}",
            f"Mean signed share of {what} in the vectors of all tokens, over all chosen layers.",
            of=f"{table}.{part}",
            where=everything,
        )
        for part, what in parts.items()
    )


def share_curves(table: str) -> Rollup:
    """The mean share of the other tokens by method, from a table with the columns SHARES."""
    meaning = f"Mean signed share of the other tokens in the vectors of all tokens. {SIGNED_SHARES}"
    return Rollup("<method>/share", meaning, of=f"{table}.share", where={"category": "all"})


def mixing_metrics(table: str) -> tuple[Rollup, ...]:
    """Mean, maximum and minimum by method over all tokens, from a table with the columns MIXING."""
    everything = {"category": "all"}
    # Every layer has the same tokens, so the mean over layers is the mean over all tokens.
    meanings = {
        "mean": "Mean mixing ratio of all tokens in all chosen layers.",
        "max": "Largest mixing ratio of a token in any chosen layer.",
        "min": "Smallest mixing ratio of a token in any chosen layer.",
    }
    return tuple(
        Rollup(f"<method>/{how}", meaning, of=f"{table}.{how}", how=how, where=everything)
        for how, meaning in meanings.items()
    )


def mixing_curves(table: str) -> Rollup:
    """The mean over all tokens by method, from a table with the columns MIXING."""
    return Rollup("<method>/mean", "Mean mixing ratio of all tokens.", of=f"{table}.mean", where={"category": "all"})
