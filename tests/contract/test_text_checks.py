"""A model that does something else with some texts than with the probes of the proof is refused on these texts.

Every sabotage depends on something that the probes do not have: more than twelve tokens, some token, an even number of tokens,
a late position, a large value. Shorter texts are accepted by the same model.
"""

import contextlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel

import normscope
from normscope.errors import InputError
from normscope.models.observe.check import Check
from normscope.models.observe.feed_forward import FeedForwardBlock
from normscope.models.observe.observer import Observer
from normscope.models.prove.verification import verify
from tests.one_text import attribute, similarity
from tests.tiny import FAMILY_CONFIGS, facts_for, tiny_model

Trigger = Callable[[Tensor], Tensor | float | None]

LONG = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21]
SHORT = [5, 6, 7]


def long(vectors):
    """Texts of more than twelve tokens."""
    return 0.5 if vectors.shape[-2] > 12 else None


def late(vectors):
    """Position 15."""
    if vectors.shape[-2] <= 15:
        return None
    factor = torch.ones_like(vectors[..., :1])
    factor[..., 15:16, :] = 0.5
    return factor


def times(vectors, factor):
    found = factor(vectors)
    return vectors if found is None else vectors * found


def multiplied(module: nn.Module, factor: Trigger) -> None:
    """Let a module return a multiple of what it would."""
    own = type(module)

    def forward(self, *args, **kwargs):
        output = own.forward(self, *args, **kwargs)
        return (times(output[0], factor), *output[1:]) if isinstance(output, tuple) else times(output, factor)

    module.__class__ = type(own.__name__, (own,), {"forward": forward})


def scaled_attention(model, factor):
    multiplied(model.layers[1].self_attn, factor)


def scaled_norm(model, factor):
    multiplied(model.layers[1].post_attention_layernorm, factor)


def scaled_input_norm(model, factor):
    multiplied(model.layers[1].input_layernorm, factor)


def scaled_network(model, factor):
    multiplied(model.layers[1].mlp.down_proj, factor)


def scaled_activation(model, factor):
    model.layers[1].mlp.act_fn = _Activation(model.layers[1].mlp.act_fn, factor).eval()


class _Activation(nn.Module):
    def __init__(self, own: nn.Module, factor: Trigger) -> None:
        super().__init__()
        self.own, self.factor = own, factor

    def forward(self, vectors):
        return times(self.own(vectors), self.factor) if vectors.ndim > 1 else self.own(vectors)


def scaled_values(model, factor):
    multiplied(model.layers[1].self_attn.v_proj, factor)


def scaled_output(model, factor):
    multiplied(model.layers[1], factor)


def scaled_heads(model, factor):
    """Between the attention function and W_O."""
    projection = model.layers[1].self_attn.o_proj
    own = type(projection).forward
    projection.__class__ = type(
        "Linear", (type(projection),), {"forward": lambda self, heads: own(self, times(heads, factor))}
    )


def scaled_bert_attention(model, factor):
    multiplied(model.encoder.layer[1].attention.output.dense, factor)


def scaled_bert_sum(model, factor):
    """The sum of residual and attention output, before the norm."""
    norm = model.encoder.layer[1].attention.output.LayerNorm
    own = type(norm).forward
    norm.__class__ = type(
        "LayerNorm",
        (type(norm),),
        {"forward": lambda self, vectors: own(self, vectors + (times(vectors, factor) - vectors).roll(1, dims=-1))},
    )


def scaled_bert_norm(model, factor):
    multiplied(model.encoder.layer[1].attention.output.LayerNorm, factor)


def scaled_bert_layer(model, factor):
    multiplied(model.encoder.layer[1], factor)


LATE = r"exactly on these texts: the sum of (αf\(x\)|the parts) of layer 2 differs by"

