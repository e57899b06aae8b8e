"""Passes that begin in the middle of a model give exactly what whole passes give."""

import pytest
import torch

from normscope.models.observe.layer_outputs import LayerOutput
from normscope.models.observe.observer import Observer, Replacement
from tests.tiny import facts_for, token_batch


def passes(model, facts, inputs):
    """A whole pass and one that begins with each layer, with a replacement from there on: everything that blocks hold."""
    outputs = dict.fromkeys(range(1, facts.layers))
    with Observer(model, facts) as observer:
        observer.run(inputs, lambda _block: None, outputs=outputs)
        for layer in facts.attends:
            replacement = Replacement(torch.tensor([1, 4]), torch.tensor([0.5, -2.0]).double())
            changes = dict.fromkeys(range(layer, facts.layers + 1), replacement)
            known = None if outputs.get(layer - 1) is None else LayerOutput(layer - 1, outputs[layer - 1])
            found = []
            for after in (None, known):
                blocks = {}
                observer.run(
                    inputs,
                    lambda block, blocks=blocks: blocks.update(
                        {block.layer: (block.inputs, block.weights, block.mixing)}
                    ),
                    replacements=changes,
                    after=after,
                )
                found.append(blocks)
            yield layer, known, found


@pytest.mark.spread(6)
@pytest.mark.kinds
def test_every_family(family, family_model):
    compare(family_model, facts_for(family), token_batch(family_model, (7, 5)))


def compare(model, facts, inputs):
    """Compare whole passes with those that begin in the middle."""
    forwards = [module.forward for module in model.modules()]
    skipped = []
    for layer, known, (whole, part) in passes(model, facts, inputs):
        if known is not None:
            skipped.append(layer)
            assert min(part) == layer, "blocks of layers that do not run are not visited"
        for number, parts in part.items():
            for one, other in zip(whole[number], parts, strict=True):
                assert torch.equal(one, other)
    assert skipped == (facts.attends[1:] if facts.in_modules else [])
    assert [module.forward for module in model.modules()] == forwards, "the model is as it was"
