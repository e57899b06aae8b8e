"""Where a model's code multiplies attention weights by values: a call of fused attention, or a product with a softmax."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from normscope.errors import InputError
from normscope.linear.provenance import SAME, Made, made_of
from normscope.linear.rules import PRODUCTS, TIMES, Call, Stack, names
from normscope.maths.attention import attention_scores
from normscope.maths.kernels import kernel_for

_STRIP = 256
"""Queries whose scores are computed together, where no kernel returns the log-normaliser."""

_OF_WEIGHTS = SAME | TIMES | names("masked_fill masked_fill_ nan_to_num where")
"""Functions after which attention weights are still attention weights."""


class NotRecognisedError(InputError):
    """A model has attention whose block cannot be measured exactly."""


@dataclasses.dataclass(eq=False)
class Attention:
    """Weights times values."""

    query: Made
    value: Made
    own: Callable[[], tuple[Tensor, Tensor]] | None
    """Computes α_ii and α_ii v_i, with the axes of what attention returns; None if the queries are not the keys."""
    nothing: Callable[[], Tensor]
    """Computes zeros with the axes of what attention returns."""
    to_nowhere: Callable[[], Tensor] | None = None
    """Computes 1 − Σ_j α_ij, if a sink takes some of the weight."""
    axis: int = -2
    """The axis of queries in what attention returns."""
    result: Stack = dataclasses.field(default_factory=lambda: Stack(None))
    """What attention returns."""

    def scaled(self, factor: Tensor) -> None:
        """Multiply weights by a factor for each query of each head, computed from their scores, as a sink's.

        Raises:
            ValueError: If the factor differs by dimension.
        """
        own = self.own

        def scaled() -> tuple[Tensor, Tensor]:
            assert own is not None
            weights, values = own()
            if factor.shape != (*weights.shape, 1):
                raise ValueError("a factor that is computed from its scores differs by dimension")
            return weights * factor.squeeze(-1), values  # the factor is still to come for the values

        self.own, self.to_nowhere = None if own is None else scaled, lambda: 1 - factor.squeeze(-1)


class WeightedValues:
    """Recognises functions that multiply weights by values, in the order in which a model calls them.

    Args:
        again: Calls a function under the mode.
        refuse: Returns the error to raise, given the reason.
    """

    def __init__(self, again: Callable[..., Tensor], refuse: Callable[[str], NotRecognisedError]) -> None:
        self._again, self._refuse = again, refuse
        self._terms: dict[int, tuple[Tensor, Tensor]] = {}
        """What masks add to scores: made once for all layers of a pass."""
        self._unused: dict[object, str] = {}
        """Softmaxes of scores that have not multiplied anything yet: the line of the model's code."""

    @property
    def unused(self) -> list[str]:
        """The lines of softmaxes of scores that have multiplied nothing."""
        return [*self._unused.values()]

    def note(self, call: Call, given: Sequence[Tensor], made: Made, result: Tensor, line: Callable[[], str]) -> None:
        """Remember which tensors are attention weights."""
        if call.name == "softmax":
            result._softmax = object()  # type: ignore[attr-defined]
            if made.is_of_scores:
                self._unused[result._softmax] = line()  # type: ignore[attr-defined]
        elif call.name in _OF_WEIGHTS:
            weights = next((each for each in given if hasattr(each, "_softmax")), None)
            if weights is not None:
                result._softmax = weights._softmax  # type: ignore[attr-defined]
                # A column is cut off: the weight of a sink.
                result._has_sink = hasattr(weights, "_has_sink") or result.shape[-1] != weights.shape[-1]  # type: ignore[attr-defined]

    def of(self, call: Call, given: Sequence[Tensor], made: Made) -> tuple[Attention | None, Tensor] | None:
        """What a function is as attention, and what it returns; None if it multiplies no weights by values.

        The attention is None if the function has been run again, in parts that were recognised.
        """
        if call.name == "scaled_dot_product_attention":
            return self._fused(call)
        if call.name not in PRODUCTS or len(made.parents) < 2:
            return None
        weights = next((each for each in given if hasattr(each, "_softmax")), None)
        return None if weights is None else self._weighted(call, given, weights)

    def _fused(self, call: Call) -> tuple[Attention, Tensor]:
        """A call of fused attention, run by the kernel that also returns the log-normaliser."""
        parameters = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
        given = dict(zip(parameters, call.args, strict=False)) | dict(call.kwargs)
        query, key, value = given["query"], given["key"], given["value"]
        of_query, of_value = made_of(query), made_of(value)
        if query.ndim != 4 or of_query is None or of_value is None:
            raise self._refuse("fused attention has queries or values that are not those of tokens by head")
        if given.get("dropout_p"):
            raise self._refuse("dropout is active; call model.eval() first")
        groups = query.shape[1] // key.shape[1]
        if groups > 1:
            key, value = (each.repeat_interleave(groups, dim=1) for each in (key, value))
        scale, causal = given.get("scale"), bool(given.get("is_causal"))
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        term = self._term(given.get("attn_mask"), query)
        kernel = kernel_for(query, value)
        if kernel is None:
            result = call.function(*call.args, **call.kwargs)
            normaliser = _normaliser(query, key, term, causal=causal, scale=scale)
        else:
            result, normaliser = kernel(query, key, value, term, causal, scale)

        def own() -> tuple[Tensor, Tensor]:
            scores = torch.linalg.vecdot(query, key) * scale
            if term is not None:
                scores = scores + term.expand(*term.shape[:2], *scores.shape[-1:] * 2).diagonal(dim1=-2, dim2=-1)
            weights = (scores - normaliser).exp()
            return weights, weights.unsqueeze(-1) * value

        same = query.shape[2] == key.shape[2]
        return Attention(of_query, of_value, own if same else None, _zeros_like(result)), result

    def _term(self, mask: Tensor | None, query: Tensor) -> Tensor | None:
        """What a mask adds to the scores."""
        if mask is None or mask.dtype is not torch.bool:
            return mask
        known = self._terms.get(id(mask))
        if known is None or known[0] is not mask:
            rows = mask[:, :, :1] if mask.stride(2) == 0 else mask
            term = torch.zeros(rows.shape, dtype=query.dtype, device=mask.device).masked_fill_(~rows, -torch.inf)
            self._terms[id(mask)] = known = mask, term.expand(mask.shape)
        return known[1]

    def _weighted(self, call: Call, given: Sequence[Tensor], weights: Tensor) -> tuple[Attention | None, Tensor] | None:
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

        def own() -> tuple[Tensor, Tensor]:
            diagonal = weights.diagonal(dim1=-2, dim2=-1)
            if call.name != "einsum":
                return diagonal, diagonal.unsqueeze(-1) * value
            alone = weights * torch.eye(weights.shape[-1], dtype=weights.dtype, device=weights.device)
            return diagonal, call.function(*(alone if each is weights else each for each in call.args))

        attention = Attention(of_query, of_value, own, _zeros_like(result), axis=axis)
        if weights.shape[-1] != weights.shape[-2]:
            attention.own = None
        if getattr(weights, "_has_sink", False):
            attention.to_nowhere = lambda: 1 - weights.sum(dim=-1)
        return attention, result

    def _one_by_one(self, call: Call, weights: Tensor, value: Tensor) -> Tensor:
        """A product of weights, values and other tensors, which are multiplied one after another."""
        equation, *operands = call.args
        terms, output = _terms(equation)
        of = {id(operand): term for operand, term in zip(operands, terms, strict=True)}
        rest = [operand for operand in operands if operand is not weights and operand is not value]
        later = "".join(of[id(each)] for each in rest) + output
        kept = "".join(dict.fromkeys(axis for axis in of[id(weights)] + of[id(value)] if axis in later))
        first = self._again(call.function, f"{of[id(weights)]},{of[id(value)]}->{kept}", weights, value)
        others = ",".join([kept, *(of[id(each)] for each in rest)])
        return self._again(call.function, f"{others}->{output}", first, *rest)


