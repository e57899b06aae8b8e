"""The check for NaN and infinity."""

import numpy as np
import pytest
import torch

from normscope.analyses.finite import require_finite
from normscope.errors import InputError


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("make", [torch.tensor, np.array])
def test_the_first_layer_that_is_not_finite_is_named(number, make):
    values = make([[[1.0], [2.0]], [[3.0], [number]], [[number], [number]]])
    with pytest.raises(InputError) as error:
        require_finite(values, "the scores of layer {layer}", [2, 5, 7])
    assert str(error.value) == "NaN or infinity in the scores of layer 5; try device.dtype=float32"


def test_without_layers_only_the_source_is_named():
    with pytest.raises(InputError) as error:
        require_finite(np.array([0.0, np.nan]), "the activations")
    assert str(error.value) == "NaN or infinity in the activations; try device.dtype=float32"


def test_finite_values_pass():
    require_finite(torch.tensor([[-1.0], [1e300]], dtype=torch.float64), "layer {layer}", range(2))
