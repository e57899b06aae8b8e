"""Every way to a corpus: formats, several files, segmentation, WikiText, pairs of files, the Hub."""

import gzip
import itertools
import json
import os
import resource
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from normscope.data import categories, hub, lines, text_files, token_frequencies
from normscope.data.batching import batches
from normscope.data.categories import TokenCategories
from normscope.data.corpora import open_corpus
from normscope.data.encoding import Encoder
from normscope.data.examples import CorpusCounts, Example
from normscope.data.options import DatasetKind, DatasetOptions, Quoting, Segmentation
from normscope.data.segmentation import detokenized
from normscope.data.text_files import TextFile, files_left_out
from normscope.errors import InputError
from tests.unit.test_data import Reader

SENTENCES = ["A first, short one.", "naïve — café", "The last."]


def options(path=None, kind=DatasetKind.text, **more) -> DatasetOptions:
    return DatasetOptions(kind=kind, path=None if path is None else str(path), seed=0, **more)


def read(path, **more) -> list[Example | str]:
    return list(open_corpus(options(path, **more)).examples())


def texts(path, **more) -> list[str]:
    return [example.text if isinstance(example, Example) else f"<{example}>" for example in read(path, **more)]


@pytest.mark.parametrize("kind", ["text", "images", "audio"])
def test_a_path_that_does_not_exist_is_named_with_its_key(kind, tmp_path):
    path = tmp_path / "nowhere.wav"
    with pytest.raises(InputError, match=f"^dataset.path={path}: no such file$"):
        open_corpus(options(path, DatasetKind(kind)))


