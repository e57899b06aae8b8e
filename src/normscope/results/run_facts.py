"""The `facts` of results.json: where the numbers of a run come from."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from normscope.errors import printable
from normscope.rounding import brief_share, counted

Type = Literal["string", "integer", "number", "object", "array"]
"""A type of JSON."""


@dataclasses.dataclass(frozen=True)
class Fact:
    """One fact. It may be null, and a run that failed early lacks most of them."""

    type: Type
    meaning: str
    of: Type | None = None
    """What the values of an object, or the items of an array, are."""


FACTS: Mapping[str, Fact] = {
    "versions": Fact(
        "object", "Versions of Python, of normscope and of the libraries that numbers depend on.", "string"
    ),
    "platform": Fact("string", "The operating system."),
    "git_commit": Fact("string", "Commit of the checkout that ran, followed by `+` if it had uncommitted changes."),
    "finished": Fact("string", "Local time at which the run ended, `YYYY-MM-DD HH:MM:SS`."),
    "command": Fact("string", "The command line; for a job of a sweep, one that runs this job alone."),
    "model": Fact("string", "Name of the model."),
    "model_revision": Fact("string", "Commit of the model on the Hub."),
    "model_sha256": Fact("string", "Digest of the weights."),
    "training_step": Fact("integer", "Training step of the checkpoint."),
    "device": Fact("string", "The device that the model ran on."),
    "dtype": Fact("string", "Number format of the weights."),
    "layers_without_attention": Fact("array", "Layers of a hybrid that have no softmax attention.", "integer"),
    "seed": Fact("integer", "Seed of all random choices."),
    "examples": Fact("integer", "Number of examples read."),
    "skipped": Fact("object", "Number of examples skipped, by reason.", "integer"),
    "remarks": Fact("object", "Number of examples used, by what was lost of them or is unusual about them.", "integer"),
    "left_out": Fact("array", "Files in the folder of the corpus that are no part of it.", "string"),
    "not_shown": Fact("array", "What the token maps leave out to keep the page small.", "string"),
    "unknown_share": Fact(
        "number", "Share of the unknown token among the ordinary tokens; null without ordinary tokens."
    ),
    "examples_used": Fact("integer", "Number of examples analysed."),
    "sequences": Fact("integer", "Number of sequences analysed."),
    "cut": Fact("integer", "Number of examples truncated."),
    "tokens": Fact("integer", "Number of tokens analysed."),
    "tokens_by_category": Fact("object", "Number of tokens by category.", "integer"),
    "compared": Fact(
        "object",
        "Counts of the pairs whose texts are compared, if other analyses read these pairs as single sequences.",
    ),
    "seconds": Fact("number", "Wall time of the run, in seconds."),
    "phases": Fact(
        "object",
        "Seconds of each phase, in order; `start`, in which Python's libraries are imported, is not part of `seconds`. For a "
        "resumed run, those of the process that completed it.",
        "number",
    ),
    "steps": Fact("object", "Seconds of the steps within phases, by name.", "number"),
    "model_share": Fact(
        "number", "Share of the time of the pass over the corpus in which the model and the analyses ran."
    ),
    "verification_error": Fact("number", "Largest relative difference from the untouched model, measured at load."),
    "verification_layer": Fact("integer", "Layer of that difference, from 1."),
    "verification_part": Fact("string", "Part of the layer that has this difference."),
}
"""All facts, by name."""

_MANY_UNKNOWN = 0.05
"""From this share of unknown tokens on, numbers are about what the tokenizer does not know rather than about the texts."""


def lost(facts: Mapping[str, Any], longest: str = "the maximum number of tokens (dataset.max_length)") -> list[str]:
    """What was lost of a corpus and what is unusual about it, in sentences.

    Args:
        facts: The facts of a run, of which those are read that say what became of the corpus.
        longest: What examples were truncated to.
    """
    sentences = {f"truncated to {longest}": facts.get("cut", 0)}
    sentences |= {f"skipped: {reason}": number for reason, number in (facts.get("skipped") or {}).items()}
    said = [f"{counted(number, 'example was', 'examples were')} {what}" for what, number in sentences.items() if number]
    said += [f"{counted(number, 'example')} {what}" for what, number in (facts.get("remarks") or {}).items()]
    if unknown := facts.get("unknown_share"):
        sentence = f"the tokenizer does not know {brief_share(unknown)} of the ordinary tokens"
        many = unknown > _MANY_UNKNOWN
        said.append(f"warning: {sentence}; do it and the texts share a language?" if many else sentence)
    if names := facts.get("left_out"):
        said.append(f"files of the folder that were not read: {printable(', '.join(names), 300)}")
    return said
