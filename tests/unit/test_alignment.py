"""Words, links and error rates: by hand, against brute force, and on common mistakes in files."""

import itertools
import json
from re import escape, fullmatch

import numpy as np
import pandas as pd
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from transformers import MarianTokenizer

from normscope.alignment import reference
from normscope.alignment.links import LinkFile, error_rates, evaluate, parsed, pharaoh, punctuated_words
from normscope.analyses.declarations.alignment import DECLARED, AlignmentOptions, LinkFileOptions
from normscope.data.annotation import spaced_words
from normscope.data.corpora import open_corpus
from normscope.data.options import DatasetKind, DatasetOptions
from normscope.data.toy_corpus import ToyCorpus
from normscope.data.words import NO_WORD, token_words
from normscope.errors import InputError
from normscope.results.rollups import roll_up
from normscope.translation.vocabulary import joint_vocabulary

LINKS = st.frozensets(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12)


@pytest.fixture(scope="module")
def subwords():
    texts = [text for pair in ToyCorpus(200, 3).examples() for text in (pair.text, pair.text_pair)]
    return joint_vocabulary(texts, 150, 64)


@pytest.fixture(scope="module")
def slow_tokenizer(tmp_path_factory):
    """Marian's own, which has no offsets."""
    folder = tmp_path_factory.mktemp("marian")
    texts = folder / "texts"
    texts.write_text("\n".join(f"{pair.text}\n{pair.text_pair}" for pair in ToyCorpus(200, 3).examples()))
    sentencepiece.SentencePieceTrainer.train(
        input=str(texts), model_prefix=str(folder / "joint"), vocab_size=120, minloglevel=2
    )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "joint.model"))
    names = ["</s>", "<unk>", *(pieces.id_to_piece(index) for index in range(3, len(pieces))), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({name: index for index, name in enumerate(names)}))
    for side in ("source", "target"):
        (folder / f"{side}.spm").write_bytes((folder / "joint.model").read_bytes())
    return MarianTokenizer(str(folder / "source.spm"), str(folder / "target.spm"), str(folder / "vocab.json"))


def check_words(tokenizer, text, spans, target):
    ids, found, *_ = token_words(tokenizer, text, spans, target=target)
    tokens = tokenizer.convert_ids_to_tokens(ids)
    assert len(found) == len(tokens)
    for index, (start, end) in enumerate(spans):
        spelt = "".join(token for token, word in zip(tokens, found, strict=True) if word == index).replace("▁", "")
        assert fullmatch(escape(spelt.replace("##", "")).replace("<unk>", ".+"), text[start:end]), tokens
    assert found[-1] == NO_WORD, "the end of the sentence is no word"


@pytest.mark.parametrize("target", [False, True])
@pytest.mark.parametrize("segmenter", [spaced_words, punctuated_words])
def test_every_token_is_of_the_word_that_it_spells(subwords, slow_tokenizer, tokenizer, segmenter, target):
    for pair in ToyCorpus(30, 9).examples():
        for tried in (subwords, slow_tokenizer):
            check_words(tried, pair.text, segmenter(pair.text), target)
    text = "unbelievably tokenised sentences , however ."
    check_words(tokenizer, text, segmenter(text), target)


def test_words_and_punctuation_without_spaces_between(subwords):
    text = "der Hund, die Katze!"
    _, found, *_ = token_words(subwords, text, punctuated_words(text))
    assert sorted(set(found.tolist())) == [NO_WORD, 0, 1, 2, 3, 4, 5]
    assert punctuated_words("it's (old).") == [(0, 4), (5, 6), (6, 9), (9, 10), (10, 11)]


@pytest.mark.slow
def test_words_that_the_tokenizer_does_not_know_keep_their_place(slow_tokenizer):
    text = "der 貓 sieht 狗狗 !"
    _, found, *_ = token_words(slow_tokenizer, text, spaced_words(text))
    assert sorted(set(found.tolist())) == [NO_WORD, 0, 1, 2, 3, 4]
    assert [word for word in found.tolist() if word != NO_WORD] == sorted(
        word for word in found.tolist() if word != NO_WORD
    )


def test_words_that_the_tokenizer_drops_have_no_token(tokenizer):
    text = "the \u200d dog"  # a sign that is nothing by itself
    _, found, *_ = token_words(tokenizer, text, spaced_words(text))
    assert set(found.tolist()) == {NO_WORD, 0, 2}


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=1, max_size=6), max_size=8)
)
def test_any_text_gives_words_in_order(subwords, words):
    text = " ".join(words)
    spans = spaced_words(text)
    _, found, *_ = token_words(subwords, text, spans)
    ordinary = [word for word in found.tolist() if word != NO_WORD]
    assert ordinary == sorted(ordinary)
    assert set(ordinary) <= set(range(len(spans)))


def test_links(tmp_path):
    file = tmp_path / "links"
    file.write_text("1-2 2p1\n\n1-1\n")
    first, second, third = LinkFile(file, "gold", base=1).read([(2, 2), (1, 1), (1, 1)])
    assert first.sure == {(0, 1)}
    assert first.possible == {(0, 1), (1, 0)}
    assert not second.possible
    assert third.sure == {(0, 0)}
    flipped = LinkFile(file, "gold", base=1, direction="target-source").read([(2, 2), (1, 1), (1, 1)])
    assert flipped[0].sure == {(1, 0)}
    assert parsed(pharaoh(first.possible)) == first.possible


