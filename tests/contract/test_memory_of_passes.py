"""A pass keeps nothing of the layers behind it: what the model drops is freed at once, without the garbage collector."""

import gc
from collections.abc import Collection

import pytest
import torch

from normscope.models.observe.observer import Observer
from normscope.models.observe.reading import facts_of
from tests.tiny import FAMILY_CONFIGS, tiny_model, token_batch

COLLECTS = {"deberta", "deberta-v2"}
"""Models whose own code keeps the hidden vectors of all layers."""
MAPPED = {"opt", "gpt_oss"}
"""Models whose networks are followed by `torch.vmap`, which creates reference cycles of its own."""
LENGTHS = (9, 6)
LAYERS = 6


def kept_by_layer(family, *, feed_forward):
    """Number of vectors that are alive when the model is in each layer."""
    config = FAMILY_CONFIGS[family]
    deeper = {name: LAYERS for name in ("num_hidden_layers", "n_layer", "n_layers") if name in config}
    if "no_rope_layers" in config:
        deeper["no_rope_layers"] = [1] * LAYERS
    if "layer_types" in config:
        deeper["layer_types"] = ["full_attention"] * LAYERS
    model = tiny_model(config | deeper, torch.float32)
    facts, counts = facts_of(model), []
    smallest = LENGTHS[0] * facts.width

    def count(_visited):
        young = gc.get_objects(generation=0)  # all that has been made since the collection
        tensors = [each for each in young if issubclass(type(each), torch.Tensor)]
        counts.append(sum(each.numel() >= smallest and not isinstance(each, torch.nn.Parameter) for each in tensors))

    observer = Observer(model, facts, feed_forward=feed_forward)
    inputs = token_batch(model, LENGTHS)
    with observer:
        observer.run(inputs, lambda _block: None, visit_feed_forward=(lambda _block: None) if feed_forward else None)
        gc.collect()
        gc.disable()
        try:
            observer.run(
                inputs,
                (lambda _block: None) if feed_forward else count,
                visit_feed_forward=count if feed_forward else None,
            )
        finally:
            gc.enable()
    return counts


QUICK = {"bert", "gpt2", "llama"}


def quick_first(families: Collection[str]) -> list:
    """The families; all but a few are slow."""
    return [family if family in QUICK else pytest.param(family, marks=pytest.mark.slow) for family in sorted(families)]


@pytest.mark.spread(8)
@pytest.mark.parametrize("family", quick_first(FAMILY_CONFIGS.keys() - COLLECTS))
def test_nothing_of_a_layer_outlives_its_block(family):
    counts = kept_by_layer(family, feed_forward=False)
    assert len(counts) == LAYERS
    assert counts[-2] == counts[2], counts


@pytest.mark.spread(8)
@pytest.mark.parametrize("family", quick_first(FAMILY_CONFIGS.keys() - COLLECTS - MAPPED))
def test_nothing_of_a_whole_layer_outlives_it(family):
    counts = kept_by_layer(family, feed_forward=True)
    assert len(counts) == LAYERS
    assert counts[-2] == counts[2], counts
