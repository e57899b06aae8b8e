"""Reads how a sentence encoder makes embeddings: from its files, or from a SentenceTransformer in memory."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from normscope.errors import InputError, one_line, printable
from normscope.maths.choices import Pooling, SimilarityFunction
from normscope.maths.embedder import (
    Embedder,
    EmbeddingModule,
    LateInteraction,
    Norm,
    Projection,
    Truncation,
    UnitLength,
)
from normscope.maths.normalisation import Normalisation
from normscope.untrusted.files import MIB
from normscope.untrusted.plain_data import json_value

# The names that sentence-transformers gives them, in older and newer files.
_MODES = {
    "mean": Pooling.mean,
    "mean_tokens": Pooling.mean,
    "mean_sqrt_len_tokens": Pooling.mean_sqrt,
    "weightedmean": Pooling.weighted_mean,
    "weightedmean_tokens": Pooling.weighted_mean,
    "max": Pooling.max,
    "max_tokens": Pooling.max,
    "cls": Pooling.cls,
    "cls_token": Pooling.cls,
    "lasttoken": Pooling.last,
}

_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda inner: inner,
    "Tanh": torch.tanh,
    "ReLU": torch.relu,
    "GELU": nn.functional.gelu,
    "SiLU": nn.functional.silu,
}
"""Activations of a Dense module with g(0) = 0, by their classes."""

_TRANSFORMERS = ("Transformer", "BERT", "RoBERTa", "XLMRoBERTa", "MPNet")
"""Modules that are the model itself."""

_TRANSFORMER_CONFIG = "sentence_bert_config.json"
"""The settings of the Transformer module, whatever its model."""

_WITHOUT_POOLING = f"to leave the rest out, set pooling to one of {', '.join(Pooling)}"


class _Module(NamedTuple):
    """One module of a sentence encoder."""

    kind: str
    """The name of its class."""
    config: Mapping[str, Any]
    weights: Callable[[], Mapping[str, Tensor]]


def embedder_of(folder: Path | None, name: str) -> Embedder:
    """How a sentence-transformers model makes embeddings, according to its own files.

    Args:
        folder: The model's files; None if it has none.
        name: The model's name, for messages.

    Raises:
        InputError: If the files say nothing, or name a module whose output cannot be split into parts.
    """
    if folder is None or not (folder / "modules.json").is_file():
        raise InputError(
            f"pooling: {name} has no modules.json that says how it pools; expected one of {', '.join(Pooling)}"
        )
    try:
        places = [
            (str(module["type"]).rpartition(".")[2], folder / str(module["path"]))
            for module in _read(folder / "modules.json", name)
        ]
    except (TypeError, KeyError) as error:
        raise InputError(f"pooling: the modules.json of {name} is not a list of modules; set pooling=") from error
    modules = [_module_of_files(kind, place, name) for kind, place in places]
    settings = folder / "config_sentence_transformers.json"
    found = _read(settings, name) if settings.is_file() else {}
    return _embedder(modules, found if isinstance(found, Mapping) else {}, name)


def embedder_in_memory(encoder: nn.Module, name: str) -> Embedder:
    """How a SentenceTransformer in memory makes embeddings.

    Args:
        encoder: The SentenceTransformer.
        name: Its name, for messages.

    Raises:
        InputError: If it has a module whose output cannot be split into parts.
    """
    modules = [
        _Module(type(module).__name__, _knobs(module) if place == 0 else _config_in_memory(module), module.state_dict)
        for place, module in enumerate(encoder.children())
    ]
    settings = {
        "prompts": getattr(encoder, "prompts", None),
        "default_prompt_name": getattr(encoder, "default_prompt_name", None),
        "similarity_fn_name": getattr(encoder, "similarity_fn_name", None),
        "truncate_dim": getattr(encoder, "truncate_dim", None),
        "model_type": kind_of_encoder(encoder),
    }
    return _embedder(modules, settings, name)


def kind_of_encoder(model: object) -> str | None:
    """`SentenceTransformer`, `CrossEncoder` or `MultiVectorEncoder` if an object is one, otherwise None.

    The library need not be installed.
    """
    return next(
        (
            kind.__name__
            for kind in type(model).__mro__
            if kind.__module__.startswith("sentence_transformers.")
            and kind.__name__ in ("SentenceTransformer", "CrossEncoder", "MultiVectorEncoder")
        ),
        None,
    )


def longest_text(folder: Path, name: str) -> int | None:
    """The number of tokens at which a sentence encoder truncates texts, according to its files; None if they do not say.

    Raises:
        InputError: If that is not a number of tokens.
    """
    path = folder / _TRANSFORMER_CONFIG
    settings = _read(path, name) if path.is_file() else {}
    longest = settings.get("max_seq_length") if isinstance(settings, Mapping) else None
    if longest is None:
        return None
    if isinstance(longest, bool) or not isinstance(longest, int) or longest < 1:
        raise InputError(
            f"model.name={name}: {path.name}: expected max_seq_length to be a number of tokens, got "
            f"{printable(repr(longest), 60)}"
        )
    return longest


def _embedder(modules: Sequence[_Module], settings: Mapping[str, Any], name: str) -> Embedder:
    known = {*_TRANSFORMERS, "Pooling", "Normalize", "Dropout", "Dense", "LayerNorm", "MultiVectorMask"}
    unknown = [module.kind for module in modules if module.kind not in known]
    pools = [module for module in modules if module.kind == "Pooling"]
    late = settings.get("model_type") == "MultiVectorEncoder"
    if unknown or len(pools) != (not late):
        fault = f"a {unknown[0]} module" if unknown else f"{len(pools)} Pooling modules"
        raise InputError(
            f"pooling: {name} has {fault}, expected a Transformer, one Pooling, then any of Dense, LayerNorm and Normalize; "
            f"{_WITHOUT_POOLING}"
        )
    before = modules[: modules.index(pools[0]) if pools else 1]
    if any(module.kind not in _TRANSFORMERS for module in before):
        raise InputError(f"pooling: {name} has a {before[-1].kind} module before its Pooling; {_WITHOUT_POOLING}")
    place = "token_embeddings" if late else "sentence_embedding"
    behind = [part for module in modules[len(before) + len(pools) :] for part in _parts(module, name, place)]
    size, prompts = settings.get("truncate_dim"), settings.get("prompts")
    if isinstance(size, int):
        behind.append(Truncation(size))
    named = prompts.items() if isinstance(prompts, Mapping) else ()
    return Embedder(
        pooling=_pooling(pools[0].config, name) if pools else None,
        modules=tuple(behind),
        function=_function(settings.get("similarity_fn_name"), name, late=late),
        prompts={str(key): text for key, text in named if isinstance(text, str)},
        default_prompt=settings.get("default_prompt_name"),
        pools_prompt=not pools or pools[0].config.get("include_prompt") is not False,
        late=_late(modules, name) if late else None,
    )


def _late(modules: Sequence[_Module], name: str) -> LateInteraction:
    """Which vectors late interaction compares.

    Raises:
        InputError: If queries are extended with extra tokens, or only some tokens are compared.
    """
    transformer = modules[0].config
    mask = next((module.config for module in modules if module.kind == "MultiVectorMask"), {})
    for what, where in (("query_expansion", transformer), ("keep_only_token_ids", mask)):
        if where.get(what):
            raise InputError(
                f"pooling: {name} sets {what}, expected late interaction between the tokens of the texts; {_WITHOUT_POOLING}"
            )
    lengths = {side: transformer.get(f"{side}_length") for side in ("query", "document")}
    return LateInteraction(
        frozenset(map(str, mask.get("skiplist_words") or ())),
        frozenset(mask.get("skiplist_tasks") or ("document",)),
        {side: length for side, length in lengths.items() if isinstance(length, int)},
    )


def _parts(module: _Module, name: str, place: str) -> Iterator[EmbeddingModule]:
    """What a module after pooling does; nothing if it changes nothing.

    Args:
        place: What it reads and returns, as sentence-transformers calls it.
    """
    sides = {module.config.get(f"module_{side}_name", "sentence_embedding") for side in ("input", "output")}
    match module.kind:
        case "Normalize" | "Dense" if sides != {place}:
            read = "embedding" if place == "sentence_embedding" else "vectors of tokens"
            raise InputError(
                f"pooling: {name} has a {module.kind} module of {', '.join(sorted(map(str, sides)))}, expected one of the "
                f"{read}; {_WITHOUT_POOLING}"
            )
        case "Normalize":
            yield UnitLength()
        case "LayerNorm":
            weights = module.weights()
            yield Norm(Normalisation(weights["norm.weight"], weights["norm.bias"], 1e-5))
        case "Dense":
            activation = str(module.config.get("activation_function", "Tanh")).rpartition(".")[2]
            if activation not in _ACTIVATIONS:
                raise InputError(
                    f"pooling: {name} has a Dense module with the activation {activation}, expected one of "
                    f"{', '.join(_ACTIVATIONS)}; {_WITHOUT_POOLING}"
                )
            weights = module.weights()
            residual = weights["residual.weight"].T if "residual.weight" in weights else None
            adds = True if residual is None and module.config.get("use_residual") else residual
            yield Projection(weights["linear.weight"].T, weights.get("linear.bias"), _ACTIVATIONS[activation], adds)


def _pooling(config: Mapping[str, Any], name: str) -> Pooling:
    named = config.get("pooling_mode")
    if isinstance(named, str):
        modes = [named]
    elif isinstance(named, Sequence):
        modes = [str(mode) for mode in named]
    else:
        prefix = "pooling_mode_"
        modes = [key.removeprefix(prefix) for key, on in config.items() if key.startswith(prefix) and on is True]
    if len(modes) != 1 or modes[0] not in _MODES:
        raise InputError(
            f"pooling: {name} pools by {', '.join(modes) or 'nothing'}; expected one way; set pooling to one of "
            f"{', '.join(Pooling)}"
        )
    return _MODES[modes[0]]


def _function(named: object, name: str, *, late: bool) -> SimilarityFunction:
    functions = (
        (SimilarityFunction.maxsim, SimilarityFunction.mean_maxsim)
        if late
        else (SimilarityFunction.cosine, SimilarityFunction.dot)
    )
    function = str(getattr(named, "value", named) or functions[0])
    if function in functions:
        return SimilarityFunction(function)
    raise InputError(
        f"pooling: {name} compares embeddings by {function} distance, which is not a sum over pairs of tokens; "
        f"set pooling to one of {', '.join(Pooling)} for the cosine of the pooled vectors"
    )


def _module_of_files(kind: str, place: Path, name: str) -> _Module:
    config = place / (_TRANSFORMER_CONFIG if kind in _TRANSFORMERS else "config.json")
    wanted = (*_TRANSFORMERS, "Pooling", "Dense", "Normalize", "MultiVectorMask")
    settings = _read(config, name) if kind in wanted and config.is_file() else {}
    if not isinstance(settings, Mapping):
        raise InputError(f"pooling: {config.name} of {place.name} of {name} holds no settings; set pooling=")
    return _Module(kind, settings, lambda: _weights(place, name))


def _weights(place: Path, name: str) -> Mapping[str, Tensor]:
    safe, pickled = place / "model.safetensors", place / "pytorch_model.bin"
    try:
        if safe.is_file():
            return safetensors.torch.load_file(safe)
        return dict(torch.load(pickled, map_location="cpu", weights_only=True))
    except (OSError, safetensors.SafetensorError, ValueError, RuntimeError) as error:
        raise InputError(
            f"pooling: the weights of {place.name} of {name} cannot be read: {one_line(error)}; {_WITHOUT_POOLING}"
        ) from error
    except Exception as error:  # a damaged pickle fails in many ways
        raise InputError(f"pooling: {pickled.name} of {place.name} of {name} is damaged; {_WITHOUT_POOLING}") from error


def _knobs(transformer: nn.Module) -> Mapping[str, Any]:
    """The settings of a Transformer module that late interaction depends on."""
    return {name: getattr(transformer, name, None) for name in ("query_expansion", "query_length", "document_length")}


def _config_in_memory(module: nn.Module) -> Mapping[str, Any]:
    get = getattr(module, "get_config_dict", None)
    return {} if get is None else dict(get())


def _read(path: Path, name: str) -> Any:
    try:
        return json_value(path, MIB)
    except InputError as error:
        raise InputError(f"pooling: {path.name} of {name} cannot be read: {error}; set pooling=") from error
