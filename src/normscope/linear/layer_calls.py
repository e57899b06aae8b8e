"""Which layer of a model is running, and what it reads and returns, without a description of the model.

A layer is an entry of the outermost list that is being called, an `nn.ModuleList` or an `nn.Sequential` of modules of one
class, with weights; one that is called twice is two layers. If these entries are stages, layers are those of the lists within.
Where no module runs a whole layer, a layer begins when the first of its parts is called.
"""

import bisect
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from normscope.linear.axes import Axes
from normscope.linear.rules import tensors_in

Enter = Callable[[int, Float[Tensor, "batch token model"]], Tensor | None]
"""Called with a layer's number and the vectors that enter it; returns what replaces them, or None."""
Leave = Callable[[int, Float[Tensor, "batch token model"]], None]
"""Called with a layer's number and the vectors that leave it."""


class LayerCall(NamedTuple):
    """A layer as the model called it."""

    layer: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def place(self) -> int | str | None:
        """Where among the arguments the vectors are that enter the layer: the first tensor that can hold them.

        It has three axes if any has. Those of texts and tokens may be one axis, and those of tokens several.
        """
        if _are_vectors(self.kwargs.get("hidden_states")) and not self.args:
            return "hidden_states"
        given: Iterable[tuple[int | str, Any]] = [*enumerate(self.args), *self.kwargs.items()]
        found = [place for place, value in given if _are_vectors(value)]
        others = (place for place, value in given if isinstance(value, Tensor) and value.is_floating_point())
        return next((place for place in (*found, *others) if self._at(place).ndim > 1), None)

    def _at(self, place: int | str) -> Tensor:
        found: Tensor = self.kwargs[place] if isinstance(place, str) else self.args[place]
        return found

    @property
    def vectors(self) -> Tensor:
        """The vectors that enter the layer."""
        place = self.place
        return self._at(0 if place is None else place)

    def having(self, vectors: Tensor) -> "LayerCall":
        """The same with other vectors."""
        place = self.place
        if isinstance(place, str):
            return self._replace(kwargs={**self.kwargs, place: vectors})
        return self._replace(args=tuple(vectors if at == place else each for at, each in enumerate(self.args)))


class Places(NamedTuple):
    """Where the layers of a model are, as a pass has shown."""

    lists: frozenset[int] | None = None
    """The lists whose entries are layers, among all lists; None if it is not known."""
    starts: tuple[int, ...] | None = None
    """Where no module runs a whole layer: which calls of entries, counted from 1, are given the vectors that enter each layer,
    and just those. New vectors are then written over them, and nothing is called when a layer ends. Empty if there are none."""
    axes: Axes | None = None
    """The axes of what layers read and return; None if each tensor's shape has to tell."""
    stages: int | None = None
    """The list whose entries are stages, if there is one: the layers are in the lists within."""
    within: Axes | None = None
    """The axes of what the residual connection carries within layers, likewise."""


ANYWHERE = Places()

