"""Maps of words, for every position of a norm: words of one token are tokens, and merged vectors are sums."""

import pytest
import torch

from normscope.maths import word_batches
from normscope.maths.words import Pieces, WordGroups
from normscope.models.blocks.token_block import TokenBlock
from normscope.models.blocks.word_block import WordBlock
from normscope.models.observe.observer import Observer
from tests.tiny import layout_of, token_batch

LENGTHS = (9, 6)


def blocks(family, model):
    """The last layer's blocks, and which tokens there are."""
    inputs = token_batch(model, LENGTHS)
    seen = []
    observer = Observer(model, layout_of(family), [model.config.num_hidden_layers], feed_forward=True)

    def visit(block):
        tokens = torch.arange(max(LENGTHS)).expand(len(LENGTHS), -1)
        units = tokens.where(block.attention.token_mask, torch.full_like(tokens, -1))
        # Two words of two tokens, one of three that are not all neighbours, and one of padding alone in the second sequence.
        merged = torch.tensor([[0, 0, 1, 2, 2, 3, 4, 3, 3], [0, 1, 1, 2, 3, 3, -1, -1, -1]])
        singles, groups = (
            WordGroups.of(words, words, torch.float64) for words in (Pieces.of(units, 9), Pieces.of(merged, 5))
        )
        seen.append((block.word_maps(singles), block.pair_maps(), block.word_maps(groups)))
        attention = block.attention
        of_words, of_singles = WordBlock(attention, groups), WordBlock(attention, singles)
        seen.append((of_singles.maps(), TokenBlock(attention).maps(), of_words.maps()))
        seen.append((attention, groups, block.word_maps))

    with observer:
        observer.run(inputs, lambda _block: None, None, visit)
    return seen


@pytest.mark.parametrize("family", ["bert", "deberta", "olmo2", "gpt_neox", "qwen3"], scope="session")
def test_word_maps(family, family_model, monkeypatch):
    *maps, (attention, groups, of_layer) = blocks(family, family_model)
    mask = attention.token_mask
    pairs = mask[:, :, None] & mask[:, None, :]
    for of_words, of_tokens, merged in maps:
        assert of_words.keys() == of_tokens.keys() == merged.keys()
        for stage, values in of_words.items():
            torch.testing.assert_close(values * pairs, of_tokens[stage] * pairs, rtol=1e-9, atol=1e-9)
            # Norms of sums are at most sums of norms.
            bound = groups.rows @ (of_tokens[stage] * pairs) @ groups.columns
            assert (merged[stage] <= bound + 1e-9).all()
    # A strip of few words at a time changes nothing.
    monkeypatch.setattr(word_batches, "_AT_ONCE", 500)
    for stage, values in of_layer(groups).items():
        torch.testing.assert_close(values, maps[0][2][stage], rtol=1e-12, atol=1e-12)
