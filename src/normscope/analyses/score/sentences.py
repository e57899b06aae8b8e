"""The findings of the score analysis in sentences, from its metrics. Missing metrics are skipped."""

from collections.abc import Mapping


def sentences_of(metrics: Mapping[str, float]) -> list[str]:
    """How few dimensions explain the scores, and the effect of removing the outliers."""
    sentences: list[str] = []
    half, ninety = metrics.get("dimensions_for_half/mean"), metrics.get("dimensions_for_90_percent/mean")
    if half is not None:
        more = "" if ninety is None else f", {ninety:.0f} explain 90 %"
        sentences.append(
            f"In an average head, {half:.0f} dimensions explain half of the spread of a query's scores{more}."
        )
    sentences += _key_bias(metrics)
    if "share_of_outliers/mean" in metrics:
        sentences.append(f"The outlier dimensions' share of the spread is {metrics['share_of_outliers/mean']:.1%}.")
    changes = {
        key.split("/")[1]: value
        for key, value in metrics.items()
        if key.startswith("intervention/") and key.endswith("/change")
    }
    if changes:
        most = max(changes, key=lambda category: abs(changes[category]))
        controls = metrics.get(f"intervention/{most}/controls_mean")
        comparison = "" if controls is None else f"; removing as many random dimensions changes it by {controls:+.3f}"
        sentences.append(
            f"Without the outliers' part of the scores, the weight on keys of category {most} changes by {changes[most]:+.3f}"
            f"{comparison}."
        )
    return sentences


def _key_bias(metrics: Mapping[str, float]) -> list[str]:
    """The share of b_K, if it is not zero."""
    share = metrics.get("share_of_key_bias/mean", 0.0)
    below_half, below_ninety = (metrics.get(f"heads_below_{part}/share", 0.0) for part in ("half", "90_percent"))
    if not below_ninety and abs(share) < 0.0005:  # 0.0 % when printed
        return []
    heads = (
        f"; in {below_ninety:.1%} of the heads the dimensions never explain 90 % of it, in {below_half:.1%} not even half, "
        "and the mean numbers of dimensions leave those heads out"
    )
    return [
        f"The key bias b_K explains {share:.1%} of the spread of a query's scores over its keys"
        f"{heads if below_ninety else ''}."
    ]
