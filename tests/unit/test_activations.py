"""Slopes and path means of every activation, against quadrature with thirty digits."""

import functools

import mpmath
import pytest
import torch
from torch import nn
from transformers.activations import ACT2CLS, ACT2FN

from normscope.maths import activations
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
@pytest.mark.spread(4)
def test_slopes(name, dtype, bound):
    """Relative to each number itself where it is normal; below e⁻²⁰, relative to that."""
    activation = ACTIVATIONS[name]
    u = torch.tensor(POINTS, dtype=torch.float32).to(dtype)
    slopes, path_slopes = zip(*(exact(name, x) for x in u.tolist()), strict=True)
    for measured, expected in (
        (activation.slope(u), slopes),
        (activation.path_slope(u), path_slopes),
        (activation.value(u) / u, slopes),
        (activation.path_mean(u) / u, path_slopes),
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
    assert activation.path_mean(ends)[2].isnan()
    assert activation.value(ends)[2].isnan()


@pytest.mark.parametrize("name", ["GELU", "SiLU", "GELU (tanh)"])
def test_half_precision_is_rounded_once(name):
    activation = ACTIVATIONS[name]
    u = torch.linspace(-6, 6, 301).to(torch.bfloat16)
    for function in (activation.slope, activation.path_slope, activation.path_mean):
        assert function(u).dtype == torch.bfloat16
        assert torch.equal(function(u), function(u.float()).to(torch.bfloat16))


PAIRS = (
    (0.4, 0.4),
    (-3.0, -3.0),
    (6.0, 6.0),
    (1.2, 1.2 + 1e-9),
    (-0.7, -0.7 - 1e-4),
    (0.03, -0.019),
    (1e-7, -2e-7),
    (5.99, 6.01),
    (9.999, 10.002),
    (12.0, 11.0),
    (-2.99, -3.02),
    (0.31, 0.9),
    (2.5, -4.5),
    (-5.5, 3.2),
    (300.0, 0.5),
    (-40.0, -0.2),
    (7.0, 3.1),
    (101.0, 100.0),
)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.spread(4)
def test_secants(name):
    """From a baseline that is not zero; where both ends are equal, the derivative there."""
    activation, g = ACTIVATIONS[name], EXACT[name]
    u, b = torch.tensor(PAIRS, dtype=torch.float64).unbind(dim=1)
    secant, (mean, slope) = activation.secant(u, b), activation.path_secant(u, b)
    for row, (x, y) in enumerate(zip(u.tolist(), b.tolist(), strict=True)):
        x, y = mpmath.mpf(x), mpmath.mpf(y)
        if x == y:
            derivative = (g(x) - g(x - mpmath.mpf(10) ** -10)) * mpmath.mpf(10) ** 10
            expected = derivative, g(x), derivative / 2
            bound = 1e-9  # of the numerical derivative
        else:
            shares = [(mpmath.mpf(edge) - y) / (x - y) for edge in EDGES]
            average = mpmath.quad(
                lambda a, x=x, y=y: g(y + a * (x - y)), [0, *sorted(share for share in shares if 0 < share < 1), 1]
            )
            expected = (g(x) - g(y)) / (x - y), average, (g(x) - average) / (x - y)
            bound = 1e-12
        for measured, reference in zip((secant[row], mean[row], slope[row]), expected, strict=True):
            assert float(measured) == pytest.approx(float(reference), rel=bound, abs=1e-13), (name, x, y)


def test_secants_are_the_same_where_none_is_selected(monkeypatch):
    u, b = torch.tensor(PAIRS, dtype=torch.float64).unbind(dim=1)
    selected = [activation.secant(u, b) for activation in ACTIVATIONS.values()]
    monkeypatch.setattr(activations, "host_waits", lambda _device: True)
    for activation, expected in zip(ACTIVATIONS.values(), selected, strict=True):
        torch.testing.assert_close(activation.secant(u, b), expected, rtol=1e-14, atol=1e-15)


def test_secants_broadcast_and_keep_the_dtype():
    u, b = torch.randn(3, 4, 5), torch.randn(5)
    for activation in ACTIVATIONS.values():
        secant, (mean, slope) = activation.secant(u, b), activation.path_secant(u, b)
        whole = activation.secant(u.double(), b.double()), *activation.path_secant(u.double(), b.double())
        for measured, reference in zip((secant, mean, slope), whole, strict=True):
            assert measured.dtype == torch.float32
            torch.testing.assert_close(measured, reference.float())


@pytest.mark.parametrize("negative", [0.25, -0.5, 0.01])
def test_a_slope_below_zero(negative):
    activation = LeakyRelu(negative)
    u, b = torch.tensor([-3.0, -1.0, 2.0, 2.0]).double(), torch.tensor([-3.0, 1.0, -2.0, 1.0]).double()
    expected = torch.tensor([negative, (1 + negative) / 2, (2 + 2 * negative) / 4, 1], dtype=torch.float64)
    torch.testing.assert_close(activation.secant(u, b), expected, rtol=1e-15, atol=0)
    assert activation.path_mean(u).tolist() == [negative * -1.5, negative * -0.5, 1, 1]
    mean, slope = activation.path_secant(u, b)
    # From 1 to −1: half the path has slope 1, half m.
    assert mean[1].item() == pytest.approx((1 / 2 - negative / 2) / 2)
    assert slope[1].item() == pytest.approx((-negative - float(mean[1])) / -2)


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


@pytest.mark.parametrize("scale", [0.5, 1.3, 2.0])
def test_swish_is_recognised_with_any_factor(scale):
    """A learned β, as in Ramachandran et al. 2017 (arXiv:1710.05941): u σ(βu)."""
    u = torch.linspace(-15, 15, 400, dtype=torch.float64)
    activation = activation_of(lambda u: u * torch.sigmoid(scale * u), u)
    torch.testing.assert_close(activation.value(u), u * torch.sigmoid(scale * u), rtol=0, atol=1e-14)
    torch.testing.assert_close(activation.slope(u), torch.sigmoid(scale * u), rtol=0, atol=1e-14)


def test_a_function_that_is_not_applied_element_by_element_is_not_recognised():
    assert activation_of(lambda u: u.softmax(dim=-1), torch.zeros(1)) is None
