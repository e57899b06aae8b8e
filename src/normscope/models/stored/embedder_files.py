"""Reads how a sentence encoder makes embeddings: from its files, or from a SentenceTransformer in memory."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from normscope.data.examples import AS_GIVEN, TextRule
from normscope.errors import InputError, one_line, printable
from normscope.maths.choices import Pooling, SimilarityFunction
from normscope.maths.embedder import Embedder, LateInteraction
from normscope.models.stored.embedder_modules import Dense, OfFeatures, Truncation, UnitLength
from normscope.untrusted.plain_data import MIB, json_value

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

_TRANSFORMERS = (
    "Transformer",
    *("ALBERT", "BERT", "CamemBERT", "DistilBERT", "MPNet", "RoBERTa", "T5", "XLMRoBERTa", "XLNet"),
)
"""Modules that are the model itself. There was a class for each family before `Transformer`."""

TRANSFORMER_SETTINGS = tuple(
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Where the Transformer module's settings may be, in the order in which sentence-transformers looks for them."""

_TOKENIZER_ARGUMENTS = ("tokenizer_args", "processor_kwargs")
_MODEL_ARGUMENTS = ("model_args", "model_kwargs", "config_args", "config_kwargs")
"""Settings of a Transformer module that hold arguments, in older and newer files."""

_OF_TOKENIZER = frozenset(
    {"add_bos_token", "add_eos_token", "add_prefix_space", "do_lower_case", "model_max_length", "truncation_side"}
)
"""Arguments that change which tokens a text has."""

_OF_LOADING = frozenset(
    {
        *("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token", "trust_remote_code"),
        *("add_pooling_layer", "attn_implementation", "device_map", "dtype", "low_cpu_mem_usage", "torch_dtype"),
        *("backend", "padding_side", "return_dict", "unpad_inputs", "use_cache", "use_fast", "use_safetensors"),
        "use_memory_efficient_attention",
    }
)
"""Arguments that change no number: where files are, and how the model runs."""

_MODULES = "modules.json"
_SETTINGS = "config_sentence_transformers.json"

_OF_BATCHES = frozenset({"padding", "truncation", "logits_to_keep"})
"""Arguments of a tokenizer or a model that change nothing about a text that is short enough."""

_ACTIVATION = "activation_function."
"""How the names of a Dense module's learned activation begin."""

_WITHOUT_POOLING = f"to leave the rest out, set pooling to one of {', '.join(Pooling)}"


class _Module(NamedTuple):
    """One module of a sentence encoder."""

    kind: str
    """The name of its class."""
    config: Mapping[str, Any]
    weights: Callable[[], Mapping[str, Tensor]]
    itself: nn.Module | None = None
    """The module, if it is in memory."""


def embedder_of(folder: Path | None, name: str) -> Embedder:
    """How a sentence-transformers model makes embeddings, according to its own files.

    Args:
        folder: The encoder's folder; None if it has none.
        name: The model's name, for messages.

    Raises:
        InputError: If the files say nothing, or name a module whose output cannot be split into parts.
    """
    if folder is None or not (folder / _MODULES).is_file():
        raise InputError(
            f"pooling: {name} has no modules.json that says how it pools; expected one of {', '.join(Pooling)}"
        )
    modules = [_module_of_files(kind, place, name) for kind, place in _places(folder, name)]
    return _embedder(modules, _settings_of(folder, name), name)


def transformer_folder(folder: Path, name: str) -> Path:
    """The folder of a model's config, weights and tokenizer: for a sentence encoder, that of its first module.

    Raises:
        InputError: If it is a sentence encoder whose first module is no Transformer.
    """
    if not (folder / _MODULES).is_file():
        return folder
    try:
        places = _places(folder, name)
    except InputError:  # told when the pooling is asked for, which may be given instead
        return folder
    if not places:
        return folder
    kind, place = places[0]
    if kind not in _TRANSFORMERS and not (folder / "config.json").is_file():
        raise InputError(
            f"model.name={name}: expected a Transformer as the first module of its modules.json, got {kind}"
        )
    return place if kind in _TRANSFORMERS and place.is_dir() else folder


