"""Recomputes attention weights from scores, for families outside the registry, to verify query, key and scale.

Only the final weights of such a family can be observed. Analyses that change scores also need query, key and scale, so
verification checks that scale·q·k plus the family's other terms, such as positions, gives the model's weights.
"""

import contextlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from normscope.models.block import AttentionBlock, full_precision
from normscope.models.layout import BlockModules


class ScoreTerms(contextlib.ExitStack):
    """Captures the other terms of the scores in the layer that is running.

    Use it as a context manager around a forward pass.

    Args:
        layers: The layers of a model. Those whose layout has no `score_terms` have none.

    Entering raises AttributeError if an attention module has neither an argument nor a method of that name.
    """

    def __init__(self, layers: Sequence[BlockModules]) -> None:
        super().__init__()
        self._term: Tensor | None = None
        self._layers = [modules for modules in layers if modules.layout.score_terms is not None]

    def __enter__(self) -> Self:
        try:
            for modules in self._layers:
                assert modules.layout.score_terms is not None
                self._watch(modules.attention, modules.layout.score_terms)
        except BaseException:  # an interrupt leaves the model as it was, too
            self.close()
            raise
        return self

    def weights(self, block: AttentionBlock) -> Float[Tensor, "batch head query key"]:
        """The weights of the current block, recomputed from its query, key and scale and the other terms."""
        scores = block.alpha.scale * block.query @ block.key.transpose(-1, -2)
        if self._term is not None:
            batch, heads, _, keys = scores.shape
            # DeBERTa-v2 and Bloom fold heads into the batch; Bloom's term is the same for all queries.
            scores = scores + full_precision(self._term).view(batch, heads, -1, keys)
        seen = block.alpha.seen.of() | ~block.token_mask[:, None, :, None]  # a softmax over nothing would be NaN
        return scores.masked_fill(~seen, -torch.inf).softmax(dim=-1)

    def _watch(self, attention: nn.Module, name: str) -> None:
        parameters = inspect.signature(attention.forward)

        def enter(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._term = parameters.bind(*args, **kwargs).arguments.get(name)

        self.callback(attention.register_forward_pre_hook(enter, with_kwargs=True).remove)
        if name not in parameters.parameters:
            self.callback(vars(attention).pop, name, None)
            setattr(attention, name, self._capturing(getattr(attention, name)))

    def _capturing(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            term = method(*args, **kwargs)
            self._term = term if isinstance(term, Tensor) else None  # 0 if the config has no terms
            return term

        return call
