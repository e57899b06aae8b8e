"""Proof, before a run counts, that what is observed is what the model does.

Two probe batches, one padded and one not, pass through the untouched model with its own fused attention and through the
observed one. Every block input, attention output, block output and hidden vector must agree; and within the observed pass the
vectors are built explicitly from α and v and compared with the output projection and with the short cuts that the analyses
use. (Adding up parts of which one was defined as the remainder would prove nothing.) Where only a module's own weights can be
observed, they are rebuilt from query, key, scale and the family's other terms.

If an analysis needs the feed-forward networks, they are compared as well: each is rebuilt from its parameters and its
activation, and the attention block's output and the network's must make the layer's.

Every norm is run on probe vectors as well. Its weights alone do not say what it does: Gemma's stores γ − 1, others have no
weight, and the activations of a model are too large to show ε.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError, one_line, origin
from normscope.maths.feed_forward import BiasRule
from normscope.maths.normalisation import Normalisation
from normscope.models.block import AttentionBlock, full_precision
from normscope.models.feed_forward import FeedForwardBlock
from normscope.models.feed_forward_modules import bind_feed_forward
from normscope.models.layout import BlockLayout, embeddings_of, normalisation, stacked_heads
from normscope.models.observer import Observer, Replacement
from normscope.models.offloading import execution_device
from normscope.models.quantisation import rounds_activations
from normscope.models.score_terms import ScoreTerms
from normscope.models.untouched import Reference, UntouchedPass, untouched_pass

# float32 rounds at 6e-8; a block adds up some thousand products, and 1e-4 is what the results promise. Half precision
# rounds at 4e-3 (bfloat16) and is let through with its figure, which the results state.
BOUNDS: Mapping[torch.dtype, float] = {
    torch.float64: 1e-10,
    torch.float32: 1e-4,
    torch.bfloat16: 0.1,
    torch.float16: 0.02,
}

# What float32 inside a float64 model leaves: some roundings at 6e-8.
_FLOAT32_INSIDE = 1e-6

# Layers that round what they multiply to eight bits err by up to 1/254 of its largest element; let through like bfloat16.
_ROUNDED_ACTIVATIONS = 0.1

_PROBE_LENGTHS = ((9, 6, 3), (7, 7))


@dataclasses.dataclass(frozen=True)
class Verification:
    """The largest difference found, relative to the norm of what it is a difference of."""

    error: float
    layer: int
    part: str


def verify(model: PreTrainedModel, layout: BlockLayout, name: str, *, feed_forward: bool = False) -> Verification:
    """Compare the observed model with the untouched one, every layer of it.

    Args:
        model: A base model in evaluation mode.
        layout: Where its family keeps the parts of a block.
        name: For messages.
        feed_forward: Whether to compare the feed-forward networks and the outputs of layers as well.

    Returns:
        The largest relative difference and where it was.

    Raises:
        InputError: If a difference is beyond what the dtype can explain; the layer and the difference are named. If
            `feed_forward` is set and a layer has no network that can be observed.
    """
    comparison = _Comparison(
        model.dtype, layout, name, least=_ROUNDED_ACTIVATIONS if rounds_activations(model) else 0.0
    )
    if feed_forward:
        comparison.compare_feed_forward_norms(model, layout)
    comparison.compare_norms(model, layout)
    for lengths in _PROBE_LENGTHS:
        inputs = _probe(model, embeddings_of(model).num_embeddings, lengths)
        if layout.reads_target:
            vocabulary = embeddings_of(model.get_decoder()).num_embeddings  # a Marian model may have two
            target = _probe(model, vocabulary, lengths[::-1])
            inputs |= {f"decoder_{key}": tensor for key, tensor in target.items()}
        with _explained(model.dtype, name):
            expected = untouched_pass(model, layout, inputs, feed_forward=feed_forward)
        token_mask = inputs["decoder_attention_mask" if layout.reads_target else "attention_mask"].bool()
        watched = [] if layout.registry else layout.bind(model)
        hidden = range(len(expected.layers) + 1)
        observer = Observer(model, layout, hidden=hidden, feed_forward=feed_forward)
        with ScoreTerms(watched) as terms, observer:
            observer.run(
                inputs,
                functools.partial(comparison.compare_block, expected, terms),
                functools.partial(comparison.compare_hidden, expected, token_mask),
                functools.partial(comparison.compare_feed_forward, expected),
                replacements=_untouched_inputs(expected) if layout.routed else None,
            )
    return comparison.worst


def _untouched_inputs(expected: UntouchedPass) -> dict[int, Replacement]:
    """What every layer but the first reads in the untouched model, in place of what it reads in the observed one."""
    return {
        layer: Replacement(torch.arange(reference.inputs.shape[-1], device=reference.inputs.device), reference.inputs)
        for layer, reference in expected.layers.items()
        if layer > 1
    }


def verify_same_outputs(model: PreTrainedModel, expected: PreTrainedModel, name: str) -> None:
    """Compare the outputs of a model whose adapters were merged with those of the model before, and those of its head.

    Args:
        model: The merged model, in evaluation mode.
        expected: The model with its adapters.
        name: For messages.

    Raises:
        InputError: If they differ by more than the dtype can explain.
    """
    for lengths in _PROBE_LENGTHS:
        inputs = _probe(model, embeddings_of(model).num_embeddings, lengths)
        token_mask = inputs["attention_mask"].bool()
        if model.config.is_encoder_decoder:
            vocabulary = embeddings_of(model.get_decoder()).num_embeddings
            target = _probe(model, vocabulary, lengths[::-1])
            token_mask = target["attention_mask"].bool()
            inputs |= {f"decoder_{key}": tensor for key, tensor in target.items()}
        _compare_outputs(model.base_model, expected.base_model, inputs, token_mask, name)
        # A classifier of texts may not know padding, so its head sees one text without any.
        first = {key: tensor[:1] for key, tensor in inputs.items()}
        _compare_outputs(model, expected, first, token_mask[:1], name)


def _compare_outputs(model: Any, expected: Any, inputs: Mapping[str, Tensor], token_mask: Tensor, name: str) -> None:
    with torch.inference_mode():
        got, reference = (full_precision(each(**inputs)[0]) for each in (model, expected))
    if got.shape[:2] != token_mask.shape:  # one output for a text
        token_mask = torch.ones(got.shape[:-1], dtype=torch.bool)
    error = _relative(got, reference, reference, token_mask)
    if not error < BOUNDS[model.dtype]:
        raise InputError(
            f"{name} cannot be observed exactly: with its adapters merged into its weights, its output differs by "
            f"{error:.1e} (relative, at most {BOUNDS[model.dtype]:.0e} in {model.dtype})"
        )


class _Comparison:
    """Compares what is observed with what the untouched model did, and keeps the largest difference."""

    def __init__(self, dtype: torch.dtype, layout: BlockLayout, name: str, *, least: float) -> None:
        self._dtype, self._layout, self._name = dtype, layout, name
        self._bound = max(least, _bound(dtype, layout.float32_inside))
        # The networks' norms compute in float32 in families whose attention does not.
        inside = layout.float32_inside or any(form.float32_inside for form in layout.feed_forward)
        self._feed_forward_bound = max(least, _bound(dtype, inside))
        self.worst = Verification(0.0, 1, "block input")

    def compare_block(self, expected: UntouchedPass, terms: ScoreTerms, block: AttentionBlock) -> None:
        """Compare one block of the observed pass."""
        for part, error in _errors(block, expected.layers[block.layer]).items():
            self._note(block.layer, part, error)
        if block.own_weights is not None:
            rebuilt, weights = _side_by_side(terms.weights(block)), _side_by_side(block.weights)
            error = _relative(rebuilt, weights, weights, block.token_mask)
            self._note(block.layer, "weights from query, key and scale", error)

    def compare_hidden(self, expected: UntouchedPass, token_mask: Tensor, layer: int, vectors: Tensor) -> None:
        """Compare the hidden vectors of one layer, if a norm makes them."""
        if layer in expected.hidden:
            hidden = expected.hidden[layer]
            self._note(layer, "hidden vector", _relative(vectors, hidden, hidden, token_mask))

    def compare_feed_forward(self, expected: UntouchedPass, block: FeedForwardBlock) -> None:
        """Compare one feed-forward network of the observed pass, and what leaves its layer."""
        for part, error in _feed_forward_errors(block, expected.layers[block.layer]).items():
            self._note(block.layer, part, error, self._feed_forward_bound)

    def compare_norms(self, model: PreTrainedModel, layout: BlockLayout) -> None:
        """Compare γ, β, ε and centring of the norms in and between blocks with what the norms do."""
        observer = Observer(model, layout)
        for modules in layout.bind(model):
            parameters = observer.parameters[modules.layer]
            self._compare_norm("norm of the block", modules.layer, modules.norm, parameters.normalisation)
            read = modules.attention_norm, parameters.input_normalisation
            self._compare_norm("norm before attention", modules.layer, *read)
            self._compare_norm("norm of the keys", modules.layer, modules.key_norm, parameters.key_normalisation)
        for layer, module in layout.hidden_norms(model).items():
            self._compare_norm("norm of the hidden vectors", layer, module, observer.hidden_norms[layer])
        if layout.final_norm is not None:
            final = attrgetter(layout.final_norm)(model)
            weights = normalisation(final, unit_offset=layout.unit_offset)
            self._compare_norm("final norm", len(observer.parameters), final, weights)

    def compare_feed_forward_norms(self, model: PreTrainedModel, layout: BlockLayout) -> None:
        """Compare γ, β, ε and centring of the feed-forward networks' norms with what the norms do."""
        for modules in bind_feed_forward(model, layout, self._name):
            parameters = modules.parameters()
            for module, norm in (
                (modules.norm, parameters.normalisation),
                (modules.output_norm, parameters.output_normalisation),
            ):
                self._compare_norm("feed-forward norm", modules.layer, module, norm)

    def _compare_norm(self, part: str, layer: int, module: nn.Module | None, norm: Normalisation | None) -> None:
        # A norm of the keys with weights for every head is proved by the keys alone.
        if module is not None and norm is not None and norm.weight.ndim == 1:
            # Many families' norms compute in float32 whatever their type.
            self._check(layer, part, _norm_error(module, norm, self._dtype), _bound(self._dtype, float32_inside=True))

    def _note(self, layer: int, part: str, error: float, bound: float | None = None) -> None:
        self._check(layer, part, error, self._bound if bound is None else bound)
        if error > self.worst.error:
            self.worst = Verification(error, layer, part)

    def _check(self, layer: int, part: str, error: float, bound: float) -> None:
        if math.isnan(error):
            raise InputError(
                f"model.name={self._name}: the {part} of layer {layer} is not a number, so its config or its weights are "
                "unusable; check the config's values, or set device.dtype=float64"
            )
        if error >= bound:
            raise InputError(
                f"{self._name} cannot be observed exactly: the {part} of layer {layer} differs by {error:.1e} "
                f"(relative, at most {bound:.0e} in {self._dtype}); the installed transformers may "
                "have changed this family, or its layout leaves out what the block does (a multiplier, a norm); see "
                f"{self._layout.source}"
            )


