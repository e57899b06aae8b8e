"""Attention sinks and massive activations: their formulas against SciPy and NumPy; an oracle has what is published."""

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.scenarios import random_batch
from normscope.analyses import massive_activations as massive_search
from normscope.analyses.base import AnalysisContext
from normscope.analyses.declarations.sinks import SinkInput, SinksOptions
from normscope.analyses.massive_activations import MassiveSearch
from normscope.analyses.sinks import Variant, _summary, long_enough, sequences_of
from normscope.data.token_texts import Vocabulary
from normscope.maths import massive
from normscope.maths.masks import Mask
from normscope.maths.massive import largest_magnitudes, massive_activations, median_magnitudes
from normscope.maths.sinks import queries_of_keys
from normscope.models.load.task_heads import Head
from tests.oracles import specimens
from tests.oracles.specimens import WORDS, Specimen
from tests.tiny import FAMILY_CONFIGS

LENGTH = 16
CATEGORIES = ["first", "punctuation", "other"]


def texts() -> list[tuple[str, str | None]]:
    """Twelve random texts, three of them shorter than LENGTH."""
    generator = np.random.default_rng(0)
    lengths = [5, 9, LENGTH - 1, LENGTH, *range(LENGTH + 1, LENGTH + 9)]
    return [(" ".join(generator.choice(WORDS, size=length)), None) for length in lengths]


def gpt_oss() -> Specimen:
    """A model with a learned score of no key in every softmax."""
    tokenizer = specimens._tokenizer(["[UNK]", "[BOS]", *WORDS], None)
    tokenizer.add_special_tokens({"unk_token": "[UNK]", "bos_token": "[BOS]"})
    torch.manual_seed(0)
    config = AutoConfig.for_model(**FAMILY_CONFIGS["gpt_oss"] | {"vocab_size": len(tokenizer), "use_cache": False})
    whole = AutoModelForCausalLM.from_config(config).double().eval().requires_grad_(False)
    for parameter in whole.base_model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    whole.base_model.float()  # grouped products of experts know no float64
    loaded = specimens._loaded(whole.base_model, tokenizer, "gpt_oss", {Head.NEXT_TOKEN: whole})
    return Specimen(loaded, lambda *_: pytest.fail("no brute force"), (), lambda *_: "", texts())


