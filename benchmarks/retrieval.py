"""Attribution against a known truth: a small model that looks up in its prompt what it answers.

A prompt says which room each key opens, and asks for one of them: `red opens four . blue opens nine . red opens` has the
answer `four`. Nothing but two earlier words decides it, the same key and its room, so a faithful method scores these highest.
The model is trained until it answers nearly all prompts that it has never seen.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import normscope
from normscope.attribution.baselines import Baseline
from normscope.attribution.methods import MapMethod, MapStage, defined_methods
from normscope.attribution.model_maps import model_maps
from normscope.attribution.readouts import NextTokenReadout
from normscope.attribution.token_scores import token_scores
from normscope.models.loaded import LoadedModel

KEYS = ("red", "blue", "green", "black", "white", "brown", "pink", "grey", "gold", "silver", "violet", "orange")
ROOMS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
PAIRS = 4
"""Keys in a prompt."""

_SPECIAL = ("[PAD]", "[UNK]")
_VOCABULARY = {word: number for number, word in enumerate([*_SPECIAL, *KEYS, *ROOMS, "opens", "."])}
_BATCH, _STEPS = 128, 3000
_RIGHT = 0.99
"""Share of right answers at which training ends."""


@dataclasses.dataclass(frozen=True, eq=False)
class Retriever:
    """The trained model."""

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
        keys = generator.choice(KEYS, PAIRS, replace=False)
        rooms = generator.choice(ROOMS, PAIRS, replace=False)
        asked = int(generator.integers(PAIRS))
        facts = "".join(f"{key} opens {room} . " for key, room in zip(keys, rooms, strict=True))
        yield f"{facts}{keys[asked]} opens", str(rooms[asked]), [4 * asked, 4 * asked + 2]


def trained(seed: int = 0) -> Retriever:
    """A model that has learned to look up rooms."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(_VOCABULARY),
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 0.05, 1.0, 100)
    stream = prompts(np.random.default_rng(seed))
    right = 0.0
    for step in range(_STEPS):
        ids, answers = _batch(stream)
        logits = model(input_ids=ids).logits[:, -1]
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(logits, answers).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 100 == 99:
            right = _accuracy(model, prompts(np.random.default_rng([seed, step])))
            if right >= _RIGHT:
                break
    model.eval().requires_grad_(False)
    return Retriever(
        normscope.wrap(model, tokenizer()), _accuracy(model, prompts(np.random.default_rng([seed, 10**6])))
    )


def _batch(stream: Iterator[tuple[str, str, list[int]]]) -> tuple[Tensor, Tensor]:
    drawn = [next(stream) for _ in range(_BATCH)]
    ids = [[_VOCABULARY[word] for word in prompt.split()] for prompt, _, _ in drawn]
    return torch.tensor(ids), torch.tensor([_VOCABULARY[answer] for _, answer, _ in drawn])


@torch.inference_mode()
def _accuracy(model: LlamaForCausalLM, stream: Iterator[tuple[str, str, list[int]]]) -> float:
    right = []
    for _ in range(4):
        ids, answers = _batch(stream)
        right.append((model(input_ids=ids).logits[:, -1].argmax(dim=-1) == answers).double().mean())
    return float(torch.stack(right).mean())


def precision(retriever: Retriever, count: int, seed: int = 1, baselines: bool = True) -> list[dict[str, Any]]:
    """How many of the two words that decide an answer each method has among the two that it scores highest.

    The words of the question are left out: they are the same in every prompt, or stand where the answer is read out.

    Args:
        count: Number of prompts that are answered right.
        baselines: Whether to measure the gradient methods, which need Captum, as well.
    """
    model, readout = retriever.model, NextTokenReadout(retriever.model.next_token_head)
    methods: list[Any] = [*defined_methods(model.layout, None, MapStage.BLOCK), *(Baseline if baselines else ())]
    found: dict[str, list[float]] = {str(method): [] for method in methods}
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
        maps = model_maps(model.model, model.layout, inputs, mapped)
        scores = token_scores(model.model, model.layout, inputs, readout, methods, maps)
        facts = inputs["input_ids"].shape[1] - 2
        for method, values in scores.items():
            best = values[0, :facts].argsort(descending=True, stable=True)[: len(deciding)].tolist()
            found[str(method)].append(len({*best} & {*deciding}) / len(deciding))
        guess = generator.permutation(facts)[: len(deciding)].tolist()
        found["random"].append(len({*guess} & {*deciding}) / len(deciding))
    rows = [{"way": method, "precision": round(float(np.mean(values)), 3)} for method, values in found.items()]
    return sorted(rows, key=lambda row: -row["precision"])


def measured_retrieval() -> list[dict[str, object]]:
    """Precision of every method for one trained model."""
    retriever = trained()
    shared = {"accuracy": round(retriever.accuracy, 4), "prompts": 200}
    return [{**row, **shared} for row in precision(retriever, 200)]