def _zeros_like(result: Tensor) -> Callable[[], Tensor]:
    return functools.partial(torch.zeros, result.shape, dtype=result.dtype, device=result.device)


def _terms(equation: str) -> tuple[list[str], str]:
    """The axes of an einsum's operands, and of its result."""
    given, _, output = equation.replace(" ", "").partition("->")
    return given.split(","), output


def _axis_of_queries(call: Call, weights: Tensor) -> int:
    """Where an einsum of weights and values puts the queries, from the end."""
    terms, output = _terms(call.args[0])
    query = terms[next(place for place, each in enumerate(call.args[1:]) if each is weights)][-2]
    return output.index(query) - len(output)


def _normaliser(query: Tensor, key: Tensor, term: Tensor | None, *, causal: bool, scale: float) -> Tensor:
    """log Σ_j exp(score) of each query, some queries at a time."""
    parts = []
    for start in range(0, query.shape[2], _STRIP):
        rows = slice(start, start + _STRIP)
        some = term if term is None or term.shape[2] == 1 else term[:, :, rows]
        scores = attention_scores(query[:, :, rows], key, some, scale)
        if causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1 + start)
            scores = scores.masked_fill(later, -torch.inf)
        parts.append(scores.logsumexp(dim=-1))
    return torch.cat(parts, dim=2)
