"""Attention sinks and massive activations: planted by hand and found, absent and not found; and the official formula."""

import dataclasses
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.scenarios import random_batch
from normscope.analyses.findings import Findings
from normscope.analyses.sinks import massive as massive_search
from normscope.analyses.sinks.massive import MassiveSearch
from normscope.analyses.sinks.options import SinkInput, SinksOptions
from normscope.data.batching import Batch
from normscope.data.vocabulary import Vocabulary
from normscope.maths import massive
from normscope.maths.magnitude import magnitudes, token_sizes
from normscope.maths.masks import Mask
from normscope.maths.massive import massive_activations, median_magnitudes
from normscope.maths.sinks import concentration, queries_of_keys, strongest_key
from normscope.models.interventions import InterventionRunner
from normscope.models.task_heads import Head
from tests.oracles import specimens
from tests.oracles.specimens import WORDS, Specimen
from tests.tiny import FAMILY_CONFIGS

LENGTH = 16
BEGIN = 1
# The dimension that marks the sink, the one that becomes massive, and a plane of a head that rotary positions hardly turn.
MARK, MASSIVE = 3, 7
STILL = 3
PLANTED = {(2, 1), (2, 3), (3, 2)}
"""Layer and head."""
SIZES = {
    "gpt2": {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64},
    "llama": {
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 24,
        "attention_bias": True,
    },
}
CATEGORIES = ["first", "punctuation", "other"]


def texts() -> list[tuple[str, str | None]]:
    """Twelve random texts, three of them shorter than LENGTH."""
    generator = np.random.default_rng(0)
    lengths = [5, 9, LENGTH - 1, LENGTH, *range(LENGTH + 1, LENGTH + 9)]
    return [(" ".join(generator.choice(WORDS, size=length)), None) for length in lengths]


def specimen_of(family: str, prepare: Callable[[Any], None], sizes: dict[str, Any] | None = None) -> Specimen:
    """A causal model with a head, initialised as transformers does and then prepared."""
    tokenizer = specimens._tokenizer(["[UNK]", "[BOS]", *WORDS], None)
    tokenizer.add_special_tokens({"unk_token": "[UNK]", "bos_token": "[BOS]"})
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, vocab_size=len(tokenizer), use_cache=False, **(sizes or SIZES[family]))
    whole = AutoModelForCausalLM.from_config(config).double().eval().requires_grad_(False)
    prepare(whole.base_model)
    loaded = specimens._loaded(whole.base_model, tokenizer, family, {Head.NEXT_TOKEN: whole})
    return Specimen(loaded, lambda *_: pytest.fail("no brute force"), (), lambda *_: "", texts())


def found(specimen: Specimen, **options: Any) -> Findings:
    chosen = SinksOptions(length=LENGTH, seed=0, controls=2, **options)
    return specimen.findings("sinks", chosen, [1, 2, 3, 4], CATEGORIES)


def plant_gpt2(model: Any) -> None:
    """The position 0 is a sink of PLANTED, and massive in the residual stream between the first and the third layer."""
    for embeddings in (model.wpe, model.wte):
        embeddings.weight.mul_(0.01)  # what stands at position 0 makes hardly a difference
        embeddings.weight[:, [MARK, MASSIVE]] = 0
    model.wpe.weight[0, MARK] = 1.0
    for number, layer in enumerate(model.h, start=1):
        attention, network = layer.attn, layer.mlp
        for linear in (attention.c_attn, attention.c_proj, network.c_fc, network.c_proj):
            linear.bias.zero_()
        attention.c_proj.weight.zero_()
        network.c_proj.weight.zero_()
        attention.c_attn.weight[:, : 2 * 32] = 0  # queries and keys
        for head in range(4):
            if (number, head + 1) in PLANTED:
                attention.c_attn.bias[8 * head] = 8.0
                attention.c_attn.weight[MARK, 32 + 8 * head] = 8.0
                attention.c_attn.weight[MASSIVE, 32 + 8 * head] = 8.0
                attention.c_attn.weight[[MARK, MASSIVE], 64 + 8 * head : 72 + 8 * head] = 0  # the values
    _write(model, model.h, lambda layer: (layer.mlp.c_fc.weight[MARK], layer.mlp.c_proj.weight[0], layer.mlp.c_proj))


