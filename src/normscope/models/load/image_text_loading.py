"""Vision–language models, from memory or from files."""

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import AutoModelForImageTextToText, AutoProcessor, PretrainedConfig
from transformers.modeling_utils import PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from normscope.errors import one_line
from normscope.models.load.image_texts import ImageTextModel, ImageTextReader
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.task_heads import Head, has_head
from normscope.models.observe.reading import facts_of, refusal_explained
from normscope.models.probes import longest_sequence
from normscope.models.stored.text_tower import base_of, class_of, text_config

_FILES = ("processor_config.json", "preprocessor_config.json")
"""Of which a folder with a processor has one."""

log = logging.getLogger("normscope")


def read_text_processor(config: PretrainedConfig, folder: Path, name: str) -> Any:
    """The processor in the files of a vision–language model; None for any other model, and without such files.

    Without the packages that the processor needs, the model reads texts alone, which is said.
    """
    reads = class_of(AutoModelForImageTextToText, config) is not None and text_config(config) is not config
    if not reads or not any((folder / file).is_file() for file in _FILES):
        return None
    try:
        processor = AutoProcessor.from_pretrained(folder)
        assert isinstance(processor.tokenizer, PreTrainedTokenizerBase)
    except Exception as error:  # missing files and missing optional packages raise many types
        log.warning("%s reads texts alone, because its processor cannot be loaded: %s", name, one_line(error))
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
    observed = ImageTextModel(base_of(whole))
    if getattr(processor, "chat_template", None):
        tokenizer = copy.copy(tokenizer)  # whose own template may know no images
        tokenizer.chat_template = processor.chat_template
    reader = ImageTextReader.of(processor, observed)
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
        require_current=require_current,
        image_texts=reader,
    )
