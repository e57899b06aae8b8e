"""The scores of families that keep attention to themselves, put together again to prove query, key and scale.

Only the weights of such a family are observed, and they say nothing about the scores that they come from. Analyses that change
the scores need these: scale·q·k and the family's own terms, position among them, must give the model's weights.
"""

import contextlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from normscope.models.block import AttentionBlock, full_precision
from normscope.models.layout import BlockModules


class ScoreTerms(contextlib.ExitStack):
    """Keeps what a family adds to the scores of the layer that the forward pass is in.

    Use as a context manager around the pass.

    Args:
        layers: The layers of a model whose layout says where the terms come from.

    Raises:
        AttributeError: If an attention module has neither such an argument nor such a method.
    """

    def __init__(self, layers: Sequence[BlockModules]) -> None:
        super().__init__()
        self._term: Tensor | None = None
        for modules in layers:
            name = modules.layout.score_terms
            assert name is not None
            self._watch(modules.attention, name)

    def weights(self, block: AttentionBlock) -> Float[Tensor, "batch head query key"]:
        """The weights of the block that is being shown, from its query, key and scale and what the family adds."""
        scores = block.scale * block.query @ block.key.transpose(-1, -2)
        if self._term is not None:
            scores = scores + full_precision(self._term).view(scores.shape)  # DeBERTa-v2 has heads in the batch
        return scores.masked_fill(~block.key_mask[:, None, None, :], float("-inf")).softmax(dim=-1)

    def _watch(self, attention: nn.Module, name: str) -> None:
        parameters = inspect.signature(attention.forward)

        def enter(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._term = parameters.bind(*args, **kwargs).arguments.get(name)

        self.callback(attention.register_forward_pre_hook(enter, with_kwargs=True).remove)
        if name not in parameters.parameters:
            setattr(attention, name, self._kept(getattr(attention, name)))
            self.callback(delattr, attention, name)

    def _kept(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            term = method(*args, **kwargs)
            self._term = term if isinstance(term, Tensor) else None  # 0 where a config asks for no terms
            return term

        return call
