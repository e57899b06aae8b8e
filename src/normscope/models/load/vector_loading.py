"""Models of images and audio, and of texts with images, from memory or from files."""

import bisect
import copy
import dataclasses
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    AutoFeatureExtractor,
    AutoImageProcessor,
    AutoModel,
    AutoProcessor,
    GenerationConfig,
    PretrainedConfig,
)
from transformers.feature_extraction_sequence_utils import SequenceFeatureExtractor
from transformers.modeling_utils import PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from normscope.data.sounds import time_names
from normscope.data.tokenization import encoded
from normscope.errors import InputError, one_line
from normscope.maths.choices import SimilarityFunction
from normscope.maths.embedder import Embedder, LateInteraction
from normscope.models.facts import ModelFacts, StackName
from normscope.models.load.image_texts import ImageTextModel, ImageTextReader, PageReader, Retriever
from normscope.models.load.input_reading import InputReader, makes_sizes, own_processor, prepared, probe_of, rate_of
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.speech import SpeechModel
from normscope.models.load.task_heads import Head, has_head
from normscope.models.load.tokenizer_loading import TokenNames, check_tokenizer, longest_input
from normscope.models.load.vectors import Positions, VectorModel
from normscope.models.observe.reading import facts_of, facts_without_numbers, refusal_explained
from normscope.models.probes import longest_sequence
from normscope.models.stored.decoder_start import decoder_shift
from normscope.models.stored.text_tower import base_of, class_of, image_text_class, text_config

log = logging.getLogger("normscope")

_OF_TEXTS = {"input_ids", "decoder_input_ids"}

_FILES = ("processor_config.json", "preprocessor_config.json")
"""Of which a folder with a processor has one."""

_LONGEST = 256
"""Seconds of sound beyond which no processor is tried."""
_LONGER = 6
"""Seconds by which one sound is longer than another: a multiple of 10, 20, 24, 25, 30, 40, 50 and 80 ms."""
_STEPS = 100
"""The end of what a processor reads is looked for in steps of so many parts of a second."""
_NAMES = 16_384
"""Frames that have names if sounds have several lengths: five and a half minutes of 20 ms each."""


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
        return facts_without_numbers(config, adapted, stack)


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
        facts = facts_of(observed)
    observed.axes = facts.places.axes
    sizes = example is not None or makes_sizes(part, tower, probe)
    seconds = seconds_of_frames(observed, part) if isinstance(part, SequenceFeatureExtractor) else None
    if seconds is not None:
        tokens = time_names(_NAMES if sizes else observed.tokens_of(probe), seconds)
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


def seconds_of_frames(model: VectorModel, extractor: SequenceFeatureExtractor) -> float:
    """The time from one token to the next, which is what the model makes of time.

    Of a processor that pads or cuts all sounds to one length, it is that length over the number of tokens; of others, the time
    by which a sound is longer over the tokens that it has more.
    """
    rate = rate_of(extractor)
    noise = np.random.default_rng(0).normal(size=_LONGEST * rate).astype(np.float32)

    def read(steps: int) -> dict[str, Tensor]:
        return prepared(extractor, noise[: steps * rate // _STEPS], model.model)

    one, other = read(_STEPS), read((1 + _LONGER) * _STEPS)
    if any(each.shape != other[name].shape for name, each in one.items()):
        return _LONGER / (model.tokens_of(other) - model.tokens_of(one))
    whole = read(_LONGEST * _STEPS)

    def is_whole(steps: int) -> bool:  # behind the end of what the processor reads, nothing changes
        return all(torch.equal(each, whole[name]) for name, each in read(steps).items())

    end = bisect.bisect_left(range(_LONGEST * _STEPS), True, lo=1, key=is_whole)
    return end / _STEPS / model.tokens_of(whole)


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
        facts = facts_of(observed, "cross")
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


def read_text_processor(config: PretrainedConfig, folder: Path, name: str) -> Any:
    """The processor in the files of a vision–language model; None for any other model, and without such files.

    Without the packages that the processor needs, the model reads texts alone, which is said.
    """
    reads = image_text_class(config) is not None and text_config(config) is not config
    if not reads or not any((folder / file).is_file() for file in _FILES):
        return None
    try:
        processor = AutoProcessor.from_pretrained(folder)
        assert isinstance(processor.tokenizer, PreTrainedTokenizerBase)
    except Exception as error:  # missing files and missing optional packages raise many types
        log.warning("%s reads only texts, because its processor cannot be loaded: %s", name, one_line(error))
        return None
    return processor


def image_text_model(
    whole: PreTrainedModel,
    processor: Any,
    name: str,
    tokenizer: PreTrainedTokenizerBase,
    require_current: Callable[[], None] = lambda: None,
) -> LoadedModel:
    """A vision–language model, ready to be observed.

    Args:
        whole: The model, with or without its head, in evaluation mode and without gradients.
        processor: Makes its inputs.
        name: For messages and results.
        tokenizer: That of the processor.
        require_current: See `LoadedModel`.

    Raises:
        InputError: If its language layers cannot be observed, or no token's vector comes from an image.
    """
    retrieves = hasattr(processor, "process_queries")
    observed = Retriever(whole, embeds=False) if retrieves else ImageTextModel(base_of(whole))
    if getattr(processor, "chat_template", None):
        tokenizer = copy.copy(tokenizer)  # whose own template may know no images
        tokenizer.chat_template = processor.chat_template
    reader = (PageReader if retrieves else ImageTextReader).of(processor, observed)
    with refusal_explained(name):
        probe = reader.probe()
        facts = facts_of(observed, inputs=probe, token_mask=probe["attention_mask"].bool())
    longest = longest_sequence(observed, reads_target=False)
    lengths = [int(each) for each in (longest, tokenizer.model_max_length) if each is not None and each < 10**9]
    head = ImageTextModel(whole) if has_head(whole, Head.NEXT_TOKEN) else None
    return LoadedModel(
        model=observed,
        tokenizer=tokenizer,
        facts=facts,
        name=name,
        revision=None,
        max_length=min(lengths, default=None),
        load_head=lambda kind: head if kind is Head.NEXT_TOKEN else None,
        given_embedder=_late(whole) if retrieves else None,
        require_current=require_current,
        image_texts=reader,
    )


def _late(whole: PreTrainedModel) -> Embedder:
    """What compares pages and queries: late interaction of all vectors that a retriever makes."""
    every = LateInteraction(skipped_in=frozenset())
    return Embedder(None, function=SimilarityFunction.maxsim, late=every, head=Retriever(whole, embeds=True))
