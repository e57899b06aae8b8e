"""Models without some of their parts: against hooks on the untouched model, in float64, and complete in every attribution."""

import contextlib

import numpy as np
import pytest
import torch

import normscope
from normscope.attribution.effects import attribute_with_effects
from normscope.attribution.scalars import attribute_scalars
from normscope.attribution.vectors import carried
from normscope.errors import InputError
from normscope.maths.choices import ValueBias
from normscope.models.block_modules import bind_blocks
from normscope.models.changes import changed
from normscope.models.frozen_pass import frozen_pass
from normscope.models.linear_layers import weight_and_bias
from normscope.models.loaded import LoadedModel
from normscope.models.stream_changes import StreamChange
from tests.contract.test_answers import PROMPT, causal
from tests.tiny import layout_of, token_batch

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def stream_of(width):
    generator = torch.Generator().manual_seed(5)
    keep, added = torch.ones(width).double(), torch.randn(width, generator=generator).double()
    keep[[1, 4]] = 0
    return {1: StreamChange(torch.ones(width).double(), added), 2: StreamChange(keep, (1 - keep) * 0.5)}


@contextlib.contextmanager
def by_hooks(model, layout, heads, stream):
    """The same changes by hooks on the untouched model: what W_O reads of each head is zero, and layers read other vectors."""
    handles = []
    for modules in bind_blocks(model, layout):
        removed = [head - 1 for layer, head in heads if layer == modules.layer]

        def without(_module, args, removed=removed):
            read = args[0].clone()
            read.unflatten(-1, (layout.attention.heads, -1))[..., removed, :] = 0
            return (read, *args[1:])

        def enter(_module, args, kwargs, layer=modules.layer):
            change = stream.get(layer)
            if change is None:
                return None
            vectors = args[0] if args else kwargs["hidden_states"]
            vectors = vectors * change.keep + change.added
            return ((vectors, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": vectors})

        handles += [
            modules.output.register_forward_pre_hook(without),
            modules.entry.register_forward_pre_hook(enter, with_kwargs=True),
        ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.networks
@pytest.mark.spread(15)
def test_a_changed_model_is_complete(family, family_model):
    layout = layout_of(family)
    entries = {id(modules.entry) for modules in bind_blocks(family_model, layout)}
    if layout.stream.places or len(entries) < len(layout.stream.layers):
        pytest.skip("layers that share their modules, or that no module runs")
    loaded = LoadedModel(family_model, None, layout, family, None, None, None)  # type: ignore[arg-type]
    vars(loaded).update(verification=None, layers_verification=None)  # which other tests make
    inputs = token_batch(family_model, (7,))
    heads = [(2, 1), (1, 2)]
    # What is beside the first layer reads the unchanged stream.
    stream = stream_of(family_model.config.hidden_size) if layout.stream.convolution is None else {}
    kept = {name: value.clone() for name, value in family_model.state_dict().items()}
    with torch.inference_mode():
        before = family_model(**inputs).last_hidden_state
        with by_hooks(family_model, layout, heads, stream):
            expected = family_model(**inputs).last_hidden_state
    with changed(loaded, heads, stream=stream):
        with torch.inference_mode():
            torch.testing.assert_close(family_model(**inputs).last_hidden_state, expected, **EXACT)
        with frozen_pass(family_model, layout, inputs) as passed:
            hidden = passed.hidden.detach()
            size = hidden.norm(dim=-1).max()
            exact = {"rtol": 1e-7, "atol": 1e-9} if family == "bloom" else EXACT
            vectors = carried(passed, range(8), ValueBias.token)
            torch.testing.assert_close(vectors.sum(dim=0) / size, hidden / size, **exact)
            direction = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
            target = (passed.hidden * direction).sum(dim=(1, 2))
            found = attribute_scalars(passed, target)
            scores = torch.einsum("kbtm,btm->bk", vectors, direction)
            torch.testing.assert_close(found.scores / scores.abs().max(), scores[:, :-1] / scores.abs().max(), **EXACT)
            assert float(found.error.max()) < exact["atol"]
            for direct in (False, True):
                _, (effects,) = attribute_with_effects(passed, target[:1], direct=direct)
                for layer, head in heads:
                    assert (effects.heads[layer - 1, head - 1] == 0).all()
                if not direct:
                    sums = effects.heads.sum(dim=(1, 2)) + effects.rest.sum(dim=1) + effects.bias
                    scale = effects.heads.abs().sum() + effects.rest.abs().sum()
                    assert float((sums - found.target).abs().max() / scale) < exact["atol"]
    with torch.inference_mode():
        assert torch.equal(family_model(**inputs).last_hidden_state, before)
    assert all(torch.equal(value, kept[name]) for name, value in family_model.state_dict().items())


@pytest.fixture
def model(tokenizer):
    return causal("llama", tokenizer)


def logits(model):
    ids = model.tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        return model.next_token_head(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, -2]  # before [SEP]


def test_heads_and_neurons(model):
    target = normscope.NextToken("film")
    before = normscope.attribute(model, PROMPT, target, by=["layer", "head"])
    weights = normscope.decompose(model, PROMPT).weights
    with normscope.ablate(model, heads=[(3, 2)], neurons=[(3, 5)]) as same:
        assert same is model
        after = normscope.attribute(model, PROMPT, target, by=["layer", "head"])
        torch.testing.assert_close(normscope.decompose(model, PROMPT).weights, weights)
        assert after.target == pytest.approx(float(logits(model)[model.tokenizer.convert_tokens_to_ids("film")]))
    effects = after.effects.set_index(["layer", "part", "head"])["value"].sort_index()
    assert effects.loc[3, "attention", 2] == 0
    assert after.target != before.target
    again = normscope.attribute(model, PROMPT, target)
    np.testing.assert_array_equal(again.scores, before.scores)
    assert again.target == before.target


def test_a_neuron_is_its_row(model):
    network = model.model.layers[1].mlp
    with normscope.ablate(model, neurons=[(2, 3)]):
        after = logits(model)
    handle = network.down_proj.register_forward_pre_hook(
        lambda _module, args: (args[0].index_fill(-1, torch.tensor([3]), 0),)
    )
    torch.testing.assert_close(after, logits(model), **EXACT)
    handle.remove()


def test_dimensions_and_vectors(model):
    vector = torch.linspace(-1, 1, model.model.config.hidden_size)
    found = {}
    with normscope.ablate(model, dimensions=[0, 7], layers=[2], value=0.25):
        found["dimensions"] = normscope.attribute(model, PROMPT, normscope.NextToken("film")), logits(model)
        with normscope.steer(model, vector.tolist(), 2, strength=-2.0):
            found["both"] = normscope.attribute(model, PROMPT, normscope.NextToken("film")), logits(model)
    with normscope.steer(model, vector, 2, strength=-2.0):
        found["vector"] = normscope.attribute(model, PROMPT, normscope.NextToken("film")), logits(model)
        normscope.attribution_maps(model, PROMPT)
    number = model.tokenizer.convert_tokens_to_ids("film")
    layer = model.model.layers[1]

    def change(kind, vectors):
        if kind != "vector":
            vectors = vectors.index_fill(-1, torch.tensor([0, 7]), 0.25)
        return vectors if kind == "dimensions" else vectors - 2 * vector.double()

    for kind, (attribution, after) in found.items():
        handle = layer.register_forward_pre_hook(
            lambda _module, args, kwargs, kind=kind: ((change(kind, args[0]), *args[1:]), kwargs), with_kwargs=True
        )
        torch.testing.assert_close(after, logits(model), **EXACT)
        handle.remove()
        assert attribution.target == pytest.approx(float(after[number]))
        assert attribution.error < 1e-12


def test_a_failure_inside_restores_the_model(model):
    kept = weight_and_bias(model.model.layers[0].self_attn.o_proj)[0].clone()
    with pytest.raises(ZeroDivisionError), normscope.ablate(model, heads=[(1, 1)], dimensions=[3]):
        raise ZeroDivisionError
    assert torch.equal(weight_and_bias(model.model.layers[0].self_attn.o_proj)[0], kept)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.model.modules())


def test_the_answer_is_that_of_the_changed_model(model):
    with normscope.steer(model, np.full(model.model.config.hidden_size, 3.0), 3):
        steered = normscope.attribute(model, PROMPT, normscope.Answer(tokens=2))
        expected = int(logits(model).argmax())
    assert repr(model.tokenizer.decode(expected))[1:-1] in steered.what


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"heads": [(4, 1)]}, "heads: expected a layer from 1 to 3, got 4"),
        ({"heads": [(1, 0)]}, "heads: expected a number from 1 to 4 in layer 1, got 0"),
        ({"heads": [3]}, "heads: expected pairs of a layer and a number, got int"),
        ({"neurons": [(1, 10**6)]}, "neurons: expected a number from 0 to"),
        ({"neurons": [(1, "a")]}, "neurons: expected whole numbers"),
        ({"dimensions": [-1]}, "dimensions: expected numbers from 0 to"),
        ({"dimensions": [0], "layers": [9]}, "layers: expected numbers from 1 to 3, got 9"),
        ({"heads": [(1, 1)], "layers": [1]}, "layers: expected dimensions as well"),
    ],
)
def test_parts_that_do_not_exist(model, arguments, message):
    with pytest.raises(InputError, match=message), normscope.ablate(model, **arguments):
        pass


@pytest.mark.parametrize(
    ("vector", "message"),
    [([1.0], r"got an array of shape \(1,\)"), ("up", "got str"), (np.full(24, np.inf), "expected finite numbers")],
)
def test_vectors_that_cannot_be_added(model, vector, message):
    with pytest.raises(InputError, match=f"vector: .*{message}"), normscope.steer(model, vector, 1):
        pass


def test_parts_that_cannot_be_changed_alone(tokenizer):
    mixture = normscope.ablate(causal("mixtral", tokenizer), neurons=[(1, 1)])
    with pytest.raises(InputError, match="layer 1 is a mixture of experts; expected a dense network"), mixture:
        pass
    model = causal("llama", tokenizer)
    with normscope.ablate(model, heads=[(1, 1)]), pytest.raises(InputError, match="parts of it are ablated or steered"):
        normscope.run("mixing", texts=PROMPT, model=model)
