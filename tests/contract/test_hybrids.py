"""Hybrids, gates on the outputs of heads, latent attention, unusual configs: what is exact, and what is refused."""

import functools

import pytest
import torch
import transformers

import normscope
from normscope.attribution.methods import MapMethod, MapStage, defined_methods
from normscope.attribution.vectors import vector_maps
from normscope.errors import InputError
from normscope.maths.choices import ValueBias
from normscope.maths.mixing import OF_STAGE, Method
from normscope.models.blocks.block import AttentionBlock
from normscope.models.blocks.grouped_block import GroupedBlock
from normscope.models.observe.observer import Observer
from normscope.models.observe.reading import facts_of
from normscope.models.prove.verification import verify
from normscope.rounding import numbered
from tests.architectures import tiny_architecture
from tests.oracles.norms_oracle import NO_EXPANSION
from tests.tiny import FAMILY_CONFIGS, tiny_model, token_batch

HYBRIDS = [
    *(
        "bailing_hybrid",
        "bamba",
        "qwen3_5_text",
        "jamba",
        "kimi_linear",
        "lfm2",
        "nemotron_h",
        "olmo_hybrid",
        "qwen3_next",
    ),
    "recurrent_gemma",
]
"""Layers 1 and 3 of 4 have no softmax attention."""
GATED = ["afmoe", "bailing_hybrid", "qwen3_5_text", "lfm3", "qwen3_next"]
LATENT = ["bailing_hybrid", "kimi_linear", "youtu", "deepseek_v2", "deepseek_v3"]
SOME_LAYERS = ["llama4_text"]
"""Only layers 1 and 3 rotate queries and keys, and have norms of them."""
BOTTLENECK = ["mobilebert"]
"""The residual connection carries what the layer makes of its input: in a bottleneck, or by a norm."""
UNUSUAL = {
    "norms of queries and keys with biases": FAMILY_CONFIGS["phi"] | {"qk_layernorm": True},
    "norms on the residual connection": FAMILY_CONFIGS["bloom"] | {"apply_residual_connection_post_layernorm": True},
}
QUICK = {"mobilebert", "llama4_text", "bamba", "qwen3_5_text", "afmoe", "youtu"}
MODELS = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
    for name in dict.fromkeys([*HYBRIDS, *GATED, *LATENT, *SOME_LAYERS, *BOTTLENECK])
] + list(UNUSUAL)


@functools.cache
def observed(model_type):
    """A tiny model, its facts, and its blocks on a padded batch."""
    config = UNUSUAL.get(model_type)
    model = tiny_architecture(model_type) if config is None else tiny_model(config, torch.float64)
    facts, inputs = facts_of(model), token_batch(model, (9, 6))
    blocks: list[AttentionBlock] = []
    with Observer(model, facts) as observer:
        observer.run(inputs, blocks.append)
    return model, facts, inputs, blocks


def factors(block):
    """g of the block, or ones."""
    return torch.ones_like(block.value[:, :, :, :1]) if block.gate is None else block.gate


def contributions(block):
    """α_ij (g_i ⊙ v_j) W_O of every query, key and head, built one by one."""
    gated = factors(block).unsqueeze(3) * block.value.unsqueeze(2)
    return torch.einsum("bhqk,bhqkd,hdm->bhqkm", block.weights, gated, block.parameters.output_weight)


@pytest.mark.spread(2)
@pytest.mark.parametrize("model_type", MODELS)
def test_contributions_add_up_to_what_the_untouched_model_computes(model_type):
    model, facts, _, blocks = observed(model_type)
    assert [block.layer for block in blocks] == facts.attends
    for block in blocks:
        made = contributions(block).sum(dim=(1, 3))
        if block.parameters.output_bias is not None:
            made = made + block.parameters.output_bias
        tokens = block.token_mask
        torch.testing.assert_close(made[tokens], block.attention_output[tokens], rtol=1e-6, atol=1e-6)
    # Which compares the attention output with that of the untouched model.
    assert verify(model, facts, model_type, feed_forward=facts.has_networks).error < 1e-6


