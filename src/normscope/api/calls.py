"""What happens to a call of the Python interface before its own code runs."""

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from normscope.api.choices import require_loaded

P = ParamSpec("P")
R = TypeVar("R")


def in_turn(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose argument `model` it observes: calls in several threads run one after the other, see `Turns`.

    Raises:
        InputError: If `model` is not from `load` or `wrap`, or this thread is observing it already.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        model = signature.bind(*args, **kwargs).arguments["model"]
        require_loaded(model)
        return model.in_turn(lambda: function(*args, **kwargs))

    return call
