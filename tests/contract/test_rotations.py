"""Every way of scaling rotary positions that transformers knows: the company of a text changes nothing."""

import copy
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from normscope.models.observe.observer import Observer
from normscope.models.prove.verification import verify
from tests.family_modules import parts_of
from tests.tiny import FAMILY_CONFIGS, facts_for, proved_to, tiny_model, token_batch

BOUNDARY = 5  # between the lengths of the texts below
LENGTHS = (9, 6, 5, 3)
EXACT = {"rtol": 1e-10, "atol": 1e-10}

SCALINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 3.0},
    "dynamic": {"factor": 3.0},
    "yarn": {"factor": 3.0, "original_max_position_embeddings": BOUNDARY},
    "longrope": {
        "factor": 4.0,
        "original_max_position_embeddings": BOUNDARY,
        "short_factor": [1.0, 2.0, 3.0],
        "long_factor": [9.0, 5.0, 2.0],
    },
    "llama3": {
        "factor": 4.0,
        "original_max_position_embeddings": BOUNDARY,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "proportional": {"factor": 3.0},
}
"""One for every type, with the boundary between short and long texts inside LENGTHS where there is one."""

ROTARY = ["cohere", "falcon", "gemma3_text", "gpt_neox", "llama", "modernbert", "smollm3"]
"""One family for every way of turning: all or a part of each head, neighbours or halves, by kind of layer, or not in each."""


def scaled_model(family: str, rope_type: str, dtype: torch.dtype = torch.float64) -> Any:
    config = dict(FAMILY_CONFIGS[family])
    heads = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"]) // 2
    scaling = {"rope_type": rope_type, "rope_theta": 100.0} | SCALINGS[rope_type]
    scaling |= {key: (scaling[key] * 2)[:heads] for key in ("short_factor", "long_factor") if key in scaling}
    if family == "gpt_neox":
        config["rotary_pct"] = 1.0
    if family in ("modernbert", "gemma3_text"):
        scaling = {"full_attention": scaling, "sliding_attention": dict(scaling)}
    # Dynamic scaling begins beyond the positions that the model was trained on.
    length = BOUNDARY if rope_type == "dynamic" else 64
    return tiny_model(config | {"rope_parameters": scaling, "max_position_embeddings": length}, dtype)


def mixing_of(model: Any, family: str, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    mixing: list[torch.Tensor] = []
    with Observer(model, facts_for(family, config=model.config)) as observer:
        observer.run(inputs, lambda block: mixing.append(block.mixing))
    return mixing


def alone(inputs: dict[str, torch.Tensor], row: int) -> dict[str, torch.Tensor]:
    return {name: tensor[row : row + 1, : LENGTHS[row]] for name, tensor in inputs.items()}


def attention_outputs(model: Any, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Of a model that nobody has run or observed before."""
    untouched, outputs = copy.deepcopy(model), []
    for parts in parts_of(untouched):
        parts.output.register_forward_hook(lambda _module, _args, output: outputs.append(output))
    with torch.inference_mode():
        untouched(**inputs)
    return outputs


def test_every_type_is_tested():
    assert set(SCALINGS) == {"default", *ROPE_INIT_FUNCTIONS}


@pytest.mark.parametrize("rope_type", sorted(SCALINGS))
@pytest.mark.parametrize("family", ["llama", "modernbert"])
@pytest.mark.spread(1)
def test_batch_size_changes_nothing(family, rope_type):
    model, fresh = scaled_model(family, rope_type), scaled_model(family, rope_type)
    inputs = token_batch(model, LENGTHS)
    outputs: list[torch.Tensor] = []
    with Observer(model, facts_for(family, config=model.config)) as observer:
        observer.run(inputs, lambda block: outputs.append(block.attention_output))
    together = mixing_of(model, family, inputs)
    for row, length in enumerate(LENGTHS):
        for whole, single in zip(together, mixing_of(model, family, alone(inputs, row)), strict=True):
            assert_close(whole[row, :length], single[0], **EXACT)
        # And what is shown is what transformers does with the text alone.
        for shown, expected in zip(outputs, attention_outputs(fresh, alone(inputs, row)), strict=True):
            assert_close(shown[row, :length], expected[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope"])
@pytest.mark.parametrize("family", ROTARY)
@pytest.mark.spread(1)
def test_length_dependent_types_are_verified(family, rope_type):
    model = scaled_model(family, rope_type)
    bound = proved_to(model)
    assert verify(model, facts_for(family, config=model.config), family).error < bound
    assert (
        verify(model, facts_for(family, config=model.config), family).error < bound
    )  # what a run leaves behind changes nothing


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope"])
def test_the_boundary_matters(rope_type):
    """Otherwise the tests above would prove nothing: transformers itself rotates a short text by its batch."""
    model = scaled_model("llama", rope_type)
    inputs = token_batch(model, LENGTHS)
    together = attention_outputs(model, inputs)[0][2, :5]
    single = attention_outputs(model, alone(inputs, 2))[0][0]
    assert (together - single).abs().max() > 1e-3
