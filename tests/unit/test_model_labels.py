"""Names of models and layers in trackers and captions: revisions, checkpoints, stacks and random weights are distinguished."""

import pytest

from normscope.models.options import ModelOptions, ModelStack, Tower
from normscope.reporting.tracking import layers_label, model_label


@pytest.mark.parametrize(
    ("options", "label"),
    [
        ({"name": "org/model"}, "model"),
        ({"name": "org/model", "revision": "step1000"}, "model step1000"),
        ({"name": "org/model", "revision": "0123456789" * 4}, "model 01234567"),
        ({"name": "org/model", "revision": "main", "step": 7}, "model main step 7"),
        ({"name": "org/model", "revision": "step7", "step": 7}, "model step7"),
        ({"name": "org/model-step_20k", "step": 20_000}, "model-step_20k"),
        ({"name": "/path/run/checkpoint-500"}, "run/checkpoint-500"),
        ({"name": "checkpoint-500"}, "checkpoint-500"),
        ({"name": "/path/run-step5"}, "run-step5"),
        ({"name": "org/model", "random_init": True}, "model (random)"),
        ({"name": "org/model", "stack": ModelStack.cross, "revision": "v2"}, "model v2 cross"),
        ({"name": "org/clip", "tower": Tower.text}, "clip text"),
    ],
)
def test_models_are_told_apart(options, label):
    assert model_label(ModelOptions(**{"seed": 0} | options)) == label


@pytest.mark.parametrize(
    ("layers", "label"), [("all", "all layers"), (3, "layer 3"), ([3], "layer 3"), ([1, 6], "layers 1, 6")]
)
def test_layers_are_named(layers, label):
    assert layers_label(layers) == label
