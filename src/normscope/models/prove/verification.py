"""Proof, before a run computes anything, that what is observed is what the model does.

Two probe batches with other lengths, ids and padding pass through the untouched model, with its own fused attention, and
through the observed one. Every layer is given what it reads in the untouched model. Compared are what W_O writes, what leaves
each layer and what the model returns; and the parts of every block, and of every whole layer if an analysis needs those, are
added up. On its way from attention to the residual connection, one token's vector is followed alone, to show that it reaches
no other token. When some tokens enter a layer with other vectors, the values of the others must stay as they are.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError
from normscope.linear.blocks import Block, BlockRecogniser
from normscope.linear.layer_calls import LayerCalls
from normscope.maths.tensors import full_precision
from normscope.models.blocks.block import AttentionBlock
from normscope.models.facts import ModelFacts, token_mask_of
from normscope.models.observe.attention_function import attention_by
from normscope.models.observe.check import BOUNDS, Check, PartError, in_words, relative_error
from normscope.models.observe.observer import Observer, Replacement
from normscope.models.observe.rotations import length_dependent_rotations
from normscope.models.probes import after_encoder, random_batch
from normscope.models.stored.model_code import model_code
from normscope.models.stored.text_tower import base_of

_PROBE_LENGTHS = ((9, 6, 3), (7, 7))
_WITHOUT_PADDING = ((9,), (7, 7))


@dataclasses.dataclass(frozen=True)
class Verification:
    """The largest difference found, relative to the norm of what it is a difference of."""

    error: float
    layer: int
    part: str
    position_terms: bool = False
    """Whether scores have terms besides q·k that differ between visible keys, in a model whose attention we do not call."""


def verify(model: PreTrainedModel, facts: ModelFacts, name: str, *, feed_forward: bool = False) -> Verification:
    """Compare the observed model with the untouched one, every layer of it.

    Args:
        model: A base model in evaluation mode.
        facts: What it is.
        name: For messages.
        feed_forward: Whether to compare whole layers as well, each with the sum of its parts.

    Returns:
        The largest relative difference and where it was.

    Raises:
        InputError: If a difference exceeds what the dtype can explain; the layer and the part are named. If `feed_forward` is
            set and a layer has no network that can be observed.
    """
    _check_evaluation(model, name)
    proof = _Proof(model, facts, name, feed_forward=feed_forward)
    with torch.inference_mode():
        for lengths in _lengths(model):
            proof.compare(random_batch(model, lengths, lengths[::-1] if facts.reads_target else None))
    proof.close()
    return dataclasses.replace(proof.worst, position_terms=proof.position_terms)


class _Untouched(NamedTuple):
    """What some texts of a batch are in the untouched model."""

    texts: slice
    tokens: slice
    entered: Mapping[int, Float[Tensor, "batch token model"]]
    """What enters each layer."""
    left: Mapping[int, Float[Tensor, "batch token model"]]
    """What leaves it."""
    attention: Mapping[int, Float[Tensor, "batch token model"]]
    """What W_O writes in it, with factors on it."""
    output: Float[Tensor, "*token model"]
    """What the model returns."""


class _Values(NamedTuple):
    """Values of a block, and what its residual connection carries."""

    value: Float[Tensor, "batch token size"]
    inputs: Float[Tensor, "batch token model"]
    token_mask: Bool[Tensor, "batch token"]

    @classmethod
    def of(cls, block: AttentionBlock) -> "_Values":
        """Those of a block of self-attention, which outlive its visit."""
        return cls(block.value.transpose(1, 2).flatten(2), block.inputs.clone(), block.token_mask)

    def differ(self, other: "_Values", bound: float) -> bool:
        """Whether a token has other values although the residual connection carries the same."""
        same = _distance(self.inputs, other.inputs) < _NEARLY_SAME * bound
        return bool(((_distance(self.value, other.value) >= bound) & same & self.token_mask).any())


_NEARLY_SAME = 1e-3
"""Below this share of the bound, what the residual connection carries is the same up to rounding."""


def _distance(one: Float[Tensor, "*token size"], other: Float[Tensor, "*token size"]) -> Float[Tensor, "*token"]:
    """‖one − other‖ / ‖one‖."""
    size = torch.linalg.vector_norm(one, dim=-1).clamp(min=torch.finfo(one.dtype).tiny)
    return torch.linalg.vector_norm(other - one, dim=-1) / size


class _Proof:
    """Compares what is observed with what the untouched model does, and keeps the largest difference."""

    def __init__(self, model: PreTrainedModel, facts: ModelFacts, name: str, *, feed_forward: bool) -> None:
        self._model, self._facts, self._name, self._networks = model, facts, name, feed_forward
        self.worst = Verification(0.0, 1, "block input")
        self.position_terms = False
        self._values: dict[int, _Values] = {}
        """The values of the last pass, by layer."""
        self._functions: dict[int, frozenset[str]] = {}
        """The functions that have computed them so far, of which it is known that they keep tokens apart."""
        hidden = range(facts.layers + 1) if facts.in_modules else ()
        self._observer = Observer(model, facts, hidden=hidden, feed_forward=feed_forward)
        self._observer.check.forget()

    def close(self) -> None:
        """Note what has been proved, for the passes over texts."""
        if self._values:
            self._observer.check.prove()

    def compare(self, inputs: Mapping[str, Tensor]) -> None:
        """Compare a pass of the untouched model with one that is observed."""
        facts = self._facts
        with _explained(self._model.dtype, self._name):
            records = [*self._untouched(inputs)]
        token_mask = token_mask_of(inputs, facts.stack)
        replacements = self._replacements(records, token_mask) if facts.in_modules else {}
        # Rounding may change a router's choice, and so all that its experts make.
        compare = _Comparison(records, token_mask, layers=not facts.routed)

        def visit(block: AttentionBlock) -> None:
            compare.attention(block)
            if facts.in_modules and not block.is_cross_attention:
                self._values[block.layer] = _Values.of(block)
            self.position_terms = self.position_terms or has_position_terms(block)

        with self._observer as observer:
            output = observer.run(
                inputs,
                visit,
                compare.hidden,
                (lambda _network: None) if self._networks else None,
                replacements=replacements,
                whole=self._model,
                check=Check.TEXTS,
                proves=True,
            )
        compare.output(facts.layers, full_precision(output[0]))
        if self._values and observer.check.functions != self._functions:
            self._functions = {**observer.check.functions}
            self._require_own_values(inputs, self._replacements(records, token_mask, first=1))
        for difference in [*compare.found, *observer.compared]:
            self._note(difference)

    def _require_own_values(self, inputs: Mapping[str, Tensor], replacements: Mapping[int, Replacement]) -> None:
        """Check that each token's values are made of its own vector alone: while that is the same, so are they.

        Some tokens enter the layers with other vectors. If values differ that should not, their layer is the only one to be
        given such vectors in the next pass, since layers may read what others have left for them.

        Args:
            replacements: What every layer has read in the pass before.
        """
        changed = {layer: _some_changed(each) for layer, each in replacements.items()}
        for layer in self._that_differ(inputs, changed):
            if layer in self._that_differ(inputs, {**replacements, layer: changed[layer]}):
                raise InputError(
                    f"the attention of layer {layer} cannot be measured: its values are made of several tokens' vectors each"
                )

    def _that_differ(self, inputs: Mapping[str, Tensor], replacements: Mapping[int, Replacement]) -> list[int]:
        """Layers that have other values than before for a token whose own vector is the same."""
        layers, bound = [], self._observer.check.bound

        def visit(block: AttentionBlock) -> None:
            before = self._values.get(block.layer)
            if before is not None and before.differ(_Values.of(block), bound):
                layers.append(block.layer)

        with self._observer as observer:
            observer.run(inputs, visit, replacements=replacements, check=Check.NOTHING)
        return layers

    def _note(self, difference: PartError) -> None:
        error, check = float(difference.error), self._observer.check
        if math.isnan(error):
            raise InputError(
                f"model.name={self._name}: {difference.what} is not a number, so its config or its weights are unusable; "
                "check the config's values, or set device.dtype=float64"
            )
        if error >= check.bound:
            raise InputError(
                f"{self._name} cannot be observed exactly: {in_words(difference.what, error, check.dtype)}; "
                f"see {self._facts.source}"
            )
        if error > self.worst.error:
            self.worst = Verification(error, difference.layer, difference.part)

    # The untouched model.

    def _untouched(self, inputs: Mapping[str, Tensor]) -> Iterator[_Untouched]:
        """The texts of a batch in the untouched model: together, or alone if rotations depend on the longest text."""
        # Inputs that are no texts have one size.
        if not length_dependent_rotations(self._model) or hasattr(self._model, "random_batch"):
            yield self._record(inputs, slice(None), slice(None))
            return
        for row, length in enumerate(inputs["attention_mask"].sum(dim=1).tolist()):
            texts, tokens = slice(row, row + 1), slice(0, length)
            # One token makes dynamic scaling forget the longest text so far.
            with model_code(self._model):
                self._model(**{name: tensor[texts, :1] for name, tensor in inputs.items()})
            yield self._record({name: tensor[texts, tokens] for name, tensor in inputs.items()}, texts, tokens)

    def _record(self, inputs: Mapping[str, Tensor], texts: slice, tokens: slice) -> _Untouched:
        model, facts = self._model, self._facts
        texts_of_batch = len(inputs["attention_mask"])
        entered: dict[int, Tensor] = {}
        left: dict[int, Tensor] = {}
        attention: dict[int, Tensor] = {}

        def visit(block: Block) -> None:
            if block.is_self is not facts.is_cross_attention:
                attention[block.layer] = self._observer.output_of(block, texts_of_batch).attention_output.clone()

        def enter(layer: int, vectors: Tensor) -> None:
            if layer <= facts.layers:
                entered.setdefault(layer, vectors.clone())

        def leave(layer: int, vectors: Tensor) -> None:
            left[layer] = vectors.clone()

        reference = attention_by(model, _untouched_attention(model, facts)) if facts.calls_function else None
        with model_code(model), contextlib.nullcontext() if reference is None else reference:
            given: Mapping[str, Any] = after_encoder(model, inputs) if facts.reads_target else inputs
            recogniser = BlockRecogniser(
                model,
                texts_of_batch,
                visit,
                lambda: calls.number,
                untouched=True,
                positions=self._observer.position,
                axes=facts.places.within,
                tokens=inputs["attention_mask"].shape[1] if facts.is_of_vectors else None,
            )
            calls = LayerCalls(model, texts_of_batch, enter, leave, end=recogniser.end_layer, places=facts.places)
            if facts.is_of_vectors:  # in a text, what enters a layer is made of what the tables gave, or is refused
                calls.begin = recogniser.begin_layer
            with calls, recogniser:
                output = model(**given)
        return _Untouched(texts, tokens, entered, left, attention, output[0])

    @staticmethod
    def _replacements(records: Sequence[_Untouched], token_mask: Tensor, *, first: int = 2) -> dict[int, Replacement]:
        """What every layer but the first reads in the untouched model, in place of what it reads in the observed one."""
        found = {}
        for layer in records[0].entered:
            if layer >= first:
                vectors = records[0].entered[layer]
                if records[0].texts == slice(None) and vectors.shape[:2] != token_mask.shape:
                    raise InputError(
                        f"layer {layer} reads {vectors.shape[1]} vectors for a text of {token_mask.shape[1]} tokens, so which "
                        "of them are tokens is not known; see the documentation's list of models"
                    )
                whole = vectors.new_zeros(*token_mask.shape, vectors.shape[-1])
                for record in records:
                    whole[record.texts, record.tokens] = record.entered[layer]
                found[layer] = Replacement(torch.arange(vectors.shape[-1], device=vectors.device), whole)
        return found


def _untouched_attention(model: PreTrainedModel, facts: ModelFacts) -> str:
    """The attention of the untouched model: fused if that gives what the model computes."""
    return "sdpa" if facts.is_plain and getattr(model, "_supports_sdpa", True) else "eager"


def _some_changed(replacement: Replacement) -> Replacement:
    """Other vectors for the second and third of every four tokens, so that the others have such neighbours on both sides.

    Of many tokens, they are any half: rows of patches that have been moved would have the same places among every four.
    """
    values = replacement.values
    places = torch.arange(values.shape[1]) % 4
    is_changed = (places == 1) | (places == 2)
    if len(places) > _MANY:
        is_changed = torch.rand(len(places), generator=torch.Generator().manual_seed(0)) < 0.5
    is_changed = is_changed.to(values.device).unsqueeze(-1)
    return replacement._replace(values=torch.where(is_changed, values.roll(1, dims=-1) + values[:, :1], values))


_MANY = 12
"""Tokens beyond which a random half has neighbours of either kind."""


class _Comparison:
    """Compares an observed pass with the untouched model."""

    def __init__(self, records: Sequence[_Untouched], token_mask: Bool[Tensor, "batch token"], *, layers: bool) -> None:
        self._records, self._token_mask, self._layers = records, token_mask, layers
        self.found: list[PartError] = []

    def attention(self, block: AttentionBlock) -> None:
        """Compare what W_O has written."""
        for record in self._records:
            expected = record.attention.get(block.layer)
            if expected is None:
                raise InputError(
                    f"the attention of layer {block.layer} cannot be measured: with the model's own attention function, it "
                    "is no block that is recognised"
                )
            self._add(block.layer, "attention output", block.attention_output, expected, record)

    def hidden(self, layer: int, vectors: Float[Tensor, "batch token model"]) -> None:
        """Compare what has left a layer, and enters the next."""
        for record in self._records if self._layers else ():
            self._add(layer, "output", vectors, record.entered.get(layer + 1, record.left.get(layer)), record)

    def output(self, layers: int, vectors: Float[Tensor, "*token model"]) -> None:
        """Compare what the model returns."""
        for record in self._records if self._layers else ():
            self._add(layers, "model output after the last", vectors, record.output, record)

    def _add(self, layer: int, part: str, got: Tensor, expected: Tensor | None, record: _Untouched) -> None:
        if expected is None or got.ndim != expected.ndim:
            return
        got, mask = got[record.texts, record.tokens], self._token_mask[record.texts, record.tokens]
        if got.shape[:-1] != mask.shape:  # what the model returns may be pooled, or have no axis of inputs
            mask = torch.ones(got.shape[:-1], dtype=torch.bool, device=mask.device)
        self.found.append(PartError(layer, part, relative_error(got, expected, expected, mask)))


_SAME = 1e-3
"""Terms of scores that differ by less are masks, up to rounding; DeBERTa's or T5's position terms differ by far more."""


def has_position_terms(block: AttentionBlock) -> bool:
    """Whether scores have terms besides q·k that differ between the keys that some query sees."""
    if block.alpha.given is None:
        return False
    weights, seen = block.alpha.given, block.alpha.seen.of()
    terms = weights.log() - block.alpha.scale * block.query @ block.key.mT
    highest = terms.masked_fill(~seen, -torch.inf).amax(dim=-1)
    lowest = terms.masked_fill(~seen, torch.inf).amin(dim=-1)
    return bool(((highest - lowest > _SAME) & block.token_mask.unsqueeze(1)).any())


def _lengths(model: PreTrainedModel) -> tuple[tuple[int, ...], ...]:
    """The lengths of the texts in each probe batch."""
    lengths = _PROBE_LENGTHS if getattr(model, "pads", True) else _WITHOUT_PADDING
    longest: int | None = getattr(model, "longest_probe", None)
    return lengths if longest is None else tuple(tuple(min(length, longest) for length in batch) for batch in lengths)


def _check_evaluation(model: nn.Module, name: str) -> None:
    """Check that no module behaves as in training."""
    for path, module in model.named_modules():
        if module.training:
            raise InputError(
                f"{name}: expected a model in evaluation mode, got training mode in {path or 'it'}; call eval()"
            )


@contextlib.contextmanager
def _explained(dtype: torch.dtype, name: str) -> Iterator[None]:
    """Add to what a model's own code raises in half precision that the precision may have brought it about."""
    try:
        yield
    except InputError as error:
        if dtype not in (torch.bfloat16, torch.float16):
            raise
        # Some families' own code mixes formats (DeBERTa's does).
        kind, reason = str(dtype).removeprefix("torch."), str(error).removeprefix("model: ")
        raise InputError(f"device.dtype={kind}: {name} cannot run in it: {reason}; set device.dtype=float32") from error