@pytest.mark.parametrize(
    ("value", "median", "massive"),
    [(100.0, 0.01, False), (100.5, 0.1, True), (100.5, 0.1006, False), (-3000.0, 2.9, True), (2900.0, 2.91, False)],
)
def test_both_thresholds_of_massive_activations(value, median, massive):
    vectors = torch.full((2, 3, 5), median, dtype=torch.float64)
    vectors[1, 2, 4] = value
    vectors[0, 1] = 1e6  # padding
    mask = torch.tensor([[True, False, False], [True, True, True]])
    result = massive_activations(vectors, mask)
    assert result.places.tolist() == ([[1, 2, 4]] if massive else [])
    assert math.isnan(float(result.medians[0]))
    assert float(result.medians[1]) == pytest.approx(median) if abs(value) > 100 else math.isnan(result.medians[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_medians_bit_by_bit_are_numpys(dtype):
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(4, 5, 7, dtype=dtype, generator=generator)
    vectors[3] = vectors[3].round()  # many are equal, and zero
    vectors[1, 0, 0] = torch.inf
    mask = torch.arange(5) < torch.tensor([5, 4, 1, 5])[:, None]
    expected = [np.median(row[tokens].abs().numpy()) for row, tokens in zip(vectors, mask, strict=True)]
    assert median_magnitudes(vectors, mask).tolist() == expected


@pytest.mark.parametrize("tokens", [997, 998])
@pytest.mark.parametrize("period", [0, 1, 2])
def test_a_misleading_sample_does_not_change_the_median(tokens, period):
    """With a period of one, the sample sees nothing but the largest values."""
    values = torch.rand(tokens, 15, generator=torch.Generator().manual_seed(0))
    stride = values.numel() // massive._SAMPLE | 1
    if period:
        values.view(-1)[:: period * stride] += 5
    values.view(-1)[1] = 1000 * values.median() + 6000
    result = massive_activations(values[None], torch.ones(1, tokens, dtype=torch.bool))
    assert result.medians.tolist() == [np.median(values.numpy())]


def test_massive_activations_are_the_same_if_nothing_may_wait(monkeypatch):
    """A layer is seen again when a large value is new to it, and when more tokens carry massive activations than were kept."""
    context: Any = SimpleNamespace(depth=1, model=40, vocabulary=Vocabulary())
    at_once, later = MassiveSearch(context), MassiveSearch(context)
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(10) < torch.tensor([10, 6, 10])[:, None]
    seen_again = []
    for carriers in ([], [3], [0, 2], list(range(9)), list(range(9)), [4]):
        batch = dataclasses.replace(random_batch((3, 10), 50), token_mask=mask)
        vectors = torch.randn(2, 3, 10, 40, generator=generator)
        vectors[1, 0, carriers, 7] = -3000.0
        vectors[1, 2, 5, 6] = 150.0  # large, not massive
        vectors[:, ~mask] = 1e6
        monkeypatch.setattr(massive_search, "host_waits", lambda _device: False)
        for layer in (0, 1):
            at_once.update(layer, vectors[layer], batch, largest_magnitudes(vectors[layer], mask))
        monkeypatch.setattr(massive_search, "host_waits", lambda _device: True)
        later.update(1, 200 * vectors[1], batch, largest_magnitudes(200 * vectors[1], mask))
        later.start_batch()  # what did not fit is forgotten
        for layer in (0, 1):
            later.update(layer, vectors[layer], batch, largest_magnitudes(vectors[layer], mask))
        seen_again.append(later.again(batch))
        for layer in seen_again[-1]:
            later.update_again(layer, vectors[layer], batch)
    assert seen_again == [[1], [], [], [1], [], []]
    assert set(at_once.table()["position"]) == set(range(1, 10))
    pd.testing.assert_frame_equal(at_once.table(), later.table())
    torch.testing.assert_close(at_once.carriers(), later.carriers(), equal_nan=True)


def test_passes_that_wait_for_nothing_find_the_same(monkeypatch):
    specimen, options = specimens.massive(), SinksOptions(length=4, seed=0, inputs=[SinkInput.text], ablation=False)
    expected = specimen.findings("sinks", options, [1, 2, 3], ["all"]).tables["massive"]
    monkeypatch.setattr(massive_search, "host_waits", lambda _device: True)
    assert len(expected)
    pd.testing.assert_frame_equal(specimen.findings("sinks", options, [1, 2, 3], ["all"]).tables["massive"], expected)


@pytest.mark.parametrize("first", [None, 1])
@pytest.mark.parametrize("begins", [0, 1])
@pytest.mark.parametrize("words", range(3, 9))
def test_a_sequence_is_long_enough_if_a_variant_can_be_cut_from_it(first, begins, words):
    """With or without a token that begins it, and with one that ends it."""
    vocabulary = Vocabulary(size=20, special=frozenset({1, 2}), first=first)
    context = AnalysisContext([1], CATEGORIES, {}, vocabulary=vocabulary)
    ids = np.array([*([1] if begins else []), *range(3, 3 + words), 2])
    packed = torch.full((6, len(ids)), -1)
    packed[0] = torch.from_numpy(ids)
    options = SinksOptions(length=7, seed=0)
    variants = [Variant(SinkInput.text, bos) for bos in ((True, False) if first is not None else (False,))]
    made = {variant.bos: sequences_of(variant, [packed], options, context) for variant in variants}
    assert long_enough(ids, options.length, context) == any(made.values())
    for bos, sequences in made.items():
        for sequence in sequences:
            kept = ids[begins if first is not None else 0 :]
            by_hand = [*([1] if bos else []), *kept[: options.length - bos - 1], 2]
            assert sequence[0].tolist() == by_hand


def test_queries_that_see_a_key():
    mask = torch.tensor([[True, True, True, False], [True, True, True, True]])
    assert queries_of_keys(mask, None)[1].tolist() == [4, 4, 4, 4]
    assert queries_of_keys(mask, Mask(keys=mask))[0, :3].tolist() == [3, 3, 3]
    causal = queries_of_keys(mask, Mask(causal=True))
    assert causal[0, :3].tolist() == [3, 2, 1]
    assert causal[1].tolist() == [4, 3, 2, 1]
    window = Mask(allowed=lambda _b, _h, query, key: (query >= key) & (query - key < 2), reach=2)
    assert queries_of_keys(mask, window)[1].tolist() == [2, 2, 2, 1]


@pytest.mark.slow
def test_weight_that_goes_nowhere_is_what_transformers_gives_no_key():
    specimen = gpt_oss()
    layers = list(range(1, specimen.loaded.layers + 1))
    options = SinksOptions(length=LENGTH, seed=0, inputs=[SinkInput.text], ablation=False)
    findings = specimen.findings("sinks", options, layers, CATEGORIES)
    learned = findings.tables["by_head"].query("not bos and position == 'nowhere'")
    model, expected = specimen.loaded.model, []
    model.set_attn_implementation("eager")
    for text, _ in texts():
        ids = specimen.loaded.tokenizer(text, return_tensors="pt")["input_ids"][:, :LENGTH]
        if ids.shape[1] == LENGTH:
            attentions = torch.stack(model(input_ids=ids, output_attentions=True).attentions)[:, 0]
            expected.append(1 - attentions.sum(dim=-1).mean(dim=-1))
    nowhere = learned.pivot_table(index="layer", columns="head", values="mass").to_numpy()
    assert nowhere.min() > 0.001
    np.testing.assert_allclose(nowhere, torch.stack(expected).mean(dim=0).numpy(), rtol=1e-4)
    assert findings.metrics["text/without_bos/mass/nowhere"] == pytest.approx(nowhere.mean())
    assert findings.metrics["text/without_bos/contribution/nowhere"] == 0
    assert any("learned sinks take" in str(sentence) for sentence in findings.sentences)


@pytest.mark.parametrize("sink", ["first", "sep"])
def test_the_summary_has_the_weight_of_the_first_token_beside_that_of_another_sink(sink):
    rows = [
        {"inputs": "text", "bos": True, "position": position, "sink_rate": rate, "mass": mass, "contribution": 0.01}
        for position, rate, mass in (("first", 0.2, 0.1), ("first", 0.4, 0.3), ("sep", 0.6, 0.5), ("sep", 0.8, 0.7))
    ]
    (row,) = _summary(pd.DataFrame(rows), sink, "[CLS]").to_dict("records")
    of_sink = {"first": (30, 20), "sep": (70, 60)}[sink]
    name = {"first": "the first token", "sep": "[SEP]"}[sink]
    expected = {f"sink rate of {name} %": of_sink[0], "its weight %": of_sink[1], "its contribution %": 1}
    if sink != "first":
        expected["first token's weight %"] = 20
    assert row == pytest.approx(expected)
