"""Attribution against a known truth: a small model that looks up in its prompt what it answers.

A prompt says where some people live, and names one of them again: `Anna Paris . Ben Rome . Clara Oslo . Ben` has the answer
`Rome`. Nothing but two earlier words decides it, the same name and the city behind it, so a faithful method scores these
highest. The model is trained until it answers nearly all prompts that it has never seen.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import normscope
from normscope.attribution.baselines import Baseline
from normscope.attribution.methods import MapMethod, MapStage, defined_methods
from normscope.attribution.model_maps import model_maps
from normscope.attribution.readouts import PredictionReadout
from normscope.attribution.token_scores import token_scores
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.predictor import Predictor
from normscope.models.load.task_heads import Head

NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo", "Ida", "Jonas", "Karl", "Lena")
CITIES = ("Paris", "Rome", "Oslo", "Lima", "Cairo", "Delhi", "Tokyo", "Quito", "Sofia", "Dublin", "Vienna", "Accra")
PAIRS = 4
"""People in a prompt."""

_VOCABULARY = {word: number for number, word in enumerate(("[PAD]", "[UNK]", *NAMES, *CITIES, "."))}
_BATCH, _QUESTIONS, _STEPS = 64, 8, 3000
_RIGHT = 0.99
"""Share of right answers at which training ends."""


@dataclasses.dataclass(frozen=True, eq=False)
class Trained:
    """A model that has learned the task."""

    model: LoadedModel
    accuracy: float
    """Share of right answers on new prompts."""


def tokenizer() -> PreTrainedTokenizerFast:
    """One token for each word."""
    words = Tokenizer(models.WordLevel(_VOCABULARY, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")


def prompts(generator: np.random.Generator) -> Iterator[tuple[str, str, list[int]]]:
    """Prompts, their answers, and the positions of the two words that decide the answer."""
    while True:
        names, cities = _facts(generator)
        asked = int(generator.integers(PAIRS))
        facts = "".join(f"{name} {city} . " for name, city in zip(names, cities, strict=True))
        yield f"{facts}{names[asked]}", str(cities[asked]), [3 * asked, 3 * asked + 1]


def _facts(generator: np.random.Generator) -> tuple[list[str], list[str]]:
    names, cities = (generator.choice(words, PAIRS, replace=False).tolist() for words in (NAMES, CITIES))
    return names, cities


def _lesson(generator: np.random.Generator) -> list[str]:
    names, cities = _facts(generator)
    order = [*range(PAIRS), *generator.integers(PAIRS, size=_QUESTIONS).tolist()]
    return [word for number in order for word in (names[number], cities[number], ".")]


def trained(seed: int = 0) -> Trained:
    """A model that has learned the task."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(_VOCABULARY),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 0.05, 1.0, 100)
    generator = np.random.default_rng(seed)
    asked = torch.arange(3 * PAIRS, 3 * (PAIRS + _QUESTIONS), 3)
    right = 0.0
    for step in range(_STEPS):
        ids = torch.tensor([[_VOCABULARY[word] for word in _lesson(generator)] for _ in range(_BATCH)])
        logits = model(input_ids=ids).logits[:, asked]
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, asked + 1].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 100 == 99:
            right = _accuracy(model, np.random.default_rng([seed, step]))
            if right >= _RIGHT:
                break
    model.eval().requires_grad_(False)
    accuracy = _accuracy(model, np.random.default_rng([seed, 10**6]))
    return Trained(normscope.wrap(model, tokenizer()), accuracy)


@torch.inference_mode()
def _accuracy(model: LlamaForCausalLM, generator: np.random.Generator) -> float:
    stream = prompts(generator)
    drawn = [next(stream) for _ in range(512)]
    ids = torch.tensor([[_VOCABULARY[word] for word in prompt.split()] for prompt, _, _ in drawn])
    answers = torch.tensor([_VOCABULARY[answer] for _, answer, _ in drawn])
    return float((model(input_ids=ids).logits[:, -1].argmax(dim=-1) == answers).double().mean())


def precision(learner: Trained, count: int, seed: int = 1) -> list[dict[str, Any]]:
    """How many of the k words that decide an answer each method has among the k that it scores highest (`precision`), and how
    often the word that it scores highest is one of them (`first`).

    The last word is left out: the answer is read out there.

    Args:
        count: Number of prompts that are answered right.
    """
    model = learner.model
    readout = PredictionReadout(Predictor(Head.NEXT_TOKEN, model.next_token_head, model.tokenizer))
    methods: list[Any] = [*defined_methods(model.facts, None, MapStage.BLOCK), *Baseline]
    found: dict[str, list[tuple[float, float]]] = {str(method): [] for method in methods}
    found["random"] = []
    generator = np.random.default_rng([seed, 0])
    for prompt, answer, deciding in prompts(np.random.default_rng(seed)):
        if len(found["random"]) == count:
            break
        inputs = dict(model.tokenizer(prompt, return_tensors="pt").data)
        inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        with torch.inference_mode():
            said = int(readout.model(**inputs).logits[0, -1].argmax())
        if said != _VOCABULARY[answer]:
            continue
        mapped = [method for method in methods if isinstance(method, MapMethod)]
        maps = model_maps(model.model, model.facts, inputs, mapped)
        scores = token_scores(model.model, model.facts, inputs, readout, methods, maps)
        facts = inputs["input_ids"].shape[1] - 1
        for method, values in scores.items():
            best = values[0, :facts].argsort(descending=True, stable=True)[: len(deciding)].tolist()
            found[str(method)].append((len({*best} & {*deciding}) / len(deciding), float(best[0] in deciding)))
        guess = generator.permutation(facts)[: len(deciding)].tolist()
        found["random"].append((len({*guess} & {*deciding}) / len(deciding), float(guess[0] in deciding)))
    rows = []
    for way, pairs in found.items():
        of_all, of_first = np.mean(pairs, axis=0)
        rows.append({"way": way, "precision": round(float(of_all), 3), "first": round(float(of_first), 3)})
    return sorted(rows, key=lambda row: -row["precision"])
