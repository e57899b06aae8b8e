"""`normscope explain TEXT`: what a model makes of one text, in the terminal and as a live page that is saved."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from normscope.errors import InputError, escaped
from normscope.live.answers import image_explained
from normscope.live.session import Session
from normscope.live.texts import Limit, as_given, count_of, require_kind
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.loading import load
from normscope.models.stored.logit_meaning import LogitMeaning
from normscope.reporting.options import Verbosity
from normscope.reporting.page import report
from normscope.reporting.page.live_page import live_page
from normscope.rounding import number
from normscope.running.options import RunOptions
from normscope.running.progress import Phase, Phases
from normscope.streams import wrapped

PAGE = "explain.html"

_STRONGEST = 8
"""Tokens that are printed."""
_CHOICES = 5
"""Predictions that are printed."""


def explain(options: RunOptions, text: str, folder: Path, question: str = "") -> Path:
    """Explain one text: print what the model predicts and from which tokens, and write the page.

    Args:
        options: The model, the device, `dataset.chat_template` and `attention`; all other options are ignored.
        text: The text, or two texts with ` ||| ` between them; with `dataset.chat_template`, a conversation (see
            `live.texts`). For a model of images, the file of one.
        folder: Where the page goes; it is created.
        question: The text that belongs to an image: a question, for a vision–language model; for a model that compares images
            and texts, what the image is compared with.

    Raises:
        InputError: If the text is empty or too long, or the model cannot be attributed.
    """
    if not text.strip():
        raise InputError("explain: expected a text, got an empty one")
    with Phases([Phase.MODEL, Phase.TEXT], shown=options.verbosity is not Verbosity.quiet) as phases:
        model = load(options.model, options.device)
        require_kind(model, text, question)
        phases.begin(Phase.TEXT)
        if model.reader is not None or model.retrieves:
            return _image_explained(model, Path(text), folder, question)
        if question:
            return _image_explained(model, (Path(text), question), folder)
        chat = bool(options.dataset.chat_template)
        limit = Limit(count_of(model, as_given(model, text, chat=chat)), "the text")
        session = Session([model], limit, keeps=True, attention=options.attention)
        try:
            saved = session.saved({"text": text, "through": "1"} | ({"chat": "1"} if chat else {}), phases.steps)
        finally:
            session.engine.close(5)
    answers = {part: json.loads(answer) for part, answer in saved["answers"].items()}
    prediction = answers["prediction 0"]
    if "scores" not in prediction:
        raise InputError(prediction["note"])
    _print(model.name, prediction)
    return report.write_page(folder, PAGE, lambda: live_page(session.about(), saved, text))


def _image_explained(model: LoadedModel, image: Path | tuple[Path, str], folder: Path, text: str = "") -> Path:
    """Print what a model makes of an image, of a question about it, or of a text that it is compared with; write the page."""
    found = image_explained(model, image, text)
    print(f"\n{found}\n")
    return report.write_page(folder, PAGE, lambda: report.page(found))


def _print(name: str, prediction: Mapping[str, Any]) -> None:
    print("\n" + escaped(f"{name}: {prediction['what']}"))
    for choice, value in prediction["choices"][:_CHOICES]:
        is_value = prediction["meaning"] == LogitMeaning.value
        written = number(value, signed=True) if is_value else f"{number(100 * value)}%"
        print(f"  {written:>8}  {escaped(prediction['labels'][choice])}")
    print(f"\n{wrapped(escaped(prediction['sum']))}\n")
    print("The tokens that add the most to it or, below 0, take the most from it:")
    rows = [*zip(prediction["tokens"], prediction["scores"], strict=True)]
    strongest = sorted((row for row in rows if row[1]), key=lambda row: -abs(row[1]))[:_STRONGEST]
    first = prediction["first"]
    if first:
        strongest.append((first["name"], first["value"]))
    largest = max((abs(score) for _, score in strongest), default=0.0) or 1.0
    shown = [(escaped(name), score) for name, score in strongest]
    width = max((len(name) for name, _ in shown), default=0)
    for name, score in shown:
        bar = "█" * round(20 * abs(score) / largest)
        print(f"  {number(score, signed=True):>9}  {name:<{width}}  {bar}")
    print(f"\n{wrapped(escaped(first['said']))}\n" if first else "")