def _bound(dtype: torch.dtype, float32_inside: bool) -> float:
    return max(BOUNDS[dtype], _FLOAT32_INSIDE if float32_inside else 0.0)


@contextlib.contextmanager
def _explained(dtype: torch.dtype, name: str) -> Iterator[None]:
    """Turn an exception of the model's own code into advice: its config has brought it about.

    Raises:
        InputError: In place of the exception.
    """
    try:
        yield
    except Exception as error:
        if not origin(error).startswith(("torch", "transformers")) or isinstance(error, torch.cuda.OutOfMemoryError):
            raise
        if dtype not in (torch.bfloat16, torch.float16):
            raise InputError(
                f"model.name={name}: the model fails on a probe, so its config is invalid: {one_line(error)}"
            ) from error
        # Some families' own code mixes formats (DeBERTa's does).
        kind = str(dtype).removeprefix("torch.")
        raise InputError(
            f"device.dtype={kind}: {name} cannot run in it: {one_line(error)}; set device.dtype=float32"
        ) from error


def _probe(model: PreTrainedModel, vocabulary: int, lengths: tuple[int, ...]) -> dict[str, Tensor]:
    """Token ids that stand for nothing, right-padded; the same at every run."""
    generator = torch.Generator().manual_seed(0)
    padding = model.config.pad_token_id
    ids = torch.randint(vocabulary, (len(lengths), max(lengths)), generator=generator)
    token_mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    if padding is not None:
        # Some models find their positions by looking for padding: none may stand among the tokens.
        ids = torch.where(ids == padding, (ids + 1) % vocabulary, ids).masked_fill(~token_mask, padding)
    device = execution_device(model)
    return {"input_ids": ids.to(device), "attention_mask": token_mask.long().to(device)}


