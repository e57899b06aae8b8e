"""What is measured: models, batches, and alternative ways to run them."""

import copy
import dataclasses
import json
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from transformers import AutoModel, AutoModelForCausalLM, BertConfig, GPT2Config, LlamaConfig, ModernBertConfig
from transformers.configuration_utils import PretrainedConfig
from transformers.modeling_utils import PreTrainedModel

from benchmarks.straightforward import mixing_ratios
from normscope.analyses.base import Analysis, AnalysisContext
from normscope.analyses.frequency import FREQUENCIES
from normscope.analyses.registry import analyses
from normscope.api.attention_values import attention
from normscope.api.attributed_scores import attribute
from normscope.api.models import wrap
from normscope.api.targets import Answer
from normscope.attribution.methods import MapMethod
from normscope.attribution.model_maps import model_maps
from normscope.attribution.passes import held_pass
from normscope.attribution.scalars import attribute_scalars
from normscope.attribution.similarities import compared, embedded_parts
from normscope.data.batching import Batch
from normscope.data.categories import ALL, CATEGORIES
from normscope.data.token_frequencies import TokenFrequencies
from normscope.maths.choices import Pooling
from normscope.maths.embedder import Embedder
from normscope.models.facts import ModelFacts
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.tokenizer_loading import TokenNames
from normscope.models.observe.observer import Observer
from normscope.models.observe.reading import facts_of_config
from normscope.running.memory import run_batch

_TINY: dict[str, Any] = {
    "vocab_size": 1000,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "max_position_embeddings": 8192,
}

SHAPES: dict[str, PretrainedConfig] = {
    "BERT-base": BertConfig(),
    "BERT-large": BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096),
    # Relative cost by length depends on width, not depth, so three layers are enough.
    "BERT-base, 3": BertConfig(num_hidden_layers=3, max_position_embeddings=8192),
    "tiny ModernBERT": ModernBertConfig(**_TINY, intermediate_size=128, cls_token_id=1, sep_token_id=2),
    "tiny Llama": LlamaConfig(**_TINY, intermediate_size=256, num_key_value_heads=2, use_cache=False),
    # GPT-2's shape.
    "GPT-2": GPT2Config(use_cache=False, n_positions=8192),
    "MiniLM": BertConfig(hidden_size=384, num_hidden_layers=6, intermediate_size=1536),
    "Llama, 8 heads": LlamaConfig(
        vocab_size=1000,
        hidden_size=512,
        num_hidden_layers=8,
        num_attention_heads=8,
        intermediate_size=1376,
        use_cache=False,
    ),
    # Gated, with as many weights in a feed-forward network as BERT-base.
    "Llama, base": LlamaConfig(
        vocab_size=30522,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=2048,
        use_cache=False,
    ),
    "ModernBERT-base": ModernBertConfig(),
    "SmolLM2": LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        intermediate_size=1536,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        use_cache=False,
    ),
    "Llama-3.2-1B": LlamaConfig(
        vocab_size=128256,
        hidden_size=2048,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=8192,
        max_position_embeddings=131072,
        tie_word_embeddings=True,
        use_cache=False,
    ),
    "Llama-3.1-8B": LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=14336,
        max_position_embeddings=131072,
        use_cache=False,
    ),
}

BARE = "bare"
STRAIGHTFORWARD = "straightforward"
ONE_SCALAR = "attribution of a scalar"
VALUE_ZEROING = "value zeroing"
SIMILARITY = "similarity"
EAGER = "output_attentions"
LAST_ROW = "rows of the last token"
BY_SENTENCE = "rows of the last token by sentence"
"""Sentences of 20 tokens."""
BLOCKS = "sums of 64 × 64 regions"
PROMPT = 100
"""Number of tokens before an answer that is attributed."""
ANSWER = f"attribution of what follows {PROMPT} tokens"
ANSWER_THROUGH = f"{ANSWER}, weights followed"


