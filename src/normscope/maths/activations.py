"""Slopes of an activation g, and its means along a path: what integrated gradients of a feed-forward network need.

A feed-forward network is linear once the slope of its activation is known. From a zero baseline, the summands u_ij of a
neuron's input u contribute u_ij s(u) with s(u) = g(u)/u, since every point of the path is a multiple of u. If the network is
gated, g(u) ⊙ w, they contribute u_ij w (g(u) − I(u))/u + w_ij I(u), where I is the mean of g along the path:

    I(u) = ∫₀¹ g(au) da = u K(u)        K(u) = ∫₀¹ a s(au) da        (g(u) − I(u))/u = s(u) − K(u)

Everything comes from s and K, which are smooth: nothing is divided by a small u. Results have the dtype of the input. In
float64 they are exact to 1e-12, in float32 to a few roundings; half precision is computed in float32.

Sources: Sundararajan et al. 2017 (arXiv:1703.01365) for integrated gradients; Kobayashi et al. 2024 (ICLR) for their use in
feed-forward networks.
"""

import abc
import functools
import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from normscope.maths.tensors import elementwise, full_precision, host_waits, to_device

# K is tabulated on [−_REACH, _REACH]; beyond, every smooth activation equals its asymptotes to 1e-16.
_REACH = 40.0

# Cells of the table per unit, and the degree of the polynomial in each.
_CELLS = {torch.float64: (8, 9), torch.float32: (64, 2)}


