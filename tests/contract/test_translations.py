"""The next token of a translation, attributed to source and target, in float64 on tiny random models."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from normscope.attribution.passes import held_translation
from normscope.attribution.scalars import attribute_scalars
from normscope.attribution.translations import attribute_words
from tests.tiny import STACK_CONFIGS

INPUTS = {
    "input_ids": torch.tensor([[7, 5, 9, 30, 2]]),
    "attention_mask": torch.ones(1, 5, dtype=torch.long),
    "decoder_input_ids": torch.tensor([[2, 11, 40]]),
}


def translator(model_type, **changes):
    settings = dict(STACK_CONFIGS[model_type]) | changes
    torch.manual_seed(0)
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    model = AutoModelForSeq2SeqLM.from_config(config).double().eval().requires_grad_(False)
    model.config.use_cache = False
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    if hasattr(model, "final_logits_bias"):
        torch.nn.init.normal_(model.final_logits_bias)
    return model


@pytest.mark.spread(1)
@pytest.mark.parametrize("model_type", ["marian", "bart", "mbart", "m2m_100", "t5", "mt5", "umt5"])
def test_scores_and_biases_add_up_to_the_logit(model_type):
    model = translator(model_type)
    with torch.inference_mode():
        expected = model(**INPUTS).logits[0, -1, 7]
    implementation = model.config._attn_implementation
    passed = held_translation(model, INPUTS)
    found = attribute_scalars(passed, passed.output.logits[0, -1, 7][None])
    torch.testing.assert_close(found.target[0], expected.double(), rtol=1e-5, atol=1e-8)
    assert float(found.error.max()) < 1e-10
    assert found.scores.shape == (1, 8)
    assert float(found.scores.abs().min()) > 0
    assert model.config._attn_implementation == implementation
    assert not any(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.spread(1)
@pytest.mark.parametrize("model_type", ["marian", "bart", "mbart", "m2m_100", "t5", "mt5", "umt5"])
def test_the_logits_of_all_tokens_of_a_target_are_those_of_one_after_the_other(model_type):
    model = translator(model_type)
    found = attribute_words(model, INPUTS)
    assert found.shape == (2, 8)
    for row, token in enumerate(INPUTS["decoder_input_ids"][0, 1:].tolist()):
        # The prefix alone: what follows must not matter.
        inputs = INPUTS | {"decoder_input_ids": INPUTS["decoder_input_ids"][:, : row + 1]}
        passed = held_translation(model, inputs)
        single = attribute_scalars(passed, passed.output.logits[0, -1, token][None])
        both = attribute_scalars(passed, passed.output.logits[0, -1, [token, 7]])
        torch.testing.assert_close(found[row, : 6 + row], single.scores[0], rtol=1e-5, atol=1e-8)
        assert not found[row, 6 + row :].any()
        torch.testing.assert_close(both.scores[:1], single.scores, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(both.bias[:1], single.bias, rtol=1e-10, atol=1e-12)
        assert float(both.error.max()) < 1e-10


@pytest.mark.slow
def test_marian_is_what_one_token_alone_makes_of_the_frozen_layers():
    """Every token's vector goes forward alone, without biases, through layers written out by hand."""
    model = translator("marian")
    with torch.inference_mode():
        seen = model(**INPUTS, output_attentions=True, output_hidden_states=True)
    passed = held_translation(model, INPUTS)
    found = attribute_scalars(passed, passed.output.logits[0, -1, 7][None])
    leaves = torch.cat([passed.sources[0].vectors, passed.sources[1].vectors], dim=1)[0]
    whole = torch.cat([seen.encoder_hidden_states[0], seen.decoder_hidden_states[0]], dim=1)[0]
    torch.testing.assert_close(leaves, whole, rtol=1e-12, atol=1e-12)
    by_hand = []
    for token in range(8):
        alone = torch.zeros_like(leaves)
        alone[token] = leaves[token]
        source, target = alone[:5], alone[5:]
        for layer, x in zip(model.model.encoder.layers, seen.encoder_hidden_states, strict=False):
            source, _ = through(layer, source, x[0])
        for layer, x in zip(model.model.decoder.layers, seen.decoder_hidden_states, strict=False):
            target, _ = through(layer, target, x[0], (source, seen.encoder_last_hidden_state[0]))
        by_hand.append(model.lm_head.weight[7] @ target[-1])
    torch.testing.assert_close(found.scores[0], torch.stack(by_hand), rtol=1e-9, atol=1e-12)


def through(layer, vectors, x, read=None):
    """A part of a layer's inputs, and its inputs, after the layer."""
    vectors, x = _attended(layer.self_attn, layer.self_attn_layer_norm, (vectors, x), (vectors, x), read is not None)
    if read is not None:
        vectors, x = _attended(layer.encoder_attn, layer.encoder_attn_layer_norm, (vectors, x), read, False)
    u = layer.fc1(x)
    g = layer.activation_fn(u)
    added = (vectors @ layer.fc1.weight.T * (g / u)) @ layer.fc2.weight.T
    return _normed(layer.final_layer_norm, vectors + added, x + layer.fc2(g))


def _attended(module, norm, reading, read, causal):
    (vectors, x), (other, y) = reading, read

    def heads(tensor):
        return tensor.unflatten(-1, (module.num_heads, -1)).transpose(0, 1)

    scores = heads(module.q_proj(x)) @ heads(module.k_proj(y)).transpose(1, 2) * module.head_dim**-0.5
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
    weights = scores.softmax(dim=-1)
    part, whole = (
        (weights @ heads(value)).transpose(0, 1).flatten(1) @ module.out_proj.weight.T
        for value in (other @ module.v_proj.weight.T, module.v_proj(y))
    )
    return _normed(norm, vectors + part, x + whole + module.out_proj.bias)


def _normed(norm, vectors, x):
    deviation = (x.var(dim=-1, correction=0, keepdim=True) + norm.eps).sqrt()
    return (vectors - vectors.mean(dim=-1, keepdim=True)) / deviation * norm.weight, norm(x)
