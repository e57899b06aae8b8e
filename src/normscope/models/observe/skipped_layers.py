"""Passes that begin in the middle of a model: layers below a change return what they returned without it."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from torch import nn

from normscope.models.observe.forward_pass import copy_of


class LayerOutput(NamedTuple):
    """What one layer returned in an earlier pass over the same inputs."""

    layer: int
    """Counted from 1."""
    output: Any
    """A tensor, or a tuple that begins with the hidden vectors."""


@contextlib.contextmanager
def skipped(
    entries: Sequence[nn.Module], last: LayerOutput, running: Callable[[], int], *, copied: bool
) -> Iterator[None]:
    """While the context is open, the first layers compute nothing and return the known output of the last of them.

    Their hooks are called as usual. A module that serves as several layers computes again once it runs as a later one.

    Args:
        entries: The modules of all layers, in order.
        last: The last layer to skip.
        running: The number of the layer that runs.
        copied: Whether later layers change what they read in place and therefore get a copy.
    """
    with contextlib.ExitStack() as restored:
        for module in {id(entry): entry for entry in entries[: last.layer]}.values():
            own = vars(module).get("forward")  # those of offloaded weights, for example
            restored.callback(setattr, module, "forward", own) if own else restored.callback(delattr, module, "forward")
            module.forward = _forward(module.forward, last, running, copied=copied)
        yield


def _forward(
    computed: Callable[..., Any], last: LayerOutput, running: Callable[[], int], *, copied: bool
) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        if running() > last.layer:
            return computed(*args, **kwargs)
        return copy_of(last.output) if copied else last.output

    return forward
