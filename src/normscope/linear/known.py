"""Which tensors of a pass do not depend on the tokens, and which may, because they were made where no function mode sees it.

Under `DisableTorchFunction`, in a compiled kernel, in another thread or through NumPy, a model may make tensors of its tokens
that have no note of how. A function that reads one beside the tokens' vectors is refused.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from normscope.linear.provenance import Made, known, made_of, writes
from normscope.linear.refusals import NotRecognisedError
from normscope.linear.rules import EMPTY, MOVES, Call, names, tensors_in

_LEAKS = names("numpy tolist __array__ __dlpack__")
"""Functions through which the numbers of a tensor leave torch."""

_FROM_NUMBERS = names("tensor as_tensor asarray new_tensor")
"""Functions that make a tensor of numbers."""

_MAY_ALIAS = names("detach __get__")
"""Functions whose results may share the memory of their tensor without being views of it."""


class KnownTensors:
    """Follows the tensors of a pass that do not depend on the tokens.

    Args:
        model: The model.
        refuse: Returns the error to raise, given the reason.
        proves: Whether the pass before this one was over the same texts.
    """

    def __init__(self, model: nn.Module, refuse: Callable[[str], NotRecognisedError], *, proves: bool) -> None:
        self._model, self._refuse, self._proves = model, refuse, proves
        self._has_empty = False
        """Whether there are tensors that are still to be written."""
        self._has_aliases = False
        """Whether `data` or `detach` has made tensors that share the memory of others."""
        self._has_leaked = False
        """Whether numbers of the tokens' vectors have left torch."""

    def note_new(self, call: Call, made: Any) -> Any:
        """The same tensor, which a function has made of nothing; it may be still to be written."""
        if not isinstance(made, Tensor):
            return made
        if call.name in EMPTY:
            made._is_empty = self._has_empty = True  # type: ignore[attr-defined]
            return made
        return known(made)

    def note_plain(self, call: Call, given: Sequence[Tensor], result: Any) -> Any:
        """The same result of a function of tensors that do not depend on the tokens, as far as that is known."""
        is_writing = writes(call)
        read = given[1:] if is_writing else given
        if all(map(self.has, read)) and not (self._has_leaked and call.name in _FROM_NUMBERS):
            known(result)
            if is_writing:
                known([call.args[0], *wholes(call.args[0])])
        if self._has_empty and call.name in MOVES:
            _note_part(call, result)
        return result

    def note(self, call: Call, result: Any) -> None:
        """Take the result of a function of the tokens' vectors."""
        if call.name in _MAY_ALIAS:
            is_alias = call.name == "detach" or getattr(call.function, "__self__", None) is Tensor.data
            if is_alias and isinstance(result, Tensor) and result is not call.args[0]:
                result._is_alias = self._has_aliases = True  # type: ignore[attr-defined]
        if self._has_empty and call.name in MOVES:
            _note_part(call, result)

    def require(self, call: Call, given: Sequence[Tensor], made: Made) -> None:
        """Check that all that a function reads beside the tokens' vectors does not depend on the tokens.

        Args:
            given: Its tensors.
            made: How its results are made.

        Raises:
            NotRecognisedError: If a tensor may depend on them, or a tensor is written through another that shares its memory.
        """
        if call.name in _LEAKS:
            self._has_leaked = True
        if self._has_aliases and writes(call) and hasattr(call.args[0], "_is_alias"):
            raise self._refuse(f"{call.name} writes into the memory of another tensor, by `data` or `detach`")
        if len(made.parents) == len(given):
            return
        unknown = [each for each in given if made_of(each) is None and not self.has(each)]
        if unknown and not (writes(call) and len(unknown) == 1 and unknown[0] is call.args[0]):
            raise self._refuse(
                f"{call.name} reads a tensor that was made where no function mode sees it, so it may depend on the tokens"
            )

    def has(self, tensor: Tensor) -> bool:
        """Whether a tensor that has not been made of the tokens' vectors does not depend on them.

        In inference mode, most of what a pass makes tells itself from what was there before. What another thread makes does
        not, but it is another tensor in every pass, so the proof finds it.
        """
        if hasattr(tensor, "_is_known") or not tensor.is_floating_point():
            return True
        if not tensor.is_inference() and (not self._proves or isinstance(tensor, nn.Parameter)):
            if not isinstance(tensor, nn.Parameter):
                known(tensor)
            return True
        if any(each is tensor for each in _tensors_of(self._model)):  # offloaded weights come with their layer
            known(tensor)
            return True
        return False


def wholes(part: Tensor) -> Sequence[Tensor]:
    """The tensor that a tensor is a part of; empty if that is not known."""
    whole: Tensor | None = getattr(part, "_whole", None) if part._base is None else part._base
    return () if whole is None else (whole,)


def _note_part(call: Call, result: Any) -> None:
    """Note that a tensor is a part of one that is still to be written: in inference mode, torch does not know it."""
    one = call.args[0] if call.args else None
    if isinstance(one, Tensor) and isinstance(result, Tensor) and result is not one:
        notes = vars(one)
        whole = one if "_is_empty" in notes else notes.get("_whole")
        if whole is not None:
            result._whole = whole  # type: ignore[attr-defined]


def _tensors_of(model: nn.Module) -> Iterator[Tensor]:
    """The parameters and buffers of a model, and what its modules hold besides."""
    for module in model.modules():
        for each in vars(module).values():
            yield from tensors_in(each)
