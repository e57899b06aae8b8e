"""Loads models: from a preset, a Hub name or a local folder to weights, tokenizer and facts.

Local files come first, so a cached model loads without a network. Loading never guesses: a missing tensor, a wrong checksum, a
NaN or attention that cannot be measured is an error.
"""

import contextlib
import dataclasses
import functools
import logging
import re
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModel, GenerationConfig, PretrainedConfig
from transformers.modeling_utils import PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from normscope.errors import InputError, one_line
from normscope.models.facts import ModelFacts, StackName
from normscope.models.load.adapters import Adapter, base_model
from normscope.models.load.loaded import Drawn, LoadedModel
from normscope.models.load.task_heads import Head, has_head, head_class, task_head
from normscope.models.load.tokenizer_loading import check_tokenizer, load_tokenizer, longest_input, read_tokenizer
from normscope.models.load.towers import check_tower, has_towers, text_part, two_towers
from normscope.models.load.vector_loading import (
    facts_of_inputs,
    image_text_model,
    processor_in,
    read_processor,
    read_text_processor,
    speech_model,
    tower_of,
    vector_model,
)
from normscope.models.observe.reading import facts_of_config, facts_without_numbers, observed_stack, refusal_explained
from normscope.models.options import DeviceOptions, ModelOptions, Tower
from normscope.models.probes import embeddings_of, padding_of
from normscope.models.stored.config_checks import (
    bounded_modules,
    check_config_file,
    check_family,
    check_not_quantised,
    check_supported,
    see_later_tokens,
    silent_warnings,
)
from normscope.models.stored.decoder_start import decoder_shift
from normscope.models.stored.embedder_files import longest_text, rule_of
from normscope.models.stored.files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, Source, files_digest, locate
from normscope.models.stored.offloading import accelerate_silenced, keep_on, memory_by_device, spare_memory
from normscope.models.stored.random_state import drawing
from normscope.models.stored.stored_weights import execution_device, is_offloaded
from normscope.models.stored.text_tower import base_of, retriever_class, text_config, text_tower
from normscope.models.stored.weight_checks import (
    UNOBSERVED_PARTS,
    check_all_used,
    check_dtypes,
    check_finite,
    check_none_missing,
    check_pickles,
    check_shapes,
    check_size,
)

