"""What is measured: models, batches, and the ways to run one over the other."""

import dataclasses
import re
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModel, BertConfig, LlamaConfig, ModernBertConfig
from transformers.configuration_utils import PretrainedConfig
from transformers.modeling_utils import PreTrainedModel

from benchmarks.straightforward import mixing_ratios
from normscope.analyses import ANALYSES
from normscope.analyses.analysis import Subject
from normscope.analysis_options import AnalysisOptions, FrequencyOptions, NormsOptions, ScoreOptions
from normscope.data.batching import Batch
from normscope.data.categories import ALL, CATEGORIES
from normscope.data.frequency import TokenFrequencies
from normscope.models.block import AttentionBlock
from normscope.models.families import layout_of
from normscope.models.observer import Observer

_TINY: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "max_position_embeddings": 8192,
}

SHAPES: dict[str, PretrainedConfig] = {
    "BERT-base": BertConfig(),
    # Cost against length is a matter of width: three layers tell as much as twelve.
    "BERT-base, 3": BertConfig(num_hidden_layers=3, max_position_embeddings=8192),
    "tiny ModernBERT": ModernBertConfig(**_TINY, vocab_size=1000, intermediate_size=128, pad_token_id=0),
    "tiny Llama": LlamaConfig(**_TINY, vocab_size=1000, intermediate_size=256, num_key_value_heads=2, use_cache=False),
    "MiniLM": BertConfig(hidden_size=384, num_hidden_layers=6, intermediate_size=1536),
}

BARE = "bare"
STRAIGHTFORWARD = "straightforward"
EXACT = "exact"


@dataclasses.dataclass(frozen=True)
class Scenario:
    """One model shape at one length, and the ways it is run."""

    shape: str
    sequences: int
    length: int
    ways: tuple[str, ...]
    """`bare`, `straightforward`, or names of analyses joined by +; `, exact` keeps every pair for the correlation."""


ALL_FOUR = "mixing+norms+outliers+score"
EVERYTHING = "mixing+norms+frequency+outliers+score"

SCENARIOS = (
    Scenario("BERT-base", 8, 128, (BARE, "mixing", "norms", "norms, exact", "outliers+score", EVERYTHING)),
    Scenario("BERT-base", 2, 512, (BARE, "mixing")),
    Scenario("MiniLM", 32, 128, (BARE, "mixing", "norms", "outliers+score", EVERYTHING)),
    Scenario("BERT-base", 2, 128, (BARE, "mixing", STRAIGHTFORWARD)),
)


LENGTHS = tuple(
    Scenario(shape, max(1, 1024 // length), length, (BARE, "mixing", "norms", "outliers", ALL_FOUR))
    for shape, lengths in {
        "BERT-base, 3": (128, 512, 2048, 4096, 8192),
        "tiny ModernBERT": (8192,),
        "tiny Llama": (8192,),
    }.items()
    for length in lengths
)


def prepare(scenario: Scenario) -> dict[str, Callable[[], None]]:
    """One function per way; each call runs one batch. Weights are random: time and memory do not depend on them."""
    torch.manual_seed(0)
    model = AutoModel.from_config(SHAPES[scenario.shape]).eval().requires_grad_(False)
    batch = random_batch((scenario.sequences, scenario.length), model.config.vocab_size)
    inputs = batch.model_inputs()

    def bare() -> None:
        model.set_attn_implementation("sdpa")
        with torch.inference_mode():
            model(**inputs)

    def straightforward() -> None:
        mixing_ratios(model, inputs)

    def analysed(names: list[str]) -> Callable[[], None]:
        return analysing(model, batch, names)

    ways = {BARE: bare, STRAIGHTFORWARD: straightforward}
    return {way: ways.get(way) or analysed(re.split(r"\+|, ", way)) for way in scenario.ways}


def analysing(model: PreTrainedModel, batch: Batch, names: Collection[str]) -> Callable[[], None]:
    """A function that shows one batch to analyses, whose correlations are estimated as they are on a corpus worth measuring.

    Args:
        model: A model of a known family.
        batch: The batch.
        names: Names of the analyses; EXACT beside them keeps every pair for the correlation instead.
    """
    options = AnalysisOptions(
        norms=NormsOptions(exact_pairs=10**12 if EXACT in names else 0, seed=0),
        frequency=FrequencyOptions(seed=0),
        score=ScoreOptions(seed=0),
    )
    layout = layout_of(model.config.model_type)
    observed = Observer(model, layout)
    layers = list(observed.parameters)
    subject = Subject(
        layers=layers,
        categories=[*CATEGORIES, ALL],
        parameters=observed.parameters,
        hidden_norms=observed.hidden_norms,
        methods=layout.methods,
        depth=len(layers),
        frequencies=lambda _options: TokenFrequencies(*(np.arange(1, model.config.vocab_size + 1),) * 2),
    )
    analyses = [ANALYSES[name](getattr(options, name), subject) for name in names if name != EXACT]

    def visit(block: AttentionBlock) -> None:
        for analysis in analyses:
            analysis.observe(block, batch)

    def visit_hidden(layer: int, vectors: Tensor) -> None:
        for analysis in analyses:
            analysis.observe_hidden(layer, vectors, batch)

    hidden = [0, *layers] if any(analysis.hidden for analysis in analyses) else ()
    inputs = batch.model_inputs()

    def forward() -> None:
        with Observer(model, layout, layers, hidden) as observer:
            observer.run(inputs, visit, visit_hidden)

    return forward


def random_batch(shape: tuple[int, int], vocabulary: int) -> Batch:
    """Random tokens of random categories."""
    ids = torch.randint(vocabulary // 30, vocabulary, shape)
    real = torch.ones(shape, dtype=torch.bool)
    # A twentieth of padding in one sequence, so that the masks that real batches need are paid for by both sides.
    real[-1, -max(1, shape[1] // 20) :] = False
    categories = torch.randint(len(CATEGORIES), shape).masked_fill(~real, -1)
    return Batch(ids, None, real, categories, tuple(range(shape[0])))
