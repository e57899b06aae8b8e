"""Texts that are too long lose what the tokenizer would cut off, on either side."""

import copy
import itertools

import pytest
import torch

import normscope
from normscope.data.encoding import Encoder
from normscope.data.examples import Annotation, CorpusCounts, Example, Message
from normscope.data.options import DatasetKind, DatasetOptions, Segmentation
from tests.tiny import STACK_CONFIGS, tiny_model
from tests.unit.test_data import Reader

LONGEST = 12

SIDES = pytest.mark.parametrize("side", ["right", "left"])


def words(number: int, start: int = 0) -> str:
    """Different words of a token each."""
    names = "one two three four five six seven eight nine ten red blue green black white".split()
    return " ".join(names[(start + each) % len(names)] + (" ." if each % 7 == 6 else "") for each in range(number))


TEXTS = {
    "one": (words(30), None),
    "both long": (words(30), words(25, 4)),
    "first long": (words(40), words(3, 4)),
    "second long": (words(3), words(40, 4)),
    "much too long": (words(150), words(120, 3)),
    "equal": (words(90), words(90)),
}


@pytest.fixture(params=["right", "left"])
def cutting(request, tokenizer):
    """The tokenizer, cutting on one side."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.truncation_side = request.param
    return tokenizer


def encoded(tokenizer, example: Example, *, separate: bool = False, **options):
    """The sequences of one example, and whether it was cut."""
    options = {"max_length": LONGEST} | options
    encoder = Encoder(
        Reader(tokenizer, max_length=512), DatasetOptions(kind=DatasetKind.text, seed=0, **options), separate=separate
    )
    counts = CorpusCounts()
    sequences = encoder.encode([example], counts)
    assert counts.cut == 1
    return sequences


@pytest.mark.spread(8)
@pytest.mark.parametrize("kind", TEXTS)
def test_texts_and_pairs_are_cut_as_the_tokenizer_cuts(kind, cutting):
    text, second = TEXTS[kind]
    (sequence,) = encoded(cutting, Example(text, second))
    expected = cutting(text, second, truncation=True, max_length=LONGEST)
    assert sequence.input_ids.tolist() == expected["input_ids"]
    assert sequence.token_type_ids.tolist() == expected["token_type_ids"]


def test_the_ends_of_a_long_pair_are_kept(cutting):
    """Not its middle: the last word of either text is read if beginnings are cut, and the first otherwise."""
    pair = "alpha " + words(900) + " omega", "river " + words(900) + " mountain"
    (sequence,) = encoded(cutting, Example(*pair), max_length=40)
    kept = cutting.convert_ids_to_tokens(sequence.input_ids.tolist())
    ends = {"omega", "mountain"} if cutting.truncation_side == "left" else {"alpha", "river"}
    assert {"alpha", "omega", "river", "mountain"} & {*kept} == ends


def test_texts_that_are_far_too_long_for_a_tokenizer(cutting):
    """Characters are cut before tokens, on the same side."""
    text = "alpha " + words(9000) + " omega"
    (sequence,) = encoded(cutting, Example(text))
    assert sequence.input_ids.tolist() == cutting(text, truncation=True, max_length=LONGEST)["input_ids"]


@pytest.mark.spread(2)
@pytest.mark.parametrize(("first", "second"), [(9000, 7000), (7000, 9000)])
def test_pairs_that_are_far_too_long_for_a_tokenizer(first, second, cutting):
    """The longer text keeps the odd token. (The tokenizer itself would take a minute, quadratic in the lengths.)"""
    pair = words(first), words(second, 3)
    (sequence,) = encoded(cutting, Example(*pair))
    ids = [cutting(text, add_special_tokens=False)["input_ids"] for text in pair]
    sizes = [5, 4] if first > second else [4, 5]
    kept = [
        each[-size:] if cutting.truncation_side == "left" else each[:size]
        for each, size in zip(ids, sizes, strict=True)
    ]
    assert sequence.input_ids.tolist() == [101, *kept[0], 102, *kept[1], 102]


def test_compared_texts_are_cut_alike(cutting):
    pair = words(30), words(40, 5)
    (sequence,) = encoded(cutting, Example(*pair), separate=True)
    for text, found in zip(pair, (sequence, sequence.second), strict=True):
        assert found.input_ids.tolist() == cutting(text, truncation=True, max_length=LONGEST)["input_ids"]


def test_annotated_words_are_cut_alike(cutting):
    text = words(30).replace(" .", "")
    ends = list(itertools.accumulate(len(word) + 1 for word in text.split()))
    spans = [(end - 1 - len(word), end - 1) for word, end in zip(text.split(), ends, strict=True)]
    annotation = Annotation(tuple(spans), {})
    (sequence,) = encoded(cutting, Example(text, annotation=annotation))
    assert sequence.input_ids.tolist() == cutting(text, truncation=True, max_length=LONGEST)["input_ids"]
    first = 20 if cutting.truncation_side == "left" else 0
    assert sequence.words.tolist() == [-1, *range(first, first + LONGEST - 2), -1]


def test_windows_begin_where_the_tokenizer_begins_to_cut(cutting):
    text = words(43).replace(" .", "")
    windows = encoded_windows(cutting, text)
    expected = cutting(text, truncation=True, max_length=LONGEST, stride=2, return_overflowing_tokens=True)
    assert [window.input_ids.tolist() for window in windows] == expected["input_ids"]
    assert windows[0].input_ids.tolist() == cutting(text, truncation=True, max_length=LONGEST)["input_ids"]
    covered = {id for window in windows for id in window.input_ids.tolist()}
    assert covered == {*cutting(text)["input_ids"]}


def encoded_windows(tokenizer, text: str):
    options = DatasetOptions(
        kind=DatasetKind.text, seed=0, max_length=LONGEST, segmentation=Segmentation.window, stride=2
    )
    return Encoder(Reader(tokenizer, max_length=512), options).encode([Example(text)], CorpusCounts())


def test_conversations_are_cut_alike(cutting):
    cutting.chat_template = "{% for m in messages %}[CLS] {{ m['role'] }} {{ m['content'] }} [SEP]{% endfor %}"
    messages = (Message("user", words(9)), Message("assistant", words(9, 5)))
    given = [each._asdict() for each in messages]
    expected = cutting.apply_chat_template(given, truncation=True, max_length=LONGEST)["input_ids"]
    (sequence,) = encoded(cutting, Example("", messages=messages), chat_template=True)
    assert sequence.input_ids.tolist() == expected
    parts = Encoder(
        Reader(cutting, max_length=512), DatasetOptions(kind=DatasetKind.text, seed=0, chat_template=True)
    ).categories.names
    (whole,) = encoded_whole(cutting, messages)
    kept = slice(-LONGEST, None) if cutting.truncation_side == "left" else slice(LONGEST)
    assert sequence.inherited.tolist() == whole.inherited.tolist()[kept]
    assert {parts[number] for number in sequence.inherited} >= {"template"}


def encoded_whole(tokenizer, messages):
    options = DatasetOptions(kind=DatasetKind.text, seed=0, chat_template=True)
    return Encoder(Reader(tokenizer, max_length=512), options).encode([Example("", messages=messages)], CorpusCounts())


@pytest.mark.spread(1)
@SIDES
def test_both_sides_of_a_translation_are_cut_alike(side, tokenizer):
    config = STACK_CONFIGS["bart"] | {"vocab_size": len(tokenizer), "decoder_start_token_id": 2}
    model = normscope.wrap(tiny_model(config, torch.float32), copy.deepcopy(tokenizer), stack="cross")
    model.tokenizer.truncation_side = side
    source, target = words(30), words(33, 6)
    encoder = Encoder(model, DatasetOptions(kind=DatasetKind.text, seed=0, max_length=LONGEST))
    (sequence,) = encoder.encode([Example(source, target)], CorpusCounts())
    cut = [model.tokenizer(text, truncation=True, max_length=LONGEST)["input_ids"] for text in (source, target)]
    assert sequence.source_ids.tolist() == cut[0]
    assert sequence.input_ids.tolist() == [2, *cut[1][:-1]]
