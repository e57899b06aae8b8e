"""What is lost of a corpus, and what is unusual about it, is counted and said."""

import dataclasses

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from normscope.data.batching import batches
from normscope.data.encoding import Encoder
from normscope.data.examples import CorpusCounts, Example
from normscope.data.options import DatasetKind, DatasetOptions
from normscope.results.run_files import lost
from tests.unit.test_data import Reader

WORDS = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "a", "b"]


def reader(tokenizer, **changes):
    """What an encoder must know of a model of these words."""
    made = Reader(tokenizer)
    made.vocabulary, made.takes_segments = len(WORDS), False
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def of_words(model, **special):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def counts_of(tokenizer, *texts, **options):
    counts = CorpusCounts()
    encoder = Encoder(reader(tokenizer), DatasetOptions(kind=DatasetKind.text, seed=0, **options))
    for _ in batches(map(Example, texts), encoder, 64, counts):
        pass
    return counts


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("model", [models.WordLevel, models.WordPiece])
def test_the_share_of_unknown_tokens(model, named):
    """The tokenizer itself may not say which token is the unknown one; its model always does."""
    special = {"cls_token": "[CLS]", "mask_token": "[MASK]"} | ({"unk_token": "[UNK]"} if named else {})
    tokenizer = of_words(model({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"), **special)
    counts = counts_of(tokenizer, "[CLS] a b x y", "a a a a a")
    assert (counts.ordinary, counts.unknown) == (9, 2)
    assert counts.facts()["unknown_share"] == pytest.approx(2 / 9)
    (said,) = lost(counts.facts())
    assert (
        said == "warning: the tokenizer does not know 22% of the ordinary tokens; do it and the texts share a language?"
    )
    few = counts_of(tokenizer, *["a b a b"] * 12, "x")
    assert lost(few.facts()) == ["the tokenizer does not know 2.0% of the ordinary tokens"]
    assert lost(counts_of(tokenizer, "a b").facts()) == []
    assert lost(counts_of(tokenizer, "[CLS] a").facts() | {"unknown_share": 0.05})[0].startswith("the tokenizer")
    added = counts.copy()
    added.add(few)
    assert (added.ordinary, added.unknown) == (9 + 49, 3)


def test_no_token_is_unknown_where_the_unknown_token_ends_texts():
    """GPT-2 writes every byte, and its unknown token is the one that ends texts."""
    model = models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[SEP]")
    tokenizer = of_words(model, unk_token="[SEP]", eos_token="[SEP]")
    counts = counts_of(tokenizer, "a [SEP] b x")
    assert (counts.ordinary, counts.unknown) == (2, 0)


def test_unknown_tokens_of_sources_count():
    """The encoder's input, which the decoder attends to, is read as well."""
    sequences = [np.array([0, 5, 6]), np.array([5, 0])]
    model = models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]")
    words = of_words(model, unk_token="[UNK]")
    encoder = Encoder(reader(words), DatasetOptions(kind=DatasetKind.text, seed=0))
    made = encoder.encode([Example("a")], CorpusCounts())[0]
    counts = CorpusCounts()
    encoder.encode = lambda *_: [dataclasses.replace(made, input_ids=sequences[1], source_ids=sequences[0])]
    for _ in batches([Example("a")], encoder, 64, counts):
        pass
    assert (counts.ordinary, counts.unknown) == (5, 2)
