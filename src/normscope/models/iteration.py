"""Iterates over the blocks of a forward pass."""

import queue
import threading
from collections.abc import Callable, Iterator

from normscope.models.block import AttentionBlock
from normscope.models.forward_pass import StopForward, Visitor


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
