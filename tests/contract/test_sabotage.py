"""A model that is changed at any place, at any time, by any means is exact or refused: `tests/sabotages.py` has the table."""

import re
from types import MethodType

import pytest
import torch

from normscope.errors import InputError
from normscope.models.observe.reading import facts_of
from tests.sabotages import LIMITS, Sabotage, judged, table
from tests.tiny import FAMILY_CONFIGS, tiny_model

QUICK = {
    Sabotage("bert", kernel="by hand"): "exact",
    Sabotage("llama", "value", "scaled", "late"): "exact",
    Sabotage("bert", "heads", "scaled", "late"): "refused",
    Sabotage("llama", "written", "scaled", "word"): "refused",
    Sabotage("bert", "residual", "smoothed"): "refused",
    Sabotage("bert", "network", "turned", "later call"): "exact",
    Sabotage("llama", "weights", "sharpened", "long", kernel="by hand"): "refused",
    Sabotage("llama", "value", "a matrix"): "refused",
    Sabotage("bert", "value", "indices", "long"): "refused",
    Sabotage("llama", part="weights", means="unseen", kernel="by hand"): "refused",
    Sabotage("bert", part="weights", means="in a thread", kernel="by hand"): "refused",
    Sabotage("llama", part="sum", means="through lists"): "refused",
    Sabotage("bert", part="norm", means="in place"): "exact",
    Sabotage("bert", part="norm", means="in a thread"): "refused",
    Sabotage("bert", part="sum", means="into data"): "refused",
    Sabotage("llama", kernel="by exponents"): "refused",
    Sabotage("llama", kernel="by operators"): "exact",
}
"""Representatives, and what is said of them."""

_NAMES = re.compile(r"layer \d|line \d|\(\d\)|layers\.\d|layer\.\d|attends in a thread")
"""What a refusal names: a layer, or a line of the model's code."""


def require_right(sabotage: Sabotage) -> str:
    """The verdict on a sabotage, if it is right."""
    verdict, message = judged(sabotage)
    assert (verdict == "wrong") is (sabotage in LIMITS), f"{sabotage}: {verdict}, {message}"
    if verdict == "refused":
        assert _NAMES.search(message), f"{sabotage}: {message}"
        assert "\n" not in message
    return verdict


@pytest.mark.parametrize("sabotage", QUICK, ids=str)
def test_a_model_that_is_changed_is_exact_or_refused(sabotage):
    assert require_right(sabotage) == QUICK[sabotage]


@pytest.mark.slow
@pytest.mark.parametrize("kind", table())
def test_whatever_is_changed_is_exact_or_refused(kind):
    for sabotage in table()[kind]:
        require_right(sabotage)


def test_a_layer_with_two_blocks_is_refused_with_its_reason():
    model = tiny_model(FAMILY_CONFIGS["llama"], torch.float64)
    layer, other = model.layers[1], model.layers[0]
    own = type(layer).forward

    def twice(module, vectors, **given):
        normed = other.input_layernorm(vectors)
        return own(module, vectors + other.self_attn(hidden_states=normed, **given)[0], **given)

    layer.forward = MethodType(twice, layer)
    with pytest.raises(
        InputError, match=r"attention of layer 2 .* two blocks of attention to the same tokens.*line \d+"
    ):
        facts_of(model)


def test_heads_that_are_mixed_are_refused_with_the_line_of_their_softmax():
    model = tiny_model(FAMILY_CONFIGS["deberta"] | {"talking_head": True}, torch.float64)
    with pytest.raises(InputError, match=r"multiply no values as the softmax gave them.*modeling_deberta.py, line \d+"):
        facts_of(model)