def _errors(block: AttentionBlock, reference: Reference) -> dict[str, float]:
    weights = block.weights
    transformed = block.transformed()
    own = (
        torch.zeros_like(weights) if block.is_cross_attention else torch.diag_embed(weights.diagonal(dim1=-2, dim2=-1))
    )
    explicit_mixing = torch.einsum("bhqk,bhkm->bqm", weights - own, transformed)
    explicit_preserving = torch.einsum("bhqk,bhkm->bqm", own, transformed)
    explicit_output = explicit_mixing + explicit_preserving
    if block.output_bias is not None:
        explicit_output = explicit_output + block.output_bias

    parameters = block.parameters
    key = block.key_map(stacked_heads(block.attention_inputs, parameters.key_weight, parameters.key_bias))
    output = reference.attention_output
    errors = {
        "key": _relative(_side_by_side(key), _side_by_side(block.key), _side_by_side(block.key), block.key_mask),
        "block input": _relative(block.inputs, reference.inputs, reference.inputs, block.token_mask),
        "attention output": _relative(block.attention_output, output, output, block.token_mask),
        "sum of αf(x)": _relative(explicit_output, block.attention_output, output, block.token_mask),
        "preserving vector": _relative(block.preserving, explicit_preserving, output, block.token_mask),
        "mixing vector": _relative(block.mixing, explicit_mixing, output, block.token_mask),
    }
    if reference.block_output is not None:
        branch = block.norm_position == "branch"  # whose norm is only one of the two terms of the block's output
        expected = reference.inputs + reference.block_output if branch else reference.block_output
        composed = block.composition.output(block.composition.stages[-1])
        errors["block output"] = _relative(composed, expected, expected, block.token_mask)
    return errors