def _places(folder: Path, name: str) -> list[tuple[str, Path]]:
    """The kind of each module in a sentence encoder's folder, and the module's own folder.

    The kind is the name of its class, with that of its package if it is not one of sentence-transformers.
    """
    try:
        modules = [(str(module["type"]), str(module["path"])) for module in _read(folder / _MODULES, name)]
    except (TypeError, KeyError) as error:
        raise InputError(f"pooling: the modules.json of {name} is not a list of modules; set pooling=") from error
    for _, path in modules:
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise InputError(
                f"pooling: the modules.json of {name}: expected folders inside its own, got {printable(repr(path), 60)}; set "
                "pooling="
            )
    return [
        (kind.rpartition(".")[2] if kind.startswith("sentence_transformers.") else kind, folder / path)
        for kind, path in modules
    ]


def embedder_in_memory(encoder: nn.Module, name: str) -> Embedder:
    """How a SentenceTransformer in memory makes embeddings.

    Raises:
        InputError: If it has a module whose output cannot be split into parts.
    """
    modules = [
        _Module(
            type(module).__name__,
            _knobs(module) if place == 0 else _config_in_memory(module),
            module.state_dict,
            module,
        )
        for place, module in enumerate(encoder.children())
    ]
    return _embedder(modules, _settings_in_memory(encoder), name)


def _settings_of(folder: Path, name: str) -> Mapping[str, Any]:
    path = folder / _SETTINGS
    settings = _read(path, name) if path.is_file() else {}
    return settings if isinstance(settings, Mapping) else {}


def _settings_in_memory(encoder: nn.Module) -> Mapping[str, Any]:
    """What an encoder in memory would save beside its modules."""
    named = ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim")
    return {name: getattr(encoder, name, None) for name in named} | {"model_type": kind_of_encoder(encoder)}


def rule_in_memory(encoder: nn.Module, name: str) -> tuple[TextRule, str]:
    """How an encoder in memory writes texts, see `rule_of`; and all settings of its modules and tokenizer, as one text."""
    modules, settings = [*encoder.children()], _settings_in_memory(encoder)
    knobs, tokenizer = _knobs(modules[0]), getattr(encoder, "tokenizer", None)
    of_tokenizer = [getattr(tokenizer, key, None) for key in ("model_max_length", "truncation_side", "chat_template")]
    return _rule(settings, knobs, name), repr((settings, knobs, [*map(_config_in_memory, modules)], of_tokenizer))


def rule_of(folder: Path | None, name: str) -> TextRule:
    """How a model of sentence-transformers writes texts, according to its own files. Other models read texts as given.

    Args:
        folder: The model's folder; None if it has none.
        name: The model's name, for messages.

    Raises:
        InputError: If the files name something that is not known here.
    """
    if folder is None:
        return AS_GIVEN
    transformer = _transformer_settings(transformer_folder(folder, name), name)[1]
    return _rule(_settings_of(folder, name), transformer, name)


def _rule(settings: Mapping[str, Any], transformer: Mapping[str, Any], name: str) -> TextRule:
    kind, prompts = settings.get("model_type"), settings.get("prompts")
    prompt = prompts.get(str(settings.get("default_prompt_name"))) if isinstance(prompts, Mapping) else None
    prompt = prompt if isinstance(prompt, str) else ""
    if kind != "CrossEncoder":  # late interaction has a prompt for queries and one for documents, and no default
        return AS_GIVEN if kind == "MultiVectorEncoder" else TextRule(prompt)
    given = dict(transformer.get("processing_kwargs") or {})
    chat = dict(given.pop("chat_template", None) or {})
    chat.pop("restore_suffix", None)  # of texts that are cut, which are refused
    of_text = dict(given.pop("text", None) or {})
    unknown = [*(key for key in given if given[key]), *(set(of_text) - _OF_BATCHES), *(_OF_BATCHES & set(chat))]
    if unknown:
        raise InputError(
            f"model.name={name}: the Transformer module sets {printable(unknown[0], 60)} in processing_kwargs, expected one "
            "that reads texts, or writes them in the tokenizer's chat template"
        )
    return TextRule(prompt, chat if "message" in (transformer.get("modality_config") or {}) else None)


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
    path, settings = _transformer_settings(folder, name)
    key, longest = "max_seq_length", settings.get("max_seq_length")
    for arguments in _TOKENIZER_ARGUMENTS:
        if isinstance(settings.get(arguments), Mapping) and "model_max_length" in settings[arguments]:
            key, longest = "model_max_length", settings[arguments]["model_max_length"]
    if longest is None:
        return None
    if isinstance(longest, bool) or not isinstance(longest, int) or longest < 1:
        raise InputError(
            f"model.name={name}: {path.name}: expected {key} to be a number of tokens, got {printable(repr(longest), 60)}"
        )
    return longest


