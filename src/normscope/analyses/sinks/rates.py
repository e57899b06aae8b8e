"""Sink rates, attention mass and the position of the sink, measured on sequences of one length."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from normscope.analyses.base import AnalysisContext
from normscope.analyses.sinks.options import SinksOptions
from normscope.analyses.sinks.variants import Variant
from normscope.data.batching import Batch
from normscope.data.categories import ALL, FIRST
from normscope.maths.sinks import concentration, importance, queries_of_keys, strongest_key
from normscope.models.block import AttentionBlock
from normscope.models.interventions import InterventionRunner
from normscope.statistics.precision import half_width
from normscope.statistics.tidy import tidy

_KEYS = ["layer", "head", "inputs", "bos"]


class SinkRates:
    """What every head does on the sequences of one variant.

    Args:
        options: The length, ε and the threshold of dormant heads.
    """

    def __init__(self, variant: Variant, context: AnalysisContext, options: SinksOptions) -> None:
        self.variant, self._context, self._options = variant, context, options
        # The category `first` is the first token, which comes before all categories anyway.
        self._counted = [category for category in context.categories if category not in (ALL, FIRST)]
        shape = len(context.layers), len(self._positions), context.heads
        self._importance = torch.zeros(shape, dtype=torch.float64)
        self._sinks = torch.zeros(shape, dtype=torch.int64)
        self._mass = torch.zeros(shape, dtype=torch.float64)
        self._count = torch.zeros(len(self._positions), dtype=torch.int64)
        self._entropy = torch.zeros(shape[0], shape[2], dtype=torch.float64)
        self._dormant = torch.zeros(shape[0], shape[2], dtype=torch.int64)
        self._nowhere = torch.zeros(shape[0], shape[2], dtype=torch.float64)
        # The key that receives most, by layer: position and token, sequence × head.
        self._strongest: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {layer: [] for layer in context.layers}
        # The headline: each sequence's sink rate of the first token and the weight on it, over all heads.
        self._headline: list[torch.Tensor] = []
        self.sequences = 0
        """Number of sequences so far."""

    @property
    def _positions(self) -> list[str]:
        return [FIRST, *self._counted]

    def measure(self, runner: InterventionRunner, batches: Sequence[Batch]) -> None:
        """Run the model on some sequences."""
        for batch in batches:
            members = self._members(batch)
            self._count += members.sum(dim=(1, 2)).cpu()
            self.sequences += batch.sequences
            self._headline.append(torch.zeros(batch.sequences, 2, dtype=torch.float64))
            runner.observe(batch, lambda block, batch=batch, members=members: self._add(block, batch, members))  # type: ignore[misc]

    def _members(self, batch: Batch) -> torch.Tensor:
        """Which tokens are at each position."""
        first = torch.zeros_like(batch.token_mask)
        first[:, 0] = True
        names = self._context.names
        return torch.stack([first, *(batch.categories == names.index(name) for name in self._counted)])

    def _add(self, block: AttentionBlock, batch: Batch, members: torch.Tensor) -> None:
        layer = self._context.index(block.layer)
        received = block.received.cpu().double()
        weights = importance(received, queries_of_keys(block.token_mask, block.mask).cpu())
        shares = received / block.token_mask.sum(dim=-1).cpu()[:, None, None]
        groups = members.cpu().double()
        own = slice(received.shape[1])  # the heads of the layer
        self._importance[layer, :, own] += torch.einsum("gbk,bhk->gh", groups, weights)
        exceeds = (weights > self._options.epsilon).double()
        self._sinks[layer, :, own] += torch.einsum("gbk,bhk->gh", groups, exceeds).round().long()
        self._mass[layer, :, own] += torch.einsum("gbk,bhk->gh", groups, shares)
        of_first = torch.stack([exceeds[:, :, 0], shares[:, :, 0]], dim=-1)
        self._headline[-1] += of_first.mean(dim=1) / len(self._context.layers)
        self._entropy[layer, own] += concentration(received).sum(dim=0)
        self._dormant[layer, own] += (shares.amax(dim=-1) > self._options.dormant).sum(dim=0)
        if block.weight_to_nowhere is not None:
            lost = block.weight_to_nowhere.cpu().double() * block.token_mask.cpu()[:, None]
            self._nowhere[layer, own] += (lost.sum(dim=-1) / block.token_mask.sum(dim=-1).cpu()[:, None]).sum(dim=0)
        position = strongest_key(received)
        tokens = batch.input_ids.cpu().gather(1, position)
        self._strongest[block.layer].append((position.numpy(), tokens.numpy()))

    def half_width(self) -> float:
        """Half the width of the widest interval of the headline; 0 if no sequence is long enough."""
        return half_width(torch.cat(self._headline).numpy()) if self._headline else 0.0

    def by_head(self) -> pd.DataFrame:
        """The table `by_head`: the positions that occur."""
        return self._by_position(
            {
                "received": self._importance / self._count[None, :, None],
                "sink_rate": self._sinks.double() / self._count[None, :, None],
                "count": self._count[None, :, None],
            }
        )

    def mass(self) -> pd.DataFrame:
        """The table `mass`: the positions that occur."""
        return self._by_position({"mass": self._mass / self.sequences})

    def _by_position(self, values: dict[str, torch.Tensor]) -> pd.DataFrame:
        present = (self._count > 0).numpy()
        table = tidy(
            {name: tensor.expand(self._mass.shape).transpose(1, 2)[..., present] for name, tensor in values.items()},
            layer=self._context.layers,
            head=range(1, self._context.heads + 1),
            position=[position for position, occurs in zip(self._positions, present, strict=True) if occurs],
        ).assign(inputs=str(self.variant.inputs), bos=self.variant.bos)
        return self._context.with_heads(table[[*_KEYS, "position", *values]])

    def strongest(self) -> pd.DataFrame:
        """The table `strongest`: the key that receives most, and how concentrated the weight is."""
        rows = []
        for index, layer in enumerate(self._context.layers):
            positions, tokens = (np.concatenate(parts) for parts in zip(*self._strongest[layer], strict=True))
            for head in range(positions.shape[1]):
                position, share = _most_common(positions[:, head])
                token, _ = _most_common(tokens[positions[:, head] == position, head])
                rows.append(
                    {
                        "layer": layer,
                        "head": head + 1,
                        "inputs": str(self.variant.inputs),
                        "bos": self.variant.bos,
                        "position": position + 1,
                        "token": self._context.vocabulary.text(token),
                        "share": share,
                        "entropy": float(self._entropy[index, head]) / self.sequences,
                        "dormant": int(self._dormant[index, head]) / self.sequences,
                        "nowhere": float(self._nowhere[index, head]) / self.sequences,
                    }
                )
        return pd.DataFrame(rows)


def _most_common(values: np.ndarray) -> tuple[int, float]:
    """The most common value, the smallest of several, and its share."""
    distinct, counts = np.unique(values, return_counts=True)
    return int(distinct[counts.argmax()]), float(counts.max() / len(values))
