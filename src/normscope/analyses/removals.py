"""What becomes of the weights on token categories when dimensions are removed, beside random dimensions.

An effect that random sets of as many dimensions have as well says nothing about the dimensions that are removed.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from normscope.analyses.base import AnalysisContext
from normscope.data.categories import ALL
from normscope.maths.scores import part_of_keys
from normscope.models.blocks.block import AttentionBlock

_INTERVAL = (0.025, 0.975)


def random_sets(
    removed: Sequence[int], model: int, sizes: Sequence[int], number: int, seed: int
) -> list[tuple[int, ...]]:
    """Random sets of dimensions that are not removed, size by size; none of a size that the others do not have.

    Args:
        removed: The dimensions that are removed.
        model: Size of the hidden vectors.
        sizes: The sizes of the sets.
        number: Number of sets of each size.
        seed: Seed of the draw.
    """
    generator = np.random.default_rng(seed)
    others = np.setdiff1d(np.arange(model), removed)
    return [
        tuple(sorted(generator.choice(others, size=size, replace=False).tolist()))
        for size in sizes
        if size <= len(others)
        for _ in range(number)
    ]


def beside_controls(change: np.ndarray, controls: Float[np.ndarray, "... control"]) -> dict[str, np.ndarray]:
    """A change, and the mean and 95% interval (percentiles) of the changes for random sets; NaN if there are none."""
    if not controls.shape[-1]:
        return {"change": change} | {
            f"controls_{end}": np.full(change.shape, np.nan) for end in ("mean", "low", "high")
        }
    low, high = np.quantile(controls, _INTERVAL, axis=-1)
    return {"change": change, "controls_mean": controls.mean(axis=-1), "controls_low": low, "controls_high": high}


def weight_by_category(
    block: AttentionBlock, members: Tensor, without: Sequence[int] = ()
) -> Float[Tensor, "sequence group"]:
    """α summed over the keys of each category: means over heads and queries.

    Subtracting Σ_{d∈without} x_d W_K[d] from every key removes exactly these dimensions' part of the scores.
    """
    part = part_of_keys(block.attention_inputs, block.parameters.key_weight, without) if without else None
    by_query = block.alpha.by_group(members, None if part is None else block.key_map(part)).mean(dim=1)
    token_mask = block.token_mask.to(by_query.dtype)
    by_sequence = torch.einsum("bqg,bq->bg", by_query, token_mask) / token_mask.sum(dim=-1, keepdim=True)
    return by_sequence.cpu().double()


def without_all(context: AnalysisContext) -> AnalysisContext:
    """The context without the category `all`, whose attention is always 1."""
    return dataclasses.replace(context, categories=[category for category in context.categories if category != ALL])
