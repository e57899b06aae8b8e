"""What must hold for every family, in float64, on a tiny random model with random biases and a padded batch."""

import copy
import dataclasses
import functools
import itertools

import pytest
import torch

from benchmarks.straightforward import METHODS, mixing_ratios
from normscope.errors import InputError
from normscope.linear import weighted_values
from normscope.maths.mixing import Method
from normscope.models.blocks.block import AttentionBlock
from normscope.models.observe.attention_function import attention_by
from normscope.models.observe.check import Check
from normscope.models.observe.exclusive import observe_blocks
from normscope.models.observe.observer import Observer, Replacement
from normscope.models.prove.verification import BOUNDS, verify
from tests.family_modules import parts_of
from tests.tiny import (
    FAMILY_CONFIGS,
    STACK_CONFIGS,
    facts_for,
    proved_to,
    rounds_inside,
    tiny_model,
    tiny_stack,
    token_batch,
)

LENGTHS = (9, 6, 3)
EXACT = {"rtol": 1e-10, "atol": 1e-10}  # float64 over sums of some hundred terms


@pytest.fixture
def exact(family_model):
    """1e-10, or what rounding to float32 inside the model leaves."""
    return {"rtol": 1e-5, "atol": 1e-5} if rounds_inside(family_model) else EXACT


def blocks_of(model, family, inputs, layers=None) -> list[AttentionBlock]:
    blocks: list[AttentionBlock] = []
    with Observer(model, facts_for(family), layers) as observer:
        observer.run(inputs, blocks.append)
    return blocks


@pytest.fixture
def inputs(family_model):
    return token_batch(family_model, LENGTHS)


@pytest.mark.spread(16)
def test_explicit_vectors_add_up_to_the_attention_output(family, family_model, inputs):
    for block in blocks_of(family_model, family, inputs):
        assert block.parameters.value_weight.shape == block.parameters.query.weight.shape
        vectors = torch.einsum("bhqk,bhkm->bqkm", block.weights, block.transformed())  # F_ij
        token_mask = block.token_mask
        output = vectors.sum(dim=2) + (0.0 if block.parameters.output_bias is None else block.parameters.output_bias)
        torch.testing.assert_close(output[token_mask], block.attention_output[token_mask], **EXACT)
        diagonal = vectors.diagonal(dim1=1, dim2=2).transpose(1, 2)
        torch.testing.assert_close(block.composition.preserving[token_mask], diagonal[token_mask], **EXACT)
        torch.testing.assert_close(block.mixing[token_mask], (vectors.sum(dim=2) - diagonal)[token_mask], **EXACT)


