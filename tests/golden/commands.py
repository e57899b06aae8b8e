"""The commands whose results are kept: every analysis, on a tiny model of each kind and on real weights."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from benchmarks.commands import ANALYSES
from normscope.analyses.registry import analyses
from tests.conftest import MINILM
from tests.tiny import FAMILY_CONFIGS, STACK_CONFIGS
from tests.treebank import write_treebank

TEXTS = [
    "The old river walks, and the cat sees it.",
    "A cat.",
    "The river is old. It walks, it sees, and it is cold today",
    "Nobody knows why the lighthouse was built so far from the harbour, but the fishermen were glad of it.",
    "Seven of the eleven boats came back; the others had been sold.",
]
PAIRS = [
    {"text": TEXTS[0], "text_pair": "An old cat walks by the river.", "score": 3.5},
    {"text": TEXTS[2], "text_pair": "The cold river is old.", "score": 4.0},
    {"text": TEXTS[3], "text_pair": "The lighthouse is a long way from the harbour.", "score": 4.5},
    {"text": TEXTS[4], "text_pair": "A cat.", "score": 0.5},
]
TRANSLATIONS = [
    ("der alte fluss", "the old river", "1-1 2-2 3-3"),
    ("die katze sieht den fluss", "the cat sees the river", "1-1 2-2 3-3 4p4 5-5"),
    ("wir gehen heute", "today we walk", "1-2 2-3 3-1"),
    ("es ist kalt heute", "it is cold", "1-1 2-2 3-3 4p3"),
]

EXACT = 1e-9
"""Tolerance in float64, where sums may be taken in another order."""
ROUNDED = 1e-3
"""Tolerance in float32: kernels of other processors round differently, and every layer multiplies the difference."""


@dataclasses.dataclass(frozen=True)
class Command:
    """A run."""

    arguments: tuple[str, ...]
    tolerance: float
    """How far numbers may be apart, as a fraction of the largest value of their column."""


def commands(folder: Path, tokenizer: PreTrainedTokenizerBase) -> Mapping[str, Command]:
    """Write models and corpora into a folder, and say what is run on them.

    Args:
        folder: An empty folder.
        tokenizer: MiniLM's.

    Returns:
        Commands by name; all but `output_dir`.
    """
    corpora = _corpora(folder)
    bert = _saved(AutoModelForMaskedLM, FAMILY_CONFIGS["bert"], tokenizer, folder / "bert")
    llama = _saved(AutoModelForCausalLM, FAMILY_CONFIGS["llama"], tokenizer, folder / "llama")
    t5 = _saved(AutoModelForSeq2SeqLM, STACK_CONFIGS["t5"], tokenizer, folder / "t5")
    marian = _saved(AutoModelForSeq2SeqLM, STACK_CONFIGS["marian"], tokenizer, folder / "marian")
    every = f"analysis=[{','.join(ANALYSES)}]"
    cross = f"analysis=[{','.join(name for name, info in analyses().items() if info.supports_cross_attention)}]"
    chosen = "analysis.outliers.dimensions=[3,7]"
    short = "analysis.sinks.length=12"
    gold = (
        f"analysis.alignment.gold.path={folder / 'gold'}",
        "analysis.alignment.gold.base=1",
        "analysis.alignment.smoothgrad=2",
    )
    tiny = {
        "bert": (bert, every, chosen, short, *corpora["texts"]),
        "bert_pairs": (bert, "analysis=similarity", "analysis.similarity.pooling=mean", *corpora["pairs"]),
        "bert_words": (bert, "analysis=[mixing,norms]", "level=word", *corpora["texts"]),
        "bert_treebank": (bert, "analysis=syntax", *corpora["treebank"]),
        "llama": (llama, every, chosen, short, *corpora["texts"]),
        "t5": (t5, every, chosen, short, *corpora["texts"]),
        "t5_cross": (t5, cross, "model.stack=cross", chosen, *gold, *corpora["translations"]),
        "marian": (marian, cross, "model.stack=cross", chosen, *gold, *corpora["translations"]),
    }
    real = {
        "minilm": (MINILM, every, "layers=[2,6]", short, *corpora["texts"]),
        "minilm_pairs": (MINILM, "analysis=similarity", *corpora["pairs"]),
        "minilm_treebank": (MINILM, "analysis=syntax", "layers=[2,6]", *corpora["treebank"]),
    }
    return {
        name: Command((f"model.name={model}", *given, f"device.dtype={dtype}", *_QUICK), tolerance)
        for group, dtype, tolerance in ((tiny, "float64", EXACT), (real, "float32", ROUNDED))
        for name, (model, *given) in group.items()
    }


_QUICK = ("device=cpu", "tracking=disabled", "report.enabled=false")


def _saved(auto: Any, settings: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, folder: Path) -> Path:
    """A checkpoint with a head whose every parameter is random: biases are not zero, attention is not flat."""
    torch.manual_seed(0)
    changed = dict(settings) | {"vocab_size": len(tokenizer)}
    if "max_position_embeddings" in settings:
        changed["max_position_embeddings"] = 160
    model = auto.from_config(AutoConfig.for_model(changed.pop("model_type"), **changed))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _corpora(folder: Path) -> Mapping[str, tuple[str, str]]:
    """Arguments that read each corpus."""
    files = {name: folder / name for name in ("texts.txt", "pairs.jsonl", "translations.txt", "gold")}
    files["texts.txt"].write_text("\n".join(TEXTS) + "\n")
    files["pairs.jsonl"].write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS))
    files["translations.txt"].write_text("".join(f"{source} ||| {target}\n" for source, target, _ in TRANSLATIONS))
    files["gold"].write_text("".join(f"{links}\n" for *_, links in TRANSLATIONS))
    return {
        "texts": ("dataset=text", f"dataset.path={files['texts.txt']}"),
        "pairs": ("dataset=text", f"dataset.path={files['pairs.jsonl']}"),
        "translations": ("dataset=parallel", f"dataset.path={files['translations.txt']}"),
        "treebank": ("dataset=conllu", f"dataset.path={write_treebank(folder)}"),
    }
