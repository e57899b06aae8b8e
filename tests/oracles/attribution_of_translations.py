"""What the words of translations draw on, by brute force: vectors of single tokens, one translation and one word at a time."""

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from normscope.analyses.declarations.attribution import AttributionOptions
from normscope.data.examples import Example
from tests.contract.test_translations import through
from tests.oracles.comparison import Drawn, Expected, Picture, interval, percent, table
from tests.oracles.specimens import Specimen
from tests.unit.test_translation_maps import by_hand, untouched_maps

NAMES = {"alti": "ALTI+", "decompx": "DecompX"}


class Translated:
    """One translation: the share of every word of the target that comes from each word, or from special tokens."""

    def __init__(self, specimen: Specimen, example: Example) -> None:
        self.example = example
        self.specimen, self.model = specimen, specimen.loaded.model
        self.source, self.target = example.text.split(), example.text_pair.split()
        self.inputs = {
            name: tensor
            for name, tensor in specimen._inputs(example.text, example.text_pair).items()
            if name != "token_type_ids"
        }
        # Every word's tokens come one after the other; the source ends, and the target begins, with a special token.
        self.of_source = _places(self.source, 0)
        self.of_target = _places(self.target, 1)
        self.tokens = sum(map(len, self.of_source)) + 1
        read = [[self.tokens + place for place in word] for word in self.of_target]
        self.columns = [*self.of_source, [self.tokens - 1], *read, [self.tokens]]

    def shares(self, method: str) -> np.ndarray:
        scores = self._vectors() if method == "decompx" else self._maps()
        rows = []
        for word in self.of_target:
            # A token is predicted one place before it is read.
            mean = np.mean([scores[place - 1] for place in word], axis=0)
            sizes = [abs(sum(mean[place] for place in column if place < len(mean))) for column in self.columns]
            rows.append([size / sum(sizes) for size in sizes])
        return np.array(rows)

    def _maps(self) -> np.ndarray:
        masks = {"attention_mask": "input_ids", "decoder_attention_mask": "decoder_input_ids"}
        inputs = self.inputs | {name: torch.ones_like(self.inputs[ids]) for name, ids in masks.items()}
        return by_hand(untouched_maps(self.model, inputs))[1][-1][0].numpy()

    def _vectors(self) -> np.ndarray:
        """What each token's vector alone, without biases, makes of the logit of every following token."""
        with torch.inference_mode():
            seen = self.specimen.loaded.translator(**self.inputs, output_hidden_states=True)
        sides = seen.encoder_hidden_states[0][0], seen.decoder_hidden_states[0][0]
        ids = self.inputs["decoder_input_ids"][0, 1:]
        columns = []
        for token in range(len(sides[0]) + len(sides[1])):
            vectors = torch.cat(sides)
            vectors[torch.arange(len(vectors)) != token] = 0.0
            source, target = vectors[: len(sides[0])], vectors[len(sides[0]) :]
            for layer, x in zip(self.model.encoder.layers, seen.encoder_hidden_states, strict=False):
                source, _ = through(layer, source, x[0])
            for layer, x in zip(self.model.decoder.layers, seen.decoder_hidden_states, strict=False):
                target, _ = through(layer, target, x[0], (source, seen.encoder_last_hidden_state[0]))
            logits = target[:-1] @ self.specimen.loaded.translator.lm_head.weight.T
            columns.append([float(logits[place, each]) for place, each in enumerate(ids)])
        return np.array(columns).T


def _places(words: Sequence[str], start: int) -> list[list[int]]:
    places, at = [], start
    for word in words:
        places.append(list(range(at, at + word.count("_") + 1)))
        at += len(places[-1])
    return places


def sample(examples: Sequence[Example], options: AttributionOptions) -> list[Example]:
    """The sampled pairs, in the order of the corpus."""

    def priority(example: Example) -> float:
        digest = hashlib.sha256(repr((example.text, example.text_pair)).encode()).digest()
        return np.random.default_rng([options.seed, int.from_bytes(digest[:16], "little")]).random()

    chosen = sorted(examples, key=priority)[: options.sequences]
    return sorted(chosen, key=lambda example: example.row)


def expected(specimen: Specimen, examples: Sequence[Example], options: AttributionOptions) -> Expected:
    """Everything that the analysis returns about translations."""
    every = [Translated(specimen, example) for example in sample(examples, options)]
    methods = [*map(str, options.methods or NAMES)]
    target = []
    for method, one in itertools.product(methods, every):
        words = len(one.source)
        target += [
            {"method": method, "row": one.example.row, "word": place, "text": text}
            | {"source": sum(shares[: words + 1]), "special": shares[words]}
            for place, (text, shares) in enumerate(zip(one.target, one.shares(method), strict=True))
        ]
    metrics = {
        f"translation/{method}/{of}": np.mean(
            [
                np.mean([row[of] for row in target if (row["method"], row["row"]) == (method, one.example.row)])
                for one in every
            ]
        )
        for method in methods
        for of in ("source", "special")
    }
    return Expected(
        tables={"target_words": table(["method", "row", "word"], target)},
        metrics=metrics,
        curves={},
        figures={"source_share": Picture(_positions(target, methods))},
        summary=table(
            ["method"],
            [
                {"method": NAMES[method], "from the source %": 100 * metrics[f"translation/{method}/source"]}
                for method in methods
            ],
        ),
        sentences=_sentences(methods, metrics),
    )


def _positions(target: Sequence[Mapping], methods: Sequence[str]) -> Drawn:
    """In percent."""
    drawn = {}
    for method, place in itertools.product(methods, range(20)):
        values = [100 * row["source"] for row in target if row["method"] == method and row["word"] == place]
        if values:
            drawn[(None, NAMES[method], place)] = _within_whole(*(number / 100 for number in interval(values)))
    return drawn


def _within_whole(mean: float, low: float, high: float) -> tuple[float, float, float]:
    """In percent, with an interval that is symmetric in the log-odds of the share."""
    if math.isnan(high) or low == high:
        return 100 * mean, 100 * low, 100 * high
    odds, reach = math.log(mean / (1 - mean)), (high - mean) / (mean * (1 - mean))
    low, high = (1 / (1 + math.exp(-end)) for end in (odds - reach, odds + reach))
    return 100 * mean, 100 * low, 100 * high


def _sentences(methods: Sequence[str], metrics: Mapping[str, float]) -> list[str]:
    sentences = []
    for method in methods:
        source, special = (percent(metrics[f"translation/{method}/{of}"]) for of in ("source", "special"))
        sentences.append(
            f"According to {NAMES[method]}, {source} of a target word comes from the source on average "
            f"({special} from its special tokens), and the rest from the target so far."
        )
    return sentences
