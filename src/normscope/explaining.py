"""`normscope explain TEXT`: what a model makes of one text, in the terminal and as one page."""

import base64
import dataclasses
import html
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from normscope.api.attributed_maps import attribution_maps
from normscope.api.attributed_scores import attribute
from normscope.api.attribution import Attribution
from normscope.api.coloured_tokens import LEGEND, coloured
from normscope.api.decomposition import decompose
from normscope.errors import InputError, escaped, one_line
from normscope.models.loaded import LoadedModel
from normscope.models.loading import load
from normscope.models.logit_meaning import LogitMeaning
from normscope.predictions import Prediction, prediction_of
from normscope.reporting.page.explorer_page import explained_page
from normscope.results.maps import TokenMaps
from normscope.rounding import brief_share, counted, number
from normscope.running.options import RunOptions
from normscope.typed_texts import as_given
from normscope.untrusted.writing import write_file

PAGE = "explain.html"

_RULES = {
    "held": "Gradient × input of the model with its attention weights, norms and slopes held fixed: the scores of all tokens, "
    "with the biases, add up to the value.",
    "through": "Norms and slopes are held fixed; attention weights are followed to queries and keys as well. The scores of all "
    "tokens, with the biases and the remainder, which is what softmaxes absorb, add up to the value.",
}
"""How scores are made, by what they do with attention weights."""

_STRONGEST = 8
"""Tokens and heads that are printed."""
_SINK = 0.3
"""The share of the weight of later tokens from which the first token of a causal model is a sink."""
_LARGEST = 1_500_000
"""Values of token maps on the page, about 3 MB; single heads, and then all maps, are left out beyond it."""


def explain(options: RunOptions, text: str, folder: Path) -> Path:
    """Explain one text: print what the model predicts and from which tokens, and write the page.

    Args:
        options: The model, the device, `dataset.chat_template` and `attention`; all other options are ignored.
        text: The text, or two texts with ` ||| ` between them; with `dataset.chat_template`, a conversation (see
            `typed_texts`).
        folder: Where the page goes; it is made.

    Returns:
        The page.

    Raises:
        InputError: If the text is empty or too long, or the model cannot be attributed.
    """
    if not text.strip():
        raise InputError("explain: expected a text, got an empty one")
    model = load(options.model, options.device)
    given = as_given(model, text, chat=options.dataset.chat_template)
    prediction = prediction_of(model, given)
    rule = str(options.attention)
    by_head = rule == "held" and not model.layout.reads_target
    found = attribute(
        model,
        given,
        prediction.target,
        against=prediction.runner_up,
        by=["layer", "head"] if by_head else None,
        attention=rule,
    )
    assert isinstance(found, Attribution)
    if callable(prediction.target):
        found = dataclasses.replace(found, what="length of the embedding")
    maps, note, weight = _maps(model, given)
    sink = _said_of_sink(found, weight) if weight is not None and weight >= _SINK else ""
    _print(model, prediction, found, sink)
    heads = found.strongest(_STRONGEST) if by_head else pd.DataFrame()
    page = explained_page(
        title=f"{model.name}: {text[:80]}",
        what=prediction.what,
        choices=[
            (*choice, written) for choice, (_, written) in zip(prediction.choices, _written(prediction), strict=True)
        ],
        are_shares=prediction.meaning is not LogitMeaning.value,
        scores=_coloured(found, sink),
        rule=_RULES[rule],
        heads=heads,
        picture=base64.b64encode(found.figure("heads")._repr_png_()).decode() if by_head else "",
        maps=maps,
        note=note,
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return write_file(folder, PAGE, page.encode())
    except OSError as error:
        raise InputError(f"output_dir={folder}: cannot be written: {one_line(error)}") from error


def _maps(model: LoadedModel, text: Any) -> tuple[TokenMaps | None, str, float | None]:
    """The token maps of the text, with its shares through the whole model; what is left out; and the mean weight that later
    tokens of a causal model give the first one.
    """
    decomposed = decompose(model, text)
    weight = None
    if model.causal and len(decomposed.tokens) > 1:
        weight = float(decomposed.weights[:, 1:, 0].mean())
    queries, keys = len(decomposed.tokens), len(decomposed.key_tokens)
    values = model.layers * queries * keys
    if values * 7 > _LARGEST:
        return None, f"{counted(queries, 'token')} are too many for maps of all pairs on one page", weight
    note = ""
    if model.layout.heads_differ:
        note = "shown without single heads, since layers differ in their number of heads"
    elif values * (7 + model.layout.heads) <= _LARGEST:
        decomposed = decompose(model, text, heads=True)
    else:
        note = "shown without single heads, which would make the page too large"
    maps = decomposed.explorer().sentences[0]
    if model.layout.reads_target:
        return maps, note, weight
    through = attribution_maps(model, text, ["decompx"])["decompx"].cumulative[:, :, :keys]
    return dataclasses.replace(maps, maps={**maps.maps, "decompx": through.astype(np.float32)}), note, weight


def _said_of_sink(found: Attribution, weight: float) -> str:
    """What the first token adds, and why it stands apart."""
    return (
        f"The first token, {found.tokens[0]}, adds {number(float(found.scores[0]), signed=True)}. It stands apart because it "
        f"is an attention sink: later tokens give it {brief_share(weight)} of their attention weight."
    )


def _coloured(found: Attribution, sink: str) -> str:
    """The text with its tokens coloured by their scores; a sink keeps its number, but sets no colour."""
    if not sink:
        return found._repr_html_()
    largest = float(np.abs(found.scores[1:]).max(initial=0))
    first = coloured(found.tokens[:1], found.scores[:1], np.inf)
    return (
        f"<p>{html.escape(found._sum)}</p>{first}{coloured(found.tokens[1:], found.scores[1:], largest)}"
        f"<p>{html.escape(sink)}</p>{LEGEND}"
    )


def _written(prediction: Prediction) -> list[tuple[str, str]]:
    """The choices with their probabilities as percentages, or with their values."""
    if prediction.meaning is LogitMeaning.value:
        return [(name, number(value, signed=True)) for name, value in prediction.choices]
    return [(name, f"{number(100 * probability)}%") for name, probability in prediction.choices]


def _print(model: LoadedModel, prediction: Prediction, found: Attribution, sink: str) -> None:
    print(f"\n{escaped(f'{model.name}: {prediction.what}')}")
    for name, written in _written(prediction):
        print(f"  {written:>8}  {escaped(name)}")
    print(f"\n{escaped(found._sum)}\n")
    sizes = np.abs(found.scores)
    order = [at for at in np.argsort(-sizes, kind="stable") if at or not sink][:_STRONGEST]
    largest = max((float(sizes[at]) for at in order), default=0.0) or 1.0
    tokens = {at: escaped(found.tokens[at]) for at in order}
    width = max(map(len, tokens.values()), default=0)
    for at in order:
        bar = "█" * round(20 * abs(float(found.scores[at])) / largest)
        print(f"  {number(float(found.scores[at]), signed=True):>9}  {tokens[at]:<{width}}  {bar}")
    print(f"\n{escaped(sink)}\n" if sink else "")