@pytest.mark.parametrize("ending", [".txt", ".jsonl", ".csv", ".tsv", ".txt.gz", ".jsonl.gz", ".csv.gz", ".tsv.gz"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_every_format_agrees(tmp_path, ending, line_end, mark):
    rows = {
        ".txt": SENTENCES,
        ".jsonl": [json.dumps({"text": sentence}) for sentence in SENTENCES],
        ".csv": ["text,n", *(f'"{sentence}",1' for sentence in SENTENCES)],
        ".tsv": ["text\tn", *(f"{sentence}\t1" for sentence in SENTENCES)],
    }[ending.removesuffix(".gz")]
    content = (mark + "".join(row + line_end for row in rows)).encode()
    path = tmp_path / f"corpus{ending}"
    path.write_bytes(gzip.compress(content) if ending.endswith(".gz") else content)
    assert texts(path) == SENTENCES


def test_a_folder_and_a_pattern_are_read_in_order_of_names(tmp_path):
    for number, sentence in enumerate(SENTENCES):
        (tmp_path / f"{number}.txt").write_text(sentence + "\n")
    (tmp_path / ".hidden.txt").write_text("no text")
    (tmp_path / ".cache").mkdir()
    (tmp_path / "README.md").write_text("no text")
    (tmp_path / "LICENSE").write_text("no text")
    assert texts(tmp_path) == SENTENCES
    assert files_left_out(str(tmp_path)) == [".cache", ".hidden.txt", "LICENSE", "README.md"]
    assert files_left_out(str(tmp_path / "0.txt")) == files_left_out("corpus/*") == []
    assert texts(tmp_path / "[12].txt") == SENTENCES[1:]
    assert open_corpus(options(tmp_path)).total == 3
    with pytest.raises(InputError, match=r"dataset.path=.*\*\.csv: no file matches"):
        open_corpus(options(tmp_path / "*.csv"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="the folder has no file with extension .txt"):
        open_corpus(options(tmp_path / "empty"))


def test_every_file_of_a_folder_is_read_or_named(tmp_path):
    row = json.dumps({"text": "One."}) + "\n"
    for name in ("a.jsonl", "b.JSONL"):
        (tmp_path / name).write_text(row)
    (tmp_path / "c.TXT.GZ").write_bytes(gzip.compress(b"Two.\n"))
    assert texts(tmp_path) == ["One.", "One.", "Two."]
    assert open_corpus(options(tmp_path / "b.JSONL")).total == 1
    for name in ("d.json", "e.txt.bz2", "f.jsonl.zst", "g.xz", "h", "i.pdf", "j.conllu", "README.d"):
        (tmp_path / name).write_text(row)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/k.jsonl").write_text(row)
    (tmp_path / "sub/k.txt").write_text("Three.")
    (tmp_path / "readme").mkdir()  # no file about the corpus
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "gone.txt").symlink_to("nowhere")
    with pytest.raises(InputError) as refused:
        open_corpus(options(tmp_path))
    assert (
        "got also d.json, e.txt.bz2, f.jsonl.zst, g.xz, gone.txt, h, i.pdf, j.conllu, pipe.txt, readme/, sub/; if each"
        in str(refused.value)
    )
    # What the message advises reads the files of one kind, wherever they lie.
    pattern = str(refused.value).split("'")[1]
    assert pattern == f"{tmp_path}/**/*.jsonl"
    assert texts(pattern) == ["One.", "One."]
    with pytest.raises(InputError, match=r"got also readme/, sub/; move it away"):
        open_corpus(options(tmp_path / "[brs]*[!z]"))
    for name, hint in {
        "e.txt.bz2": "decompress it",
        "d.json": "name it .jsonl",
        "j.conllu": "set dataset=conllu",
    }.items():
        with pytest.raises(InputError, match=hint):
            open_corpus(options(tmp_path / name))


def test_a_wrong_delimiter_is_named(tmp_path):
    path = tmp_path / "corpus.csv"
    path.write_text("text;n\nA first, short one.;1\n")
    with pytest.raises(
        InputError, match=r"line 2: expected 1 cell as in the header, got 2; check dataset.delimiter=','"
    ):
        read(path)
    assert texts(path, delimiter=";") == SENTENCES[:1]
    path.write_text("text;n\nshort;1\n")
    with pytest.raises(InputError, match="dataset.text_column=text: .* has no such column; expected one of text;n"):
        read(path)


def test_invalid_bytes_are_located_by_line_and_byte(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_bytes("naïve\n".encode() + b"caf\xe9 au lait\n")
    with pytest.raises(InputError, match=r"corpus.txt: line 2, byte 10: not UTF-8 \(0xe9"):
        read(path)
    path = tmp_path / "cut.txt.gz"
    path.write_bytes(gzip.compress(b"one\n" * 1000)[:-10])
    with pytest.raises(InputError, match="not a whole gzip file"):
        read(path)


@pytest.mark.slow
def test_a_line_without_an_end_is_bounded(tmp_path, monkeypatch):
    """The line of a gzip file of 70 KB has 70 MB; that of a sparse file takes no room on the disk."""
    path = tmp_path / "corpus.txt.gz"
    with gzip.open(path, "wb") as stream:
        stream.write(b"one\n")
        for _ in range(70):
            stream.write(bytes(10**6))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"corpus.txt.gz: line 2: expected at most 64 MiB, got more"):
        read(path)
    path = tmp_path / "sparse.txt"
    with path.open("wb") as stream:
        stream.truncate(2**40)
    with pytest.raises(InputError, match=r"line 1: expected at most 64 MiB, got more"):
        read(path)
    with pytest.raises(InputError, match=r"key=file:.*sparse.txt: cannot be read: .*expected at most 64 MiB"):
        categories._lines("key", str(path))
    with pytest.raises(
        InputError, match=r"key=.*sparse.txt: cannot be read: line 1: expected at most 64 MiB, got more"
    ):
        token_frequencies.read(path, 10, "key")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 * 1024  # KiB
    with pytest.raises(InputError, match="key=file:nowhere: no such file"):
        categories._lines("key", "nowhere")
    path.write_bytes(b"\xef\xbb\xbfa\r\nb\n")
    assert [word.strip() for word in categories._lines("key", str(path))] == ["a", "b", ""]
    monkeypatch.setattr(lines, "_LONGEST_LINE", 4)
    path.write_bytes(b"abc\nabcd")  # a line may be as long
    assert [*lines.lines(path)] == ["abc\n", "abcd"]


def test_a_long_search_for_files_is_announced(tmp_path, monkeypatch, caplog):
    (tmp_path / "a.txt").touch()
    slow = text_files.glob.glob
    monkeypatch.setattr(text_files.glob, "glob", lambda *given, **more: time.sleep(0.3) or slow(*given, **more))
    monkeypatch.setattr(text_files, "_SECONDS_SILENT", 0.1)
    assert text_files.find_files(f"{tmp_path}/**/*.txt", "dataset.path") == [tmp_path / "a.txt"]
    assert caplog.messages == [f"dataset.path={tmp_path}/**/*.txt: looking for files that match …"]
    monkeypatch.setattr(text_files, "_SECONDS_SILENT", 60)
    caplog.clear()
    text_files.find_files(f"{tmp_path}/**/*.txt", "dataset.path")
    assert not caplog.messages
    assert not [
        thread
        for thread in threading.enumerate()
        if isinstance(thread, threading.Timer) and not thread.finished.is_set()
    ]


def test_odd_lines_are_text_like_any_other(tmp_path, tokenizer):
    """NUL bytes, ten megabytes without an end, emptiness: nothing is lost without being counted."""
    path = tmp_path / "corpus.txt"
    path.write_bytes(b"a\x00b\n\n   \n" + b"word " * 2_000_000 + b"\nlast\n")
    encoder = Encoder(Reader(tokenizer), options())
    counts = CorpusCounts()
    made = list(batches(open_corpus(options(path)).examples(), encoder, 4096, counts))
    assert (counts.read, counts.used, counts.cut, dict(counts.skipped)) == (5, 3, 1, {"empty": 2})
    assert sum(batch.sequences for batch in made) == counts.sequences == 3


def test_sentences_and_paragraph_pairs_of_documents(tmp_path):
    path = tmp_path / "corpus.jsonl"
    document = "One here. Two there!\nAnd three? Yes.\n\nThe fourth."
    # Lines end as those of files do: not at Unicode's separators, nor at control characters.
    (tmp_path / "lines.jsonl").write_text(json.dumps({"text": "One\u2028still one\x1cstill\x0bone\x85one\r\nTwo"}))
    (lines,) = read(tmp_path / "lines.jsonl", segmentation=Segmentation.pair)
    assert (lines.text, lines.text_pair) == ("One\u2028still one\x1cstill\x0bone\x85one", "Two")
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in (document, "alone")))
    sentences = ["One here.", "Two there!", "And three?", "Yes.", "The fourth."]
    assert texts(path, segmentation=Segmentation.sentence) == [*sentences, "alone"]
    pair, alone = read(path, segmentation=Segmentation.pair)
    paragraphs = ["One here. Two there!", "And three? Yes.", "The fourth."]
    assert isinstance(pair, Example)
    assert (pair.text, pair.text_pair) in list(itertools.pairwise(paragraphs))
    assert alone == "one paragraph"
    drawn = {
        example.text
        for seed in range(20)
        for example in open_corpus(
            DatasetOptions(kind=DatasetKind.text, path=str(path), seed=seed, segmentation=Segmentation.pair)
        ).examples()
        if isinstance(example, Example)
    }
    assert drawn == set(paragraphs[:2])


