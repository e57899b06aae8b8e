"""Names to models: a preset, a Hub name or a local folder becomes weights, tokenizer and layout.

Local files are looked for first, so that nothing waits for a network that is not there. Loading fails closed: a tensor that
the checkpoint lacks, a checksum that differs, a weight that is not a number, an unknown family is an error, never a guess.
"""

import dataclasses
import hashlib
import logging
import re
import warnings
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModel, AutoTokenizer, PretrainedConfig
from transformers.modeling_utils import PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from normscope.config.schema import DeviceOptions, ModelOptions
from normscope.errors import InputError, one_line
from normscope.models.adapters import ADAPTER_WEIGHTS, adapted_model, adapter_folder, merged
from normscope.models.architecture import configured
from normscope.models.families import layout_of
from normscope.models.files import Source, locate, weights_digest
from normscope.models.layout import BlockLayout, embeddings_of
from normscope.models.loaded import LoadedModel
from normscope.models.mlm_head import masked_language_head
from normscope.models.model_info import ModelInfo
from normscope.models.tokenizer_knowledge import refuse_ignorant
from normscope.models.unsupported import refuse_other_family, refuse_unsupported
from normscope.models.unused_weights import refuse_other_numbers, refuse_unused

DTYPES: dict[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

# Tensors of a base model that no block depends on: a masked-language-model checkpoint has none of them.
_UNOBSERVED_PARTS = ("pooler.",)

log = logging.getLogger("normscope")


def load(options: ModelOptions, device: DeviceOptions) -> LoadedModel:
    """Load the model that a config describes.

    Raises:
        InputError: If it cannot be found or must not be trusted; the message names the config key.
    """
    return open_model(options).load(device)


def open_model(options: ModelOptions) -> "OpenedModel":
    """Find a model and read its config, but not its weights.

    Raises:
        InputError: If it cannot be found, or its family is not supported; the message names the config key.
    """
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if options.trust_remote_code:
        log.warning("model.trust_remote_code=true: code from %s will be executed", options.name)
    if options.allow_pickle:
        log.warning("model.allow_pickle=true: weights that are not safetensors may be read from %s", options.name)
    adapter = adapter_folder(options.name)
    if options.architecture:
        source, config = None, configured(options.architecture)
    else:
        name = options.name if adapter is None else adapted_model(adapter)
        source = locate(name, options, weights=not options.random_init)
        config = _pretrained_config(source, options)
    config.use_cache = False  # nothing is generated, and a cache would keep every layer's keys
    config.chunk_size_feed_forward = 0  # pieces of a feed-forward network give the same numbers, but need even lengths
    layout = layout_of(config.model_type, None if options.stack is None else options.stack.value)
    refuse_unsupported(config)
    return OpenedModel(options, config, layout, source, adapter)


@dataclasses.dataclass(frozen=True)
class OpenedModel:
    """A model whose config has been read."""

    options: ModelOptions
    config: PretrainedConfig
    layout: BlockLayout
    source: Source | None
    """Its files; None if the config itself was written by the user."""
    adapter: Path | None
    """A PEFT adapter to merge into it."""

    @property
    def info(self) -> ModelInfo:
        """Its shape."""
        return ModelInfo.of(self.options.name, self.config, self.layout)

    def load(self, device: DeviceOptions) -> LoadedModel:
        """Load weights and tokenizer.

        Raises:
            InputError: If they cannot be read, do not fit together, or must not be trusted; the message names the config key.
        """
        target, name = torch_device(device.name), self.options.name
        model = self._model(DTYPES[device.dtype])
        _refuse_non_finite(model, name)
        tokenizer = self._tokenizer(model)
        lengths = (self.layout.longest_sequence(model), tokenizer.model_max_length)
        # Tokenizers that know no limit say so by an astronomical number.
        known = [length for length in lengths if length is not None and length < 10**9]
        model.to(target)  # type: ignore[arg-type]
        return LoadedModel(
            model=model.eval().requires_grad_(False),
            tokenizer=tokenizer,
            layout=self.layout,
            name=name,
            revision=None if self.source is None else self.source.revision,
            weights_sha256=None if self._random or self.source is None else _digest(self.source, self.adapter),
            max_length=min(known, default=None),
            load_head=lambda: self._head(model),
        )

    @property
    def _random(self) -> bool:
        return self.options.random_init or self.source is None

    def _model(self, dtype: torch.dtype) -> PreTrainedModel:
        if self._random:
            torch.manual_seed(self.options.seed)
            try:
                model: PreTrainedModel = AutoModel.from_config(self.config, dtype=dtype)
            except Exception as error:  # every architecture has its own way to fail on a config that makes no sense
                raise InputError(
                    f"model.name={self.options.name}: it cannot be built from its config: {one_line(error)}"
                ) from error
        else:
            assert self.source is not None
            _check_digest(self.source, self.options)
            model = _pretrained(self.source, self.config, self.options, dtype)
        if self.adapter is not None:
            model = merged(model, self.adapter)
        return model.get_encoder() if self.layout.stack == "encoder" else model

    def _tokenizer(self, model: PreTrainedModel) -> PreTrainedTokenizerBase:
        options, rows = self.options, embeddings_of(model).num_embeddings
        tokenizer = _tokenizer(self.source, options)
        if len(tokenizer) > rows:
            raise InputError(
                f"the tokenizer of {options.tokenizer or options.name!r} knows {len(tokenizer)} tokens, the model only "
                f"{rows}; set model.tokenizer to the one that the model was trained with"
            )
        refuse_ignorant(tokenizer, options.tokenizer or options.name, None if self._random else rows)
        if self.layout.reads_target:
            _refuse_unreadable_targets(model, tokenizer, options)
        _refuse_senseless(model, self.layout, tokenizer, options.name)
        return tokenizer

    def _head(self, model: PreTrainedModel) -> PreTrainedModel | None:
        if self._random or self.source is None or self.adapter is not None:
            return None
        return _head(self.source, self.config, model, self.options)


def _refuse_senseless(
    model: PreTrainedModel, layout: BlockLayout, tokenizer: PreTrainedTokenizerBase, name: str
) -> None:
    """Refuse what the libraries let through: no layers, padding outside the vocabulary, a limit that is no length."""
    if not len(layout.bind(model)):
        raise InputError(f"model.name={name}: its config gives it no layers")
    padding, vocabulary = model.config.pad_token_id, embeddings_of(model).num_embeddings
    if padding is not None and not 0 <= padding < vocabulary:
        raise InputError(
            f"model.name={name}: pad_token_id={padding} in its config: expected one of its {vocabulary} tokens"
        )
    limit = tokenizer.model_max_length
    if not isinstance(limit, int | float) or not limit >= 1:
        raise InputError(
            f"model.name={name}: model_max_length={limit!r} in its tokenizer_config.json: expected a length"
        )


def torch_device(name: str) -> torch.device:
    """The device of a config name; `auto` takes CUDA, then MPS, then the CPU.

    Raises:
        InputError: If this machine has no such device.
    """
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(kind for kind, there in available.items() if there))
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", name):
        raise InputError(f"device.name={name}: expected auto, cpu, cuda, cuda:<number> or mps")
    kind, _, number = name.partition(":")
    if not available[kind] or (number and int(number) >= torch.cuda.device_count()):
        raise InputError(f"device.name={name}: this machine has no such device; set device=auto or device=cpu")
    return torch.device(name)


