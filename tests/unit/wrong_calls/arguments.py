"""Every parameter of every public function, with values of all kinds."""

import inspect
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from beartype import BeartypeConf
from beartype.door import is_bearable
from torch import nn
from transformers import BatchEncoding

import normscope
from tests.contract.test_saved_runs import RUN
from tests.unit.wrong_calls.call import Call
from tests.unit.wrong_calls.stock import OTHER, TEXT, Stock

_NUMBERS = BeartypeConf(is_pep484_tower=True)  # a whole number is a number
_ENDLESS: list[Any] = []
_ENDLESS.append(_ENDLESS)

VALUES: list[Any] = [
    *(None, True, 0, 3, -1, 10**30, 2.5, float("nan"), float("inf"), 1j),
    *("", " ", "nonsense", "x" * 5000, "\ud800", "a\nb", "a\0b", b"nonsense", Path("/no/such/thing")),
    *([], [None], [3], ["nonsense"], [b"x"], (), ("a",), ("a", 3), ("a", "b", "c"), _ENDLESS),
    *({}, {"a": 1}, {3: "a"}, {"a"}, BatchEncoding({})),
    *(int, object(), lambda *_: None, ValueError("x"), NotImplemented),
    *(torch.ones(2), np.ones(2), np.str_("nonsense"), np.float64(2.5), nn.Linear(2, 2)),
]


def functions(stock: Stock) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Public functions, each with arguments that are right."""
    decomposition = normscope.decompose(stock.wrapped, TEXT, heads=True)
    picture = decomposition.figure()
    callback = normscope.Callback("mixing", texts=[TEXT], tokenizer=stock.tokenizer)
    model, given = stock.wrapped, {"texts": [TEXT], "model": stock.wrapped}
    return {
        "load": (normscope.load, {"name": stock.folder, "device": "cpu"}),
        "wrap": (normscope.wrap, {"model": stock.classifier, "tokenizer": stock.tokenizer}),
        "observe": (_first_block, {"model": model, "texts": TEXT}),
        "decompose": (normscope.decompose, {"model": model, "text": TEXT}),
        "attribute": (normscope.attribute, {"model": model, "text": TEXT, "target": 0}),
        "attribution_maps": (normscope.attribution_maps, {"model": model, "text": TEXT, "methods": "alti"}),
        "similarity": (normscope.similarity, {"model": model, "text_a": TEXT, "text_b": OTHER, "pooling": "mean"}),
        "run": (normscope.run, {"analyses": "mixing", **given}),
        "run outliers": (_run_outliers, given),
        "run cross-attention": (
            normscope.run,
            {"analyses": "norms", "texts": [(TEXT, OTHER)], "model": stock.translator},
        ),
        "read": (normscope.read, {"folder": RUN}),
        "Callback": (normscope.Callback, {"analyses": "mixing", "texts": [TEXT], "tokenizer": stock.tokenizer}),
        "Callback.figure": (callback.figure, {"metric": "mixing"}),
        "Label": (_attribute(stock.wrapped, normscope.Label), {"label": 0}),
        "NextToken": (_attribute(stock.causal, normscope.NextToken), {"token": None}),
        "Answer": (_attribute(stock.causal, normscope.Answer), {"answer": None}),
        "MaskedToken": (_attribute(stock.masked, normscope.MaskedToken, "the [MASK] river"), {"token": None}),
        "SimilarityTo": (_attribute(stock.wrapped, normscope.SimilarityTo), {"text": OTHER, "pooling": "mean"}),
        "Result.figure": (decomposition.figure, {}),
        "Explorer.save": (decomposition.explorer().save, {"path": "map.html"}),
        "Picture.save": (picture.save, {"path": "picture.png"}),
    }


def _first_block(model: object, texts: object) -> object:
    return next(iter(normscope.observe(model, texts)))  # type: ignore[arg-type]


_first_block.__signature__ = inspect.signature(normscope.observe)  # type: ignore[attr-defined]
_first_block.__wrapped__ = normscope.observe  # type: ignore[attr-defined]


def _run_outliers(**given: Any) -> object:
    return normscope.run("outliers", **given)


def _attribute(model: object, target: type, text: str = TEXT) -> Callable[..., Any]:
    def attribute(**given: Any) -> object:
        return normscope.attribute(model, text, target(**given))  # type: ignore[arg-type]

    attribute.__wrapped__ = target.__init__  # type: ignore[attr-defined,misc]
    return attribute


# Options of `run` without a parameter.
_OPTIONS = {"run": {"enabled": object}, "run outliers": {"threshold": float, "nonsense": object, "outliers": object}}


def wrong_arguments(stock: Stock) -> Iterator[Call]:
    """A call with one wrong argument, for every argument and value."""
    for name, (function, right) in functions(stock).items():
        target = inspect.unwrap(function)
        hints = typing.get_type_hints(target) | _OPTIONS.get(name, {})
        for parameter, hint in hints.items():
            if parameter in ("return", "options"):
                continue
            for value in VALUES:
                yield Call(
                    f"{name}({parameter}={value!r:.40})",
                    lambda function=function, given={**right, parameter: value}: function(**given),
                    surely=not is_bearable(value, hint, conf=_NUMBERS),
                )
