"""Commands that run every analysis on a tiny model of each kind, and whether two of them have measured the same."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from benchmarks.commands import ANALYSES
from normscope.analyses.registry import analyses
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

TOLERANCE = 1e-9
"""How far numbers may be apart, as a fraction of the largest one of their column: sums may be taken in another order."""
RANKED = re.compile(r"change|spearman|correlation")
"""Columns of rank correlations, in which numbers that are equal up to rounding may change places."""
RANKED_TOLERANCE = 1e-4


def commands(folder: Path, tokenizer: PreTrainedTokenizerBase) -> Mapping[str, Sequence[str]]:
    """Write models and corpora into a folder, and return the arguments of commands that run on them.

    Args:
        folder: An empty folder.
        tokenizer: MiniLM's.

    Returns:
        The arguments of each command by its name; all but `output_dir`.
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
    return {name: (f"model.name={model}", *given, *_COMMON) for name, (model, *given) in tiny.items()}


_COMMON = ("device=cpu", "device.dtype=float64", "tracking=disabled", "report.enabled=false")


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


def differences(run: Path, other: Path) -> list[str]:
    """A line for each column of a table, or metric, that differs between the folders of two runs."""
    tables, others = _tables(run), _tables(other)
    assert tables.keys() == others.keys()
    return [
        f"{name}.{column}"
        for name, table in tables.items()
        for column in table
        if column != "error_bound" and not _equal(table[column], others[name][column], f"{name}.{column}")
    ]


def _tables(folder: Path) -> Mapping[str, pd.DataFrame]:
    named = tuple(f"{name}_" for name in analyses())
    tables = {path.stem: pd.read_parquet(path) for path in sorted((folder / "tables").glob("*.parquet"))}
    metrics = json.loads((folder / "results.json").read_text())["metrics"]
    return {name: table for name, table in tables.items() if name.startswith(named)} | {
        "metrics": pd.DataFrame({name: [value] for name, value in metrics.items()}, dtype=float)
    }


def _equal(one: pd.Series, other: pd.Series, name: str) -> bool:
    if not pd.api.types.is_float_dtype(one):
        return one.astype(str).tolist() == other.astype(str).tolist()
    a, b = (values.to_numpy(dtype=np.float64, na_value=np.nan) for values in (one, other))
    if one.name == "std":  # sums give the square; the root of what rounding leaves of 0 is large
        a, b = a**2, b**2
    scale = np.nanmax(np.abs(a), initial=1e-12, where=~np.isnan(a))
    return np.allclose(
        a, b, rtol=0, atol=(RANKED_TOLERANCE if RANKED.search(name) else TOLERANCE) * scale, equal_nan=True
    )
