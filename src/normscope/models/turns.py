"""Calls that use one model: one after the other, and none leaves anything behind in the model."""

import contextlib
import queue
import threading
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
        self.changes = 0
        """How many changes of the model are in force."""

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """A context in which only this thread's calls use the model, and nobody else changes it.

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

    @contextlib.contextmanager
    def changed(self) -> Iterator[None]:
        """A context in which the model is changed. It begins once no call of another thread is in progress."""
        thread = threading.get_ident()
        is_mine = thread in self._threads or thread == self._alone
        with contextlib.nullcontext() if is_mine else self._lock:
            self.changes += 1
        try:
            yield
        finally:
            self.changes -= 1

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
            return _restoring(function, models)
        with self._lock:
            return _restoring(function, models)


def _restoring(function: Callable[[], T], models: Models) -> T:
    """Call a function that uses models, and undo our changes to them if it is left early."""
    implementations = [
        (module.config, module.config._attn_implementation)
        for model in models()
        for module in model.modules()
        if isinstance(module, PreTrainedModel)
    ]
    try:
        return function()
    except BaseException:
        for model in models():
            _remove_our_changes(model)
        for config, implementation in implementations:
            config._attn_implementation = implementation
        raise


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

    thread = threading.Thread(target=forward, name="normscope-forward", daemon=True)
    try:
        thread.start()
        while True:
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
