"""Where a model's code multiplies attention weights by values: a call of fused attention, or a product with a softmax."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from normscope.linear.computed import Computed, computed
from normscope.linear.provenance import PAIRS, SAME, Made, made_of, number_in
from normscope.linear.refusals import NotRecognisedError
from normscope.linear.rules import BESIDE, DIVISIONS, MOVES, PRODUCTS, SUMS, TIMES, Call, Stack, names
from normscope.maths.attention import AttentionCall, attention
from normscope.maths.masks import Mask, mask_of

_OF_WEIGHTS = SAME | TIMES | names("masked_fill masked_fill_ nan_to_num where")
"""Functions after which attention weights are still attention weights."""

_OF_SCORES = _OF_WEIGHTS | SUMS | DIVISIONS | BESIDE | names("softmax clamp clamp_ clip max maximum tanh")
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
    is_square: bool
    """Whether there are as many queries as keys."""
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
        self._rules: dict[object, tuple[Tensor, Mask]] = {}
        """Masks of fused attention as rules: made once for all layers of a pass."""
        self._unused: dict[object, str] = {}
        """Softmaxes of scores that have not multiplied anything yet: the line of the model's code."""

    def end_pass(self) -> None:
        """Check that nothing is left over.

        Raises:
            NotRecognisedError: If a softmax of scores has multiplied nothing.
        """
        for place in self._unused.values():
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
        if call.name == "softmax":
            result._softmax = object()  # type: ignore[attr-defined]
            if made.is_of_scores:
                self._unused[result._softmax] = line()  # type: ignore[attr-defined]
        elif call.name in _OF_WEIGHTS:
            weights = next((each for each in given if hasattr(each, "_softmax")), None)
            if weights is not None and not _changes_weights(call, given):
                result._softmax = weights._softmax  # type: ignore[attr-defined]
                # A column is cut off: the weight of a sink.
                result._has_sink = getattr(weights, "_has_sink", False) or result.shape[-1] != weights.shape[-1]  # type: ignore[attr-defined]

    def of(self, call: Call, given: Sequence[Tensor], made: Made) -> tuple[Attended | None, Tensor] | None:
        """What a function is as attention, and what it returns; None if it multiplies no weights by values.

        The attention is None if the function has been run again, in parts that were recognised.
        """
        if call.name == "scaled_dot_product_attention":
            return self._fused(call)
        if call.name not in PRODUCTS or len(made.parents) < 2:
            return None
        weights = next((each for each in given if hasattr(each, "_softmax")), None)
        return None if weights is None else self._weighted(call, given, weights)

    def _fused(self, call: Call) -> tuple[Attended, Tensor]:
        """A call of fused attention."""
        parameters = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
        given = dict(zip(parameters, call.args, strict=False)) | dict(call.kwargs)
        query, key, scale = given["query"], given["key"], given.get("scale")
        if query.ndim != 4:
            raise self._refuse("fused attention has queries or values that are not those of tokens by head")
        if given.get("dropout_p"):
            raise self._refuse("dropout is active; call model.eval() first")
        mask = Mask(causal=True) if given.get("is_causal") else self._rule(given.get("attn_mask"), query, key)
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        attended, result = self.computed(AttentionCall(query, key, given["value"], mask, scale), -2)
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
            query.shape[2] == key.shape[2],
            _zeros_like(result),
            lambda texts: Numbers(call, normaliser) if len(query) == texts else None,
            lambda tensor, _texts: tensor.transpose(axis, -2),
            axis,
            reads=lambda: reads,
        )
        return attended, result

    def _rule(self, mask: Any, query: Tensor, key: Tensor) -> Mask | None:
        """A mask as a rule; transformers may have been handed one."""
        if mask is None or isinstance(getattr(mask, "rule", None), Mask):
            return getattr(mask, "rule", None)
        lengths = query.shape[2], key.shape[2]
        name = id(mask), lengths
        if name not in self._rules:
            whole = mask[(None,) * (4 - mask.ndim)].expand(len(query), -1, *lengths)
            self._rules[name] = mask, mask_of(whole, lengths)
        return self._rules[name][1]

    def _weighted(self, call: Call, given: Sequence[Tensor], weights: Tensor) -> tuple[Attended | None, Tensor] | None:
        """A product with a softmax; None if the other tensor holds no values."""
        value = next((each for each in given if each is not weights and made_of(each) is not None), None)
        of_query, of_value = made_of(weights), made_of(value)
        if value is None or of_query is None or of_value is None or weights.ndim < 3 or call.kwargs:
            return None
        axis = -2
        if call.name == "einsum":
            if isinstance(call.args[1], list | tuple):  # of operands
                call = call._replace(args=(call.args[0], *call.args[1]))
            if len(call.args) > 3:
                return None, self._one_by_one(call, weights, value)
            axis = _axis_of_queries(call, weights)
        elif call.args[0] is not weights or value.ndim != weights.ndim or weights.shape[-1] != value.shape[-2]:
            return None
        result = call.function(*call.args)
        self._unused.pop(weights._softmax, None)  # type: ignore[attr-defined]

        scores: Scores | None = getattr(weights, "_scores", None)

        def numbers(texts: int) -> Numbers | None:
            return None if scores is None else _numbers(scores, weights, _values(call, weights, value), texts)

        returned = functools.partial(_by_head_from, call, weights)
        is_square = weights.shape[-1] == weights.shape[-2]
        of_query = of_query if of_query.is_of_scores else None
        attended = Attended(of_query, of_value, is_square, _zeros_like(result), numbers, returned, axis)
        if scores is not None:
            reads = computed(value).then(lambda vectors: _values(call, weights, vectors))
            attended.reads = lambda: [*_without_numbers(scores), reads]
        return attended, result

    def _one_by_one(self, call: Call, weights: Tensor, value: Tensor) -> Tensor:
        """A product of weights, values and other tensors, which are multiplied one after another."""
        equation, *operands = call.args
        terms, output = einsum_terms(equation, operands)
        of = {id(operand): term for operand, term in zip(operands, terms, strict=True)}
        rest = [operand for operand in operands if operand is not weights and operand is not value]
        later = "".join(of[id(each)] for each in rest) + output
        kept = "".join(dict.fromkeys(axis for axis in of[id(weights)] + of[id(value)] if axis in later))
        first = self._again(call.function, f"{of[id(weights)]},{of[id(value)]}->{kept}", weights, value)
        others = ",".join([kept, *(of[id(each)] for each in rest)])
        return self._again(call.function, f"{others}->{output}", first, *rest)


