"""Which layer of a model is running, and what it reads and returns, without a description of the model.

A layer is an entry of the outermost `nn.ModuleList` that is being called; one that is called twice is two layers.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

Enter = Callable[[int, Float[Tensor, "batch token model"]], Tensor | None]
"""Called with a layer's number and the vectors that enter it; returns what replaces them, or None."""
Leave = Callable[[int, Float[Tensor, "batch token model"]], None]
"""Called with a layer's number and the vectors that leave it."""


@dataclasses.dataclass(eq=False)
class LayerCalls:
    """Follows the layers of a model during a forward pass. Use it as a context manager around the pass.

    `enter` and `leave` may raise an exception to end the pass.
    """

    model: nn.Module
    texts: int
    """Number of texts in the batch, by which the axis of texts is recognised."""
    enter: Enter = lambda _number, _vectors: None
    leave: Leave = lambda _number, _vectors: None

    def __post_init__(self) -> None:
        self._lists = {
            entry: entries
            for entries in self.model.modules()
            if isinstance(entries, nn.ModuleList)
            for entry in entries
        }
        self._calls: dict[nn.ModuleList, int] = {}
        self._running: list[nn.Module] = []
        """The entry that is being called, and entries of inner lists."""
        self._hooks = contextlib.ExitStack()

    @property
    def number(self) -> int | None:
        """The number of the layer that is running, from 1; None outside any layer."""
        return self._calls[self._lists[self._running[0]]] if self._running else None

    def __enter__(self) -> "LayerCalls":
        for entry in self._lists:
            self._hooks.callback(entry.register_forward_pre_hook(self._entered, with_kwargs=True).remove)
            self._hooks.callback(entry.register_forward_hook(self._left).remove)
        return self

    def __exit__(self, *exception: object) -> None:
        self._hooks.close()

    def _entered(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._running.append(module)
        if len(self._running) > 1:
            return None
        of = self._lists[module]
        self._calls[of] = number = self._calls.get(of, 0) + 1
        place = _place_of_vectors(args, kwargs)
        if place is None:
            return None
        given: Mapping[Any, Any] = kwargs if isinstance(place, str) else dict(enumerate(args))
        vectors, swapped = self._by_text(given[place])
        new = self.enter(number, vectors)
        if new is None:
            return None
        new = new.transpose(0, 1) if swapped else new
        if isinstance(place, str):
            return args, {**kwargs, place: new}
        return (*args[:place], new, *args[place + 1 :]), kwargs

    def _left(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        number = self.number
        self._running.pop()
        vectors = output[0] if isinstance(output, tuple | list) else output
        if not self._running and number is not None and _are_vectors(vectors):
            self.leave(number, self._by_text(vectors)[0])

    def _by_text(self, vectors: Tensor) -> tuple[Tensor, bool]:
        """Vectors with the axis of texts first, and whether the axes were swapped."""
        swapped = len(vectors) != self.texts and vectors.shape[1] == self.texts
        return (vectors.transpose(0, 1) if swapped else vectors), swapped


def _place_of_vectors(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | str | None:
    """Where among the arguments of a layer the hidden vectors are: the first tensor that can hold them."""
    if _are_vectors(kwargs.get("hidden_states")) and not args:
        return "hidden_states"
    given: Iterable[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    return next((place for place, value in given if _are_vectors(value)), None)


def _are_vectors(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim == 3
