"""Attention within windows of an image: blocks are those of every pair of tokens, and layers with other tokens are named."""

import itertools
from collections.abc import Callable

import pytest
import torch
import transformers
from torch import Tensor, nn

import normscope
from normscope.errors import InputError
from normscope.maths.mixing import Method
from normscope.models.observe.check import Check
from normscope.models.observe.observer import Observer
from tests.contract.test_images import pixels
from tests.contract.test_vectors import made

SIZES = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "image_size": 24, "patch_size": 4}
OTHER = "another number of tokens than enter the first layer"
PADDED = "attention within windows that are padded"


def sam(**options):
    windows = {"window_size": 3, "global_attn_indexes": [1, 3]} | options
    return transformers.SamVisionModel(transformers.SamVisionConfig(**SIZES, mlp_dim=24, output_channels=8, **windows))


def vitdet(**options):
    windows = {"window_size": 3, "window_block_indices": [0, 2]} | options
    return transformers.VitDetModel(transformers.VitDetConfig(**SIZES, mlp_ratio=2, **windows))


def swin(**options):
    sizes = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4]}
    return transformers.SwinModel(transformers.SwinConfig(**sizes | options, window_size=4))


def hiera():
    sizes = {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "image_size": [32, 32], "masked_unit_size": [4, 4]}
    stages = {"masked_unit_attention": [True, False], "num_query_pool": 1}
    return transformers.HieraModel(transformers.HieraConfig(**sizes, **stages))


def sam2():
    stages = {"blocks_per_stage": [2, 1], "embed_dim_per_stage": [16, 32], "num_attention_heads_per_stage": [2, 4]}
    more = {"window_size_per_stage": [4, 4], "global_attention_blocks": [1], "num_query_pool_stages": 1}
    config = transformers.Sam2HieraDetConfig(
        hidden_size=16, num_attention_heads=2, image_size=[32, 32], **stages, **more
    )
    return transformers.AutoModel.from_config(config)


Windows = Callable[[nn.Module, int], list[int]]
"""Gives the window of each token, row by row, for a layer and the number of rows."""


