"""Where a model's code multiplies attention weights by values: a call of fused attention, or a product with a softmax."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from normscope.linear.computed import Computed, computed
from normscope.linear.held_attention import FusedCalls, named
from normscope.linear.provenance import PAIRS, SAME, Made, made_of, number_in
from normscope.linear.refusals import NotRecognisedError
from normscope.linear.rules import BESIDE, DIVISIONS, MOVES, PRODUCTS, SUMS, TIMES, Call, Stack, names
from normscope.maths.attention import AttentionCall, attention

_OF_WEIGHTS = SAME | TIMES | names("masked_fill masked_fill_ nan_to_num where")
"""Functions after which attention weights are still attention weights."""

_SOFTMAX = names("softmax _softmax _safe_softmax")
_EXPONENTIALS = names("exp exp_ exp2 exp2_ log_softmax _log_softmax")
"""Functions of which a softmax may be made, whose weights are not recognised."""

_OF_SCORES = _OF_WEIGHTS | _SOFTMAX | SUMS | DIVISIONS | BESIDE | names("clamp clamp_ clip max maximum tanh")
"""Functions after which scores are still scores, or weights that are computed from them."""


class Scores(NamedTuple):
    """Products of queries and keys, which may be a term of the scores."""

    query: Float[Tensor, "*texts_heads query head_dim"]
    key: Float[Tensor, "*texts_heads key head_dim"]
    of_query: Made | None
    of_key: Made | None
    reads: Sequence[Computed]
    """How queries and keys were computed."""
    scale: float | Tensor = 1.0
    """The number by which they have been multiplied since."""


class Numbers(NamedTuple):
    """What attention has computed, by text and head."""

    call: AttentionCall
    """What it was given, with keys and values for each head of queries."""
    log_normaliser: Float[Tensor, "text head query"] | None = None
    """None if the weights are given."""
    given: Float[Tensor, "text head query key"] | None = None
    """The weights that the model's own code has multiplied by the values; None if it calls fused attention."""
    to_nowhere: Float[Tensor, "text head query"] | None = None
    """1 − Σ_j α_ij of given weights; None if they add up to one."""


@dataclasses.dataclass(eq=False)
class Attended:
    """Weights times values."""

    query: Made | None
    """None if every text's queries are the same, as where a head pools tokens."""
    value: Made
    queries: int
    keys: int
    """Numbers of queries and of keys of each row of weights."""
    nothing: Callable[[], Tensor]
    """Computes zeros with the axes of what attention returns."""
    numbers: Callable[[int], Numbers | None]
    """Returns queries, keys, values and weights, given the number of texts; None if they are unknown."""
    by_head: Callable[[Tensor, int], Float[Tensor, "text head query head_dim"]]
    """Gives a tensor with the axes of what attention returns those of texts, heads, queries and dimensions."""
    axis: int = -2
    """The axis of queries in what attention returns."""
    result: Stack = dataclasses.field(default_factory=lambda: Stack(None))
    """What attention returns."""
    reads: Callable[[], Sequence[Computed]] = tuple
    """Returns how queries, keys and values were computed, with tokens and dimensions as their last axes; empty if unknown."""
    places: Int[Tensor, "text query head"] | None = None
    """Which of all rows of what attention returns is each token's in each head, if they are not in order; see `windows`."""

    def zeros(self, texts: int) -> Float[Tensor, "text head query head_dim"]:
        """Zeros for what attention returns, by head.

        Args:
            texts: Number of texts.
        """
        zeros = self.nothing().movedim(self.axis, -2)
        if self.places is None:
            return zeros.reshape(texts, -1, *zeros.shape[-2:])
        return zeros.reshape(-1, zeros.shape[-1])[self.places].transpose(1, 2)

    def as_returned(self, heads: Float[Tensor, "source text head query head_dim"]) -> Tensor:
        """Vectors of heads with the axes of what attention returns."""
        shape = self.nothing().movedim(self.axis, -2).shape
        if self.places is not None:
            rows = heads.new_empty(len(heads), self.places.numel(), shape[-1])
            rows[:, self.places] = heads.transpose(2, 3)
            heads = rows
        return heads.reshape(-1, *shape).movedim(-2, self.axis)

    def scaled(self, factor: Tensor) -> None:
        """Multiply weights by a factor for each query of each head, computed from their scores, as a sink's.

        Raises:
            NotRecognisedError: If the factor differs by dimension.
        """
        numbers = self.numbers
        if factor.shape[-1] != 1:
            raise NotRecognisedError(
                "a factor on weighted values that is computed from their scores differs by dimension"
            )

        def weighted(texts: int) -> Numbers | None:
            made = numbers(texts)
            if made is None or made.given is None:
                return None
            by_query = self.by_head(factor, texts)
            return made._replace(given=made.given * by_query, to_nowhere=1 - by_query.squeeze(-1))

        self.numbers = weighted


