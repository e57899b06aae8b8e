"""Proof, before a run counts, that what is observed is what the model does.

Two probe batches, one padded and one not, pass through the untouched model with its own fused attention and through the
observed one. Every block input, attention output, block output and hidden vector must agree; and within the observed pass the
vectors are built explicitly from α and v and compared with the output projection and with the short cuts that the analyses
use. (Adding up parts of which one was defined as the remainder would prove nothing.) Where only a module's own weights can be
observed, they are rebuilt from query, key, scale and the family's other terms.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError, one_line, origin
from normscope.models.block import AttentionBlock
from normscope.models.layout import BlockLayout, embeddings_of, stacked_heads
from normscope.models.observer import Observer
from normscope.models.rotation import length_dependent_rotations
from normscope.models.score_terms import ScoreTerms

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

_PROBE_LENGTHS = ((9, 6, 3), (7, 7))
_FUSED = "sdpa"


@dataclasses.dataclass(frozen=True)
class Verification:
    """The largest difference found, relative to the norm of what it is a difference of."""

    error: float
    layer: int
    part: str


@dataclasses.dataclass(frozen=True)
class _Reference:
    """What the untouched model did in one layer."""

    inputs: Tensor
    attention_output: Tensor
    block_output: Tensor | None = None
    """What the block's norm makes, or what the sum of attention and residual goes into; None where it goes nowhere alone."""


def verify(model: PreTrainedModel, layout: BlockLayout, name: str) -> Verification:
    """Compare the observed model with the untouched one, every layer of it.

    Args:
        model: A base model in evaluation mode.
        layout: Where its family keeps the parts of a block.
        name: For messages.

    Returns:
        The largest relative difference and where it was.

    Raises:
        InputError: If a difference is beyond what the dtype can explain; the layer and the figure are named.
    """
    worst = Verification(0.0, 1, "block input")
    bound = max(BOUNDS[model.dtype], _FLOAT32_INSIDE if layout.float32_inside else 0.0)
    for lengths in _PROBE_LENGTHS:
        inputs = _probe(model, embeddings_of(model).num_embeddings, lengths)
        if layout.reads_target:
            vocabulary = embeddings_of(model.get_decoder()).num_embeddings  # a Marian model may have two
            target = _probe(model, vocabulary, lengths[::-1])
            inputs |= {f"decoder_{key}": tensor for key, tensor in target.items()}
        try:
            references, hidden = _references(model, layout, inputs)
        except Exception as error:
            # What the model's own code raises, its config has brought about.
            if not origin(error).startswith(("torch", "transformers")) or isinstance(
                error, torch.cuda.OutOfMemoryError
            ):
                raise
            if model.dtype not in (torch.bfloat16, torch.float16):
                raise InputError(
                    f"model.name={name}: the model fails on a probe, so its config makes no sense: {one_line(error)}"
                ) from error
            # Some families' own code mixes formats (DeBERTa's does).
            kind = str(model.dtype).removeprefix("torch.")
            raise InputError(
                f"device.dtype={kind}: {name} cannot run in it: {one_line(error)}; set device.dtype=float32"
            ) from error

        def note(layer: int, part: str, error: float) -> None:
            nonlocal worst
            # `not <` rather than `>`: NaN must not pass.
            if math.isnan(error):
                raise InputError(
                    f"model.name={name}: the {part} of layer {layer} is not a number, so its config or its weights are of no "
                    "use; check the config's values, or set device.dtype=float64"
                )
            if not error < bound:
                raise InputError(
                    f"{name} cannot be observed exactly: the {part} of layer {layer} differs by {error:.1e} "
                    f"(relative, at most {bound:.0e} in {model.dtype}); the installed transformers may "
                    "have changed this family, or its layout leaves out what the block does (a multiplier, a norm); see "
                    f"{layout.source}"
                )
            if error > worst.error:
                worst = Verification(error, layer, part)

        def compare(block: AttentionBlock, references: Mapping[int, _Reference] = references) -> None:
            for part, error in _errors(block, references[block.layer]).items():
                note(block.layer, part, error)
            if block.own_weights is not None:
                rebuilt, weights = _side_by_side(terms.weights(block)), _side_by_side(block.weights)
                note(
                    block.layer,
                    "weights from query, key and scale",
                    _relative(rebuilt, weights, weights, block.token_mask),
                )

        def compare_hidden(
            layer: int,
            vectors: Tensor,
            hidden: Mapping[int, Tensor] = hidden,
            token_mask: Tensor = inputs["decoder_" * layout.reads_target + "attention_mask"].bool(),  # noqa: B008 - this batch's, not the next one's
        ) -> None:
            if layer in hidden:
                note(layer, "hidden vector", _relative(vectors, hidden[layer], hidden[layer], token_mask))

        watched = [] if layout.registry else layout.bind(model)
        with ScoreTerms(watched) as terms, Observer(model, layout, hidden=range(len(references) + 1)) as observer:
            observer.run(inputs, compare, compare_hidden)
    return worst


