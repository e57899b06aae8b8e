import dataclasses
import itertools

import pytest
import torch

from normscope.maths import attention as maths
from normscope.maths import kernels, masks, weight_tiles
from normscope.maths.masks import Mask

SCALE = 0.3
TOKENS = 11
REAL = torch.arange(TOKENS) < torch.tensor([TOKENS, 6])[:, None]
BIAS = torch.randn(1, 3, TOKENS, TOKENS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
WINDOW = 2


def window(_sequence, _head, query, key):
    return (query - key).abs() <= WINDOW


def matrix(sequence, _head, query, key):
    """A rule without a shape: other keys for every sequence and query."""
    return ((sequence + query * 3 + key * 5) % 4 != 0) | (query == key)


MASKS = {
    "none": None,
    "padding": Mask(keys=REAL),
    "causal": Mask(causal=True),
    "causal, padding anywhere": Mask(causal=True, keys=torch.arange(TOKENS) != torch.tensor([[TOKENS], [3]])),
    "window": Mask(keys=REAL, queries=REAL, allowed=window, reach=WINDOW),
    "window, reach said too large": Mask(keys=REAL, queries=REAL, allowed=window, reach=5),
    "matrix": Mask(keys=REAL, queries=REAL, allowed=matrix),
    "bias": Mask(keys=REAL).with_bias(BIAS),
    "bias, causal": Mask(causal=True).with_bias(BIAS),
}


@pytest.fixture
def qkv():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, TOKENS, 4, dtype=torch.float64, generator=generator) * 3 for _ in range(3)]


def explicit(mask):
    """What is added to the scores, pair by pair."""
    added = torch.zeros(2, 3, TOKENS, TOKENS, dtype=torch.float64)
    if mask is None:
        return added
    for b, q, k in itertools.product(range(2), range(TOKENS), range(TOKENS)):
        seen = mask.keys is None or bool(mask.keys[b, k])
        seen = seen and (not mask.causal or k <= q)
        if mask.allowed is not None:
            seen = seen and bool(mask.allowed(torch.tensor(b), 0, torch.tensor(q), torch.tensor(k)))
            seen = seen or not REAL[b, q]
        added[b, :, q, k] = (0 if mask.bias is None else mask.bias[0, :, q, k]) if seen else float("-inf")
    return added


@pytest.fixture(params=["fused", "without a kernel"])
def kernel(request, monkeypatch):
    if request.param != "fused":
        monkeypatch.setattr(kernels, "_KERNELS", {})


def received_weights(monkeypatch, query, key, normaliser, token_mask, mask, scale, cap=None):
    """Σ_i α_ij in each way there is: in tiles as large as they are on a CPU, in small ones, and by a fused kernel."""
    arguments = query, key, normaliser, token_mask, mask, scale, cap
    yield weight_tiles.weight_received(*arguments)
    with monkeypatch.context() as patched:
        patched.setitem(weight_tiles.ENTRIES_AT_ONCE, "cpu", 1)
        patched.setattr(weight_tiles, "SMALLEST_TILE", {True: 2, False: 4})
        yield weight_tiles.weight_received(*arguments)
    shift = (-normaliser).masked_fill(~token_mask[:, None], float("-inf"))
    yield weight_tiles._by_kernel(query, key, shift, mask or Mask(), scale, cap)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("strip", [3, 256])
@pytest.mark.parametrize("kind", MASKS)
def test_attention_is_that_of_the_whole_matrix(qkv, kind, strip, monkeypatch):
    monkeypatch.setattr(masks, "STRIP", strip)
    mask = MASKS[kind]
    query, key, value = qkv
    scores = query @ key.transpose(-1, -2) * SCALE + explicit(mask)
    alpha = scores.softmax(-1)
    output, normaliser = maths.attention(query, key, value, mask, SCALE)
    token_mask = REAL[:, None].expand(-1, 3, -1)
    torch.testing.assert_close(output[token_mask], (alpha @ value)[token_mask])
    torch.testing.assert_close(normaliser[token_mask], scores.logsumexp(-1)[token_mask], rtol=1e-7, atol=1e-7)
    expected = torch.einsum("bhqk,bq->bhk", alpha, REAL.double())
    seen = token_mask if mask is None or mask.keys is None else token_mask & mask.keys[:, None]
    for received in received_weights(monkeypatch, query, key, normaliser, REAL, mask, SCALE):
        torch.testing.assert_close(received[seen], expected[seen], rtol=1e-6, atol=1e-9)


