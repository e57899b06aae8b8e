"""Whisper as CTranslate2 stores it, in one file or in parts, with the heads that OpenAI aligns words by."""

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizer,
)

from experiments.real_weights.packages import Converted, require

# Float32 rounds differently in either code: 3e-5 was measured. The vectors' components reach 13.
TOLERANCE = 1e-3

_TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
_HEAD = 64
"""Dimensions of a head, in Whisper of any size."""
_MULTILINGUAL = 51865
"""The smallest vocabulary of a multilingual model, by which OpenAI's code recognises one."""
_ENGLISH = {"language": "en", "task": "transcribe"}


def convert(package: Path) -> Converted:
    """The model; its encoder gives the vectors that CTranslate2's does, and its decoder the same tokens."""
    files = sorted(package.rglob("model.bin*"))
    folder = files[0].parent
    if len(files) > 1:
        (folder / "model.bin").write_bytes(b"".join(file.read_bytes() for file in files))
    model, processor = converted(folder)
    difference, tokens = proof(folder, model)
    require(difference <= TOLERANCE, f"the encoder's vectors differ from CTranslate2's by {difference:.1e}")
    return Converted(
        {"": (model, processor)},
        f"the encoder's vectors as CTranslate2's, to {difference:.1e}, and the same {tokens} tokens",
    )


def variables(data: bytes) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of a model of CTranslate2 (version 6 of its format), by name.

    The file is little-endian: version, name and revision of the model, number of arrays; then for each its name, rank, shape,
    type, number of bytes and values. A text is its length with a final zero byte, and its bytes.
    """
    place = 0

    def take(code: str) -> int:
        nonlocal place
        place += struct.calcsize(code)
        return int(struct.unpack_from(f"<{code}", data, place - struct.calcsize(code))[0])

    def text() -> str:
        nonlocal place
        length = take("H")
        place += length
        return data[place - length : place - 1].decode()

    require(take("I") == 6, "expected version 6 of CTranslate2's format")
    text(), take("I")
    for _ in range(take("I")):
        name, shape = text(), [take("I") for _ in range(take("B"))]
        kind, size = np.dtype(_TYPES[take("B")]), take("I")
        yield name, np.frombuffer(data, kind, size // kind.itemsize, place).reshape(shape)
        place += size


def named(name: str, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The names that transformers has for an array of CTranslate2, and what is stored there.

    Queries, keys and values of one input are one array there; keys have no bias here.
    """
    *path, kind = name.split("/")
    side, where = path[0], path[1:]
    kind = {"gamma": "weight", "beta": "bias", "encodings": "weight"}.get(kind, kind)
    whole = {"position_encodings": "embed_positions", "embeddings": "embed_tokens"}
    if not where[0].startswith("layer_") or where == ["layer_norm"]:
        if kind in ("weight", "bias") and where != ["projection"]:
            yield f"model.{side}.{whole.get(where[0], where[0])}.{kind}", values
        return
    layer = f"model.{side}.layers.{where[0].removeprefix('layer_')}"
    of, part = where[1:]
    attention = {"self_attention": "self_attn", "attention": "encoder_attn"}.get(of, "")
    if of == "ffn":
        yield (
            f"{layer}.{'final_layer_norm' if part == 'layer_norm' else {'linear_0': 'fc1', 'linear_1': 'fc2'}[part]}.{kind}",
            values,
        )
    elif part == "layer_norm":
        yield f"{layer}.{attention}_layer_norm.{kind}", values
    else:
        joint = {
            ("self_attn", "linear_0"): "qkv",
            ("encoder_attn", "linear_0"): "q",
            ("encoder_attn", "linear_1"): "kv",
        }
        projections = [f"{each}_proj" for each in joint.get((attention, part), "")] or ["out_proj"]
        for projection, own in zip(projections, np.split(values, len(projections)), strict=True):
            if (projection, kind) != ("k_proj", "bias"):
                yield f"{layer}.{attention}.{projection}.{kind}", own