DTYPES: dict[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

log = logging.getLogger("normscope")


def load(options: ModelOptions, device: DeviceOptions) -> LoadedModel:
    """Load the model that a config describes.

    Raises:
        InputError: If it cannot be found, is not supported or must not be trusted; the message names the config key.
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
        log.warning("trust_remote_code: code that comes with %s may be executed", options.name)
    if options.allow_pickle:
        log.warning("allow_pickle: pickled weights, which can run code, may be read from %s", options.name)
    adapter, source = None, locate(options.name, options, weights=not options.random_init)
    if source.is_adapter:
        adapter, source = source, _base_of(source, options)
    config = _pretrained_config(source, options)
    both = has_towers(config)
    check_tower(None if both else options.tower, config.model_type)
    tower, processor = _tower(source, options) if both else (None, None)
    stack: StackName | None = None if options.stack is None else options.stack.value
    if tower is not None:
        observed_stack(config, stack)  # which has none
    text = text_config(config)
    if options.random_init:
        config = text if tower is None else config
        vars(config).pop("quantization_config", None)  # random weights are not quantised
    for each in (config, text):
        check_not_quantised(each)
        each.use_cache = False  # a cache would keep the keys of every layer; what generates asks for one
        each.return_dict = True  # outputs are read by name
        each._attn_implementation = None  # ours runs, so what the model was trained with need not be installed
        each.chunk_size_feed_forward = 0  # chunks give the same numbers, but only for lengths that they divide
    plain = options.random_init or adapter is not None
    text_processor = None if plain else read_text_processor(config, source.folder, options.name)
    if text_processor is not None:
        see_later_tokens(text)
    check_supported(text)
    if not options.random_init:
        check_pickles(source.folder, options.name)
        check_size(config, source.folder, options.name)
    if tower is None:
        processor = read_processor(text, source.folder, options.name)
    if processor is not None:
        facts = facts_of_inputs(text if tower is None else config, processor, options.name, stack)
        return OpenedModel(options, config, facts, source, adapter, processor, tower)
    if tower is not None:
        return OpenedModel(options, config, _facts_of_texts(config, options.name), source, adapter, tower=tower)
    facts = facts_of_config(text, stack)
    return OpenedModel(options, config, facts, source, adapter, text_processor=text_processor)


def _facts_of_texts(config: PretrainedConfig, name: str) -> ModelFacts:
    """What the text tower is of a model that embeds images and texts."""
    with refusal_explained(name):
        return facts_without_numbers(config, text_part)


def _tower(source: Source, options: ModelOptions) -> tuple[Tower, Any]:
    """The tower that the options name, by default that of images if the files have a processor of these; and the processor."""
    if options.tower is not Tower.text:
        try:
            return Tower.image, processor_in(source.folder, options.name, images=True)
        except InputError:
            if options.tower is Tower.image:
                raise
    return Tower.text, None


@dataclasses.dataclass(frozen=True)
class OpenedModel:
    """A model whose config has been read."""

    options: ModelOptions
    config: PretrainedConfig
    facts: ModelFacts
    source: Source
    """Its files."""
    adapter: Source | None
    """The files of a PEFT adapter to merge into it; None without one."""
    processor: Any = None
    """Makes its inputs, if it reads images or audio; None for a model of texts."""
    tower: Tower | None = None
    """Which tower is observed of a model that embeds images and texts; None for any other model."""
    text_processor: Any = None
    """Makes its inputs of texts with images, if it reads these."""

    def load(
        self,
        device: DeviceOptions,
        *,
        devices: range = range(0),
        device_map: object = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
    ) -> LoadedModel:
        """Load weights and tokenizer.

        Args:
            device: Where the model runs, and in which dtype.
            devices: With `device.map`, GPUs of this process; the model runs on the first, and the others hold weights.
            device_map: A device map for transformers, in place of the device's name.
            tokenizer: A tokenizer that is loaded already, in place of the one that the options name.

        Raises:
            InputError: If they cannot be read, do not fit together, or must not be trusted; the message names the config key.
        """
        name = self.options.name
        if device.map is not None:
            self._check_spreadable()
            spread = {"device_map": "auto"} | _spread(device)
            with accelerate_silenced():
                model, whole = self._model(DTYPES[device.dtype], spread)
            weakref.finalize(model, shutil.rmtree, spread["offload_folder"], ignore_errors=True)
            keep_on(model, spare_memory(devices, device.max_memory))
            target = execution_device(model)
        else:
            placing = {} if device_map is None else {"device_map": device_map}
            model, whole = self._model(DTYPES[device.dtype], placing)
            target = torch_device(device.name) if device_map is None else _only_device(model, device_map)
        check_finite(model, name)
        if self.processor is not None and self.facts.is_cross_attention:
            tokenizer = tokenizer or read_tokenizer(self.source, self.options)
            settings = _generation(self.source.folder)
            return self._with_origin(speech_model(_on(target, model), self.processor, tokenizer, name, settings))
        if self.tower is not None:
            return self._either_tower(_on(target, model), self.tower, tokenizer)
        if self.processor is not None:
            tower = _on(target, tower_of(model))
            load_head = functools.partial(self._head, model=tower, whole=None)
            return self._with_origin(vector_model(tower, self.processor, name, load_head))
        if self.text_processor is not None and whole is not None and device.map is None:
            check_shape(model, self.facts, name)
            tokenizer = self._tokenizer(tokenizer, model, self.facts)
            run_experts_in_float64(_on(target, whole))
            return self._with_origin(image_text_model(whole, self.text_processor, name, tokenizer))
        return self._of_texts(model, self.facts, whole, target, tokenizer)

    def _either_tower(
        self, whole: PreTrainedModel, tower: Tower, tokenizer: PreTrainedTokenizerBase | None
    ) -> LoadedModel:
        """One tower of a model that embeds images and texts, and the other when it is needed."""

        def image() -> LoadedModel:
            processor = self.processor or processor_in(self.source.folder, self.options.name, images=True)
            return self._with_origin(vector_model(tower_of(whole), processor, self.options.name, lambda _head: None))

        def text() -> LoadedModel:
            facts = _facts_of_texts(self.config, self.options.name)
            return self._of_texts(text_part(whole), facts, None, execution_device(whole), tokenizer)

        return two_towers(whole, tower, {Tower.image: image, Tower.text: text})

    def _of_texts(
        self,
        model: PreTrainedModel,
        facts: ModelFacts,
        whole: PreTrainedModel | None,
        target: torch.device,
        tokenizer: PreTrainedTokenizerBase | None,
    ) -> LoadedModel:
        """A model of texts with its tokenizer."""
        name = self.options.name
        check_shape(model, facts, name)
        tokenizer = self._tokenizer(tokenizer, model, facts)
        run_experts_in_float64(model)
        if not is_offloaded(model):
            model.to(target)
        return self._with_origin(
            LoadedModel(
                model=model.eval().requires_grad_(False),
                tokenizer=tokenizer,
                facts=facts,
                name=name,
                revision=None,
                max_length=longest_input(model, facts, tokenizer, self._longest_text),
                load_head=lambda head: self._head(head, model, whole),
                rule=rule_of(None if self.options.random_init else self._named.whole, name),
            )
        )

    def _with_origin(self, loaded: LoadedModel) -> LoadedModel:
        """A model with where its weights come from."""
        loaded = dataclasses.replace(loaded, revision=self._named.revision)
        if self.options.random_init:
            return dataclasses.replace(loaded, drawn=Drawn(self.options.seed, loaded.weights()["model"]))
        digest = None if self.adapter else files_digest(self.source.folder)
        return dataclasses.replace(loaded, folder=self._named.whole, files_sha256=digest)

    @property
    def _named(self) -> Source:
        """The files that the options name: those of the adapter if it is one."""
        return self.source if self.adapter is None else self.adapter

    def _tokenizer(
        self, given: PreTrainedTokenizerBase | None, model: PreTrainedModel, facts: ModelFacts
    ) -> PreTrainedTokenizerBase:
        """The tokenizer that was given, if it fits the model; otherwise the adapter's own or that of the model."""
        if given is not None:
            check_tokenizer(given, self.options.name, model, facts, random_weights=self.options.random_init)
            return given
        adapter = self.adapter
        own = adapter is not None and (adapter.folder / "tokenizer_config.json").is_file()
        source = adapter if own else self.source
        return load_tokenizer(self.options, source, model, facts, random_weights=self.options.random_init)

    @property
    def _longest_text(self) -> int | None:
        """Where a sentence encoder truncates texts; None for other models."""
        return longest_text(self._named.folder, self.options.name)

    def _check_spreadable(self) -> None:
        """Check that weights of the model can be elsewhere while their module does not run."""
        if self.options.random_init or self.adapter is not None:
            what = "random weights" if self.options.random_init else "an adapter"
            raise InputError(f"device.map=auto: expected a checkpoint, got {what}; leave out device.map")

    def _model(
        self, dtype: torch.dtype, placing: Mapping[str, object]
    ) -> tuple[PreTrainedModel, PreTrainedModel | None]:
        """The observed model and, if it is read with a head, the model with its head."""
        head = None
        if self.options.random_init:
            try:
                with drawing(self.options.seed), bounded_modules():
                    model: PreTrainedModel = AutoModel.from_config(self.config, dtype=dtype)
            except Exception as error:  # each architecture fails on an invalid config in its own way
                raise InputError(
                    f"model.name={self.options.name}: cannot build the model from its config: {one_line(error)}"
                ) from error
        elif self.adapter is not None:
            model, complete = self._adapted(self.adapter, dtype, placing)
            head = text_tower(model) if complete else None
        else:
            _check_digest(self.source, self.options)
            kind: Any = AutoModel
            if text_config(self.config) is not self.config:
                # The names of a tower's weights may depend on the head.
                kind = head_class(Head.NEXT_TOKEN, self.config) or retriever_class(self.config) or kind
            whole = _pretrained(self.source, self.config, self.options, dtype, placing, kind)
            head = None if self.text_processor is None else whole
            model = whole if kind is AutoModel else base_of(whole)
        if self.facts.stack == "encoder":
            return model.get_encoder(), None
        if self.tower is not None:
            return model, None
        tower = text_tower(model)
        base = model if tower is model and self.adapter is None else base_of(tower)
        return base, head

    def _adapted(
        self, files: Source, dtype: torch.dtype, placing: Mapping[str, object]
    ) -> tuple[PreTrainedModel, bool]:
        """The model that an adapter was trained on, with its head and the adapter merged; and whether all of it was trained."""
        _check_digest(self.source, self.options)
        adapter = Adapter.read(files.folder, self.options.name)
        kind = adapter.kind_of_model(self.config)
        config = adapter.config_of_model(kind, self.config)
        whole, loading = _read_weights(self.source, config, self.options, dtype, placing, kind)
        base = base_of(whole)
        prefix = "" if base is whole else f"{whole.base_model_prefix}."
        lacking = [key for key in loading["missing_keys"] if not adapter.saves(key)]
        check_shapes([each for each in loading["mismatched_keys"] if not adapter.saves(each[0])], self.options.name)
        missing = [key.removeprefix(prefix) for key in lacking if key.startswith(prefix)]
        check_none_missing(config, missing, loading["unexpected_keys"], self.options.name)
        check_all_used(base, loading["unexpected_keys"], self.options.name)
        check_dtypes(base, self.source.folder, self.options.name)
        untrained = (*UNOBSERVED_PARTS, *(f"{prefix}{part}" for part in UNOBSERVED_PARTS))
        complete = all(key.startswith(prefix) and not key.startswith(untrained) for key in lacking)
        return adapter.merged_into(whole), complete

    def _head(self, head: Head, model: PreTrainedModel, whole: PreTrainedModel | None) -> PreTrainedModel | None:
        if self.options.random_init:
            return None
        if self.adapter is not None:
            if (
                whole is None
                or not has_head(whole, head)
                or whole.config.is_encoder_decoder != (head is Head.TRANSLATION)
            ):
                return None
            check_finite(whole, self.options.name)
            return _on(model.device, whole)
        return task_head(
            head,
            self.source.folder,
            self.config,
            model,
            name=self.options.name,
            allow_pickle=self.options.allow_pickle,
        )


def torch_device(name: str) -> torch.device:
    """The device with this name; `auto` prefers CUDA, then MPS, then the CPU.

    Raises:
        InputError: If this machine has no such device.
    """
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(kind for kind, exists in available.items() if exists))
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", name):
        raise InputError(f"device.name={name}: expected auto, cpu, cuda, cuda:<number> or mps")
    kind, _, number = name.partition(":")
    if not available[kind] or (number and int(number) >= torch.cuda.device_count()):
        raise InputError(f"device.name={name}: this machine has no such device; set device=auto or device=cpu")
    return torch.device(name)


