"""What the layers of a model returned in an earlier pass over the same inputs, from which later passes begin."""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from normscope.linear.layer_calls import LayerCall
from normscope.linear.provenance import begin


class LayerOutput(NamedTuple):
    """What one layer returned in an earlier pass over the same inputs."""

    layer: int
    """Counted from 1."""
    output: Any
    """A tensor, or a tuple or mapping that begins with the hidden vectors."""


@dataclasses.dataclass(eq=False)
class LayerOutputs:
    """Runs the layers of a pass, keeps what some of them return, and leaves out those up to one that has run before."""

    kept: dict[int, Any] | None = None
    """Receives what each of its layers returns. A value stays None if no pass can begin after the layer, because no module runs
    it or because layers leave more for later ones than what they return."""
    after: LayerOutput | None = None
    """What the last layer that does not run again returned, in a pass without changes up to there."""

    def run(self, number: int, call: LayerCall, run: Callable[[], Any]) -> Any:
        """What a layer returns, as `LayerCalls.run`."""
        if self.kept is not None and _shares_state(call):
            self.kept.update(dict.fromkeys(self.kept))
            self.kept = None
        if self.after is not None and number <= self.after.layer:
            return _copied(self.after.output)
        output = run()
        if self.kept is not None and number in self.kept:
            self.kept[number] = _copied(output)
        return output


def _copied(output: Any) -> Any:
    """What a layer returned, with a copy of the hidden vectors, which a model may change in place."""
    if isinstance(output, Tensor):
        return begin(output.clone())
    if isinstance(output, Mapping):
        made: Any = copy.copy(output)
        first = next(iter(output))
        made[first] = begin(output[first].clone())
        return made
    return begin(output[0].clone()), *output[1:]


def _shares_state(call: LayerCall) -> bool:
    """Whether a layer is given an object in which it may leave something for later layers, keys and values for example."""
    return any(isinstance(value, dict | list) for value in (*call.args, *call.kwargs.values()))