def converted(folder: Path) -> tuple[WhisperForConditionalGeneration, WhisperProcessor]:
    """The model with the weights of the file, every one of which has its place, and what reads sounds and writes texts."""
    settings, file = (json.loads((folder / name).read_text()) for name in ("config.json", "tokenizer.json"))
    weights = {
        new: torch.tensor(own.astype(np.float32))
        for name, values in variables((folder / "model.bin").read_bytes())
        if values.ndim
        for new, own in named(name, values)
    }
    words, width = weights["model.decoder.embed_tokens.weight"].shape
    numbers = {token["content"]: token["id"] for token in file["added_tokens"]}
    end, start = numbers["<|endoftext|>"], numbers["<|startoftranscript|>"]
    special = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": start}
    config = WhisperConfig(
        vocab_size=words,
        d_model=width,
        **{
            f"{side}_{what}": value
            for side in ("encoder", "decoder")
            for what, value in (
                ("layers", sum(name.startswith(f"model.{side}.") and name.endswith(".fc1.bias") for name in weights)),
                ("attention_heads", width // _HEAD),
                ("ffn_dim", 4 * width),
            )
        },
        begin_suppress_tokens=settings["suppress_ids_begin"],
        **special,
    )
    is_multilingual = words >= _MULTILINGUAL
    languages = {name: number for name, number in numbers.items() if number in settings.get("lang_ids", [])}
    tasks = {task: numbers[f"<|{task}|>"] for task in ("transcribe", "translate")}
    model = WhisperForConditionalGeneration(config).eval()
    model.load_state_dict({**weights, "proj_out.weight": weights["model.decoder.embed_tokens.weight"]})
    model.generation_config = GenerationConfig(
        suppress_tokens=settings["suppress_ids"],
        begin_suppress_tokens=settings["suppress_ids_begin"],
        alignment_heads=settings["alignment_heads"],
        no_timestamps_token_id=numbers["<|notimestamps|>"],
        is_multilingual=is_multilingual,
        max_length=448,
        **({"lang_to_id": languages, "task_to_id": tasks} if is_multilingual else {}),
        **special,
    )
    tokenizer = tokenizer_of(file, words)
    tokenizer.set_prefix_tokens(**(_ENGLISH if is_multilingual else {}))
    return model, WhisperProcessor(WhisperFeatureExtractor(), tokenizer)


def tokenizer_of(file: Mapping[str, Any], words: int) -> WhisperTokenizer:
    """The file's tokenizer, with the time stamps that the model has after the tokens of the file."""
    merges = [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in file["model"]["merges"]]
    tokenizer = WhisperTokenizer(vocab=file["model"]["vocab"], merges=merges, model_max_length=448)
    names = [token["content"] for token in file["added_tokens"]]
    tokenizer.add_special_tokens({"extra_special_tokens": names, "pad_token": "<|endoftext|>"})
    tokenizer.add_tokens([f"<|{0.02 * step:.2f}|>" for step in range(words - len(tokenizer))])
    found = {token["content"]: tokenizer.convert_tokens_to_ids(token["content"]) for token in file["added_tokens"]}
    require(found == {token["content"]: token["id"] for token in file["added_tokens"]}, "tokens have other numbers")
    return tokenizer


def proof(folder: Path, model: WhisperForConditionalGeneration) -> tuple[float, int]:
    """How far the encoder's vectors are from CTranslate2's, and how many tokens both make of a sound.

    The sound is a tone that rises and falls like a voice's. Neither code may end the text, since a tone has few words.
    """
    import ctranslate2

    seconds = np.arange(3 * 16_000) / 16_000
    sound = np.sin(900 * seconds + 40 * np.sin(7 * seconds)) * np.sin(9 * seconds) ** 2
    features = WhisperFeatureExtractor()(
        sound.astype(np.float32), sampling_rate=16_000, return_tensors="pt"
    ).input_features
    other = ctranslate2.models.Whisper(str(folder), device="cpu", compute_type="float32", intra_threads=1)
    stored = ctranslate2.StorageView.from_array(features.numpy())
    theirs = np.array(other.encode(stored, to_cpu=True))
    settings = model.generation_config
    asked = _ENGLISH if settings.is_multilingual else {}
    prompt = [settings.lang_to_id["<|en|>"], settings.task_to_id["transcribe"]] if asked else []
    start = [model.config.decoder_start_token_id, *prompt, settings.no_timestamps_token_id]
    end = model.config.eos_token_id
    said = other.generate(stored, [start], beam_size=1, max_length=24, suppress_tokens=[-1, end])[0].sequences_ids[0]
    with torch.no_grad():
        ours = model.model.encoder(features).last_hidden_state.numpy()
        fixed = {"num_beams": 1, "do_sample": False, "suppress_tokens": [*settings.suppress_tokens, end], **asked}
        tokens = model.generate(features, max_new_tokens=20, **fixed)[0].tolist()
    spoken = [token for token in tokens if token not in (*start, end)]
    same = min(len(spoken), len(said))
    require(spoken[:same] == said[:same], "the decoder says other tokens than CTranslate2")
    return float(np.abs(ours - theirs).max()), same
