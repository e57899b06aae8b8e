"""The script that ranks the tokens of a corpus as the authors' `rank_count_ids.txt` does."""

import sys
from collections import Counter

import numpy as np
import pytest

from experiments.kobayashi2020 import rank_count_ids
from normscope.data.token_frequencies import read
from normscope.errors import InputError

TEXTS = ["the cat sees the river", "the old cat", "it walks ."]


def test_equally_frequent_tokens_share_the_rank_after_all_that_are_more_frequent():
    assert rank_count_ids.ranked(Counter({7: 2, 5: 9, 3: 2, 8: 1})) == [(1, 9, 5), (2, 2, 3), (2, 2, 7), (4, 1, 8)]


def test_the_file_of_a_corpus_holds_counts_of_its_tokens(tmp_path, monkeypatch, tokenizer, capsys):
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "corpus.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    given = [str(tmp_path / "corpus.txt"), str(tmp_path / "ranks.txt"), "--tokenizer", str(tmp_path / "tokenizer")]
    monkeypatch.setattr(sys, "argv", ["rank_count_ids.py", *given])
    rank_count_ids.main()
    assert "tokens occur" in capsys.readouterr().out
    found = read(tmp_path / "ranks.txt", len(tokenizer), "key")
    counts = np.zeros(len(tokenizer), dtype=int)
    for text in TEXTS:
        for token in tokenizer(text)["input_ids"]:
            counts[token] += 1
    assert found.count.tolist() == counts.tolist()
    assert found.rank[counts > 0].tolist() == [1 + int((counts > count).sum()) for count in counts if count]


def test_pairs_are_counted_as_one_sequence(tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "a.jsonl").write_text('{"text": "the cat", "text_pair": "it walks"}\n')
    counts = rank_count_ids.token_counts(tmp_path / "a.jsonl", str(tmp_path / "tokenizer"))
    assert (counts[tokenizer.cls_token_id], counts[tokenizer.sep_token_id]) == (1, 2)


def test_a_missing_corpus_is_named(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        rank_count_ids.token_counts(tmp_path / "nothing.txt", "x")
