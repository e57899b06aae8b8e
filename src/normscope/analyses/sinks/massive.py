"""The massive activations of the residual stream, and the tokens that carry them."""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.analyses.base import AnalysisContext
from normscope.data.batching import Batch
from normscope.maths.magnitude import TokenSizes
from normscope.maths.massive import MASSIVE, is_massive, massive_activations, median_magnitudes
from normscope.maths.tensors import host_waits
from normscope.statistics.accumulator import Accumulator
from normscope.statistics.keyed_means import KeyedMeans
from normscope.statistics.mean import Mean

_CARRIERS = 8
"""Tokens of a sequence that are kept until the end of a batch, at first. Few carry massive activations."""


class _Kept(NamedTuple):
    """The tokens with the largest activations of each sequence in one layer, the largest first."""

    layer: int
    tokens: Int[Tensor, "batch kept"]
    largest: Float[Tensor, "batch kept"]
    vectors: Float[Tensor, "batch kept model"]
    medians: Float[Tensor, " batch"]


class MassiveSearch:
    """Finds massive activations, which takes the median of every sequence in which some |x| exceeds 100.

    A CPU looks for them layer by layer. Other devices would have to wait for the host to decide, and keeping all hidden vectors
    until the batch has passed would take too much memory. So the largest |x| of a layer is kept, and nothing else while it is
    below 100, as always in models without massive activations. Once it has been larger, the layer's medians are computed in
    every pass, and a few tokens with the largest activations are kept. If this was not enough, the layer is seen again.
    """

    def __init__(self, context: AnalysisContext) -> None:
        self._context = context
        # Layer, dimension, position (from 0) and token of each massive activation; its value, median and ratio.
        self._found = KeyedMeans(4, 3)
        # Hidden vectors of the tokens that carry massive activations.
        self._carriers = Mean(context.depth + 1, 1, context.model)
        self.accumulators: dict[str, Accumulator] = {"massive": self._found, "carriers": self._carriers}
        self._watched: set[int] = set()
        """Layers in which some |x| has exceeded 100. Not saved: forgetting them costs time alone."""
        self._room = _CARRIERS
        self.start_batch()

    def start_batch(self) -> None:
        """Forget what a batch that did not fit has left."""
        self._largest: dict[int, Tensor] = {}
        self._kept: list[_Kept] = []

    def update(
        self, layer: int, vectors: Float[Tensor, "batch token model"], batch: Batch, sizes: TokenSizes | None = None
    ) -> None:
        """Look at the hidden vectors of one layer during a pass."""
        if not host_waits(vectors.device):
            self.update_again(layer, vectors, batch, sizes)
            return
        assert sizes is not None
        largest = sizes.largest.masked_fill(~batch.token_mask, 0)
        if layer not in self._watched:
            self._largest[layer] = largest.amax()
            return
        # One more than there is room for, which tells whether it was enough.
        largest, tokens = largest.topk(min(self._room + 1, largest.shape[1]), dim=-1)
        kept = vectors.gather(1, tokens.unsqueeze(-1).expand(-1, -1, vectors.shape[-1]))
        self._kept.append(_Kept(layer, tokens, largest, kept, median_magnitudes(vectors, batch.token_mask)))

    def again(self, batch: Batch) -> Collection[int]:
        """Read what the pass has left on the device; the layers that must be seen again."""
        missing = []
        if self._largest:
            large = (torch.stack([*self._largest.values()]) > MASSIVE).tolist()
            missing += [layer for layer, is_large in zip(self._largest, large, strict=True) if is_large]
        for layer, *on_device in self._kept:
            tokens, largest, vectors, medians = (tensor.cpu() for tensor in on_device)
            carry = is_massive(largest, medians.unsqueeze(-1))
            if carry.shape[1] > self._room and carry[:, self._room].any():
                missing.append(layer)
                continue
            # Padding may be among the tokens that were kept.
            activations = is_massive(vectors.abs(), medians[:, None, None]) & carry.unsqueeze(-1)
            row, place, dimension = activations.nonzero().unbind(dim=1)
            places = torch.stack([row, tokens[row, place], dimension], dim=1)
            self._add(layer, places, vectors[row, place, dimension], medians[row], vectors[carry], batch)
        self._room *= 2 if self._watched.intersection(missing) else 1
        self._watched.update(missing)
        self.start_batch()
        return missing

    def update_again(
        self, layer: int, vectors: Float[Tensor, "batch token model"], batch: Batch, sizes: TokenSizes | None = None
    ) -> None:
        """Look at the hidden vectors of one layer, at once."""
        places, medians = massive_activations(vectors, batch.token_mask, sizes)
        if not len(places):
            return
        row, token, dimension = places.unbind(dim=1)
        carrying = places[:, :2].unique(dim=0)
        carriers = vectors[carrying[:, 0], carrying[:, 1]]
        self._add(layer, places, vectors[row, token, dimension], medians[row], carriers, batch)

    def _add(
        self,
        layer: int,
        places: Int[Tensor, "activation 3"],
        values: Float[Tensor, " activation"],
        medians: Float[Tensor, " activation"],
        carriers: Float[Tensor, "carrier model"],
        batch: Batch,
    ) -> None:
        if not len(places):
            return
        row, token, dimension = places.cpu().unbind(dim=1)
        value, median = values.cpu().double(), medians.cpu().double()
        keys = torch.stack([torch.full_like(row, layer), dimension, token, batch.host.input_ids[row, token]], dim=1)
        observations = torch.stack([value, median, value.abs() / median], dim=1)
        self._found.update(keys, observations, torch.ones(len(keys), dtype=torch.long))
        self._carriers.update(layer, carriers.cpu().double().sum(dim=0)[None], torch.tensor([len(carriers)]))

    def carriers(self) -> Float[Tensor, "layer model"]:
        """Mean hidden vectors of the tokens that carry massive activations, layer by layer; NaN where none does."""
        state = self._carriers.state_dict()
        return (state["total"] / state["count"].unsqueeze(-1))[:, 0]

    def table(self) -> pd.DataFrame:
        """The table `massive`."""
        state = self._found.state_dict()
        keys, count = state["keys"].numpy(), state["count"].numpy()
        value, median, ratio = (state["total"].numpy() / count[:, None]).T if len(count) else np.zeros((3, 0))
        return pd.DataFrame(
            {
                "layer": keys[:, 0],
                "dimension": keys[:, 1],
                "position": keys[:, 2] + 1,
                "token": np.array([self._context.vocabulary.text(int(token)) for token in keys[:, 3]], dtype=object),
                "value": value,
                "median": median,
                "ratio": ratio,
                "sequences": count,
            }
        )
