"""Calls that use one model: one after the other, and none leaves anything behind in the model."""

import contextlib
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
from normscope.models.block import AttentionBlock
from normscope.models.forward_pass import StopForward, Visitor

T = TypeVar("T")
Models = Callable[[], Iterable[PreTrainedModel]]


class Turns:
    """Lets one call at a time use a model. Calls in other threads wait.

    A call in the middle of another one in the same thread, such as one in the body of a loop over blocks, would wait for
    itself, so it is refused. An interrupt may come at any point of a call: our changes to the model are undone here once more,
    whatever had been undone by then.
    """

    # Only the lock's own `with` statement and plain `try` statements are safe from interrupts: one that comes between the
    # return of a context manager's `__enter__` and the body of its statement would leave the model taken.

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: set[int] = set()
        self._alone: int | None = None
        """The thread that has all turns."""
        self._running: tuple[int, Callable[[], None]] | None = None
        """The thread in which a call is running, and what undoes our changes."""
        _ALL.add(self)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """A context in which only this thread's calls use the model.

        Raises:
            InputError: If this thread is in the middle of a call.
        """
        thread = self._refuse_nested()
        with self._lock:
            self._alone = thread
            try:
                yield
            finally:
                self._alone = None

    def call(self, function: Callable[[], T], models: Models) -> T:
        """Call a function once no other call uses the model.

        Args:
            function: What to call.
            models: Returns the model, and those around it.

        Raises:
            InputError: If this thread is in the middle of another call.
        """
        thread = self._refuse_nested()
        try:
            self._threads.add(thread)
            return self._in_turn(thread, function, models)
        finally:
            self._threads.discard(thread)

    def blocks(self, run: Callable[[Visitor], None], models: Models) -> Iterator[AttentionBlock]:
        """Iterate over the blocks of a pass once no other call uses the model.

        Args:
            run: See `observe_blocks`.
            models: See `call`.

        Raises:
            InputError: If this thread is in the middle of another call.
        """
        thread = self._refuse_nested()
        try:
            self._threads.add(thread)
            yield from observe_blocks(lambda visit: self._in_turn(thread, lambda: run(visit), models))
        finally:
            self._threads.discard(thread)

    def _refuse_nested(self) -> int:
        thread = threading.get_ident()
        if thread in self._threads:
            raise InputError(
                "model: it is already being observed in this thread; finish or close the other loop over its blocks first, or "
                "load or wrap it a second time"
            )
        return thread

    def _in_turn(self, thread: int, function: Callable[[], T], models: Models) -> T:
        if thread == self._alone:
            return self._restoring(function, models)
        with self._lock:
            return self._restoring(function, models)

    def _restoring(self, function: Callable[[], T], models: Models) -> T:
        """Call a function that uses models, and undo our changes to them if it is left early."""
        implementations = [
            (module.config, module.config._attn_implementation)
            for model in models()
            for module in model.modules()
            if isinstance(module, PreTrainedModel)
        ]

        def undo() -> None:
            for model in models():
                _remove_our_changes(model)
            for config, implementation in implementations:
                config._attn_implementation = implementation

        try:
            self._running = threading.get_ident(), undo
            return function()
        except BaseException:
            undo()
            raise
        finally:
            self._running = None

    def after_fork(self) -> None:
        """Give the child of a fork its turn: of the threads of its parent, it has only the one that has forked.

        A call that ran in another thread has stopped in the middle in this copy of the model, and is undone here.
        """
        thread = threading.get_ident()
        self._lock = threading.Lock()
        self._threads &= {thread}
        if self._alone == thread:
            self._lock.acquire()
        else:
            self._alone = None
        stopped, self._running = self._running, None
        if stopped is not None and stopped[0] != thread:
            stopped[1]()


_ALL: "weakref.WeakSet[Turns]" = weakref.WeakSet()


def _after_fork() -> None:
    """Renew what threads of the parent may have held when they forked, and can never release in the child."""
    for turns in [*_ALL]:
        turns.after_fork()
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