def lowercases(folder: Path, name: str) -> bool:
    """Whether a sentence encoder writes texts in lower case before its tokenizer reads them, according to its files."""
    return bool(_transformer_settings(folder, name)[1].get("do_lower_case"))


def tokenizer_arguments(folder: Path, name: str) -> dict[str, Any]:
    """The arguments with which sentence-transformers loads the tokenizer of a sentence encoder, according to its files.

    Arguments that say where files are, or how batches are padded, are left out.

    Raises:
        InputError: If an argument is not known, also one for the model or its config.
    """
    path, settings = _transformer_settings(folder, name)
    wanted: dict[str, Any] = {}
    for key in (*_TOKENIZER_ARGUMENTS, *_MODEL_ARGUMENTS):
        given = settings.get(key) or {}
        read = _OF_TOKENIZER if key in _TOKENIZER_ARGUMENTS else frozenset[str]()
        unknown = sorted(set(given) - read - _OF_LOADING) if isinstance(given, Mapping) else [given]
        if unknown:
            raise InputError(
                f"model.name={name}: {path.name} sets {printable(str(unknown[0]), 60)} in {key}, which normscope does not "
                "know; load the encoder with sentence-transformers and pass it to normscope.wrap"
            )
        wanted |= {name: given[name] for name in read & set(given)}
    return wanted


def _transformer_settings(folder: Path, name: str) -> tuple[Path, Mapping[str, Any]]:
    """The settings of a Transformer module, and the file that they are in; none if it has no such file."""
    for path in (folder / file for file in TRANSFORMER_SETTINGS):
        settings = _read(path, name) if path.is_file() else {}
        if isinstance(settings, Mapping) and settings:
            return path, settings
    return folder / TRANSFORMER_SETTINGS[0], {}


def _embedder(modules: Sequence[_Module], settings: Mapping[str, Any], name: str) -> Embedder:
    known = {*_TRANSFORMERS, "Pooling", "Normalize", "Dropout", "Dense", "LayerNorm", "MultiVectorMask"}
    unknown = [module.kind for module in modules if module.kind not in known and module.itself is None]
    pools = [module for module in modules if module.kind == "Pooling"]
    late = settings.get("model_type") == "MultiVectorEncoder"
    if unknown or len(pools) != (not late):
        fault = f"a {unknown[0]} module" if unknown else f"{len(pools)} Pooling modules"
        raise InputError(
            f"pooling: {name} has {fault}, expected a Transformer, one Pooling, then any of Dense, LayerNorm and Normalize; "
            f"{_WITHOUT_POOLING}"
        )
    _check_reads_text(modules[0].config, name)
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


def _check_reads_text(transformer: Mapping[str, Any], name: str) -> None:
    """Check that a Transformer module reads a text as it is, and returns its last hidden vectors."""
    modalities = transformer.get("modality_config") or {}
    text = modalities.get("text", _PLAIN) if isinstance(modalities, Mapping) else modalities
    of_text = (transformer.get("processing_kwargs") or {}).get("text") or {}
    others = {key for key, value in (transformer.get("processing_kwargs") or {}).items() if value and key != "text"}
    faults = {
        "writes texts in the tokenizer's chat template (message in modality_config)": "message" in modalities,
        f"takes {text} for what the model makes of a text": text != _PLAIN,
        f"returns {transformer.get('module_output_name')}": transformer.get("module_output_name")
        not in (None, "token_embeddings"),
        f"has the task {transformer.get('transformer_task')}": transformer.get("transformer_task")
        not in (None, "feature-extraction"),
        "sets processing_kwargs": others or set(of_text) - {"padding"},
    }
    for fault, found in faults.items():
        if found:
            raise InputError(
                f"pooling: the Transformer module of {name} {fault}, expected one that reads the text itself and returns its "
                f"last hidden vectors; {_WITHOUT_POOLING}"
            )


_PLAIN = {"method": "forward", "method_output_name": "last_hidden_state"}


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


