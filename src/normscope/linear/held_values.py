"""Runs a model with everything nonlinear held fixed, and hands out what its attention adds up."""

from collections.abc import Callable, Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from normscope.linear.rules import Call, HeldFixed, kind_of
from normscope.linear.weighted_values import by_head, note_weights, weighted
from normscope.maths.attention import AttentionCall

Values = Callable[[Float[Tensor, "text head key value_dim"]], Tensor]
"""Called with values just before attention adds them up; returns what replaces them."""


class HeldValues(HeldFixed):
    """The mode of `rules.py`, with a function that is called for each attention, or for each head that is a module.

    Args:
        model: See `HeldFixed`.
        texts: Number of texts in the batch, for attention whose texts and heads share an axis.
        values: The function.
        ones: See `HeldFixed`.
        carries: See `HeldFixed`.
        added: See `HeldFixed`.
    """

    def __init__(
        self,
        model: nn.Module,
        texts: int,
        values: Values,
        ones: Tensor | None = None,
        *,
        carries: bool = False,
        added: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__(model, ones, carries=carries, added=added)
        self._texts, self._values = texts, values

    def attention(self, call: AttentionCall) -> Any:
        """Fused attention of linear values."""
        return super().attention(call._replace(value=self._values(call.value)))

    def by_rule(self, call: Call, given: Sequence[Tensor]) -> Any:
        """What a function of linear or held tensors gives; a product of attention weights and values, of new values."""
        product = weighted(call, given, kind_of)
        if product is not None:
            with self.again():
                if product.has_more:
                    return product.one_by_one(lambda function, *args: function(*args))
                call = product.having(self._values(by_head(product.values(product.value), self._texts)))
        result = super().by_rule(call, given)
        if isinstance(result, Tensor):
            note_weights(call, given, result, kind_of)
        return result
