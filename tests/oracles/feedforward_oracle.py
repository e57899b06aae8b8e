"""The feed-forward analysis by brute force: the vector of every pair, at every stage of the layer."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import pytest
import scipy.special
import scipy.stats
import torch

from normscope.analyses.declarations.feedforward import FeedForwardOptions
from normscope.results.result import Result
from normscope.rounding import in_points
from normscope.statistics.intervals import Interval
from tests.family_modules import parts_of
from tests.oracles.activations import Sequence_, shares_of
from tests.oracles.comparison import Expected, Picture, assert_expected, percent, table, three_digits, visibly_apart
from tests.oracles.mixing_oracle import (
    difference_of,
    means_by_sequence,
    share_curves,
    share_metrics,
    share_table,
    shares_by_sequence,
    shares_of_tokens,
    statistics_of,
    summary_by_category,
    tokens_of,
)
from tests.oracles.specimens import CHOICES, Specimen, made, reported
from tests.tiny import rounds_inside

TITLES = {
    "attn_w": "attention weights (Attn-W)",
    "attn_n": "weighted vectors (Attn-N)",
    "attnres_n": "vectors + residual (AttnRes-N)",
    "atb_n": "attention block (Atb)",
    "atbff_n": "feed-forward network (AtbFf)",
    "atbffres_n": "network + residual (AtbFfRes)",
    "atbffresln_n": "network + residual + norm (AtbFfResLn)",
}
STEP_TITLES = {
    "ff": "feed-forward network (FF)",
    "res": "residual connection (RES)",
    "ln": "normalisation (LN)",
    "ff+res": "network and residual (FF, RES)",
    "ff+res+ln": "network, residual and normalisation (FF, RES, LN)",
}
STEPS = {
    "ff": ("atb_n", "atbff_n"),
    "res": ("atbff_n", "atbffres_n"),
    "ln": ("atbffres_n", "atbffresln_n"),
    "ff+res": ("atb_n", "atbffres_n"),
    "ff+res+ln": ("atb_n", "atbffresln_n"),
}


def expected(
    specimen: Specimen, layers: Sequence[int], categories: Sequence[str], options: FeedForwardOptions
) -> Expected:
    """Everything that the analysis returns."""
    pairs = {
        (number, layer): stages_of(specimen, sequence, layer)
        for number, sequence in enumerate(specimen.sequences)
        for layer in layers
    }
    post = specimen.sequences[0].blocks[0].gamma is not None
    methods = [method for method in TITLES if post or method not in ("attnres_n", "atbffresln_n")]
    tokens = _tokens(specimen, layers, pairs, methods)
    rows = [
        {"layer": layer, "method": method, "category": category, **statistics_of(chosen)}
        for layer, method, category in itertools.product(layers, methods, dict.fromkeys([*categories, "all"]))
        if len(chosen := tokens_of(tokens, layer, method, category))
    ]
    ratios = table(["layer", "method", "category"], rows)
    own = [method for method in methods if method.startswith("atb")]
    everything = {method: tokens[tokens["method"] == method]["ratio"] for method in own}
    change = _change(specimen, layers, pairs)
    changes = {
        step: {layer: float(change.loc[(layer, step), "mean"]) for layer in layers}
        for step in STEPS
        if (layers[0], step) in change.index
    }
    metrics = {
        f"{method}/{name}": float(getattr(ratios_of, name)())
        for method, ratios_of in everything.items()
        for name in ("mean", "max", "min")
    } | {f"change/{step}": float(np.mean(list(curve.values()))) for step, curve in changes.items()}
    means = dict(ratios["mean"].items())
    curves = {f"{method}/mean": {layer: means[layer, method, "all"] for layer in layers} for method in own}
    shown = ratios[
        ratios.index.get_level_values("method").isin(own) & ratios.index.get_level_values("category").isin(categories)
    ]
    shares = shares_of_tokens(
        specimen,
        layers,
        lambda sequence, layer: _shares(specimen, sequence, layer),
        ["share", "own", "bias"],
    )
    metrics |= share_metrics(shares) | {"maps/sequences": len(specimen.sequences)}
    return Expected(
        tables={
            "mixing_by_layer": shown.join(share_table(shares, categories).drop(columns="count")),
            "change": change,
            "amplified": _amplified(specimen, layers, pairs, options),
        },
        metrics=metrics,
        curves=curves | share_curves(shares) | {f"change/{step}": curve for step, curve in changes.items()},
        figures=_figures(layers, categories, methods, ratios, change),
        summary=summary_by_category(tokens[tokens["method"] == own[-1]], layers, categories),
        sentences=_sentences(
            metrics, curves, post, difference_of(tokens, "atbffresln_n" if post else "atbffres_n", "atb_n"), specimen
        ),
        notes=["feedforward: the sample is drawn from sequences of at most 64 tokens (analysis.feedforward.tokens)"],
        by_sequence={f"{method}/mean": means_by_sequence(tokens, layers, method) for method in own}
        | shares_by_sequence(shares, layers),
    )


def _shares(specimen: Specimen, sequence: Sequence_, layer: int) -> dict[str, dict[str, np.ndarray]]:
    """Shares by stage, from the vector of every pair and the output of the untouched layer."""
    pairs = stages_of(specimen, sequence, layer)
    outputs = _outputs(specimen, sequence, layer)
    shares = {}
    for method, vectors in pairs.items():
        own = np.einsum("iim->im", vectors)
        parts = {"others": vectors.sum(axis=1) - own, "own": own}
        shares[method] = shares_of(parts | {"bias": outputs[method] - vectors.sum(axis=1)})
    return shares


def _outputs(specimen: Specimen, sequence: Sequence_, layer: int) -> dict[str, np.ndarray]:
    """What the layer's own modules give at every stage."""
    block = sequence.blocks[layer - 1]
    modules = parts_of(specimen.loaded.model)[layer - 1].entry
    summed = torch.from_numpy(block.x + np.einsum("hqk,hkm->qm", block.alpha, block.f) + block.weights.output_bias)
    if block.gamma is None:
        network = modules.mlp(modules.post_attention_layernorm(summed))
        return {"atb_n": summed.numpy(), "atbff_n": network.numpy(), "atbffres_n": (summed + network).numpy()}
    vectors = modules.attention.output.LayerNorm(summed)
    network = modules.output.dense(modules.intermediate(vectors))
    total = vectors + network
    made = {"atb_n": vectors, "atbff_n": network, "atbffres_n": total, "atbffresln_n": modules.output.LayerNorm(total)}
    return {method: each.numpy() for method, each in made.items()}