class Activation(abc.ABC):
    """An activation g with g(0) = 0, applied neuron by neuron."""

    def value(self, u: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """g(u)."""
        return _widely(self._value, u)

    def slope(self, u: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """s(u) = g(u)/u; g′(0) at 0."""
        return _widely(self._slope, u)

    def path_slope(self, u: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """K(u) = I(u)/u; g′(0)/2 at 0."""
        return _widely(self._path_slope, u)

    def quotient(self, value: Float[Tensor, "*n"], u: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """s(u) from g(u) as a model's own function gives it; g′(0) at 0."""
        at_zero = self.slope(u.new_zeros(()))

        def divided(v: Tensor, u: Tensor) -> Tensor:
            if _at_hand(u) and u.abs().amin() > 0:
                return v / u
            return torch.where(u == 0, at_zero, v / u)

        return elementwise(divided, value, u)

    @abc.abstractmethod
    def _value(self, u: Tensor) -> Tensor: ...

    @abc.abstractmethod
    def _slope(self, u: Tensor) -> Tensor: ...

    @abc.abstractmethod
    def _path_slope(self, u: Tensor) -> Tensor: ...


class _Smooth(Activation):
    """g(u) = u s(u) with an analytic s that rises from 0 to 1 and reaches both within ±40."""

    def _value(self, u: Tensor) -> Tensor:
        return u * self._slope(u)

    def _path_slope(self, u: Tensor) -> Tensor:
        if _at_hand(u) and u.abs().amax() <= _REACH:
            return self._tabulated(u)
        # Beyond the table, ∫₀ᵘ t s(t) dt = u² K(u) grows as that of the asymptote does: as u²/2, or not at all.
        limit = (u > 0).to(u.dtype) / 2
        share = (_REACH / u.abs().clamp(min=_REACH)).square_()
        return torch.lerp(limit, self._tabulated(u.clamp(-_REACH, _REACH)), share)

    def _tabulated(self, u: Tensor) -> Tensor:
        per_unit, _ = _CELLS[u.dtype]
        centres, coefficients = _table(self, u.dtype, u.device)
        # As an integer, NaN is a number, and so a cell; in `place` it stays NaN.
        cells = torch.add(_REACH * per_unit, u, alpha=per_unit).to(torch.int32).clamp_(0, len(centres) - 1).flatten()
        place = u.flatten() - centres.index_select(0, cells)  # without rounding
        value = coefficients[-1].index_select(0, cells)
        for row in reversed(coefficients[:-1]):
            value = torch.addcmul(row.index_select(0, cells), value, place)
        return value.view(u.shape)


class Logistic(_Smooth):
    """g(u) = u σ(p(u)) with p(u) = scale (u + cubic u³).

    Scale 1 is SiLU, 1.702 quick GELU, and 2√(2/π) with the cubic term 0.044715 the tanh approximation of GELU, because
    ½ (1 + tanh(p/2)) = σ(p).
    """

    def __init__(self, scale: float = 1.0, cubic: float = 0.0) -> None:
        self._scale, self._cubic = scale, cubic

    def _inner(self, u: Tensor) -> Tensor:
        if not self._cubic:
            return u if self._scale == 1 else u * self._scale
        return u.square().mul_(self._cubic).add_(1).mul_(u).mul_(self._scale)

    def _slope(self, u: Tensor) -> Tensor:
        return torch.sigmoid(self._inner(u))


class Gelu(_Smooth):
    """g(u) = u Φ(u), with Φ the normal distribution function."""

    def _slope(self, u: Tensor) -> Tensor:
        return (u * -math.sqrt(0.5)).erfc_().mul_(0.5)


class Mish(_Smooth):
    """g(u) = u tanh(log(1 + eᵘ))."""

    def _slope(self, u: Tensor) -> Tensor:
        return torch.tanh(torch.nn.functional.softplus(u))


class LeakyRelu(Activation):
    """g(u) = u for u > 0, else m u: ReLU with m = 0, the identity with m = 1, PReLU with a learned m."""

    def __init__(self, negative: float = 0.0) -> None:
        self._negative = negative

    def _value(self, u: Tensor) -> Tensor:
        return u * self._slope(u)

    def _slope(self, u: Tensor) -> Tensor:
        return torch.full_like(u, self._negative).masked_fill_(u > 0, 1)

    def _path_slope(self, u: Tensor) -> Tensor:
        return self._slope(u) / 2


class SquaredRelu(Activation):
    """g(u) = max(u, 0)²."""

    def _value(self, u: Tensor) -> Tensor:
        return u.clamp(min=0).square()

    def _slope(self, u: Tensor) -> Tensor:
        return u.clamp(min=0)

    def _path_slope(self, u: Tensor) -> Tensor:
        return u.clamp(min=0) / 3


class Relu6(Activation):
    """g(u) = min(max(u, 0), 6)."""

    def _value(self, u: Tensor) -> Tensor:
        return u.clamp(0, 6)

    def _slope(self, u: Tensor) -> Tensor:
        return (u > 0) * (6 / u.clamp(min=6))

    def _path_slope(self, u: Tensor) -> Tensor:
        # ∫₀ᵘ g = 6u − 18 from u = 6 on.
        inverse = 1 / u.clamp(min=6)
        return (u > 0) * inverse * (6 - 18 * inverse)


class HardSwish(Activation):
    """g(u) = u min(max(u + 3, 0), 6) / 6."""

    def _value(self, u: Tensor) -> Tensor:
        return u * self._slope(u)

    def _slope(self, u: Tensor) -> Tensor:
        return (u.clamp(-3, 3) + 3) / 6

    def _path_slope(self, u: Tensor) -> Tensor:
        # Inside, K = u/18 + 1/4; outside, ∫₀ᵘ t s(t) dt = u²/2 − 3/4 or 3/4.
        tail = 0.75 / u.square().clamp(min=9)
        return torch.where(u.abs() <= 3, u / 18 + 0.25, torch.where(u > 0, 0.5 - tail, tail))


class CappedGelu(Activation):
    """g(u) = min(u Φ(u), 10). Φ(10) is 1 to the last digit, so the cap starts at u = 10."""

    _gelu = Gelu()

    def _value(self, u: Tensor) -> Tensor:
        return self._gelu._value(u).clamp(max=10)

    def _slope(self, u: Tensor) -> Tensor:
        return self._gelu._slope(u) * (10 / u.clamp(min=10))

    def _path_slope(self, u: Tensor) -> Tensor:
        below, inverse = u.clamp(max=10), 10 / u.clamp(min=10)
        # u² K(u) = ∫₀ᵘ g grows by 10 (u − 10) beyond the cap.
        return self._gelu._path_slope(below) * inverse.square() + inverse * (1 - inverse)


class Tanh(Activation):
    """g(u) = tanh(u)."""

    def _value(self, u: Tensor) -> Tensor:
        return torch.tanh(u)

    def _slope(self, u: Tensor) -> Tensor:
        # Near 0, tanh(u) is as exact as u, so the quotient loses no digits.
        return torch.where(u == 0, 1.0, torch.tanh(u) / u.masked_fill(u == 0, 1))

    def _path_slope(self, u: Tensor) -> Tensor:
        # ∫₀ᵘ tanh = log cosh u, and cosh u = 1 + 2 sinh²(u/2), which loses no digits near 0.
        size = u.abs()
        near = torch.log1p(2 * torch.sinh(size.clamp(max=1) / 2).square())
        safe = size.clamp(min=1e-4)
        far = 1 + (torch.log1p(torch.exp(-2 * size)) - math.log(2)) / safe
        return torch.where(size < 1e-4, 0.5 - size.square() / 12, torch.where(size < 1, near / safe, far) / safe)


ACTIVATIONS: dict[str, Activation] = {
    "GELU": Gelu(),
    "GELU (tanh)": Logistic(2 * math.sqrt(2 / math.pi), 0.044715),
    "quick GELU": Logistic(1.702),
    "GELU up to 10": CappedGelu(),
    "SiLU": Logistic(),
    "Mish": Mish(),
    "ReLU": LeakyRelu(),
    "ReLU²": SquaredRelu(),
    "ReLU6": Relu6(),
    "hard swish": HardSwish(),
    "tanh": Tanh(),
    "identity": LeakyRelu(1.0),
}
"""The activations without parameters, by name."""

# Any two of the activations differ by more than this on the probe, and no form of one differs by more from another.
_SAME = 1e-5


def activation_of(function: Callable[[Tensor], Tensor], like: Tensor) -> Activation | None:
    """The activation that a function computes, by what it does to a probe; None if it is none of ours.

    Leaky ReLU and PReLU with one parameter are recognised by their slope below zero, u σ(βu) with any β by its value at 1.

    Args:
        function: A module or a function, applied element by element.
        like: A tensor with the device, the dtype (float32 or better), the axes and the width that the function takes.
    """
    probe = probing(torch.cat([torch.linspace(-12, 12, 97), torch.tensor([-1e-2, 0.0, 1e-2])]), like)
    with torch.inference_mode():
        expected = function(probe).double()
        if expected.shape != probe.shape:  # it keeps some of the numbers
            return None
        candidates = [*ACTIVATIONS.values(), LeakyRelu(-float(expected[probe == -1][0]))]
        at_one = expected[probe == 1][0]
        if 0.5 < at_one < 1:
            candidates.append(Logistic(float(torch.logit(at_one))))
        for activation in candidates:
            if torch.allclose(activation.value(probe.double()), expected, rtol=_SAME, atol=_SAME):
                return activation
    return None


def probing(numbers: Float[Tensor, " n"], like: Float[Tensor, "*axes width"]) -> Float[Tensor, "*rows width"]:
    """Numbers in as many rows of a tensor's own width as they fill, over and over: what a function does may depend on it."""
    width = max(like.shape[-1], 1)
    rows = -(-len(numbers) // width)
    repeated = numbers.to(like).repeat(-(-rows * width // len(numbers)))[: rows * width]
    return repeated.view(*(1,) * (like.ndim - 2), rows, width)


def _at_hand(u: Tensor) -> bool:
    """Whether there are numbers that the host can look at without waiting for a device."""
    return u.numel() > 0 and not host_waits(u.device)


def _widely(function: Callable[[Tensor], Tensor], u: Tensor) -> Tensor:
    """A function of a tensor, computed in float32 or better."""
    return elementwise(lambda part: function(full_precision(part)).to(u.dtype), u)


@functools.cache
def _nodes(count: int) -> tuple[list[float], list[float]]:
    """Nodes and weights of the Gauss–Legendre quadrature on [0, 1].

    The nodes are the eigenvalues of the tridiagonal matrix of the Legendre polynomials' recurrence (Golub & Welsch 1969).
    """
    degree = torch.arange(1, count, dtype=torch.float64)
    beside = (degree / (4 * degree.square() - 1).sqrt()).diag(1)
    nodes, vectors = torch.linalg.eigh(beside + beside.T)
    return ((nodes + 1) / 2).tolist(), vectors[0].square().tolist()


@functools.cache
def _table(
    activation: _Smooth, dtype: torch.dtype, device: torch.device
) -> tuple[Float[Tensor, " cell"], Float[Tensor, "power cell"]]:
    """The centres of the cells, and K as a polynomial in each, in powers of the distance from the centre."""
    per_unit, degree = _CELLS[dtype]
    centres = torch.arange(-_REACH + 0.5 / per_unit, _REACH, 1 / per_unit, dtype=torch.float64)
    # Interpolation at Chebyshev's nodes.
    places = torch.cos(math.pi * (torch.arange(degree + 1, dtype=torch.float64) + 0.5) / (degree + 1)).unsqueeze(1)
    values = _path_slopes(activation, centres + places / (2 * per_unit))
    powers = torch.arange(degree + 1, dtype=torch.float64)
    coefficients = torch.linalg.solve(places**powers, values) * (2 * per_unit) ** powers.unsqueeze(1)
    return to_device(centres.to(dtype), device), to_device(coefficients.to(dtype), device)


def _path_slopes(activation: _Smooth, u: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """K(u) = ∫₀¹ a s(au) da by quadrature on panels at most one wide in au. All terms are positive, so no digit is lost."""
    panels, total = int(_REACH), torch.zeros_like(u)
    for panel in range(panels):
        for node, weight in zip(*_nodes(12), strict=True):
            a = (panel + node) / panels
            total += weight / panels * a * activation._slope(a * u)
    return total
