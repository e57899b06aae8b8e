"""The findings of the norms analysis in sentences, from its metrics. Missing metrics are skipped."""

from collections.abc import Mapping

from normscope.analyses.categories import category_name
from normscope.analyses.findings import Sentence
from normscope.results.rollups import by_axes
from normscope.rounding import brief, brief_share, compared, counted, enumeration


def sentences_of(metrics: Mapping[str, float]) -> list[Sentence]:
    """The weight and the contribution of the special categories, the rank correlations, and the dispersion of ‖f(x)‖."""
    sentences: list[Sentence] = []
    all_norm = metrics.get("alpha_f/all")
    for category in ("cls", "sep", "first", "punctuation"):
        weight, norm = metrics.get(f"alpha/{category}"), metrics.get(f"alpha_f/{category}")
        if weight is not None and norm is not None and all_norm:
            received, contributed = compared(brief_share, weight, norm / all_norm)
            little = norm / all_norm < weight / 2 and contributed != received
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
    sentences += _pruning(metrics)
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
        negative = any(rho < 0 for rho in correlations.values())
        sentences.append(
            Sentence(
                f"The rank correlation between α and ‖f(x)‖ is {', and '.join(over_all + by_category)}."
                + (" Where it is negative, shorter vectors tend to get larger weights." if negative else ""),
                figure="scatter",
                table="correlation",
            )
        )
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


def _shares(metrics: Mapping[str, float]) -> list[Sentence]:
    """Categories whose share of the output is not what the norms suggest, and the heads that write against it."""
    sentences = []
    norms, shares = (by_axes(f"{measure}/<category>", metrics) for measure in ("alpha_f", "share"))
    all_norm, all_share = norms.get("all"), shares.get("all")
    for category, share in shares.items():
        if category == "all" or category not in norms or not all_norm or not all_share:
            continue
        by_norm = norms[category] / all_norm
        if share < 0 or abs(share / all_share - by_norm) > by_norm / 2:
            stated = "overstate" if share / all_share < by_norm else "understate"
            norm, along = compared(brief_share, by_norm, share)
            sentences.append(
                Sentence(
                    f"Norms {stated} what {category_name(category)} tokens contribute: these have {norm} of Σ‖αf(x)‖, "
                    f"but {along} along the output vectors, where contributions add up.",
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


def _pruning(metrics: Mapping[str, float]) -> list[Sentence]:
    """The score of keys that tells best which can be dropped, beside the accumulated weight."""
    sentences = []
    errors = by_axes("pruning/<weights>/<score>/<dropped>", metrics)
    for weights, dropped in dict.fromkeys((weights, dropped) for weights, _, dropped in errors):
        by_score = {score: errors[weights, score, dropped] for score in _SCORES if (weights, score, dropped) in errors}
        best = min(by_score, key=lambda score: by_score[score])
        others = (
            "" if best == "alpha" else f"; by weight, it changes by {brief_share(by_score['alpha'], by_score[best])}"
        )
        rest = "renormalises the others" if weights == "renormalised" else "leaves the weights of the others unchanged"
        sentences.append(
            Sentence(
                f"If every head drops {dropped} of its keys and {rest}, the attention output changes least where keys are "
                f"ranked by {_SCORES[best]}: by {brief_share(by_score[best], by_score['alpha'])} on average{others}.",
                figure="pruning",
                table="pruning",
            )
        )
    return sentences


_SCORES = {"alpha": "weight", "alpha_v": "α‖v‖", "alpha_f": "α‖f(x)‖", "share": "their share of the output"}
"""What keys are ranked by, in words."""
