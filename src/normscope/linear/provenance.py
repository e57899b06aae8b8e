"""How tensors were made from the tokens' vectors: by which functions, and whether they kept the tokens apart.

Every tensor that depends on the tokens refers to a `Made`, which holds the function and its own parents but no tensor, so it
keeps nothing of a pass in memory.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from normscope.linear.rules import CASTS, MOVES, PRODUCTS, SUMS, TIMES, Call, names, tensors_in

SAME = MOVES | CASTS | {"detach"}
"""Functions after which a tensor holds the same vectors."""

PAIRS = PRODUCTS | {"baddbmm", "baddbmm_"}
"""Products, which bring tokens together if both factors are made of them."""

AFFINE = SAME | TIMES | SUMS | {"linear", "addmm", "layer_norm", "matmul", "__matmul__"}
"""Functions that a residual connection may pass through, as in a bottleneck."""

_LAYERS = frozenset({"linear", "addmm", "conv1d", "conv2d"})

_CROSSES = names(
    "conv_transpose1d roll flip cumsum cumprod unfold sort argsort gather index_select take_along_dim pad fft_fft fft_fftn "
    "fft_rfft max_pool1d avg_pool1d scaled_dot_product_attention"
)
"""Functions that may bring other tokens into a token's vector. A product of two tensors of the tokens is another."""


_REDUCTIONS = names("sum mean amax amin var std logsumexp")
"""Functions that add other tokens up, unless they run over the last axis."""

_JOINED = names("cat concat concatenate")
"""Functions that may move tokens, unless they put tensors beside each other along the last axis."""

_INDICES = (torch.int64, torch.int32)


class Made:
    """How a tensor was made from the tokens' vectors."""

    __slots__ = ("by_token", "function", "parents")

    def __init__(self, function: str, parents: Sequence["Made"] = (), *, by_token: bool = True) -> None:
        self.function = function
        self.parents = tuple(parents)
        self.by_token = by_token
        """Whether the function makes each token's vector from that token's alone."""

    def unscaled(self) -> "Made":
        """The vectors that these are, moved or times a number."""
        made = self
        while len(made.parents) == 1 and (made.function in SAME or made.function in TIMES):
            (made,) = made.parents
        return made

    def comes_from(self, wanted: "Made") -> bool:
        """Whether the vectors come from others, each token's from its own."""

        def passes(made: Made) -> bool:
            return made is self or made.by_token or made.function in PAIRS

        return any(each is wanted for each in _ancestors(self, passes))

    def shared_with(self, carried: "Made") -> "Made | None":
        """What these vectors come from that a residual connection carries, or an affine map of it; None if there is none."""

        def is_affine(made: Made) -> bool:
            return made.by_token and made.function in AFFINE and (made.function not in TIMES or len(made.parents) == 1)

        start = carried.unscaled()
        return next((each for each in _ancestors(start, is_affine) if self.comes_from(each)), None)

    @property
    def is_of_scores(self) -> bool:
        """Whether these are numbers of pairs of tokens, or computed from such numbers: a product, and no linear layer since."""
        made = _ancestors(self, lambda made: made.function not in _LAYERS)
        return any(each.function in PAIRS and not each.by_token for each in made)

    def reads(self, wanted: "Made") -> bool:
        """Whether the vectors come from others in any way."""
        return any(each is wanted for each in _ancestors(self, lambda _made: True))

    def reads_other_tokens(self, wanted: "Made") -> bool:
        """Whether, on some way from other vectors to these, a function brings other tokens in."""
        reached = {wanted: True}

        def reaches(made: Made) -> bool:
            waiting = [made]
            while waiting:
                each = waiting[-1]
                missing = [parent for parent in each.parents if parent not in reached]
                if each in reached or not missing:
                    reached.setdefault(each, any(reached[parent] for parent in each.parents))
                    waiting.pop()
                waiting += missing if each not in reached else []
            return reached[made]

        if not reaches(self):
            return False
        between = _ancestors(self, lambda made: made is not wanted)
        return any(not each.by_token and each is not wanted and reached[each] for each in between if each in reached)


def _ancestors(start: Made, passes: Callable[[Made], bool]) -> Iterable[Made]:
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


def noted(call: Call, given: Sequence[Tensor]) -> Made | None:
    """How a function's result is made of its tensors; None if none of them depends on the tokens."""
    parents = [made for each in given if (made := made_of(each)) is not None]
    return Made(call.name, parents, by_token=_by_token(call, given, len(parents))) if parents else None


def _by_token(call: Call, given: Sequence[Tensor], of_tokens: int) -> bool:
    name = call.name
    if name in PAIRS:
        return of_tokens < 2
    if name.startswith("conv") and len(given) > 1:
        return given[1].shape[2:].numel() == 1
    if name in _REDUCTIONS:
        return _is_last_axis(call, given[0].ndim)
    if name in _JOINED:
        return of_tokens < 2 or _is_last_axis(call, given[0].ndim)
    if name == "__getitem__":
        return not any(each.dtype in _INDICES for each in tensors_in(call.args[1]))
    return name not in _CROSSES


def _is_last_axis(call: Call, axes: int) -> bool:
    """Whether a function runs along the last axis, that of dimensions, and no other."""
    dim = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else None)
    dim = dim[0] if isinstance(dim, tuple | list) and len(dim) == 1 else dim
    return dim in (-1, axes - 1)


def keep(made: Made | None, results: Iterable[Tensor]) -> None:
    """Note how tensors were made; ids and masks are left out."""
    for each in results:
        if each.is_floating_point() or each.is_complex():
            each._made = made  # type: ignore[attr-defined]