def _feed_forward_errors(block: FeedForwardBlock, reference: Reference) -> dict[str, float]:
    inputs, output, layer_output = reference.feed_forward_inputs, reference.feed_forward_output, reference.layer_output
    assert inputs is not None
    assert output is not None
    assert layer_output is not None
    parameters, token_mask = block.parameters, block.token_mask
    rebuilt = block.activations @ parameters.output_weight
    if parameters.output_bias is not None:
        rebuilt = rebuilt + parameters.output_bias
    errors = {
        "feed-forward input": _relative(block.inputs, inputs, inputs, token_mask),
        "feed-forward output": _relative(block.output, output, output, token_mask),
        "feed-forward network": _relative(rebuilt, output, output, token_mask),
        "feed-forward parts": _parts_error(block),
        "layer output": _relative(block.layer_output, layer_output, layer_output, token_mask),
    }
    if parameters.normalisation is not None and block.norm_inputs is not None:
        normed = layer_output if parameters.norm_position == "post" else inputs
        made = parameters.normalisation.normalised(block.norm_inputs)
        errors["feed-forward norm"] = _relative(made, normed, normed, token_mask)
    attention = block.attention
    if not attention.is_cross_attention:
        norm = attention.parameters.input_normalisation
        made = attention.inputs if norm is None else norm.normalised(attention.inputs)
        errors["attention input"] = _relative(made, attention.attention_inputs, made, token_mask)
    return errors


def _parts_error(block: FeedForwardBlock) -> float:
    """The largest error of what the activation reads, and of the network's output as the sum of its parts."""
    weights, token_mask = block.parameters, block.token_mask
    errors = []
    for observed, weight, bias in (
        (block.pre_activations, weights.input_weight, weights.input_bias),
        (block.multipliers, weights.multiplier_weight, weights.multiplier_bias),
    ):
        if observed is not None and weight is not None:
            made = block.inputs @ weight + (0.0 if bias is None else bias)
            errors.append(_relative(made, observed, observed, token_mask))
    for rule in BiasRule:
        layer = block.composition(rule)
        own, others, constant = layer.made_of_itself(), layer.made_of_others(), layer.parts.constant
        # Parts may be far longer than their sum.
        scale = torch.stack([block.output, own, others, constant]).norm(dim=-1, keepdim=True).amax(dim=0)
        errors.append(_relative(own + others + constant, block.output, scale, token_mask))
        errors.append(_relative(layer.parts.own, own, scale, token_mask))
    return max(errors)


def _norm_error(module: nn.Module, norm: Normalisation, dtype: torch.dtype) -> float:
    """The largest difference between a norm module and its parameters, on probe vectors.

    Vectors whose variance is near ε prove ε, which the activations of a model are too large to show.
    """
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(2, 8, len(norm.weight), generator=generator, dtype=torch.float64)
    vectors[0] *= math.sqrt(norm.epsilon)
    probe = vectors.to(norm.weight.device, dtype)
    with torch.inference_mode():
        expected = module(probe)
    made = norm.normalised(full_precision(probe))
    return _relative(made, expected, expected, torch.ones(probe.shape[:-1], dtype=torch.bool))


def _side_by_side(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2).flatten(2)


def _relative(got: Tensor, expected: Tensor, scale: Tensor, token_mask: Tensor) -> float:
    """Largest ‖got − expected‖ / ‖scale‖ over real tokens."""
    difference = torch.linalg.vector_norm((got - expected).cpu().double(), dim=-1)
    size = torch.linalg.vector_norm(scale.cpu().double(), dim=-1).clamp(min=torch.finfo(torch.float64).tiny)
    return float((difference / size)[token_mask.cpu()].max())