def of_size(layer: nn.Module, rows: int) -> list[int]:
    """Of patches in squares; one of all patches without a size."""
    size = layer.window_size or rows
    return [row // size * rows + column // size for row, column in itertools.product(range(rows), repeat=2)]


def shifted(layer: nn.Module, rows: int) -> list[int]:
    """Of patches in squares after a shift, which leaves apart those that were at opposite edges."""
    size, shift, found = layer.window_size, layer.shift_size, []
    for place in itertools.product(range(rows), repeat=2):
        moved = [(each - shift) % rows for each in place]
        edges = [each >= rows - shift for each in moved] if shift else [False, False]
        found.append(hash((*(each // size for each in moved), *edges)))
    return found


def of_units(_layer: nn.Module, rows: int) -> list[int]:
    """Of every fourth token, as they come."""
    return [place % 4 for place in range(rows * rows)]


def together(layer: nn.Module, x: Tensor) -> list[Tensor]:
    """Queries, keys and values of one linear layer, by text, head and token."""
    norm = next(getattr(layer, name) for name in ("layer_norm1", "norm1", "layernorm_before") if hasattr(layer, name))
    attention = getattr(layer, "attn", getattr(layer, "attention", None))
    return [each.unflatten(-1, (2, 8)).transpose(1, 2) for each in attention.qkv(norm(x)).chunk(3, dim=-1)]


def apart(layer: nn.Module, x: Tensor) -> list[Tensor]:
    own = layer.attention
    normed = layer.layernorm_before(x)
    return [each(normed).unflatten(-1, (2, 8)).transpose(1, 2) for each in (own.q_proj, own.k_proj, own.v_proj)]


def no_bias(_layer: nn.Module, query: Tensor, _rows: int) -> Tensor:
    return query.new_zeros(query.shape[2], query.shape[2])


def distances(rows: int, size: int) -> tuple[Tensor, Tensor]:
    """Rows and columns between two tokens of a window, from 0."""
    place = torch.arange(rows * rows)
    own = [(each[:, None] - each + size - 1).clamp(0, 2 * size - 2) for each in (place // rows, place % rows)]
    return own[0], own[1]


def decomposed(layer: nn.Module, query: Tensor, rows: int) -> Tensor:
    by_row, by_column = distances(rows, layer.window_size or rows)
    of_rows, of_columns = layer.attn.rel_pos_h[by_row], layer.attn.rel_pos_w[by_column]
    return torch.einsum("bhqd,qkd->bhqk", query, of_rows + of_columns)


def tabled(layer: nn.Module, _query: Tensor, rows: int) -> Tensor:
    by_row, by_column = distances(rows, layer.window_size)
    table = layer.attention.relative_position_bias.relative_position_bias_table
    return table[by_row * (2 * layer.window_size - 1) + by_column].permute(2, 0, 1)


CASES = {
    "sam": (sam, together, decomposed, of_size, 6, {}),
    "vitdet": (vitdet, together, no_bias, of_size, 6, {}),
    "swin": (swin, apart, tabled, shifted, 8, {3: OTHER, 4: OTHER}),
    "hiera": (hiera, together, no_bias, of_units, 8, {3: OTHER, 4: OTHER}),
    "sam2": (sam2, together, no_bias, of_size, 8, {3: OTHER}),
    "padded sam": (lambda: sam(window_size=4), together, decomposed, of_size, 6, {1: PADDED, 3: PADDED}),
}


def wrapped(build: Callable[[], nn.Module], side: int):
    torch.manual_seed(0)
    model, _ = made(lambda: (build(), {}))
    return normscope.wrap(model, transformers.ViTImageProcessorPil(size={"height": side, "width": side}))


def layers_of(model: nn.Module) -> list[nn.Module]:
    return [each for each in model.modules() if hasattr(each, "window_size") and hasattr(each, "mlp")] or [
        each for each in model.modules() if type(each).__name__ == "HieraLayer"
    ]


def hooked(model, layers: list[nn.Module], inputs: dict[str, Tensor]) -> dict[int, list[Tensor]]:
    """What enters and what leaves each layer of the untouched model, by text and token."""
    found = {}

    def keep(number, channels_first):
        def kept(_module, args, output):
            pair = args[0], output[0] if isinstance(output, tuple) else output
            moved = [each.movedim(1, -1) if channels_first else each for each in pair]
            found[number] = [each.reshape(2, -1, each.shape[-1]) for each in moved]

        return kept

    first = "VitDet" in type(layers[0]).__name__
    handles = [each.register_forward_hook(keep(number, first)) for number, each in enumerate(layers, start=1)]
    with torch.no_grad():
        model(**inputs)
    for handle in handles:
        handle.remove()
    return found


def compare(block, case: tuple, layer: nn.Module, x: Tensor) -> None:
    """Compare a block with what all pairs of tokens give."""
    _, projected, bias, windows, rows, _ = case
    query, key, value = projected(layer, x)
    window = torch.tensor(windows(layer, rows))
    scores = query @ key.mT / 8**0.5 + bias(layer, query, rows)
    weights = scores.masked_fill(window[:, None] != window, -torch.inf).softmax(-1)
    own = getattr(layer, "attn", getattr(layer, "attention", None))
    written = own.proj if hasattr(own, "proj") else own.o_proj
    transformed = torch.einsum("bhkd,mhd->bhkm", value, written.weight.unflatten(-1, (2, 8)))
    vectors = torch.einsum("bhqk,bhkm->bqkm", weights, transformed)
    mine = vectors.diagonal(dim1=1, dim2=2).transpose(-1, -2)
    mixed = (vectors.sum(dim=2) - mine).norm(dim=-1)
    ratios = block.mixing_ratios
    for found, expected in (
        (block.weights, weights),
        (block.transformed_norms, transformed.norm(dim=-1)),
        (block.inputs, x),
        (block.attention_output, vectors.sum(dim=2) + written.bias),
        (ratios[Method.ATTN_N], mixed / (mixed + mine.norm(dim=-1))),
        (ratios[Method.ATTNRES_N], mixed / (mixed + (mine + x).norm(dim=-1))),
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


SLOW = {"sam2", "padded sam"}


@pytest.mark.parametrize("name", [pytest.param(each, marks=[pytest.mark.slow] * (each in SLOW)) for each in CASES])
def test_blocks_are_those_of_all_pairs_of_tokens(name):
    case = build, *_, rows, left_out = CASES[name]
    model = wrapped(build, 4 * rows)
    layers = layers_of(model.model)
    assert model.facts.not_measured == left_out
    assert model.facts.attends == [each for each in range(1, len(layers) + 1) if each not in left_out]
    inputs = model.model.random_batch(2)
    vectors, found, errors = hooked(model.model, layers, inputs), [], []

    def visit(block):
        compare(block, case, layers[block.layer - 1], vectors[block.layer][0])
        found.append(block.layer)

    def visit_hidden(layer, hidden):
        expected = vectors[layer][1] if layer else vectors[1][0]
        torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-10)

    def visit_network(layer):
        """The layer run again with the outputs of attention that it had leaves what it has left."""
        errors.append(float(layer.error().max()))
        again = layer.rerun.outputs(0, layer.attention.attention_output[:1].repeat(3, 1, 1))
        torch.testing.assert_close(again, vectors[layer.attention.layer][1][:1].expand(3, -1, -1), rtol=0, atol=1e-10)

    networks, every = model.facts.has_networks, range(model.facts.layers + 1)
    assert networks is (name != "vitdet")
    with Observer(model.model, model.facts, hidden=every, feed_forward=networks) as observer:
        visitors = visit, visit_hidden, visit_network if networks else None
        observer.run(inputs, *visitors, check=Check.TEXTS, proves=True)
    assert found == model.facts.attends
    assert max(errors, default=0) < 1e-12


def test_layers_that_are_not_measured_are_named_once():
    model, images = wrapped(lambda: sam(window_size=4), 24), [pixels(each, (24, 24)) for each in range(2)]
    note = f"not measured: layers 1, 3 have {PADDED}"
    result = normscope.run("mixing", model=model, texts=images)
    assert result.notes.count(note) == 1
    assert sorted({*result.tables["mixing_by_layer"]["layer"]}) == [2, 4]
    assert [*normscope.decompose(model, images[0]).notes] == [note]
    assert not normscope.decompose(model, images[0], layers=[2]).notes
    expected = rf"^layers: layer 3 of this sam_vision_model has {PADDED}; expected layers that are measured: 2, 4$"
    with pytest.raises(InputError, match=expected):
        normscope.run("mixing", model=model, texts=images, layers=[3])
    with pytest.raises(InputError, match=expected):
        normscope.decompose(model, images[0], layers=[3])


def test_layers_of_later_stages_are_named():
    model, images = wrapped(swin, 32), [pixels(each) for each in range(2)]
    result = normscope.run("norms", model=model, texts=images)
    assert f"not measured: layers 3, 4 have {OTHER}" in result.notes
    assert {*result.tables["norms_returned"]["place"]} == {"before"}  # what is returned has fewer tokens
    with pytest.raises(InputError, match=f"layer 4 of this swin has {OTHER}; expected layers that are measured: 1, 2"):
        normscope.decompose(model, images[0], layers=[4])
    with pytest.raises(InputError, match="expected a returned vector for each of 64 tokens"):
        normscope.run("attribution", model=model, texts=images)


def test_a_model_of_which_no_layer_can_be_measured_says_why():
    expected = (
        rf"none of its layers can be measured: layers 1–4 have {PADDED} \(modeling_sam.py, line \d+, in forward\)"
    )
    with pytest.raises(InputError, match=expected):
        wrapped(lambda: sam(window_size=4, global_attn_indexes=[]), 24)


def test_tokens_that_do_not_return_to_their_places_are_refused(monkeypatch):
    """Rows are moved for good: what a window writes goes to tokens whose values it does not have."""
    kind = transformers.models.swin.modeling_swin.SwinLayer
    shift = kind.cyclic_shift

    def columns_alone(self, vectors, reverse=False):
        return torch.roll(vectors, self.shift_size, dims=2) if reverse else shift(self, vectors)

    monkeypatch.setattr(kind, "cyclic_shift", columns_alone)
    with pytest.raises(InputError, match="layer 2 cannot be measured: its values are made of several tokens' vectors"):
        wrapped(lambda: swin(depths=[2, 1]), 32)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["swin", "hiera", "padded sam"])
def test_a_folder_has_the_same_layers(name, tmp_path):
    """Before weights are read, a model without numbers says which layers are measured."""
    build, *_, rows, _ = CASES[name]
    model = wrapped(build, 4 * rows)
    model.model.model.save_pretrained(tmp_path)
    transformers.ViTImageProcessorPil(size={"height": 4 * rows, "width": 4 * rows}).save_pretrained(tmp_path)
    assert normscope.load(tmp_path, device="cpu", dtype="float64").facts == model.facts


@pytest.mark.slow
def test_patches_cannot_be_removed_from_a_grid():
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Sam3ViTConfig(**sizes, image_size=24, patch_size=4, pretrain_image_size=24, window_size=3)
    model = wrapped(lambda: transformers.AutoModel.from_config(config), 24)
    with pytest.raises(InputError, match="^model: patches cannot be removed from Sam3ViTModel, whose layers are given"):
        normscope.run("attribution", model=model, texts=[pixels(0, (24, 24))] * 2)