@pytest.mark.spread(37)
@pytest.mark.parametrize(
    "sizes", [(1, {True: 2, False: 4}), (200, {True: 4, False: 4}), (2**18, {True: 64, False: 128})]
)
@pytest.mark.parametrize("cap", [None, 5.0])
@pytest.mark.parametrize("kind", MASKS)
def test_tiles_are_parts_of_the_whole_matrix(qkv, kind, cap, sizes, monkeypatch):
    monkeypatch.setitem(weight_tiles.ENTRIES_AT_ONCE, "cpu", sizes[0])
    monkeypatch.setattr(weight_tiles, "SMALLEST_TILE", sizes[1])
    mask, (query, key, _) = MASKS[kind], qkv
    scores = maths.capped(query @ key.transpose(-1, -2) * SCALE, cap) + explicit(mask)
    lone = REAL & (torch.rand(REAL.shape, generator=torch.Generator().manual_seed(3)) > 0.5)
    alpha = scores.softmax(-1) * REAL[:, None, :, None]
    alpha.diagonal(dim1=-2, dim2=-1).masked_fill_(lone.unsqueeze(1), 1)
    whole, covered = torch.zeros_like(alpha), torch.zeros_like(alpha)
    tiles = weight_tiles.weight_tiles(query, key, scores.logsumexp(-1), REAL, mask, SCALE, cap, lone)
    for some, rows, columns, weights in tiles:
        whole[some, :, rows, columns] = weights
        covered[some, :, rows, columns] += 1
    assert (covered <= 1).all()
    assert (alpha[covered == 0] == 0).all()
    torch.testing.assert_close(whole, alpha)
    hidden = (scores == float("-inf")) | ~REAL[:, None, :, None]
    hidden.diagonal(dim1=-2, dim2=-1).logical_and_(~lone.unsqueeze(1))
    assert (whole[hidden] == 0).all(), "exactly"
    assert (whole.diagonal(dim1=-2, dim2=-1)[lone[:, None].expand(-1, 3, -1)] == 1).all(), "exactly"


@pytest.mark.parametrize("kind", MASKS)
def test_what_is_added_to_chosen_scores(kind):
    mask = MASKS[kind] or Mask()
    like = torch.zeros((), dtype=torch.float64)
    queries, lengths = torch.tensor([7, 2, 5]), (2, TOKENS, TOKENS)
    term = mask.chosen_term(slice(1, 2), queries, slice(1, 9), lengths, like)
    expected = explicit(mask)[1:2, :, queries, 1:9]
    torch.testing.assert_close((torch.zeros(()) if term is None else term).expand_as(expected).double(), expected)


@pytest.mark.parametrize(
    ("kind", "queries", "keys", "kept"),
    [
        ("matrix", 4, 11, True),  # as large as a strip
        ("matrix", 5, 3, False),
        ("window", 11, 11, True),  # a band
        ("padding", 11, 11, True),  # one row
        ("none", 11, 11, True),
        ("bias", 11, 11, True),  # as large as the bias, which is there anyway
        ("shifted bias", 11, 11, False),
        ("shifted bias", 4, 11, True),
    ],
)
def test_only_masks_that_take_little_memory_are_kept(kind, queries, keys, kept, monkeypatch):
    monkeypatch.setattr(masks, "STRIP", 4)
    monkeypatch.setattr(masks, "_SMALL", 0)
    shifted = Mask(shift=torch.ones(2, 3, TOKENS, dtype=torch.float64)).with_bias(BIAS)
    mask = dataclasses.replace(shifted if kind == "shifted bias" else MASKS[kind] or Mask())
    place, lengths = (slice(0, queries), slice(0, keys)), (2, queries, keys)
    for like in (torch.zeros(()), torch.zeros((), dtype=torch.float64)):
        first, again = (mask.term(*place, lengths, like) for _ in range(2))
        assert (first is again) == kept
        assert first is None if kind == "none" else torch.equal(first, again)
        assert first is None or first.dtype == like.dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_the_call_of_the_cuda_kernel_fits_its_signature(dtype, masked):
    """Shapes and dtypes alone, as torch describes them: nothing is computed, and no such device is needed."""
    query, key, value = (torch.empty(2, 3, n, 12, dtype=dtype, device="meta") for n in (37, 41, 41))
    mask = torch.empty(2, 1, 1, 41, dtype=dtype, device="meta") if masked else None
    output, normaliser = kernels._cuda(query, key, value, mask, False, SCALE)
    assert output.shape == (2, 3, 37, 12)
    assert normaliser.shape == (2, 3, 37)
    assert normaliser.dtype == torch.float32


