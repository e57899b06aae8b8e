"""Targets of attribution that are none."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import normscope
from tests.unit.wrong_calls.call import Call
from tests.unit.wrong_calls.stock import TEXT, Stock

_KEPT: list[Tensor] = []


def wrong_targets(stock: Stock) -> Iterator[Call]:
    """A call of `attribute` with each target."""
    for name, function in _FUNCTIONS.items():
        yield Call(
            f"attribute a function that {name}",
            lambda function=function: normscope.attribute(stock.wrapped, TEXT, function),
        )
    label, token, mask, other = normscope.Label, normscope.NextToken, normscope.MaskedToken, normscope.SimilarityTo
    for name, model, target in (
        ("a class beyond the last", stock.wrapped, lambda: label(99)),
        ("a negative class", stock.wrapped, lambda: -1),
        ("an unknown class", stock.wrapped, lambda: "ANGRY"),
        ("a class of a model without any", stock.masked, lambda: 0),
        ("a next token of a classifier", stock.wrapped, lambda: token("a")),
        ("a next token of an encoder", stock.masked, lambda: token()),
        ("a next token that is two", stock.causal, lambda: token("extraordinarily long")),
        ("an empty next token", stock.causal, lambda: token("")),
        ("a next token beyond the vocabulary", stock.causal, lambda: token(10**9)),
        ("a masked token of a causal model", stock.causal, lambda: mask("a")),
        ("a masked token without a mask", stock.masked, lambda: mask("a")),
        ("a masked token elsewhere", stock.masked, lambda: mask("a", position=1)),
        ("a masked token at a negative position", stock.masked, lambda: mask("a", position=-1)),
        ("a similarity to nothing", stock.wrapped, lambda: other("", "mean")),
        ("a similarity with unknown pooling", stock.wrapped, lambda: other("a")),
        ("a similarity of another kind", stock.wrapped, lambda: other("a", "median")),
        ("a class of targets", stock.wrapped, lambda: label),
        ("a next token of a translation's encoder", stock.translator, lambda: 0),
    ):
        yield Call(
            f"attribute {name}",
            lambda model=model, target=target: normscope.attribute(
                model, (TEXT, TEXT) if model is stock.translator else TEXT, target()
            ),
            surely=name not in ("a similarity to nothing", "a class beyond the last"),
        )


def _spent(hidden: Tensor) -> Tensor:
    value = hidden.square().sum()
    value.backward()
    return value


def _earlier(hidden: Tensor) -> Tensor:
    _KEPT.append(hidden.sum())
    return _KEPT[0] if len(_KEPT) > 1 else hidden.mean() * torch.nan


def _fails(_hidden: Tensor) -> Tensor:
    raise ValueError("two\nlines")


_FUNCTIONS: dict[str, Callable[..., object]] = {
    "returns nothing": lambda _hidden: None,
    "returns a number": lambda hidden: float(hidden.sum()),
    "returns a string": lambda _hidden: "x",
    "returns an array": lambda hidden: hidden.detach().numpy(),
    "returns a vector": lambda hidden: hidden[0],
    "returns all hidden vectors": lambda hidden: hidden,
    "returns an empty tensor": lambda hidden: hidden[:0],
    "returns a tensor without gradients": lambda hidden: hidden.detach().sum(),
    "returns a constant": lambda _hidden: torch.tensor(1.0),
    "returns a constant with gradients": lambda _hidden: torch.ones((), requires_grad=True) * 2,
    "returns whole numbers": lambda hidden: hidden.argmax(),
    "returns a complex number": lambda hidden: hidden.sum() * 1j,
    "returns NaN": lambda hidden: hidden.sum() * torch.nan,
    "returns infinity": lambda hidden: hidden.sum() / 0,
    "returns a list": lambda hidden: [hidden.sum()],
    "reads a token that is not there": lambda hidden: hidden[99, 0],
    "takes no argument": lambda: None,
    "takes two arguments": lambda _hidden, _other: None,
    "fails": _fails,
    "has gone back already": _spent,
    "returns what it got in an earlier call": _earlier,
    "multiplies shapes that do not fit": lambda hidden: (hidden @ hidden).sum(),
    "turns gradients off": torch.no_grad()(lambda hidden: hidden.sum()),
    "runs in inference mode": torch.inference_mode()(lambda hidden: hidden.sum()),
}