def _probe(model: PreTrainedModel, vocabulary: int, lengths: tuple[int, ...]) -> dict[str, Tensor]:
    """Token ids that stand for nothing, right-padded; the same at every run."""
    generator = torch.Generator().manual_seed(0)
    padding = model.config.pad_token_id
    ids = torch.randint(vocabulary, (len(lengths), max(lengths)), generator=generator)
    token_mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    if padding is not None:
        # Some models find their positions by looking for padding: none may stand among the tokens.
        ids = torch.where(ids == padding, (ids + 1) % vocabulary, ids).masked_fill(~token_mask, padding)
    return {"input_ids": ids.to(model.device), "attention_mask": token_mask.long().to(model.device)}


def _references(
    model: PreTrainedModel, layout: BlockLayout, inputs: dict[str, Tensor]
) -> tuple[dict[int, _Reference], dict[int, Tensor]]:
    """What the untouched model does: with the batch, or with every text alone where its rotations depend on the company."""
    if not length_dependent_rotations(model):
        return _untouched(model, layout, inputs)
    width = inputs["input_ids"].shape[1]
    passes = []
    for row, length in enumerate(inputs["attention_mask"].sum(dim=1).tolist()):
        with torch.inference_mode():  # one token makes dynamic scaling forget the longest text so far
            model(**{name: tensor[row : row + 1, :1] for name, tensor in inputs.items()})
        passes.append(
            _untouched(model, layout, {name: tensor[row : row + 1, :length] for name, tensor in inputs.items()})
        )

    def together(texts: Sequence[Tensor]) -> Tensor:
        return torch.cat([nn.functional.pad(text, (0, 0, 0, width - text.shape[1])) for text in texts])

    first, first_hidden = passes[0]
    return {
        layer: _Reference(
            **{
                part: together([getattr(references[layer], part) for references, _ in passes])
                for part, value in vars(reference).items()
                if value is not None
            }
        )
        for layer, reference in first.items()
    }, {layer: together([hidden[layer] for _, hidden in passes]) for layer in first_hidden}


def _untouched(
    model: PreTrainedModel, layout: BlockLayout, inputs: dict[str, Tensor]
) -> tuple[dict[int, _Reference], dict[int, Tensor]]:
    """What the model does by itself in every layer, and the hidden vectors as far as norms make them, from layer 0."""
    seen: list[dict[str, Tensor]] = []
    hidden: dict[int, Tensor] = {}
    handles = []

    def enter(_module: nn.Module, args: Any, kwargs: Any) -> None:
        seen.append({"inputs": args[0] if args else kwargs["hidden_states"]})

    def take_residual(_module: nn.Module, args: Any, kwargs: Any) -> None:
        seen[-1]["inputs"] = args[0] if args else kwargs["hidden_states"]

    def take(part: str) -> Any:
        def hook(_module: nn.Module, _args: Any, output: Tensor) -> None:
            seen[-1].setdefault(part, output)

        return hook

    def take_following(_module: nn.Module, args: Any) -> None:
        seen[-1].setdefault("block_output", args[0])

    blocks = layout.bind(model)
    for modules in {id(modules.whole): modules for modules in blocks}.values():
        handles += [
            modules.whole.register_forward_pre_hook(enter, with_kwargs=True),
            modules.output.register_forward_hook(take("attention_output")),
        ]
        if modules.residual is not modules.whole:
            handles.append(modules.residual.register_forward_pre_hook(take_residual, with_kwargs=True))
        if modules.norm is not None:
            handles.append(modules.norm.register_forward_hook(take("block_output")))
        if modules.sum_consumer is not None:
            handles.append(modules.sum_consumer.register_forward_pre_hook(take_following))
    for layer, norm in layout.hidden_norms(model).items():

        def remember_hidden(_module: nn.Module, _args: Any, output: Tensor, layer: int = layer) -> None:
            # A norm that several layers share has its turn in each of them.
            hidden[len(seen) if layer else 0] = output

        if norm not in (other for number, other in layout.hidden_norms(model).items() if number < layer):
            handles.append(norm.register_forward_hook(remember_hidden))
    previous = model.config._attn_implementation
    if layout.registry:
        model.set_attn_implementation(_FUSED)
    try:
        with torch.inference_mode():
            model(**inputs)
    finally:
        if layout.registry:
            model.set_attn_implementation(previous)
        for handle in handles:
            handle.remove()
    return {number: _Reference(**parts) for number, parts in enumerate(seen, start=1)}, hidden


def _errors(block: AttentionBlock, reference: _Reference) -> dict[str, float]:
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


def _side_by_side(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2).flatten(2)


def _relative(got: Tensor, expected: Tensor, scale: Tensor, token_mask: Tensor) -> float:
    """Largest ‖got − expected‖ / ‖scale‖ over real tokens."""
    difference = torch.linalg.vector_norm((got - expected).cpu().double(), dim=-1)
    size = torch.linalg.vector_norm(scale.cpu().double(), dim=-1).clamp(min=torch.finfo(torch.float64).tiny)
    return float((difference / size)[token_mask.cpu()].max())