# The outputs of a model before and after a change.


class ProbeOutput(NamedTuple):
    """What a model, or its head, returns for a probe batch."""

    values: Tensor
    token_mask: Tensor
    """True at tokens."""


def verify_same_outputs(model: PreTrainedModel, expected: PreTrainedModel, name: str, changed: str) -> None:
    """Compare the outputs of a changed model, and of its head, with those from before the change.

    Args:
        model: The changed model, in evaluation mode.
        expected: The model before the change.
        name: For messages.
        changed: How it was changed, for messages.

    Raises:
        InputError: If they differ by more than the dtype can explain.
    """
    probes = output_probes(model)
    require_same_outputs(
        model.dtype, outputs_on_probes(model, probes), outputs_on_probes(expected, probes), name, changed
    )


def output_probes(model: PreTrainedModel) -> list[dict[str, Tensor]]:
    """The probe batches on which a model is compared before and after a change."""
    reads_target = model.config.is_encoder_decoder
    return [random_batch(model, lengths, lengths[::-1] if reads_target else None) for lengths in _lengths(model)]


def outputs_on_probes(model: PreTrainedModel, probes: Sequence[Mapping[str, Tensor]]) -> list[ProbeOutput]:
    """What a model and its head return for probe batches."""
    outputs = []
    for inputs in probes:
        token_mask = inputs.get("decoder_attention_mask", inputs["attention_mask"]).bool()
        # A classifier of texts may not know padding, so its head sees one text without any.
        first = {key: tensor[:1] for key, tensor in inputs.items()}
        for reader, read, mask in ((base_of(model), inputs, token_mask), (model, first, token_mask[:1])):
            with torch.inference_mode():
                values = full_precision(reader(**read)[0])
            if values.shape[:2] != mask.shape:  # one output for a text
                mask = torch.ones(values.shape[:-1], dtype=torch.bool)
            outputs.append(ProbeOutput(values, mask))
    return outputs


def require_same_outputs(
    dtype: torch.dtype, got: Sequence[ProbeOutput], expected: Sequence[ProbeOutput], name: str, changed: str
) -> None:
    """Compare what a changed model returns with what it returned before the change.

    Args:
        dtype: That of its weights.
        name: For messages.
        changed: How it was changed, for messages.

    Raises:
        InputError: If they differ by more than the dtype can explain.
    """
    for output, reference in zip(got, expected, strict=True):
        error = relative_error(output.values, reference.values, reference.values, reference.token_mask)
        if not error < BOUNDS[dtype]:
            differs = in_words(f"{changed}, its output", error, dtype)
            raise InputError(f"{name} cannot be observed exactly: {differs}")