def _changes_weights(call: Call, given: Sequence[Tensor]) -> bool:
    """Whether a function makes something else of attention weights: by a number, or by what depends on the tokens."""
    if call.name in SAME:
        return False
    number = number_in(call)
    return isinstance(number, Tensor) or number != 1 or sum(made_of(each) is not None for each in given) > 1


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
    if texts in axes[1:] and axes[0] != texts:
        tensor = tensor.movedim(axes.index(texts), 0)
    return tensor.reshape(texts, -1, *tensor.shape[-2:])


def _values(call: Call, weights: Tensor, value: Tensor) -> Shaped[Tensor, "*texts_heads key value_dim"]:
    """The values of each row of weights, in the order of its other axes."""
    if call.name == "einsum":
        term, of_value, _ = _terms_of(call, weights)
        value = _permuted(value, of_value, [*term[:-2], term[-1], *(axis for axis in of_value if axis not in term)])
    return value.expand(*weights.shape[:-2], -1, -1)


def _by_head_from(call: Call, weights: Tensor, tensor: Tensor, texts: int) -> Shaped[Tensor, "text head query size"]:
    """A tensor with the axes of what a product of weights and values returns, by head."""
    if call.name == "einsum":
        term, _, output = _terms_of(call, weights)
        tensor = _permuted(tensor, output, [*term[:-1], *(axis for axis in output if axis not in term)])
    return by_head(tensor, texts)


def _terms_of(call: Call, weights: Tensor) -> tuple[str, str, str]:
    """The axes of weights, of values and of the result in an einsum of the first two."""
    terms, output = einsum_terms(call.args[0], call.args[1:])
    if call.args[1] is not weights:
        terms.reverse()
    return terms[0], terms[1], output


def einsum_terms(equation: str, operands: Sequence[Tensor]) -> tuple[list[str], str]:
    """The axes of an einsum's operands, and of its result; those of an ellipsis are capital letters."""
    given, _, output = equation.replace(" ", "").partition("->")
    split = given.split(",")
    more = [each.ndim - len(term.replace("...", "")) for term, each in zip(split, operands, strict=True)]
    letters = "".join(each for each in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if each not in equation)[: max(more)]
    terms = [term.replace("...", letters[len(letters) - axes :]) for term, axes in zip(split, more, strict=True)]
    return terms, output.replace("...", letters)


def _axis_of_queries(call: Call, weights: Tensor) -> int:
    """Where an einsum of weights and values puts the queries, from the end."""
    term, _, output = _terms_of(call, weights)
    return output.index(term[-2]) - len(output)
