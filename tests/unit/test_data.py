import json
from collections import Counter
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from normscope.data import batching
from normscope.data.batching import batches
from normscope.data.categories import CATEGORIES, TokenCategories
from normscope.data.corpora import sample_path
from normscope.data.encoding import Encoder
from normscope.data.examples import AS_GIVEN, Corpus, CorpusCounts, Example
from normscope.data.options import DatasetKind, DatasetOptions
from normscope.data.resources import Readers, Resource, ResourceContext, prepare_resources
from normscope.data.text_files import TextFile
from normscope.data.token_sequence import Batching
from normscope.errors import InputError
from normscope.running.ranks import ProcessGroup

EXAMPLES = [Example("A first, short one."), Example("Left side", "right side"), Example("naïve — café")]


class Reader:
    """What an encoder must know of a model."""

    name = "test"
    vocabulary = 30522
    max_length = 16
    takes_segments = True
    rule = AS_GIVEN
    translates = is_cross_attention = causal = False
    decoder_inputs = reader = image_texts = None
    batching = Batching.PADDED

    def __init__(self, tokenizer, **changes):
        vars(self).update(tokenizer=tokenizer, **changes)


def encoder(tokenizer, **options) -> Encoder:
    return Encoder(Reader(tokenizer), DatasetOptions(kind=DatasetKind.sample, seed=0, **options))


def write(folder, ending: str):
    path = folder / f"corpus{ending}"
    rows = [{"text": example.text, "text_pair": example.text_pair} for example in EXAMPLES]
    match ending:
        case ".txt":
            path.write_text("".join(f"{example.text}\n" for example in EXAMPLES))
        case ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        case ".csv":
            path.write_text(
                "text,text_pair\n" + "".join(f'"{row["text"]}","{row["text_pair"] or ""}"\n' for row in rows)
            )
        case ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("ending", [".txt", ".jsonl", ".csv", ".parquet"])
def test_every_format_gives_the_same_examples(tmp_path, ending):
    corpus = TextFile(write(tmp_path, ending))
    expected = [Example(example.text) for example in EXAMPLES] if ending == ".txt" else EXAMPLES
    assert list(corpus.examples()) == expected
    assert list(corpus.examples()) == expected, "a corpus can be read again"
    assert corpus.total == len(expected)


