"""How tensors were made from the tokens' vectors: by which functions, and whether they kept the tokens apart.

Every tensor that depends on the tokens refers to a `Made`, which holds the function and its own parents but no tensor, so it
keeps nothing of a pass in memory.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from normscope.linear.rules import (
    CASTS,
    CLIPPED,
    DIVISIONS,
    INTO,
    MOVES,
    PRODUCTS,
    SUMS,
    TIMES,
    Call,
    names,
    tensors_in,
)

SAME = MOVES | CASTS | {"detach"}
"""Functions after which a tensor holds the same vectors."""

PAIRS = PRODUCTS | {"baddbmm", "baddbmm_"}
"""Products, which bring tokens together if both factors are made of them."""

AFFINE = SAME | TIMES | SUMS | {"linear", "addmm", "layer_norm", "native_layer_norm", "matmul", "__matmul__"}
"""Functions that a residual connection may pass through, as in a bottleneck."""

_LAYERS = frozenset({"linear", "addmm", "conv1d", "conv2d", "attention"})

_CROSSES = names(
    "conv_transpose1d roll flip cumsum cumprod unfold sort argsort gather index_select take_along_dim pad fft_fft fft_fftn "
    "fft_rfft max_pool1d avg_pool1d scaled_dot_product_attention"
)
"""Functions that may bring other tokens into a token's vector. A product of two tensors of the tokens is another."""


_INTO_WINDOWS = names("roll pad")
"""Functions that move whole tokens, into windows for example."""

_MIXES = names("roll cumsum cumprod unfold fft_fft fft_fftn fft_rfft max_pool1d avg_pool1d")
"""Those that add or move neighbours."""

_REDUCTIONS = names("sum mean amax amin var std logsumexp")
"""Functions that add other tokens up, unless they run over the last axis."""

_JOINED = names("cat concat concatenate")
"""Functions that may move tokens, unless they put tensors beside each other along the last axis, or pieces into order again."""

_SPLIT = names("split chunk tensor_split")

_APART = (
    CASTS
    | CLIPPED
    | DIVISIONS
    | SUMS
    | TIMES
    | names("view reshape flatten unflatten transpose permute unsqueeze squeeze expand contiguous clone detach")
    | names("where masked_fill masked_fill_ neg relu gelu silu tanh sigmoid")
)
"""Functions that keep tokens apart whatever they are given: of elements, and of shapes."""

_INDICES = (torch.int64, torch.int32)

_IN_PLACE = INTO | names("__iadd__ __imul__ __isub__ __itruediv__")


