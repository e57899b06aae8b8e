"""The Python interface accepts texts, pairs, lists of these and BatchEncodings, and refuses everything else."""

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import BatchEncoding

import normscope
from normscope.api import observe
from normscope.errors import InputError
from normscope.models.load.text_batches import batch_from_texts, is_single
from tests.one_text import decompose
from tests.tiny import FAMILY_CONFIGS, STACK_CONFIGS, tiny_model

FIRST, SECOND = "The cat sat on the mat.", ("A dog barked.", "Nobody heard it, of course.")


@pytest.fixture(scope="module")
def model():
    return normscope.load(device="cpu", dtype="float64")


def mixing(model, texts):
    return [block.mixing.clone() for block in observe(model, texts)]


def same(got, expected):
    assert len(got) == len(expected)
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("tensors", [None, "pt", "np"])
@pytest.mark.slow
def test_a_batch_encoding_gives_the_same_as_its_texts(model, tensors):
    encoding = model.tokenizer([FIRST, "Short."], padding=True, return_tensors=tensors)
    same(mixing(model, encoding), mixing(model, [FIRST, "Short."]))
    pair = model.tokenizer(*SECOND, return_tensors=tensors)  # one text; as lists, it has no batch axis
    same(mixing(model, pair), mixing(model, SECOND))
    torch.testing.assert_close(decompose(model, pair).maps["attn_n"], decompose(model, SECOND).maps["attn_n"])


@pytest.mark.slow
def test_left_padding_is_removed(model):
    encoding = model.tokenizer([FIRST, "Short."], padding=True, padding_side="left", return_tensors="pt")
    same(mixing(model, encoding), mixing(model, [FIRST, "Short."]))


@pytest.mark.slow
def test_fields_that_models_do_not_read_are_ignored(model):
    encoding = model.tokenizer(FIRST, return_offsets_mapping=True, return_special_tokens_mask=True, return_length=True)
    same(mixing(model, encoding), mixing(model, FIRST))


def test_lists_may_mix_texts_and_pairs(model):
    batch = batch_from_texts(model, [FIRST, SECOND])
    assert batch.sequences == 2
    assert batch.token_type_ids is not None
    assert batch.token_type_ids.sum(dim=1).tolist() == [0, len(model.tokenizer(SECOND[1])["input_ids"]) - 1]


@pytest.mark.parametrize(
    ("texts", "got"),
    [
        ((), r"a tuple of 0 \(\)"),
        (("a", None), r"a tuple of 2 \(str, NoneType\)"),
        (["a", ["b", "c"]], r"a list of 2 \(str, str\)"),
        (["a", ("b", "c", "d", "e")], r"a tuple of 4 \(str, str, str, \.\.\.\)"),
        (["a", 3], "int"),
        (np.array(["a", "b"]), "ndarray"),
        (pd.Series(["a", "b"]), "Series"),
        (pd.DataFrame({"text": ["a"]}), "DataFrame"),
        (torch.tensor([True]), "Tensor"),
        (torch.tensor(101), "Tensor"),
    ],
    ids=lambda value: value.replace("\\", "") if isinstance(value, str) else type(value).__name__,
)
def test_other_types_are_refused(model, texts, got):
    """Wrong calls of every function are in test_wrong_calls.py; here is what the message says of them."""
    expected = rf"expected a str, a pair \(a tuple of two str\), a conversation .*, or .* BatchEncoding; got {got}$"
    with pytest.raises(InputError, match=expected):
        batch_from_texts(model, texts)


@pytest.mark.parametrize(
    "form",
    [
        lambda ids: ids,
        lambda ids: [ids],
        lambda ids: torch.tensor(ids),
        lambda ids: torch.tensor([ids], dtype=torch.int32),
        lambda ids: np.array(ids),
        lambda ids: np.array([ids], dtype=np.uint16),
        lambda ids: [torch.tensor(ids)],
    ],
)
def test_token_ids_are_a_text_in_every_form(model, form):
    text = "The old bridge was closed."
    expected, found = batch_from_texts(model, text), batch_from_texts(model, form(model.tokenizer(text)["input_ids"]))
    assert torch.equal(found.input_ids, expected.input_ids)
    assert torch.equal(found.token_mask, expected.token_mask)


