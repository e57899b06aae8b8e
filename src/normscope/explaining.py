"""`normscope explain TEXT`: what a model makes of one text, in the terminal and as one page."""

import base64
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from normscope.api.attributed_maps import attribution_maps
from normscope.api.attributed_scores import attribute
from normscope.api.attribution import Attribution
from normscope.api.decomposition import decompose
from normscope.errors import InputError, escaped, one_line
from normscope.models.loaded import LoadedModel
from normscope.models.loading import load
from normscope.predictions import Prediction, prediction_of
from normscope.reporting.explorer import TokenMaps
from normscope.reporting.page.explorer_page import explained_page
from normscope.rounding import counted, number
from normscope.running.options import RunOptions
from normscope.typed_texts import as_given
from normscope.untrusted.writing import write_file

PAGE = "explain.html"

_STRONGEST = 8
"""Tokens and heads that are printed."""
_LARGEST = 1_500_000
"""Values of token maps on the page, about 3 MB; single heads, and then all maps, are left out beyond it."""


def explain(options: RunOptions, text: str, folder: Path) -> Path:
    """Explain one text: print what the model predicts and from which tokens, and write the page.

    Args:
        options: The model, the device and `dataset.chat_template`; all other options are ignored.
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
    by_head = not model.layout.reads_target
    found = attribute(model, given, prediction.target, by=["layer", "head"] if by_head else None)
    assert isinstance(found, Attribution)
    if callable(prediction.target):
        found = dataclasses.replace(found, what="length of the embedding")
    maps, note = _maps(model, given)
    _print(model, prediction, found)
    heads = found.strongest(_STRONGEST) if by_head else pd.DataFrame()
    page = explained_page(
        title=f"{model.name}: {text[:80]}",
        what=prediction.what,
        choices=prediction.choices,
        scores=found._repr_html_(),
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


def _maps(model: LoadedModel, text: Any) -> tuple[TokenMaps | None, str]:
    """The token maps of the text, with its shares through the whole model, and what is left out."""
    decomposed = decompose(model, text)
    queries, keys = len(decomposed.tokens), len(decomposed.key_tokens)
    values = model.layers * queries * keys
    if values * 7 > _LARGEST:
        return None, f"{counted(queries, 'token')} are too many for maps of all pairs on one page"
    note = ""
    if values * (7 + model.layout.attention.heads) <= _LARGEST:
        decomposed = decompose(model, text, heads=True)
    else:
        note = "shown without single heads, which would make the page too large"
    maps = decomposed.explorer().sentences[0]
    if model.layout.reads_target:
        return maps, note
    through = attribution_maps(model, text, ["decompx"])["decompx"].cumulative[:, :, :keys]
    return dataclasses.replace(maps, maps={**maps.maps, "decompx": through.astype(np.float32)}), note


def _print(model: LoadedModel, prediction: Prediction, found: Attribution) -> None:
    print(f"\n{escaped(f'{model.name}: {prediction.what}')}")
    for name, probability in prediction.choices:
        print(f"  {number(100 * probability):>7}%  {escaped(name)}")
    largest = float(np.abs(found.scores).max(initial=0)) or 1.0
    print(f"\n{escaped(found._sum)}\n")
    order = np.argsort(-np.abs(found.scores), kind="stable")[:_STRONGEST]
    tokens = {at: escaped(found.tokens[at]) for at in order}
    width = max(map(len, tokens.values()), default=0)
    for at in order:
        bar = "█" * round(20 * abs(float(found.scores[at])) / largest)
        print(f"  {number(float(found.scores[at]), signed=True):>9}  {tokens[at]:<{width}}  {bar}")
    print()