Run = Callable[[int, LayerCall, Callable[[], Any]], Any]
"""Called with a layer's number, its call, and a function that runs it; returns what the layer returns."""


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
    run: Run = lambda _number, _call, run: run()
    """Runs a layer; it may return something else instead."""
    places: Places = ANYWHERE
    """Where layers are, as far as that is known."""
    begin: Leave = lambda _number, _vectors: None
    """Called with a layer's number and the vectors that enter it in the end, with the model's axes."""
    end: Leave = lambda _number, _vectors: None
    """Called with a layer's number and the vectors that leave it, likewise, before `leave`."""

    def __post_init__(self) -> None:
        lists = [entries for entries in self.model.modules() if _may_hold_layers(entries)]
        chosen, stages = self.places.lists, self.places.stages
        inner = () if stages is None else {*lists[stages].modules()} - {lists[stages]}
        self._lists: dict[nn.Module, int] = {}
        """The list of each entry; layers within stages count as entries of one list."""
        for number, entries in enumerate(lists):
            counted = stages if stages is not None and entries in inner else number
            if number != stages and (chosen is None or counted in chosen):
                self._lists.update(dict.fromkeys(entries.children(), counted))
        self.calls: dict[int, int] = {}
        """How many entries of each list have been called."""
        self.list = 0
        """The list of the last entry that has been called."""
        self.entries = 0
        """How many entries have been called."""
        self._running: list[nn.Module] = []
        """The entry that is being called, and entries of inner lists."""
        self.call: LayerCall | None = None
        """The call of the layer that is running, or of the last one."""
        self._is_paused = False

    @property
    def number(self) -> int | None:
        """The number of the layer that is running, from 1; None outside any layer, and if no module runs layers."""
        return self.calls[self._lists[self._running[0]]] if self._running and self.places.starts is None else None

    @property
    def begun(self) -> int | None:
        """The number of the layer that is running or, where no module runs one, of the last that has begun; None before any."""
        starts = self.places.starts
        return self.number if starts is None else bisect.bisect(starts, self.entries) or None

    def __enter__(self) -> "LayerCalls":
        for entry in self._lists:
            entry.forward = functools.partial(self._called, entry, entry.forward)  # some call it without hooks
        return self

    def __exit__(self, *exception: object) -> None:
        self.give_back(self.model)

    @classmethod
    def give_back(cls, model: nn.Module) -> None:
        """Give layers their own `forward` back, after a pass or after an interrupt of one."""
        for module in model.modules():
            forward = vars(module).get("forward")
            while isinstance(forward, functools.partial) and isinstance(getattr(forward.func, "__self__", None), cls):
                forward = forward.args[1]
                module.forward = forward
            if getattr(forward, "__func__", None) is type(module).forward:
                del module.forward  # that of offloaded weights, for example, stays

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Context in which layers run that are not counted."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def _called(self, module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._is_paused or self._running:
            return forward(*args, **kwargs)
        self._running.append(module)
        self.entries += 1
        call = LayerCall(module, args, kwargs)
        try:
            if self.places.starts is None:
                return self._layer(call, forward)
            if self.entries in self.places.starts:
                call = self._entered(self.places.starts.index(self.entries) + 1, call)
            return forward(*call.args, **call.kwargs)
        finally:
            self._running.pop()

    def _layer(self, call: LayerCall, forward: Callable[..., Any]) -> Any:
        self.list = self._lists[call.layer]
        self.calls[self.list] = number = self.calls.get(self.list, 0) + 1
        self.call = call = self._entered(number, call)
        output = self.run(number, call, lambda: forward(*call.args, **call.kwargs))
        vectors = vectors_of(output)
        if vectors is not None:
            self.end(number, vectors)
            self.leave(number, self._axes_of(vectors).by_text(vectors, self.texts))
        return output

    def _entered(self, number: int, call: LayerCall) -> LayerCall:
        """The call of a layer, with the vectors that replace those that enter it."""
        if call.place is None:
            return call
        axes = self._axes_of(call.vectors)
        new = self.enter(number, axes.by_text(call.vectors, self.texts))
        if new is not None:
            new = axes.by_model(new, call.vectors.shape)
            call = call.having(new if self.places.starts is None else call.vectors.copy_(new))
        self.begin(number, call.vectors)
        return call

    def _axes_of(self, vectors: Tensor) -> Axes:
        return self.places.axes or Axes.of(vectors, self.texts)


def vectors_of(output: Any) -> Tensor | None:
    """The hidden vectors in what a layer returns: the first tensor that can hold them, with three axes if any has."""
    others = (each for each in tensors_in(output) if each.is_floating_point() and each.ndim > 1)
    return next(filter(_are_vectors, tensors_in(output)), next(others, None))


def _may_hold_layers(entries: nn.Module) -> bool:
    """Whether the entries of a list may be layers; of modules that are called one after another, if all are of one class."""
    if not isinstance(entries, nn.ModuleList | nn.Sequential) or next(entries.parameters(), None) is None:
        return False
    if isinstance(entries, nn.ModuleList):
        return True
    kinds = [*{type(entry) for entry in entries.children()}]
    has_parts = all(next(entry.children(), None) is not None for entry in entries.children())
    return len(kinds) == 1 and has_parts and not issubclass(kinds[0], nn.Sequential)


def _are_vectors(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim == 3
