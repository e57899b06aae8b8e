"""Annotated words: treebanks in CoNLL-U, rows with words and labels, the words of tokens, categories from a column."""

import gzip
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from normscope.data.annotation import WITHOUT_FORMS, column_values, spaced
from normscope.data.batching import batches, collate, unpacked
from normscope.data.corpora import NumberedCorpus, open_corpus
from normscope.data.encoding import Encoder
from normscope.data.examples import ROOT, CorpusCounts, Example
from normscope.data.options import DatasetKind, DatasetOptions
from normscope.data.words import NO_WORD
from normscope.errors import InputError
from tests.end_to_end.shell import draw_nothing, run_here
from tests.treebank import TEXTS, TREEBANK, write_treebank
from tests.unit.test_data import Reader


def options(path, **more) -> DatasetOptions:
    return DatasetOptions(kind=DatasetKind.conllu, path=str(path), seed=0, **more)


def read(path, **more) -> list[Example | str]:
    return list(open_corpus(options(path, **more)).examples())


def word(example: Example, index: int) -> str:
    start, end = example.annotation.spans[index]
    return example.text[start:end]


def test_a_treebank_is_read_with_its_words_heads_and_relations(tmp_path):
    path = write_treebank(tmp_path)
    examples = read(path)
    assert [example.text for example in examples] == TEXTS
    first, second, *_ = examples
    assert [word(first, index) for index in range(9)] == "The old cat does n't see the river .".split()
    assert first.annotation.heads == (2, 2, 5, 5, 5, ROOT, 7, 5, 5)
    assert first.annotation.columns["deprel"][:3] == ("det", "amod", "nsubj")
    # `zum` spells neither `zu` nor `dem`: both have all of it. The empty node 8.1 is no word.
    assert [word(second, index) for index in (2, 3)] == ["zum", "zum"]
    assert len(second.annotation.spans) == 9
    assert second.annotation.columns["upos"][8] == "PUNCT"
    assert open_corpus(options(path)).total == 4


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_marks_and_compression_change_nothing(tmp_path, line_end, mark):
    path = tmp_path / "odd.conllu.gz"
    path.write_bytes(gzip.compress((mark + TREEBANK.replace("\n", line_end)).encode()))
    assert read(path) == read(write_treebank(tmp_path))
    assert open_corpus(options(path)).total is None


def test_words_keep_the_white_space_of_the_text(tmp_path):
    path = tmp_path / "a.conllu"
    rows = "".join(f"{n}\t{form}\t_\tX\t_\t_\t_\t_\t_\t_\n" for n, form in enumerate(("Ann", "sings"), 1))
    path.write_text(f"# text = Ann\u00a0 sings\n{rows}\n# text = something else\n{rows}")
    one, other = read(path)
    assert (one.text, word(one, 1)) == ("Ann\u00a0 sings", "sings")
    assert (other.text, word(other, 1)) == ("Ann sings", "sings")
    assert one.annotation.heads is None


LINE = "1\tdogs\tdog\tNOUN\tNNS\t_\t0\troot\t_\t_"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("# fine\n" + LINE.replace("\t", " "), "line 2: expected 10 columns separated by tabs .*, got 1"),
        (LINE + "\n\n" + LINE + "\tmore", "line 3: expected 10 columns separated by tabs .*, got 11"),
        ("EU NNP I-NP I-ORG\n", "line 1: expected 10 columns"),
        (LINE.replace("NOUN", ""), "line 1: the column upos is empty"),
        (LINE.replace("\t0\t", "\t3\t"), "line 1: the head 3 does not exist: the sentence has 1 word"),
        (LINE.replace("\t0\t", "\t-1\t"), "line 1: the head -1 does not exist"),
        (LINE.replace("\t0\t", "\tx\t"), "line 1: invalid head x; expected the number of a word, 0 for the root, or _"),
        (LINE.replace("\t0\t", "\t1.1\t"), "line 1: invalid head 1.1; expected the number of a word"),
        ("2-1" + LINE[1:], "line 1: invalid id 2-1; expected the number of a word, a range"),
        (LINE.replace("\t0\t", "\t" + "9" * 5000 + "\t"), "line 1: invalid head 999"),
        (LINE.replace("\t0\t", "\t1\t"), "line 1: the heads form a cycle: 1 → 1"),
        (
            "\n".join(
                [LINE, LINE.replace("1\t", "2\t", 1).replace("\t0\t", "\t3\t"), "3" + LINE[1:].replace("0", "2")]
            ),
            "line 2: the heads form a cycle: 2 → 3 → 2",
        ),
        (LINE + "\n" + "2" + LINE[1:].replace("\t0\t", "\t_\t"), "line 2: the word has no head"),
        (LINE + "\n3" + LINE[1:], "line 2: expected word 2 of the sentence, got 3"),
        ("x" + LINE[1:], "line 1: invalid id x"),
        ("1-3\tdogs" + "\t_" * 8 + "\n" + LINE, "line 1: the multi-word token 1-3 does not fit"),
        (LINE + "\n1-2\tdogs" + "\t_" * 8 + "\n2" + LINE[1:], "line 2: the multi-word token 1-2 does not fit"),
        ("", "the file is empty"),
    ],
)
def test_a_broken_file_is_located(tmp_path, content, message):
    path = tmp_path / "broken.conllu"
    path.write_text(content)
    with pytest.raises(InputError, match=f"dataset.path=.*broken.conllu: {message}"):
        read(path)


