"""Models whose own output depends on padding, or on the other texts of a batch: the size of batches changes no number."""

import pandas as pd
import pytest
import torch
from torch import nn
from transformers import NllbMoeConfig, NllbMoeModel

import normscope
from normscope.data.token_sequence import Batching
from normscope.errors import InputError
from tests.architectures import tiny_architecture
from tests.tiny import FAMILY_CONFIGS, tiny_model


class OwnBlock(nn.Module):
    """Bidirectional attention behind something that may look beyond its text."""

    def __init__(self, front):
        super().__init__()
        torch.manual_seed(3)
        self.embed, self.front = nn.Embedding(50, 16), front
        layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, input_ids, attention_mask):
        return self.encoder(self.front(self.embed(input_ids), attention_mask), src_key_padding_mask=attention_mask == 0)


class Convolution(nn.Module):
    """Every token reads its neighbours, padding included."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(16, 16, 3, padding=1)

    def forward(self, vectors, _mask):
        return vectors + self.conv(vectors.transpose(1, 2)).transpose(1, 2)


class FromTheEnd(nn.Module):
    """Positions are counted from the end of the batch."""

    def __init__(self):
        super().__init__()
        self.positions = nn.Embedding(64, 16)

    def forward(self, vectors, _mask):
        return vectors + self.positions(torch.arange(vectors.shape[1] - 1, -1, -1, device=vectors.device))


class MaskedMean(nn.Module):
    """Every token reads the mean of its own text."""

    def forward(self, vectors, mask):
        weights = (mask / mask.sum(dim=1, keepdim=True)).to(vectors)
        return vectors + (weights[:, :, None] * vectors).sum(dim=1, keepdim=True)


class OfTheBatch(nn.Module):
    """Every token reads the mean of the batch, as batch normalisation does in training."""

    def forward(self, vectors, mask):
        weights = (mask / mask.sum()).to(vectors)
        return vectors - (weights[:, :, None] * vectors).sum(dim=(0, 1))


FRONTS = {
    Convolution: Batching.EQUAL_LENGTHS,
    FromTheEnd: Batching.EQUAL_LENGTHS,
    MaskedMean: Batching.PADDED,
    OfTheBatch: Batching.SINGLE,
}


def tables(model, texts, batch_tokens):
    results = normscope.run("mixing", model=model, texts=texts, batch_tokens=batch_tokens)
    return results, {name: table for name, table in results.tables.items() if "sample" not in name}


def assert_the_size_of_batches_changes_nothing(model, texts):
    results, expected = tables(model, texts, 1)
    _, got = tables(model, texts, 16)
    for name, table in expected.items():
        numbers = table.select_dtypes("number").columns.difference(["error_bound"])
        pd.testing.assert_frame_equal(got[name][numbers], table[numbers], rtol=1e-6, atol=1e-7, obj=name)
    return results


@pytest.mark.spread(1)
@pytest.mark.parametrize(("front", "batching"), FRONTS.items(), ids=[front.__name__ for front in FRONTS])
def test_modules_of_users(front, batching):
    wrapped = normscope.wrap(OwnBlock(front()).double().eval())
    assert wrapped.batching is batching
    texts = [[1, 2, 3], [4, 5, 6, 7, 8], [9, 10, 11], [3, 12, 4, 5, 6], [7, 8]]
    results = assert_the_size_of_batches_changes_nothing(wrapped, texts)
    assert (batching.note in results.notes) == (batching is not Batching.PADDED)
    if batching is Batching.SINGLE:
        with pytest.raises(InputError, match="output for a text depends on the other texts; pass them one by one"):
            normscope.decompose(wrapped, [texts[0], texts[2]])


@pytest.mark.slow
@pytest.mark.parametrize("zero", [True, False])
def test_the_row_of_padding_in_trigrams(zero):
    """MobileBERT concatenates the embeddings of neighbours: with trained weights, that of [PAD] is not zero."""
    model = tiny_architecture("mobilebert")
    nn.init.normal_(model.embeddings.word_embeddings.weight)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[0] *= 0.0 if zero else 1.0
    wrapped = normscope.wrap(model)
    assert wrapped.batching is (Batching.PADDED if zero else Batching.EQUAL_LENGTHS)
    results = assert_the_size_of_batches_changes_nothing(wrapped, [[5, 6, 7, 8], [9, 10], [11, 12, 13], [7, 5]])
    assert (Batching.EQUAL_LENGTHS.note in results.notes) != zero


@pytest.mark.parametrize("capacity", [0.2, 1.0])
def test_experts_that_leave_out_tokens(capacity):
    """NLLB's experts take at most a share of the tokens of a batch."""
    sizes = {"d_model": 32, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "vocab_size": 99, "num_experts": 4}
    layers = {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    config = NllbMoeConfig(
        **sizes, **layers, encoder_sparse_step=2, decoder_sparse_step=2, moe_eval_capacity_token_fraction=capacity
    )
    torch.manual_seed(0)
    model = NllbMoeModel(config).eval()
    batching = normscope.wrap(model, stack="encoder").batching
    assert batching is (Batching.SINGLE if capacity < 1 else Batching.PADDED)


@pytest.mark.spread(1)
@pytest.mark.parametrize("family", ["bert", "gpt2", "modernbert"])
def test_families_that_mask_padding_are_padded(family):
    wrapped = normscope.wrap(tiny_model(FAMILY_CONFIGS[family], torch.float32))
    assert wrapped.batching is Batching.PADDED
