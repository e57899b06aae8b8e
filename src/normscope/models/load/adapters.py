"""PEFT adapters, merged into the weights of their model before it is observed: from files, or in memory."""

import collections
import dataclasses
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import AutoModel, PretrainedConfig
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError, one_line
from normscope.models.load.task_heads import Head, head_class
from normscope.models.prove.verification import output_probes, outputs_on_probes, require_same_outputs
from normscope.models.stored.files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, check_readable
from normscope.models.stored.text_tower import class_of, text_tower
from normscope.models.stored.weight_checks import tensors_in
from normscope.untrusted.plain_data import MIB, json_mapping

_NAME = "default"
"""What peft calls an adapter that is given no name."""

_INSIDE = "base_model.model."
"""How the names of an adapter's tensors begin: where in a PeftModel the adapted model is."""

_REFUSED = {
    "layer_replication": "which gives the model layers that its config does not have",
    "megatron_config": "with which peft imports code that the file names",
}
"""Settings of adapters, and why they are refused."""

_TASKS: Mapping[str, Any] = {
    "SEQ_CLS": transformers.AutoModelForSequenceClassification,
    "CAUSAL_LM": transformers.AutoModelForCausalLM,
    "SEQ_2_SEQ_LM": transformers.AutoModelForSeq2SeqLM,
    "TOKEN_CLS": transformers.AutoModelForTokenClassification,
    "QUESTION_ANS": transformers.AutoModelForQuestionAnswering,
}
"""What models an adapter was trained on, by its task_type."""


def base_model(folder: Path, name: str) -> tuple[str, str | None]:
    """Name or folder of the model that an adapter was trained on, and its revision if the adapter says one.

    Raises:
        InputError: If the adapter does not name it.
    """
    check_readable(folder, f"model.name={folder}")
    try:
        config = json_mapping(folder / ADAPTER_CONFIG, MIB)
    except InputError as error:
        raise InputError(f"model.name={name}: its {ADAPTER_CONFIG} cannot be read: {error}") from error
    found = config.get("base_model_name_or_path")
    if not isinstance(found, str) or not found:
        raise InputError(f"model.name={name}: expected base_model_name_or_path in its {ADAPTER_CONFIG}, got {found!r}")
    revision = config.get("revision")
    return found, revision if isinstance(revision, str) and revision else None


