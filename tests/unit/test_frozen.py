"""Layers with attention, deviations and slopes held fixed, against their formulas."""

import pytest
import torch

from normscope.maths.activations import ACTIVATIONS
from normscope.maths.feed_forward import FeedForwardNetwork, Slopes
from normscope.maths.frozen import FrozenFeedForward


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("has_biases", [False, True])
def test_the_constant_of_a_network_is_what_it_makes_of_its_biases(is_gated, has_biases):
    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64)

    torch.manual_seed(0)
    read, slope, gate_slope = random(2, 3, 4), random(2, 3, 5), random(2, 3, 5)
    first, second, output = random(4, 5), random(4, 5), random(5, 4)
    biases = [random(5), random(5), random(4)] if has_biases else [None, None, None]
    weights = FeedForwardNetwork(
        input_weight=first,
        input_bias=biases[0],
        multiplier_weight=second if is_gated else None,
        multiplier_bias=biases[1] if is_gated else None,
        output_weight=output,
        output_bias=biases[2],
        known_activation=ACTIVATIONS["GELU"],
    )
    network = FrozenFeedForward(weights, Slopes(slope, gate_slope if is_gated else None))
    bias = [torch.zeros(1, dtype=torch.float64) if each is None else each for each in biases]
    neurons = (read @ first + bias[0]) * slope
    if is_gated:
        neurons = neurons + (read @ second + bias[1]) * gate_slope
    torch.testing.assert_close(network.linear(read) + network.constant(read), neurons @ output + bias[2])