def plant_llama(model: Any) -> None:
    """The same at the token that begins a sequence: rotary positions do not know the first place."""
    model.embed_tokens.weight[:, [MARK, MASSIVE]] = 0
    model.embed_tokens.weight[BEGIN] = 0
    model.embed_tokens.weight[BEGIN, MARK] = 1.0
    for number, layer in enumerate(model.layers, start=1):
        attention, network = layer.self_attn, layer.mlp
        for linear in (attention.q_proj, attention.k_proj, attention.o_proj, network.down_proj):
            linear.weight.zero_()
        for head in range(4):
            if (number, head + 1) in PLANTED:
                attention.q_proj.bias[8 * head + STILL] = 8.0
                attention.k_proj.weight[8 * head + STILL, [MARK, MASSIVE]] = 8.0
                attention.v_proj.weight[8 * head : 8 * head + 8, [MARK, MASSIVE]] = 0
        network.up_proj.weight[0] = 0
        network.up_proj.weight[0, [MARK, MASSIVE]] = 1.0
    _write(
        model,
        model.layers,
        lambda layer: (layer.mlp.gate_proj.weight[0], layer.mlp.down_proj.weight[:, 0], layer.mlp.down_proj),
    )


def _write(model: Any, layers: Any, of: Callable[[Any], tuple[torch.Tensor, torch.Tensor, Any]]) -> None:
    """The network of layer 1 writes 3000 at the marked token, that of layer 3 takes it away again."""
    ids = torch.tensor([[BEGIN, 2, 3]])
    for layer, value in ((layers[0], 3000.0), (layers[2], -3000.0)):
        reading, writing, output = of(layer)
        if reading.numel() != 32:  # GPT-2 keeps its weights transposed: one neuron is a column
            layer.mlp.c_fc.weight[:, 0] = 0
            layer.mlp.c_fc.weight[[MARK, MASSIVE], 0] = 10.0
            layer.mlp.c_fc.bias[0] = -30.0  # silent at all other tokens
        else:
            reading.zero_()
            reading[[MARK, MASSIVE]] = 1.0
        taken: list[torch.Tensor] = []
        handle = output.register_forward_pre_hook(lambda _module, args, taken=taken: taken.append(args[0]))
        model(input_ids=ids)
        handle.remove()
        assert taken[0][0, 1:, 0].abs().max() < 1e-9
        writing[MASSIVE] = value / taken[0][0, 0, 0]


PLANT = {"gpt2": plant_gpt2, "llama": plant_llama}


@pytest.fixture(scope="module", params=PLANT)
def planted(request) -> tuple[str, Findings]:
    specimen = specimen_of(request.param, PLANT[request.param])
    return request.param, found(specimen)


def test_planted_sinks_are_found_and_no_others(planted):
    """GPT-2 has its sink at position 0 whatever stands there, Llama at the token that begins a sequence."""
    family, findings = planted
    rates = findings.tables["by_head"]
    first = rates[rates["position"] == "first"]
    assert set(first["bos"]) == {True, False}
    for (layer, head, _, bos), rows in first.groupby(["layer", "head", "inputs", "bos"]):
        has_sink = (layer, head) in PLANTED and (bos or family == "gpt2")
        assert rows["sink_rate"].tolist() == [float(has_sink)], (layer, head, bos)
        # Elsewhere attention is uniform: token i gives 1 / i to the first.
        uniform = sum(1 / i for i in range(1, LENGTH + 1)) / LENGTH
        assert rows["received"].iloc[0] == pytest.approx(1.0 if has_sink else uniform, abs=1e-6)
    share = len(PLANTED) / 16
    summary = findings.tables["summary"].set_index(["inputs", "bos", "position"])["sink_rate"]
    for inputs in ("text", "random", "repeat"):
        assert summary[inputs, True, "first"] == pytest.approx(share)
        assert summary[inputs, False, "first"] == pytest.approx(share if family == "gpt2" else 0.0)
    strongest = findings.tables["strongest"].set_index(["layer", "head", "inputs", "bos"])
    for layer, head in PLANTED:
        row = strongest.loc[(layer, head, "text", True)]
        assert (row["position"], row["token"], row["share"], row["dormant"]) == (1, "[BOS]", 1.0, 1.0)
        assert row["entropy"] == pytest.approx(0, abs=1e-4)


