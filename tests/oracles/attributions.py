"""Attribution by brute force: every pair's vector in every layer, every zeroed value, every gradient, one text at a time."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from normscope.analyses.declarations.attribution import AttributionOptions
from normscope.maths.choices import Pooling
from normscope.models.load.task_heads import Head
from tests.oracles import through_attention
from tests.oracles.activations import Sequence_
from tests.oracles.feedforward_oracle import stages_of
from tests.oracles.frozen_vectors import vectors_by_layer
from tests.oracles.specimens import Specimen
from tests.oracles.words import WordSequence, merged

BASELINES = ("gradient_x_input", "integrated_gradients", "through_attention")
"""Methods without maps."""


class Attributed:
    """One sequence of a specimen, attributed by every method."""

    def __init__(self, specimen: Specimen, sequence: Sequence_, options: AttributionOptions) -> None:
        self.specimen, self.sequence, self.options = specimen, sequence, options
        self.base = specimen.loaded.model
        self.is_bert = sequence.blocks[0].gamma is not None
        self.layers = self.base.encoder.layer if self.is_bert else self.base.layers
        self.tokens = len(sequence.ids)
        self.classifier = None if options.pooling is not None else specimen.loaded.load_head(Head.CLASS)
        self.language_model = None
        if options.pooling is None and self.classifier is None:
            self.language_model = specimen.loaded.load_head(Head.NEXT_TOKEN)
        self._maps: dict[str, list[np.ndarray]] = {}
        self._scores: dict[str, np.ndarray] = {}

    @staticmethod
    def sample(specimen: Specimen, options: AttributionOptions) -> list[Sequence_]:
        """The sequences that are attributed."""

        def priority(sequence: Sequence_) -> float:
            return np.random.default_rng([options.seed, fingerprint(sequence)]).random()

        return sorted(specimen.sequences, key=priority)[: options.sequences]

    def may_be_erased(self, _position: int) -> bool:
        """Whether an ordinary token is erased to test the scores."""
        return True

    @property
    def labels(self) -> list[str]:
        """What the rows of maps are called."""
        return self.specimen.loaded.tokenizer.convert_ids_to_tokens(self.sequence.ids.tolist())

    # The maps.

    def layer_maps(self, method: str) -> list[np.ndarray] | None:
        """The map of every layer alone."""
        if method == "decompx":
            return None
        if method not in self._maps:
            self._maps[method] = [self._layer_map(method, number) for number in range(1, len(self.layers) + 1)]
        return self._maps[method]

    def cumulative_maps(self, method: str) -> list[np.ndarray]:
        """The map from the input up to every layer."""
        if method == "decompx":
            return self._norms
        maps: list[np.ndarray] = []
        for layer in self.layer_maps(method):
            maps.append(layer @ maps[-1] if maps else layer)
        return maps

    def _layer_map(self, method: str, number: int) -> np.ndarray:
        block, layer = self.sequence.blocks[number - 1], self.layers[number - 1]
        if method == "rollout":
            return block.alpha.mean(axis=0) / 2 + np.eye(self.tokens) / 2
        if method == "value_zeroing":
            return _by_row(self._changes(layer) * block.visible)
        residual = np.einsum("hqk,hkm->qkm", block.alpha, block.f)
        residual[np.arange(self.tokens), np.arange(self.tokens)] += block.x
        stages = stages_of(self.specimen, self.sequence, number)
        if method == "norm_rollout":
            stage = {"attnres_n": residual, "attnresln_n": stages["atb_n"], "block": stages["atb_n"]}
            stage["layer"] = list(stages.values())[-1]
            return _by_row(np.linalg.norm(stage[self.options.stage], axis=-1))
        if method == "alti":
            norm = layer.attention.output.LayerNorm if self.is_bert else layer.post_attention_layernorm
            entering, leaving = self._through(norm)
            y = leaving if self.is_bert else entering
            distance = np.abs(y[:, None] - stages["atb_n"]).sum(axis=-1)
            return _by_row(np.maximum(0, np.abs(y).sum(axis=-1, keepdims=True) - distance))
        assert method == "globenc"
        second = layer.output.LayerNorm
        entering, _ = self._through(second)
        deviation = np.sqrt(entering.var(axis=-1) + second.eps)[:, None]
        vectors = stages["atb_n"] - stages["atb_n"].mean(axis=-1, keepdims=True)
        return np.linalg.norm(vectors * second.weight.numpy(), axis=-1) / deviation

    @cached_property
    def vectors(self) -> list[np.ndarray]:
        """x_{i⇐k} after every layer, with the bias in the last column: query source model."""
        inputs = self._inputs(self.sequence.ids)
        after = [vectors[0].numpy() for vectors in vectors_by_layer(self.base, self.specimen.loaded.facts, inputs)]
        hidden = list(self.sequence.hidden[1:])
        if not self.is_bert:
            norm = self.base.norm
            deviation = np.sqrt((hidden[-1] ** 2).mean(axis=-1) + norm.variance_epsilon)
            after[-1] = after[-1] * norm.weight.numpy() / deviation[:, None, None]
            hidden[-1] = hidden[-1] * norm.weight.numpy() / deviation[:, None]
        return [
            np.concatenate([vectors, (whole - vectors.sum(axis=1))[:, None]], axis=1)
            for vectors, whole in zip(after, hidden, strict=True)
        ]

    @cached_property
    def _norms(self) -> list[np.ndarray]:
        return [np.linalg.norm(vectors, axis=-1) for vectors in self.vectors]

    def _changes(self, layer: Any) -> np.ndarray:
        """1 − cos(z_i, z_i without the value of j)."""
        value = layer.attention.self.value if self.is_bert else layer.self_attn.v_proj
        _, untouched = self._through(layer)
        changes = np.zeros((self.tokens, self.tokens))
        for j in range(self.tokens):

            def zero(_module: Any, _args: Any, output: torch.Tensor, j: int = j) -> torch.Tensor:
                output = output.clone()
                output[:, j] = 0
                return output

            with hooked(value, zero):
                _, zeroed = self._through(layer)
            cosine = (zeroed * untouched).sum(axis=-1)
            changes[:, j] = 1 - cosine / np.linalg.norm(zeroed, axis=-1) / np.linalg.norm(untouched, axis=-1)
        return changes

    def _through(self, module: Any) -> tuple[np.ndarray, np.ndarray]:
        """What enters and leaves a module."""
        seen: list[np.ndarray] = []

        def note(_module: Any, args: tuple[Any, ...], output: Any) -> None:
            output = output[0] if isinstance(output, tuple) else output
            seen.extend(tensor.reshape(self.tokens, -1).numpy() for tensor in (args[0], output))

        with hooked(module, note), torch.inference_mode():
            self.base(**self._inputs(self.sequence.ids))
        return seen[0], seen[1]

    # The answers and the scores.

    def answer(self, ids: np.ndarray, segments: np.ndarray) -> np.ndarray:
        """The logits, or the embedding, of one text."""
        with torch.inference_mode():
            inputs = self._inputs(ids, segments)
            if self.classifier is not None:
                return self.classifier(**inputs).logits[0].numpy()
            if self.language_model is not None:
                return self.language_model(**inputs).logits[0, -1].numpy()
            hidden = self.base(**inputs).last_hidden_state[0].numpy()
        return self._pooling(len(ids)) @ hidden

    @cached_property
    def untouched(self) -> np.ndarray:
        """The answer for the whole text."""
        return self.answer(self.sequence.ids, self.segments)

    @property
    def quantity(self) -> str:
        return "cosine" if self.classifier is None and self.language_model is None else "probability"

    def value(self, answer: np.ndarray) -> float:
        """The probability of the class of the whole text, or of the token that follows it, or the cosine with its embedding."""
        if self.quantity == "probability":
            powers = np.exp(answer - answer.max())
            return float(powers[self.untouched.argmax()] / powers.sum())
        norms = np.linalg.norm(answer) * np.linalg.norm(self.untouched)
        return float(answer @ self.untouched / norms)

    @property
    def segments(self) -> np.ndarray:
        given = self.sequence.inputs.get("token_type_ids")
        return np.zeros(self.tokens, dtype=int) if given is None else given[0].numpy()

    @cached_property
    def gradient(self) -> np.ndarray:
        """Of what is attributed, at each last hidden vector, with the slopes of the head held fixed: token model."""
        if self.language_model is not None:
            gradient = np.zeros_like(self.sequence.hidden[-1])
            gradient[-1] = self.language_model.lm_head.weight.numpy()[self.untouched.argmax()]
            return gradient
        if self.classifier is None:
            direction = self.untouched / np.linalg.norm(self.untouched)
            return self._pooling(self.tokens)[:, None] * direction
        pooler = self.base.pooler.dense
        u = self.sequence.hidden[-1][0] @ pooler.weight.numpy().T + pooler.bias.numpy()
        row = self.classifier.classifier.weight.numpy()[self.untouched.argmax()]
        gradient = np.zeros_like(self.sequence.hidden[-1])
        gradient[0] = (row * np.tanh(u) / u) @ pooler.weight.numpy()
        return gradient

    def scores(self, method: str) -> np.ndarray:
        """The score of each token."""
        if method not in self._scores:
            self._scores[method] = self._scored(method)
        return self._scores[method]

    def _scored(self, method: str) -> np.ndarray:
        if method == "decompx":
            return np.einsum("im,ikm->k", self.gradient, self.vectors[-1])[: self.tokens]
        if method == "through_attention":
            inputs = self._inputs(self.sequence.ids)
            return through_attention.scores(self.base, inputs, self.gradient, is_bert=self.is_bert)
        if method in BASELINES:
            return self._baseline(1 if method == "gradient_x_input" else self.options.steps)
        sizes = np.linalg.norm(self.gradient, axis=-1)
        return sizes / sizes.sum() @ self.cumulative_maps(method)[-1]

    def _baseline(self, steps: int) -> np.ndarray:
        """Gradient × input at the text itself, or at points between it and zero embeddings."""
        module = self.base.get_input_embeddings()
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        points = [(1.0, 1.0)] if steps == 1 else list(zip((nodes + 1) / 2, weights / 2, strict=True))
        whole = module(torch.tensor(self.sequence.ids)[None]).detach()
        scores = np.zeros(self.tokens)
        for point, weight in points:
            vectors = (point * whole).requires_grad_()
            with hooked(module, lambda _module, _args, _output, vectors=vectors: vectors):
                output = (self.classifier or self.language_model or self.base)(**self._inputs(self.sequence.ids))
            (gradient,) = torch.autograd.grad(self._target(output), vectors)
            scores += weight * (gradient * whole)[0].sum(dim=-1).numpy()
        return scores

    def _target(self, output: Any) -> torch.Tensor:
        """What is attributed, from what the model has returned."""
        if self.classifier is not None:
            return output.logits[0, self.untouched.argmax()]
        if self.language_model is not None:
            return output.logits[0, -1, self.untouched.argmax()]
        direction = torch.tensor(self.untouched / np.linalg.norm(self.untouched))
        return torch.tensor(self._pooling(self.tokens)) @ output.last_hidden_state[0] @ direction

    def _pooling(self, tokens: int) -> np.ndarray:
        """The weight of each last hidden vector in the embedding."""
        own = Pooling.mean if self.is_bert else Pooling.last
        weights = np.zeros(tokens)
        match self.options.pooling or own:
            case Pooling.mean:
                weights[:] = 1 / tokens
            case Pooling.cls:
                weights[0] = 1
            case Pooling.last:
                weights[-1] = 1
            case Pooling.mean_sqrt:
                weights[:] = tokens**-0.5
            case Pooling.weighted_mean:
                weights[:] = np.arange(1, tokens + 1) / (tokens * (tokens + 1) / 2)
        return weights

    def _inputs(self, ids: np.ndarray, segments: np.ndarray | None = None) -> Mapping[str, torch.Tensor]:
        inputs = {"input_ids": torch.tensor(ids)[None], "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
        if "token_type_ids" in self.sequence.inputs:
            inputs["token_type_ids"] = torch.tensor(self.segments if segments is None else segments)[None]
        return inputs

    # Erasing tokens.

    def fall(self, erased: Sequence[int], mask_token: int | None) -> float:
        """How far the answer falls when tokens are replaced by the mask token, or taken out."""
        ids, segments = self.sequence.ids.copy(), self.segments
        if mask_token is None:
            kept = [position for position in range(self.tokens) if position not in set(erased)]
            ids, segments = ids[kept], segments[kept]
        else:
            ids[list(erased)] = mask_token
        return self.value(self.untouched) - self.value(self.answer(ids, segments))


class AttributedLoss(Attributed):
    """One text of a causal model, whose own tokens but the first are predicted."""

    sign, quantity = -1, "loss"

    @property
    def predicted(self) -> list[int]:
        """The positions of the predicted tokens."""
        return list(range(1, self.tokens))

    def may_be_erased(self, position: int) -> bool:
        return position > 0

    def log_probabilities(self, kept: Sequence[int]) -> dict[int, float]:
        """Those of the predicted tokens, by position, in a text of only these tokens."""
        with torch.inference_mode():
            logits = self.language_model(**self._inputs(self.sequence.ids[kept])).logits[0].numpy()
        found = {}
        for place, position in enumerate(kept):
            if position in self.predicted:
                before = logits[place - 1]
                found[position] = before[self.sequence.ids[position]] - np.log(np.exp(before).sum())
        return found

    @cached_property
    def gradient(self) -> np.ndarray:
        """Of Σ ℓ_t − Σ_v p_v ℓ_v with p held fixed."""
        weight = self.language_model.lm_head.weight.numpy()
        gradient = np.zeros_like(self.sequence.hidden[-1])
        with torch.inference_mode():
            logits = self.language_model(**self._inputs(self.sequence.ids)).logits[0].numpy()
        for position in self.predicted:
            p = np.exp(logits[position - 1]) / np.exp(logits[position - 1]).sum()
            gradient[position - 1] = self.sign * (weight[self.sequence.ids[position]] - p @ weight)
        return gradient

    def _target(self, output: Any) -> torch.Tensor:
        ids = torch.tensor(self.sequence.ids)
        return self.sign * sum(
            torch.log(torch.softmax(output.logits[0, place - 1], 0)[ids[place]]) for place in self.predicted
        )

    def fall(self, erased: Sequence[int], _mask_token: int | None) -> float:
        kept = [position for position in range(self.tokens) if position not in set(erased)]
        before, after = self.log_probabilities(list(range(self.tokens))), self.log_probabilities(kept)
        assert len(after) == len(kept) - 1
        return np.mean([after[place] - before[place] for place in after])


class AttributedAnswer(AttributedLoss):
    """One text of a causal model and its answer, the second text of a pair."""

    sign, quantity = 1, "answer"

    @staticmethod
    def sample(specimen: Specimen, options: AttributionOptions) -> list[Sequence_]:
        def priority(place: int) -> float:
            digest = hashlib.sha256(repr(specimen.texts[place]).encode()).digest()
            return np.random.default_rng([options.seed, int.from_bytes(digest[:16], "little")]).random()

        chosen = sorted(range(len(specimen.texts)), key=priority)[: options.sequences]
        return [specimen.sequences[place] for place in sorted(chosen)]

    @property
    def predicted(self) -> list[int]:
        tokenizer, ids = self.specimen.loaded.tokenizer, self.sequence.ids.tolist()
        (answer,) = {pair[1] for pair in self.specimen.texts if tokenizer(" ".join(pair))["input_ids"] == ids}
        return list(range(self.tokens - len(answer.split()), self.tokens))

    def may_be_erased(self, position: int) -> bool:
        return position not in self.predicted

    def fall(self, erased: Sequence[int], _mask_token: int | None) -> float:
        kept = [position for position in range(self.tokens) if position not in set(erased)]
        means = [np.mean(list(self.log_probabilities(some).values())) for some in (list(range(self.tokens)), kept)]
        return np.exp(means[0]) - np.exp(means[1])


def fingerprint(sequence: Sequence_) -> int:
    """What identifies a sequence."""
    return int.from_bytes(hashlib.sha256(sequence.all_ids.astype("<i8").tobytes()).digest()[:16], "little")


@contextlib.contextmanager
def hooked(module: Any, hook: Callable[..., Any]) -> Iterator[None]:
    """A forward hook for a while."""
    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _by_row(values: np.ndarray) -> np.ndarray:
    total = values.sum(axis=1, keepdims=True)
    return values / np.where(total > 0, total, 1)


class AttributedWords(Attributed):
    """One sequence whose words are attributed: shares are merged, and DecompX's vectors before their norms are measured."""

    def __init__(self, specimen: Specimen, sequence: WordSequence, options: AttributionOptions) -> None:
        self.raw = Attributed(specimen, sequence.raw, options)
        self.specimen, self.sequence, self.options = specimen, sequence, options
        self.members, self.tokens, self.is_bert = sequence.members, len(sequence.members), self.raw.is_bert
        # Those of a map's last column are the bias.
        self.sources = [*sequence.members, [len(sequence.raw.ids)]]

    @property
    def labels(self) -> list[str]:
        return ["".join(self.raw.labels[token] for token in word) for word in self.members]

    @property
    def quantity(self) -> str:
        return self.raw.quantity

    def cumulative_maps(self, method: str) -> list[np.ndarray]:
        if method == "decompx":
            layers = [merged(vectors, self.members, self.sources) for vectors in self.raw.vectors]
            return [np.linalg.norm(vectors, axis=-1) for vectors in layers]
        return [merged(layer, self.members) for layer in self.raw.cumulative_maps(method)]

    def scores(self, method: str) -> np.ndarray:
        return np.array([self.raw.scores(method)[word].sum() for word in self.members])

    def fall(self, erased: Sequence[int], mask_token: int | None) -> float:
        return self.raw.fall([token for word in erased for token in self.members[word]], mask_token)
