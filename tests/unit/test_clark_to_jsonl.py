"""The script that writes the released sequences of Clark et al. 2019 as a corpus."""

import json
import os
import pickle

import numpy as np
import pytest

from experiments.kobayashi2020.clark_to_jsonl import convert
from normscope.data.examples import Example
from normscope.data.text_files import TextFile

TOKENS = ["[CLS]", "the", "una", "##ffa", "##ble", "cat", "[SEP]", "it", "walks", "[SEP]"]


@pytest.mark.parametrize("protocol", range(6))
def test_the_texts_of_a_pickle_are_a_corpus(tmp_path, protocol):
    attentions = {"attns": np.ones((2, 2)), "scale": np.float32(1)}
    rows = [{"tokens": TOKENS, **attentions}, {"tokens": ["[CLS]", "naïve", "[SEP]"], **attentions}]
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(rows, protocol=protocol))
    convert(tmp_path / "a.pkl", tmp_path / "a.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert lines == [{"text": "the unaffable cat", "text_pair": "it walks"}, {"text": "naïve"}]
    examples = list(TextFile(tmp_path / "a.jsonl").examples())
    assert examples == [Example("the unaffable cat", "it walks"), Example("naïve")]


class Runs:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_runs_something_is_refused_and_has_not_run(tmp_path, protocol):
    proof = tmp_path / "proof"
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([{"tokens": TOKENS}, Runs(proof)], protocol=protocol))
    with pytest.raises(pickle.UnpicklingError, match=r"refused: it refers to (posix|nt)\.system"):
        convert(tmp_path / "a.pkl", tmp_path / "a.jsonl")
    assert not proof.exists()
    assert not (tmp_path / "a.jsonl").exists()


@pytest.mark.parametrize("content", [{"tokens": TOKENS}, ["text"], [{"words": TOKENS}]])
def test_other_pickles_are_refused(tmp_path, content):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(pickle.UnpicklingError, match="expected a list of sequences with `tokens`"):
        convert(tmp_path / "a.pkl", tmp_path / "a.jsonl")
    assert not (tmp_path / "a.jsonl").exists()
