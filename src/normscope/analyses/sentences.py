"""What an analysis found in plain sentences, from its metrics; what was not measured is not spoken of."""

from collections.abc import Mapping

Metrics = Mapping[str, float]


def mixing(found: Metrics) -> list[str]:
    """By the weights alone, and by the whole block."""
    by_weights, by_block = found.get("attn_w/mean"), found.get("attnresln_n/mean", found.get("attnres_n/mean"))
    sentences = []
    if by_weights is not None:
        sentences.append(
            f"By attention weights alone, tokens would take {by_weights:.1%} of their new vectors from other tokens."
        )
    if by_block is not None:
        whole = "attnresln_n/mean" in found
        name = "attnresln_n" if whole else "attnres_n"
        sentences.append(
            f"With vectors, the residual connection{' and the layer normalisation' if whole else ''} taken in, it is "
            f"{by_block:.1%} on average ({name}), between {found[f'{name}/min']:.1%} and {found[f'{name}/max']:.1%} for single "
            f"tokens: the blocks mostly {'preserve' if by_block < 0.5 else 'mix'}."
        )
    return sentences


def norms(found: Metrics) -> list[str]:
    """Which tokens get weight and how little they hand over."""
    sentences = []
    total, handed = found.get("alpha/all"), found.get("alpha_f/all")
    for category in ("cls", "sep", "first", "punctuation"):
        weight, vector = found.get(f"alpha/{category}"), found.get(f"alpha_f/{category}")
        if weight is not None and vector is not None and total and handed:
            sentences.append(
                f"Keys of category {category} get {weight / total:.1%} of the attention weight and contribute "
                f"{vector / handed:.1%} of Σ‖αf(x)‖."
            )
    correlations = [
        f"{found[key]:+.2f} for {key.removeprefix('spearman/')}" for key in found if key.startswith("spearman/")
    ]
    if correlations:
        sentences.append(
            f"Rank correlation of α and ‖f(x)‖: {', '.join(correlations)}; negative means that what gets weight is short."
        )
    if "f/cv_mean" in found:
        sentences.append(
            f"The length ‖f(x)‖ varies by {found['f/cv_mean']:.0%} of its mean in an average head ({found['f/cv_min']:.0%} to "
            f"{found['f/cv_max']:.0%}); that of the inputs by {found['x/cv_mean']:.0%}."
        )
    return sentences


def frequency(found: Metrics) -> list[str]:
    """Whether frequent tokens are short."""
    titles = {"alpha": "the weight that it receives", "f": "‖f(x)‖", "attnresln_n": "the mixing ratio of its block"}
    parts = [
        f"{found[key]:+.2f} with {title}"
        for measure, title in titles.items()
        if (key := f"spearman/{measure}/with_specials") in found
    ]
    return [f"Rank correlation of a token's frequency rank (1: most frequent): {', '.join(parts)}."] if parts else []


def outliers(found: Metrics) -> list[str]:
    """Which dimensions."""
    shares = {key.split("/")[0]: value for key, value in found.items() if key.endswith("/share_of_layers")}
    if not shares:
        return ["No hidden dimension is an outlier in enough layers to be one of the model."]
    named = ", ".join(f"{dimension} ({share:.0%} of the layers)" for dimension, share in shares.items())
    return [f"Outlier dimensions of the hidden vectors: {named}."]


def score(found: Metrics) -> list[str]:
    """How few dimensions decide, and what goes without them."""
    sentences = []
    half, ninety = found.get("dimensions_for_half/mean"), found.get("dimensions_for_90_percent/mean")
    if half is not None:
        more = "" if ninety is None else f", {ninety:.0f} explain 90 %"
        sentences.append(
            f"In an average head, {half:.0f} dimensions explain half of what sets a query's scores apart{more}."
        )
    sentences += _key_bias(found)
    if "share_of_outliers/mean" in found:
        sentences.append(f"The outlier dimensions' share of it is {found['share_of_outliers/mean']:.1%}.")
    changes = {
        key.split("/")[1]: value
        for key, value in found.items()
        if key.startswith("intervention/") and key.endswith("/change")
    }
    if changes:
        most = max(changes, key=lambda category: abs(changes[category]))
        controls = found.get(f"intervention/{most}/controls_mean")
        beside = "" if controls is None else f"; without as many random dimensions by {controls:+.3f}"
        sentences.append(
            f"Without the outliers' part of the scores, the weight on keys of category {most} changes by {changes[most]:+.3f}"
            f"{beside}."
        )
    return sentences


def _key_bias(metrics: Metrics) -> list[str]:
    """What b_K leaves to the dimensions, where it takes anything from them."""
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


def alignment(found: Metrics) -> list[str]:
    """Whether norms beat weights."""
    sentences = []
    for setting, name in (("awo", "output"), ("awi", "input")):
        weights, vectors = (found.get(f"{method}/{setting}/best_layer/aer") for method in ("attn_w", "attn_n"))
        if weights is not None and vectors is not None:
            layers = [f"{found[f'{method}/{setting}/layer_mean/aer']:.1%}" for method in ("attn_n", "attn_w")]
            sentences.append(
                f"Alignment with {name}: the best layer errs by {vectors:.1%} (AER) by vector norms and by {weights:.1%} by "
                f"weights; the layers' mean is {layers[0]} against {layers[1]}."
            )
    others = {key.split("/")[0]: value for key, value in found.items() if key.count("/") == 1 and key.endswith("/aer")}
    sentences += [f"{name} errs by {value:.1%} on the same pairs." for name, value in others.items()]
    return sentences