def _on(device: torch.device, model: PreTrainedModel) -> PreTrainedModel:
    """A model on a device, to be observed."""
    return model.to(device).eval().requires_grad_(False)


def run_experts_in_float64(model: PreTrainedModel) -> None:
    """Let a mixture of experts in float64 run one expert at a time: torch's grouped products take no float64."""
    if model.dtype is torch.float64:
        model.set_experts_implementation("eager")


def check_shape(model: PreTrainedModel, facts: ModelFacts, name: str) -> None:
    """Check what transformers does not: that the model has an embedding for padding, and what its decoder reads first.

    Raises:
        InputError: If it lacks one of them.
    """
    padding, embeddings = padding_of(model), embeddings_of(model).num_embeddings
    if padding is not None and not 0 <= padding < embeddings:
        raise InputError(
            f"model.name={name}: expected pad_token_id in its config to be from 0 to {embeddings - 1}, got {padding}"
        )
    if facts.reads_target and decoder_shift(model.config) is None:
        raise InputError(
            f"model.stack={facts.stack}: expected decoder_start_token_id in the model's config, the token that its decoder "
            "reads first, got none; set it in the config"
        )


def _pretrained_config(source: Source, options: ModelOptions) -> PretrainedConfig:
    check_config_file(source.folder, options.name)
    try:
        with silent_warnings():
            config = AutoConfig.from_pretrained(source.folder, trust_remote_code=options.trust_remote_code)
    except Exception as error:  # a foreign file, parsed by a library: it may raise anything
        raise InputError(f"model.name={options.name}: its config.json cannot be used: {one_line(error)}") from error
    assert isinstance(config, PretrainedConfig)
    _read_start(config, source.folder)
    text = config.get_text_config()
    if not isinstance(text, PretrainedConfig):
        raise InputError(
            f"model.name={options.name}: its config.json cannot be used: expected a config of a known model in text_config, "
            f"got {type(text).__name__}"
        )
    check_family(config, options.name)
    return config