def stages_of(specimen: Specimen, sequence: Sequence_, layer: int) -> dict[str, np.ndarray]:
    """The vector of every pair (query, key, model) from the attention block to the end of the layer, by method."""
    block, length = sequence.blocks[layer - 1], len(sequence.ids)
    pairs = np.einsum("hqk,hkm->qkm", block.alpha, block.f)
    pairs[np.arange(length), np.arange(length)] += block.x
    constant = np.zeros_like(block.x) + block.weights.output_bias
    modules = parts_of(specimen.loaded.model)[layer - 1].entry
    if block.gamma is None:
        norm, mlp = modules.post_attention_layernorm, modules.mlp
        gamma = norm.weight.numpy()
        deviation = np.sqrt(((pairs.sum(axis=1) + constant) ** 2).mean(axis=-1) + norm.variance_epsilon)[:, None]
        read, rest = gamma * pairs / deviation[:, :, None], gamma * constant / deviation
        network = _gated(mlp, read, rest)
        return {"atb_n": pairs, "atbff_n": network, "atbffres_n": network + pairs}
    beta = modules.attention.output.LayerNorm.bias.numpy()
    block_vectors, rest = _normalised(pairs, constant, block.gamma, beta, block.epsilon)
    network, rest_of_network = _plain(modules, block_vectors, rest)
    total, rest = network + block_vectors, rest + rest_of_network
    norm = modules.output.LayerNorm
    last, _ = _normalised(total, rest, norm.weight.numpy(), norm.bias.numpy(), norm.eps)
    return {"atb_n": block_vectors, "atbff_n": network, "atbffres_n": total, "atbffresln_n": last}


