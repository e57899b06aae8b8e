"""Signed shares in every family, in float64: against the vector of every pair, and adding up to 1."""

import pytest
import torch

from normscope.analyses.declarations.mixing import MixingOptions
from normscope.maths.composition import Stage
from normscope.maths.mixing import OF_STAGE
from normscope.models.blocks.block import AttentionBlock
from normscope.models.blocks.grouped_block import GroupedBlock
from normscope.models.observe.observer import Observer
from tests.oracles import specimens
from tests.tiny import facts_for, token_batch

LENGTHS = (9, 6, 3)
EXACT = {"rtol": 0, "atol": 1e-10}


def blocks_of(model, facts) -> list[AttentionBlock]:
    inputs = token_batch(model, LENGTHS)
    if facts.reads_target:
        inputs |= {f"decoder_{name}": tensor for name, tensor in token_batch(model, (4, 2, 7), seed=2).items()}
    blocks: list[AttentionBlock] = []
    with Observer(model, facts) as observer:
        observer.run(inputs, blocks.append)
    return blocks


def explicit(block: AttentionBlock) -> dict[Stage, dict[str, torch.Tensor]]:
    """The vectors of the parts at every stage of a block, from the vector of every pair."""
    pairs = torch.einsum("bhqk,bhkm->bqkm", block.weights, block.transformed())
    own = torch.zeros_like(pairs[:, :, 0]) if block.is_cross_attention else torch.einsum("bqqm->bqm", pairs)
    bias = torch.zeros_like(own) + (0.0 if block.parameters.output_bias is None else block.parameters.output_bias)
    parts = {"others": pairs.sum(dim=2) - own, "own": own, "residual": torch.zeros_like(own), "bias": bias}
    residual = parts | {"residual": block.inputs}
    stages = {Stage.ATTENTION: parts, Stage.RESIDUAL: residual}
    norm = block.parameters.normalisation
    if norm is not None:
        branch = block.parameters.norm_position == "branch"
        source = parts if branch else residual
        whole = sum(source.values())
        centred = whole - whole.mean(dim=-1, keepdim=True) if norm.centred else whole
        sigma = (centred.square().mean(dim=-1, keepdim=True) + norm.epsilon).sqrt()
        normed = {
            name: norm.weight * (part - (part.mean(dim=-1, keepdim=True) if norm.centred else 0)) / sigma
            for name, part in source.items()
        }
        if norm.bias is not None:
            normed["bias"] = normed["bias"] + norm.bias
        stages[Stage.NORMALISED] = normed | ({"residual": block.inputs} if branch else {})
    return {stage: stages[stage] for stage in block.composition.stages}


@pytest.mark.spread(9)
@pytest.mark.kinds
def test_shares_are_those_of_the_explicit_vectors(family, family_model):
    for block in blocks_of(family_model, facts_for(family)):
        tokens = block.token_mask
        for stage, parts in explicit(block).items():
            output = sum(parts.values())
            size = output.square().sum(dim=-1)
            shares = block.shares[OF_STAGE[stage]]
            scale = torch.stack(list(shares)).abs().sum(dim=0).clamp(min=1)
            for name, vectors in parts.items():
                expected = (vectors * output).sum(dim=-1) / size
                torch.testing.assert_close((getattr(shares, name) / scale)[tokens], (expected / scale)[tokens], **EXACT)
            torch.testing.assert_close((shares.sum / scale)[tokens], (1 / scale)[tokens], rtol=0, atol=1e-12)
        assert float(block.share_error()) < 1e-10


@pytest.mark.spread(10)
@pytest.mark.kinds
def test_shares_of_pairs_add_up_to_one_with_the_biases(family, family_model):
    for block in blocks_of(family_model, facts_for(family)):
        shares = block.shares[OF_STAGE[block.composition.stages[-1]]]
        pairs, tokens = GroupedBlock.of_tokens(block).pair_shares(), block.token_mask
        scale = torch.stack(list(shares)).abs().sum(dim=0).clamp(min=1)
        torch.testing.assert_close(
            ((pairs.sum(dim=-1) + shares.bias) / scale)[tokens], (1 / scale)[tokens], rtol=0, atol=1e-12
        )
        torch.testing.assert_close(
            (pairs.diagonal(dim1=1, dim2=2) / scale)[tokens],
            ((shares.own + shares.residual) / scale)[tokens],
            rtol=0,
            atol=1e-12,
        )
        received = block.received_shares()
        assert (received[:, :, ~block.key_mask.any(dim=0)] == 0).all()
        of_attention = block.shares[OF_STAGE[Stage.ATTENTION]]
        whole = (of_attention.others + of_attention.own).masked_fill(~tokens, 0).sum(dim=-1)
        size = of_attention.own.abs().sum(dim=-1).clamp(min=1)
        torch.testing.assert_close(received.sum(dim=(1, 2)) / size, whole / size, **EXACT)


@pytest.mark.kinds("bert", "gpt_neox", "olmo2", "t5")
def test_parts_that_do_not_add_up_are_noticed(family, family_model):
    (block, *_) = blocks_of(family_model, facts_for(family))
    composition = block.composition
    assert float(block.share_error()) < 1e-10
    vars(composition)["mixing"] = composition.mixing * 2
    assert float(block.share_error()) > 0.01


def test_a_run_whose_shares_do_not_add_up_fails(monkeypatch):
    monkeypatch.setattr(AttentionBlock, "share_error", lambda _block: torch.tensor(0.5))
    specimen = specimens.bert()
    with pytest.raises(RuntimeError, match=r"^in layer 2, signed shares add up to 1 only within 0\.50$"):
        specimen.findings("mixing", MixingOptions(), [2, 3], ["all"])