def test_self_weights_are_the_diagonal_and_never_above_one(qkv):
    query, key, value = qkv
    weights = (query @ key.transpose(-1, -2) * SCALE + explicit(MASKS["causal"])).softmax(-1)
    normaliser = maths.attention(query, key, value, MASKS["causal"], SCALE).log_normaliser
    torch.testing.assert_close(
        maths.weights_of_pairs(query, key, normaliser, SCALE), weights.diagonal(dim1=-2, dim2=-1)
    )
    assert maths.weights_of_pairs(query, query * 50, normaliser * 0, SCALE).max() == 1


def test_visible_keys_are_counted_and_found_by_their_place():
    """By hand: padding in front of one sequence and behind the other."""
    token_mask = torch.tensor([[False, True, True, True], [True, True, False, False]])
    queries, ranks = torch.tensor([3, 3, 2]), torch.tensor([0, 2, 1])
    masks = {
        "everything": (Mask(keys=token_mask), [[3] * 4, [2] * 4], [1, 3, 2]),
        "causal": (Mask(keys=token_mask, causal=True), [[0, 1, 2, 3], [1, 2, 2, 2]], [1, 3, 2]),
        "window": (
            Mask(keys=token_mask, allowed=lambda _b, _h, query, key: (query - key).abs() <= 2, reach=2),
            [[2, 3, 3, 3], [2, 2, 2, 1]],
            [1, 3, 2],
        ),
    }
    for name, (mask, counts, keys) in masks.items():
        assert mask.visible_counts(token_mask, 4).tolist() == counts, name
        assert mask.visible_keys(torch.zeros_like(queries), queries, ranks, token_mask[:1]).tolist() == keys, name
    assert Mask().visible_counts(token_mask, 2).tolist() == [[3, 3], [2, 2]]  # two queries look at other sequences


@pytest.mark.parametrize("cap", [None, 0.7])
@pytest.mark.parametrize("causal", [False, True])
def test_soft_caps_and_sinks_by_brute_force(cap, causal, monkeypatch):
    """The sink is a column of its own in the softmax, and is then dropped: every row loses what went to it."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 3, 5, 4, generator=generator, dtype=torch.float64).unbind()
    sinks = torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64)
    scores = 0.6 * query @ key.transpose(-1, -2)
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    if causal:
        scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
    with_sink = torch.cat([scores, sinks[:, None, None].expand(2, 3, 5, 1)], dim=-1).softmax(dim=-1)
    alpha, lost = with_sink[..., :-1], with_sink[..., -1]
    mask = Mask(causal=True) if causal else None
    attended = maths.attention(query, key, value, mask, 0.6, cap=cap, sinks=sinks)
    torch.testing.assert_close(attended.output, alpha @ value)
    torch.testing.assert_close((sinks[:, None] - attended.log_normaliser).exp(), lost)
    members = torch.tensor([[[True, False, False, True, True]] * 2, [[False, True, False, False, True]] * 2])
    by_group = maths.attention_by_group(query, key, members, mask, 0.6, cap=cap, sinks=sinks)
    torch.testing.assert_close(by_group, torch.einsum("bhqk,gbk->bhqg", alpha, members.double()))
    everything = torch.ones(2, 5).bool()
    for received in received_weights(monkeypatch, query, key, attended.log_normaliser, everything, mask, 0.6, cap):
        torch.testing.assert_close(received, alpha.sum(dim=2))
    own = maths.weights_of_pairs(query, key, attended.log_normaliser, 0.6, cap=cap)
    torch.testing.assert_close(own, alpha.diagonal(dim1=-2, dim2=-1))


def test_a_mask_that_is_made_once_is_that_of_every_text():
    """Some encoders of sound make one mask of chunks, of shape (1, 1, query, key)."""
    visible = torch.arange(6)[:, None] // 2 >= torch.arange(6) // 2
    mask = masks.mask_of(visible[None, None], (6, 6))
    query, key, value = (torch.randn(3, 2, 6, 4, dtype=torch.float64) for _ in range(3))
    expected = (query @ key.mT / 2).masked_fill(~visible, -torch.inf).softmax(-1) @ value
    torch.testing.assert_close(maths.attention(query, key, value, mask, 0.5).output, expected)