def test_another_encoding_is_located(tmp_path):
    path = tmp_path / "latin.conllu"
    path.write_bytes((LINE + "\n").encode() + LINE.replace("dogs", "caf\xe9s").encode("latin-1"))
    with pytest.raises(InputError, match="latin.conllu: line 2, byte .*: not UTF-8"):
        read(path)
    path.write_text(LINE, encoding="utf-16")
    with pytest.raises(InputError, match="line 1, byte 0: not UTF-8"):
        read(path)


def without_text(treebank):
    """What is published of a treebank whose text may not be: `_` in place of every form."""
    lines = [line.split("\t") for line in treebank.splitlines()]
    return "".join("\t".join([line[0], "_", *line[2:]] if len(line) > 1 else line) + "\n" for line in lines)


def test_a_treebank_without_its_text_is_refused(tmp_path):
    path = tmp_path / "stripped.conllu"
    path.write_text(without_text(TREEBANK))
    with pytest.raises(InputError, match=r"dataset\.path=.*: expected words, got a treebank without its text"):
        read(path)
    with pytest.raises(InputError, match="without its text"):
        column_values(open_corpus(options(path)), "upos")
    # Sentences without text among others are skipped and counted; a word `_` among others is a word.
    path.write_text(without_text(TREEBANK) + "\n" + TREEBANK)
    whole = read(write_treebank(tmp_path))
    assert read(path) == [WITHOUT_FORMS] * len(whole) + whole
    path.write_text("1\t_\t_\tSYM\t_\t_\t0\troot\t_\t_\n2\ta\t_\tDET\t_\t_\t1\tdet\t_\t_\n")
    assert [example.text for example in read(path)] == ["_ a"]


def test_rows_of_words_without_their_text_are_skipped(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"words": ["_", "_"], "tags": ["A", "B"]}\n{"words": ["_", "a"]}\n{"text": "_"}\n')
    found = list(open_corpus(DatasetOptions(kind=DatasetKind.text, path=str(path), seed=0)).examples())
    assert [each if isinstance(each, str) else each.text for each in found] == [WITHOUT_FORMS, "_ a", "_"]


def test_a_missing_treebank_is_named(tmp_path):
    with pytest.raises(InputError, match="dataset.path is not set: expected a CoNLL-U file"):
        open_corpus(DatasetOptions(kind=DatasetKind.conllu, seed=0))
    with pytest.raises(InputError, match="no such file"):
        open_corpus(options(tmp_path / "nothing.conllu"))
    with pytest.raises(InputError, match="expected a CoNLL-U file"):
        open_corpus(options(tmp_path))


def encoded(path, tokenizer, **more):
    given = options(path, **more)
    corpus = NumberedCorpus(open_corpus(given))
    values = column_values(open_corpus(given), given.categories) if isinstance(given.categories, str) else ()
    encoder = Encoder(Reader(tokenizer), given, None, values)
    return encoder, encoder.encode([e for e in corpus.examples() if isinstance(e, Example)], CorpusCounts())


