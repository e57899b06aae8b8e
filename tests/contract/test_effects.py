"""What heads and networks add to a number: identities, and direct logit attribution by hand."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

import normscope
from normscope.attribution.passes import held_pass
from normscope.errors import InputError
from tests.contract.test_answers import causal
from tests.contract.test_attribution_targets import with_head
from tests.one_text import attribute
from tests.tiny import facts_for, token_batch

TEXT = "the lady cracked three eggs"


@pytest.mark.networks
@pytest.mark.kinds
@pytest.mark.spread(5)
@pytest.mark.parametrize("direct", [True, False])
def test_effects_add_up(family, family_model, direct):
    """Direct ones over all parts, total ones in every layer."""
    inputs = token_batch(family_model, (9,))
    passed = held_pass(family_model, facts_for(family), inputs, parts=True)
    generator = torch.Generator().manual_seed(1)
    target = (passed.returned * torch.randn(passed.hidden.shape, generator=generator, dtype=torch.float64)).sum()
    # Together with another scalar, whose effects are its own.
    several = torch.stack([target, -2 * target])
    effects, other = (passed.effects(each, direct=direct) for each in several)
    alone = passed.effects(target, direct=direct)
    for name in ("heads", "networks", "rest", "bias"):
        for found, factor in ((effects, 1), (other, -2)):
            of_alone = factor * getattr(alone, name)
            torch.testing.assert_close(
                getattr(found, name), of_alone, rtol=1e-9, atol=1e-10 * float(of_alone.abs().max())
            )
    size = effects.heads.abs().sum() + effects.rest.abs().sum() + target.detach().abs()
    found = effects.heads.sum(dim=(1, 2))
    if direct:
        found = found.sum() + effects.networks.sum() + effects.rest.sum() + effects.bias.sum()
    else:
        found = found + effects.rest.sum(dim=1) + effects.bias
    assert float((found - target.detach()).abs().max() / size) < 1e-10


def test_direct_effects_of_a_pre_ln_model_are_direct_logit_attribution(tokenizer):
    """Each part's output through the final norm, with its deviation held, and the unembedding: by hand."""
    model = causal("llama", tokenizer)
    head, base, inputs = model.next_token_head, model.model, tokenizer(TEXT, return_tensors="pt")
    number = tokenizer.convert_tokens_to_ids("film")
    networks, heads, last = [], [], []
    handles = [base.norm.register_forward_pre_hook(lambda _module, args: last.append(args[0][0, -1]))]
    for parts in base.layers:
        handles.append(parts.self_attn.o_proj.register_forward_pre_hook(lambda _module, args: heads.append(args[0])))
        handles.append(parts.mlp.register_forward_hook(lambda _module, _args, output: networks.append(output)))
    with torch.inference_mode():
        head(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
    for handle in handles:
        handle.remove()
    deviation = (last[0].square().mean() + base.norm.variance_epsilon).sqrt()
    direction = head.lm_head.weight[number] * base.norm.weight / deviation
    found = attribute(
        model,
        TEXT,
        normscope.NextToken("film", position=len(inputs["input_ids"][0]) - 1),
        by=["layer", "head"],
        direct=True,
    )
    table = found.effects.set_index(["layer", "part"])["value"].sort_index()
    count = base.config.num_attention_heads
    for layer, parts in enumerate(base.layers, start=1):
        slices = parts.self_attn.o_proj.weight.chunk(count, dim=1)
        by_head = heads[layer - 1][0, -1].view(count, -1)
        expected = [float((part @ own) @ direction) for own, part in zip(by_head, slices, strict=True)]
        np.testing.assert_allclose(table.loc[layer, "attention"], expected, rtol=1e-5, atol=1e-8)
        np.testing.assert_allclose(
            table.loc[layer, "network"], float(networks[layer - 1][0, -1] @ direction), rtol=1e-5, atol=1e-8
        )
    assert found.effects["value"].sum() + found.remainder == pytest.approx(found.target)
    strongest = found.strongest(3)
    attention = found.effects[found.effects["part"] == "attention"]
    sizes = attention["value"].abs().sort_values(ascending=False)
    np.testing.assert_allclose(strongest["value"].abs(), sizes.iloc[:3])
    assert "written into the output directly" in found.result.figure().description.caption
    with pytest.raises(InputError, match="figure: expected one of tokens, got 'heads'"):
        attribute(model, TEXT, normscope.NextToken("film")).result.figure("heads")


def test_total_effects_of_an_answer(tokenizer):
    model = causal("gpt2", tokenizer)
    found = attribute(model, TEXT, normscope.Answer("onions film"), by=["layer", "head", "token"])
    table = found.effects
    assert set(table["part"]) == {"attention", "network", "bypass", "bias"}
    adding = table[table["part"] != "network"].groupby("layer")["value"].sum() + found.remainder
    np.testing.assert_allclose(adding, found.target, rtol=1e-9)
    assert table["token"].dropna().tolist() == [found.tokens[at] for at in table["position"].dropna()]
    by_layer = attribute(model, TEXT, normscope.Answer("onions film"), by="layer").effects
    assert list(by_layer.columns) == ["layer", "part", "value"]
    np.testing.assert_allclose(
        by_layer[by_layer["part"] == "attention"]["value"],
        table[table["part"] == "attention"].groupby("layer")["value"].sum(),
    )
    # In the first layer, the parts of a token, through attention and past it, are the token's score but for biases.
    first = table[(table["layer"] == 1) & table["part"].isin(["attention", "bypass"])]
    assert len(first.groupby("position")) == len(found.tokens)


@pytest.mark.spread(1)
@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("level", ["token", "word"])
def test_effects_on_the_difference_between_two_answers(tokenizer, direct, level):
    model, by = causal("gpt2", tokenizer), ["layer", "head", "token"]
    options = {"by": by, "direct": direct, "level": level}
    found = attribute(model, TEXT, normscope.Answer("onions film"), against="film onions film", **options)
    answers = [
        attribute(model, TEXT, normscope.Answer(text), **options) for text in ("onions film", "film onions film")
    ]
    keys = ["layer", "part", "head"]
    difference = [each.effects.groupby(keys, dropna=False)["value"].sum() for each in answers]
    np.testing.assert_allclose(
        found.effects.groupby(keys, dropna=False)["value"].sum(), difference[0] - difference[1], rtol=1e-9, atol=1e-12
    )
    adding = (
        found.effects if direct else found.effects[(found.effects["part"] != "network") & (found.effects["layer"] == 1)]
    )
    assert adding["value"].sum() + found.remainder == pytest.approx(found.target, rel=1e-9)
    named = found.effects.dropna(subset="position")
    assert named["token"].tolist() == [found.tokens[at] for at in named["position"]]
    assert sorted(named["position"].unique()) == list(range(len(found.tokens)))
    assert len(found.strongest(3)) == 3


def test_effects_of_several_targets(tokenizer):
    model = causal("llama", tokenizer)
    targets = [normscope.NextToken(token) for token in ("film", "onions", "eggs")]
    together = attribute(model, TEXT, targets, by=["layer", "head", "token"])
    for target, found in zip(targets, together, strict=True):
        alone = attribute(model, TEXT, target, by=["layer", "head", "token"])
        np.testing.assert_allclose(found.effects["value"], alone.effects["value"], rtol=1e-9, atol=1e-10)


@pytest.mark.slow
def test_effects_in_a_classifier_and_of_words(tokenizer):
    model = normscope.wrap(with_head(AutoModelForSequenceClassification, "bert", vocab_size=len(tokenizer)), tokenizer)
    for level in ("token", "word"):
        found = attribute(model, TEXT, 1, by=["head", "token"], direct=True, level=level)
        assert found.effects["value"].sum() + found.remainder == pytest.approx(found.target)
        assert set(found.effects["token"].dropna()) == set(found.tokens)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"by": "neuron"}, "by: expected some of layer, head, token, got 'neuron'"),
        ({"by": []}, "by: expected some of layer, head, token, got an empty list"),
        ({"by": []}, "expected some of layer, head, token"),
        ({"by": "head"}, "by: expected `layer` among them"),
    ],
)
def test_invalid_groups_are_refused(tokenizer, arguments, message):
    with pytest.raises(InputError, match=message):
        attribute(causal("llama", tokenizer), TEXT, normscope.Answer("onions"), **arguments)