@dataclasses.dataclass(frozen=True)
class Scenario:
    """One model shape at one length, and the alternatives to compare."""

    shape: str
    sequences: int
    length: int
    ways: tuple[str, ...]
    """`bare`, `straightforward`, `attribution of a scalar`, `value zeroing`, `similarity` of each sequence with itself,
    attention in eager mode, of the last token (also by sentence) or between regions, the attribution of an answer, with
    attention weights held or followed, or names of analyses joined by +."""
    device: str = "cpu"
    dtype: str = "float32"
    layers: int | None = None
    """Number of layers, if not the shape's."""
    memory: bool = True
    """Whether to measure memory, which takes a process per alternative on a CPU."""

    def packed(self) -> str:
        """The scenario as JSON, for another process."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def unpacked(cls, word: str) -> "Scenario":
        """The inverse of `packed`."""
        fields = json.loads(word)
        return cls(**fields | {"ways": tuple(fields["ways"])})


ALL_FOUR = "mixing+norms+outliers+score"
EVERYTHING = "mixing+norms+frequency+outliers+score"


def shapes() -> Iterator[Scenario]:
    """Models and analyses."""
    yield Scenario("BERT-base", 8, 128, (BARE, "mixing", "norms", "outliers+score", EVERYTHING))
    yield Scenario("BERT-base", 2, 512, (BARE, "mixing"))
    yield Scenario("MiniLM", 32, 128, (BARE, "mixing", "norms", "outliers+score", "sinks", "feedforward", EVERYTHING))
    yield Scenario("BERT-base", 2, 128, (BARE, "mixing", STRAIGHTFORWARD))
    yield Scenario("MiniLM", 1, 128, (BARE, ONE_SCALAR, SIMILARITY, VALUE_ZEROING), memory=False)
    yield Scenario("Llama, base", 8, 128, (BARE, "mixing", "feedforward"))
    yield Scenario("MiniLM", 1, 8, (BARE, "mixing", "norms", EVERYTHING), memory=False)


def lengths() -> Iterator[Scenario]:
    """Cost by length, for a wide model and for tiny ones, which spend nearly all their time in attention."""
    for shape, sizes in {
        "BERT-base, 3": (128, 512, 1024, 2048, 4096, 8192),
        "tiny ModernBERT": (512, 2048, 8192),
        "tiny Llama": (512, 2048, 8192),
    }.items():
        for length in sizes:
            yield Scenario(shape, max(1, 1024 // length), length, (BARE, "mixing", "norms", "outliers", ALL_FOUR))


def depths() -> Iterator[Scenario]:
    """Cost by depth."""
    for layers in (6, 12, 24, 48):
        yield Scenario("MiniLM", 8, 128, (BARE, "mixing", "norms", EVERYTHING), layers=layers)


def attention_lengths() -> Iterator[Scenario]:
    """Attention between tokens and regions, beside eager mode as far as its memory goes."""
    yield Scenario("SmolLM2", 1, 4700, (BARE, BY_SENTENCE))
    for length in (1024, 4096, 8192):  # at the last, eager mode keeps 17 GB of weights
        yield Scenario("Llama, 8 heads", 1, length, (BARE, LAST_ROW, BLOCKS, EAGER))
    for length in (16384, 32768):  # relative cost depends on length and width, not on depth
        yield Scenario("Llama, 8 heads", 1, length, (BARE, LAST_ROW, BLOCKS), layers=2)


SUITES: dict[str, Callable[[], Iterator[Scenario]]] = {
    "shapes": shapes,
    "lengths": lengths,
    "depths": depths,
    "attention": attention_lengths,
}
"""What is measured on the CPU; `gpu.py` has what is measured on a GPU."""


def prepare(scenario: Scenario) -> dict[str, Callable[[], None]]:
    """One function per alternative, which runs one batch. Weights are random, since time and memory do not depend on them."""
    torch.manual_seed(0)
    config = copy.deepcopy(SHAPES[scenario.shape])
    config.num_hidden_layers = scenario.layers or config.num_hidden_layers
    # Positions that a shape does not have change neither time nor memory of what is computed.
    config.max_position_embeddings = max(config.max_position_embeddings, scenario.length)
    if not {ANSWER, ANSWER_THROUGH}.isdisjoint(scenario.ways):
        return _answers(config, scenario)
    model = _model(AutoModel, config, scenario)
    # A single text of a causal model has no padding, and so no mask, which would cost the bare pass its fastest kernel.
    padded = {LAST_ROW, BY_SENTENCE, BLOCKS, EAGER}.isdisjoint(scenario.ways)
    batch = random_batch((scenario.sequences, scenario.length), model.config.vocab_size, padded=padded).to(model.device)
    inputs, facts = batch.model_inputs(), facts_of_config(model.config)

    def bare() -> None:
        model.set_attn_implementation("sdpa")
        with torch.inference_mode():
            model(**inputs)

    def straightforward() -> None:
        mixing_ratios(model, inputs)

    def one_scalar() -> None:
        passed = held_pass(model, facts, inputs)
        # The coordinate of the sentence's vector that is furthest from 0; the sum of all of them is 0 behind a LayerNorm.
        vector = passed.returned[:, 0]
        attribute_scalars(passed, vector.take_along_dim(vector.abs().argmax(dim=-1, keepdim=True), dim=-1)[:, 0])

    def zeroed() -> None:
        model_maps(model, facts, inputs, [MapMethod.VALUE_ZEROING])

    def similar() -> None:
        embedder = Embedder(Pooling.mean)
        texts = [embedded_parts(model, facts, inputs, embedder=embedder) for _ in range(2)]
        compared(embedder.function, *texts)

    def in_eager_mode() -> None:
        model.set_attn_implementation("eager")
        with torch.inference_mode():
            model(**inputs, output_attentions=True)

    regions = [slice(each[0], each[-1] + 1) for each in np.array_split(np.arange(scenario.length), 64) if len(each)]

    of_20 = [slice(start, min(start + 20, scenario.length)) for start in range(0, scenario.length, 20)]

    def attended(queries: object, keys: object) -> Callable[[], None]:
        loaded = LoadedModel(model, _names(model.config.vocab_size), facts, scenario.shape, None, None)

        def run() -> None:
            attention(loaded, batch.input_ids[0].tolist(), queries=queries, keys=keys)

        return run

    def analysed(names: list[str]) -> Callable[[], None]:
        return analysing(model, batch, analyses_of(model, names))

    ways = {
        BARE: bare,
        STRAIGHTFORWARD: straightforward,
        ONE_SCALAR: one_scalar,
        VALUE_ZEROING: zeroed,
        SIMILARITY: similar,
        EAGER: in_eager_mode,
        LAST_ROW: attended("last", None),
        BY_SENTENCE: attended("last", of_20),
        BLOCKS: attended(regions, regions),
    }
    return {way: ways.get(way) or analysed(re.split(r"\+|, ", way)) for way in scenario.ways}


def _model(kind: type[AutoModel | AutoModelForCausalLM], config: PretrainedConfig, scenario: Scenario) -> Any:
    """A model with random weights, made where it runs, since the CPU takes long to make a large one."""
    with torch.device(scenario.device):
        return kind.from_config(config, dtype=getattr(torch, scenario.dtype)).eval().requires_grad_(False)


def _answers(config: PretrainedConfig, scenario: Scenario) -> dict[str, Callable[[], None]]:
    """A pass over a prompt and an answer with the model's head, and attributions of the answer's logits."""
    model = _model(AutoModelForCausalLM, config, scenario)
    loaded = wrap(model)
    ids = torch.randint(3, config.vocab_size, (1, scenario.length))
    inputs = {"input_ids": ids.to(model.device)}
    prompt, answer = ids[0, :PROMPT].tolist(), ids[0, PROMPT:].tolist()

    def bare() -> None:
        with torch.inference_mode():
            model(**inputs)

    def attributed(weights: str) -> Callable[[], None]:
        def run() -> None:
            attribute(loaded, prompt, Answer(answer), attention=weights)

        return run

    ways = {BARE: bare, ANSWER: attributed("held"), ANSWER_THROUGH: attributed("through")}
    return {way: ways[way] for way in scenario.ways}


def _names(count: int) -> TokenNames:
    return TokenNames.of([str(number) for number in range(count)])


def analyses_of(model: PreTrainedModel, names: Collection[str]) -> list[Analysis]:
    """Analyses of a model, with estimated correlations, as on a large corpus.

    Args:
        model: A model of a known family.
        names: Names of the analyses.
    """
    seed: dict[str, Any] = {"seed": 0}  # by default, that of the run
    context = context_of(model)
    infos = [analyses()[name] for name in names]
    return [info.load()(info.options(**(seed if hasattr(info.options, "seed") else {})), context) for info in infos]


def context_of(model: PreTrainedModel, facts: ModelFacts | None = None) -> AnalysisContext:
    """All layers and categories of a model of a known family, and made-up token frequencies."""
    facts = facts or facts_of_config(model.config)
    observed = Observer(model, facts)
    layers = list(observed.parameters)
    ranks = np.arange(1, model.config.vocab_size + 1)
    return AnalysisContext(
        layers=layers,
        categories=[*CATEGORIES, ALL],
        parameters=observed.parameters,
        methods=facts.methods,
        depth=len(layers),
        dtype=model.dtype,
        resources={FREQUENCIES: TokenFrequencies(ranks, ranks)},
    )


def analysing(model: PreTrainedModel, batch: Batch, measured: Sequence[Analysis]) -> Callable[[], None]:
    """A function that runs one batch through a model and analyses.

    Args:
        model: The model to observe.
        batch: The batch, on the model's device.
        measured: The analyses to update.
    """
    facts = facts_of_config(model.config)
    layers = list(range(1, model.config.num_hidden_layers + 1))
    needs = [analysis.requirements(analysis.options, facts) for analysis in measured]
    hidden = [0, *layers] if any(each.hidden for each in needs) else ()
    observer = Observer(model, facts, layers, hidden, feed_forward=any(each.feed_forward for each in needs))

    def forward() -> None:
        with observer:
            # A new batch: this one would keep what the analyses share.
            run_batch(observer, batch.to(batch.input_ids.device), measured)

    return forward


def duration(forward: Callable[[], object]) -> float:
    """Seconds that a call takes, including the device's work.

    Of one thread on a CPU, its own time, which other processes change little.
    """
    clock = time.perf_counter if torch.cuda.is_available() or torch.get_num_threads() > 1 else time.thread_time
    start = clock()
    forward()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - start


def random_batch(shape: tuple[int, int], vocabulary: int, *, padded: bool = True) -> Batch:
    """Random tokens of random categories.

    Args:
        padded: Whether the last sequence ends in padding, for whose mask every alternative pays, as with real batches.
    """
    ids = torch.randint(vocabulary // 30, vocabulary, shape)
    token_mask = torch.ones(shape, dtype=torch.bool)
    if padded:
        token_mask[-1, -max(1, shape[1] // 20) :] = False
    categories = torch.randint(len(CATEGORIES), shape).masked_fill(~token_mask, -1)
    return Batch(ids, None, token_mask, categories, tuple(range(shape[0])))