@pytest.mark.spread(9)
def test_contributions_of_the_dimensions_are_the_score(family, family_model, inputs, exact):
    """Σ_j C_j and the key-bias term make q·k, whatever the query."""
    for block in blocks_of(family_model, family, inputs):
        query = torch.randn(block.query.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        weights = block.parameters
        # One query at a time, taken back through what position and norm make of every key.
        for number in range(query.shape[2]):
            seen_by = block.key_map.back(query[:, :, number, None].expand_as(block.key))
            contributions = (
                torch.einsum("bhkd,hmd->bhkm", seen_by, weights.key_weight) * block.attention_inputs[:, None]
            )
            key_bias = torch.einsum("bhkd,hd->bhk", seen_by, weights.key_bias)
            scores = (query[:, :, number, None] * block.key).sum(dim=-1)
            token_mask = block.token_mask[:, None].expand_as(scores)
            torch.testing.assert_close((contributions.sum(dim=-1) + key_bias)[token_mask], scores[token_mask], **exact)


@pytest.mark.spread(8)
def test_hidden_vectors_are_those_of_the_model(family, family_model, inputs, exact):
    shown = {}
    layers = facts_for(family).layers
    with Observer(family_model, facts_for(family), hidden=range(layers + 1)) as observer:
        observer.run(inputs, lambda _block: None, lambda layer, vectors: shown.update({layer: vectors}))
    with torch.inference_mode():  # of a copy, since transformers leaves hooks of its own behind
        expected = copy.deepcopy(family_model)(**inputs, output_hidden_states=True).hidden_states
    assert sorted(shown) == list(range(layers + 1))
    token_mask = inputs["attention_mask"].bool()
    for layer, vectors in shown.items():
        # Where a norm comes after the last layer, transformers gives what that norm makes of the last hidden vectors.
        if layer < layers or facts_for(family).norm_positions == ("post",):
            close = EXACT if facts_for(family).is_plain else exact
            torch.testing.assert_close(vectors[token_mask], expected[layer][token_mask], **close)


@pytest.mark.spread(4)
@pytest.mark.kinds
def test_replaced_dimensions_reach_the_block_and_the_residual_connection(family, family_model, inputs, exact):
    """The same as a model whose hidden vectors are changed by hand before the second layer."""
    replaced = Replacement(torch.tensor([1, 4]), torch.tensor([0.0, 2.0]))
    blocks: list[AttentionBlock] = []
    with Observer(family_model, facts_for(family)) as observer:
        observer.run(inputs, blocks.append, replacements={2: replaced})
    untouched = blocks_of(family_model, family, inputs)
    torch.testing.assert_close(blocks[0].attention_output, untouched[0].attention_output)
    expected = untouched[1].inputs.clone()
    expected[..., 1], expected[..., 4] = 0.0, 2.0
    torch.testing.assert_close(blocks[1].inputs, expected)
    entered, seen = [], []

    def change(_module, args, kwargs):
        entered.append(None)
        return ((expected, *args[1:]), kwargs) if len(entered) == 2 else None

    changed = copy.deepcopy(family_model)  # a fresh one, without hooks of other observers
    for parts in {id(parts.entry): parts for parts in parts_of(changed)}.values():
        parts.entry.register_forward_pre_hook(change, with_kwargs=True)
        scale = parts.scale
        parts.output.register_forward_hook(lambda _module, _args, output, s=scale: seen.append(output * s))
    with torch.inference_mode():
        changed(**inputs)
    token_mask = blocks[1].token_mask
    torch.testing.assert_close(blocks[1].attention_output[token_mask], seen[1][token_mask], **exact)
    # The third layer reads what the residual connection carried past the second.
    torch.testing.assert_close(blocks[2].attention_output[token_mask], seen[2][token_mask], **exact)


@pytest.mark.kinds
def test_weights_sum_to_one_and_vanish_at_padding(family, family_model, inputs):
    for block in blocks_of(family_model, family, inputs):
        tokens = block.token_mask[:, None].expand_as(block.alpha.own)
        total = block.weights.sum(dim=-1)
        if family == "gpt_oss":
            assert block.weight_to_nowhere is not None
            assert (block.weight_to_nowhere[tokens] > 1e-6).all()
            total = total + block.weight_to_nowhere
        else:
            assert block.weight_to_nowhere is None
        torch.testing.assert_close(total[tokens], torch.ones_like(total[tokens]))
        padded = block.token_mask[:, None, :, None] & ~block.token_mask[:, None, None, :]
        assert (block.weights[padded.expand_as(block.weights)] == 0).all()
        explicit = block.weights.diagonal(dim1=-2, dim2=-1)
        torch.testing.assert_close(block.alpha.own[tokens], explicit[tokens], **EXACT)


@pytest.mark.spread(5)
@pytest.mark.kinds
def test_padding_changes_nothing(family, family_model, inputs, exact):
    together = blocks_of(family_model, family, inputs)
    close = EXACT if facts_for(family).calls_function else exact  # a softmax in float32 sums in another order
    for row, length in enumerate(LENGTHS):
        alone = {name: tensor[row : row + 1, :length] for name, tensor in inputs.items()}
        for padded, single in zip(together, blocks_of(family_model, family, alone), strict=True):
            torch.testing.assert_close(padded.mixing[row, :length], single.mixing[0], **close)
            torch.testing.assert_close(
                padded.composition.preserving[row, :length], single.composition.preserving[0], **close
            )


@pytest.mark.spread(11)
@pytest.mark.kinds
def test_what_is_observed_is_what_the_model_uses(family, family_model, inputs, monkeypatch):
    """Perturbing the attention that we compute changes the model's output: no other attention runs beside it.

    Where the weights of the model's own module are observed, nothing is computed beside that either.
    """

    def output():
        with Observer(family_model, facts_for(family)) as observer:
            kept = []
            observer.run(inputs, lambda block: kept.append(block.inputs), check=Check.NOTHING)  # which would notice
        return kept[-1]

    before = output()
    monkeypatch.setattr(
        weighted_values, "attention", lambda q, k, v, m, s, **more: _attention(q, k * 1.1, v, m, s, **more)
    )
    assert ((output() - before).abs().max() > 1e-3) == facts_for(family).calls_function


@pytest.mark.kinds
def test_the_model_is_left_as_it_was(family, family_model, inputs):
    before = family_model.config._attn_implementation
    expected = family_model(**inputs).last_hidden_state
    with pytest.raises(ZeroDivisionError), Observer(family_model, facts_for(family)) as observer:
        observer.run(inputs, lambda _block: 1 / 0)
    assert family_model.config._attn_implementation == before
    hooks = [
        hook for m in family_model.modules() for hook in (*m._forward_hooks.values(), *m._forward_pre_hooks.values())
    ]
    assert not any(getattr(hook, "__self__", None).__class__ is Observer for hook in hooks)
    torch.testing.assert_close(family_model(**inputs).last_hidden_state, expected)


@pytest.mark.kinds("albert", "bert", "mpnet", "t5")
def test_blocks_can_be_pulled_one_at_a_time(family, family_model, inputs):
    pushed = blocks_of(family_model, family, inputs)
    with Observer(family_model, facts_for(family)) as observer:
        run = functools.partial(observer.run, inputs)
        pulled = [block.mixing for block in observe_blocks(run)]
        for block, mixing in zip(pushed, pulled, strict=True):
            torch.testing.assert_close(block.mixing, mixing)
        for block in observe_blocks(run):
            assert block.layer == 1
            break  # leaving early must not leave a thread behind that waits


@pytest.mark.parametrize("family", ["bert", "deberta"], scope="session")
def test_two_observers_of_a_model_do_not_disturb_each_other(family, family_model, inputs):
    alone = blocks_of(family_model, family, inputs)
    found: list[AttentionBlock] = []
    with Observer(family_model, facts_for(family)) as one:
        assert len(blocks_of(family_model, family, inputs)) == len(alone)
        one.run(inputs, found.append)
    for block, expected in zip(found, alone, strict=True):
        torch.testing.assert_close(block.mixing, expected.mixing, rtol=0, atol=0)


def test_causal_attention_is_respected():
    """No mask on a causal module means that keys after the query are hidden."""
    model = tiny_model(FAMILY_CONFIGS["bert"], torch.float64)
    for parts in parts_of(model):
        parts.attention.is_causal = True
    for block in blocks_of(model, "bert", token_batch(model, (7,))):
        assert (block.weights.triu(1) == 0).all()
        torch.testing.assert_close(block.mixing[:, 0], torch.zeros_like(block.mixing[:, 0]), **EXACT)


@pytest.mark.kinds
def test_a_token_that_sees_only_itself_mixes_nothing(family, family_model):
    """Exactly: a difference left to rounding would be ranked by analyses of single tokens."""
    for block in blocks_of(family_model, family, token_batch(family_model, (7, 1))):
        alone = block.token_mask & (block.alpha.seen.counts == 1)
        assert alone[1, 0]
        assert all((ratio[alone] == 0).all() for ratio in block.mixing_ratios.values())


def _attention(*arguments, **more):
    from normscope.maths.attention import attention

    return attention(*arguments, **more)


@pytest.mark.kinds
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.spread(2)
def test_half_precision_is_measured_in_float32(family, dtype):
    """The verification error shows how the model rounds; sums of its vectors are not rounded again."""
    model = (
        tiny_stack(family, "encoder", dtype) if family in STACK_CONFIGS else tiny_model(FAMILY_CONFIGS[family], dtype)
    )
    inputs = token_batch(model, LENGTHS)
    for block in blocks_of(model, family, inputs):
        assert block.mixing.dtype == block.weights.dtype == block.transformed_norms.dtype == torch.float32
        vectors = torch.einsum("bhqk,bhkm->bqkm", block.weights, block.transformed())
        diagonal = vectors.diagonal(dim1=1, dim2=2).transpose(1, 2)
        # The kernel's log-normaliser is the one thing that half precision's rounding of q·k can reach.
        torch.testing.assert_close(
            block.composition.preserving[block.token_mask], diagonal[block.token_mask], rtol=2e-2, atol=2e-2
        )
    assert verify(model, facts_for(family), family).error < BOUNDS[dtype]


@pytest.mark.spread(1)
@pytest.mark.parametrize("stack", ["decoder", "cross"])
@pytest.mark.parametrize("model_type", sorted(STACK_CONFIGS))
def test_decoders_that_read_a_source(model_type, stack):
    """What holds of every family, where two sequences of different lengths meet."""
    model, facts = tiny_stack(model_type, stack, torch.float64), facts_for(model_type, stack)
    assert verify(model, facts, model_type).error < proved_to(model)
    target = token_batch(model, (4, 6), seed=2)
    inputs = token_batch(model, (8, 5)) | {f"decoder_{name}": tensor for name, tensor in target.items()}
    blocks: list[AttentionBlock] = []
    with Observer(model, facts) as observer:
        observer.run(inputs, blocks.append)
    assert [block.layer for block in blocks] == [1, 2]
    with torch.inference_mode(), attention_by(model, "eager"):
        expected = model(**inputs, output_attentions=True)
    maps = expected.cross_attentions if stack == "cross" else expected.decoder_attentions
    for block, alpha in zip(blocks, maps, strict=True):
        token_mask = block.token_mask[:, None].expand(alpha.shape[:3])
        torch.testing.assert_close(
            block.weights[token_mask], alpha[token_mask], rtol=1e-6, atol=1e-6
        )  # eager's softmax is float32
        if stack == "cross":
            assert set(block.mixing_ratios) <= {Method.ATTNRES_N, Method.ATTNRESLN_N}
            mixed = torch.einsum("bhqk,bhkm->bqm", block.weights, block.transformed()).norm(dim=-1)
            ratio = mixed / (mixed + block.inputs.norm(dim=-1))
            torch.testing.assert_close(
                block.mixing_ratios[Method.ATTNRES_N][block.token_mask], ratio[block.token_mask], **EXACT
            )
        else:
            first = block.mixing_ratios[Method.ATTN_W][:, 0]
            torch.testing.assert_close(first, torch.zeros_like(first), **EXACT)


def test_the_straightforward_ratios_are_the_same():
    """The benchmark's own implementation, which builds every vector and shares nothing with ours."""
    model = tiny_model(FAMILY_CONFIGS["bert"], torch.float64)
    inputs = token_batch(model, (7,))
    blocks = blocks_of(model, "bert", inputs)
    expected = mixing_ratios(model, inputs)[:, :, 0]
    for layer, block in enumerate(blocks):
        for method, ratios in zip(METHODS, expected[:, layer], strict=True):  # eager's softmax is float32
            torch.testing.assert_close(block.mixing_ratios[method][0], ratios, rtol=1e-6, atol=1e-6)


def test_a_router_whose_choice_changes_is_no_error_of_attention():
    """Each layer gets the untouched model's input, so verification proves attention whatever experts add between layers."""
    model, facts = tiny_model(FAMILY_CONFIGS["qwen3_moe"], torch.float64), facts_for("qwen3_moe")
    calls = itertools.count(1)
    for layer in model.layers:
        layer.mlp.register_forward_hook(lambda _module, _args, output: output * next(calls))
    assert verify(model, facts, "qwen3_moe").error < 1e-6
    with pytest.raises(InputError, match=r"the output of layer 1 differs by \d"):
        verify(model, dataclasses.replace(facts, routed=False), "qwen3_moe")


def test_a_block_that_is_never_shown_is_no_proof():
    model, facts = tiny_model(FAMILY_CONFIGS["llama"], torch.float64), facts_for("llama")
    model.layers = model.layers[:2]
    model.config.num_hidden_layers = 2
    with (
        Observer(model, facts) as observer,
        pytest.raises(InputError, match=r"attention of 1 layer \(3\) cannot be"),
    ):
        observer.run(token_batch(model, (4,)), lambda _block: None)