def test_a_csv_without_header_is_read_by_number(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("one,two,3\n")
    assert list(TextFile(path, header=False).examples()) == [Example("one")]
    assert list(TextFile(path, "1", 0, header=False).examples()) == [Example("two", "one")]
    with pytest.raises(InputError, match=r"dataset.text_column=7: .* expected one of the numbers 0 to 2"):
        list(TextFile(path, 7, header=False).examples())
    path.write_text("body,label\nhello,1\n")
    with pytest.raises(InputError, match=r"dataset.pair_column=b: .* expected one of body, label"):
        list(TextFile(path, "body", "b").examples())


def test_empty_rows_say_why_they_are_skipped(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "x"}\n\n{"text": " "}\n{"text": null}\n{"text": 3}\n{"text": "y", "text_pair": " "}\n')
    assert list(TextFile(path).examples()) == [Example("x"), "empty", "empty", "empty", "not text", Example("y")]


def test_rows_that_hold_nothing(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,b\nx,1\n\ny,2")
    assert list(TextFile(path).examples()) == [Example("x"), "empty", Example("y")]
    assert TextFile(path).total == 3
    path = tmp_path / "a.jsonl"
    path.write_text('{"sentence": "x"}\n\n{"sentence": "\\ud800"}\n')
    assert list(TextFile(path, "sentence").examples()) == [Example("x"), "empty", "not text"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "x"}\n{oops\n', "line 2 is not JSON"),
        ("a.jsonl", b'["x"]\n', "line 1 is not a JSON object"),
        ("a.jsonl", b'{"text": "a", "n": ' + b"9" * 5000 + b"}\n", "line 1 is not JSON"),
        ("a.jsonl", b'{"text": ' + b"[" * 100_000 + b"\n", "line 1 is not JSON"),
        ("a.jsonl", b'{"text": "x"}\n{"txt": "y"}\n', "row 2 of .* has no such column; expected one of txt"),
        ("a.csv", b"text,b\nx,1\ny\n", "line 3: expected 2 cells as in the header, got 1"),
        ("a.csv", b"text,b,text\nx,1,y\n", "line 1: two columns are called 'text'"),
        ("a.jsonl", b'{"body": "x"}\n', "dataset.text_column=text: .* expected one of body"),
        ("a.txt", b"fine\n\xff\xfe\n", "not UTF-8"),
        ("a.txt", b"", "is empty"),
        ("a.parquet", b"nothing of the kind", "not a Parquet file"),
        ("a.docx", b"x", "expected a file with extension"),
    ],
)
def test_bad_files_are_told_apart(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        list(TextFile(path).examples())


def test_the_sample_corpus_is_what_the_readme_says(tokenizer):
    examples = list(TextFile(sample_path()).examples())
    pairs = [example for example in examples if example.text_pair]
    singles = [example for example in examples if not example.text_pair]
    assert (len(pairs), len(singles)) == (100, 100)
    assert len({example.text for example in examples}) == 200
    lengths = [len(tokenizer(example.text, example.text_pair)["input_ids"]) for example in pairs]
    assert min(lengths) >= 95
    assert max(lengths) <= 128
    for example in pairs:
        for paragraph in (example.text, example.text_pair):
            assert 40 <= len(tokenizer(paragraph, add_special_tokens=False)["input_ids"]) <= 60


def test_categories_of_minilm(tokenizer):
    categories = TokenCategories.of(tokenizer, 30522).of_token
    ids = tokenizer("Hello, world. Yes! [MASK]", "e.g. 、 。")["input_ids"]
    names = [CATEGORIES[categories[token]] for token in ids]
    assert (
        names
        == (
            "cls other punctuation other punctuation other other mask sep "
            "other punctuation other punctuation punctuation punctuation sep"
        ).split()
    )


def test_byte_level_vocabularies_have_two_commas():
    """RoBERTa writes a comma after a word and one after a space as two tokens; both are punctuation."""
    vocabulary = {
        token: index
        for index, token in enumerate(["<s>", "</s>", "<mask>", "<pad>", ",", "Ġ,", "a", "Ġa", "Ġ", ".", "!"])
    }
    backend = Tokenizer(models.BPE(vocabulary, [("Ġ", ","), ("Ġ", "a")], ignore_merges=False))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    from tokenizers import decoders

    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, cls_token="<s>", sep_token="</s>", mask_token="<mask>", pad_token="<pad>"
    )
    assert TokenCategories.of(tokenizer, len(vocabulary)).impossible == set()
    assert TokenCategories.of(PreTrainedTokenizerFast(tokenizer_object=backend), len(vocabulary)).impossible == {
        "cls",
        "sep",
        "mask",
    }
    categories = TokenCategories.of(tokenizer, len(vocabulary)).of_token
    punctuation = {token for token, index in vocabulary.items() if CATEGORIES[categories[index]] == "punctuation"}
    assert punctuation == {",", "Ġ,", "."}
    assert CATEGORIES[categories[0]] == "cls"
    assert CATEGORIES[categories[1]] == "sep"


def test_masking_replaces_a_share_of_the_ordinary_tokens(tokenizer):
    example = Example(" ".join(["word"] * 25), " ".join(["other"] * 25))
    plain = encoder(tokenizer).tokenizer(example.text, example.text_pair)["input_ids"]
    unlimited = Reader(tokenizer)
    unlimited.max_length = None
    make = Encoder(unlimited, DatasetOptions(kind=DatasetKind.sample, seed=0, mask_fraction=0.12))
    sequence = make.encode([example], CorpusCounts())[0]
    changed = np.flatnonzero(sequence.input_ids != plain)
    assert len(changed) == 6
    assert (sequence.input_ids[changed] == tokenizer.mask_token_id).all()
    assert not set(changed) & {0, 26, 52}, "special tokens stay"


def test_masking_takes_at_least_one_token_and_follows_the_seed(tokenizer):
    make = encoder(tokenizer, mask_fraction=0.01)
    sequences = make.encode([Example("two words"), Example("one of several words here")] * 2, CorpusCounts())
    assert all((sequence.input_ids == tokenizer.mask_token_id).sum() == 1 for sequence in sequences)
    assert (sequences[1].input_ids == sequences[3].input_ids).all(), "the same text is masked alike wherever it stands"


def test_batches_keep_the_budget_and_lose_nothing(tokenizer):
    counts = CorpusCounts()
    examples = [Example("word " * (1 + index % 13)) for index in range(50)]
    seen = list(batches([*examples, "empty"], encoder(tokenizer), 60, counts))
    assert sum(batch.sequences for batch in seen) == 50
    assert all(batch.input_ids.numel() <= 60 for batch in seen)
    assert (counts.read, counts.used, counts.skipped) == (51, 50, {"empty": 1})
    assert counts.tokens == sum(int(batch.token_mask.sum()) for batch in seen) == sum(counts.categories.values())
    for batch in seen:
        assert ((batch.categories == -1) == ~batch.token_mask).all()
        assert (batch.input_ids[~batch.token_mask] == tokenizer.pad_token_id).all()


def test_a_sequence_beyond_the_budget_is_a_batch_by_itself(tokenizer):
    seen = list(batches([Example("word " * 12), Example("word " * 11)], encoder(tokenizer), 5, CorpusCounts()))
    assert [batch.sequences for batch in seen] == [1, 1]


class Listed(Corpus):
    """A corpus of these examples."""

    def __init__(self, examples):
        self._examples = examples

    @property
    def total(self):
        return len(self._examples)

    def examples(self):
        return iter(self._examples)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("number", [2, 23])
def test_processes_share_a_corpus_without_gap_or_overlap(tokenizer, monkeypatch, size, number):
    monkeypatch.setattr(batching, "LOOKAHEAD", 4)
    corpus = Listed([Example("word " * (n % 7 + 1)) if n % 5 else "empty" for n in range(number)])
    alone = CorpusCounts()
    expected = [batch.fingerprints for batch in batches(corpus.examples(), encoder(tokenizer), 20, alone)]
    found, together = [], CorpusCounts()
    for rank in range(size):
        counts = CorpusCounts()
        read = partial(batching.batches_of_window, encoder=encoder(tokenizer), batch_tokens=20)
        shown = ProcessGroup(rank, size).batches(corpus, read, counts)
        found += [batch.fingerprints for batch, mine in shown if mine]
        together.add(counts)
    assert sorted(found) == sorted(expected)
    assert together == alone


class Letters(Resource):
    """The first letters of the texts, counted."""

    reads_corpus = divisible = True

    def start(self, _context):
        self.counts = torch.zeros(128, dtype=torch.int64)

    def read(self, examples):
        for example in examples:
            if not isinstance(example, str):
                self.counts[ord(example.text[0]) % 128] += 1

    def state(self):
        return {"counts": self.counts}

    def add(self, state):
        self.counts = self.counts + state["counts"]

    def finish(self):
        return self.counts.tolist()

    def digest(self, value):
        return str(value)


def test_processes_count_a_corpus_once_for_a_resource(monkeypatch):
    """Three processes, each of which reads its share, against one."""
    monkeypatch.setattr(batching, "LOOKAHEAD", 4)
    corpus = Listed([Example(f"{chr(97 + n % 7)} word") if n % 5 else "empty" for n in range(23)])
    context = ResourceContext(None, None, 0)
    alone = prepare_resources({"letters": Letters()}, context, lambda _: corpus)["letters"]
    sent = []
    for rank in range(3):
        readers = Readers(ProcessGroup(rank, 3).windows, gathered=lambda states: sent.append(states) or sent)
        together = prepare_resources({"letters": Letters()}, context, lambda _: corpus, readers)["letters"]
    assert together.value == alone.value
    assert all(states["letters"]["counts"].sum() > 0 for states in sent)


def test_counts_of_compared_pairs_are_copied_and_add_up():
    counts = CorpusCounts(read=3, used=2, tokens=9)
    counts.of_compared().add(CorpusCounts(read=3, used=1, tokens=5, skipped=Counter({"no pair": 2})))
    copied = counts.copy()
    assert copied == counts
    counts.add(copied)
    assert counts.compared == CorpusCounts(read=6, used=2, tokens=10, skipped=Counter({"no pair": 4}))
    assert (copied.all_tokens, counts.all_tokens) == (14, 28)