def _parts(module: _Module, name: str, place: str) -> Iterator[nn.Module]:
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
        case "Dropout" | "MultiVectorMask":
            return
        case _ if module.itself is not None:
            yield OfFeatures(module.itself, place)
        case "LayerNorm":
            weights = _tensors(module, name, {"norm.weight", "norm.bias"})
            norm = nn.LayerNorm(len(weights["norm.weight"]))
            norm.load_state_dict({key.removeprefix("norm."): weight for key, weight in weights.items()})
            yield norm
        case "Dense":
            yield _dense(module, name)


def _dense(module: _Module, name: str) -> Dense:
    """A Dense module as its files describe it.

    Raises:
        InputError: If weights are missing or have no use, or the activation is not one of torch's.
    """
    learned = {key for key in module.weights() if key.startswith(_ACTIVATION)}
    weights = _tensors(module, name, {"linear.weight"}, {"linear.bias", "residual.weight"} | learned)
    residual: nn.Module | None = nn.Identity() if module.config.get("use_residual") else None
    if "residual.weight" in weights:
        residual = _linear(weights["residual.weight"], None)
    activation = _activation(
        str(module.config.get("activation_function", "torch.nn.modules.activation.Tanh")),
        {key.removeprefix(_ACTIVATION): weights[key] for key in learned},
        name,
    )
    return Dense(_linear(weights["linear.weight"], weights.get("linear.bias")), activation, residual)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    made, given = weight.shape
    linear = nn.Linear(given, made, bias=bias is not None)
    linear.load_state_dict({"weight": weight} if bias is None else {"weight": weight, "bias": bias})
    return linear


def _activation(named: str, learned: Mapping[str, Tensor], name: str) -> nn.Module:
    """A new activation of the class that the files of a Dense module name.

    Raises:
        InputError: If the class is not torch's, or cannot be created from what the files say.
    """
    kind = getattr(nn, named.rpartition(".")[2], None) if named.startswith("torch.nn.") else None
    try:
        activation: nn.Module = kind()  # type: ignore[misc]
        if "weight" in learned and isinstance(activation, nn.PReLU):
            activation = nn.PReLU(len(learned["weight"]))
        activation.load_state_dict(learned)
    except Exception as error:  # no class, or one that cannot be created this way
        raise InputError(
            f"pooling: {name} has a Dense module with the activation {printable(named, 80)}, expected an activation of "
            f"torch.nn that its files describe; {_WITHOUT_POOLING}"
        ) from error
    return activation


def _tensors(module: _Module, name: str, needed: Set[str], optional: Set[str] = frozenset()) -> Mapping[str, Tensor]:
    """The weights of a module."""
    weights = module.weights()
    missing, unknown = sorted(needed - set(weights)), sorted(set(weights) - needed - optional)
    if missing or unknown:
        raise InputError(
            f"pooling: the weights of the {module.kind} module of {name} "
            f"{f'lack {missing[0]}' if missing else f'have {printable(unknown[0], 60)}, which it does not use'}; "
            f"{_WITHOUT_POOLING}"
        )
    return weights


def _pooling(config: Mapping[str, Any], name: str) -> Pooling:
    named = config.get("pooling_mode")
    if isinstance(named, str):
        modes = [named]
    elif isinstance(named, Sequence):
        modes = [str(mode) for mode in named]
    else:
        prefix = "pooling_mode_"
        modes = [key.removeprefix(prefix) for key, on in config.items() if key.startswith(prefix) and on]
        modes = modes or ["mean"]  # as in sentence-transformers
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
    if kind in _TRANSFORMERS:
        return _Module(kind, _transformer_settings(place, name)[1], dict)
    config = place / "config.json"
    wanted = ("Pooling", "Dense", "Normalize", "MultiVectorMask")
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
    """The settings of a Transformer module in memory that embeddings depend on."""
    of_late = ("query_expansion", "query_length", "document_length")
    of_text = ("modality_config", "module_output_name", "processing_kwargs", "transformer_task")
    return {name: getattr(transformer, name, None) for name in (*of_late, *of_text)}


def _config_in_memory(module: nn.Module) -> Mapping[str, Any]:
    get = getattr(module, "get_config_dict", None)
    return {} if get is None else dict(get())


def _read(path: Path, name: str) -> Any:
    try:
        return json_value(path, MIB)
    except InputError as error:
        raise InputError(f"pooling: {path.name} of {name} cannot be read: {error}; set pooling=") from error
