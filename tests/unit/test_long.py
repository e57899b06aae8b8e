"""Long sequences are processed in strips, with the same results."""

import functools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.scenarios import EVERYTHING, analyses_of, analysing, random_batch
from normscope.analyses.pairs import Pairs
from normscope.maths import attention_weights, weight_tiles
from normscope.maths.partition import Partition
from normscope.models.observe.observer import Observer
from normscope.models.prove.verification import verify
from tests.tiny import FAMILY_CONFIGS, facts_for, proved_to, tiny_model, token_batch

TOKENS = 3072


@pytest.fixture
def parts(monkeypatch):
    """Makes every sequence count as long: four queries at a time."""
    monkeypatch.setitem(attention_weights.WEIGHTS_AT_ONCE, "cpu", 0)
    monkeypatch.setitem(weight_tiles.ENTRIES_AT_ONCE, "cpu", 0)
    monkeypatch.setattr(weight_tiles, "SMALLEST_TILE", {True: 2, False: 4})
    for module in ("normscope.maths.masks", "normscope.models.observe.attention_function"):
        monkeypatch.setattr(f"{module}.STRIP", 4)


@pytest.mark.usefixtures("parts")
@pytest.mark.spread(6)
def test_strips_give_the_same_attention(family, family_model):
    facts = facts_for(family)
    assert verify(family_model, facts, family).error < proved_to(family_model)


@pytest.mark.spread(6)
@pytest.mark.usefixtures("parts")
@pytest.mark.kinds
def test_every_reading_of_the_weights_is_that_of_the_whole(family, family_model):
    def visit(block):
        alpha, tokens, weights = block.alpha, block.token_mask, block.weights
        close = functools.partial(torch.testing.assert_close, rtol=1e-6, atol=1e-9)
        of_tokens = weights * tokens[:, None, :, None]
        close(alpha.received, of_tokens.sum(dim=2))
        if not block.is_cross_attention:
            close(alpha.own * tokens[:, None], of_tokens.diagonal(dim1=-2, dim2=-1))
        row, heads, queries, keys = (
            torch.tensor([1, 1, 1, 1]),
            torch.tensor([0, 1, 1, 0]),
            torch.tensor([3, 2, 3, 0]),
            torch.tensor([1, 0, 3, 3]),
        )
        close(alpha.at(row, heads, queries, keys), weights[row, heads, queries, keys])
        chosen = torch.tensor([8, 1, 3])
        close(alpha.rows(chosen, slice(0, 1)), weights[:1, :, chosen])
        close(torch.cat([strip for _, strip in alpha.strips()], dim=2), weights)
        tiled = torch.zeros_like(weights)
        for tile in alpha.tiles():
            tiled[tile.sequences, :, tile.rows, tile.keys] = tile.weights
        close(tiled * block.key_mask[:, None, None], of_tokens)
        words = Partition.of(torch.tensor([[0, 0, 1, 2, 2, 3, 4, 3, 3], [0, 1, 1, 2, -1, -1, -1, -1, -1]]), 5)
        for tile in alpha.tiles_of_groups(words):
            close(tile.weights, words.means(of_tokens)[tile.sequences, :, tile.rows, tile.keys])
        members = torch.stack([tokens, torch.zeros_like(tokens)])
        close(
            alpha.by_group(members)[..., 0] * tokens[:, None], (of_tokens * block.key_mask[:, None, None]).sum(dim=-1)
        )
        seen = alpha.seen.of().expand_as(weights)
        assert (weights[tokens[:, None, :, None] & ~seen] == 0).all()
        assert (weights[seen] > 0).all()

    with Observer(family_model, facts_for(family)) as observer:
        observer.run(token_batch(family_model, (9, 4)), visit)


@pytest.mark.spread(8)
@pytest.mark.usefixtures("parts")
@pytest.mark.kinds
def test_parts_of_the_pairs_are_those_of_the_whole(family, family_model):
    batch = random_batch((3, 9), family_model.config.vocab_size)

    def visit(block):
        pairs = Pairs(block, batch)
        heads, seen = block.query.shape[1], block.alpha.seen.of().expand_as(block.weights)
        received, seeing = torch.zeros_like(block.weights[:, :, 0]), torch.zeros(3, 1, 9, dtype=torch.long)
        for part in pairs.parts():
            queries = part.first.shape[2]
            assert queries <= 4
            received[part.sequences, :, part.keys] += part.first.sum(dim=2)
            seeing[part.sequences, :, part.keys] += queries - part.unseen
        assert int(seen.sum()) == int(pairs.visible_counts(pairs.keys.token_mask).sum()) * heads
        real = block.key_mask.unsqueeze(1)
        assert torch.equal(seeing * real, seen[:, :1].sum(dim=2))
        torch.testing.assert_close(received, (block.weights * seen).sum(dim=2), rtol=1e-6, atol=1e-9)

    with Observer(family_model, facts_for(family)) as observer:
        observer.run(batch.model_inputs(), visit)


def test_padding_in_front_leaves_no_trace():
    """Only batches made by hand have it; a causal model's padding then sees no key, which may not become NaN anywhere."""
    model = tiny_model(FAMILY_CONFIGS["llama"], torch.float64)
    inputs = token_batch(model, (9, 9))
    inputs["attention_mask"][1, :3] = 0
    found = {}

    def visit(block):
        assert block.received.isfinite().all()
        assert block.weights.isfinite().all()
        found[block.layer] = block.received, (block.token_mask.double()[:, None, None] @ block.weights).squeeze(2)

    with Observer(model, facts_for("llama")) as observer:
        observer.run(inputs, visit)
    for received, expected in found.values():
        token_mask = inputs["attention_mask"].bool()[:, None].expand_as(received)
        torch.testing.assert_close(received[token_mask], expected[token_mask], rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_nothing_grows_with_the_square_of_the_length(monkeypatch):
    """The largest tensor of a pass, all analyses together, is smaller than a mask of one byte a pair."""
    for module in ("normscope.maths.masks", "normscope.models.observe.attention_function"):
        monkeypatch.setattr(f"{module}.STRIP", 32)
    monkeypatch.setitem(attention_weights.WEIGHTS_AT_ONCE, "cpu", 2**18)
    # Otherwise grids are stored whole, in the same size for all lengths.
    monkeypatch.setattr("normscope.statistics.pair_histogram._WHOLE", 0)

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            found = function(*args, **(kwargs or {}))
            for tensor in torch.utils._pytree.tree_leaves(found):
                if isinstance(tensor, torch.Tensor):
                    # What an expanded tensor takes is what it is a view of.
                    Largest.size = max(Largest.size, tensor.untyped_storage().nbytes())
            return found

    for family in ("modernbert", "mistral"):  # windows, one of them causal, rotations and grouped heads
        model = tiny_model(FAMILY_CONFIGS[family] | {"max_position_embeddings": TOKENS}, torch.float32)
        Largest.size = 0
        analyses = analyses_of(model, EVERYTHING.split("+"))
        observe = analysing(model, random_batch((1, TOKENS), model.config.vocab_size), analyses)
        with Largest():
            observe()
        assert 0 < Largest.size < TOKENS**2, (family, Largest.size)
