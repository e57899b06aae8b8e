"""Computations that nobody waits for end at the next layer, and leave the model as it was."""

import pytest
import torch

import normscope
from normscope.models.observe.cancelling import cancelled_by
from tests.one_text import attribute, attribution_maps, decompose, similarity
from tests.tiny import sentence_encoder

TEXT = "The old bridge was closed, so we crossed the river."


class LeftError(Exception):
    pass


@pytest.fixture(scope="module")
def model(saved_model, tmp_path_factory):
    model = normscope.load(str(sentence_encoder(saved_model, tmp_path_factory.mktemp("encoder") / "model")))
    _ = model.layers_verification
    return model


CALLS = {
    "decompose": (lambda model: decompose(model, TEXT), 3),
    "words": (lambda model: decompose(model, TEXT, level="word"), 3),
    "attribute": (lambda model: attribute(model, TEXT, lambda hidden: hidden[0, 0]), 3),
    "heads": (lambda model: attribute(model, TEXT, lambda hidden: hidden[0, 0], by=["layer", "head"]), 3),
    "alti": (lambda model: attribution_maps(model, TEXT, ["alti"]), 3),
    "decompx": (lambda model: attribution_maps(model, TEXT, ["decompx"]), 3),
    "similarity": (lambda model: similarity(model, TEXT, "We swam."), 6),
}


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", CALLS)
def test_it_is_left_at_any_layer_and_the_model_is_as_it_was(model, name):
    call, layers = CALLS[name]
    expected = decompose(model, TEXT)
    weights = {key: value.clone() for key, value in model.model.state_dict().items()}
    for last in range(1, layers + 2):
        checks = []

        def check(checks=checks, last=last):
            checks.append(None)
            if len(checks) == last:
                raise LeftError

        if last > layers:  # as many as there are
            with cancelled_by(check):
                call(model)
            assert len(checks) == layers
            break
        with cancelled_by(check), pytest.raises(LeftError):
            call(model)
        assert len(checks) == last
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.model.modules())
        assert all(torch.equal(value, weights[key]) for key, value in model.model.state_dict().items())
    after = decompose(model, TEXT)
    assert torch.equal(after.maps["attn_n"], expected.maps["attn_n"])
    assert torch.equal(after.ratios, expected.ratios)
