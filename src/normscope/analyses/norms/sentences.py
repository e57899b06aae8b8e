"""The findings of the norms analysis in sentences, from its metrics. Missing metrics are skipped."""

from collections.abc import Collection, Mapping

from normscope.analyses.categories import category_name
from normscope.results.findings import Sentence
from normscope.results.rollups import by_axes
from normscope.rounding import brief, brief_share, compared, counted, enumeration, shares_differ


def sentences_of(metrics: Mapping[str, float], unseen: Collection[str] = ()) -> list[Sentence]:
    """The weight and the contribution of the special categories, the rank correlations, and the dispersion of ‖f(x)‖.

    Args:
        unseen: Categories whose tokens no other token sees, as a [SEP] at the end of the texts of a causal model: nothing is
            said about them.
    """
    metrics = {name: value for name, value in metrics.items() if name.rpartition("/")[2] not in unseen}
    sentences: list[Sentence] = []
    all_norm = metrics.get("alpha_f/all")
    for category in ("cls", "sep", "first", "punctuation"):
        weight, norm = metrics.get(f"alpha/{category}"), metrics.get(f"alpha_f/{category}")
        if weight is not None and norm is not None and all_norm:
            received, contributed = compared(brief_share, weight, norm / all_norm)
            little = norm / all_norm < weight / 2 and shares_differ(norm / all_norm, weight)
            contrast = "but contribute only" if little else "and contribute"
            sentences.append(
                Sentence(
                    f"The {category_name(category)} tokens receive {received} of the attention weight {contrast} "
                    f"{contributed} of Σ‖αf(x)‖.",
                    figure="by_layer",
                    table="by_layer",
                    surprising=little,
                )
            )
    sentences += _shares(metrics)
    correlations = by_axes("spearman/<category>", metrics)
    if correlations:
        parts = [
            f"{brief(rho, *correlations.values(), signed=True)} for {category_name(name)}"
            for name, rho in correlations.items()
            if name != "all"
        ]
        over_all = (
            [f"{brief(correlations['all'], *correlations.values(), signed=True)} over all tokens"]
            if "all" in correlations
            else []
        )
        by_category = [f"{enumeration(parts)} tokens"] if parts else []
        sentences.append(
            Sentence(
                f"The rank correlation between α and ‖f(x)‖ over the pairs of all texts is "
                f"{', and '.join(over_all + by_category)}.",
                figure="scatter",
                table="correlation",
            )
        )
    sentences += _within_queries(metrics)
    if "f/cv_mean" in metrics:
        names = ("f/cv_mean", "f/cv_min", "f/cv_max", "x/cv_mean")
        mean, low, high, inputs = compared(brief_share, *(metrics[name] for name in names))
        sentences.append(
            Sentence(
                f"On average over heads, the coefficient of variation of ‖f(x)‖ is {mean} (from {low} "
                f"to {high}); that of the norm ‖x‖ of the inputs is {inputs}.",
                table="dispersion_summary",
            )
        )
    return sentences


def _within_queries(metrics: Mapping[str, float]) -> list[Sentence]:
    """Whether the keys with larger weights have shorter vectors than the other keys that the same query sees.

    Pairs of all texts cannot tell: weights are smaller in longer texts, whichever vectors these have.
    """
    weighted, alike = metrics.get("alpha_f/all"), metrics.get("f/uniform")
    if weighted is None or alike is None or not metrics.get("alpha/all", 0.0) > _NO_SINK:
        return []
    if abs(weighted - alike) < _MATTERS * max(weighted, alike):
        return []
    lengths = compared(brief, weighted, alike)
    text = (
        f"{'Shorter' if weighted < alike else 'Longer'} vectors tend to get larger weights: the keys that a query sees have a "
        f"mean ‖f(x)‖ of {lengths[0]} weighted by α, and of {lengths[1]} with equal weights."
    )
    return [Sentence(text, table="by_layer", surprising=weighted < alike)]


_MATTERS = 0.1
"""The relative difference of two lengths that is worth a sentence."""
_NO_SINK = 0.999
"""Weight on all keys together above which no learned sink takes part of it: such a part would be missing from ‖αf(x)‖."""


def _shares(metrics: Mapping[str, float]) -> list[Sentence]:
    """Categories whose share of what comes from all tokens is not what the norms suggest; heads that write against the output.

    The norms are those of tokens alone, and so are the shares beside them: in the output, b_O has a share as well.
    """
    sentences = []
    norms, shares = (by_axes(f"{measure}/<category>", metrics) for measure in ("alpha_f", "share"))
    all_norm, all_share = norms.get("all"), shares.get("all")
    for category, share in shares.items():
        if category == "all" or category not in norms or not all_norm:
            continue
        if all_share is None or all_share < _LEAST_OF_TOKENS:
            continue
        by_norm, of_tokens = norms[category] / all_norm, share / all_share
        if abs(of_tokens - by_norm) > by_norm / 2 and shares_differ(of_tokens, by_norm):
            stated = "overstate" if of_tokens < by_norm else "understate"
            norm, along = compared(brief_share, by_norm, of_tokens)
            sentences.append(
                Sentence(
                    f"Norms {stated} what {category_name(category)} tokens contribute: these have {norm} of Σ‖αf(x)‖, "
                    f"but {along} of what comes from all tokens along the output vectors, where contributions add up.",
                    figure="shares",
                    table="by_layer",
                    surprising=True,
                )
            )
    negative, number_of_heads = metrics.get("share/negative_heads"), metrics.get("share/heads")
    if negative is not None and number_of_heads:
        sentences.append(
            Sentence(
                f"{negative:,.0f} of {counted(number_of_heads, 'head')} {'writes' if negative == 1 else 'write'} against the "
                "attention output of their layer: on average, what such a head takes from all tokens points away from it.",
                figure="head_shares",
                table="head_shares",
                surprising=negative > 0,
            )
        )
    return sentences


_LEAST_OF_TOKENS = 0.05
"""The share of all tokens in the output below which it is mostly b_O, and their shares of what is left say nothing."""