@pytest.mark.parametrize(
    ("text", "base", "message"),
    [
        ("0-0\n", 0, "expected 2 lines, one per sentence pair; the file has 1"),
        ("0-0\n0-0\n0-0\n", 0, "expected 2 lines, one per sentence pair; the file has more"),
        ("0-0\n0-3\n", 0, "line 2: 0-3 points at target word 3, but the sentence has 2"),
        ("0-0\n1-1\n", 1, "line 1: 0-0 points at source word 0"),
        ("0:0\n\n", 0, "'0:0' is not a link"),
        (f"{'1' * 5000}-1\n\n", 0, "is not a link"),
        ("\n\n", 0, "the file has no link"),
        ("0-0\n0-0\n", 2, "counted from 0 or 1"),
    ],
)
def test_invalid_links(tmp_path, text, base, message):
    file = tmp_path / "links"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        LinkFile(file, "analysis.alignment.gold.path", base=base).read([(2, 2), (2, 2)])


def test_error_rates_where_nothing_is_linked():
    """Without links; without sure links."""
    rates = error_rates(np.array([0, 2]), np.array([0, 0]), np.array([0, 1]), np.array([5, 0]))
    assert {name: rate.tolist() for name, rate in rates.items()} == {
        "aer": [1.0, 0.5], "precision": [0.0, 0.5], "recall": [0.0, 0.0]
    }  # fmt: skip
    assert evaluate([], []) == {"aer": 1.0, "precision": 0.0, "recall": 0.0}


def test_toy_links_point_at_words():
    for pair in ToyCorpus(300, 5).examples():
        source, target = len(pair.text.split()), len(pair.text_pair.split())
        assert pair.links.sure <= pair.links.possible
        assert all(first < source and second < target for first, second in pair.links.possible)
        # Every full stop is linked with its like.
        assert (source - 1, target - 1) in pair.links.sure
        linked = {second for _, second in pair.links.possible}
        assert linked == set(range(target)), "no English word comes from nowhere"
    first, again, other = (list(itertools.islice(ToyCorpus(5, seed).examples(), 5)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize(("rates", "correlation"), [([0.3, 0.2, 0.1], -1.0), ([0.2, 0.2, 0.2], None)])
def test_heads_that_align_equally_well_have_no_rank_correlation(rates, correlation):
    heads = pd.DataFrame({"layer": [1, 1, 2], "head": [1, 2, 1], "mean_norm": [1.0, 2.0, 3.0], "aer": rates})
    layers = pd.DataFrame({"layer": [1, 2], "head": 0, "mean_norm": [2.0, 1.0], "aer": [0.5, 0.6]})
    table = pd.concat([layers, heads]).assign(method="attn_n", setting="awo", precision=0.0, recall=0.0)
    metrics = roll_up(DECLARED, {"aer": table}).metrics
    of_norms = {name.removeprefix("attn_n/awo/"): value for name, value in metrics.items()}
    assert (of_norms["largest_norm_layer/layer"], of_norms["largest_norm_layer/aer"]) == (1, 0.5)
    assert (of_norms["largest_norm_head/layer"], of_norms["largest_norm_head/head"]) == (2, 1)
    assert of_norms.get("heads/spearman_norm_aer") == (correlation and pytest.approx(correlation))


def test_a_file_of_links_that_is_not_text_is_named(tmp_path):
    path = tmp_path / "links"
    path.write_bytes(b"0-0\n\xff\xfe\n")
    with pytest.raises(InputError, match=f"key={path}: .*line 2"):
        LinkFile(path, "key").read([(1, 1), (1, 1)])


def test_no_break_spaces_separate_no_words(subwords, slow_tokenizer, tokenizer):
    """Links count words as fast_align, eflomal and awk do: at spaces and tabs of ASCII."""
    text = "der\u00a0Hund : die\u202f»\u3000Katze\tsieht\x1c \u2028der"
    words = [text[start:end] for start, end in spaced_words(text)]
    assert words == [word.decode() for word in text.encode().split()]
    assert words == ["der\u00a0Hund", ":", "die\u202f»\u3000Katze", "sieht\x1c", "\u2028der"]
    for each in (subwords, slow_tokenizer, tokenizer):
        _, found, *_ = token_words(each, text, spaced_words(text))
        assert set(found.tolist()) <= {NO_WORD, 0, 1, 2, 3, 4}
        assert {0, 1, 3} <= set(found.tolist())


def test_links_of_a_sentence_with_a_no_break_space(tmp_path):
    """Both texts come from lines, the first of which begins with a no-break space that is a word."""
    lines = {"de": "\u00a0 der Hund\u00a0: ja\n", "en": "the dog\u00a0: yes\n", "gold": "0-0 1-0 2-1 3-2\n"}
    for name, line in lines.items():
        (tmp_path / name).write_text(line)
    paths = {"path": str(tmp_path / "de"), "pair_path": str(tmp_path / "en")}
    corpus = open_corpus(DatasetOptions(kind=DatasetKind.parallel, seed=0, **paths))
    options = AlignmentOptions(gold=LinkFileOptions(path=str(tmp_path / "gold")))
    (pair,) = reference.reference(list(corpus.examples()), options).pairs.values()
    assert pair.source == ("\u00a0", "der", "Hund\u00a0:", "ja")
    assert {(pair.source[i], pair.target[j]) for i, j in pair.links.sure} == {
        *{("\u00a0", "the"), ("der", "the"), ("Hund\u00a0:", "dog\u00a0:"), ("ja", "yes")}
    }


def test_marks_are_no_words_beside_punctuation():
    text = "हिन्दी, می\u200cخواهم e\u0301te\u0301."
    words = [text[start:end] for start, end in punctuated_words(text)]
    assert words == ["हिन्दी", ",", "می\u200cخواهم", "e\u0301te\u0301", "."]