def _read_start(config: PretrainedConfig, folder: Path) -> None:
    """Take the decoder's start token from where transformers 5 saves it, beside the config."""
    if not config.is_encoder_decoder or getattr(config, "decoder_start_token_id", None) is not None:
        return
    start = getattr(_generation(folder), "decoder_start_token_id", None)
    if isinstance(start, int):
        config.decoder_start_token_id = start


def _generation(folder: Path) -> GenerationConfig | None:
    """How a model generates, by its files; None if they do not say, or are damaged."""
    if not (folder / "generation_config.json").is_file():
        return None
    with contextlib.suppress(OSError, ValueError):
        return GenerationConfig.from_pretrained(folder)
    return None


def _base_of(adapter: Source, options: ModelOptions) -> Source:
    """The files of the model that an adapter was trained on.

    Raises:
        InputError: If it cannot be found, or is an adapter itself.
    """
    name, revision = base_model(adapter.folder, options.name)
    if revision is None and adapter.revision is None:
        revision = options.revision
    source = locate(name, dataclasses.replace(options, revision=revision), weights=not options.random_init)
    if source.is_adapter:
        raise InputError(
            f"model.name={options.name}: expected the adapter of a whole model, got base_model_name_or_path={name} in its "
            f"{ADAPTER_CONFIG}, which is an adapter itself; merge that one into its model first"
        )
    return source


