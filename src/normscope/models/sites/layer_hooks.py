"""Tells when each layer of a model begins and ends, even if no module runs a whole layer.

Between two layers, a computation can be left in the middle because nobody waits for its result any more.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from operator import attrgetter
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from normscope.models.sites.layout import ModelLayout

Enter = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any]
Leave = Callable[[nn.Module, tuple[Any, ...], Any], None]


def vectors_in(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """The vectors among the arguments of a module: the first tensor, or `hidden_states`."""
    return args[0] if args else kwargs[key_of_vectors(kwargs)]


def with_vectors(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], vectors: Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a module with other vectors; see `vectors_in`."""
    return ((vectors, *args[1:]), {**kwargs}) if args else ((), {**kwargs, key_of_vectors(kwargs): vectors})


def vectors_from(output: Any) -> Any:
    """The vectors that a module has returned: its output, or the first of several."""
    return output[0] if isinstance(output, tuple | list) else output


def key_of_vectors(kwargs: Mapping[str, Any]) -> str:
    """The name of the vectors among keyword arguments of a module: that of the first tensor, unless one is `hidden_states`."""
    tensors = (key for key, value in kwargs.items() if isinstance(value, Tensor))
    return "hidden_states" if "hidden_states" in kwargs else next(tensors, "hidden_states")


def layer_hooks(model: nn.Module, layout: ModelLayout, enter: Enter, leave: Leave) -> Iterator[RemovableHandle]:
    """Register the hooks that tell when layers begin and end. Layers that share modules also share hooks.

    Args:
        model: A base model.
        enter: Called as a pre-hook of the layer with its arguments, which it may replace. If no module runs the layer, it is
            a pre-hook of the layer's first module, and the new vectors are written into the tensor of the old ones.
        leave: Called as a hook of the layer with its output. If no module runs the layer, it is called when the next one
            begins, with the last layer's entry and no arguments.
    """
    entries = {id(entry): entry for entry in layout.entries(model)}.values()
    if layout.stream.in_modules:
        for layer in entries:
            yield layer.register_forward_pre_hook(enter, with_kwargs=True)
            yield layer.register_forward_hook(leave)
        return
    turns = _Turns(enter, leave)
    yield model.register_forward_pre_hook(turns.start)
    for entry in entries:
        yield entry.register_forward_pre_hook(turns.enter, with_kwargs=True)

    def ended(vectors: Tensor) -> None:
        turns.end(layout.by_text(layout.by_text(vectors, "end")))  # with the axes that layers read

    if layout.stream.end:
        yield attrgetter(layout.stream.end)(model).register_forward_pre_hook(
            lambda _module, args, kwargs: ended(vectors_in(args, kwargs)), with_kwargs=True
        )
    else:
        yield model.register_forward_hook(lambda _module, _args, output: ended(output[0]))


class _Turns:
    """Layers that no module runs: each begins with the call of its first module and ends when the next one begins."""

    def __init__(self, enter: Enter, leave: Leave) -> None:
        self._enter, self._leave = enter, leave
        self._running: nn.Module | None = None
        """The first module of the layer that is running."""

    def start(self, _model: nn.Module, _args: Any) -> None:
        """The model begins. An earlier pass may have ended before its last layer did."""
        self._running = None

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The first module of a layer begins."""
        vectors = vectors_in(args, kwargs)
        self.end(vectors)
        self._running = module
        replaced = self._enter(module, args, kwargs)
        if replaced is not None:
            vectors.copy_(vectors_in(*replaced))

    def end(self, vectors: Tensor) -> None:
        """The layer that is running, if there is one, has ended."""
        running, self._running = self._running, None
        if running is not None:
            self._leave(running, (), vectors)


_CHECK: ContextVar[Callable[[], None] | None] = ContextVar("check", default=None)


@contextlib.contextmanager
def cancelled_by(check: Callable[[], None]) -> Iterator[None]:
    """A context in which this thread's passes call a function at the beginning of every layer.

    Args:
        check: Raises an exception to leave the computation. Calls that use a model restore it, as after an interrupt.
    """
    token = _CHECK.set(check)
    try:
        yield
    finally:
        _CHECK.reset(token)


def check_cancelled() -> None:
    """Raise what the check of `cancelled_by` raises, if there is one."""
    if (check := _CHECK.get()) is not None:
        check()