def _pretrained_config(source: Source, options: ModelOptions) -> PretrainedConfig:
    try:
        config = AutoConfig.from_pretrained(source.folder, trust_remote_code=options.trust_remote_code)
    except Exception as error:  # a file of somebody else's, read by code of somebody else's
        raise InputError(f"model.name={options.name}: its config.json cannot be used: {one_line(error)}") from error
    assert isinstance(config, PretrainedConfig)
    refuse_other_family(config, options.name)
    return config


def _digest(source: Source, adapter: Path | None) -> str:
    digest = weights_digest(source.folder)
    if adapter is None:
        return digest
    return f"{digest} + {hashlib.sha256((adapter / ADAPTER_WEIGHTS).read_bytes()).hexdigest()}"


def _check_digest(source: Source, options: ModelOptions) -> None:
    expected = options.sha256 or (options.pin.sha256 if source.pinned else None)
    if expected is None:
        return
    digest = weights_digest(source.folder)
    if digest != expected.lower():
        raise InputError(
            f"the weights of {options.name} in {source.folder} have SHA-256 {digest}, expected {expected}; they are not "
            "what was asked for: reinstall them or change model.sha256"
        )


def _pretrained(source: Source, config: PretrainedConfig, options: ModelOptions, dtype: torch.dtype) -> PreTrainedModel:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Casting complex values")  # refused below, by name
            model, loading = AutoModel.from_pretrained(
                source.folder,
                config=config,
                dtype=dtype,
                use_safetensors=None if options.allow_pickle else True,
                trust_remote_code=options.trust_remote_code,
                output_loading_info=True,
            )
    except Exception as error:  # a truncated or corrupt file surfaces as any of a dozen types
        raise InputError(f"model.name={options.name}: its weights cannot be read: {one_line(error)}") from error
    missing = sorted(key for key in loading["missing_keys"] if not key.startswith(_UNOBSERVED_PARTS))
    if missing:
        computed = _computed(config)
        missing = [key for key in missing if key not in computed]
    if missing:
        raise InputError(
            f"model.name={options.name}: its weights lack {len(missing)} of the model's tensors, {missing[0]} first; "
            "they would be random. Is it a checkpoint of this family?"
        )
    refuse_unused(model, loading["unexpected_keys"], options.name)
    refuse_other_numbers(model, source.folder, options.name)
    return model


