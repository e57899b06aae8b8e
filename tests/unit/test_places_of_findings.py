"""Findings that name a layer, a head, a category or a token say so in data, from which the map below them opens."""

import json

import numpy as np
import pandas as pd
import pytest

import normscope
from normscope.analyses import feedforward, norms, score, sinks
from normscope.errors import InputError
from normscope.results.findings import Sentence
from normscope.statistics.tidy import tidy


def test_findings_about_a_category_name_it():
    shares = {"alpha/cls": 0.3, "alpha_f/cls": 0.05, "alpha/sep": 0.1, "alpha_f/sep": 0.1, "alpha_f/all": 1.0}
    along = {"share/cls": 0.01, "share/all": 1.0}
    found = norms.sentences_of(shares | along)
    assert [dict(sentence.place) for sentence in found[:3]] == [
        {"category": "cls"},
        {"category": "sep"},
        {"category": "cls"},
    ]
    assert [name in sentence for name, sentence in zip(("[CLS]", "[SEP]", "[CLS]"), found, strict=False)] == [True] * 3
    removed = {f"intervention/{category}/before": 0.3 for category in ("cls", "sep")}
    removed |= {"intervention/cls/after": 0.29, "intervention/sep/after": 0.1}
    (answer,) = score.sentences_of(removed)
    assert answer.place == {"category": "sep"}
    assert "[SEP]" in answer


def test_a_sink_is_the_category_of_its_sentence():
    metrics = {"text/with_bos/sink_rate/sep": 0.5, "text/with_bos/sink_rate/cls": 0.1}
    found = sinks.sentences_of(metrics, "[CLS]", 64)
    assert found[0].place == {"category": "sep"}
    assert "[SEP] tokens" in found[0]


def test_the_layer_that_a_network_changes_most_is_its_place():
    before = pd.Series([0.2, 0.3, 0.3], index=[1, 2, 3])
    after = pd.Series([0.25, 0.1, 0.3], index=[1, 2, 3])
    metrics = {"atb_n/mean": 0.27, "atbffresln_n/mean": 0.22}
    (found,) = feedforward.sentences_of(metrics, {"atb_n/mean": before, "atbffresln_n/mean": after})
    assert (found.place, found.measure) == ({"layer": 2}, "atbffresln_n")
    assert "largest in layer 2" in found


def test_the_strongest_cell_of_a_map_is_the_row_of_its_sentence(saved_model):
    model = normscope.load(saved_model, device="cpu", dtype="float64")
    found = normscope.attribution_maps(model, "the old cat sat", "rollout")
    values = found.maps[0].maps["rollout"][-1]
    row, _ = np.unravel_index(values.argmax(), values.shape)
    assert found.sentences[0].place == {"layer": len(found.maps[0].layers), "token": row}


def test_places_are_kept_in_files_and_damaged_ones_refused(tmp_path):
    place = {"layer": 2, "category": "cls"}
    result = normscope.Result(tables={"a": tidy({"x": np.zeros(1)}, y=[1])}, sentences=[Sentence("So.", place=place)])
    result.save(tmp_path)
    read = normscope.read(tmp_path)
    assert read.sentences[0].place == place
    file = tmp_path / "results.json"
    content = json.loads(file.read_text())
    for damaged in ("cls", [1], {"layer": "2"}, {"text": 1.5}, {"category": 3}, {"what": 1}):
        content["sentences"][0]["place"] = damaged
        file.write_text(json.dumps(content))
        with pytest.raises(InputError, match="expected sentences"):
            _ = normscope.read(tmp_path).sentences