class WeightedValues:
    """Recognises functions that multiply weights by values, in the order in which a model calls them.

    Args:
        again: Calls a function under the mode.
        refuse: Returns the error to raise, given the reason.
        untouched: Whether fused attention gives what torch's own kernel does.
    """

    def __init__(
        self,
        again: Callable[..., Tensor],
        refuse: Callable[[str], NotRecognisedError],
        *,
        untouched: bool = False,
    ) -> None:
        self._again, self._refuse, self._untouched = again, refuse, untouched
        self._calls = FusedCalls()
        self._unused: dict[object, str] = {}
        """Softmaxes of scores that have not multiplied anything yet: the line of the model's code."""
        self._unread = set[object]()
        """Those that no function has read either, so that they make no difference."""

    @property
    def unused(self) -> list[str]:
        """The lines of softmaxes of scores that have multiplied nothing, though something has read them."""
        return [line for softmax, line in self._unused.items() if softmax not in self._unread]

    def read(self, call: Call, given: Sequence[Tensor]) -> None:
        """Note which softmaxes a function reads, other than to move them or to give them a type."""
        if call.name not in SAME:
            self._unread -= {each._softmax for each in given if hasattr(each, "_softmax")}

    def end_pass(self) -> None:
        """Check that nothing is left over.

        Raises:
            NotRecognisedError: If a softmax of scores has multiplied nothing.
        """
        for place in self.unused:
            raise NotRecognisedError(
                f"attention weights multiply no values as the softmax gave them, so their block cannot be measured ({place})"
            )

    def note(self, call: Call, given: Sequence[Tensor], made: Made, result: Tensor, line: Callable[[], str]) -> None:
        """Remember which tensors are scores and attention weights."""
        if call.name in PAIRS and not made.by_token:
            result._scores = _scores(call, given)  # type: ignore[attr-defined]
        elif call.name in _OF_SCORES:
            scores = next((each._scores for each in given if hasattr(each, "_scores")), None)
            if scores is not None:
                result._scores = _scores_after(scores, call, given, result)  # type: ignore[attr-defined]
        note_weights(call, given, result, made_of)
        if call.name in _EXPONENTIALS and made.is_of_scores:
            self._unused[object()] = line()
        if call.name in _SOFTMAX and (made.is_of_scores or _is_of_pairs(result)):
            self._unused[result._softmax] = line()  # type: ignore[attr-defined]
            self._unread.add(result._softmax)  # type: ignore[attr-defined]

    def of(self, call: Call, given: Sequence[Tensor], made: Made) -> tuple[Attended | None, Tensor] | None:
        """What a function is as attention, and what it returns; None if it multiplies no weights by values.

        The attention is None if the function has been run again, in parts that were recognised.
        """
        if call.name == "scaled_dot_product_attention":
            return self._fused(call)
        product = None if len(made.parents) < 2 else weighted(call, given, made_of)
        if product is None:
            return None
        if product.has_more:
            return None, product.one_by_one(self._again)
        return self._weighted(product)

    def _fused(self, call: Call) -> tuple[Attended, Tensor]:
        """A call of fused attention."""
        given = named(call.args, call.kwargs)
        read = self._calls.read(given)
        if read is None:
            raise self._refuse("fused attention has queries or values that are not those of tokens by head")
        if given.get("dropout_p"):
            raise self._refuse("dropout is active; call model.eval() first")
        attended, result = self.computed(read, -2)
        return attended, (call.function(*call.args, **call.kwargs) if self._untouched else result)

    def computed(self, call: AttentionCall, axis: int) -> tuple[Attended, Tensor]:
        """Attention in place of the model's function, and what that returns: queries behind heads (−2) or before them (−3)."""
        of_query, of_value = made_of(call.query), made_of(call.value)
        if of_value is None:
            raise self._refuse("fused attention has queries or values that are not those of tokens by head")
        reads = [computed(each) for each in (call.query, call.key, call.value)]
        query, key, value, mask, scale, cap, sinks = call = call.repeated()
        result, normaliser = attention(query, key, value, mask, scale, cap=cap, sinks=sinks)
        result = result.transpose(1, 2).contiguous().transpose(axis, -3)  # as fused attention stores it

        attended = Attended(
            of_query,
            of_value,
            query.shape[2],
            key.shape[2],
            _zeros_like(result),
            lambda texts: Numbers(call, normaliser) if len(query) == texts else None,
            lambda tensor, _texts: tensor.transpose(axis, -2),
            axis,
            reads=lambda: reads,
        )
        return attended, result

    def _weighted(self, product: "Product") -> tuple[Attended, Tensor]:
        """A product with a softmax."""
        call, weights, value = product
        of_query, of_value = made_of(weights), made_of(value)
        assert of_query is not None
        assert of_value is not None
        result = call.function(*call.args)
        self._unused.pop(weights._softmax, None)  # type: ignore[attr-defined]
        scores: Scores | None = getattr(weights, "_scores", None)

        def numbers(texts: int) -> Numbers | None:
            return None if scores is None else _numbers(scores, weights, product.values(value), texts)

        of_query, (queries, keys) = of_query if of_query.is_of_scores else None, weights.shape[-2:]
        attended = Attended(
            of_query,
            of_value,
            queries,
            keys,
            _zeros_like(result),
            numbers,
            product.returned,
            product.axis_of_queries,
        )
        if scores is not None:
            reads = computed(value).then(product.values)
            attended.reads = lambda: [*_without_numbers(scores), reads]
        return attended, result


