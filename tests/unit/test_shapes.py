"""Shapes in signatures are checked while these tests run; otherwise a wrong one would pass unnoticed."""

import dataclasses

import jaxtyping
import pytest
import torch
from beartype import beartype
from jaxtyping import Float
from torch import Tensor

from normscope.maths.mixing import ratio
from tests.shapes import begin_test


def first(left: Float[Tensor, " length"], right: Float[Tensor, " length"]) -> Tensor:
    assert right.ndim == 1
    return left


@dataclasses.dataclass
class Pair:
    left: Float[Tensor, " length"]
    right: Float[Tensor, " length"]


@pytest.mark.parametrize("member", [first, Pair])
def test_a_wrong_shape_is_an_error_in_the_first_call_of_each_test(member):
    checked = jaxtyping.jaxtyped(typechecker=beartype)(member)
    for _ in range(2):
        with pytest.raises(jaxtyping.TypeCheckError):
            checked(torch.ones(2), torch.ones(3))
        checked(torch.ones(2), torch.ones(3))
        begin_test()


def test_our_own_functions_are_checked():
    assert hasattr(ratio, "__wrapped__")