def _check_digest(source: Source, options: ModelOptions) -> None:
    expected = options.sha256 or (options.pin.sha256 if source.pinned else None)
    if expected is None:
        return
    digest = files_digest(source.folder)
    if digest != expected.lower():
        raise InputError(
            f"the weights of {options.name} in {source.folder} have SHA-256 {digest}, expected {expected}; "
            "reinstall the model or change model.sha256"
        )


def _only_device(model: PreTrainedModel, device_map: object) -> torch.device:
    """The device that a device map has put a model on.

    Raises:
        InputError: If there are several, or weights were offloaded: what analyses add up would be on several devices.
    """
    devices = {tensor.device for tensor in [*model.parameters(), *model.buffers()]}
    if len(devices) > 1 or torch.device("meta") in devices:
        places = ", ".join(sorted("offloaded" if device.type == "meta" else str(device) for device in devices))
        raise InputError(
            f"device_map={device_map!r}: expected all weights on one device, got {places}; set device=cpu if no accelerator "
            "holds the model"
        )
    return devices.pop()


def _spread(device: DeviceOptions) -> dict[str, Any]:
    """Arguments with which transformers keeps weights that do not fit on the device in CPU memory, and the rest on disk."""
    memory = memory_by_device(torch_device(device.name), device.max_memory)
    return {"max_memory": memory, "offload_folder": tempfile.mkdtemp(prefix="normscope-offload-")}


def _pretrained(
    source: Source,
    config: PretrainedConfig,
    options: ModelOptions,
    dtype: torch.dtype,
    placing: Mapping[str, object],
    kind: Any,
) -> PreTrainedModel:
    whole, loading = _read_weights(source, config, options, dtype, placing, kind)
    model: PreTrainedModel = whole if kind is AutoModel else base_of(whole)
    check_shapes(loading["mismatched_keys"], options.name)
    check_none_missing(config, loading["missing_keys"], loading["unexpected_keys"], options.name)
    check_all_used(model, loading["unexpected_keys"], options.name)
    check_dtypes(model, source.folder, options.name)
    return whole


def _read_weights(
    source: Source,
    config: PretrainedConfig,
    options: ModelOptions,
    dtype: torch.dtype,
    placing: Mapping[str, object],
    kind: Any,
) -> tuple[PreTrainedModel, Mapping[str, Any]]:
    """A model with the weights of its files, and the names of tensors that one of the two lacks."""
    if (source.folder / ADAPTER_CONFIG).is_file():  # which transformers would add without a word
        raise InputError(
            f"model.name={options.name}: expected the weights of a whole model or an adapter, got both in {source.folder}; "
            f"move {ADAPTER_CONFIG} and {ADAPTER_WEIGHTS} to a folder of their own"
        )
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Casting complex values")  # `check_dtypes` refuses these
            whole, loading = kind.from_pretrained(
                source.folder,
                config=config,
                dtype=dtype,
                use_safetensors=None if options.allow_pickle else True,
                trust_remote_code=options.trust_remote_code,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # refused below, by name
                **placing,
            )
    except Exception as error:  # truncated or corrupt files raise a dozen types
        raise InputError(f"model.name={options.name}: its weights cannot be read: {one_line(error)}") from error
    return whole, loading
