"""Corpora that the runs of a sweep read and tokenise once."""

import types
from functools import partial

import numpy as np
import pytest
from transformers import AutoTokenizer

from normscope.data import corpus_memory
from normscope.data.batching import batches_of_window
from normscope.data.corpora import NumberedCorpus, open_corpus
from normscope.data.corpus_memory import CorpusMemory
from normscope.data.encoding import Encoder
from normscope.data.examples import CorpusCounts
from normscope.data.options import DatasetKind, DatasetOptions
from normscope.data.token_sequence import Batching
from normscope.running.shares import Share


def options(path, **others):
    return DatasetOptions(kind=DatasetKind.text, path=str(path), seed=0, **others)


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("One river.\n\nA longer text about rivers, and about boats.\n...\n" * 3)
    return path


def model(tokenizer, **others):
    facts = {
        "causal": False,
        "decoder_inputs": None,
        "translates": False,
        "is_cross_attention": False,
        "batching": Batching.PADDED,
    }
    return types.SimpleNamespace(
        tokenizer=tokenizer, vocabulary=len(tokenizer), max_length=8, takes_segments=True, name="m", **facts | others
    )


def run(memory, tokenizer, given, divisible=True):
    """What a run over the corpus sees."""
    encoder = Encoder(model(tokenizer), given)
    encoder.memory = memory and memory.sequences(given, encoder.identity)
    opened = open_corpus(given) if memory is None else memory.corpus(given, open_corpus)
    corpus = NumberedCorpus(opened, divisible=divisible)
    counts = CorpusCounts()
    found = list(Share(0, 1).batches(corpus, partial(batches_of_window, encoder=encoder, batch_tokens=64), counts))
    return [batch.input_ids.tolist() for batch, _ in found], counts.packed(), corpus.total


@pytest.mark.parametrize("divisible", [True, False])
@pytest.mark.parametrize("others", [{}, {"mask_fraction": 0.3}, {"limit": 5}])
def test_later_runs_see_what_the_first_saw(texts, tokenizer, minilm_folder, others, divisible):
    """A corpus of two files is read in two parts unless rows are numbered."""
    (texts.parent / "other.txt").write_text("Boats are long.\nRivers are longer than boats.\n")
    given = options(texts.parent / "*.txt", **others)
    plain = run(None, tokenizer, given, divisible)
    memory = CorpusMemory()
    assert run(memory, tokenizer, given, divisible)[:2] == plain[:2]
    for file in texts.parent.glob("*.txt"):
        file.write_text("")  # nothing is read any more
    same = AutoTokenizer.from_pretrained(minilm_folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Encoder, "_encoded", None)
        assert run(memory, same, given, divisible)[:2] == plain[:2]


def test_other_tokenizers_and_options_are_told_apart(texts, tokenizer, minilm_folder):
    memory = CorpusMemory()
    given = options(texts)
    run(memory, tokenizer, given)
    other = AutoTokenizer.from_pretrained(minilm_folder)
    other.add_tokens(["river"])
    assert run(memory, other, given) == run(None, other, given)
    masked = options(texts, mask_fraction=0.5)
    assert run(memory, tokenizer, masked) == run(None, tokenizer, masked)
    assert run(memory, tokenizer, masked)[0] != run(memory, tokenizer, given)[0]


def test_large_corpora_are_read_again(texts, tokenizer, monkeypatch):
    monkeypatch.setattr(corpus_memory, "MOST_CHARACTERS", 60)
    monkeypatch.setattr(corpus_memory, "MOST_TOKENS", 4)
    memory = CorpusMemory()
    given = options(texts)
    first = run(memory, tokenizer, given)
    texts.write_text("Another text.\n")
    again = run(memory, tokenizer, given)
    assert again != first
    assert again[:2] == run(None, tokenizer, given)[:2]
    assert memory.tokens <= 4
    assert np.isfinite(memory.characters)
    assert memory.characters <= 60
