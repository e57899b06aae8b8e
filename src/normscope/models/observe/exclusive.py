"""One call at a time uses a model, and none leaves anything behind in it."""

import functools
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from torch import nn
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError
from normscope.linear.layer_calls import LayerCalls
from normscope.linear.rules import HeldFixed, active_modes, leave_modes
from normscope.models.blocks.block import AttentionBlock
from normscope.models.observe.observer import Visitor
from normscope.models.stored.model_code import StopForward

T = TypeVar("T")
Models = Callable[[], Iterable[PreTrainedModel]]


class Exclusive:
    """Lets one call at a time use a model, and refuses others in the meantime.

    An interrupt may come at any point of a call: our changes to the model are undone here once more, whatever had been undone
    by then.
    """

    # A lock would stay taken if an interrupt came between `acquire` and `try`. No call stays in a list that is only changed
    # inside of `try`.

    def __init__(self) -> None:
        self._calls: list[object] = []
        """The call that uses the model, and behind it those that are being refused."""
        self._running: tuple[int, Callable[[], None]] | None = None
        """The thread in which a call is running, and what undoes our changes."""
        _ALL.add(self)

    def call(self, function: Callable[[], T], models: Models) -> T:
        """Call a function that uses the model.

        Args:
            function: What to call.
            models: Returns the model, and those around it.

        Raises:
            InputError: If another call is using the model.
        """
        this = object()
        try:
            self._calls.append(this)
            if self._calls[0] is not this:
                raise InputError(
                    "model: another call, or a loop over its blocks, is using it; let that end first, or load or wrap the "
                    "model a second time"
                )
            return self._restoring(function, models)
        finally:
            if this in self._calls:
                self._calls.remove(this)

    def blocks(self, run: Callable[[Visitor], None], models: Models) -> Iterator[AttentionBlock]:
        """Iterate over the blocks of a pass; until the loop ends, it is a call that uses the model.

        Args:
            run: See `observe_blocks`.
            models: See `call`.

        Raises:
            InputError: If another call is using the model.
        """
        yield from observe_blocks(lambda visit: self.call(lambda: run(visit), models))

    def _restoring(self, function: Callable[[], T], models: Models) -> T:
        """Call a function that uses models, and undo our changes to them if it is left early."""
        implementations = [
            (module.config, module.config._attn_implementation)
            for model in models()
            for module in model.modules()
            if isinstance(module, PreTrainedModel)
        ]

        modes = active_modes()

        def undo() -> None:
            for model in models():
                _remove_our_changes(model)
            for config, implementation in implementations:
                config._attn_implementation = implementation

        try:
            self._running = threading.get_ident(), undo
            return function()
        except BaseException:
            leave_modes(modes)
            undo()
            raise
        finally:
            self._running = None

    def after_fork(self) -> None:
        """Free the model in the child of a fork: of the threads of its parent, it has only the one that has forked.

        A call that ran in another thread has stopped in the middle in this copy of the model, and is undone here.
        """
        if self._running is not None and self._running[0] == threading.get_ident():
            del self._calls[1:]
            return
        stopped, self._running, self._calls = self._running, None, []
        if stopped is not None:
            stopped[1]()


_ALL: "weakref.WeakSet[Exclusive]" = weakref.WeakSet()


def _after_fork() -> None:
    """Renew what threads of the parent may have held when they forked, and can never release in the child."""
    for each in [*_ALL]:
        each.after_fork()
    if sys.version_info < (3, 12):  # in which a property holds a lock while it is computed
        ours = [module for name, module in [*sys.modules.items()] if name.partition(".")[0] == "normscope"]
        classes = [each for module in ours for each in [*vars(module).values()] if isinstance(each, type)]
        for attribute in [each for kind in classes for each in [*vars(kind).values()]]:
            if isinstance(attribute, functools.cached_property):
                vars(attribute)["lock"] = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _remove_our_changes(model: nn.Module) -> None:
    for module in model.modules():
        for hooks, marks in (
            (module._forward_hooks, module._forward_hooks_with_kwargs),
            (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs),
        ):
            for number in [number for number, hook in hooks.items() if _is_ours(hook)]:
                del hooks[number]
                marks.pop(number, None)
    LayerCalls.give_back(model)
    HeldFixed.give_back(model)
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.requires_grad_(False)


def _is_ours(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("normscope.")


def observe_blocks(run: Callable[[Visitor], None]) -> Iterator[AttentionBlock]:
    """Iterate over the blocks of one forward pass, which advances only when the next block is requested.

    The pass runs in a separate thread, which waits while the caller uses a block. Leaving the loop early ends the pass.

    Args:
        run: Runs the pass, and calls a visitor with each block.
    """
    requests: queue.SimpleQueue[bool] = queue.SimpleQueue()
    answers: queue.SimpleQueue[AttentionBlock | BaseException | None] = queue.SimpleQueue()

    def hand_over(block: AttentionBlock) -> None:
        answers.put(block)
        if not requests.get():
            raise StopForward

    def forward() -> None:
        try:
            if requests.get():
                run(hand_over)
            answers.put(None)
        except BaseException as error:
            answers.put(error)

    thread, process = threading.Thread(target=forward, name="normscope-forward", daemon=True), os.getpid()
    try:
        thread.start()
        while True:
            if os.getpid() != process:
                raise InputError(
                    "blocks: this process was forked inside a loop over blocks; begin the loop again in it"
                )
            requests.put(True)
            answer = answers.get()
            if answer is None:
                return
            if isinstance(answer, BaseException):
                raise answer
            yield answer
            del answer
    finally:
        requests.put(False)
        if thread.ident is not None:
            thread.join()
