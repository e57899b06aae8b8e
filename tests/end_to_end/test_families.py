"""`python run.py model.name=FOLDER` with every analysis, for a small saved model of every kind of family."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModel, PreTrainedTokenizerFast

from normscope.maths.choices import NetworkBias
from normscope.maths.mixing import ratio as mixing_ratio
from normscope.models.families import STACKS, layout_of
from normscope.models.layout import stacked_heads
from normscope.models.loading import run_experts_in_float64
from normscope.models.observer import Observer
from tests.contract.test_layers import brute_force
from tests.end_to_end.shell import draw_nothing, run_here
from tests.tiny import FAMILY_CONFIGS, KINDS, STACK_CONFIGS, tiny_model

TEXTS = [
    "the old river walks, and the cat sees it.",
    "a cat",
    "the river is old. it walks, it sees, and it is cold today",
]


@pytest.fixture(scope="module")
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, as GPT-2 has them: no special token at all."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: number for number, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=120)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, family, byte_tokenizer):
    path = tmp_path_factory.mktemp("families") / family
    limit = "n_positions" if family in ("gpt2", "t5") else "max_position_embeddings"
    config = (FAMILY_CONFIGS | STACK_CONFIGS)[family]
    tiny_model(config | {"vocab_size": 300, limit: 130}, torch.float32).save_pretrained(path)
    byte_tokenizer.save_pretrained(path)
    return path


@pytest.mark.kinds("bert", "gpt2", "deberta-v2", "olmo2", "t5")
@pytest.mark.spread(1)
def test_every_analysis_runs_and_equals_brute_force(capsys, monkeypatch, tmp_path, family, folder, byte_tokenizer):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(TEXTS))
    chosen = ["analysis=[mixing,norms,outliers,score]", "analysis.outliers.dimensions=[3,7]"]
    quick = ["analysis.score.ablation_controls=1", "analysis.score.controls=2", "tracking=disabled"]
    data = ["dataset=text", f"dataset.path={corpus}", "device=cpu"]
    outcome = run_here(
        capsys, monkeypatch, f"model.name={folder}", *chosen, *quick, *data, f"output_dir={tmp_path / 'run'}"
    )
    assert outcome.status == 0, outcome.err
    tables = tmp_path / "run/tables"
    result = json.loads((tmp_path / "run/results.json").read_text())
    assert result["provenance"]["verification_error"] < 1e-4
    expected = reference(family, folder, byte_tokenizer)

    mixing = pd.read_parquet(tables / "mixing_by_layer.parquet").query("category == 'all'")
    assert set(mixing["method"]) == set(expected["ratios"])
    for method, ratios in expected["ratios"].items():
        np.testing.assert_allclose(mixing[mixing["method"] == method]["mean"], ratios, atol=2e-4, err_msg=method)
    norms = pd.read_parquet(tables / "norms_by_layer.parquet").query("category == 'all' and measure == 'alpha_f'")
    np.testing.assert_allclose(norms["sequence_mean"], expected["alpha_f"], rtol=1e-3)
    contributions = pd.read_parquet(tables / "score_contributions.parquet").query("category == 'all'")
    found = contributions.pivot_table(index=["layer", "head"], columns="dimension", values="mean", observed=True)
    scale = np.abs(expected["contributions"]).max()
    np.testing.assert_allclose(found.to_numpy(), expected["contributions"], atol=2e-4 * scale)
    intervention = pd.read_parquet(tables / "score_intervention.parquet")
    assert np.isfinite(intervention[["before", "after"]]).all().all()
    outliers = pd.read_parquet(tables / "outliers_by_category.parquet").query("category == 'all' and dimension == 3")
    np.testing.assert_allclose(outliers["mean"], expected["hidden_3"], atol=1e-3)


@pytest.fixture(scope="module")
def parallel(tmp_path_factory):
    path = tmp_path_factory.mktemp("parallel") / "corpus.jsonl"
    pairs = list(zip(TEXTS, reversed(TEXTS), strict=True))
    rows = [{"text": text, "text_pair": pair} for text, pair in pairs] + [{"text": "nobody translates me"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("stack", ["decoder", "cross"])
@pytest.mark.parametrize(
    "model_type", [pytest.param(name, marks=() if name in KINDS else pytest.mark.slow) for name in sorted(STACKS)]
)
@pytest.mark.spread(1)
def test_stacks_of_an_encoder_decoder(
    capsys, monkeypatch, tmp_path, tmp_path_factory, byte_tokenizer, parallel, model_type, stack
):
    folder = tmp_path_factory.mktemp("stacks") / model_type
    model = tiny_model(STACK_CONFIGS[model_type] | {"vocab_size": 300}, torch.float32)
    model.save_pretrained(folder)
    byte_tokenizer.save_pretrained(folder)
    names = "mixing,norms" if stack == "cross" else "mixing,norms,outliers,score"
    given = [f"analysis=[{names}]", f"model.name={folder}", f"model.stack={stack}", "dataset=text"]
    quick = ["analysis.score.ablation_controls=1", "analysis.score.controls=2", "tracking=disabled", "device=cpu"]
    outcome = run_here(
        capsys, monkeypatch, *given, *quick, f"dataset.path={parallel}", f"output_dir={tmp_path / 'run'}"
    )
    assert outcome.status == 0, outcome.err
    assert "1 example was skipped: without a target text" in outcome.err

    norms = pd.read_parquet(tmp_path / "run/tables/norms_by_layer.parquet").query("measure == 'alpha_f'")
    start = model.config.decoder_start_token_id
    expected = []
    for text, pair in zip(TEXTS, reversed(TEXTS), strict=True):
        source, target = byte_tokenizer(text)["input_ids"], byte_tokenizer(pair)["input_ids"]
        target = [target[-1] if model_type == "mbart" else start, *target[:-1]]
        inputs = {"input_ids": torch.tensor([source]), "decoder_input_ids": torch.tensor([target])}
        masks = {"attention_mask": torch.ones(1, len(source)), "decoder_attention_mask": torch.ones(1, len(target))}
        blocks = []
        with Observer(model.double(), layout_of(model_type, stack)) as observer:
            observer.run(inputs | masks, blocks.append)
        for block in blocks:
            f = torch.einsum("hkd,hdm->hkm", block.value[0], block.parameters.output_weight)
            expected.append((block.weights[0] * f.norm(dim=-1)[:, None]).sum(dim=-1).mean().item())
    everything = norms[norms["category"] == "all"].sort_values("layer")["sequence_mean"]
    np.testing.assert_allclose(everything, np.array(expected).reshape(len(TEXTS), -1).mean(axis=0), rtol=1e-3)


@pytest.mark.parametrize(
    ("model_type", "stack", "methods"),
    [
        ("olmo2", None, ["atb_n", "atbff_n", "atbffresln_n"]),
        ("gpt_neox", None, ["atb_n", "atbff_n", "atbffres_n"]),
        ("marian", "cross", ["atb_n", "atbff_n", "atbffres_n", "atbffresln_n"]),
    ],
    ids=["norm of the output", "parallel", "cross-attention"],
)
@pytest.mark.spread(1)
def test_whole_layers(capsys, monkeypatch, tmp_path, byte_tokenizer, parallel, model_type, stack, methods):
    draw_nothing(monkeypatch)
    config = (FAMILY_CONFIGS | STACK_CONFIGS)[model_type] | {"vocab_size": 300}
    model = tiny_model(config | ({"use_parallel_residual": True} if model_type == "gpt_neox" else {}), torch.float32)
    model.save_pretrained(tmp_path / "model")
    byte_tokenizer.save_pretrained(tmp_path / "model")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(TEXTS))
    given = ["analysis=feedforward", f"model.name={tmp_path / 'model'}", "dataset=text", "device=cpu"]
    given += [f"model.stack={stack}", f"dataset.path={parallel}"] if stack else [f"dataset.path={corpus}"]
    quick = ["tracking=disabled", "report.enabled=false", f"output_dir={tmp_path / 'run'}"]
    outcome = run_here(capsys, monkeypatch, *given, *quick)
    assert outcome.status == 0, outcome.err
    table = pd.read_parquet(tmp_path / "run/tables/feedforward_mixing_by_layer.parquet").query("category == 'all'")
    assert list(dict.fromkeys(table["method"])) == methods

    expected = {method: [[] for _ in range(table["layer"].nunique())] for method in methods}
    for text, pair in zip(TEXTS, reversed(TEXTS), strict=True):
        ids = torch.tensor([byte_tokenizer(text)["input_ids"]])
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if stack:
            target = torch.tensor([[model.config.decoder_start_token_id, *byte_tokenizer(pair)["input_ids"][:-1]]])
            inputs |= {"decoder_input_ids": target, "decoder_attention_mask": torch.ones_like(target)}
        blocks = []
        layout = layout_of(model_type, stack, config=model.config)
        with Observer(model.double(), layout, feed_forward=True) as observer:
            observer.run(inputs, lambda _block: None, None, blocks.append)
        for number, block in enumerate(blocks):
            for stage, (pairs, apart, _) in brute_force(block, NetworkBias.summand).items():
                own = apart if stack else apart + pairs.diagonal(dim1=1, dim2=2).transpose(1, 2)
                others = pairs.sum(dim=2) - (0.0 if stack else own)
                expected[f"{stage}_n"][number].append(mixing_ratio(others.norm(dim=-1), own.norm(dim=-1)).flatten())
    for method, layers in expected.items():
        means = [torch.cat(layer).mean().item() for layer in layers]
        np.testing.assert_allclose(table[table["method"] == method]["mean"], means, atol=2e-4, err_msg=method)


def test_analyses_that_do_not_support_cross_attention_refuse_it(
    capsys, monkeypatch, tmp_path, tmp_path_factory, byte_tokenizer
):
    folder = tmp_path_factory.mktemp("refused") / "marian"
    tiny_model(STACK_CONFIGS["marian"] | {"vocab_size": 300}, torch.float32).save_pretrained(folder)
    byte_tokenizer.save_pretrained(folder)
    given = ["analysis=score", f"model.name={folder}", "model.stack=cross", f"output_dir={tmp_path / 'run'}"]
    outcome = run_here(capsys, monkeypatch, *given)
    assert outcome.status == 2
    assert "analysis=score does not support cross-attention" in outcome.err
    outcome = run_here(capsys, monkeypatch, "model=minilm", "model.stack=cross", f"output_dir={tmp_path / 'run'}")
    assert (outcome.status, "bert has only one stack" in outcome.err) == (2, True)


def reference(family, folder, tokenizer) -> dict:
    """Every vector built, one sequence at a time, in float64, from what the blocks hand out of the model as it is.

    That these parts are the model's own is what `tests/contract/test_families.py` proves; here it is the sums.
    """
    model = AutoModel.from_pretrained(folder, dtype=torch.float64).eval().requires_grad_(False)
    run_experts_in_float64(model)
    model.config.use_cache = False
    layout = layout_of(family)
    if layout.stack is not None:
        model = model.get_encoder()
    layers = len(layout.bind(model))
    sums: dict[str, list] = {"alpha_f": [[] for _ in range(layers)], "hidden": [[] for _ in range(layers + 1)]}
    ratios: dict[str, list[list]] = {}
    totals, pairs = [0.0] * layers, [0] * layers
    for text in TEXTS:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        blocks = []
        with Observer(model, layout, hidden=range(layers + 1)) as observer:
            observer.run(inputs, blocks.append, lambda layer, x: sums["hidden"][layer].append(x[0, :, 3]))
        for number, block in enumerate(blocks):
            alpha, x = block.weights[0], block.inputs[0]
            f = torch.einsum("hkd,hdm->hkm", block.value[0], block.parameters.output_weight)
            vectors = torch.einsum("hqk,hkm->qkm", alpha, f)
            sums["alpha_f"][number].append((alpha * f.norm(dim=-1)[:, None]).sum(dim=-1).mean())
            for method, ratio in explicit_ratios(layout.norm_position, block, alpha, vectors, x).items():
                ratios.setdefault(method, [[] for _ in range(layers)])[number].append(ratio)
            totals[number] = totals[number] + explicit_contributions(block, alpha)
            pairs[number] += int(block.alpha.seen.of()[0, 0].sum())
    return {
        "ratios": {method: [torch.cat(layer).mean().item() for layer in rows] for method, rows in ratios.items()},
        "alpha_f": [torch.stack(layer).mean().item() for layer in sums["alpha_f"]],
        "hidden_3": [torch.cat(layer).mean().item() for layer in sums["hidden"]],
        "contributions": torch.cat([total / n for total, n in zip(totals, pairs, strict=True)]).numpy(),
    }


def explicit_ratios(position, block, alpha, vectors, x) -> dict[str, torch.Tensor]:
    own = torch.arange(len(x))

    def ratio(parts):
        preserved = parts[own, own]
        mixed = (parts.sum(dim=1) - preserved).norm(dim=-1)
        return mixed / (mixed + preserved.norm(dim=-1))

    self_weights = alpha[:, own, own].mean(dim=0)
    others = alpha.sum(dim=-1).mean(dim=0) - self_weights  # with a sink, a row of α adds up to less than one
    found = {
        "attn_w": others / (others + self_weights),
        "attnres_w": others / (others + self_weights + 1),
        "attn_n": ratio(vectors),
    }
    residual = vectors.clone()
    residual[own, own] += x
    norm = block.normalisation
    if position != "branch":
        found["attnres_n"] = ratio(residual)
    if position == "post":
        found["attnresln_n"] = ratio(norm.weight * (residual - residual.mean(dim=-1, keepdim=True)))
    if position == "branch":
        normed = (
            norm.weight
            * vectors
            / (block.attention_output[0].square().mean(dim=-1) + norm.epsilon).sqrt()[:, None, None]
        )
        normed[own, own] += x
        found["attnresln_n"] = ratio(normed)
    return found


def explicit_contributions(block, alpha) -> torch.Tensor:
    """Σ C over visible pairs by moving one dimension at a time: what it adds to the keys, times the queries."""
    weights, x = block.parameters, block.attention_inputs
    found = torch.zeros(alpha.shape[0], x.shape[-1], dtype=torch.float64)
    seen = block.alpha.seen.of()[0].double()
    for dimension in range(x.shape[-1]):
        alone = torch.zeros_like(x)
        alone[..., dimension] = x[..., dimension]
        part = block.key_map(stacked_heads(alone, weights.key_weight, torch.zeros_like(weights.key_bias)))[0]
        found[:, dimension] = ((block.query[0] @ part.transpose(-1, -2)) * seen).sum(dim=(1, 2))
    return found
