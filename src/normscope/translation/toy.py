"""The translation model of the toy corpus: trained on first use, in two minutes, and cached."""

import dataclasses
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import transformers

from normscope.data import toy_corpus as toy
from normscope.data.toy_corpus import ToyCorpus
from normscope.translation.training import Recipe, train

PAIRS = 3000
"""Number of training pairs."""

RECIPE = Recipe(
    epochs=10,
    vocabulary=400,  # small enough that many words are split into subwords
    model=128,
    feed_forward=256,
    heads=4,
    encoder_layers=2,
    decoder_layers=3,
    dropout=0.1,
    learning_rate=2e-3,
    warmup_steps=100,
)


def toy_model(seed: int, say: Callable[[str], None], recipe: Recipe | None = None, pairs: int | None = None) -> Path:
    """The folder of the trained model, from the cache if it was trained before.

    Args:
        seed: Seed of training. The training pairs are not those of `ToyCorpus(…, seed)`.
        say: Called with messages about progress.
        recipe: Shape and training; RECIPE by default.
        pairs: Number of training pairs; PAIRS by default.
    """
    recipe, pairs = dataclasses.replace(recipe or RECIPE, seed=seed), pairs or PAIRS
    folder = _cache() / f"toy-{_digest(recipe, pairs)}"
    if (folder / "config.json").is_file():
        say(f"the toy translation model was trained before; using {folder}")
        return folder
    say("training a toy translation model with Marian's architecture first (about two minutes on two cores)")
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".toy-"))
    try:
        examples = ToyCorpus(pairs, seed + 1).examples()
        train([(example.text, example.text_pair or "") for example in examples], recipe, unfinished, say=say)
        unfinished.rename(folder)
    except OSError:
        if not (folder / "config.json").is_file():  # another run may have been first
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _cache() -> Path:
    """Our folder in the user's cache; it may not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "normscope"


def _digest(recipe: Recipe, pairs: int) -> str:
    """A hash of everything that the model depends on, including the grammar and the libraries."""
    grammar = Path(toy.__file__).read_bytes()
    facts = f"{recipe} {pairs} {torch.__version__} {transformers.__version__}".encode()
    return hashlib.sha256(grammar + facts).hexdigest()[:16]
