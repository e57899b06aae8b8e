"""Runs any analysis on texts in memory, without a config, a folder or a tracker."""

import dataclasses
import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers.modeling_utils import PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from normscope.analyses.info import AnalysisInfo
from normscope.analyses.registry import analyses as known_analyses
from normscope.api.arguments import python_call
from normscope.api.models import DEFAULT_MODEL, load_stack, wrap
from normscope.api.types import ManyTexts, Model, Module, Tokenizer
from normscope.config.calls import Several, checked
from normscope.config.schema import suggestion
from normscope.data.given_texts import GivenTexts
from normscope.errors import InputError
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.text_batches import example_of, is_ids, is_image_text, is_messages, parts_of, plain_ids
from normscope.models.options import ModelStack
from normscope.models.stored.random_state import generators_restored
from normscope.results.result import Result
from normscope.running.options import run_options
from normscope.running.pipeline import analyse


@checked
def run(
    analyses: Several[str],
    *,
    texts: ManyTexts,
    model: Model | Module | str | Path = DEFAULT_MODEL,
    tokenizer: Tokenizer | None = None,
    layers: str | int | Several[int] = "all",
    categories: str | Several[str] = "all",
    level: str = "token",
    token_categories: Mapping[str, Any] | None = None,
    segmentation: str = "none",
    max_length: int | None = None,
    mask_fraction: float = 0.0,
    batch_tokens: int = 4096,
    seed: int = 0,
    progress: bool = False,
    **options: Any,
) -> Result:
    """Run one analysis or several over texts in memory.

    The numbers equal those of a command on the same texts. Nothing is written, and torch's generators keep their state.

    Args:
        analyses: The name of an analysis, or several names; plug-ins included.
        texts: Texts, and pairs (tuples) of texts. For cross-attention: pairs of a source and its translation. For a
            vision–language model, all of them may be pairs of an image and a text.
        model: What `load` or `wrap` returned, a name to load, or a module with its `tokenizer`, if it has one.
        tokenizer: The tokenizer of a model that was neither loaded nor wrapped.
        layers: `all`, or layer numbers from 1.
        categories: `all`, or the token categories to report.
        level: `token`, or `word` to merge the tokens of words before anything is measured.
        token_categories: Your own categories by name: each a list of tokens, or `re:` and a regular expression.
        segmentation: How texts are split: `none`, `sentence`, `pair` (of paragraphs) or `window` (of `max_length` tokens).
        max_length: Maximum number of tokens of a text; longer ones are truncated. The model's maximum by default.
        mask_fraction: Fraction of the ordinary tokens that are masked.
        batch_tokens: Maximum number of tokens in a batch, padding included. A batch that does not fit into memory is split.
        seed: Seed of samples and masks.
        progress: Whether to show what the run is doing, and a progress bar for analyses that run the model again.
        **options: Options of the analyses, for every one that has them; `norms={…}` sets options of only that analysis.

    Examples:
        >>> import normscope
        >>> results = normscope.run("mixing", texts=["A short text.", ("A pair", "of texts.")])
        >>> round(results.metrics["mixing/attnresln_n/mean"], 2)
        0.2

    Raises:
        InputError: If an argument is invalid, or no text can be used.
    """
    with python_call():
        infos = _chosen(analyses)
        prepared = _prepared_model(model, tokenizer, infos)
        dataset = {"max_length": max_length, "mask_fraction": mask_fraction, "segmentation": segmentation}
        settings = _of_model(prepared, batch_tokens) | {"level": level, "layers": layers, "seed": seed}
        kind = "text" if prepared.reader is None else str(prepared.reader.kind)
        settings |= {"dataset": dataset | {"kind": kind, "categories": token_categories or {}}}
        settings |= {"report": {"enabled": False}, "categories": categories, "analysis": _options(infos, options)}
        found = listed(texts, of_text=prepared.reader is None, with_images=prepared.image_texts is not None)
        with_images = {is_image_text(prepared, text) for text in found}
        if len(with_images) > 1:
            raise InputError("texts: expected an image with every text or with none, got both")
        settings["dataset"]["chat_template"] = with_images.pop()
        corpus = GivenTexts(tuple(example_of(prepared, text) for text in found))
        with generators_restored():
            return prepared.exclusively(lambda: analyse(run_options(settings), prepared, corpus, progress=progress))