@pytest.mark.spread(4)
@pytest.mark.parametrize("model_type", MODELS)
def test_measures_of_a_block_equal_those_of_explicit_vectors(model_type):
    for block in observed(model_type)[-1]:
        by_head = contributions(block)
        pairs, tokens = by_head.sum(dim=1), block.token_mask
        own = torch.arange(pairs.shape[1])
        torch.testing.assert_close(
            block.head_norms(block.weights)[tokens[:, None].expand(-1, by_head.shape[1], -1)],
            by_head.norm(dim=-1)[tokens[:, None].expand(-1, by_head.shape[1], -1)],
        )
        torch.testing.assert_close(
            GroupedBlock.of_tokens(block).maps()[Method.ATTN_N][tokens], pairs.norm(dim=-1)[tokens]
        )
        preserving = pairs[:, own, own]
        mixing = pairs.sum(dim=2) - preserving
        ratio = mixing.norm(dim=-1) / (mixing.norm(dim=-1) + preserving.norm(dim=-1))
        seen = tokens & ~block.alpha.seen.only_itself
        # A causal query that sees one other token with next to no weight has a small difference of large vectors.
        torch.testing.assert_close(block.mixing_ratios[Method.ATTN_N][seen], ratio[seen], rtol=1e-5, atol=1e-6)
        last = OF_STAGE[block.composition.stages[-1]]
        shares = GroupedBlock.of_tokens(block).pair_shares().sum(dim=-1) + block.shares[last].bias
        torch.testing.assert_close(shares[tokens], torch.ones_like(shares[tokens]), rtol=0, atol=1e-6)
        output = block.attention_output
        along = output / output.square().sum(dim=-1, keepdim=True)
        shares_of_keys = torch.einsum("bhqkm,bqm,bq->bhk", by_head, along, tokens.to(along))
        torch.testing.assert_close(block.received_shares(), shares_of_keys, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("model_type", [name for name in MODELS if name in HYBRIDS])
def test_layers_without_softmax_attention_have_hidden_vectors_and_no_block(model_type):
    model, facts, inputs, _ = observed(model_type)
    assert (facts.attends, [*facts.not_measured]) == ([2, 4], [1, 3])
    hidden: dict[int, torch.Tensor] = {}
    with Observer(model, facts, hidden=range(5)) as observer:
        observer.run(inputs, lambda _block: None, lambda layer, vectors: hidden.update({layer: vectors}))
    with torch.inference_mode():
        expected = model(**inputs, output_hidden_states=True).hidden_states
    tokens = inputs["attention_mask"].bool()
    for layer in range(4):  # the last one is given after the final norm
        torch.testing.assert_close(hidden[layer][tokens], expected[layer][tokens])
    with pytest.raises(
        InputError, match="layer 1 of this .* has no softmax attention; expected layers that are measured: 2, 4"
    ):
        facts.check_attends("layers", 1)
    assert defined_methods(facts, None, MapStage.BLOCK) == [MapMethod.DECOMPX]
    with pytest.raises(InputError, match="layers 1, 3 have no softmax attention; use decompx"):
        defined_methods(facts, [MapMethod.ROLLOUT], MapStage.BLOCK)


def test_decompx_through_gates_is_complete():
    """Vectors of tokens and of biases add up to the last hidden vectors; gates are held as α is."""
    model, facts, inputs, _ = observed("afmoe")
    assert defined_methods(facts, None, MapStage.BLOCK) == [MapMethod.ROLLOUT, MapMethod.DECOMPX]
    _, shares = vector_maps(model, facts, inputs, ValueBias.token, keep=False, groups=None)
    tokens = inputs["attention_mask"].bool()
    torch.testing.assert_close(shares.sum(dim=-1)[tokens], torch.ones_like(shares[..., 0][tokens]), rtol=0, atol=1e-6)
    with pytest.raises(InputError, match="alti is not defined for this afmoe: .* gate"):
        defined_methods(facts, [MapMethod.ALTI], MapStage.BLOCK)


def test_only_some_layers_have_norms_of_queries_and_keys():
    """Layers 1 and 3 have norms and rotations of keys: the key is no multiple of x W_K there."""
    for block in observed("llama4_text")[-1]:
        made = block.attention_inputs[:, None] @ block.parameters.key_weight
        assert block.key_map.same_for_all_keys == (block.layer % 2 == 0)
        tokens = block.token_mask[:, None].expand(made.shape[:3])
        torch.testing.assert_close(block.key_map(made)[tokens], block.key[tokens], rtol=1e-6, atol=1e-6)
        assert torch.allclose(made[tokens], block.key[tokens]) == (block.layer % 2 == 0)


@pytest.mark.spread(1)
@pytest.mark.parametrize("inputs_by_layer", [0, 8])
def test_heads_of_layers_may_differ_in_size(inputs_by_layer):
    """Gemma 4: layers differ in the planes that turn, normalise values, add a third branch, and scale their output."""
    config = transformers.Gemma4TextConfig(
        vocab_size=99,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        per_layer_config={"1": {"head_dim": 16}, "3": {"head_dim": 16}},
        layer_types=["sliding_attention", "full_attention"] * 2,
        sliding_window=4,
        vocab_size_per_layer_input=99,
        hidden_size_per_layer_input=inputs_by_layer,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config, dtype=torch.float64).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    for layer in model.layers:
        layer.layer_scalar.fill_(0.7)
    facts, inputs = facts_of(model.requires_grad_(False)), token_batch(model, (9, 6))
    assert not facts.has_value_weights
    assert verify(model, facts, "gemma4_text", feed_forward=True).error < 1e-6
    given: list[torch.Tensor] = []
    for layer in model.layers:
        layer.self_attn.o_proj.register_forward_hook(lambda _module, _args, output: given.append(output))
    blocks: list[AttentionBlock] = []
    with Observer(model, facts) as observer:
        observer.run(inputs, blocks.append)
    given.clear()
    with torch.inference_mode():
        model(**inputs)
    tokens = inputs["attention_mask"].bool()
    assert [block.value.shape[-1] for block in blocks] == [8, 16, 8, 16]
    for block, output in zip(blocks, given, strict=True):
        torch.testing.assert_close(contributions(block).sum(dim=(1, 3))[tokens], output[tokens], rtol=1e-6, atol=1e-6)


def with_bottlenecks(**options):
    """A tiny MobileBERT."""
    sizes = {"true_hidden_size": 16, "intra_bottleneck_size": 16, "embedding_size": 16, "intermediate_size": 40}
    config = transformers.MobileBertConfig(
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=2,
        max_position_embeddings=64,
        pad_token_id=0,
        **sizes | options,
    )
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config, dtype=torch.float64).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.requires_grad_(False)


