"""The blocks of a forward pass as an iterator."""

import queue
import threading
from collections.abc import Iterator, Mapping

from torch import Tensor

from normscope.models.block import AttentionBlock
from normscope.models.observer import Observer, StopForward


def observe_blocks(observer: Observer, inputs: Mapping[str, Tensor]) -> Iterator[AttentionBlock]:
    """The blocks of one forward pass as an iterator: the model advances only as blocks are asked for.

    The pass runs in a thread of its own that waits while a block is being looked at. Leaving the loop early ends it.
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
                observer.run(inputs, hand_over)
            answers.put(None)
        except BaseException as error:
            answers.put(error)

    thread = threading.Thread(target=forward, name="normscope-forward", daemon=True)
    thread.start()
    try:
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
        thread.join()
