import pytest
import torch

from normscope.maths import attention as maths

SCALE = 0.3


@pytest.fixture
def qkv():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, 7, 4, dtype=torch.float64, generator=generator) * 3 for _ in range(3)]


@pytest.fixture
def mask():
    visible = torch.ones(2, 1, 7, 7, dtype=torch.bool).tril()
    visible[1, :, :, 0] = False
    visible[1, :, 0, 0] = True
    return maths.additive_mask(visible, torch.float64)


@pytest.mark.parametrize("masked", [False, True])
def test_the_kernel_gives_output_and_normaliser(qkv, mask, masked):
    query, key, value = qkv
    chosen = mask if masked else None
    scores = query @ key.transpose(-1, -2) * SCALE + (mask if masked else 0)
    output, normaliser = maths.attention(query, key, value, chosen, SCALE)
    torch.testing.assert_close(output, scores.softmax(-1) @ value)
    torch.testing.assert_close(normaliser, scores.logsumexp(-1))


def test_heads_of_unequal_size_take_the_exact_fallback(qkv, mask):
    query, key, value = qkv
    value = torch.cat([value, value], dim=-1)
    output, normaliser = maths.attention(query, key, value, mask, SCALE)
    expected, expected_normaliser = maths.attention(query, key, qkv[2], mask, SCALE)
    torch.testing.assert_close(output, torch.cat([expected, expected], dim=-1))
    torch.testing.assert_close(normaliser, expected_normaliser)


def test_normaliser_does_not_depend_on_the_chunk(qkv, mask, monkeypatch):
    query, key, _ = qkv
    whole = maths.log_normaliser(query, key, mask, SCALE)
    monkeypatch.setattr(maths, "QUERY_CHUNK", 3)
    torch.testing.assert_close(maths.log_normaliser(query, key, mask, SCALE), whole)
    torch.testing.assert_close(maths.log_normaliser(query, key, mask[:, :, :1], SCALE).shape, whole.shape)


def test_self_weights_are_the_diagonal_and_never_above_one(qkv, mask):
    query, key, _ = qkv
    weights = maths.attention_weights(query, key, mask, SCALE)
    normaliser = maths.log_normaliser(query, key, mask, SCALE)
    # The diagonal of the masked second sequence is visible everywhere but nowhere else for its first token.
    torch.testing.assert_close(
        maths.self_attention_weights(query, key, normaliser, SCALE), weights.diagonal(dim1=-2, dim2=-1)
    )
    assert maths.self_attention_weights(query, query * 50, normaliser * 0, SCALE).max() == 1


def test_grouped_heads_are_repeated_in_place():
    grouped = torch.arange(2.0).view(1, 2, 1, 1)
    assert maths.repeat_heads(grouped, 4).flatten().tolist() == [0, 0, 1, 1]
    assert maths.repeat_heads(grouped, 2) is grouped
