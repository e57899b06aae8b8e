"""Maps of one layer and through all layers, against vectors that are built explicitly, in float64 on tiny random models."""

import pytest
import torch

from normscope.attribution import layer_maps
from normscope.attribution.layer_maps import attention_map, changes_without_values, layer_map
from normscope.attribution.methods import MapMethod, MapStage
from normscope.attribution.model_maps import model_maps
from normscope.errors import InputError
from normscope.maths.contributions import cosine_distance, row_normalised
from normscope.models.observe.feed_forward import FeedForwardBlock
from normscope.models.observe.observer import Observer
from tests.family_modules import parts_of
from tests.oracles.networks import network_blocks
from tests.tiny import FAMILY_CONFIGS, facts_for, tiny_model, token_batch

EXACT = {"rtol": 1e-9, "atol": 1e-12}
POSITIONS = ("bert", "gpt2", "gpt_neox", "olmo2", "llama")
LENGTHS = (7, 4)


def model_of(model_type):
    return tiny_model(FAMILY_CONFIGS[model_type], torch.float64), facts_for(model_type)


def blocks_of(model_type):
    model, facts = model_of(model_type)
    return network_blocks(model, facts, token_batch(model, LENGTHS))


def explicit_pairs(block):
    """F_ij, R_ij and T_ij, one pair at a time, by stage."""
    vectors = torch.einsum("bhqk,bhkm->bqkm", block.weights, block.transformed())
    stages = {"attn": vectors}
    identity = torch.eye(vectors.shape[1], dtype=vectors.dtype)[None, :, :, None]
    residual = vectors + identity * block.inputs[:, :, None]
    norm = block.parameters.normalisation
    if block.parameters.norm_position == "post":
        stages["attnres"] = residual
        scale = (block.inputs + block.attention_output).var(dim=-1, unbiased=False).add(norm.epsilon).sqrt()
        stages["attnresln"] = (residual - residual.mean(-1, keepdim=True)) * norm.weight / scale[:, :, None, None]
    elif block.parameters.norm_position == "branch":
        scale = block.attention_output.square().mean(dim=-1).add(norm.epsilon).sqrt()
        normed = vectors * norm.weight / scale[:, :, None, None]
        stages["attnresln"] = normed + identity * block.inputs[:, :, None]
    else:
        stages["attnres"] = residual
    return stages


@pytest.fixture(params=[2**21, 60], ids=["whole", "strips"])
def _strips(request, monkeypatch):
    monkeypatch.setitem(layer_maps.ENTRIES_AT_ONCE, "cpu", request.param)


def assert_same(got, expected, block):
    tokens = block.token_mask
    torch.testing.assert_close(got[tokens], expected[tokens], **EXACT)


@pytest.mark.spread(3)
@pytest.mark.usefixtures("_strips")
@pytest.mark.parametrize("model_type", POSITIONS)
def test_alti_and_norms_are_those_of_explicit_vectors(model_type):
    for layer in blocks_of(model_type):
        block, whole = layer.attention, layer.block.pair_maps()
        of_layer = layer_map(MapMethod.NORM_ROLLOUT, layer.block)
        torch.testing.assert_close(of_layer, row_normalised(list(whole.values())[-1]), rtol=1e-6, atol=1e-8)
        stages = explicit_pairs(block)
        last = list(stages)[-1]
        output = block.composition.output(block.composition.stages[-1])
        distances = (output[:, :, None] - stages[last]).abs().sum(dim=-1)
        closer = (output.abs().sum(dim=-1, keepdim=True) - distances).clamp(min=0)
        assert_same(attention_map(MapMethod.ALTI, MapStage.LAYER, block), row_normalised(closer), block)
        for stage in set(stages) - {"attn"}:
            expected = row_normalised(stages[stage].norm(dim=-1))
            assert_same(attention_map(MapMethod.NORM_ROLLOUT, MapStage(f"{stage}_n"), block), expected, block)
        assert_same(
            attention_map(MapMethod.NORM_ROLLOUT, MapStage.BLOCK, block),
            row_normalised(stages[last].norm(dim=-1)),
            block,
        )
        rollout = (block.weights.mean(dim=1) + torch.eye(block.weights.shape[-1])) / 2
        assert_same(attention_map(MapMethod.ROLLOUT, MapStage.LAYER, block), rollout, block)


