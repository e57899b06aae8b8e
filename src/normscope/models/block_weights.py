"""The weights of the blocks of a model, by layer."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from normscope.models.block import BlockParameters
from normscope.models.block_modules import BlockModules
from normscope.models.stored_weights import is_offloaded


class BlockWeights(Mapping[int, BlockParameters]):
    """The weights of blocks, by layer.

    Args:
        layers: The modules of each layer.
        keep: Whether to read the weights of all layers now. Otherwise they are read one layer at a time, when needed: all
            of them together would take more memory than the model's own.
    """

    def __init__(self, layers: Mapping[int, BlockModules], *, keep: bool) -> None:
        self._layers, self._keep = layers, keep
        self._read: dict[int, BlockParameters] = {}
        # Kept for all layers: each takes a decomposition of W_O to compute, but little memory.
        self._factors: dict[int, Tensor] = {}
        if keep:
            for layer in layers:
                self[layer]

    def __getitem__(self, layer: int) -> BlockParameters:
        if layer in self._read:
            return self._read[layer]
        if not self._keep:
            self._release()
        parameters = self._layers[layer].parameters()
        if layer in self._factors:
            parameters.__dict__["norm_factors"] = self._factors[layer]
        self._read[layer] = parameters
        return parameters

    def _release(self) -> None:
        for layer, parameters in self._read.items():
            if "norm_factors" in parameters.__dict__:
                self._factors[layer] = parameters.norm_factors
        self._read.clear()

    def __iter__(self) -> Iterator[int]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)


def takes_no_copy(model: PreTrainedModel) -> bool:
    """Whether reading weights in float32 or better copies nothing, because the model's own are already."""
    return model.dtype in (torch.float32, torch.float64) and not is_offloaded(model)