def test_tokens_know_their_words(tmp_path, tokenizer):
    _, sequences = encoded(write_treebank(tmp_path), tokenizer)
    plain = tokenizer(TEXTS)["input_ids"]
    assert [sequence.input_ids.tolist() for sequence in sequences] == plain
    first, second, _, last = sequences
    tokens = tokenizer.convert_ids_to_tokens(first.input_ids)
    assert tokens == "[CLS] the old cat doesn ' t see the river . [SEP]".split()
    # `doesn` shares most of its letters with `does`; the rest of `n't` has tokens of its own.
    assert first.words.tolist() == [NO_WORD, 0, 1, 2, 3, 4, 4, 5, 6, 7, 8, NO_WORD]
    assert first.sentence.owners == tuple(range(9))
    # The tokens of `zum` are those of `zu`, and `dem` shares them.
    assert second.sentence.owners == (0, 1, 2, 2, 4, 5, 6, 7, 8)
    assert [second.row, last.row] == [2, 4]
    assert (last.words == 5).sum() == len(tokenizer.tokenize("hippopotamus")) > 1


def test_a_word_inside_a_token_shares_it(tmp_path, tokenizer):
    path = tmp_path / "cannot.conllu"
    path.write_text(
        "1-2\tcannot"
        + "\t_" * 8
        + "\n1\tcan\tcan\tAUX\tMD\t_\t0\troot\t_\t_\n2\tnot\tnot\tPART\tRB\t_\t1\tadvmod\t_\t_\n"
    )
    _, [sequence] = encoded(path, tokenizer)
    assert tokenizer.convert_ids_to_tokens(sequence.input_ids) == ["[CLS]", "cannot", "[SEP]"]
    assert sequence.sentence.owners == (0, 0)


def test_truncated_sentences_keep_the_words_that_are_left(tmp_path, tokenizer):
    _, sequences = encoded(write_treebank(tmp_path), tokenizer, max_length=5)
    assert sequences[0].words.tolist() == [NO_WORD, 0, 1, 2, NO_WORD]
    assert sequences[0].sentence.owners == (0, 1, 2, *[NO_WORD] * 6)
    assert [sequence.cut for sequence in sequences] == [True, True, False, True]


def test_a_column_gives_categories_beside_the_usual_ones(tmp_path, tokenizer):
    encoder, sequences = encoded(write_treebank(tmp_path), tokenizer, categories="upos")
    names = encoder.categories.names
    assert names[:5] == ("cls", "sep", "mask", "punctuation", "other")
    assert names[5:] == ("ADJ", "ADP", "ADV", "AUX", "DET", "NOUN", "PART", "PRON", "PUNCT", "VERB")
    batch = collate(sequences, encoder)
    first = [names[number] for number in batch.categories[0][batch.token_mask[0]].tolist()]
    assert first == "cls DET ADJ NOUN AUX PART PART VERB DET NOUN PUNCT sep".split(), (
        "there is no second category of punctuation"
    )
    assert [names[number] for number in batch.categories[1][batch.token_mask[1]].tolist()][-2:] == ["PUNCT", "sep"]
    # What is kept of a sequence to run it again keeps its categories.
    again = collate([unpacked(kinds) for kinds in batch.packed().unbind(1)], encoder)
    assert again.categories.tolist() == batch.categories.tolist()


def test_masked_words_are_masks(tmp_path, tokenizer):
    encoder, sequences = encoded(write_treebank(tmp_path), tokenizer, categories="upos", mask_fraction=0.3)
    for sequence in sequences:
        masked = sequence.input_ids == tokenizer.mask_token_id
        assert masked.any()
        categories = encoder.categories.of_sequence(sequence.input_ids, sequence.inherited)
        assert (categories[masked] == encoder.categories.names.index("mask")).all()