class Product(NamedTuple):
    """A product of attention weights and values."""

    call: Call
    weights: Shaped[Tensor, "*texts_heads query key"]
    value: Tensor

    @property
    def has_more(self) -> bool:
        """Whether it has other factors as well."""
        return self._is_einsum and len(self.call.args) > 3

    @property
    def axis_of_queries(self) -> int:
        """Where it puts the queries, from the end."""
        if not self._is_einsum:
            return -2
        term, _, output = self._terms
        return output.index(term[-2]) - len(output)

    def values(self, value: Tensor) -> Shaped[Tensor, "*texts_heads key value_dim"]:
        """The values of each row of weights, in the order of its other axes."""
        if self._is_einsum:
            term, of_value, _ = self._terms
            value = _permuted(value, of_value, [*self._axes_of_keys, *(axis for axis in of_value if axis not in term)])
        return value.expand(*self.weights.shape[:-2], -1, -1)

    def returned(self, tensor: Tensor, texts: int) -> Shaped[Tensor, "text head query size"]:
        """A tensor with the axes of what the product returns, by head."""
        if self._is_einsum:
            term, _, output = self._terms
            tensor = _permuted(tensor, output, [*term[:-1], *(axis for axis in output if axis not in term)])
        return by_head(tensor, texts)

    def having(self, values: Shaped[Tensor, "text head key value_dim"]) -> Call:
        """The same product of other values, which are given by head."""
        axes, texts = self.weights.shape[:-2], len(values)
        place = axes.index(texts) if _has_texts_later(axes, texts) else 0
        moved = (*axes[place : place + 1], *axes[:place], *axes[place + 1 :])
        values = values.reshape(*moved, *values.shape[-2:]).movedim(0, place)
        if not self._is_einsum:
            return self.call._replace(args=(self.weights, values))
        term, of_value, output = self._terms
        rest = "".join(axis for axis in of_value if axis not in term)
        equation = f"{term},{''.join(self._axes_of_keys)}{rest}->{output}"
        return self.call._replace(args=(equation, self.weights, values))

    def one_by_one(self, run: Callable[..., Tensor]) -> Tensor:
        """What weights, values and other factors give, if they are multiplied one after another.

        Args:
            run: Calls a function with arguments.
        """
        equation, *operands = self.call.args
        terms, output = einsum_terms(equation, operands)
        of = {id(operand): term for operand, term in zip(operands, terms, strict=True)}
        weights, value = self.weights, self.value
        rest = [operand for operand in operands if operand is not weights and operand is not value]
        later = "".join(of[id(each)] for each in rest) + output
        kept = "".join(dict.fromkeys(axis for axis in of[id(weights)] + of[id(value)] if axis in later))
        first = run(self.call.function, f"{of[id(weights)]},{of[id(value)]}->{kept}", weights, value)
        others = ",".join([kept, *(of[id(each)] for each in rest)])
        return run(self.call.function, f"{others}->{output}", first, *rest)

    @property
    def _is_einsum(self) -> bool:
        return self.call.name == "einsum"

    @property
    def _terms(self) -> tuple[str, str, str]:
        """The axes of weights, of values and of the result in an einsum of the first two."""
        terms, output = einsum_terms(self.call.args[0], self.call.args[1:])
        if self.call.args[1] is not self.weights:
            terms.reverse()
        return terms[0], terms[1], output

    @property
    def _axes_of_keys(self) -> Sequence[str]:
        """The axes of weights in an einsum but that of queries."""
        term, *_ = self._terms
        return [*term[:-2], term[-1]]