def _computed(config: PretrainedConfig) -> set[str]:
    """Tensors that an architecture never trains (Marian's sinusoids): it computes them, and checkpoints leave them out."""
    with torch.device("meta"):
        untouched = AutoModel.from_config(config)
    return {key for key, parameter in untouched.named_parameters() if not parameter.requires_grad}


def _head(
    source: Source, config: PretrainedConfig, model: PreTrainedModel, options: ModelOptions
) -> PreTrainedModel | None:
    return masked_language_head(
        source.folder,
        config,
        model,
        allow_pickle=options.allow_pickle,
        trust_remote_code=options.trust_remote_code,
    )


def _refuse_non_finite(model: PreTrainedModel, name: str) -> None:
    for key, parameter in model.named_parameters():
        # One pass without a temporary as large as the parameter: a sum is finite only if every part is.
        if not torch.isfinite(parameter.sum(dtype=torch.float64)):
            raise InputError(f"model.name={name}: the weight {key} holds NaN or infinity; use another checkpoint")


def _refuse_unreadable_targets(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, options: ModelOptions
) -> None:
    """Refuse a decoder that has no embedding for what it would be given."""
    known = embeddings_of(model.get_decoder()).num_embeddings
    if getattr(tokenizer, "separate_vocabs", False):
        raise InputError(
            f"model.stack={options.stack}: {options.name} writes its target with a vocabulary of its own, which only "
            "model.stack=encoder can do without"
        )
    start = model.config.decoder_start_token_id
    if len(tokenizer) > known or (start is not None and not 0 <= start < known):
        what = f"a decoder_start_token_id of {start}" if len(tokenizer) <= known else f"a tokenizer of {len(tokenizer)}"
        raise InputError(
            f"model.stack={options.stack}: the decoder of {options.name} has embeddings for {known} tokens, but there is "
            f"{what}; set model.tokenizer to the one that it was trained with, or model.stack=encoder"
        )


def _tokenizer(source: Source | None, options: ModelOptions) -> PreTrainedTokenizerBase:
    name = options.tokenizer
    if name is None and source is None:
        raise InputError(
            "model.architecture comes without a tokenizer; set model.tokenizer to a model's name or folder"
        )
    folder = locate(name, options, weights=False).folder if name is not None else source.folder  # type: ignore[union-attr]
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=options.trust_remote_code)
    except Exception as error:  # missing files and missing optional packages surface as many types
        raise InputError(
            f"model.name={options.name}: no tokenizer could be made from {folder}: {one_line(error)}. Set model.tokenizer "
            "to the name or folder of one"
        ) from error
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    for attribute, key, language in (
        ("src_lang", "source_language", options.source_language),
        ("tgt_lang", "target_language", options.target_language),
    ):
        if language is not None:
            _set_language(tokenizer, attribute, f"model.{key}={language}", language)
    return tokenizer


def _set_language(tokenizer: PreTrainedTokenizerBase, attribute: str, given: str, language: str) -> None:
    if not hasattr(tokenizer, attribute):
        raise InputError(f"{given}: this model's tokenizer knows no languages; leave it out")
    try:
        setattr(tokenizer, attribute, language)
        code = tokenizer.convert_tokens_to_ids(getattr(tokenizer, attribute))
    except (KeyError, ValueError) as error:
        raise InputError(f"{given}: the tokenizer has no such language: {one_line(error)}") from error
    # M2M100 keeps its codes by another name than the languages'.
    known = getattr(tokenizer, "lang_code_to_token", {})
    if code == tokenizer.unk_token_id and language not in known:
        raise InputError(
            f"{given}: the tokenizer has no such language; expected a code as in its vocabulary, eng_Latn or en"
        )