def test_windows_cover_a_document_and_share_a_stride(tokenizer):
    encoder = Encoder(Reader(tokenizer), options(segmentation=Segmentation.window, stride=4, max_length=12))
    words = [f"w{number}" for number in range(30)]
    whole = tokenizer(" ".join(words), add_special_tokens=False)["input_ids"]
    counts = CorpusCounts()
    examples = [Example(" ".join(words)), Example("short")]
    sequences = encoder.encode(examples, counts)
    inner = [sequence.input_ids[1:-1].tolist() for sequence in sequences[:-1]]
    assert all(len(window) <= 10 for window in inner)
    rebuilt = inner[0] + [token for window in inner[1:] for token in window[4:]]
    assert rebuilt == whole
    assert [sequence.last for sequence in sequences] == [False] * (len(inner) - 1) + [True, True]
    list(batches(examples, encoder, 24, counts := CorpusCounts()))
    assert (counts.read, counts.used, counts.cut) == (2, 2, 0)
    assert counts.sequences == len(sequences)
    with pytest.raises(InputError, match=r"dataset.stride=10: expected 0 to 9"):
        Encoder(Reader(tokenizer), options(segmentation=Segmentation.window, stride=10, max_length=12))


WIKITEXT = """ = Valkyria =
 The game 's story , told in 3 @-@ part chapters , is ( mostly ) new . <unk> praised it .

 = = Gameplay = =
 It has 1 @,@ 000 units .
 = Another =
 One paragraph .
"""