def test_planted_massive_activations_are_found_and_no_others(planted):
    family, findings = planted
    massive = findings.tables["massive"]
    if family == "gpt2":
        assert set(massive["layer"]) == {1, 2}
        assert set(massive["dimension"]) == {MASSIVE}
        assert set(massive["position"]) == {1}
        assert massive.groupby("layer")["sequences"].sum().tolist() == [12, 12]
        assert massive["value"].tolist() == pytest.approx([3000.0] * len(massive), rel=1e-2)  # tokens differ a little
    else:
        assert not len(massive), "the tokenizer adds no beginning of a sequence to the corpus"


@pytest.mark.slow
def test_massive_activations_of_a_beginning_token_appear_and_vanish():
    """With the beginning in the text, as Llama's own tokenizer adds it."""
    specimen = specimen_of("llama", plant_llama)
    started = [(f"[BOS] {text}", None) for text, _ in texts()]
    specimen = Specimen(specimen.loaded, specimen.brute_force, (), specimen.category_of, started)
    findings = found(specimen)
    massive = findings.tables["massive"]
    assert massive[["layer", "dimension", "position", "token", "sequences"]].to_numpy().tolist() == [
        [layer, MASSIVE, 1, "[BOS]", 12] for layer in (1, 2)
    ]
    assert massive["value"].tolist() == pytest.approx([3000.0, 3000.0], rel=1e-9)
    assert (findings.metrics["massive/first_layer"], findings.metrics["massive/last_layer"]) == (1, 2)
    assert findings.curves["massive"].tolist() == [0, 1, 1, 0, 0]
    drains = findings.tables["drains"].set_index(["layer", "head", "key"])
    for layer, head in PLANTED:
        assert drains.loc[(layer, head, "sink"), "v_norm"] == 0
        assert drains.loc[(layer, head, "other"), "v_norm"] > 1e-3
    # Zero at the beginning token takes away what layer 3 would have removed: attention of layer 3's head changes, that of
    # random dimensions does not.
    ablation = findings.tables["ablation"]
    assert set(ablation["from_layer"]) == {2}
    kept = ablation[(ablation["value"] == "mean") & (ablation["removed"] == "outliers")]
    assert kept["change"].abs().max() < 1e-9, "their mean is what they are"
    loss = findings.tables["ablation_loss"].set_index(["value", "removed"])
    assert abs(loss.loc[("mean", "outliers"), "change"]) < 1e-9
    assert abs(loss.loc[("zero", "outliers"), "change"]) > 1e-6


@pytest.mark.parametrize("family", SIZES)
@pytest.mark.slow
def test_random_weights_have_neither(family):
    findings = found(specimen_of(family, lambda _model: None))
    first = findings.tables["by_head"].query("position == 'first'")
    assert (first["sink_rate"] == 0).all()
    assert not len(findings.tables["massive"])
    assert findings.metrics["massive/count"] == 0
    assert "ablation" not in findings.tables


@pytest.mark.parametrize("family", SIZES)
@pytest.mark.parametrize("epsilon", [0.2, 0.3])
@pytest.mark.spread(2)
def test_the_sink_rate_is_the_papers(family, epsilon):
    """Gu et al. 2025: Sink_k = share of layers and heads with Σ_{i≥k} A_ik / (T − k + 1) > ε, on transformers' own weights."""

    def noisy(model: Any) -> None:
        torch.manual_seed(1)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.8)

    specimen = specimen_of(family, noisy)
    findings = found(specimen, epsilon=epsilon, inputs=[SinkInput.text])
    model, tokenizer = specimen.loaded.model, specimen.loaded.tokenizer
    model.set_attn_implementation("eager")
    expected = []
    for text, _ in texts():
        ids = tokenizer(text, return_tensors="pt")["input_ids"][:, :LENGTH]
        if ids.shape[1] == LENGTH:
            attentions = torch.stack(model(input_ids=ids, output_attentions=True).attentions)[:, 0]
            received = attentions[..., 0].sum(dim=-1) / LENGTH  # layer head: the first token is seen by all T
            expected.append((received > epsilon).double())
    summary = findings.tables["summary"].set_index(["bos", "position"])["sink_rate"]
    assert len(expected) == 9
    assert 0 < summary[False, "first"] < 1
    assert summary[False, "first"] == pytest.approx(float(torch.stack(expected).mean()))
    by_head = findings.tables["by_head"].query("position == 'first' and not bos")
    rates = by_head.pivot_table(index="layer", columns="head", values="sink_rate").to_numpy()
    np.testing.assert_allclose(rates, torch.stack(expected).mean(dim=0).numpy())