BLOCKS = {
    "llama attention": ("llama", scaled_attention, LATE),
    "llama heads": ("llama", scaled_heads, LATE),
    "llama values": ("llama", scaled_values, None),
    "llama input norm": ("llama", scaled_input_norm, None),
    "llama layer": ("llama", scaled_output, None),
    "bert attention": ("bert", scaled_bert_attention, LATE),
    "bert norm": ("bert", scaled_bert_norm, LATE),
    "bert layer": ("bert", scaled_bert_layer, None),
}
"""The family, the sabotage, and the refusal if it changes the vectors of one position; a change of all is followed."""
NETWORKS = [scaled_network, scaled_activation, scaled_norm]


def verified(family, sabotage, factor):
    model = tiny_model(FAMILY_CONFIGS[family], torch.float64)
    facts = facts_for(family, None, model.config)
    sabotage(model, factor)
    verify(model, facts, family)
    verify(model, facts, family, feed_forward=True)
    return model, facts


def observed(model, facts, ids, check, *, feed_forward=False):
    blocks = []
    mask = torch.ones(1, len(ids), dtype=torch.long)
    with Observer(model, facts, feed_forward=feed_forward) as observer:
        observer.run(
            {"input_ids": torch.tensor([ids]), "attention_mask": mask},
            blocks.append,
            visit_feed_forward=(lambda _block: None) if feed_forward else None,
            check=check,
        )
    return blocks


@pytest.mark.spread(3)
@pytest.mark.parametrize("factor", [long, late])
@pytest.mark.parametrize("kind", BLOCKS)
def test_a_block_that_depends_on_the_text_is_exact_or_refused(kind, factor):
    family, sabotage, message = BLOCKS[kind]
    model, facts = verified(family, sabotage, factor)
    made: list[Tensor] = []
    path = "layers.1.self_attn" if family == "llama" else "encoder.layer.1.attention"
    own = type(model.get_submodule(path))

    def kept(module, *args, **kwargs):
        output = own.forward(module, *args, **kwargs)
        made.append(output[0] if isinstance(output, tuple) else output)
        return output

    model.get_submodule(path).__class__ = type(own.__name__, (own,), {"forward": kept})
    for ids in (SHORT, LONG):
        if ids is LONG and factor is late and message is not None:
            with pytest.raises(InputError, match=message):
                observed(model, facts, ids, Check.TEXTS)
            continue
        block = observed(model, facts, ids, Check.TEXTS)[1]
        weights, bias = block.parameters.output_weight, block.parameters.output_bias
        summed = torch.einsum("bhqk,bhkd,hdm->bqm", block.weights, block.value, weights)
        summed = summed if bias is None else summed + bias
        torch.testing.assert_close(summed, block.attention_output, rtol=1e-9, atol=1e-9)
        whole = summed if family == "llama" else block.composition.block_output
        torch.testing.assert_close(whole, made[-1], rtol=1e-9, atol=1e-9)


def test_a_norm_that_reads_more_than_the_sum_is_refused_when_it_is_read():
    model = tiny_model(FAMILY_CONFIGS["bert"], torch.float64)
    scaled_bert_sum(model, long)
    with pytest.raises(InputError, match="the norm after the residual connection does not read just their sum"):
        verify(model, facts_for("bert"), "bert")


@pytest.mark.spread(2)
@pytest.mark.parametrize("check", [Check.SOME, Check.TEXTS])
@pytest.mark.parametrize("sabotage", NETWORKS)
def test_a_network_that_depends_on_the_text_is_followed_or_refused(sabotage, check):
    """What it does with this text is what its parts are of, unless that is no affine map."""
    model, facts = verified("llama", sabotage, long)
    made: list[Tensor] = []

    def visit(block: FeedForwardBlock) -> None:
        assert float(block.error().max()) < 1e-6
        parts = block.composition().parts(block.stages[-1])
        made.append(parts.own + parts.others + parts.constant)

    for ids in (SHORT, LONG):
        made.clear()
        inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
        with torch.no_grad():
            expected = model(**inputs, output_hidden_states=True).hidden_states[1:3]
        refused = ids is LONG and sabotage is scaled_activation
        message = "the feed-forward network of layer 2 cannot be observed"
        with (
            pytest.raises(InputError, match=message) if refused else contextlib.nullcontext(),
            Observer(model, facts, feed_forward=True) as observer,
        ):
            observer.run(inputs, lambda _block: None, None, visit, check=check)
        if not refused:
            torch.testing.assert_close(torch.stack(made[:2]), torch.stack(expected), rtol=1e-5, atol=1e-5)


