"""What can be observed in every architecture of transformers that reads images or sound: on tiny models with random weights.

A tower is built from its default config with smaller sizes and given what it takes: pixels, patches in a row, a spectrogram or
samples. Loading it makes the proof of `prove.verification`.
"""

import contextlib
import copy
import inspect
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModel, PretrainedConfig
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError, one_line
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.vector_loading import tower_of
from normscope.models.load.wrapping import wrap_model

SMALL: dict[int, tuple[str, ...]] = {
    99: ("vocab_size",),
    32: ("hidden_size", "d_model", "embed_dim", "dim", "hidden_dim", "decoder_hidden_size", "out_hidden_size"),
    2: ("num_hidden_layers", "num_layers", "encoder_layers", "decoder_layers", "depth", "n_layer", "vision_layers"),
    4: ("num_attention_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads", "n_head"),
    8: ("head_dim", "attention_head_dim"),
    40: ("intermediate_size", "mlp_dim", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim"),
}
"""Sizes, and the config keys that are set to them."""

_SIDE, _LARGER_SIDE, _PATCH, _FRAMES, _SAMPLES = 32, 64, 8, 64, 4000
"""Sizes of inputs: rows and columns of pixels, also of an image with windows and stages, and of a patch, frames of a
spectrogram, samples."""
_BANDS = ("num_mel_bins", "feature_projection_input_dim", "input_feat_per_channel", "input_dim", "feature_size")
"""Config keys for the number of bands of a spectrogram."""
_IMAGES = ("pixel_values", "pixel_values_videos", "flattened_patches")
_SOUNDS = ("input_features", "input_values", "audio_values")
"""What models that read images, or sound, call them."""
_OF_STAGES = ("num_heads", "num_attention_heads_per_stage")
"""Config keys for a number of heads of each stage."""
_GRIDS = ("grid_thw", "image_grid_thw", "spatial_shapes", "grid_hws", "image_grid_hws", "tgt_sizes", "target_sizes")
"""What models of patches in a row call the numbers of frames, rows and columns."""
_ADVICE = re.compile(r"^model: |^\w+ is refused because |; set model(?:.name)? to another model.*$|^model=\w+: ")


class Tower(NamedTuple):
    """The part of an architecture that reads images or sound."""

    model_type: str
    reads: str
    """Images or sound."""
    block: str
    """The position of the block's norm; empty if it cannot be observed."""
    network: str
    """Whether whole layers can be observed, with their feed-forward networks: yes, no, or part (some layers only)."""
    tokens: str
    """What its tokens are called."""
    reason: str
    """Why it cannot be observed, or has not been tried."""


def towers() -> dict[str, str]:
    """The architectures of the installed transformers that read images or sound, and which of the two."""
    found = {}
    for model_type in CONFIG_MAPPING:
        try:
            kind: Any = AutoModel._model_mapping.get(CONFIG_MAPPING[model_type], None)
            parameters = inspect.signature((kind[0] if isinstance(kind, tuple) else kind).forward).parameters
        except Exception:  # configs without a model, and modules that need packages that are not installed
            continue
        if any(name in parameters for name in (*_IMAGES, *_SOUNDS)):
            found[model_type] = "images" if any(name in parameters for name in _IMAGES) else "sound"
    return found


def tower_row(model_type: str, reads: str) -> Tower:
    """What can be observed in a tower."""
    try:
        tower = tiny_tower(model_type)
        given = inputs_of(tower)
    except ImportError as error:
        package = re.search(r"requires the (\S+) library", str(error))
        return Tower(model_type, reads, "", "no", "", f"needs the package {package[1] if package else one_line(error)}")
    except InputError:
        return Tower(model_type, reads, "", "no", "", "no part of it reads images or sound alone, without texts")
    except Exception as error:  # somebody else's code
        failed = f"{type(error).__name__}: {one_line(error)[:90]}"
        return Tower(model_type, reads, "", "no", "", f"not tried: no small model with an input was found ({failed})")
    try:
        loaded = wrap_model(tower, lambda _image: given)
        _ = loaded.verification
    except InputError as error:
        return Tower(model_type, reads, "", "no", "", _ADVICE.sub("", _ADVICE.sub("", str(error))))
    network = "no" if not loaded.facts.has_networks else "part" if loaded.facts.not_measured else "yes"
    return Tower(model_type, reads, ", ".join(loaded.facts.norm_positions), network, _tokens(loaded, given), "")


def _tokens(loaded: LoadedModel, given: Mapping[str, Tensor]) -> str:
    """What the tokens of an input are called."""
    assert loaded.reader is not None
    geometry = loaded.reader.positions.of(given)
    others = [name for name in geometry.names if name.startswith("[")]
    before = others if len(others) < 4 else [others[0], "…", others[-1]]
    own = "frames" if "frame" in geometry.categories else "patches by row and column" if geometry.grid else "patches"
    return ", ".join([*before, own])


def tiny_tower(model_type: str) -> PreTrainedModel:
    """The part of a tiny model with random weights that reads images or sound; see `tower_of`.

    Raises:
        Exception: Whatever transformers raises if it cannot be built.
    """
    config: Any = _of_tower(CONFIG_MAPPING[model_type]())
    _shrink(config)
    torch.manual_seed(0)
    model: PreTrainedModel = tower_of(AutoModel.from_config(config).eval().requires_grad_(False))
    for name, parameter in model.named_parameters():
        is_added = parameter.ndim < 2 or "embed" in name.rpartition(".")[2]
        noise = torch.randn_like(parameter)
        parameter.copy_(parameter + 0.1 * noise if is_added else 0.2 * noise)
    return model


def _of_tower(config: PretrainedConfig) -> PretrainedConfig:
    """The config of the part that reads images or sound, if transformers can build that alone."""
    parts = (getattr(config, name, None) for name in ("vision_config", "audio_config", "encoder_config"))
    found = next((part for part in parts if isinstance(part, PretrainedConfig)), None)
    with contextlib.suppress(Exception):  # modules that need packages that are not installed
        if found is not None and AutoModel._model_mapping.get(type(found), None) is not None:
            return copy.deepcopy(found)
    return copy.deepcopy(config)


def _shrink(config: Any) -> None:
    """Make the sizes of a config small, and those of the configs of its parts."""
    for part in config.sub_configs:
        if isinstance(getattr(config, part, None), PretrainedConfig):
            _shrink(getattr(config, part))
    for name, number in (_sizes_by_key(config) | _sizes_of_images(config)).items():
        if type(vars(config).get(name)) is int:
            with contextlib.suppress(Exception):  # some derive one number from others, or validate them
                setattr(config, name, number)


def _sizes_by_key(config: Any) -> dict[str, int]:
    """Small numbers of layers, heads and dimensions."""
    own = vars(config)
    sizes = {name: number for number, names in SMALL.items() for name in names}
    if any(isinstance(own.get(name), list | tuple) for name in _OF_STAGES):
        sizes = {name: number for name, number in sizes.items() if name not in SMALL[32]}
    if isinstance(own.get("depths"), list | tuple):
        config.depths = [1] * len(own["depths"])
    if own.get("global_attn_indexes"):
        config.global_attn_indexes = [1]  # of two layers, the first attends within windows
        sizes["window_size"] = 2
    kinds = own.get("layer_types")
    if kinds:
        layers = max(kinds.index(kind) for kind in set(kinds)) + 1
        sizes |= dict.fromkeys(SMALL[2], layers)
        config.layer_types = kinds[:layers]
    if own.get("num_key_value_heads") and isinstance(own.get("num_attention_heads"), int):
        sizes["num_key_value_heads"] = 2 if own["num_key_value_heads"] < own["num_attention_heads"] else 4
    return sizes | ({"pad_token_id": 0} if own.get("pad_token_id") else {})


def _sizes_of_images(config: Any) -> dict[str, int]:
    """Small images of small patches."""
    own = vars(config)
    if not isinstance(own.get("patch_size"), int):
        if isinstance(own.get("image_size"), list | tuple):
            config.image_size = [_LARGER_SIDE] * len(own["image_size"])
        return {}
    patch = min(_PATCH, own["patch_size"])
    if isinstance(own.get("depths"), list | tuple):  # windows and stages need room
        return {"patch_size": patch}
    if isinstance(own.get("image_size"), list | tuple):
        config.image_size = [4 * patch] * len(own["image_size"])
    return {"patch_size": patch, "image_size": 4 * patch}


def inputs_of(tower: PreTrainedModel) -> dict[str, Tensor]:
    """Keyword arguments with which a tower runs: of the shapes that towers take, the first that it does not fail on.

    Raises:
        Exception: What the tower raises, if it fails on all.
    """
    failures: list[Exception] = []
    for given in _candidates(tower):
        try:
            with torch.no_grad():
                tower(**given)
        except Exception as error:  # somebody else's code
            failures.append(error)
        else:
            return given
    raise failures[-1 if "missing" in str(failures[0]) else 0]


def _candidates(tower: PreTrainedModel) -> Iterator[dict[str, Tensor]]:
    parameters = inspect.signature(tower.forward).parameters
    name = tower.main_input_name if tower.main_input_name in parameters else next(iter(parameters))
    is_sound = name in _SOUNDS or "audio" in type(tower).__name__.lower()
    if is_sound:
        for shape in _sounds(tower.config):
            yield {name: torch.randn(shape)}
            for mask, axis in itertools.product((key for key in parameters if key.endswith("mask")), (-1, -2)):
                yield {name: torch.randn(shape), mask: torch.ones(1, shape[axis], dtype=torch.long)}
        return
    shapes, grid = _images(tower.config), _grid(tower.config)
    if any(key in parameters for key in _GRIDS):
        shapes = shapes[-4:] + shapes[:-4]
    for shape, extra in itertools.product(shapes, ({}, {key: grid[key] for key in grid if key in parameters})):
        yield {name: torch.randn(shape), **extra}


def _sounds(config: Any) -> list[tuple[int, ...]]:
    """Shapes of a spectrogram, or of samples."""
    bands = next((each for key in _BANDS if (each := getattr(config, key, None))), 80)
    length = 2 * (getattr(config, "max_source_positions", None) or _FRAMES // 2)
    longest = getattr(config, "max_length", None) or 1
    spectra = [(1, bands, length), (1, length, bands), (1, 1, bands, length), (1, 1, length, bands), (1, bands, 3000)]
    return [*spectra, (1, 1, 1001, bands), (1, longest, bands), (1, _SAMPLES), (1, 1, _SAMPLES)]


def _images(config: Any) -> list[tuple[int, ...]]:
    """Shapes of an image, of a video and, last, of patches in a row."""
    colours, side, patch, rows = _sizes(config)
    frames = getattr(config, "num_frames", None) or 2
    pixels = colours * (getattr(config, "temporal_patch_size", None) or 1) * patch * patch
    videos = [(1, frames, colours, side, side), (1, colours, frames, side, side), (1, 1, colours, side, side)]
    packed = [(rows * rows, pixels), (1, rows * rows, pixels), (rows * rows, colours, patch, patch)]
    packed.append((1, colours, patch, rows * rows * patch))
    return [(1, colours, side, side), (1, colours, _LARGER_SIDE, _LARGER_SIDE), *videos, *packed]


def _sizes(config: Any) -> tuple[int, int, int, int]:
    """Numbers of colours, of rows of pixels, of rows of pixels of a patch, and of rows of patches."""
    patch, side = (getattr(config, key, None) for key in ("patch_size", "image_size"))
    patch, side = patch if isinstance(patch, int) else _PATCH, side if isinstance(side, int) and side else _SIDE
    colours = getattr(config, "num_channels", None) or getattr(config, "in_channels", None) or 3
    return colours, side, patch, side // patch


def _grid(config: Any) -> dict[str, Tensor]:
    """What models of patches in a row are told of their grid."""
    _, side, _, rows = _sizes(config)
    grid = torch.tensor([[1, rows, rows]])
    places = torch.cartesian_prod(torch.arange(rows), torch.arange(rows)).unsqueeze(0)
    return {
        **{key: grid if key.endswith("thw") else grid[:, 1:] for key in _GRIDS},
        "merge_sizes": torch.tensor([1]),
        "image_sizes": torch.tensor([[side, side]]),
        "pixel_attention_mask": torch.ones(1, rows * rows, dtype=torch.long),
        **dict.fromkeys(("pixel_position_ids", "image_position_ids"), places),
    }
