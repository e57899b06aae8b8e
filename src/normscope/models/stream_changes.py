"""Changes of the residual stream where layers read it, and which of them are made right now."""

import contextlib
import dataclasses
import weakref
from collections.abc import Iterator, Mapping

from jaxtyping import Float
from torch import Tensor, nn

from normscope.maths.frozen import Gradient


@dataclasses.dataclass(frozen=True, eq=False)
class StreamChange:
    """x ⊙ keep + added, where a layer reads the residual stream. It is a `FrozenMap`."""

    keep: Float[Tensor, " model"]
    """1, or 0 for a dimension that is replaced."""
    added: Float[Tensor, " model"]

    def after(self, earlier: "StreamChange | None") -> "StreamChange":
        """This change of what an earlier one has made."""
        if earlier is None:
            return self
        return StreamChange(self.keep * earlier.keep, self.keep * earlier.added + self.added)

    def linear(self, vectors: Tensor) -> Tensor:
        """Vectors without the dimensions that are replaced."""
        return vectors * self.keep.to(vectors)

    def constant(self, like: Tensor) -> Tensor:
        """What is added to every token."""
        return self.added.to(like).expand_as(like)

    def transposed(self, gradient: Tensor) -> Gradient:
        """The gradient at the unchanged vectors."""
        return Gradient(self.linear(gradient), (gradient @ self.added.to(gradient)).sum(dim=-1))

    def applied(self, vectors: Tensor) -> Tensor:
        """The changed vectors."""
        return self.linear(vectors) + self.added.to(vectors)


_CHANGES: "weakref.WeakKeyDictionary[nn.Module, list[Mapping[int, StreamChange]]]" = weakref.WeakKeyDictionary()
"""The changes of each model whose contexts are open, in their order, by layer from 1. Other changes are empty mappings."""


def stream_changes(model: nn.Module) -> dict[int, StreamChange]:
    """How the inputs of layers are changed right now, by layer from 1."""
    whole: dict[int, StreamChange] = {}
    for changes in _CHANGES.get(model, []):
        whole |= {layer: change.after(whole.get(layer)) for layer, change in changes.items()}
    return whole


@contextlib.contextmanager
def noted(model: nn.Module, changes: Mapping[int, StreamChange]) -> Iterator[None]:
    """Note that a model is changed, for as long as the context is open."""
    open_ = _CHANGES.setdefault(model, [])
    open_.append(changes)
    try:
        yield
    finally:
        open_.remove(changes)


def is_changed(model: nn.Module) -> bool:
    """Whether parts of the model are removed, or vectors added, right now."""
    return bool(_CHANGES.get(model))