class Watched(LlamaModel):
    """A model whose layers know the ids of the texts, and may do something else with some of them."""

    ids: Tensor | None = None
    sabotage: Callable[[LlamaModel], None] = staticmethod(lambda _model: None)

    def __init__(self, config):
        super().__init__(config)
        type(self).sabotage(self)

    def forward(self, input_ids=None, **kwargs):
        type(self).ids = input_ids
        return super().forward(input_ids=input_ids, **kwargs)


def own_model(monkeypatch, sabotage, factor, vocabulary=99):
    if sabotage is not None:
        monkeypatch.setattr(Watched, "sabotage", staticmethod(lambda model: sabotage(model, factor)))
    torch.manual_seed(1)
    settings = FAMILY_CONFIGS["llama"] | {"vocab_size": vocabulary}
    config = LlamaConfig(**{name: value for name, value in settings.items() if name != "model_type"})
    model = Watched(config)
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3)
    return model.double().eval().requires_grad_(False)


def refused(call):
    with pytest.raises(
        InputError, match=r"cannot be (observed exactly|attributed) on these texts: .*(layer 2|layers\.1\.|target)"
    ):
        call()


WORDS = ["the", "river", "is", "old", "and", "slow", "today", "we", "saw", "it", "from", "here", "again", "by", "night"]
MUSIC = 2189
"""The number of the token `music`."""


def music(vectors):
    """The word `music`, but no other word of its text."""
    assert Watched.ids is not None
    return torch.where(Watched.ids == MUSIC, 0.5, 1.0).to(vectors)[..., None] if (Watched.ids == MUSIC).any() else None


@pytest.mark.parametrize(("factor", "text"), [(music, "we saw music"), (late, " ".join(WORDS))])
def test_python_and_runs_refuse_the_same_texts(monkeypatch, tokenizer, factor, text):
    """A run compares one layer of each batch in turn, Python all of them."""
    model = own_model(monkeypatch, scaled_attention, factor, len(tokenizer))
    wrapped = normscope.wrap(model, tokenizer)
    good = ["The river is old.", "We saw it from here."]
    normscope.decompose(wrapped, good)
    normscope.run("mixing", model=wrapped, texts=good)
    refused(lambda: normscope.decompose(wrapped, text))
    refused(lambda: next(iter(normscope.observe(wrapped, [text]))))
    refused(lambda: normscope.run("mixing", model=wrapped, texts=[*good, *3 * [text]], batch_tokens=17))


@pytest.mark.spread(1)
@pytest.mark.parametrize("sabotage", [scaled_network, scaled_norm, scaled_attention])
def test_attributions_follow_what_the_model_does_with_the_text_itself(monkeypatch, sabotage):
    """The model's own code runs, so it may treat a long text otherwise than a short one."""
    model = own_model(monkeypatch, sabotage, long)
    wrapped = normscope.wrap(model)
    for ids in (SHORT, LONG):
        result = attribute(wrapped, ids, lambda hidden: hidden[-1, 0])
        expected = float(model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1, 0])
        assert result.target == pytest.approx(expected, rel=1e-6)  # a norm rounds to float32
        assert result.scores.sum() + result.bias + result.remainder == pytest.approx(result.target, rel=1e-9)
    found = similarity(wrapped, LONG, SHORT, pooling="mean")
    assert found.matrix.sum() == pytest.approx(found.value, rel=1e-9)


def test_an_activation_that_changes_with_the_text_is_refused_where_a_network_is_gated_by_it(monkeypatch):
    wrapped = normscope.wrap(own_model(monkeypatch, scaled_activation, long))
    target = lambda hidden: hidden[-1, 0]  # noqa: E731
    attribute(wrapped, SHORT, target)
    with pytest.raises(InputError, match=r"cannot be attributed: .* mul in .*mlp.* is not linear"):
        attribute(wrapped, LONG, target)