def test_wikitext_becomes_paragraphs_or_articles(tmp_path, tokenizer):
    path = tmp_path / "wiki.txt"
    path.write_text(WIKITEXT)
    first = "The game's story, told in 3-part chapters, is (mostly) new. <unk> praised it."
    found = [text for text in texts(path, wikitext=True) if not text.startswith("<")]
    assert found == [first, "It has 1,000 units.", "One paragraph."]
    [pair] = [e for e in read(path, wikitext=True, segmentation=Segmentation.pair) if isinstance(e, Example)]
    assert (pair.text, pair.text_pair) == (first, "It has 1,000 units.")
    assert detokenized('he said " hello " .') == 'he said "hello".'
    sequences = Encoder(Reader(tokenizer), options(wikitext=True)).encode([Example("<unk> is")], CorpusCounts())
    assert tokenizer.unk_token_id in sequences[0].input_ids


def test_a_limit_counts_examples_and_not_what_is_skipped(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n\none\n\ntwo\nthree\n")
    assert texts(path, limit=2) == ["<empty>", "<empty>", "one", "<empty>", "two"]


def test_two_files_are_read_side_by_side(tmp_path):
    source, target = tmp_path / "source.txt", tmp_path / "target.txt"
    source.write_text("eins\n\ndrei\n")
    target.write_text("one\ntwo\nthree\n")
    found = read(source, pair_path=str(target))
    assert found == [Example("eins", "one"), "empty", Example("drei", "three")]
    target.write_text("one\ntwo\n")
    with pytest.raises(InputError, match="dataset.pair_path: it has 2 rows and the other file more"):
        read(source, pair_path=str(target))


def test_a_hub_dataset_without_a_network_gives_one_line():
    with pytest.raises(InputError, match=r"dataset.path=nobody/nothing: not in the local cache, and the Hub"):
        open_corpus(options("nobody/nothing", kind=DatasetKind.hub))


def test_a_hub_dataset_is_read_row_by_row(monkeypatch):
    import datasets

    rows = datasets.Dataset.from_list([{"sentence": "one"}, {"sentence": ""}, {"sentence": "two"}])
    asked = {}
    monkeypatch.setattr(hub, "hub_reachable", lambda: True)
    monkeypatch.setattr(datasets, "load_dataset", lambda *given, **more: asked.update(given=given, **more) or rows)
    found = texts(
        "some/data", kind=DatasetKind.hub, text_column="sentence", config="c", split="validation", revision="r"
    )
    assert found == ["one", "<empty>", "two"]
    assert asked["given"] == ("some/data", "c")
    assert (asked["split"], asked["revision"]) == ("validation", "r")
    words = datasets.Dataset.from_list([{"tokens": ["EU", "rejects"]}])
    monkeypatch.setattr(datasets, "load_dataset", lambda *_given, **_more: words)
    assert texts("some/data", kind=DatasetKind.hub, text_column="tokens") == ["EU rejects"]


def test_custom_categories(tmp_path, tokenizer):
    words = tmp_path / "words.txt"
    words.write_text("cat\nriver\n")
    own = {
        "negation": ["not", "never"],
        "digits": r"re:\d+",
        "animals": f"file:{words}",
        "punctuation": [",", ".", "!"],
    }
    found = TokenCategories.of(tokenizer, 30522, own)
    assert found.names == ("cls", "sep", "mask", "punctuation", "other", "negation", "digits", "animals")
    ids = tokenizer("not 1984, my cat!", add_special_tokens=True)["input_ids"]
    names = [found.names[index] for index in found.of_sequence(np.array(ids))]
    assert names == ["cls", "negation", "digits", "punctuation", "other", "animals", "punctuation", "sep"]
    causal = TokenCategories.of(tokenizer, 30522, causal=True)
    assert [causal.names[index] for index in causal.of_sequence(np.array(ids))][:2] == ["first", "other"]


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"cls": ["a"]}, "dataset.categories.cls: expected a name"),
        ({"a": ["cat"], "b": ["cat"]}, "'cat' is in both a and b"),
        ({"a": "re:("}, "not a regular expression"),
        ({"a": ["zzzzzzzz"]}, "expected tokens of the vocabulary"),
        ({"a": "re:a{99999999999}"}, "not a regular expression"),
        ({"a": "file:/nowhere"}, "a=file:/nowhere: no such file"),
        ({"a": "file:/dev/zero"}, "no such file"),
        ({"a": "file:~nobody-of-that-name/x"}, "cannot be read: Could not determine home directory"),
        ({"a": "file:" + 5000 * "x"}, "cannot be read: .*File name too long|no such file"),
        ({"a": [["x"]]}, "expected a list of tokens"),
    ],
)
def test_invalid_categories(tokenizer, own, message):
    with pytest.raises(InputError, match=message.replace("(", r"\(") if "expression" not in message else message):
        TokenCategories.of(tokenizer, 30522, own)


