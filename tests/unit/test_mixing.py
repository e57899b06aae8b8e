"""Cases small enough to compute by hand, in two dimensions."""

import torch

from normscope.maths.composition import Composition
from normscope.maths.mixing import Method, mixing_ratios, preserving_vectors, ratio
from normscope.maths.normalisation import Normalisation, scaled_norm

F64 = torch.float64


def test_ratios_of_one_token_by_hand():
    # Σ_{j≠i} F = (3, 4), F_ii = (0, 1), x = (0, 11): norms 5, 1, and 12 with the residual.
    ratios = mixing_ratios(
        torch.tensor([[[0.25], [0.75]]], dtype=F64),
        Composition(
            inputs=torch.tensor([[[0.0, 11.0]]], dtype=F64),
            attention_output=torch.tensor([[[10.0, 12.0]]], dtype=F64),
            preserving=torch.tensor([[[0.0, 1.0]]], dtype=F64),
            output_bias=torch.tensor([7.0, 7.0], dtype=F64),
            norm_position="post",
            normalisation=Normalisation(torch.tensor([2.0, 1.0], dtype=F64), None, 0.0),
        ),
    )
    # Centred: mixing (−½, ½), the rest (−6, 6); scaled by γ: √1.25 and √180.
    last = 1.25**0.5 / (1.25**0.5 + 180**0.5)
    expected = {
        Method.ATTN_W: 0.5,
        Method.ATTN_N: 5 / 6,
        Method.ATTNRES_W: 0.25,
        Method.ATTNRES_N: 5 / 17,
        Method.ATTNRESLN_N: last,
    }
    for method, value in expected.items():
        torch.testing.assert_close(ratios[method].item(), value)


def test_ratio_ends():
    zero, one = torch.zeros(1), torch.ones(1)
    assert ratio(zero, one) == 0
    assert ratio(one, zero) == 1
    assert ratio(zero, zero) == 0


def test_preserving_vectors_sum_over_heads():
    # Two heads of size one: 0.5·2·(1, 0) + 0.25·4·(0, 3).
    vectors = preserving_vectors(
        self_weights=torch.tensor([[[0.5], [0.25]]]),
        value=torch.tensor([[[[2.0]], [[4.0]]]]),
        output_weight=torch.tensor([[[1.0, 0.0]], [[0.0, 3.0]]]),
    )
    assert vectors.tolist() == [[[1.0, 3.0]]]


def test_normalisation_is_torch_layer_norm():
    torch.manual_seed(0)
    x = torch.randn(5, 8, dtype=F64)
    norm = torch.nn.LayerNorm(8, eps=1e-3, dtype=F64)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    ours = Normalisation(norm.weight.data, norm.bias.data, norm.eps)
    torch.testing.assert_close(ours.scaled(x) / ours.deviation(x)[:, None] + ours.bias, norm(x).data)
    torch.testing.assert_close(scaled_norm(x, ours), ours.scaled(x).norm(dim=-1))


def test_rms_norm_does_not_centre():
    x = torch.tensor([[3.0, 4.0]], dtype=F64)
    norm = Normalisation(torch.ones(2, dtype=F64), None, 0.0, centred=False)
    torch.testing.assert_close(norm.deviation(x), torch.tensor([12.5**0.5], dtype=F64))
    torch.testing.assert_close(scaled_norm(x, norm), torch.tensor([5.0], dtype=F64))
