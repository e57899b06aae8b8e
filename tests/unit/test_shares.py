"""Signed shares against vectors that are built explicitly, pair by pair, and an example by hand."""

import pytest
import torch

from normscope.maths.composition import STAGES, Composition, Stage
from normscope.maths.normalisation import Normalisation
from normscope.maths.shares import ELEMENTS_AT_ONCE, Shares, along, block_readout, block_shares, pair_readout
from tests.unit.test_composition import BATCH, TOKENS, Block, block

__all__ = ["block"]  # the fixture

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def projected(vectors: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    return (vectors * output).sum(dim=-1) / output.square().sum(dim=-1)


def test_shares_are_projections_of_the_explicit_vectors(block: Block):
    """Each part alone, against γ, σ and β written out, for every position of the norm."""
    pairs, outputs, parts = block.pair_vectors(), block.real_outputs(), block.composition
    attention = pairs[Stage.ATTENTION]
    for stage, shares in block_shares(parts).items():
        output = outputs[stage]
        own = torch.einsum("bqqm->bqm", pairs[stage])
        through = torch.einsum("bqqm->bqm", attention)
        if stage is Stage.NORMALISED:
            norm = parts.normalisation
            normed = parts.attention_output + (0 if parts.norm_position == "branch" else parts.inputs)
            sigma = (normed.var(dim=-1, unbiased=False, keepdim=True) + norm.epsilon).sqrt()
            through = norm.weight * (through - through.mean(dim=-1, keepdim=True)) / sigma
        torch.testing.assert_close(shares.others, projected(pairs[stage].sum(dim=2) - own, output), **EXACT)
        torch.testing.assert_close(shares.own, projected(through, output), **EXACT)
        torch.testing.assert_close(shares.residual, projected(own - through, output), **EXACT)
        torch.testing.assert_close(shares.bias, projected(outputs[stage] - pairs[stage].sum(dim=2), output), **EXACT)
        torch.testing.assert_close(shares.sum, torch.ones(BATCH, TOKENS, dtype=torch.float64), **EXACT)


def test_shares_do_not_depend_on_how_many_tokens_are_read_at_once(block: Block, monkeypatch):
    whole = block_shares(block.composition)
    model = block.composition.inputs.shape[-1]
    for tokens in (0.5, 1, 2.5, BATCH * TOKENS - 1):
        monkeypatch.setitem(ELEMENTS_AT_ONCE, "cpu", tokens * model)
        for stage, parts in block_shares(block.composition).items():
            for part, expected in zip(parts, whole[stage], strict=True):
                torch.testing.assert_close(part, expected, **EXACT)


@pytest.mark.parametrize("centred", [True, False])
def test_the_transpose_of_a_norm_reads_out_its_inputs(centred):
    generator = torch.Generator().manual_seed(1)
    weight, vectors, directions = (torch.randn(*size, 5, generator=generator).double() for size in ((), (3,), (3,)))
    norm = Normalisation(weight, None, 0.0, centred=centred)
    transposed = norm.transposed(directions)
    matrix = norm.scaled(torch.eye(5, dtype=torch.float64))
    torch.testing.assert_close(transposed, directions @ matrix.T, **EXACT)
    torch.testing.assert_close(
        torch.linalg.vecdot(norm.scaled(vectors), directions), torch.linalg.vecdot(vectors, transposed), **EXACT
    )
    assert norm.transposed_(directions) is directions
    torch.testing.assert_close(directions, transposed, **EXACT)


def test_shares_of_heads_and_keys_add_up_to_those_of_the_block(block: Block):
    """Σ over heads and keys of α⟨v, r⟩ is what the other tokens and the token itself contribute through attention."""
    for stage in block.composition.stages:
        readout = block_readout(block.composition, stage)
        read = pair_readout(readout.attended, block.output_weight)
        pairs = torch.einsum("bhqk,bhqd,bhkd->bqk", block.weights, read, block.value)
        shares = block_shares(block.composition)[stage]
        torch.testing.assert_close(pairs.sum(dim=-1), shares.others + shares.own, **EXACT)
        torch.testing.assert_close(pairs.diagonal(dim1=-2, dim2=-1), shares.own, **EXACT)


def test_words_are_read_out_along_the_mean_of_their_tokens(block: Block):
    """With V_IJ = 1/|I| Σ_{i∈I} Σ_{j∈J} V_ij, built explicitly."""
    rows = torch.zeros(BATCH, 2, TOKENS, dtype=torch.float64)
    rows[:, 0, :3], rows[:, 1, 3:] = 1 / 3, 1.0
    member = rows > 0
    pairs, outputs, parts = block.pair_vectors(), block.real_outputs(), block.composition
    inside = torch.einsum("bwq,bwk->bqk", member.double(), member.double())
    within = torch.einsum("bqkm,bqk->bqm", pairs[Stage.ATTENTION], inside)
    merged = Composition(
        inputs=parts.inputs,
        attention_output=parts.attention_output,
        preserving=within,
        output_bias=parts.output_bias,
        norm_position=parts.norm_position,
        normalisation=parts.normalisation,
    )
    for stage, shares in block_shares(merged, rows).items():
        output = rows @ outputs[stage]
        others = rows @ torch.einsum("bqkm,bqk->bqm", pairs[stage], 1 - inside)
        torch.testing.assert_close(shares.others, projected(others, output), **EXACT)
        kept = rows @ torch.einsum("bqkm,bqk->bqm", pairs[stage], inside)
        torch.testing.assert_close(shares.own + shares.residual, projected(kept, output), **EXACT)
        torch.testing.assert_close(shares.sum, torch.ones(BATCH, 2, dtype=torch.float64), **EXACT)


def test_the_example_of_the_measure_page():
    """Two long contributions that almost cancel: the others have 73% of the norms and 40% of the output."""
    others, own = torch.tensor([[4.0, 1.0], [-4.0, 1.0]]), torch.tensor([0.0, 3.0])
    output = others.sum(dim=0) + own
    assert output.tolist() == [0.0, 5.0]
    norms = others.norm(dim=-1).sum()
    assert float(norms / (norms + own.norm())) == pytest.approx(0.733, abs=5e-4)
    assert [float(part @ along(output)) for part in (*others, own)] == pytest.approx([0.2, 0.2, 0.6])
    against = torch.tensor([-4.0, -1.0])
    output = others[0] + against + own
    assert [float(part @ along(output)) for part in (others[0], against, own)] == pytest.approx([1 / 3, -1 / 3, 1.0])


def test_a_vector_that_is_zero_has_no_shares():
    assert along(torch.zeros(2, 3)).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("position", STAGES)
def test_shares_do_not_depend_on_the_length_of_the_output(position):
    """Multiplying every part of a block by a number leaves shares as they are, unless a norm with β follows."""
    generator = torch.Generator().manual_seed(1)
    x, a, own = (torch.randn(1, 3, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    norm = Normalisation(torch.ones(4, dtype=torch.float64), None, 0.0) if position in ("post", "branch") else None

    def shares(factor: float) -> dict[Stage, Shares]:
        return block_shares(Composition(factor * x, factor * a, factor * own, None, position, norm))

    for stage, parts in shares(1.0).items():
        if position == "branch" and stage is Stage.NORMALISED:
            continue  # the norm of the attention output alone does not grow with it
        for one, other in zip(parts, shares(7.0)[stage], strict=True):
            torch.testing.assert_close(one, other, **EXACT)