class Made:
    """How a tensor was made from the tokens' vectors."""

    __slots__ = ("by_token", "function", "number", "parents", "piece")

    def __init__(
        self, function: str, parents: Sequence["Made"] = (), *, by_token: bool = True, number: float | Tensor = 1.0
    ) -> None:
        self.function = function
        self.parents = tuple(parents)
        self.by_token = by_token
        """Whether the function makes each token's vector from that token's alone."""
        self.piece: tuple[int, int, int] | None = None
        """Of a piece of a tensor: its number, how many there are, and along which axis."""
        self.number = number
        """What the function multiplies by, if it is one number. A tensor without axes is not read: the host may wait."""

    def unscaled(self) -> "Made":
        """The vectors that these are, moved or times a number."""
        made = self
        while len(made.parents) == 1 and (made.function in SAME or made.function in TIMES):
            (made,) = made.parents
        return made

    @property
    def multiple(self) -> float | Tensor:
        """The number by which these vectors have been multiplied since a function that does more than moving and scaling."""
        made, number = self, self.number
        while len(made.parents) == 1 and (
            made.function in SAME or made.function in TIMES or made.function in DIVISIONS
        ):
            (made,) = made.parents
            number = number * made.number
        return number

    def comes_from(self, wanted: "Made", *, moved: bool = False) -> bool:
        """Whether the vectors come from others, each token's from its own.

        Args:
            moved: Whether tokens may have been moved.
        """

        def passes(made: Made) -> bool:
            return made is self or made.by_token or made.function in PAIRS or (moved and made.function in _INTO_WINDOWS)

        return any(each is wanted for each in ancestors(self, passes))

    def shared_with(self, carried: "Made", *, moved: bool = False) -> "Made | None":
        """What these vectors come from that a residual connection carries, or an affine map of it; None if there is none.

        Args:
            carried: What it carries.
            moved: Whether tokens may have been moved since.
        """

        def is_affine(made: Made) -> bool:
            return made.by_token and made.function in AFFINE and (made.function not in TIMES or len(made.parents) == 1)

        start = carried.unscaled()
        return next((each for each in ancestors(start, is_affine) if self.comes_from(each, moved=moved)), None)

    @property
    def is_of_scores(self) -> bool:
        """Whether these are numbers of pairs of tokens, or made of such without a linear layer or attention in between."""
        made = ancestors(self, lambda made: made.function not in _LAYERS)
        return any(each.function in PAIRS and not each.by_token for each in made)

    def reads(self, wanted: "Made", before: "Made | None" = None) -> bool:
        """Whether the vectors come from others in any way.

        Args:
            before: Vectors that do not, at which the search ends.
        """
        return any(each is wanted for each in ancestors(self, lambda made: made is not before))

    def functions_since(self, wanted: "Made") -> frozenset[str]:
        """The functions that make these vectors from multiples of others, without those that keep tokens apart anyway."""
        between = ancestors(self, lambda made: made.unscaled() is not wanted)
        return frozenset(each.function for each in between if each.unscaled() is not wanted) - _APART

    def reads_other_tokens(self, wanted: "Made", *, chosen: bool = True, moved: bool = False) -> bool:
        """Whether, on some way from other vectors to these, a function brings other tokens in.

        Args:
            chosen: Whether functions count that may choose tokens alone, as experts do.
            moved: Whether functions do not count that move tokens.
        """
        reached = {wanted: True}

        def reaches(made: Made) -> bool:
            waiting = [made]
            while waiting:
                each = waiting[-1]
                missing = [] if each in reached else [parent for parent in each.parents if parent not in reached]
                if not missing:
                    reached[each] = reached.get(each) or any(
                        reached[parent] for parent in each.parents if parent in reached
                    )
                    waiting.pop()
                waiting += missing
            return reached[made]

        if not reaches(self):
            return False
        between = ancestors(self, lambda made: made is not wanted)
        mixing = [each for each in between if not each.by_token and each is not wanted and reached.get(each)]
        mixing = [each for each in mixing if not (moved and each.function in _INTO_WINDOWS)]
        return any(chosen or each.function.startswith("conv") or each.function in _MIXES for each in mixing)


def ancestors(start: Made, passes: Callable[[Made], bool]) -> Iterable[Made]:
    """Vectors and what they come from, nearest first, through functions that pass."""
    seen, waiting = {start}, [start]
    for each in waiting:
        yield each
        if passes(each):
            new = [parent for parent in each.parents if parent not in seen]
            seen.update(new)
            waiting += new


def made_of(tensor: object) -> Made | None:
    """How a tensor was made from the tokens' vectors; None for one that does not depend on them, and for anything else."""
    return getattr(tensor, "_made", None)


def begin(tensor: Tensor, function: str = "tokens") -> Tensor:
    """The same tensor, noted as holding the tokens' vectors."""
    tensor._made = Made(function)  # type: ignore[attr-defined]
    return tensor


def begin_vectors(inputs: Mapping[str, object]) -> None:
    """Note which inputs of a model hold the tokens' vectors: those of shape (text, token, dimension)."""
    known([*inputs.values()])
    for each in inputs.values():
        if isinstance(each, Tensor) and each.is_floating_point() and each.ndim == 3:
            begin(each)