def _chosen(names: Iterable[str]) -> list[AnalysisInfo]:
    known = known_analyses()
    wanted = list(names)
    if not wanted:
        raise InputError(f"analyses=[]: expected at least one of {', '.join(known)}")
    for name in wanted:
        if name not in list(known):
            raise InputError(f"analyses={name!r}: expected one or more of {', '.join(known)}{suggestion(name, known)}")
    return [info for info in known.values() if info.name in wanted]


def _prepared_model(
    model: LoadedModel | nn.Module | str | Path,
    tokenizer: PreTrainedTokenizerBase | None,
    infos: Sequence[AnalysisInfo],
) -> LoadedModel:
    if isinstance(model, LoadedModel):
        if tokenizer is not None:
            raise InputError("tokenizer: a loaded or wrapped model has one already; leave it out")
        return model
    aligning = [info.name for info in infos if info.requires_cross_attention]
    others = [info.name for info in infos if not info.requires_cross_attention]
    if aligning and others:
        raise InputError(
            f"analyses: {aligning[0]} measures cross-attention, and {others[0]} the encoder unless the model was loaded with "
            "another stack; load it with stack='cross' to measure both on cross-attention, or run each separately"
        )
    stack = ModelStack.cross.value if aligning else None
    if isinstance(model, str | Path):
        return load_stack(str(model), stack, tokenizer)
    if tokenizer is None and isinstance(model, PreTrainedModel):
        raise InputError(
            f"tokenizer: expected the tokenizer of the {type(model).__name__}; pass tokenizer=…, or a model from normscope.load"
        )
    return wrap(model, tokenizer, stack=stack)


def _of_model(model: LoadedModel, batch_tokens: int) -> dict[str, Any]:
    device = {"name": str(model.device), "dtype": str(model.dtype).removeprefix("torch."), "batch_tokens": batch_tokens}
    return {"model": {"name": model.name, "stack": model.facts.stack}, "device": device}


def _options(infos: Sequence[AnalysisInfo], given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The options of the enabled analyses."""
    fields = {info.name: {field.name for field in dataclasses.fields(info.options)} - {"enabled"} for info in infos}
    chosen: dict[str, dict[str, Any]] = {name: {"enabled": True} for name in fields}
    for option, value in given.items():
        takers = [name for name, names in fields.items() if option in names]
        if option in fields and isinstance(value, Mapping):
            if unnamed := [key for key in value if not isinstance(key, str)]:
                raise InputError(f"{option}: expected options by their names, got {unnamed[0]!r}")
            chosen[option] |= value
        elif takers:
            for name in takers:
                chosen[name][option] = value
        else:
            every = sorted(set().union(*fields.values()))
            listed = f"expected one of {', '.join(every)}" if every else "expected none"
            where = f"in {', '.join(fields)}"
            raise InputError(f"{option}={value!r}: no such option {where}; {listed}{suggestion(option, every)}")
    return chosen


def listed(texts: ManyTexts, *, of_text: bool = True, with_images: bool = False) -> list[Any]:
    """Texts as a list, also if there is only one.

    Args:
        of_text: Whether they are texts, and not images or other inputs.
        with_images: Whether a text may have an image before it.

    Raises:
        InputError: If one is neither a text nor a pair, or there is none.
    """
    given: Any = plain_ids(texts) if of_text else texts
    single = (
        isinstance(given, str | tuple | np.ndarray | torch.Tensor | Mapping)
        or is_ids(given)
        or not isinstance(given, Iterable)
    )
    found: list[Any] = [given] if single else list(given)
    if not found:
        raise InputError("texts: expected at least one text, got none")
    if not of_text:
        return found
    if is_messages(found) or any(map(is_messages, found)):
        raise InputError(
            "texts: analyses read conversations from a file; on the command line, set dataset.chat_template=true"
        )
    for text in found:
        if not is_ids(text) and not (with_images and isinstance(text, tuple)):
            parts_of(text)
    return found


def check_names(analyses: Iterable[str], options: Mapping[str, Any]) -> None:
    """Check that analyses exist, and that each further argument of `run` is one of its parameters or an option of theirs.

    Raises:
        InputError: If that is not so.
    """
    parameters = inspect.signature(run).parameters
    _options(_chosen(analyses), {name: value for name, value in options.items() if name not in parameters})
