"""Slopes of every activation, against quadrature with thirty digits."""

import functools

import mpmath
import pytest
import torch
from torch import nn
from transformers.activations import ACT2CLS, ACT2FN

from normscope.maths.activations import ACTIVATIONS, LeakyRelu, activation_of

mpmath.mp.dps = 32
ROOT = mpmath.sqrt(2 / mpmath.pi)


def tanh_gelu(x):
    return x * (1 + mpmath.tanh(ROOT * (x + mpmath.mpf("0.044715") * x**3))) / 2


EXACT = {
    "GELU": lambda x: x * mpmath.ncdf(x),
    "GELU (tanh)": tanh_gelu,
    "quick GELU": lambda x: x / (1 + mpmath.exp(-mpmath.mpf("1.702") * x)),
    "GELU up to 10": lambda x: min(x * mpmath.ncdf(x), mpmath.mpf(10)),
    "SiLU": lambda x: x / (1 + mpmath.exp(-x)),
    "Mish": lambda x: x * mpmath.tanh(mpmath.log1p(mpmath.exp(x))),
    "ReLU": lambda x: max(x, mpmath.mpf(0)),
    "ReLU²": lambda x: max(x, mpmath.mpf(0)) ** 2,
    "ReLU6": lambda x: min(max(x, mpmath.mpf(0)), mpmath.mpf(6)),
    "hard swish": lambda x: x * min(max(x + 3, mpmath.mpf(0)), mpmath.mpf(6)) / 6,
    "identity": lambda x: x,
    "tanh": mpmath.tanh,
}
EDGES = (-50, -8, -3, 0, 3, 6, 10, 50)
"""Where activations bend or have breakpoints: quadrature is piece by piece."""

POINTS = (-1e30, -2e4, -41.0, -39.99, -8.1, -2.7, -0.3, -1e-4, -1e-30, 1e-8, 0.77, 3.0, 5.9, 9.4, 10.5, 22.0, 40.1, 3e7)


@functools.cache
def exact(name: str, u: float) -> tuple[mpmath.mpf, mpmath.mpf]:
    """s and K at u ≠ 0."""
    g, u = EXACT[name], mpmath.mpf(u)
    edges = [mpmath.mpf(edge) / u for edge in EDGES]
    return g(u) / u, mpmath.quad(lambda a: g(a * u) / u, [0, *sorted(edge for edge in edges if 0 < edge < 1), 1])


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 3e-7)])
@pytest.mark.spread(1)
def test_slopes(name, dtype, bound):
    """Relative to each number itself where it is normal; below e⁻²⁰, relative to that."""
    activation = ACTIVATIONS[name]
    u = torch.tensor(POINTS, dtype=torch.float32).to(dtype)
    slopes, path_slopes = zip(*(exact(name, x) for x in u.tolist()), strict=True)
    for measured, expected in (
        (activation.slope(u), slopes),
        (activation.path_slope(u), path_slopes),
        (activation.value(u) / u, slopes),
    ):
        assert measured.dtype == dtype
        reference = torch.tensor([float(x) for x in expected], dtype=torch.float64)
        error = (measured.double() - reference).abs() / reference.abs().clamp(min=2e-9)
        assert float(error.max()) < bound, (name, float(u[error.argmax()]))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_limits_at_zero_and_infinity(name):
    activation = ACTIVATIONS[name]
    zero = torch.zeros(1, dtype=torch.float64)
    at_zero = {"ReLU": 0.0, "ReLU²": 0.0, "ReLU6": 0.0, "identity": 1.0, "tanh": 1.0, "Mish": 0.6}.get(name, 0.5)
    assert activation.slope(zero).item() == pytest.approx(at_zero, rel=1e-15)
    assert activation.path_slope(zero).item() == pytest.approx(at_zero / (3 if name == "ReLU²" else 2), rel=1e-15)
    ends = torch.tensor([-torch.inf, torch.inf, torch.nan])
    assert activation.path_slope(ends)[:2].isfinite().all() or name == "ReLU²"
    # I(u), as networks compute it: K of a piecewise linear activation is a number even where u is none.
    assert (activation.path_slope(ends) * ends)[2].isnan()
    assert activation.value(ends)[2].isnan()