def known(values: Any) -> Any:
    """The same tensors, noted as independent of the tokens."""
    for each in (values,) if isinstance(values, Tensor) else tensors_in(values):
        each._is_known = True  # type: ignore[attr-defined]
    return values


def noted(call: Call, given: Sequence[Tensor]) -> Made | None:
    """How a function's result is made of its tensors; None if none of them depends on the tokens."""
    parents = [made for each in given if (made := made_of(each)) is not None]
    if not parents:
        return None
    return Made(call.name, parents, by_token=_by_token(call, given, len(parents)), number=number_in(call))


def number_in(call: Call) -> float | Tensor:
    """The number by which a function multiplies a tensor; 1 if it does not, or not by the same number everywhere."""
    if len(call.args) != 2 or not (call.name in TIMES or call.name in DIVISIONS):
        return 1.0
    numbers = [each for each in call.args if not isinstance(each, Tensor) or (not each.ndim and made_of(each) is None)]
    if call.name in DIVISIONS:
        return 1 / call.args[1] if numbers and numbers[-1] is call.args[1] else 1.0
    return numbers[0] if numbers else 1.0


def _by_token(call: Call, given: Sequence[Tensor], of_tokens: int) -> bool:
    name = call.name
    if name in PAIRS:
        return of_tokens < 2
    if name.startswith("conv") and len(given) > 1:
        return given[1].shape[2:].numel() == 1
    if name in _REDUCTIONS:
        return _is_last_axis(call, given[0].ndim)
    if name in _JOINED:
        return of_tokens < 2 or _is_last_axis(call, given[0].ndim) or _joins_pieces(call, given)
    if name == "pad":
        return not any(call.kwargs.get("pad", call.args[1] if len(call.args) > 1 else (1,)))
    if name == "__getitem__":
        return not any(each.dtype in _INDICES for each in tensors_in(call.args[1]))
    return name not in _CROSSES


def _is_last_axis(call: Call, axes: int) -> bool:
    """Whether a function runs along the last axis, that of dimensions, and no other."""
    dim = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else None)
    dim = dim[0] if isinstance(dim, tuple | list) and len(dim) == 1 else dim
    return dim in (-1, axes - 1)


def _joins_pieces(call: Call, given: Sequence[Tensor]) -> bool:
    """Whether a function puts all pieces of one tensor into order again, as norms of single heads do."""
    axis = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else 0)
    found = [_piece_of(made_of(each)) for each in given]
    pieces = [None if each is None else each.piece for each in found]
    wholes = {None if each is None else each.parents for each in found}
    return len(wholes) == 1 and pieces == [(number, len(given), axis % given[0].ndim) for number in range(len(given))]


def _piece_of(made: Made | None) -> Made | None:
    """The only piece that a tensor was made of without moving anything; None if there are several, or none."""
    if made is None:
        return None
    before = ancestors(made, lambda each: each.piece is None and each.by_token and each.function not in MOVES)
    pieces = [each for each in before if each.piece is not None]
    return pieces[0] if len(pieces) == 1 else None


def keep(made: Made | None, results: Iterable[Tensor]) -> None:
    """Note how tensors were made; ids and masks are left out."""
    for each in results:
        if each.is_floating_point() or each.is_complex():
            each._made = made  # type: ignore[attr-defined]


def keep_result(call: Call, made: Made, result: object) -> None:
    """Note how the result of a function was made, whose pieces are told apart."""
    results = [*tensors_in(result)]
    if call.name not in _SPLIT:
        keep(made, results)
        return
    axis = call.kwargs.get("dim", call.args[2] if len(call.args) > 2 else 0)
    for number, each in enumerate(results):
        piece = Made(call.name, made.parents)
        piece.piece = number, len(results), axis % each.ndim
        keep(piece, [each])


def writes(call: Call) -> bool:
    """Whether a function writes into its first argument."""
    return (call.name in _IN_PLACE or call.in_place) and bool(call.args)
