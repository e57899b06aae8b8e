"""Families whose weights come from their own module: query, key and scale must reproduce them."""

import dataclasses

import pytest
import torch
from torch.testing import assert_close

from normscope.errors import InputError
from normscope.maths.scores import part_of_keys
from normscope.models.blocks.block import AttentionBlock
from normscope.models.observe.capture import LayerCapture
from normscope.models.observe.observer import Observer
from normscope.models.prove.verification import verify
from normscope.models.sites.block_modules import BlockModules, bind_blocks
from tests.tiny import FAMILY_CONFIGS, layout_of, tiny_model, token_batch

OWN = ["bloom", "deberta", "deberta-v2", "falcon", "gptj", "mpnet"]
BOUND = {"deberta": 1e-6, "deberta-v2": 1e-12, "mpnet": 1e-12, "bloom": 1e-6, "falcon": 1e-12, "gptj": 1e-6}
TERMS = [[], ["c2p"], ["p2c"], ["c2p", "p2c"], ["p2c", "c2p"], ["c2p", "p2c", "p2p"], ["p2p"], ["c2p", "c2p"]]


def test_every_family_of_its_own_is_tested():
    assert set(BOUND) == set(OWN)


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("family", ["deberta", "deberta-v2"])
@pytest.mark.spread(1)
def test_the_scale_is_right_whatever_the_terms(family, terms, relative):
    config = FAMILY_CONFIGS[family] | {"pos_att_type": terms, "relative_attention": relative}
    if family == "deberta-v2" and not relative:
        config |= {"conv_kernel_size": 0}
    model = tiny_model(config, torch.float64)
    assert verify(model, layout_of(family, config=model.config), family).error < BOUND[family]


def test_scale_by_hand():
    """DeBERTa divides by √(d (1 + entries)); its second version by the entries that it knows."""
    for family, expected in (("deberta", (6 * 4) ** -0.5), ("deberta-v2", (6 * 3) ** -0.5)):
        model = tiny_model(FAMILY_CONFIGS[family] | {"pos_att_type": ["c2p", "p2c", "p2p"]}, torch.float64)
        blocks: list[AttentionBlock] = []
        with Observer(model, layout_of(family, config=model.config)) as observer:
            observer.run(token_batch(model, (4,)), blocks.append)
        assert [block.alpha.scale for block in blocks] == [pytest.approx(expected, rel=1e-7)] * 3


@pytest.mark.spread(2)
@pytest.mark.parametrize("family", OWN)
def test_weights_without_a_dimension_are_those_of_a_model_whose_keys_lack_it(family):
    """An intervention changes q·k alone, so the terms of this model leave its keys out."""
    terms = {"pos_att_type": ["c2p"], "share_att_key": False} if family.startswith("deberta") else {}
    model = tiny_model(FAMILY_CONFIGS[family] | terms, torch.float64)
    layout = layout_of(family, config=model.config)
    inputs = token_batch(model, (6,))
    modules = bind_blocks(model, layout)[0]
    blocks: list[AttentionBlock] = []
    with Observer(model, layout, [1]) as observer:
        observer.run(inputs, blocks.append)
        removed = part_of_keys(blocks[0].attention_inputs, blocks[0].parameters.key_weight, [2])
        got = blocks[0].alpha.by_group(torch.eye(6).bool()[:, None], blocks[0].key_map(removed))
        part = torch.einsum("bk,hd->bkhd", blocks[0].attention_inputs[..., 2], blocks[0].parameters.key_weight[:, 2])

        def without_the_part(_module, _args, output):
            attention = layout.sites[0].attention
            if attention.key.columns is None:
                return output - part.flatten(2)
            changed = output.clone()
            changed[..., attention.key.columns.indices] -= part[
                :, :, :: 4 // attention.key_heads
            ]  # heads of a group share keys
            return changed

        modules.heads.key.register_forward_hook(without_the_part)
        observer.run(inputs, blocks.append)
    assert_close(got, blocks[1].weights, rtol=1e-6, atol=1e-8)  # DeBERTa's root is a float32
    assert (got - blocks[0].weights).abs().max() > 1e-3


@pytest.mark.spread(3)
@pytest.mark.parametrize("family", OWN)
def test_a_wrong_scale_is_noticed(family, monkeypatch):
    monkeypatch.setattr(BlockModules, "own_scale", 1.029 * 6**-0.5)
    with pytest.raises(InputError, match=r"the attention weight from query, key and scale of layer 1 differs by \d"):
        verify(tiny_model(FAMILY_CONFIGS[family], torch.float64), layout_of(family), family)


@pytest.mark.spread(3)
@pytest.mark.parametrize("part", ["query", "key"])
@pytest.mark.parametrize("family", OWN)
def test_wrong_queries_and_keys_are_noticed(family, part, monkeypatch):
    """Heads in another order, as a layout that splits the weights wrongly would have them."""
    original = LayerCapture.block

    def swapped(parts: LayerCapture, *arguments: object) -> AttentionBlock:
        block = original(parts, *arguments)
        return dataclasses.replace(
            block, alpha=dataclasses.replace(block.alpha, **{part: getattr(block, part).flip(1)})
        )

    monkeypatch.setattr(LayerCapture, "block", swapped)
    with pytest.raises(InputError, match=r"the (key|attention weight from query, key and scale) of layer 1 differs"):
        verify(tiny_model(FAMILY_CONFIGS[family], torch.float64), layout_of(family), family)


@pytest.mark.parametrize("family", sorted({*OWN} - {"gptj", "falcon"}))
def test_biases_of_the_queries_are_noticed(family, monkeypatch):
    original = LayerCapture.block

    def without_bias(parts: LayerCapture, *arguments: object) -> AttentionBlock:
        block = original(parts, *arguments)
        query = block.query - block.parameters.query.bias[:, None]
        return dataclasses.replace(block, alpha=dataclasses.replace(block.alpha, query=query))

    monkeypatch.setattr(LayerCapture, "block", without_bias)
    with pytest.raises(InputError, match=r"the attention weight from query, key and scale of layer 1 differs"):
        verify(tiny_model(FAMILY_CONFIGS[family], torch.float64), layout_of(family), family)


@pytest.mark.spread(3)
@pytest.mark.parametrize("family", OWN)
def test_the_attention_module_is_left_as_it_was(family):
    model, layout = tiny_model(FAMILY_CONFIGS[family], torch.float64), layout_of(family)
    attention = bind_blocks(model, layout)[0].attention
    before = set(vars(attention)), len(attention._forward_pre_hooks)
    verify(model, layout, family)
    assert (set(vars(attention)), len(attention._forward_pre_hooks)) == before