def test_a_stray_quotation_mark_does_not_merge_rows(tmp_path):
    """Two stray quotation marks with hundreds of rows between them, which once became a single row."""
    rows = [f"text {number},{number}" for number in range(500)]
    path = tmp_path / "corpus.csv"
    path.write_text("\n".join(["text,n", '"He left,0', *rows, 'She said hi",501']) + "\n")
    with pytest.raises(InputError, match=r"row 1, which starts on line 2: it has more than 20 lines.*quoting=none"):
        read(path)
    assert texts(path, quoting=Quoting.none) == [
        '"He left',
        *(f"text {number}" for number in range(500)),
        'She said hi"',
    ]
    path.write_text('text,n\nfine,0\n"He" left,1\n')
    with pytest.raises(InputError, match=r"row 2, which starts on line 3: not CSV"):
        read(path)
    path.write_text('text,n\nfine,0\n"He left,1\n')
    with pytest.raises(InputError, match=r"row 2, which starts on line 3: not CSV, unexpected end of data"):
        read(path)


def test_quotation_marks_are_text_in_tsv_and_quote_in_csv(tmp_path):
    tabs, commas = tmp_path / "corpus.tsv", tmp_path / "corpus.csv"
    tabs.write_text('text\tn\n"Hi\t1\nhe said "no"\t2\n')
    assert texts(tabs) == ['"Hi', 'he said "no"']
    tabs.write_text('text\tn\n"two\nlines"\t1\n')
    assert texts(tabs, quoting=Quoting.standard) == ["two\nlines"]
    commas.write_text('text,n\n"He said ""no"", and\nleft",1\na "b" c,2\n')
    assert texts(commas) == ['He said "no", and\nleft', 'a "b" c']


def test_rows_of_many_lines_are_read_where_they_are_meant(tmp_path):
    path = tmp_path / "corpus.csv"
    short, long = "\n".join(["line"] * 20), "\n".join(["line"] * 21)
    path.write_text(f'text,n\n"{short}",1\n"{short}",2\n')
    assert texts(path) == [short, short]
    path.write_text(f'text,n\n"{short}",1\n"{long}",2\n')
    with pytest.raises(InputError, match=r"row 2, which starts on line 22.*quoting=multiline"):
        read(path)
    assert texts(path, quoting=Quoting.multiline) == [short, long]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("text", ["One line here", "a b c d e f"])
def test_other_encodings_are_not_text(tmp_path, encoding, text):
    path = tmp_path / "corpus.txt"
    path.write_bytes("".join(f"{text}\n" for _ in range(3)).encode(encoding))
    assert all(isinstance(row, str) for row in read(path))
    assert "mostly control characters (UTF-16 or UTF-32?)" in read(path)


def test_what_nobody_can_see_is_skipped_with_the_reason(tmp_path):
    path = tmp_path / "corpus.jsonl"
    invisible = ["\x00\x00", "\u200b\u200d\ufeff", "\u2800", "\u3164", "\u00ad \u2060", "\ufe0f"]
    visible = ["a\x00b", "\u200bword", "❤\ufe0f", "नमस्ते", "\ue000", "!"]
    rows = [{"text": text} for text in [*invisible, *visible]]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"text": "a", "text_pair": "\u200b"}]))
    expected = ["<no visible character>"] * len(invisible)
    assert texts(path) == [*expected, *visible, "<no visible character in the second text>"]