def test_what_the_model_reads_has_one_length_and_the_right_beginning(monkeypatch):
    """Every variant as it reaches the model."""
    specimen = specimen_of("gpt2", lambda _model: None)
    read: list[torch.Tensor] = []
    observe = InterventionRunner.observe

    def spy(self: InterventionRunner, batches: Batch, *arguments: Any, **keywords: Any) -> None:
        read.append(batches.input_ids)
        observe(self, batches, *arguments, **keywords)

    monkeypatch.setattr(InterventionRunner, "observe", spy)
    findings = found(specimen, ablation=False)
    ids = torch.cat(read)
    assert ids.shape[1] == LENGTH
    assert len(ids) == 3 * (10 + 9), "with a beginning, a text of LENGTH − 1 tokens would be enough"
    own = {tuple(tokens) for tokens in (specimen.loaded.tokenizer(text)["input_ids"] for text, _ in texts())}
    kinds = []
    for row in ids.tolist():
        begins, rest = row[0] == BEGIN, [token for token in row if token != BEGIN]
        assert len(rest) == LENGTH - begins
        assert 0 not in rest, "special tokens are never drawn"
        natural = any(tokens[: len(rest)] == tuple(rest) for tokens in own)
        kinds.append((begins, "repeat" if len(set(rest)) == 1 else "text" if natural else "random"))
    counts = pd.Series(kinds).value_counts().to_dict()
    assert counts == {(bos, kind): 10 if bos else 9 for bos in (True, False) for kind in ("text", "random", "repeat")}
    assert findings.notes[0].startswith("sink rates leave out 2 sequences with fewer than 16 tokens")


def test_texts_that_are_all_too_short_have_no_sink_rates():
    options = SinksOptions(length=60, seed=0, inputs=[SinkInput.text], ablation=False)
    findings = specimen_of("gpt2", lambda _model: None).findings("sinks", options, [1, 2, 3, 4], CATEGORIES)
    assert findings.notes == [
        "no sequence has 60 tokens or more, so sink rates are not measured (analysis.sinks.length)"
    ]
    assert findings.summary.empty
    assert not len(findings.tables["by_head"])
    assert len(findings.tables["drains"])


def test_magnitudes_are_scipys():
    """Padding holds nonsense, which must not count."""
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(3, 7, 40, dtype=torch.float64, generator=generator) ** 3 + 2
    mask = torch.arange(7) < torch.tensor([7, 4, 1])[:, None]
    vectors[~mask] = 1e9
    for row, got in enumerate(magnitudes(vectors, mask).numpy()):
        flat = vectors[row][mask[row]].numpy().ravel()
        far = (np.abs(scipy.stats.zscore(flat)) > 6).mean()
        np.testing.assert_allclose(got, [np.abs(flat).max(), scipy.stats.kurtosis(flat, fisher=False), far], rtol=1e-12)
    assert magnitudes(torch.full((1, 2, 4), 3.0), mask[:1, :2]).tolist() == [[3.0, 0.0, 0.0]]
    single = magnitudes(vectors.float(), mask)
    torch.testing.assert_close(single, magnitudes(vectors, mask), rtol=1e-5, atol=0)


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


