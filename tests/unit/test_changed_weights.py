"""A model in memory whose weights somebody changes: what is shown is of the new weights, or refused; never of the old ones."""

import contextlib
import copy

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

import normscope
from normscope.errors import InputError
from normscope.live.session import Session
from normscope.models.load.wrapping import _digest
from tests.tiny import saved_with_head

# peft uses a deprecated attribute of transformers.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

TEXT = "The old [MASK] was closed, so we crossed the river."


def of_each(change):
    """A change of each parameter, without gradients."""

    def apply(model):
        with torch.no_grad():
            for parameter in model.parameters():
                change(parameter)

    return apply


def changed_state(model):
    generator = torch.Generator().manual_seed(1)
    return {
        name: value * (1 + 0.2 * torch.rand(value.shape, generator=generator)) if value.is_floating_point() else value
        for name, value in model.state_dict().items()
    }


def replace_layer(model):
    layers = model.bert.encoder.layer
    layers[1] = copy.deepcopy(layers[0])


def through_numpy(parameter):
    parameter.numpy()[...] *= 1.1


def through_storage(parameter):
    other = (1.1 * parameter).contiguous()
    parameter.untyped_storage().copy_(other.untyped_storage())


def one_row(model):
    """One number of thousands."""
    model.bert.encoder.layer[0].attention.self.query.weight.data[3, 2] += 1


def rows_exchanged(model):
    weight = model.bert.encoder.layer[0].attention.self.value.weight.data
    weight[[0, 1]] = weight[[1, 0]]


def round_trip(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.003)  # so that rounding is seen
    model.half().float()


CHANGES = {
    "data.mul_": of_each(lambda parameter: parameter.data.mul_(1.1)),
    "numpy": of_each(through_numpy),
    "storage": of_each(through_storage),
    "replaced layer": replace_layer,
    "load_state_dict, assign": lambda model: model.load_state_dict(changed_state(model), assign=True),
    "half and float": round_trip,
    "one number": one_row,
    "rows exchanged": rows_exchanged,
    "layers removed": lambda model: model.bert.encoder.layer.__delitem__(2),
}


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory):
    return saved_with_head(AutoModelForMaskedLM, "bert", tokenizer, tmp_path_factory.mktemp("bert"))


def answers(session):
    """The numbers of the page: mixing, the prediction, its scores and heads."""
    found = [
        session.answer({"part": part, "state": {"text": TEXT}}).result() for part in ("maps", "prediction", "heads")
    ]
    return [
        found[0]["by_layer"]["ratios"],
        found[1]["scores"],
        [value for _, value in found[1]["choices"]],
        found[2]["values"],
    ]


def same(one, other):
    return all(np.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(one, other, strict=True))


MERGED = ("data.mul_", "load_state_dict, assign")
"""Changes of a model whose merged weights are the copy's own."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "adapted"), [*((change, False) for change in CHANGES), *((change, True) for change in MERGED)]
)
def test_the_page_shows_new_weights_or_refuses(folder, change, adapted):
    whole = AutoModelForMaskedLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    given = whole
    if adapted:
        peft = pytest.importorskip("peft")
        given = peft.get_peft_model(
            whole, peft.LoraConfig(target_modules=["query", "value"], r=2, init_lora_weights=False)
        ).eval()
    session = Session([normscope.wrap(given, tokenizer)], 24)
    try:
        before = answers(session)
        assert same(answers(session), before)
        CHANGES[change](whole)
        with contextlib.suppress(InputError):
            shown = answers(session)
            expected = Session([normscope.wrap(given, tokenizer)], 24)
            assert same(shown, answers(expected))
            expected.engine.close(5)
            assert not same(shown, before)
    finally:
        session.engine.close(5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (4, 8), (3, 5), (2, 3, 4)])
@pytest.mark.parametrize("offset", [0, 1])
def test_every_bit_is_in_the_digest(dtype, shape, offset):
    count = int(np.prod(shape, dtype=int))
    stored = torch.arange(1, count + offset + 1).to(dtype)
    tensor = stored[offset:].view(shape)
    digests = {_digest(tensor)}
    for place in range(count):
        old = tensor.view(-1)[place].clone()
        tensor.view(-1)[place] += 1
        digests.add(_digest(tensor))
        tensor.view(-1)[place] = old
    assert len(digests) == count + 1
    if len(shape) > 1:
        assert _digest(tensor.flip(0)) != _digest(tensor) != _digest(tensor.flip(1))