OfTokens = Callable[[Tensor | None], object]
"""Returns something of a tensor that depends on the tokens, and None of any other."""


def note_weights(call: Call, given: Sequence[Tensor], result: Tensor, of_tokens: OfTokens) -> None:
    """Note on what a function returns that it holds attention weights, as a softmax gave them."""
    if call.name in _SOFTMAX:
        result._softmax = object()  # type: ignore[attr-defined]
    elif call.name in _OF_WEIGHTS:
        weights = next((each for each in given if hasattr(each, "_softmax")), None)
        if weights is not None and not _changes_weights(call, given, of_tokens):
            result._softmax = weights._softmax  # type: ignore[attr-defined]
            # A column is cut off: the weight of a sink.
            result._has_sink = getattr(weights, "_has_sink", False) or result.shape[-1] != weights.shape[-1]  # type: ignore[attr-defined]


def weighted(call: Call, given: Sequence[Tensor], of_tokens: OfTokens) -> Product | None:
    """What a function is as a product of attention weights and values; None if it is none."""
    if call.name not in PRODUCTS or call.kwargs:
        return None
    weights = next((each for each in given if hasattr(each, "_softmax")), None)
    if weights is None or weights.ndim < 3:
        return None
    value = next((each for each in given if each is not weights and of_tokens(each) is not None), None)
    if value is None:
        return None
    if call.name == "einsum":
        if isinstance(call.args[1], list | tuple):  # of operands
            call = call._replace(args=(call.args[0], *call.args[1]))
    elif call.args[0] is not weights or value.ndim != weights.ndim or weights.shape[-1] != value.shape[-2]:
        return None
    return Product(call, weights, value)


def _is_of_pairs(softmax: Tensor) -> bool:
    """Whether a softmax has a number for each pair of tokens of each head, however it was made."""
    return softmax.ndim == 4 and softmax.shape[-1] == softmax.shape[-2]


def _changes_weights(call: Call, given: Sequence[Tensor], of_tokens: OfTokens) -> bool:
    """Whether a function makes something else of attention weights: by a number, or by what depends on the tokens."""
    if call.name in SAME:
        return False
    number = number_in(call)
    return isinstance(number, Tensor) or number != 1 or sum(of_tokens(each) is not None for each in given) > 1


def _zeros_like(result: Tensor) -> Callable[[], Tensor]:
    return functools.partial(torch.zeros, result.shape, dtype=result.dtype, device=result.device)


def _scores(call: Call, given: Sequence[Tensor]) -> Scores | None:
    """A product of two tensors that depend on the tokens, as scores; None if it cannot be that."""
    if call.name == "einsum":
        return _einsum_scores(call.args[0], given) if isinstance(call.args[0], str) else None
    one, other = given[1:3] if call.name in PAIRS - PRODUCTS else given
    if one.ndim < 2 or other.ndim < 2:
        return None
    reads = computed(one), computed(other).then(lambda vectors: vectors.mT)
    return Scores(one, other.mT, made_of(one), made_of(other), reads, call.kwargs.get("alpha", 1.0))


