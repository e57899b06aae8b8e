"""The translation model of the toy corpus: trained on the spot, in two minutes, and kept for the next run."""

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
"""Pairs that it is trained on."""

RECIPE = Recipe(
    epochs=10,
    vocabulary=400,  # small enough that many words are several subwords
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
    """The folder of a trained model, from the cache where it has been trained before.

    Args:
        seed: Seed of training; the sentences that it is trained on are others than those of `ToyCorpus(…, seed)`.
        say: Told that training begins, and where the model is kept.
        recipe: Shape and training; RECIPE by default.
        pairs: Pairs to train on; PAIRS by default.
    """
    recipe, pairs = dataclasses.replace(recipe or RECIPE, seed=seed), pairs or PAIRS
    folder = _cache() / f"toy-{_digest(recipe, pairs)}"
    if (folder / "config.json").is_file():
        say(f"the toy translation model was trained before and is taken from {folder}")
        return folder
    say("training a toy translation model of Marian's architecture first (some two minutes on two cores)")
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".toy-"))
    try:
        examples = ToyCorpus(pairs, seed + 1).examples()
        train([(example.text, example.text_pair or "") for example in examples], recipe, made)
        made.rename(folder)
    except OSError:
        if not (folder / "config.json").is_file():  # another run may have been faster
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "normscope"


def _digest(recipe: Recipe, pairs: int) -> str:
    """What the model depends on: a changed grammar or library makes another one."""
    grammar = Path(toy.__file__).read_bytes()
    facts = f"{recipe} {pairs} {torch.__version__} {transformers.__version__}".encode()
    return hashlib.sha256(grammar + facts).hexdigest()[:16]
