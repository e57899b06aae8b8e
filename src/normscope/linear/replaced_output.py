"""Another output of W_O in a layer that is run again."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from normscope.errors import InputError
from normscope.linear.layer_calls import LayerCalls
from normscope.linear.rules import COMPOSED, opened


@contextlib.contextmanager
def output_replaced(calls: LayerCalls, output: tuple[str, int, int], new: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Context in which one layer runs whose W_O gives something else, and no layer is counted.

    Args:
        calls: The layers of the model.
        output: The call of W_O; see `WholeLayers.output`.
        new: Returns what replaces its result.

    Raises:
        InputError: On exit, if the layer has not made this call.
    """
    with calls.paused(), _Replaced(*output, new) as replaced:
        yield
    if replaced.left > 0:
        raise InputError(
            f"a layer cannot be run again with other attention outputs: it called {output[0]} fewer than {output[1]} times "
            "with one text of the batch"
        )


class _Replaced(TorchFunctionMode):
    """Replaces the result of one call of a function."""

    def __init__(self, function: str, number: int, later: int, new: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._function, self._number, self.left, self._new = function, number, later + 1, new

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(function, "__name__", ""), kwargs or {}
        if name in COMPOSED:
            with self:
                return opened(function)(*args, **kwargs)
        result = function(*args, **kwargs)
        self._number -= name == self._function
        self.left -= self._number <= 0
        return self._new(result) if self._number <= 0 and self.left == 0 else result