NO_BOTTLENECK = {"use_bottleneck": False, "true_hidden_size": 32}


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    ("options", "networks"),
    [
        ({}, 0),
        ({"normalization_type": "layer_norm"}, 0),
        ({"use_bottleneck_attention": True, "num_feedforward_networks": 1}, 0),
        ({**NO_BOTTLENECK, "num_feedforward_networks": 3}, 3),
        ({**NO_BOTTLENECK, "num_feedforward_networks": 1}, 1),
    ],
    ids=["bottleneck", "with LayerNorm", "all of attention", "stacked networks", "a BERT"],
)
def test_a_block_inside_a_bottleneck_is_exact(options, networks):
    """y_i = w ⊙ (x_i + Σ_j α_ij f_j + b_O) + b, with x and α·V taken from hooks on the untouched model."""
    model = with_bottlenecks(**options)
    facts, inputs = facts_of(model), token_batch(model, (9, 6))
    assert [block.networks or 0 for block in facts.blocks] == [networks] * 2
    assert verify(model, facts, "mobilebert", feed_forward=facts.has_networks).error < 1e-12
    read: list[tuple[torch.Tensor, ...]] = []
    given: list[torch.Tensor] = []

    def note(_module, args, output):
        read.append(args)
        given.append(output)

    for layer in model.encoder.layer:
        layer.attention.output.register_forward_hook(note)
    blocks: list[AttentionBlock] = []
    with Observer(model, facts) as observer:
        observer.run(inputs, blocks.append)
    read.clear()
    given.clear()
    with torch.inference_mode():
        model(**inputs)
    tokens = inputs["attention_mask"].bool()
    for block, (_, residual), output, layer in zip(blocks, read, given, model.encoder.layer, strict=True):
        vectors = contributions(block).sum(dim=1)
        own = torch.arange(vectors.shape[1])
        torch.testing.assert_close(block.inputs[tokens], residual[tokens])
        vectors[:, own, own] += residual
        normed = layer.attention.output.LayerNorm
        summed = vectors.sum(dim=2) + block.parameters.output_bias
        torch.testing.assert_close(normed(summed)[tokens], output[tokens])
        torch.testing.assert_close(block.composition.block_output[tokens], output[tokens])
        if isinstance(normed, torch.nn.LayerNorm):
            continue
        pairs = (vectors * normed.weight).norm(dim=-1)
        torch.testing.assert_close(GroupedBlock.of_tokens(block).maps()[Method.ATTNRESLN_N][tokens], pairs[tokens])


def test_a_bottleneck_that_mixes_tokens_is_refused():
    """What the residual connection carries would then belong to several tokens."""
    model = with_bottlenecks()
    facts = facts_of(model)
    bottleneck = model.encoder.layer[1].bottleneck.input
    bottleneck.dense = Mixed(bottleneck.dense).eval()
    with pytest.raises(
        InputError,
        match=r"layer 2 .* residual connection carries is made of several tokens' vectors each \(modeling_mobilebert",
    ):
        verify(model, facts, "mobilebert")