@dataclasses.dataclass(frozen=True)
class Adapter:
    """A PEFT adapter on disk."""

    folder: Path
    name: str
    """For messages."""
    settings: Any
    """Its PeftConfig."""
    shapes: Mapping[str, tuple[int, ...]]
    """The shape of each saved tensor, by its name in the adapted model; those that layers share are left out."""

    @classmethod
    def read(cls, folder: Path, name: str) -> "Adapter":
        """Read an adapter's settings and the names of its tensors.

        Raises:
            InputError: If peft is not installed, the files cannot be read, or no weights could stand for the adapter.
        """
        try:
            from peft import PeftConfig
        except ImportError as error:
            raise InputError(
                f"model.name={name} is a PEFT adapter, which needs peft; run `pip install peft`"
            ) from error
        try:
            settings = PeftConfig.from_pretrained(str(folder))
        except Exception as error:  # a foreign file, parsed by a library: it may raise anything
            raise InputError(f"model.name={name}: its {ADAPTER_CONFIG} cannot be used: {one_line(error)}") from error
        if settings.is_prompt_learning:
            raise InputError(
                f"model.name={name}: {_UNMERGEABLE.format(kind=_kind(settings))}, which adds to every input; set model.name "
                "to its base model to observe that without it"
            )
        for key, reason in _REFUSED.items():
            if getattr(settings, key, None) is not None:
                raise InputError(
                    f"model.name={name}: expected no {key} in its {ADAPTER_CONFIG}, {reason}; leave it out"
                )
        if not (folder / ADAPTER_WEIGHTS).is_file():
            raise InputError(f"model.name={name}: expected {ADAPTER_WEIGHTS}; adapters are read from safetensors only")
        try:
            shapes = {key: shape for key, shape, _ in tensors_in(folder / ADAPTER_WEIGHTS)}
        except (OSError, SafetensorError) as error:
            raise InputError(f"model.name={name}: its {ADAPTER_WEIGHTS} cannot be read: {one_line(error)}") from error
        return cls(
            folder,
            name,
            settings,
            {key.removeprefix(_INSIDE): shape for key, shape in shapes.items() if key.startswith(_INSIDE)},
        )

    def kind_of_model(self, config: PretrainedConfig) -> Any:
        """The class of models that the adapter was trained on: the first that has the modules its tensors name.

        Args:
            config: The config of its base model.
        """
        wanted = {key.partition(".")[0] for key in self.shapes}
        for kind in self._kinds(config):
            if wanted <= set(dict(_untrained(kind, config).named_children())):
                return kind
        return AutoModel

    def _kinds(self, config: PretrainedConfig) -> Iterator[Any]:
        auto = _TASKS.get(str(getattr(self.settings.task_type, "value", self.settings.task_type)))
        if auto is not None:
            yield class_of(auto, config)
        mapping = getattr(self.settings, "auto_mapping", None)
        names = [mapping.get("base_model_class")] if isinstance(mapping, dict) else []
        yield from (_class_of_transformers(name) for name in names)
        yield AutoModel
        yield from (_class_of_transformers(name) for name in config.architectures or ())
        yield from (head_class(head, config) for head in Head)

    def config_of_model(self, kind: Any, config: PretrainedConfig) -> PretrainedConfig:
        """The config of the model that the adapter was trained on: an adapter's classifier may have other classes.

        Args:
            kind: See `kind_of_model`.
            config: The config of its base model.
        """
        for key, parameter in _untrained(kind, config).named_parameters():
            saved = self.shapes.get(key)
            if saved is None or saved[1:] != parameter.shape[1:] or saved[0] == parameter.shape[0]:
                continue
            if parameter.shape[0] == config.num_labels:
                changed = type(config).from_dict(config.to_dict() | {"id2label": None, "label2id": None})
                changed.num_labels = saved[0]
                return changed
        return config

    def saves(self, key: str) -> bool:
        """Whether the adapter brings this parameter of its model whole: a head, an embedding, a bias."""
        place, _, last = key.rpartition(".")
        return key in self.shapes or f"{place}.base_layer.{last}" in self.shapes

    def merged_into(self, model: PreTrainedModel) -> PreTrainedModel:
        """Merge the adapter into the weights of its model, in place, and check that this changes no output.

        Raises:
            InputError: If the adapter does not fit the model, or cannot be merged.
        """
        self._resize_embeddings(model)
        probes = output_probes(text_tower(model.eval()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # peft's advice to those who train
            adapted = self._around(model)
            before = outputs_on_probes(text_tower(model), probes)
            merged = adapted.get_base_model()
            try:
                merge_active_adapters(merged)
            except InputError as error:
                kind = f"{_kind(self.settings)}: {error}"
                raise InputError(f"model.name={self.name}: {_UNMERGEABLE.format(kind=kind)}") from error
        after = outputs_on_probes(text_tower(merged), probes)
        require_same_outputs(merged.dtype, after, before, self.name, "with its adapter merged into its weights")
        return merged

    def _around(self, model: PreTrainedModel) -> Any:
        """The PeftModel around a model."""
        from peft import get_peft_model

        self.settings.inference_mode = True
        try:
            adapted = get_peft_model(model, self.settings, adapter_name=_NAME)
            outcome = adapted.load_adapter(
                str(self.folder),
                _NAME,
                is_trainable=False,
                torch_device="cpu",
                key_mapping=getattr(model, "_checkpoint_conversion_mapping", {}),
            )
        except Exception as error:  # peft hardly validates configs, so bad ones fail anywhere
            raise InputError(
                f"model.name={self.name}: the adapter does not fit its model: {one_line(error)}"
            ) from error
        missing = [key for key in outcome.missing_keys if "vblora_vector_bank" not in key]  # which layers share
        wrong = [*(key for key in outcome.unexpected_keys if not self._is_copy(key)), *missing]
        if wrong or not self.shapes:
            reason = f"tensor {wrong[0]} is missing or unknown" if wrong else "it has no tensors"
            raise InputError(f"model.name={self.name}: the adapter does not fit its model: {reason}")
        return adapted.eval()

    def _is_copy(self, key: str) -> bool:
        """Whether a tensor is the second copy of one that has its place: peft saves biases of saved modules twice."""
        original = key.replace(".modules_to_save.", ".")
        if original == key or original.removeprefix(_INSIDE) not in self.shapes:
            return False
        with safe_open(self.folder / ADAPTER_WEIGHTS, framework="pt") as tensors:
            return torch.equal(tensors.get_tensor(key), tensors.get_tensor(original))

    def _resize_embeddings(self, model: PreTrainedModel) -> None:
        """Give a model as many embeddings as the adapter brings: it may have been trained with more tokens."""
        embeddings = model.get_input_embeddings()
        name = next((name for name, module in model.named_modules() if module is embeddings), None)
        saved = self.shapes.get(f"{name}.weight") or self.shapes.get(f"{name}.base_layer.weight")
        if saved is not None and saved[0] != embeddings.weight.shape[0]:
            model.resize_token_embeddings(saved[0], mean_resizing=False)


_UNMERGEABLE = "expected an adapter that can be merged into weights, such as LoRA, got {kind}"


def _class_of_transformers(name: object) -> Any:
    kind = getattr(transformers, name, None) if isinstance(name, str) else None
    return kind if isinstance(kind, type) and issubclass(kind, PreTrainedModel) else None


def _untrained(kind: Any, config: PretrainedConfig) -> nn.Module:
    """A model without weights, to see its modules; an empty one if there is no such model."""
    if kind is None:
        return nn.Module()
    try:
        with torch.device("meta"):
            return kind.from_config(config) if kind is AutoModel else kind(config)
    except Exception:  # of a config that is no model's of this class
        return nn.Module()


def _untie(adapted: nn.Module) -> None:
    """Give adapted layers weights of their own where another module has the same: merging would change it too."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    shared = collections.Counter(id(parameter) for _, parameter in adapted.named_parameters(remove_duplicate=False))
    for module in adapted.modules():
        layer = module.get_base_layer() if isinstance(module, BaseTunerLayer) else nn.Module()
        for name, parameter in list(layer.named_parameters(recurse=False)):
            if shared[id(parameter)] > 1:
                setattr(layer, name, nn.Parameter(parameter.detach().clone(), requires_grad=False))


def without_peft(model: object) -> object:
    """The transformers model inside a PEFT model, with its adapted layers; anything else as it is.

    Raises:
        InputError: If the PEFT model adds tokens or prefixes to every input, which cannot be merged into weights.
    """
    if type(model).__module__.partition(".")[0] != "peft":
        return model
    from peft import PeftModel, PromptLearningConfig

    if not isinstance(model, PeftModel):
        return model
    config = model.active_peft_config
    if isinstance(config, PromptLearningConfig):
        raise InputError(
            f"model: {_UNMERGEABLE.format(kind=_kind(config))}, which adds to every input; pass model.get_base_model() to "
            "observe the model without it"
        )
    return model.get_base_model()


def _kind(config: Any) -> str:
    return str(getattr(config.peft_type, "value", config.peft_type))


def adapted_layers(model: nn.Module) -> dict[str, Any]:
    """The layers that PEFT has replaced, by their paths; those inside others are left out."""
    if "peft" not in sys.modules:
        return {}
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    layers: dict[str, Any] = {}
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in layers)
        if isinstance(module, BaseTunerLayer | AuxiliaryTrainingWrapper) and not inside:
            layers[name] = module
    return layers


def merge_active_adapters(model: nn.Module) -> None:
    """Replace every adapted layer by a plain one with the weights that its active adapters make, in place.

    Raises:
        InputError: If an adapter cannot be merged.
    """
    layers = adapted_layers(model)
    if layers:
        _untie(model)
    for name, layer in layers.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that there is nothing to merge, for example
                plain = _merged(layer)
        except Exception as error:  # adapters that cannot be merged raise many types
            raise InputError(
                f"model: the adapter of {name} cannot be merged into its weights: {one_line(error)}"
            ) from error
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, plain)
    left = next((module for module in model.modules() if type(module).__module__.partition(".")[0] == "peft"), None)
    if left is not None:
        raise InputError(f"model: its {type(left).__name__} cannot be merged into weights")


def _merged(layer: Any) -> nn.Module:
    """The plain layer inside an adapted one, with the active adapters merged into it."""
    if hasattr(layer, "unload_and_optionally_merge_module"):
        if layer.disable_adapters:
            return layer.original_module
        return layer.unload_and_optionally_merge_module(merge=True, safe_merge=False, adapter_names=None)
    if not layer.disable_adapters:
        layer.merge()
    elif layer.merged:
        layer.unmerge()
    return layer.get_base_layer()