def test_the_median_of_an_even_number_is_between_the_middle_two():
    vectors = torch.tensor([[[1.0, 2.0, 4.0, 5000.0]]], dtype=torch.float64)
    assert massive_activations(vectors, torch.ones(1, 1, dtype=torch.bool)).medians.tolist() == [3.0]


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
            at_once.update(layer, vectors[layer], batch)
        monkeypatch.setattr(massive_search, "host_waits", lambda _device: True)
        later.update(1, 200 * vectors[1], batch, token_sizes(200 * vectors[1]))
        later.start_batch()  # what did not fit is forgotten
        for layer in (0, 1):
            later.update(layer, vectors[layer], batch, token_sizes(vectors[layer]))
        seen_again.append(later.again(batch))
        for layer in seen_again[-1]:
            later.update_again(layer, vectors[layer], batch)
    assert seen_again == [[1], [], [], [1], [], []]
    assert set(at_once.table()["position"]) == set(range(1, 10))
    pd.testing.assert_frame_equal(at_once.table(), later.table())
    torch.testing.assert_close(at_once.carriers(), later.carriers(), equal_nan=True)


def test_a_run_whose_passes_wait_for_nothing_finds_what_was_planted(monkeypatch, planted):
    family, findings = planted
    monkeypatch.setattr(massive_search, "host_waits", lambda _device: True)
    again = found(specimen_of(family, PLANT[family]), ablation=False, inputs=[SinkInput.text])
    pd.testing.assert_frame_equal(again.tables["massive"], findings.tables["massive"])


def test_queries_that_see_a_key():
    mask = torch.tensor([[True, True, True, False], [True, True, True, True]])
    assert queries_of_keys(mask, None)[1].tolist() == [4, 4, 4, 4]
    assert queries_of_keys(mask, Mask(keys=mask))[0, :3].tolist() == [3, 3, 3]
    causal = queries_of_keys(mask, Mask(causal=True))
    assert causal[0, :3].tolist() == [3, 2, 1]
    assert causal[1].tolist() == [4, 3, 2, 1]
    window = Mask(allowed=lambda _b, _h, query, key: (query >= key) & (query - key < 2), reach=2)
    assert queries_of_keys(mask, window)[1].tolist() == [2, 2, 2, 1]


def test_the_strongest_key_and_how_concentrated_the_weight_is():
    received = torch.tensor([[[0.0, 2.0, 2.0 + 1e-7, 1.0], [4.0, 0.0, 0.0, 0.0]]], dtype=torch.float64)
    assert strongest_key(received).tolist() == [[1, 0]]
    expected = [scipy.stats.entropy(row) for row in received[0].numpy()]
    np.testing.assert_allclose(concentration(received)[0].numpy(), expected, atol=1e-12)


def test_weight_that_goes_nowhere_is_what_transformers_gives_no_key():
    """gpt-oss has a learned score of no key in every softmax."""

    def noisy(model: Any) -> None:
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        model.float()  # grouped products of experts know no float64

    config = {
        name: value for name, value in FAMILY_CONFIGS["gpt_oss"].items() if name not in ("model_type", "vocab_size")
    }
    specimen = specimen_of("gpt_oss", noisy, config)
    layers = list(range(1, specimen.loaded.layers + 1))
    options = SinksOptions(length=LENGTH, seed=0, inputs=[SinkInput.text], ablation=False)
    findings = specimen.findings("sinks", options, layers, CATEGORIES)
    strongest = findings.tables["strongest"].query("not bos")
    model, expected = specimen.loaded.model, []
    model.set_attn_implementation("eager")
    for text, _ in texts():
        ids = specimen.loaded.tokenizer(text, return_tensors="pt")["input_ids"][:, :LENGTH]
        if ids.shape[1] == LENGTH:
            attentions = torch.stack(model(input_ids=ids, output_attentions=True).attentions)[:, 0]
            expected.append(1 - attentions.sum(dim=-1).mean(dim=-1))
    nowhere = strongest.pivot_table(index="layer", columns="head", values="nowhere").to_numpy()
    assert nowhere.min() > 0.001
    np.testing.assert_allclose(nowhere, torch.stack(expected).mean(dim=0).numpy(), rtol=1e-4)
    assert findings.metrics["text/without_bos/nowhere"] == pytest.approx(nowhere.mean())
    assert any("learned sinks take" in str(sentence) for sentence in findings.sentences)