def _normalised(pairs, rest, gamma, beta, epsilon) -> tuple[np.ndarray, np.ndarray]:
    deviation = np.sqrt((pairs.sum(axis=1) + rest).var(axis=-1) + epsilon)[:, None]
    centred = pairs - pairs.mean(axis=-1, keepdims=True)
    rest = rest - rest.mean(axis=-1, keepdims=True)
    return gamma * centred / deviation[:, :, None], gamma * rest / deviation + beta


def _plain(layer, read: np.ndarray, rest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """BERT's network: by pair, and from no token."""
    inner, outer = (layer.intermediate.dense, layer.output.dense)
    first, second = inner.weight.numpy().T, outer.weight.numpy().T
    b = inner.bias.numpy()
    u = (read.sum(axis=1) + rest) @ first + b
    slope = _gelu(u) / u
    pairs = (read @ first * slope[:, None]) @ second
    return pairs, ((rest @ first + b) * slope) @ second + outer.bias.numpy()


def _gelu(u):
    return u * scipy.special.ndtr(u)


def _gated(mlp, read: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Qwen2's network by pair: integrated gradients by quadrature. It has no biases, so neither has its input."""
    assert not rest.any()
    gate, up, down = (module.weight.numpy().T for module in (mlp.gate_proj, mlp.up_proj, mlp.down_proj))
    y = read.sum(axis=1)
    u, w = y @ gate, y @ up
    by_u, by_w = np.zeros_like(u), np.zeros_like(u)
    for node, weight in zip(*np.polynomial.legendre.leggauss(60), strict=True):
        a = (node + 1) / 2
        sigmoid = scipy.special.expit(a * u)
        by_u += weight / 2 * (sigmoid + a * u * sigmoid * (1 - sigmoid)) * a * w
        by_w += weight / 2 * a * u * sigmoid
    return (read @ gate * by_u[:, None] + read @ up * by_w[:, None]) @ down


def _ratio(pairs: np.ndarray) -> np.ndarray:
    own = pairs[np.arange(len(pairs)), np.arange(len(pairs))]
    others = np.linalg.norm(pairs.sum(axis=1) - own, axis=-1)
    return others / (others + np.linalg.norm(own, axis=-1))


def _tokens(specimen, layers, pairs, methods) -> pd.DataFrame:
    """One row per layer, method and token."""
    parts = []
    for number, sequence in enumerate(specimen.sequences):
        for layer in layers:
            ratios = sequence.blocks[layer - 1].ratios() | {
                method: _ratio(vectors) for method, vectors in pairs[number, layer].items()
            }
            parts += [
                pd.DataFrame(
                    {
                        "layer": layer,
                        "method": method,
                        "sequence": number,
                        "category": specimen.categories(sequence),
                        "ratio": ratios[method],
                    }
                )
                for method in methods
            ]
    return pd.concat(parts)


def _rho(one: np.ndarray, other: np.ndarray) -> float:
    if len(np.unique(one)) < 2 or len(np.unique(other)) < 2:
        return np.nan
    return float(scipy.stats.spearmanr(one, other).statistic)


def _change(specimen: Specimen, layers: Sequence[int], pairs: Mapping) -> pd.DataFrame:
    rows = []
    for layer, (step, (before, after)) in itertools.product(layers, STEPS.items()):
        if after not in pairs[0, layer] or before not in pairs[0, layer]:
            continue
        values = []
        for number, sequence in enumerate(specimen.sequences):
            visible = sequence.blocks[layer - 1].visible
            one, other = (np.linalg.norm(pairs[number, layer][stage], axis=-1) for stage in (before, after))
            values.append(1 - _rho(one[visible], other[visible]))
        mean, std = float(np.mean(values)), float(np.std(values))
        rows.append({"layer": layer, "step": step, "mean": mean, "std": std, "count": len(values)})
    return table(["layer", "step"], rows)


def _amplified(specimen: Specimen, layers: Sequence[int], pairs: Mapping, options) -> pd.DataFrame:
    tokens = specimen.loaded.tokenizer.convert_ids_to_tokens
    rows = []
    for layer in layers:
        every = []
        for number, sequence in enumerate(specimen.sequences):
            shares = []
            for method in ("atb_n", "atbff_n"):
                norms = np.linalg.norm(pairs[number, layer][method], axis=-1) * sequence.blocks[layer - 1].visible
                shares.append(norms / norms.sum(axis=1, keepdims=True))
            for i, j in np.argwhere(sequence.blocks[layer - 1].visible):
                if i != j:
                    every.append(
                        {
                            "layer": layer,
                            "query_token": tokens(int(sequence.ids[i])),
                            "key_token": tokens(int(sequence.ids[j])),
                            "category": _kind(specimen, sequence, i, j),
                            "before": shares[0][i, j],
                            "after": shares[1][i, j],
                        }
                    )
        every.sort(key=lambda row: row["before"] - row["after"])
        rows += every[: options.pairs]
    return table(["layer", "query_token", "key_token"], rows)


def _kind(specimen: Specimen, sequence: Sequence_, i: int, j: int) -> str:
    if specimen.is_special(int(sequence.ids[i])) or specimen.is_special(int(sequence.ids[j])):
        return "special"
    if sequence.ids[i] == sequence.ids[j]:
        return "same token"
    return "adjacent" if abs(i - j) == 1 else "other"


def _figures(layers, categories, methods, ratios, change) -> dict[str, Picture]:
    percents = {key: mean * 100 for key, mean in ratios["mean"].items()}
    limits = {"limits": (0, 100)}
    return {
        "strip": Picture(
            {
                (TITLES[method], layer, category): value
                for (layer, method, category), value in percents.items()
                if category in categories
            },
            limits,
        ),
        "by_layer": Picture(
            {(None, TITLES[method], layer): percents[layer, method, "all"] for method in methods for layer in layers},
            limits,
        ),
        "change": Picture(
            {
                (None, STEP_TITLES[step], layer): (row["mean"], row["mean"] - row["std"], row["mean"] + row["std"])
                for (layer, step), row in change.iterrows()
            }
        ),
    }


def _sentences(
    metrics: Mapping[str, float],
    curves: Mapping[str, Mapping[int, float]],
    post: bool,
    of_layer: Interval,
    specimen: Specimen,
) -> list[str]:
    last = metrics["atbffresln_n/mean" if post else "atbffres_n/mean"]
    alone, whole = metrics["change/ff"], metrics["change/ff+res+ln" if post else "change/ff+res"]
    amount = three_digits(whole).removeprefix("+")
    change = f"{'smaller' if whole < alone else 'larger'}: {amount}"
    if amount == three_digits(alone).removeprefix("+"):
        change = "the same"
    elif not visibly_apart(alone, whole):
        change = f"about the same: {amount}"
    before, after = curves["atb_n/mean"], curves[f"{'atbffresln_n' if post else 'atbffres_n'}/mean"]
    largest = max(before, key=lambda layer: abs(after[layer] - before[layer]))
    where = f". The change is largest in layer {largest}: from {percent(before[largest])} to {percent(after[largest])}"
    return [
        f"After the whole layer, the mean mixing ratio is {percent(last)}; after the attention block, it is "
        f"{percent(metrics['atb_n/mean'])}{in_points(*of_layer, len(specimen.sequences))}"
        f"{where if len(before) > 1 else ''}.",
        f"The feed-forward network alone changes the order of contributions by {three_digits(alone).removeprefix('+')} "
        f"(1 − Spearman's ρ); with what follows it in the layer, the change is {change}.",
    ]


INSIDE = {"low", "high"}
"""Names within the analysis that it does not return."""


def everything() -> Result:
    """Everything that the analysis can return, on a tiny model."""
    bert = made("bert")
    return bert.findings("feedforward", FeedForwardOptions(seed=0), [1, 2], reported(bert))


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.spread(1)
def test_feedforward(specimen, choice):
    layers, categories = CHOICES[choice]
    categories = reported(specimen, categories)
    options = FeedForwardOptions(pairs=7, seed=2)
    findings = specimen.findings("feedforward", options, layers, categories)
    computed = expected(specimen, layers, categories, options)
    # Qwen2's norms compute in float32, and what a first token takes from others is a remainder.
    assert_expected(findings, computed, tolerance=2e-5 if rounds_inside(specimen.loaded.model) else 1e-9)


CASES = [
    ({}, []),
    (
        {"atb_n/mean": 0.25, "atbffres_n/mean": 0.2},
        {"of_layer": Interval(-0.05, -0.062, -0.041), "sequences": 40},
        [
            "After the whole layer, the mean mixing ratio is 20%; after the attention block, it is 25% (difference 5.0 points, "
            "95% interval 4.1 to 6.2 over 40 sequences).",
        ],
    ),
    (
        {"atb_n/mean": 0.25, "atbffres_n/mean": 0.2, "change/ff": 0.3, "change/ff+res": 0.1234},
        [
            "After the whole layer, the mean mixing ratio is 20%; after the attention block, it is 25%.",
            "The feed-forward network alone changes the order of contributions by 0.30 (1 − Spearman's ρ); with what "
            "follows it in the layer, the change is smaller: 0.12.",
        ],
    ),
    (
        {"atb_n/mean": 0.25, "atbffres_n/mean": 0.2, "atbffresln_n/mean": 0.3},
        [
            "After the whole layer, the mean mixing ratio is 30%; after the attention block, it is 25%.",
        ],
    ),
    (
        {"atb_n/mean": 0.25, "atbffres_n/mean": 0.24},
        {"curves": {"atb_n/mean": {1: 0.3, 6: 0.286, 7: 0.2}, "atbffres_n/mean": {1: 0.25, 6: 0.378, 7: 0.21}}},
        [
            "After the whole layer, the mean mixing ratio is 24%; after the attention block, it is 25%. The change is largest "
            "in layer 6: from 29% to 38%.",
        ],
    ),
    (
        {"atb_n/mean": 0.25, "atbffres_n/mean": 0.24},
        {"curves": {"atb_n/mean": {2: 0.25}, "atbffres_n/mean": {2: 0.24}}},
        ["After the whole layer, the mean mixing ratio is 24%; after the attention block, it is 25%."],
    ),
    *(
        (
            {"change/ff": 0.1, "change/ff+res": whole},
            [
                f"The feed-forward network alone changes the order of contributions by {first} (1 − Spearman's ρ); with "
                f"what follows it in the layer, the change is {change}.",
            ],
        )
        for whole, first, change in (
            (0.0989, "0.10", "smaller: 0.099"),
            (0.09994, "0.100", "about the same: 0.0999"),
            (0.09996, "0.10", "the same"),
            (0.1, "0.10", "the same"),
            (0.1004, "0.10", "the same"),
            (0.1006, "0.100", "about the same: 0.101"),
            (0.1011, "0.100", "larger: 0.101"),
        )
    ),
    (
        {"change/ff": 0.1, "change/ff+res": 0.05, "change/ff+res+ln": 0.2},
        [
            "The feed-forward network alone changes the order of contributions by 0.10 (1 − Spearman's ρ); with what "
            "follows it in the layer, the change is larger: 0.20.",
        ],
    ),
]

EFFECTS = [
    ({"atb_n/mean": 0.25, "atbffres_n/mean": 0.2}, {}, 0.05),
    ({"atb_n/mean": 0.25, "atbffres_n/mean": 0.2}, {"of_layer": Interval(-0.05, -0.1, 0.0)}, 0.0),
    (
        {"atb_n/mean": 0.25, "atbffres_n/mean": 0.2},
        {"curves": {"atb_n/mean": {1: 0.2, 2: 0.3}, "atbffres_n/mean": {1: 0.25, 2: 0.15}}},
        0.15,  # in layer 2
    ),
]

CLAIMS = {
    r"by (\S+) \(1 − Spearman's ρ\); .* the change is smaller: (\S+)\.$": lambda alone, whole: whole < alone,
    r"by (\S+) \(1 − Spearman's ρ\); .* the change is larger: (\S+)\.$": lambda alone, whole: whole > alone,
}
