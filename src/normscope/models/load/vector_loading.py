"""Models of images and audio, from memory or from files."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoModel, GenerationConfig, PretrainedConfig
from transformers.feature_extraction_sequence_utils import SequenceFeatureExtractor
from transformers.modeling_utils import PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from normscope.data.tokenization import encoded
from normscope.errors import InputError, one_line
from normscope.models.facts import ModelFacts, StackName
from normscope.models.load.frames import frame_names, seconds_of_frames
from normscope.models.load.input_reading import InputReader, makes_sizes, own_processor, probe_of
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.speech import SpeechModel
from normscope.models.load.task_heads import Head
from normscope.models.load.tokenizer_loading import TokenNames, check_tokenizer, longest_input
from normscope.models.load.vectors import Positions, VectorModel
from normscope.models.observe.reading import facts_of, facts_without_numbers, refusal_explained
from normscope.models.stored.decoder_start import decoder_shift
from normscope.models.stored.text_tower import base_of, class_of

_OF_TEXTS = {"input_ids", "decoder_input_ids"}


def tower_of(given: PreTrainedModel) -> PreTrainedModel:
    """The part of a model that reads images or audio and has no head: the vision tower of CLIP, the encoder of Whisper.

    Raises:
        InputError: If there is none.
    """
    parts = [part for part in given.modules() if isinstance(part, PreTrainedModel)]
    for part in parts:
        if _reads_vectors(part):
            base = base_of(part)
            return base if _reads_vectors(base) else part  # some models name their layers as their base
    declaring = next((part for part in parts if _declares_vectors(part)), None)
    if declaring is not None:
        return declaring
    raise InputError(
        f"model: expected a model that reads images or audio for this processor, got {type(given).__name__}, which reads "
        "token ids; pass its tokenizer"
    )


def _reads_vectors(model: PreTrainedModel) -> bool:
    """Whether a model reads its main input, and that is no text."""
    parameters = inspect.signature(model.forward).parameters
    return model.main_input_name in parameters and not _OF_TEXTS.intersection(parameters)


def _declares_vectors(model: PreTrainedModel) -> bool:
    """Whether a model that does not say what its main input is belongs to a family that reads something else than texts.

    What declares texts alone is a part of the family that does.
    """
    is_text = model.input_modalities in ("text", ("text",), ["text"])
    return not is_text and not _OF_TEXTS.intersection(inspect.signature(model.forward).parameters)


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


def cross_stack(stack: StackName | None) -> StackName | None:
    """The stack to observe of a model that reads images or audio: None for the part that reads them.

    Raises:
        InputError: If it is the decoder.
    """
    if stack == "decoder":
        raise InputError(
            "model.stack=decoder: expected encoder or cross for a model that reads images or audio; leave it out to measure "
            "its encoder"
        )
    return None if stack == "encoder" else stack


def facts_of_inputs(config: PretrainedConfig, processor: Any, name: str, stack: StackName | None) -> ModelFacts:
    """What the model is that a config describes, as it reads what a processor prepares."""
    stack = cross_stack(stack)

    def adapted(model: PreTrainedModel) -> PreTrainedModel:
        tower = tower_of(model)
        vectors = VectorModel(tower, probe_of(own_processor(processor), tower))
        return vectors if stack is None else SpeechModel(base_of(model), vectors)

    with refusal_explained(name):
        return _reading_vectors(facts_without_numbers(config, adapted, stack))


def vector_model(
    tower: PreTrainedModel,
    processor: Any,
    name: str,
    load_head: Callable[[Head], PreTrainedModel | None],
    require_current: Callable[[], None] = lambda: None,
    *,
    tokens: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    example: object = None,
) -> LoadedModel:
    """A model of images, audio or other vectors, ready to be observed.

    Args:
        tower: A model that reads no token ids, in evaluation mode and without gradients.
        processor: Makes its inputs; see `wrap_model`.
        name: For messages and results.
        load_head: Gives the model with a head around the tower; None if there is none.
        require_current: See `LoadedModel`.
        tokens: Names of tokens; see `wrap_model`.
        example: An input; without one, inputs are images or audio.
    """
    part = own_processor(processor)
    probe = probe_of(part, tower, example)
    with refusal_explained(name):
        observed = VectorModel(tower, probe)
        facts = _reading_vectors(facts_of(observed))
    observed.axes = facts.places.axes
    sizes = example is not None or makes_sizes(part, tower, probe)
    seconds = seconds_of_frames(observed, part) if isinstance(part, SequenceFeatureExtractor) else None
    tokens = tokens if seconds is None else frame_names(observed, seconds, sizes=sizes)
    positions = Positions(tower, probe, observed.axes, tokens, sizes=sizes)
    observed.number(positions)
    tokenizer = TokenNames.of(positions.names, spaced=seconds is not None)
    if positions.names[0] == "[CLS]":
        tokenizer.cls_token = positions.names[0]

    def head(kind: Head) -> PreTrainedModel | None:
        whole = load_head(kind) if kind is Head.CLASS else None
        return None if whole is None else VectorModel(whole, probe, observed)

    return LoadedModel(
        model=observed,
        tokenizer=tokenizer,
        facts=facts,
        name=name,
        revision=None,
        max_length=None,
        load_head=head,
        require_current=require_current,
        reader=InputReader(part, tower, positions, example is None, seconds),
    )


def speech_model(
    whole: PreTrainedModel,
    processor: Any,
    tokenizer: PreTrainedTokenizerBase | None,
    name: str,
    settings: GenerationConfig | None,
    require_current: Callable[[], None] = lambda: None,
) -> LoadedModel:
    """The cross-attention of a model whose encoder reads a sound and whose decoder reads a text, ready to be observed.

    Args:
        whole: The encoder–decoder, without a head, in evaluation mode and without gradients.
        processor: Makes the encoder's inputs.
        tokenizer: That of the text; by default the processor's.
        name: For messages and results.
        settings: How the model generates.
        require_current: See `LoadedModel`.

    Raises:
        InputError: If there is no tokenizer or it does not fit, or nothing says which token the decoder reads first, or in
            which language a model of several transcribes.
    """
    tokenizer = tokenizer or getattr(processor, "tokenizer", None)
    if tokenizer is None:
        raise InputError(
            f"model.stack=cross: expected a processor with a tokenizer for {name}, whose decoder reads texts, got "
            f"{type(processor).__name__}; pass the model's whole processor"
        )
    loaded = vector_model(tower_of(whole), processor, name, lambda _kind: None, require_current)
    observed = SpeechModel(whole, loaded.model, settings)
    check_tokenizer(tokenizer, name, whole.get_decoder(), loaded.facts)
    _check_prompt(tokenizer, observed, name)
    with refusal_explained(name):
        facts = _reading_vectors(facts_of(observed, "cross"))
    longest = longest_input(whole.get_decoder(), loaded.facts, tokenizer)
    return dataclasses.replace(loaded, model=observed, tokenizer=tokenizer, facts=facts, max_length=longest)


def _check_prompt(tokenizer: PreTrainedTokenizerBase, model: SpeechModel, name: str) -> None:
    """Check that it is known what the decoder reads before a transcript."""
    if decoder_shift(model.config) is None:
        raise InputError(
            f"model.stack=cross: expected decoder_start_token_id in the config of {name}, the token that its decoder reads "
            "first, got none; set it in the config"
        )
    languages = getattr(model.generation_config, "lang_to_id", None) or {}
    if languages and not {*languages.values()} & {*encoded(tokenizer, "a")["input_ids"]}:
        raise InputError(
            f"model.target_language: expected the language of the transcripts ({name} knows {len(languages)} languages), got "
            "none; set it (in Python, wrap a processor after tokenizer.set_prefix_tokens(language=…, task=…))"
        )


def _reading_vectors(facts: ModelFacts) -> ModelFacts:
    return dataclasses.replace(facts, reads_vectors=True)