def test_measures_of_a_single_vector_for_each_key_refuse_gates():
    block = observed("qwen3_5_text")[-1][0]
    with pytest.raises(InputError, match=r"layer 2: .* gate that depends on the query"):
        _ = block.transformed_norms
    with pytest.raises(InputError, match="gate that depends on the query"):
        block.transformed()


def test_latent_attention_has_no_weights_of_values():
    _, facts, _, blocks = observed("youtu")
    assert not facts.has_value_weights
    assert not facts.has_score_weights
    with pytest.raises(InputError, match="no single linear layer maps what attention reads to the values"):
        _ = blocks[0].parameters.value_weight
    assert defined_methods(facts, None, MapStage.BLOCK) == [MapMethod.ROLLOUT, MapMethod.DECOMPX]
    with pytest.raises(
        InputError, match="alti is not defined .* no single linear layer maps what attention reads to the values"
    ):
        defined_methods(facts, [MapMethod.ALTI], MapStage.BLOCK)


class Mixed(torch.nn.Module):
    """A module whose output for a token also depends on the token before it."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.weight, self.bias = inner, inner.weight, inner.bias

    def forward(self, vectors):
        made = self.inner(vectors)
        return made + 0.01 * torch.nn.functional.pad(made[..., :-1, :], (0, 0, 1, 0))


def test_values_that_mix_tokens_are_refused():
    """Without W_V, no weights show what values are made of."""
    model = tiny_architecture("youtu")
    facts = facts_of(model)
    attention = model.layers[1].self_attn
    attention.kv_b_proj = Mixed(attention.kv_b_proj).eval()
    with pytest.raises(
        InputError, match=r"layer 2 .* values are made of several tokens' vectors each \(modeling_youtu.py, line"
    ):
        verify(model, facts, "youtu")


@functools.cache
def wrapped(model_type):
    # Exact in float32 up to roundings, which runs report.
    return normscope.wrap(tiny_architecture(model_type, torch.float32))


TEXTS = [[5, 6, 7, 8, 9, 10], [11, 12, 13], [5, 9, 14, 20, 7]]
RUN = {
    "bamba": ["mixing", "norms", "outliers", "score", "sinks", "feedforward", "attribution"],
    "afmoe": ["mixing", "outliers", "score", "sinks", "attribution"],
    "youtu": ["mixing", "norms", "outliers", "sinks", "feedforward", "attribution"],
    "mobilebert": ["mixing", "norms", "outliers", "sinks", "frequency"],
}
"""The analyses that each kind of model allows."""


@pytest.mark.slow
@pytest.mark.parametrize(("model_type", "name"), [(kind, name) for kind, names in RUN.items() for name in names])
def test_an_analysis_runs_where_it_is_defined(model_type, name):
    results = normscope.run(name, model=wrapped(model_type), texts=TEXTS * 3)
    assert results.metrics
    without = {
        ("youtu", "norms"): [NO_EXPANSION],
        ("mobilebert", "norms"): [NO_EXPANSION],
    }
    expected = without.get((model_type, name), [])
    assert [note for note in results.notes if "expansion rate" in note] == ["".join(e) for e in expected]
    if name == "norms":
        assert ("norms/expansion/mean" in results.metrics) == ("".join(NO_EXPANSION) not in results.notes)


@pytest.mark.spread(4)
@pytest.mark.parametrize(
    ("model_type", "name", "options", "reason"),
    [
        ("afmoe", "norms", {}, "norms is not defined for .* gate that depends on the query"),
        ("afmoe", "frequency", {}, "frequency is not defined for .* gate that depends on the query"),
        ("afmoe", "feedforward", {}, "feedforward is not defined for .* gate that depends on the query"),
        ("afmoe", "mixing", {"level": "word"}, "level='?word'? is not defined for .* gate that depends on the query"),
        ("youtu", "score", {}, "score is not defined for .* no single linear layer maps .* to the queries or keys"),
        (
            "mobilebert",
            "score",
            {},
            "score is not defined for .* no single linear layer maps .* to the queries or keys",
        ),
        ("mobilebert", "feedforward", {}, "one layer has none, or has its attention inside a bottleneck"),
        ("bamba", "mixing", {"layers": [1]}, "layer 1 of this bamba has no softmax attention"),
    ],
)
def test_an_analysis_that_is_not_defined_says_why(model_type, name, options, reason):
    with pytest.raises(InputError, match=reason):
        normscope.run(name, model=wrapped(model_type), texts=TEXTS, **options)


def test_numbers_of_layers_in_words():
    assert numbered([]) == ""
    assert numbered([1, 2, 4]) == "1, 2, 4"
    assert numbered([5, 1, 2, 3, 7, 8]) == "1–3, 5, 7, 8"