def test_sequences_of_special_tokens_only_are_skipped(tokenizer):
    counts = CorpusCounts()
    given = [Example(text) for text in ("\u200b", "[SEP] [PAD]", "[CLS]", "漢漢漢", "[MASK]", "word")]
    given += [Example("\u200b", "word"), Example("\u200b", "\u200b")]
    made = Encoder(Reader(tokenizer), options()).encode(given, counts)
    read = [tokenizer.decode(sequence.input_ids[1:-1]) for sequence in made]
    assert (len(made), counts.skipped) == (4, {"special tokens only": 4}), read
    # One word, masked: a special token, but in the place of a word.
    masked = Encoder(Reader(tokenizer), options(mask_fraction=0.5)).encode([Example("word")], counts := CorpusCounts())
    assert (len(masked), counts.skipped.total()) == (1, 0)


def test_texts_without_an_end_are_cut_counted_once_and_fast(tokenizer):
    encoder = Encoder(Reader(tokenizer), options(max_length=12))
    long, unknown = "word " * 2_000_000, "漢" * 10_000_000
    start = time.process_time()
    for given in (
        Example(long),
        Example("short", long),
        Example(long, "short"),
        Example(long, long),
        Example("a", unknown),
    ):
        [sequence] = encoder.encode([given], counts := CorpusCounts())
        assert counts.cut == 1, given.text[:9]
        assert len(sequence.input_ids) == 12
    # A word of ten million letters is one unknown token: nothing is too long, but not all of it was read.
    [sequence] = encoder.encode([Example("a" * 10_000_000)], counts := CorpusCounts())
    assert counts.cut == 1
    assert time.process_time() - start < 10
    [whole] = encoder.encode([Example("short", "word " * 100)], CorpusCounts())
    [part] = encoder.encode([Example("short", long)], CorpusCounts())
    assert whole.input_ids.tolist() == part.input_ids.tolist()
    for given in (Example("a", "b"), Example("x" * 12_000)):
        encoder.encode([given], counts := CorpusCounts())
        assert counts.cut == 0


def test_pairs_are_cut_even_where_singles_become_windows(tokenizer):
    encoder = Encoder(Reader(tokenizer), options(segmentation=Segmentation.window, stride=2, max_length=12))
    [sequence] = encoder.encode([Example("a", "x" * 50_000)], counts := CorpusCounts())
    assert counts.cut == 1
    assert sequence.last


def test_headings_are_recognised_in_time_that_grows_with_the_line(tmp_path):
    path = tmp_path / "wiki.txt"
    headings = ["= Title =", "= = Section = =", "= = = = Deep = = = =", "=  ="]
    paragraphs = ["= no", "no =", "==", "= =", "a = b", "=a =", "= a="]
    path.write_text("\n".join([*headings, *paragraphs, "=" + " =" * 50_000 + "x"]) + "\n")
    start = time.process_time()
    found = texts(path, wikitext=True)
    assert time.process_time() - start < 5
    assert found[: len(headings)] == ["<heading>"] * len(headings)
    assert len(found) == len(headings) + len(paragraphs) + 1
    assert "<heading>" not in found[len(headings) :]


def test_unknown_words_of_wikitext_are_unknown_in_both_texts_of_a_pair(tokenizer):
    [sequence] = Encoder(Reader(tokenizer), options(wikitext=True)).encode([Example("<unk>", "<unk>")], CorpusCounts())
    assert tokenizer.convert_ids_to_tokens(sequence.input_ids.tolist()) == "[CLS] [UNK] [SEP] [UNK] [SEP]".split()


def test_a_parquet_file_whose_footer_is_damaged_is_named(tmp_path):
    """Arrow raises an OSError without a number, as if the system could not read the file."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["A cat."] * 100}), path)
    content = path.read_bytes()
    path.write_bytes(content[:-9] + content[-8:])
    file = TextFile(path)
    assert file.total is None
    with pytest.raises(InputError, match=f"^dataset.path={path}: not a Parquet file: Couldn't deserialize thrift"):
        list(file.examples())