def _einsum_scores(equation: str, operands: Sequence[Tensor]) -> Scores | None:
    terms, output = einsum_terms(equation, operands)
    if len(terms) != 2 or len(output) < 2 or any(len({*term}) < len(term) for term in terms):
        return None
    summed = [axis for axis in terms[0] if axis in terms[1] and axis not in output]
    wanted = [*output[:-2], output[-2], *summed], [*output[:-2], output[-1], *summed]
    if terms[0].find(output[-2]) < 0:
        operands, terms = operands[::-1], terms[::-1]
    if len(summed) != 1 or any(set(term) - {*axes} for term, axes in zip(terms, wanted, strict=True)):
        return None
    orders = [functools.partial(_permuted, term=term, axes=axes) for term, axes in zip(terms, wanted, strict=True)]
    query, key = (order(each) for order, each in zip(orders, operands, strict=True))
    reads = [computed(each).then(order) for order, each in zip(orders, operands, strict=True)]
    return Scores(query, key, made_of(operands[0]), made_of(operands[1]), reads)


def _scores_after(scores: Scores, call: Call, given: Sequence[Tensor], result: Tensor) -> Scores | None:
    """Scores after a function; None if it multiplies them by a factor for each row."""
    if call.name in MOVES and result.ndim > 1 and result.stride()[-2:] == given[0].stride()[:-3:-1]:
        return Scores(scores.key, scores.query, scores.of_key, scores.of_query, scores.reads[::-1], scores.scale)
    if call.name in TIMES | DIVISIONS and any(each.ndim and each.shape[-1] == 1 < result.shape[-1] for each in given):
        return None
    return scores._replace(scale=scores.scale * number_in(call))


def _permuted(tensor: Tensor, term: str, axes: Sequence[str]) -> Tensor:
    """A tensor with its axes in another order, and an axis of size 1 for each that it does not have."""
    present = tensor.permute([term.index(axis) for axis in axes if axis in term])
    return present[tuple(slice(None) if axis in term else None for axis in axes)]


def _numbers(scores: Scores, weights: Tensor, value: Tensor, texts: int) -> Numbers | None:
    """What a model's own code has computed; None if queries and keys are not those of the weights.

    Numbers by which queries and keys have been multiplied belong to the scale.
    """
    given, scale = by_head(weights, texts), scores.scale
    heads, parts = torch.broadcast_shapes(scores.query.shape[:-2], scores.key.shape[:-2]), []
    for each, made in ((scores.query, scores.of_query), (scores.key, scores.of_key)):
        number = 1.0 if made is None else made.multiple
        scale = scale * number
        each = each.expand(*heads, -1, -1)
        parts.append(by_head(each if isinstance(number, float) and number == 1 else each / number, texts))
    query, key = parts
    call = AttentionCall(query, key, by_head(value, texts), None, float(scale)).repeated()
    if (*call.query.shape[:3], call.key.shape[2]) != given.shape:
        return None
    to_nowhere = 1 - given.sum(dim=-1) if getattr(weights, "_has_sink", False) else None
    return Numbers(call, given=given, to_nowhere=to_nowhere)


def _divided(vectors: Tensor, by: float | Tensor) -> Tensor:
    return vectors / by


def _without_numbers(scores: Scores) -> Sequence[Computed]:
    """How queries and keys were computed, without the numbers by which they were multiplied, which belong to the scale."""
    numbers = [1.0 if made is None else made.multiple for made in (scores.of_query, scores.of_key)]
    return [
        each.then(functools.partial(_divided, by=number)) for each, number in zip(scores.reads, numbers, strict=True)
    ]


def by_head(tensor: Shaped[Tensor, "*texts_heads token size"], texts: int) -> Shaped[Tensor, "text head token size"]:
    """A tensor with an axis of texts and one of heads, which a model may have in one axis, in another order, or not at all."""
    axes = tensor.shape[:-2]
    if _has_texts_later(axes, texts):
        tensor = tensor.movedim(axes.index(texts), 0)
    return tensor.reshape(texts, -1, *tensor.shape[-2:])


def _has_texts_later(axes: Sequence[int], texts: int) -> bool:
    """Whether the axis of texts is not the first of some axes."""
    return texts in axes[1:] and axes[0] != texts


def einsum_terms(equation: str, operands: Sequence[Tensor]) -> tuple[list[str], str]:
    """The axes of an einsum's operands, and of its result; those of an ellipsis are capital letters."""
    given, _, output = equation.replace(" ", "").partition("->")
    split = given.split(",")
    more = [each.ndim - len(term.replace("...", "")) for term, each in zip(split, operands, strict=True)]
    letters = "".join(each for each in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if each not in equation)[: max(more)]
    terms = [term.replace("...", letters[len(letters) - axes :]) for term, axes in zip(split, more, strict=True)]
    return terms, output.replace("...", letters)
