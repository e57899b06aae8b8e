"""Tiny towers of images and audio, for the table of architectures: the default config with smaller sizes, random weights."""

import contextlib
import copy
import inspect
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModel, PretrainedConfig
from transformers.modeling_utils import PreTrainedModel

from normscope.models.load.vector_loading import tower_of

SMALL: dict[int, tuple[str, ...]] = {
    99: ("vocab_size",),
    32: ("hidden_size", "d_model", "embed_dim", "dim", "hidden_dim", "decoder_hidden_size", "out_hidden_size"),
    2: ("num_hidden_layers", "num_layers", "encoder_layers", "decoder_layers", "depth", "n_layer", "vision_layers"),
    4: ("num_attention_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads", "n_head"),
    8: ("head_dim", "attention_head_dim"),
    40: ("intermediate_size", "mlp_dim", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim"),
}
"""Sizes, and the config keys that are set to them."""

_IMAGE, _PATCH = 32, 8
_FRAMES, _SAMPLES = 64, 4000
_MODALITIES = {
    "vision": ("pixel_values", "pixel_values_videos", "flattened_patches"),
    "audio": ("input_features", "input_values", "audio_values"),
}
"""What a model that reads images, or sound, calls them."""


def towers() -> dict[str, str]:
    """The architectures of the installed transformers that read images or sound, and which of the two."""
    found = {}
    for model_type in CONFIG_MAPPING:
        try:
            kind: Any = AutoModel._model_mapping.get(CONFIG_MAPPING[model_type], None)
            kind = kind[0] if isinstance(kind, tuple) else kind
            parameters = inspect.signature(kind.forward).parameters
        except Exception:  # modules that need packages that are not installed
            continue
        for modality, names in _MODALITIES.items():
            if any(name in parameters for name in names):
                found.setdefault(model_type, modality)
    return found


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
        is_plain = parameter.ndim < 2 or "embed" in name.rpartition(".")[2]
        parameter.copy_(parameter + 0.1 * torch.randn_like(parameter) if is_plain else 0.2 * torch.randn_like(parameter))
    return model


def _of_tower(config: PretrainedConfig) -> PretrainedConfig:
    """The config of the part that reads images or sound, if transformers can build that alone."""
    parts = (getattr(config, name, None) for name in ("vision_config", "audio_config", "encoder_config"))
    found = next((part for part in parts if isinstance(part, PretrainedConfig)), None)
    if found is None:
        return copy.deepcopy(config)
    with contextlib.suppress(Exception):  # modules that need packages that are not installed
        if AutoModel._model_mapping.get(type(found), None) is not None:
            return copy.deepcopy(found)
    return copy.deepcopy(config)


def _shrink(config: PretrainedConfig) -> None:
    """Make the sizes of a config small, and those of the configs of its parts."""
    if getattr(config, "pad_token_id", None):
        config.pad_token_id = 0
    for part in config.sub_configs:
        if isinstance(getattr(config, part, None), PretrainedConfig):
            _shrink(getattr(config, part))
    sizes = {name: number for number, names in SMALL.items() for name in names}
    own = vars(config)
    layers = 2
    if own.get("layer_types"):
        layers = max(own["layer_types"].index(kind) for kind in set(own["layer_types"])) + 1
        sizes |= dict.fromkeys(SMALL[2], layers)
        config.layer_types = own["layer_types"][:layers]
    if isinstance(own.get("depths"), list | tuple):
        config.depths = [1] * len(own["depths"])
    if own.get("num_key_value_heads") and isinstance(own.get("num_attention_heads"), int):
        shares = own["num_key_value_heads"] < own["num_attention_heads"]
        sizes["num_key_value_heads"] = 2 if shares else 4
    if isinstance(own.get("patch_size"), int):
        sizes |= {"patch_size": min(_PATCH, own["patch_size"])}
        image = own["patch_size"] and own.get("image_size")
        if isinstance(image, int):
            sizes["image_size"] = 4 * sizes["patch_size"]
        elif isinstance(image, list | tuple):
            config.image_size = [4 * sizes["patch_size"]] * len(image)
    if isinstance(own.get("num_heads"), list | tuple):  # by stage
        sizes = {name: number for name, number in sizes.items() if name not in SMALL[32]}
    for name, number in sizes.items():
        if type(own.get(name)) is int:
            with contextlib.suppress(Exception):  # some derive one number from others, or validate
                setattr(config, name, number)


def inputs_of(tower: PreTrainedModel) -> dict[str, Tensor]:
    """Keyword arguments with which a tower runs: of the shapes that towers take, the first that it does not fail on.

    Raises:
        Exception: What the tower raises on the first, if it fails on all.
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
    raise failures[0]


def _candidates(tower: PreTrainedModel) -> Iterator[dict[str, Tensor]]:
    config = tower.config
    parameters = inspect.signature(tower.forward).parameters
    name = tower.main_input_name if tower.main_input_name in parameters else next(iter(parameters))
    patch = getattr(config, "patch_size", _PATCH)
    patch = patch if isinstance(patch, int) else _PATCH
    channels = getattr(config, "num_channels", None) or getattr(config, "in_channels", None) or 3
    size = getattr(config, "image_size", None) or _IMAGE
    side = size if isinstance(size, int) else _IMAGE
    frames = getattr(config, "num_frames", None) or 2
    bands = next((each for key in ("num_mel_bins", "input_feat_per_channel", "feature_size", "hidden_size") if (each := getattr(config, key, None))), 80)
    length = 2 * (getattr(config, "max_source_positions", None) or _FRAMES // 2)
    rows = side // patch
    temporal = getattr(config, "temporal_patch_size", None) or 1
    images = [(1, channels, side, side), (1, channels, 64, 64), (1, frames, channels, side, side), (1, channels, frames, side, side), (1, 1, channels, side, side)]
    packed = [(rows * rows, channels * temporal * patch * patch), (1, rows * rows, channels * temporal * patch * patch), (rows * rows, channels, patch, patch)]
    sounds = [(1, bands, length), (1, length, bands), (1, 1, bands, length), (1, 1, length, bands), (1, _SAMPLES), (1, 1, _SAMPLES), (1, bands, 3000), (1, 1, 1001, bands), (1, getattr(config, "max_length", 1) or 1, bands)]
    extras: list[Mapping[str, Tensor]] = [{}]
    grid = torch.tensor([[1, rows, rows]])
    known = {
        "grid_thw": grid, "image_grid_thw": grid, "video_grid_thw": grid, "grid_hws": grid[:, 1:], "spatial_shapes": grid[:, 1:], "tgt_sizes": grid[:, 1:], "target_sizes": grid[:, 1:], "image_grid_hws": grid[:, 1:],
        "image_sizes": torch.tensor([[side, side]]), "cu_seqlens": torch.tensor([0, rows * rows], dtype=torch.int32),
        "pixel_attention_mask": torch.ones(1, rows * rows, dtype=torch.long),
        "pixel_position_ids": torch.stack(torch.meshgrid(torch.arange(rows), torch.arange(rows), indexing="ij"), -1).view(1, -1, 2),
        "image_position_ids": torch.stack(torch.meshgrid(torch.arange(rows), torch.arange(rows), indexing="ij"), -1).view(1, -1, 2),
    }
    extras.append({key: value for key, value in known.items() if key in parameters})
    is_sound = name in _MODALITIES["audio"] or "audio" in type(tower).__name__.lower()
    shapes = sounds + images[:1] if is_sound else images + packed
    for shape, extra in itertools.product(shapes, extras):
        masks = [{}]
        if is_sound:
            masks += [{key: torch.ones(1, shape[axis], dtype=torch.long)} for key in ("input_features_mask", "feature_attention_mask", "attention_mask", "padding_mask", "audio_mask") if key in parameters for axis in (-1, -2 % len(shape))]
        for mask in masks:
            yield {name: torch.randn(shape), **extra, **mask}