def labelled(folder, ending: str, rows: list[dict]):
    path = folder / f"rows{ending}"
    if ending == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_rows_of_words_and_labels(tmp_path, tokenizer, ending):
    rows = [
        {"words": ["Ann", "sings", "!"], "labels": ["PER", "O", "O"]},
        {"words": ["in", "Minneapolis"], "labels": ["O", "LOC"]},
    ]
    path = labelled(tmp_path, ending, rows)
    given = DatasetOptions(kind=DatasetKind.text, path=str(path), seed=0, categories="labels")
    assert [example.text for example in open_corpus(given).examples()] == ["Ann sings !", "in Minneapolis"]
    values = column_values(open_corpus(given), "labels")
    assert values == ("LOC", "O", "PER")
    encoder = Encoder(Reader(tokenizer), given, None, values)
    [batch] = batches(open_corpus(given).examples(), encoder, 100, CorpusCounts())
    names = [encoder.categories.names[number] for number in batch.categories[0][batch.token_mask[0]].tolist()]
    assert names == ["cls", "PER", "O", "O", "sep"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"words": ["a", "b"], "labels": ["X"]}],
            r"row 1 of .*: expected a list of 2 labels \(texts or whole numbers\), one per word, got 1",
        ),
        ([{"words": ["a", "b"], "labels": ["X", None]}], "one per word, got a list with None"),
        (
            [{"words": ["a"], "labels": ["X"]}, {"words": "a b", "labels": ["X"]}],
            "row 2 of .*: expected a list of words ",
        ),
        (
            [{"words": ["a"], "labels": "X"}],
            "row 1 of .*: expected a list of 1 labels .*, one per word, got a value of type str",
        ),
        ([{"words": ["a"]}], "row 1 of .*: expected a list of 1 labels .*, one per word, got none"),
        (
            [{"text": "a b", "labels": ["X", "Y"]}],
            "expected a list of words .*, got a text; for a treebank, set dataset=conll",
        ),
        ([{"words": [], "labels": []}], "the corpus has no annotated words; expected dataset=conllu"),
        ([{"words": ["a"], "labels": ["cls"]}], "'cls' is a value of the column, but also a category of every run"),
        (
            [{"words": [str(n) for n in range(200)], "labels": [str(n) for n in range(200)]}],
            "at most 100 different values",
        ),
    ],
)
def test_wrong_labels_are_explained(tmp_path, tokenizer, rows, message):
    path = labelled(tmp_path, ".jsonl", rows)
    given = DatasetOptions(kind=DatasetKind.text, path=str(path), seed=0, categories="labels")
    with pytest.raises(InputError, match=message):
        Encoder(Reader(tokenizer), given, None, column_values(open_corpus(given), "labels"))


def test_an_unknown_column_of_a_treebank_lists_the_known_ones(tmp_path):
    with pytest.raises(InputError, match="categories=pos: the corpus has no such column; expected one of deprel, deps"):
        column_values(open_corpus(options(write_treebank(tmp_path))), "pos")


def test_words_joined_by_spaces():
    text, spans = spaced([" a", "b c", "d "])
    assert text == "a b c d"
    assert [text[start:end] for start, end in spans] == ["a", "b c", "d"]


@pytest.mark.slow
def test_a_run_reports_parts_of_speech(capsys, monkeypatch, tmp_path, saved_model):
    path = write_treebank(tmp_path, repeats=3)
    folder = tmp_path / "run"
    arguments = [f"model.name={saved_model}", "dataset=conllu", f"dataset.path={path}", "dataset.categories=upos"]
    arguments += ["analysis=[mixing,norms]", "layers=[1]", "tracking=disabled", "report.enabled=false"]
    draw_nothing(monkeypatch)
    outcome = run_here(capsys, monkeypatch, *arguments, f"output_dir={folder}")
    assert outcome.status == 0, outcome.err
    assert " 27 NOUN, 6 PART, 6 PRON," in outcome.said
    table = pd.read_parquet(folder / "tables/mixing_by_layer.parquet")
    assert {"NOUN", "DET", "cls", "all"} <= set(table["category"])
    noun = table[(table["method"] == "attn_w") & (table["category"] == "NOUN")]
    assert set(pd.read_parquet(folder / "tables/norms_by_layer.parquet")["category"]) >= {"NOUN", "DET", "cls"}
    assert np.isfinite(noun["mean"]).all()
    assert int(noun["count"].iloc[0]) == 27


@pytest.mark.slow
def test_a_column_needs_annotated_words(capsys, monkeypatch, tmp_path, saved_model):
    outcome = run_here(
        capsys, monkeypatch, f"model.name={saved_model}", "dataset.categories=upos", f"output_dir={tmp_path / 'run'}"
    )
    assert outcome.status == 2
    assert "dataset.categories=upos: the corpus has no annotated words" in outcome.err
    outcome = run_here(
        capsys, monkeypatch, f"model.name={saved_model}", "dataset.categories=3", f"output_dir={tmp_path / 'run'}"
    )
    assert outcome.status == 2
    assert "expected the name of a column" in outcome.err
