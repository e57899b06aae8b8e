"""Meanings of the columns that tables of several analyses share."""

LAYER = "Layer, from 1."
HEAD = "Head, from 1."
DIMENSION = "Dimension of the hidden vectors, from 0."
CATEGORY_OF_TOKEN = "Category of the token; `all` stands for every token."
CATEGORY_OF_KEY = "Category of the key; `all` stands for every key."
TOKENS = "Number of tokens."
SPEARMAN = "Spearman's ρ; missing if it is undefined."
ERROR_BOUND = "Largest possible error of ρ: 0 if it is exact, above 0 if it was estimated from a histogram."
METHODS = {
    "attn_w": "Attn-W: weights",
    "attn_n": "Attn-N: vectors",
    "attnres_w": "AttnRes-W: weights + residual",
    "attnres_n": "AttnRes-N: vectors + residual",
    "attnresln_n": "AttnResLn-N: the attention block",
}
"""Titles of the five methods of mixing ratios."""

REASON = "Why ρ is undefined; empty if it is defined."

CHANGES = {
    "before": "α of the unchanged model, summed over the category's keys: the mean over queries and heads, then sequences.",
    "after": "α summed over the category's keys, as in `before`, without the removed dimensions.",
    "change": "`after` minus `before`.",
    "controls_mean": "Mean change when as many random dimensions are removed instead; missing without controls.",
    "controls_low": "Lower end of the 95% interval of these changes, from their percentiles.",
    "controls_high": "Upper end of that interval.",
}
"""Columns of the tables that compare attention with and without some dimensions."""
