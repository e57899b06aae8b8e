"""Families whose weights come from their own module: query, key and scale must reproduce them."""

import pytest
import torch
from torch.testing import assert_close

from normscope.maths.scores import part_of_keys
from normscope.models.blocks.block import AttentionBlock
from normscope.models.observe.observer import Observer
from normscope.models.prove.verification import verify
from tests.family_modules import parts_of
from tests.tiny import FAMILY_CONFIGS, facts_for, tiny_model, token_batch

OWN = ["bloom", "deberta", "deberta-v2", "falcon", "gptj", "mpnet"]
BOUND = {"deberta": 1e-6, "deberta-v2": 1e-12, "mpnet": 1e-12, "bloom": 1e-6, "falcon": 1e-12, "gptj": 1e-6}
KEYS = {
    "deberta": torch.arange(72).view(4, 3, 6)[:, 1],
    "bloom": torch.arange(72).view(4, 3, 6)[:, 1],
    "falcon": torch.arange(48).view(2, 4, 6)[:, 2],
}
"""The columns of the keys where one linear layer makes queries and values as well, by head; heads of Falcon share two."""
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
    assert verify(model, facts_for(family, config=model.config), family).error < BOUND[family]


def test_scale_by_hand():
    """DeBERTa divides by √(d (1 + entries)); its second version by the entries that it knows."""
    for family, expected in (("deberta", (6 * 4) ** -0.5), ("deberta-v2", (6 * 3) ** -0.5)):
        model = tiny_model(FAMILY_CONFIGS[family] | {"pos_att_type": ["c2p", "p2c", "p2p"]}, torch.float64)
        blocks: list[AttentionBlock] = []
        with Observer(model, facts_for(family, config=model.config)) as observer:
            observer.run(token_batch(model, (4,)), blocks.append)
        assert [block.alpha.scale for block in blocks] == [pytest.approx(expected, rel=1e-7)] * 3


@pytest.mark.spread(2)
@pytest.mark.parametrize("family", OWN)
def test_weights_without_a_dimension_are_those_of_a_model_whose_keys_lack_it(family):
    """An intervention changes q·k alone, so the terms of this model leave its keys out."""
    terms = {"pos_att_type": ["c2p"], "share_att_key": False} if family.startswith("deberta") else {}
    model = tiny_model(FAMILY_CONFIGS[family] | terms, torch.float64)
    facts = facts_for(family, config=model.config)
    inputs = token_batch(model, (6,))
    blocks: list[AttentionBlock] = []
    with Observer(model, facts, [1]) as observer:
        observer.run(inputs, blocks.append)
        removed = part_of_keys(blocks[0].attention_inputs, blocks[0].parameters.key_weight, [2])
        got = blocks[0].alpha.by_group(torch.eye(6).bool()[:, None], blocks[0].key_map(removed))
        key = parts_of(model)[0].key
        part = torch.zeros(1, 6, key.weight.numel() // 24, dtype=torch.float64)
        columns = KEYS.get(family, torch.arange(24).view(len(blocks[0].parameters.key_weight), -1))
        by_head = torch.einsum("bk,hd->bkhd", blocks[0].attention_inputs[..., 2], blocks[0].parameters.key_weight[:, 2])
        part[..., columns] = by_head[:, :, :: by_head.shape[2] // len(columns)]
        key.register_forward_hook(lambda _module, _args, output: output - part)
        observer.run(inputs, blocks.append)
    assert_close(got, blocks[1].weights, rtol=1e-6, atol=1e-8)  # DeBERTa's root is a float32
    assert (got - blocks[0].weights).abs().max() > 1e-3


@pytest.mark.spread(3)
@pytest.mark.parametrize("family", OWN)
def test_the_attention_module_is_left_as_it_was(family):
    model, facts = tiny_model(FAMILY_CONFIGS[family], torch.float64), facts_for(family)
    attention = parts_of(model)[0].attention
    before = set(vars(attention)), len(attention._forward_pre_hooks)
    verify(model, facts, family)
    assert (set(vars(attention)), len(attention._forward_pre_hooks)) == before