def test_rows_of_token_ids_are_texts(model):
    ids = model.tokenizer("The old bridge was closed.")["input_ids"]
    batch = batch_from_texts(model, torch.tensor([ids, ids[::-1]]))
    assert batch.input_ids.tolist() == [ids, ids[::-1]]
    assert not is_single(torch.tensor([ids, ids]))
    assert is_single(torch.tensor([ids]))
    assert batch_from_texts(model, [torch.tensor(ids), np.array(ids[:4])]).token_mask.sum(dim=1).tolist() == [
        len(ids),
        4,
    ]
    with pytest.raises(InputError, match=r"the ids end in padding \(\[PAD\]\); pass the tokenizer's BatchEncoding"):
        batch_from_texts(model, torch.tensor([ids, [*ids[:4], *[0] * (len(ids) - 4)]]))
    with pytest.raises(InputError, match="expected 0 to .*, got 101 to 99999999"):
        batch_from_texts(model, torch.tensor([101, 99999999]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "has no input_ids"),
        ({"input_ids": [[101, 102]], "attention_mask": [[0, 0]]}, "expected at least one token per text"),
        ({"input_ids": [[101, 102]], "attention_mask": [[1]]}, "attention_mask to have the shape of its input_ids"),
        (
            {"input_ids": [[101, 102]], "token_type_ids": [[1], [1]]},
            "token_type_ids to have the shape of its input_ids",
        ),
        ({"input_ids": [[101, 30522]]}, "from another tokenizer: expected 0 to 30521, got 101 to 30522"),
        ({"input_ids": [["a"]]}, "input_ids to be lists of integers, one list per text"),
        ({"input_ids": 5}, "input_ids to be lists of integers: "),
        ({"input_ids": [[101, 102]], "position_ids": [[4, 5]]}, "has position_ids"),
        ({"input_ids": [[101] * 257]}, "longer than 256 tokens"),
        ({"input_ids": [[101, 102]], "token_type_ids": [[0, 2]]}, "token_type_ids: expected 0 to 1, got 0 to 2"),
    ],
)
def test_batch_encodings_that_cannot_be_read(model, fields, message):
    with pytest.raises(InputError, match=message):
        batch_from_texts(model, BatchEncoding(fields))


def test_texts_that_cannot_be_read(model):
    for texts, message in (
        ([], "expected at least one text, got none"),
        ("half \ud800 of one", "lone surrogate"),
        ("word " * 600, "longer than 256 tokens"),
        (" ", "^the text is empty after tokenisation$"),
        (["a", "", "\n"], "^2 of 3 texts are empty after tokenisation$"),
    ):
        with pytest.raises(InputError, match=message):
            batch_from_texts(model, texts)
    with pytest.raises(InputError, match="expected at least one text, got none"):
        decompose(model, [])


def test_translation_models_need_what_their_stack_reads(tokenizer):
    model = tiny_model(STACK_CONFIGS["bart"] | {"vocab_size": len(tokenizer)}, torch.float32)

    def stack(name: str):
        return normscope.wrap(model, tokenizer, stack=name)

    with pytest.raises(InputError, match="reads one text, not a pair"):
        batch_from_texts(stack("encoder"), SECOND)
    cross = stack("cross")
    with pytest.raises(InputError, match="needs a source and a target: pass a pair"):
        batch_from_texts(cross, [SECOND, FIRST])
    with pytest.raises(InputError, match="a BatchEncoding has no target"):
        batch_from_texts(cross, cross.tokenizer(FIRST))
    assert batch_from_texts(cross, SECOND).source is not None


def test_models_without_segments_ignore_those_of_a_batch_encoding(tokenizer):
    config = FAMILY_CONFIGS["distilbert"] | {"vocab_size": len(tokenizer)}
    model = normscope.wrap(tiny_model(config, torch.float32), tokenizer)
    encoding = model.tokenizer(*SECOND)
    assert "token_type_ids" in encoding
    assert batch_from_texts(model, encoding).token_type_ids is None


@pytest.mark.spread(1)
@pytest.mark.parametrize("family", ["marian", "m2m_100", "t5", "mbart"])
def test_decoders_read_the_target_shifted_by_one(tokenizer, family):
    """After the token that begins translations; mBART's is the language code that ends the target."""
    model = tiny_model(STACK_CONFIGS[family] | {"vocab_size": len(tokenizer)}, torch.float32)
    shifted = normscope.wrap(model, tokenizer, stack="cross").decoder_inputs([5, 6, 7, 8])
    assert shifted == [8 if family == "mbart" else model.config.decoder_start_token_id, 5, 6, 7]