@pytest.mark.usefixtures("_strips")
@pytest.mark.parametrize("model_type", [*POSITIONS, "falcon"])
@pytest.mark.spread(1)
def test_value_zeroing_is_the_model_run_again_without_one_value(model_type):
    """The layer of the model itself, with the value of one token set to zero at its projection to the output.

    Falcon adds what attention gives to what its network gives, in place.
    """
    model, facts = model_of(model_type)
    inputs = token_batch(model, LENGTHS)
    changes, blocks = [], []

    def visit(block: FeedForwardBlock) -> None:
        changes.append(changes_without_values(block))
        blocks.append(block)

    with Observer(model, facts, feed_forward=True) as observer:
        observer.run(inputs, lambda _block: None, None, visit)
    tokens = inputs["attention_mask"].bool()
    for modules, block, got in zip(parts_of(model), blocks, changes, strict=True):
        expected = []
        weights, value = block.attention.weights, block.attention.value
        for token in range(tokens.shape[1]):
            kept = value.clone()
            kept[:, :, token] = 0
            contexts = (weights @ kept).transpose(1, 2).flatten(2)
            expected.append(
                1
                - torch.cosine_similarity(
                    _layer_with(model, inputs, modules, contexts), _layer_with(model, inputs, modules, None), dim=-1
                )
            )
        torch.testing.assert_close(got[tokens], torch.stack(expected, dim=-1)[tokens], rtol=1e-4, atol=1e-7)


def _layer_with(model, inputs, modules, contexts):
    """The output of one layer of the untouched model whose output projection is given other contexts."""
    outputs = []

    def replace(_module, _args):
        return None if contexts is None else (contexts,)

    handles = [
        modules.output.register_forward_pre_hook(replace),
        modules.entry.register_forward_hook(
            lambda _m, _a, out: outputs.append(out[0] if isinstance(out, tuple) else out)
        ),
    ]
    with torch.inference_mode():
        model(**inputs)
    for handle in handles:
        handle.remove()
    return outputs[0]


def test_maps_past_a_convolution_are_refused():
    model, facts = model_of("deberta-v2")
    with pytest.raises(InputError, match="a convolution beside its first layer mixes tokens past attention"):
        model_maps(model, facts, token_batch(model, LENGTHS), [MapMethod.ALTI])


def test_a_text_without_values_has_rows_of_zeros():
    """Without values no token changes anything: rows of zeros, not of noise."""
    model, facts = model_of("bert")
    for modules in parts_of(model):
        torch.nn.init.zeros_(modules.value.weight)
        torch.nn.init.zeros_(modules.value.bias)
    maps = model_maps(model, facts, token_batch(model, (5,)), [MapMethod.VALUE_ZEROING])
    assert (maps[MapMethod.VALUE_ZEROING].total == 0).all()


def test_a_cosine_distance_is_exact_where_one_minus_cos_cancels():
    one = torch.tensor([1.0, 0.0], dtype=torch.float64)
    change = torch.tensor([[0.0, 1e-9], [3.0, 0.0], [-2.0, 0.0], [-1.0, 5.0], [-2.0, 1.0]], dtype=torch.float64)
    expected = torch.tensor([0.5e-18, 0.0, 2.0, 1.0, 1 + 0.5**0.5], dtype=torch.float64)
    torch.testing.assert_close(cosine_distance(one, change), expected, rtol=1e-9, atol=0)


def test_a_cosine_distance_with_a_vector_of_zeros():
    one, zeros = torch.tensor([1.0, 0.0]), torch.zeros(2)
    assert cosine_distance(zeros, zeros) == 0
    assert cosine_distance(zeros, one) == 0.5
    assert cosine_distance(one, -one) == 0.5
