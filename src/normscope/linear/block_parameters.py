"""The weights of one attention block, by head."""

import dataclasses
from collections.abc import Callable
from functools import cached_property

from jaxtyping import Float
from torch import Tensor

from normscope.errors import InputError
from normscope.linear.projections import HeadProjection, Projections
from normscope.maths.composition import NormPosition
from normscope.maths.normalisation import Normalisation
from normscope.maths.tensors import full_precision

NOT_LINEAR = (
    "no single linear layer maps what attention reads to the {} of this model, as in latent attention, in bottlenecks or with "
    "norms of values"
)
"""Why a measure of W_Q, W_K or W_V is not defined."""


def _known(projection: HeadProjection | None, what: str) -> HeadProjection:
    if projection is None:
        raise InputError(NOT_LINEAR.format(what))
    return projection


@dataclasses.dataclass(frozen=True, eq=False)
class BlockParameters:
    """The weights of one block by head, however its family stores them; in float32 or better."""

    own_output_weight: Float[Tensor, "head head_dim model"]
    """W_O, in the model's own type if it is a view of one of its weights: then it takes no memory."""
    output_bias: Float[Tensor, " model"] | None
    """b_O."""
    normalisation: Normalisation | None
    """The norm after the residual connection or of the attention output; None if the block has neither."""
    norm_position: NormPosition
    """The position of `normalisation`."""
    steps_before_norm: int
    """How many steps lie between W_O and the norm of the branch; 0 without one."""
    find_norm_factors: Callable[[], Float[Tensor, "head head_dim rank"]]
    """Computes `norm_factors`, once for all batches."""
    find_projections: Callable[[], Projections] | None = None
    """Finds `projections` of one batch; None in weights that are kept for others."""

    @cached_property
    def output_weight(self) -> Float[Tensor, "head head_dim model"]:
        """W_O."""
        return full_precision(self.own_output_weight)

    @cached_property
    def projections(self) -> Projections:
        """What queries, keys and values are made of."""
        assert self.find_projections is not None
        return self.find_projections()

    @property
    def norm_factors(self) -> Float[Tensor, "head head_dim rank"]:
        """A factor L of W_O with ‖v W_O‖ = ‖v L‖ for every v; see `maths.norms.norm_factors`."""
        return self.find_norm_factors()

    @property
    def query(self) -> HeadProjection | None:
        """W_Q and b_Q; None if queries are more than a linear map of what attention reads, a norm and a rotation."""
        return self.projections.query

    @property
    def key(self) -> HeadProjection | None:
        """W_K and b_K, likewise; without their mean over all heads if the norm of the keys subtracts that."""
        return self.projections.key

    @property
    def value(self) -> HeadProjection | None:
        """W_V and b_V; None if values are computed from each token in another way."""
        value = self.projections.value  # what it reads may be wider than what W_O writes, as in front of a bottleneck
        return None if value is None or value.weight.shape[1] != self.output_weight.shape[2] else value

    @property
    def key_weight(self) -> Float[Tensor, "head model head_dim"]:
        """W_K."""
        return _known(self.key, "keys").weight

    @property
    def key_bias(self) -> Float[Tensor, "head head_dim"]:
        """b_K."""
        return _known(self.key, "keys").bias

    @property
    def value_weight(self) -> Float[Tensor, "head model head_dim"]:
        """W_V."""
        return _known(self.value, "values").weight

    @property
    def value_bias(self) -> Float[Tensor, "head head_dim"]:
        """b_V."""
        return _known(self.value, "values").bias
