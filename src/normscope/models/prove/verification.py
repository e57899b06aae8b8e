"""Proof, before a run computes anything, that what is observed is what the model does.

Two probe batches, one padded and one not, pass through the untouched model with its own fused attention and through the
observed one. `identities.py` has what is compared: every layer's attention, rebuilt from one input with its weights; its block;
its output; and the stream of hidden vectors from the first layer to the model's output. Nothing that a layout claims is taken
on trust, and nothing that it leaves out stays hidden: every module of the untouched model is recorded. (Adding up parts of
which one was defined as the remainder would prove nothing.)

If an analysis needs whole layers, the parts of each are added up as well: what the layer makes of everything that its
attention block gives, and of nothing.

Every norm is run on probe vectors. Its weights alone do not say what it does: Gemma's stores γ − 1, others have no weight, and
the activations of a model are too large to show ε.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError, one_line
from normscope.maths.normalisation import Normalisation
from normscope.models.blocks.block import AttentionBlock, full_precision
from normscope.models.infer.layouts import inference_explained, layout_of_model, random_batch
from normscope.models.observe.feed_forward import FeedForwardBlock
from normscope.models.observe.forward_pass import Replacement
from normscope.models.observe.identities import (
    BOUNDS,
    FLOAT32_INSIDE,
    Difference,
    NotObservableError,
    attention_differences,
    bound_of,
    difference_in_words,
    layer_differences,
    norm_error,
    note_rest,
    relative_error,
    rest_of_layer,
    stream_differences,
)
from normscope.models.observe.observer import Observer
from normscope.models.observe.text_check import Check
from normscope.models.observe.untouched import UntouchedPass, untouched_pass
from normscope.models.prove.score_terms import ScoreTerms, score_terms
from normscope.models.sites.block_modules import BlockModules, bind_blocks
from normscope.models.sites.layout import ModelLayout
from normscope.models.stored.stored_weights import execution_device
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


def verify(model: PreTrainedModel, layout: ModelLayout, name: str, *, feed_forward: bool = False) -> Verification:
    """Compare the observed model with the untouched one, every layer of it.

    Args:
        model: A base model in evaluation mode.
        layout: Where its family keeps the parts of a block.
        name: For messages.
        feed_forward: Whether to compare whole layers as well, each with the sum of its parts.

    Returns:
        The largest relative difference and where it was.

    Raises:
        InputError: If a difference exceeds what the dtype can explain, or the model does something other than its layout says;
            the layer and the part are named. If `feed_forward` is set and a layer has no network that can be observed.
    """
    _check_evaluation(model, name)
    proof = _Proof(model, layout, name, feed_forward=feed_forward)
    try:
        proof.compare_norms()
        with torch.inference_mode():
            for lengths in _lengths(model):
                proof.compare_passes(random_batch(model, lengths, lengths[::-1] if layout.reads_target else None))
    except NotObservableError as error:
        raise InputError(f"{name} cannot be observed exactly: {error}; see {layout.source}") from error
    return dataclasses.replace(proof.worst, position_terms=proof.position_terms)


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


class ProbeOutput(NamedTuple):
    """What a model, or its head, returns for a probe batch."""

    values: Tensor
    token_mask: Tensor
    """True at tokens."""


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
            differs = difference_in_words(f"{changed}, its output", error, BOUNDS[dtype], dtype)
            raise InputError(f"{name} cannot be observed exactly: {differs}")


def _lengths(model: PreTrainedModel) -> tuple[tuple[int, ...], ...]:
    """The lengths of the texts in each probe batch."""
    lengths = _PROBE_LENGTHS if getattr(model, "pads", True) else _WITHOUT_PADDING
    longest: int | None = getattr(model, "longest_probe", None)
    return lengths if longest is None else tuple(tuple(min(length, longest) for length in batch) for batch in lengths)


_OF_A_TOKEN: Mapping[str, Callable[[AttentionBlock], Tensor]] = {
    "value": lambda block: block.value.transpose(1, 2).flatten(2),
    "input": lambda block: block.inputs,
}
"""What of a block must depend on one token alone: its value, and what the residual connection adds."""


class _Proof:
    """Compares what is observed with what the untouched model does, and keeps the largest difference."""

    def __init__(self, model: PreTrainedModel, layout: ModelLayout, name: str, *, feed_forward: bool) -> None:
        self._model, self._layout, self._name = model, layout, name
        self._layers = {modules.layer: modules for modules in bind_blocks(model, layout)}
        self._bound = bound_of(model, layout)
        self._beside = self._other_attention()
        self._observer = Observer(model, layout, feed_forward=feed_forward)
        self._layer = 0
        """The last layer that was compared in the current pass."""
        self.worst = Verification(0.0, 1, "block input")
        self.position_terms = False
        self._scores: dict[int, float] = {}
        """The size of the largest scores of each layer."""

    def _other_attention(self) -> dict[int, BlockModules]:
        """In a decoder, the attention before or after the one that is observed, by layer."""
        layout = self._layout
        if not layout.reads_target:
            return {}
        with inference_explained(self._name):
            other = layout_of_model(self._model, "decoder" if layout.is_cross_attention else "cross")
        return {modules.layer: modules for modules in bind_blocks(self._model, other)}

    def compare_passes(self, inputs: Mapping[str, Tensor]) -> None:
        """Compare a pass of the untouched model with one that is observed."""
        model, layout = self._model, self._layout
        with _explained(model.dtype, self._name):
            expected = untouched_pass(model, layout, inputs)
        token_mask = inputs["decoder_attention_mask" if layout.reads_target else "attention_mask"].bool()
        self._layer = 0
        try:
            self._note(stream_differences(model, layout, expected, token_mask))
            terms = None if layout.registry else score_terms(model, layout, inputs)
            values: dict[int, AttentionBlock] = {}
            with self._observer as observer:
                observer.run(
                    inputs,
                    functools.partial(self._compare_block, expected, terms, values),
                    visit_feed_forward=functools.partial(self._compare_feed_forward, expected),
                    replacements=_untouched_inputs(expected) if layout.routed else None,
                    check=Check.NOTHING,
                )
                if values:
                    self._layer = 0
                    changed = {layer: _every_other_changed(record.inputs) for layer, record in expected.layers.items()}
                    compare = functools.partial(self._compare_values, values)
                    observer.run(inputs, compare, replacements=changed, check=Check.NOTHING)
        except (RuntimeError, LookupError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            reason = f"what the model does cannot be rebuilt from its weights: {one_line(error)}"
            raise NotObservableError(self._layer + 1, reason) from error

    def _compare_block(
        self,
        expected: UntouchedPass,
        terms: ScoreTerms | None,
        values: dict[int, AttentionBlock],
        block: AttentionBlock,
    ) -> None:
        modules, record = self._layers[block.layer], expected.layers[block.layer]
        largest = block.alpha.largest
        if largest is not None:
            self._scores[block.layer] = max(self._scores.get(block.layer, 0.0), float(largest))
        if terms is not None:
            self.position_terms = self.position_terms or terms.differ(block)
            rebuilt, weights = (heads.transpose(1, 2).flatten(2) for heads in (terms.weights(block), block.weights))
            error = relative_error(rebuilt, weights, weights, block.token_mask)
            self._note([Difference(block.layer, "attention weight from query, key and scale", error)])
            # The other terms hide keys as the model does, so what the block takes for visible is compared as well.
            weighed, seen = (block.weights > 0).any(dim=1), block.alpha.seen.of().any(dim=1)
            wrong = ((weighed != seen) & block.token_mask.unsqueeze(-1)).any()
            self._note([Difference(block.layer, "visibility of keys", float(wrong))])
        self._note(attention_differences(block, modules, expected))
        crossing = self._beside.get(block.layer) if self._layout.stack == "decoder" else None
        difference, rest = rest_of_layer(block, modules, record, self._bound, crossing)
        self._note([difference])
        if rest is not None:
            note_rest(self._model, self._layout, block.layer, rest)
        if modules.heads.value is None or modules.bottleneck is not None:
            values[block.layer] = block
        self._layer = block.layer

    def _compare_values(self, before: Mapping[int, AttentionBlock], block: AttentionBlock) -> None:
        """Without W_V, or in a bottleneck, check that what belongs to a token depends on no other, by changing the others."""
        for part, of in _OF_A_TOKEN.items():
            expected, got = (of(each)[:, ::2] for each in (before[block.layer], block))
            error = relative_error(got, expected, expected, block.token_mask[:, ::2])
            self._note([Difference(block.layer, f"{part} of a token", error, "when other tokens change, ")])
        self._layer = block.layer

    def _compare_feed_forward(self, expected: UntouchedPass, block: FeedForwardBlock) -> None:
        self._layer = block.layer - 1
        self._note(layer_differences(block, expected.layers[block.layer]))
        self._layer = block.layer

    def compare_norms(self) -> None:
        """Compare γ, β, ε and centring of every norm with what the norm does."""
        model, layout, observer = self._model, self._layout, self._observer
        for modules in self._layers.values():
            weights = observer.parameters[modules.layer]
            for part, module, weight in (
                ("norm of the block", modules.norm, weights.normalisation),
                ("norm before attention", modules.attention_norm, weights.input_normalisation),
                ("norm of the keys", modules.heads.key_norm, weights.key_normalisation),
                ("norm of the queries", modules.heads.query_norm, weights.query_normalisation),
            ):
                self._compare_norm(part, modules.layer, module, weight)
        for layer, module in layout.hidden_norms(model).items():
            self._compare_norm("norm of the hidden vectors", layer, module, observer.hidden_norms[layer])
        if layout.stream.final_norm is not None:
            final = attrgetter(layout.stream.final_norm)(model)
            norm = layout.normalisation(final, execution_device(model))
            self._compare_norm("final norm", len(layout.stream.layers), final, norm)

    def _compare_norm(self, part: str, layer: int, module: nn.Module | None, norm: Normalisation | None) -> None:
        # Norms of the heads with weights for each of them are proved by queries and keys alone.
        if norm is not None and not 0 <= norm.epsilon < math.inf:
            raise InputError(
                f"model.name={self._name}: expected an ε of at least 0 in the {part} of layer {layer}, got {norm.epsilon}; "
                "correct the model's config"
            )
        if module is not None and norm is not None and norm.weight.ndim == 1:
            bound, error = max(BOUNDS[self._model.dtype], FLOAT32_INSIDE), norm_error(module, norm, self._model.dtype)
            self._check(Difference(layer, part, error), bound)
            if error > BOUNDS[torch.float64]:  # many families' norms compute in float32 whatever their type
                self._bound = max(self._bound, bound)

    def _note(self, differences: Iterable[Difference]) -> None:
        for difference in differences:
            self._check(difference, self._bound)
            if difference.error > self.worst.error:
                self.worst = Verification(float(difference.error), difference.layer, difference.part)

    def _check(self, difference: Difference, bound: float) -> None:
        error, dtype = float(difference.error), self._model.dtype
        if math.isnan(error):
            raise InputError(
                f"model.name={self._name}: {difference.what} is not a number, so its config or its weights are unusable; "
                "check the config's values, or set device.dtype=float64"
            )
        if error >= bound:
            otherwise = (
                "; the model may do something there that no rule covers (a multiplier, a norm, dropout that stays on); see "
                f"{self._layout.source}"
            )
            score = self._scores.get(difference.layer, 0.0)
            differs = difference_in_words(difference.what, error, bound, dtype, score, otherwise)
            raise InputError(f"{self._name} cannot be observed exactly: {differs}")


def _check_evaluation(model: nn.Module, name: str) -> None:
    """Check that no module behaves as in training."""
    for path, module in model.named_modules():
        if module.training:
            raise InputError(
                f"{name}: expected a model in evaluation mode, got training mode in {path or 'it'}; call eval()"
            )


def _every_other_changed(vectors: Tensor) -> Replacement:
    """Hidden vectors in which every second token is replaced."""
    changed = vectors.clone()
    changed[:, 1::2] = vectors[:, 1::2].roll(1, dims=-1) + vectors[:, :1]
    return Replacement(torch.arange(vectors.shape[-1], device=vectors.device), changed)


def _untouched_inputs(expected: UntouchedPass) -> dict[int, Replacement]:
    """What every layer but the first reads in the untouched model, in place of what it reads in the observed one."""
    return {
        layer: Replacement(torch.arange(record.inputs.shape[-1], device=record.inputs.device), record.inputs)
        for layer, record in expected.layers.items()
        if layer > 1
    }


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
