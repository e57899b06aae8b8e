"""The parts of a block against vectors that are built explicitly, pair by pair, for every position of the norm."""

import dataclasses

import pytest
import torch
from torch import Tensor

from normscope.maths import composition, shares
from normscope.maths.composition import STAGES, Composition, Stage
from normscope.maths.mixing import ratio
from normscope.maths.normalisation import Normalisation
from normscope.maths.tensors import as_double

BATCH, HEADS, TOKENS, HEAD_DIM, MODEL = 2, 3, 4, 5, 6


@dataclasses.dataclass(frozen=True)
class Block:
    """A random block with its α, v and W_O."""

    weights: Tensor
    value: Tensor
    output_weight: Tensor
    composition: Composition

    def pair_vectors(self) -> dict[Stage, Tensor]:
        """V_ij as the papers define it, with axes batch query key model."""
        parts, norm = self.composition, self.composition.normalisation
        vectors = torch.einsum("bhqk,bhkd,hdm->bqkm", self.weights, self.value, self.output_weight)
        identity = torch.eye(TOKENS, dtype=torch.float64)[None, :, :, None]
        residual = vectors + identity * parts.inputs[:, :, None]
        pairs = {Stage.ATTENTION: vectors, Stage.RESIDUAL: residual}
        if norm is None:
            return pairs
        branch = parts.norm_position == "branch"
        normed = parts.attention_output + (0 if branch else parts.inputs)
        sigma = (normed.var(dim=-1, unbiased=False) + norm.epsilon).sqrt()[:, :, None, None]
        source = vectors if branch else residual
        scaled = norm.weight * (source - source.mean(dim=-1, keepdim=True)) / sigma
        return pairs | {Stage.NORMALISED: scaled + identity * parts.inputs[:, :, None] if branch else scaled}

    def real_outputs(self) -> dict[Stage, Tensor]:
        """What the block computes at each stage."""
        parts, norm = self.composition, self.composition.normalisation
        outputs = {Stage.ATTENTION: parts.attention_output, Stage.RESIDUAL: parts.inputs + parts.attention_output}
        if norm is None:
            return outputs
        branch = parts.norm_position == "branch"
        normed = outputs[Stage.ATTENTION if branch else Stage.RESIDUAL]
        last = torch.nn.functional.layer_norm(normed, (MODEL,), norm.weight, norm.bias, norm.epsilon)
        return outputs | {Stage.NORMALISED: last + parts.inputs if branch else last}


@pytest.fixture(params=STAGES)
def block(request) -> Block:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    weights = random(BATCH, HEADS, TOKENS, TOKENS).softmax(dim=-1)
    value, output_weight, bias = random(BATCH, HEADS, TOKENS, HEAD_DIM), random(HEADS, HEAD_DIM, MODEL), random(MODEL)
    transformed = torch.einsum("bhkd,hdm->bhkm", value, output_weight)
    normed = request.param in ("post", "branch")
    composition = Composition(
        inputs=random(BATCH, TOKENS, MODEL),
        attention_output=torch.einsum("bhqk,bhkm->bqm", weights, transformed) + bias,
        preserving=torch.einsum("bhqq,bhqm->bqm", weights, transformed),
        output_bias=bias,
        norm_position=request.param,
        normalisation=Normalisation(random(MODEL), random(MODEL), 1e-3) if normed else None,
    )
    return Block(weights, value, output_weight, composition)


def test_own_others_and_constant_are_the_explicit_vectors(block):
    pairs, outputs = block.pair_vectors(), block.real_outputs()
    for stage in block.composition.stages:
        own = torch.einsum("bqqm->bqm", pairs[stage])
        torch.testing.assert_close(block.composition.own(stage), own)
        torch.testing.assert_close(block.composition.others(stage), pairs[stage].sum(dim=2) - own)
        constant = outputs[stage] - pairs[stage].sum(dim=2)
        torch.testing.assert_close(block.composition.constant(stage), constant)
        torch.testing.assert_close(block.composition.output(stage), outputs[stage])


def test_pair_norms_are_those_of_the_explicit_vectors(block):
    norms = block.composition.pair_norms(block.weights.split(3, dim=2), block.value, block.output_weight)
    assert tuple(norms) == block.composition.stages
    for stage, norm in norms.items():
        torch.testing.assert_close(norm, block.pair_vectors()[stage].norm(dim=-1))


def test_relative_norms_have_the_ratio_of_the_explicit_vectors(block):
    for stage, (others, own) in block.composition.relative_norms().items():
        expected_own = torch.einsum("bqqm->bqm", block.pair_vectors()[stage])
        expected = (block.pair_vectors()[stage].sum(dim=2) - expected_own).norm(dim=-1) / expected_own.norm(dim=-1)
        torch.testing.assert_close(others / own, expected)


def test_no_key_of_cross_attention_takes_in_the_residual_connection(block):
    norms = block.composition.pair_norms(
        block.weights.split(3, dim=2), block.value, block.output_weight, is_cross_attention=True
    )
    assert tuple(norms) == (Stage.ATTENTION,)
    torch.testing.assert_close(norms[Stage.ATTENTION], block.pair_vectors()[Stage.ATTENTION].norm(dim=-1))


def test_a_stage_that_the_block_lacks_is_refused(block):
    for stage in set(Stage) - set(block.composition.stages):
        for part in (block.composition.own, block.composition.others, block.composition.constant):
            with pytest.raises(ValueError, match="has no stage"):
                part(stage)


def test_double_keeps_the_deviation_of_the_model(block):
    single = dataclasses.replace(
        block.composition,
        inputs=block.composition.inputs.float(),
        attention_output=block.composition.attention_output.float(),
    )
    assert as_double(single).inputs.dtype == torch.float64
    if single.normalisation is not None:
        assert torch.equal(as_double(single).deviation, single.deviation.double())


def test_relative_norms_are_the_same_in_pieces(block, monkeypatch):
    whole = block.composition.relative_norms()
    for at_once in (1, 3 * MODEL, 10 * MODEL):
        monkeypatch.setattr(composition, "ELEMENTS_AT_ONCE", {"cpu": at_once})
        for stage, norms in dataclasses.replace(block.composition).relative_norms().items():
            assert norms[0].shape == (BATCH, TOKENS)
            torch.testing.assert_close(norms, whole[stage], rtol=0, atol=1e-6)


def test_shares_do_not_depend_on_how_many_tokens_are_read_at_once(block, monkeypatch):
    whole = shares.block_shares(block.composition)
    for tokens in (0.5, 1, 2.5, BATCH * TOKENS - 1):
        monkeypatch.setitem(shares.ELEMENTS_AT_ONCE, "cpu", tokens * MODEL)
        for stage, parts in shares.block_shares(block.composition).items():
            for part, expected in zip(parts, whole[stage], strict=True):
                torch.testing.assert_close(part, expected, rtol=1e-12, atol=1e-12)


def test_a_vector_that_is_zero_has_no_shares():
    assert shares.along(torch.zeros(2, 3)).tolist() == [[0.0] * 3] * 2


def test_ratio_ends():
    zero, one = torch.zeros(1), torch.ones(1)
    assert (ratio(zero, one), ratio(one, zero), ratio(zero, zero)) == (0, 1, 0)