@pytest.mark.parametrize("name", ["GELU", "SiLU", "GELU (tanh)"])
def test_half_precision_is_rounded_once(name):
    activation = ACTIVATIONS[name]
    u = torch.linspace(-6, 6, 301).to(torch.bfloat16)
    for function in (activation.slope, activation.path_slope):
        assert function(u).dtype == torch.bfloat16
        assert torch.equal(function(u), function(u.float()).to(torch.bfloat16))


@pytest.mark.parametrize("negative", [0.25, -0.5, 0.01])
def test_a_slope_below_zero(negative):
    activation = LeakyRelu(negative)
    u = torch.tensor([-3.0, -1.0, 2.0, 2.0], dtype=torch.float64)
    assert activation.slope(u).tolist() == [negative, negative, 1, 1]
    assert activation.path_slope(u).tolist() == [negative / 2, negative / 2, 0.5, 0.5]


UNKNOWN = {"sigmoid", "laplace", "sqrtsoftplus", "xielu"}
"""Not multiples of their input, or with learned parameters of their own; no family's configs use them."""


@pytest.mark.parametrize("name", ACT2CLS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_activations_of_transformers_are_recognised(name, dtype):
    function = ACT2FN[name].to(dtype)
    activation = activation_of(function, torch.zeros(1, dtype=dtype))
    if name in UNKNOWN:
        assert activation is None
        return
    u = torch.linspace(-15, 15, 400, dtype=dtype)
    with torch.inference_mode():
        torch.testing.assert_close(activation.value(u), function(u), rtol=1e-6, atol=1e-6)


def test_functions_are_recognised():
    like = torch.zeros(1)
    assert activation_of(nn.functional.gelu, like) is ACTIVATIONS["GELU"]
    assert activation_of(nn.GELU(approximate="tanh"), like) is ACTIVATIONS["GELU (tanh)"]
    assert activation_of(torch.relu, like) is ACTIVATIONS["ReLU"]
    assert activation_of(lambda u: 1.01 * torch.relu(u), like) is None


@pytest.mark.parametrize("shape", [(1,), (1, 1), (2, 1, 3), (1, 99), (4, 100), (2, 5, 768)])
def test_functions_are_recognised_whatever_the_width(shape):
    like = torch.zeros(shape)
    assert activation_of(nn.GELU(), like) is ACTIVATIONS["GELU"]
    assert activation_of(nn.Identity(), like) is ACTIVATIONS["identity"]
    assert activation_of(lambda u: u * torch.linspace(1, 2, shape[-1] + 1)[1:], like) is None
    assert activation_of(lambda u: u[..., : max(1, shape[-1] - 1)] + (shape[-1] == 1), like) is None


def test_what_is_cut_off_is_no_activation():
    """The first 100 numbers, or more, of a wider vector."""
    for kept in (99, 100, 128):
        assert activation_of(lambda u, kept=kept: u[..., :kept], torch.zeros(2, 384)) is None


def test_a_learned_slope_for_each_dimension_is_none_for_all():
    prelu = nn.PReLU(128)
    assert isinstance(activation_of(prelu, torch.zeros(5, 128)), LeakyRelu)  # all of them are 0.25
    nn.init.uniform_(prelu.weight)
    assert activation_of(prelu, torch.zeros(5, 128)) is None


@pytest.mark.parametrize("scale", [0.5, 1.3, 2.0])
def test_swish_is_recognised_with_any_factor(scale):
    """A learned β, as in Ramachandran et al. 2017 (arXiv:1710.05941): u σ(βu)."""
    u = torch.linspace(-15, 15, 400, dtype=torch.float64)
    activation = activation_of(lambda u: u * torch.sigmoid(scale * u), u)
    torch.testing.assert_close(activation.value(u), u * torch.sigmoid(scale * u), rtol=0, atol=1e-14)
    torch.testing.assert_close(activation.slope(u), torch.sigmoid(scale * u), rtol=0, atol=1e-14)
