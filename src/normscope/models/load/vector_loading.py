"""Models of images and audio, from memory or from files."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoModel, PretrainedConfig
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError, one_line
from normscope.models.facts import ModelFacts
from normscope.models.load.input_reading import InputReader, own_processor, probe_of
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.task_heads import Head
from normscope.models.load.tokenizer_loading import TokenNames
from normscope.models.load.vectors import VectorModel
from normscope.models.observe.reading import facts_of, facts_without_numbers, refusal_explained
from normscope.models.stored.text_tower import base_of, class_of

_OF_TEXTS = {"input_ids", "decoder_input_ids"}


def tower_of(given: PreTrainedModel) -> PreTrainedModel:
    """The part of a model that reads images or audio and has no head: the vision tower of CLIP, the encoder of Whisper.

    Raises:
        InputError: If there is none.
    """
    for part in given.modules():
        if isinstance(part, PreTrainedModel) and _reads_vectors(part):
            base = base_of(part)
            return base if _reads_vectors(base) else part  # some models name their layers as their base
    raise InputError(
        f"model: expected a model that reads images or audio for this processor, got {type(given).__name__}, which reads "
        "token ids; pass its tokenizer"
    )


def _reads_vectors(model: PreTrainedModel) -> bool:
    """Whether a model reads its main input, and that is no text."""
    parameters = inspect.signature(model.forward).parameters
    return model.main_input_name in parameters and not _OF_TEXTS.intersection(parameters)


def read_processor(config: PretrainedConfig, folder: Path, name: str) -> Any:
    """The processor in the files of a model of images or audio; None for a model of texts.

    Raises:
        InputError: If a model of images or audio comes without one, or it cannot be read.
    """
    kind = class_of(AutoModel, config)
    if kind is None or kind.main_input_name == "input_ids":
        return None
    return processor_in(folder, name, images=kind.main_input_name == "pixel_values")


def processor_in(folder: Path, name: str, *, images: bool) -> Any:
    """The processor of images, or of audio, in a folder.

    Raises:
        InputError: If there is none, or it cannot be read.
    """
    auto: Any = AutoImageProcessor if images else AutoFeatureExtractor
    try:
        return auto.from_pretrained(folder)
    except Exception as error:  # missing files and missing optional packages raise many types
        raise InputError(
            f"model.name={name}: cannot read its processor (preprocessor_config.json) from {folder}: {one_line(error)}"
        ) from error


def facts_of_inputs(config: PretrainedConfig, processor: Any, name: str) -> ModelFacts:
    """What the model is that a config describes, as it reads what a processor prepares."""

    def adapted(model: PreTrainedModel) -> PreTrainedModel:
        tower = tower_of(model)
        return VectorModel(tower, probe_of(own_processor(processor), tower))

    with refusal_explained(name):
        return facts_without_numbers(config, adapted)


def vector_model(
    tower: PreTrainedModel,
    processor: Any,
    name: str,
    load_head: Callable[[Head], PreTrainedModel | None],
    require_current: Callable[[], None] = lambda: None,
) -> LoadedModel:
    """A model of images or audio, ready to be observed.

    Args:
        tower: A model that reads no token ids, in evaluation mode and without gradients.
        processor: Makes its inputs; see `wrap_model`.
        name: For messages and results.
        load_head: Gives the model with a head around the tower; None if there is none.
        require_current: See `LoadedModel`.
    """
    part = own_processor(processor)
    probe = probe_of(part, tower)
    with refusal_explained(name):
        observed = VectorModel(tower, probe)
        facts = facts_of(observed)
    geometry = observed.geometry
    tokenizer = TokenNames.of(geometry.names)
    if geometry.names[0] == "[CLS]":
        tokenizer.cls_token = geometry.names[0]

    def head(kind: Head) -> PreTrainedModel | None:
        whole = load_head(kind) if kind is Head.CLASS else None
        return None if whole is None else VectorModel(whole, probe, observed)

    return LoadedModel(
        model=observed,
        tokenizer=tokenizer,
        facts=facts,
        name=name,
        revision=None,
        max_length=len(geometry.names),
        load_head=head,
        require_current=require_current,
        reader=InputReader(part, tower, {key: each.shape for key, each in probe.items()}, geometry),
    )
