"""Texts that are none, and encodings of another tokenizer or shape, for every function that reads a text."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from transformers import BatchEncoding

import normscope
from tests.unit.wrong_calls.call import Call
from tests.unit.wrong_calls.stock import OTHER, TEXT, Stock

IDS = [[101, 1996, 2214, 102]]


def wrong_texts(stock: Stock) -> Iterator[Call]:
    """A call of each function with each text or encoding."""
    for name, read in _readers(stock).items():
        for kind, (text, surely) in {**_texts(), **_encodings()}.items():
            several = isinstance(text, list) and name in (
                "decompose", "decompose words", "observe", "attribute", "similarity", "run", "Callback",
            )  # fmt: skip
            if several and all(isinstance(each, str) for each in text) and text:
                continue
            yield Call(f"{name} of {kind}", lambda read=read, text=text: read(text), surely)
    for name, text in {"one text": TEXT, "a triple": (TEXT, OTHER, TEXT), "an empty target": (TEXT, "")}.items():
        yield Call(
            f"translation of {name}",
            lambda text=text: normscope.decompose(stock.translator, text),
            surely=name != "an empty target",
        )
        yield Call(
            f"ALTI+ of {name}",
            lambda text=text: normscope.attribution_maps(stock.translator, text),
            surely=name != "an empty target",
        )


def _readers(stock: Stock) -> dict[str, Callable[[Any], object]]:
    model = stock.wrapped
    return {
        "decompose": lambda text: normscope.decompose(model, text),
        "decompose words": lambda text: normscope.decompose(model, text, level="word"),
        "observe": lambda text: next(normscope.observe(model, text)),
        "attribute": lambda text: normscope.attribute(model, text, 0),
        "attribution_maps": lambda text: normscope.attribution_maps(model, text, "alti"),
        "similarity": lambda text: normscope.similarity(model, TEXT, text, pooling="mean"),
        "SimilarityTo": lambda text: normscope.attribute(model, TEXT, normscope.SimilarityTo(text, "mean")),
        "run": lambda text: normscope.run("mixing", model=model, texts=text),
        "Callback": lambda text: normscope.Callback("mixing", texts=text, tokenizer=stock.tokenizer),
    }


def _texts() -> dict[str, tuple[Any, bool]]:
    return {
        "an empty text": ("", False),
        "a blank text": (" \n ", False),
        "a text that is too long": ("a " * 5000, False),
        "a lone surrogate": ("the \udcff river", True),
        "a zero byte": ("the \0 river", False),
        "control characters": ("\x01\x1b[31m\u202e", False),
        "one combining character": ("\u0301", False),
        "a single": (("a",), True),
        "a triple": (("a", "b", "c"), True),
        "a pair with None": (("a", None), True),
        "a pair of lists": ((["a"], ["b"]), True),
        "an empty list": ([], True),
        "two texts": (["a", "b"], True),
        "lists in a list": ([["a", "b"]], True),
        "a list with None": (["a", None], True),
        "a list with bytes": ([b"a"], True),
        "a list of fractions": ([101.5, 102.0], True),
        "messages without a template": ([{"role": "user", "content": "a"}], True),
        "messages without a role": ([{"content": "a"}], True),
        "an empty message": ([{}], True),
        "messages of numbers": ([{"role": 1, "content": 2}], True),
        "messages beside texts": ([[{"role": "user", "content": "a"}], "b"], True),
        "a mapping": ({"input_ids": IDS}, True),
        "a tensor of fractions": (torch.tensor(IDS) + 0.5, True),
        "bytes": (b"a", True),
        "None": (None, True),
        "an iterator": (iter([3]), True),
    }


def _encodings() -> dict[str, tuple[BatchEncoding, bool]]:
    right = {"input_ids": IDS, "attention_mask": [[1] * 4], "token_type_ids": [[0] * 4]}
    changes: dict[str, dict[str, Any]] = {
        "without ids": {"input_ids": None},
        "with ids of another vocabulary": {"input_ids": [[101, 99_999_999, 5, 102]]},
        "with negative ids": {"input_ids": [[101, -1, 5, 102]]},
        "with numbers that are no ids": {"input_ids": [[1.5, 2.5, 3.5, 4.5]]},
        "with huge ids": {"input_ids": [[10**30, 1, 1, 1]]},
        "with words for ids": {"input_ids": [["a", "b", "c", "d"]]},
        "with None for an id": {"input_ids": [[101, None, 5, 102]]},
        "with ids of no text": {"input_ids": [], "attention_mask": [], "token_type_ids": []},
        "with an empty text": {"input_ids": [[]], "attention_mask": [[]], "token_type_ids": [[]]},
        "with ids in three axes": {"input_ids": [[[101, 5, 5, 102]]]},
        "with one number": {"input_ids": 101},
        "with a string": {"input_ids": "101"},
        "with a complex tensor": {"input_ids": torch.ones(1, 4, dtype=torch.complex64)},
        "with a meta tensor": {"input_ids": torch.ones(1, 4, dtype=torch.long, device="meta")},
        "with a ragged list": {"input_ids": [[101, 5], [101, 5, 102]]},
        "with a mask of another length": {"attention_mask": [[1, 1]]},
        "with a mask of more texts": {"attention_mask": [[1] * 4] * 2},
        "with a mask of zeros": {"attention_mask": [[0] * 4]},
        "with a mask of words": {"attention_mask": [["x"] * 4]},
        "with a mask of fractions": {"attention_mask": [[0.5] * 4]},
        "with None for a mask": {"attention_mask": None},
        "with too large segments": {"token_type_ids": [[0, 0, 7, 7]]},
        "with negative segments": {"token_type_ids": [[0, 0, -1, 0]]},
        "with segments of another length": {"token_type_ids": [[0] * 9]},
        "with segments of words": {"token_type_ids": [["a"] * 4]},
        "with huge segments": {"token_type_ids": [[10**20] * 4]},
        "with embeddings": {"inputs_embeds": torch.ones(1, 4, 24)},
        "with positions": {"position_ids": [[9, 9, 9, 9]]},
        "with labels": {"labels": [1]},
        "of five texts": {name: rows * 5 for name, rows in right.items()},
        "that is too long": {name: np.repeat(np.array(rows), 5000, axis=1) for name, rows in right.items()},
    }
    maybe = ("with a mask of more texts", "of five texts", "with huge segments")
    encodings = {}
    for what, change in changes.items():
        fields = {**right, **change}
        if fields["input_ids"] is None:
            del fields["input_ids"]
        encodings[f"an encoding {what}"] = (BatchEncoding(fields), what not in maybe)
    return encodings
