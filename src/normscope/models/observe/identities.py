"""What must be equal in a model that is observed exactly, each difference relative to the size of what is compared.

Tensors of the observed pass come from its blocks, those of the untouched model from its record; all others are rebuilt from
weights.
"""

import math
import weakref
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel

from normscope.maths.composition import read_by_norm
from normscope.maths.layer_composition import LayerStage
from normscope.maths.normalisation import Normalisation
from normscope.models.blocks.block import AttentionBlock, full_precision
from normscope.models.observe.feed_forward import FeedForwardBlock
from normscope.models.observe.untouched import Call, LayerRecord, UntouchedPass, is_norm
from normscope.models.sites.block_modules import BlockModules
from normscope.models.sites.layout import ModelLayout
from normscope.models.sites.linear_layers import scaled_projection
from normscope.models.stored.stored_weights import execution_device
from normscope.rounding import number

# float32 rounds at 6e-8; a block adds up some thousand products, and 1e-4 is what the results promise. Half precision
# rounds at 4e-3 (bfloat16) and is let through with its figure, which the results state.
BOUNDS: Mapping[torch.dtype, float] = {
    torch.float64: 1e-10,
    torch.float32: 1e-4,
    torch.bfloat16: 0.1,
    torch.float16: 0.02,
}

FLOAT32_INSIDE = 1e-6
"""What float32 inside a float64 model leaves: some roundings at 6e-8."""

_ROUNDINGS = 16
"""How many roundings of a score, |s|·ε, a difference may be that precision explains: a score adds up the products of a head."""

_LITTLE = 0.05
"""A difference that only rounding can bring about, in any dtype."""


def bound_of(model: PreTrainedModel, layout: ModelLayout) -> float:
    """The largest difference that rounding can bring about."""
    bound = BOUNDS[model.dtype]
    return max(bound, FLOAT32_INSIDE) if layout.float32_inside else bound


def difference_in_words(
    what: str, error: float, bound: float, dtype: torch.dtype, score: float = 0.0, otherwise: str = ""
) -> str:
    """The part of a message about something that differs.

    Args:
        what: What differs.
        error: By how much.
        bound: From which difference on that is refused.
        dtype: That of the model.
        score: The size of the largest scores, by whose rounding the difference may be explained.
        otherwise: What follows if it is not.
    """
    rounding = torch.finfo(torch.promote_types(dtype, torch.float32)).eps * score
    if dtype is not torch.float64 and error <= _ROUNDINGS * rounding:
        otherwise = f"; scores as large as {score:,.0f} are too large for its precision: set device.dtype=float64"
    return (
        f"{what} differs by {number(error, digits=2)} (relative; the limit is {number(bound, digits=1)} in "
        f"{str(dtype).removeprefix('torch.')}){otherwise}"
    )


def bound_with_norms(model: PreTrainedModel, layout: ModelLayout, norms: Iterable[nn.Module | None]) -> float:
    """`bound_of`, or more if some of the norms compute in float32 inside a float64 model."""
    bound = bound_of(model, layout)
    if model.dtype is not torch.float64 or bound >= FLOAT32_INSIDE:
        return bound
    one_of_a_kind = {type(norm): norm for norm in norms if norm is not None and not isinstance(norm, nn.Identity)}
    for norm in one_of_a_kind.values():
        if norm_error(norm, layout.normalisation(norm, execution_device(model)), model.dtype) > bound:
            return FLOAT32_INSIDE
    return bound


class Difference(NamedTuple):
    """One comparison."""

    layer: int
    part: str
    error: float | Float[Tensor, ""]
    """In the pass of a run a tensor, for which the host need not wait."""
    condition: str = ""
    """Under which condition, for messages."""

    @property
    def what(self) -> str:
        """The part and its layer, for messages."""
        return f"{self.condition}the {self.part} of layer {self.layer}"


class Rest(NamedTuple):
    """What a layer adds to the block's output."""

    module: nn.Module
    """The module that computes it."""
    scale: float | Tensor
    """The factor on what that returns."""


_RESTS: "weakref.WeakKeyDictionary[nn.Module, dict[tuple[str | None, int], Rest]]" = weakref.WeakKeyDictionary()
"""What the proof has found, by model, stack and layer."""


def note_rest(model: nn.Module, layout: ModelLayout, layer: int, rest: Rest) -> None:
    """Note what computes the rest of a layer."""
    _RESTS.setdefault(model, {})[layout.stack, layer] = rest


def known_rests(model: nn.Module, layout: ModelLayout) -> dict[int, Rest]:
    """What computes the rest of each layer, as far as it is known; by layer, from 1."""
    return {layer: rest for (stack, layer), rest in _RESTS.get(model, {}).items() if stack == layout.stack}


class NotObservableError(Exception):
    """A model that does something other than its layout says, where no number could show how much it matters."""

    def __init__(self, layer: int, reason: str) -> None:
        super().__init__(f"in layer {layer}, {reason}")


def attention_differences(
    block: AttentionBlock, modules: BlockModules, expected: UntouchedPass
) -> Iterator[Difference]:
    """Compare a block of the observed pass with the untouched model, and its parts with what the weights give for its input.

    Args:
        block: A block of the observed pass.
        expected: What the untouched model did.

    Raises:
        NotObservableError: If the untouched model does not run one of the modules, or reads the block's sum where it may not.
    """
    record = expected.layers[block.layer]
    tokens, keys = block.token_mask, block.key_mask
    inputs, output = residual_input(modules, record), _attention_output(modules, record)
    yield Difference(block.layer, "block input", relative_error(block.inputs, inputs, inputs, tokens))
    made = _attention_inputs(block, inputs, expected.source)
    yield Difference(block.layer, "attention input", relative_error(made, block.attention_inputs, made, keys))
    yield from _projections(block, modules, record)
    yield Difference(block.layer, "attention output", relative_error(block.attention_output, output, output, tokens))
    for part, error in _sums(block, output).items():
        yield Difference(block.layer, part, error)
    yield from _block_output(block, modules, record)


def _projections(block: AttentionBlock, modules: BlockModules, record: LayerRecord) -> Iterator[Difference]:
    """Compare keys, queries and values with what their weights make of what attention reads."""
    read, parameters = block.attention_inputs, block.parameters
    if block.is_cross_attention and parameters.key is not None and parameters.query is not None:
        read = full_precision(_by_token(_call(block.layer, record.calls, modules.heads.query, "W_Q").inputs, record))
        _check_reads(block, read, record)
    for part, made, given, mask in rebuilt(block, read):
        yield Difference(block.layer, part, relative_error(made, given, given, mask))


def rebuilt(block: AttentionBlock, of_query: Tensor | None) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
    """Keys, queries and values as their weights make them of what attention reads, as far as they have weights.

    Args:
        of_query: What W_Q reads; without it, queries are left out.

    Yields:
        The part, its vectors of all heads of a token as one, those that attention was given, and which of the tokens count.
    """
    parameters, read = block.parameters, block.attention_inputs
    if parameters.key is not None:  # first, since queries turn as keys do
        key = parameters.keys(read, block.key_map)
        yield "key", side_by_side(key), side_by_side(block.key), block.key_mask
        if parameters.query is not None and of_query is not None:
            made = side_by_side(parameters.queries(of_query, block.key_map))
            given = side_by_side(block.query)
            # OPT scales its queries before attention instead of the scores in it.
            one, other = (heads[block.token_mask] for heads in (made, given))
            scale = (one * other).sum() / one.square().sum().clamp(min=torch.finfo(made.dtype).tiny)
            yield "query", made * scale, given, block.token_mask
    if parameters.value is not None:
        yield "value", side_by_side(parameters.values(read)), side_by_side(block.value), block.key_mask


def _sums(block: AttentionBlock, output: Tensor) -> dict[str, float]:
    """Σ_j αf(x_j) and its short cuts, from explicit vectors."""
    weights = block.weights
    own = (
        torch.zeros_like(weights) if block.is_cross_attention else torch.diag_embed(weights.diagonal(dim1=-2, dim2=-1))
    )
    mixing, preserving = block.attended(weights - own), block.attended(own)
    whole = mixing + preserving
    if block.parameters.output_bias is not None:
        whole = whole + block.parameters.output_bias
    return {
        "sum of αf(x)": relative_error(whole, block.attention_output, output, block.token_mask),
        "preserving vector": relative_error(block.composition.preserving, preserving, output, block.token_mask),
        "mixing vector": relative_error(block.mixing, mixing, output, block.token_mask),
    }


def _attention_inputs(block: AttentionBlock, inputs: Tensor, source: Tensor | None) -> Tensor:
    """What W_K and W_V read: the block's input or its norm; in cross-attention what the encoder returned."""
    if block.is_cross_attention:
        assert source is not None
        return source
    norm = block.parameters.input_normalisation
    return inputs if norm is None else norm.normalised(full_precision(inputs))


def _check_reads(block: AttentionBlock, read: Tensor, record: LayerRecord) -> None:
    """Check that what W_Q of cross-attention reads is the block's input, or what a single module makes of that."""
    inputs, tokens = block.inputs, block.token_mask
    if _error(inputs, read, read, tokens) < _LITTLE:
        return
    for call in record.calls.values():
        if max(_error(call.inputs, inputs, inputs, tokens), _error(call.output, read, read, tokens)) < _LITTLE:
            return
    raise NotObservableError(block.layer, "W_Q reads something other than the block's input or its norm")


def _block_output(block: AttentionBlock, modules: BlockModules, record: LayerRecord) -> Iterator[Difference]:
    layer, composition, tokens = block.layer, block.composition, block.token_mask
    made = composition.output(composition.stages[-1])
    if modules.norm is not None:
        # The norm hides a factor, so what it reads is compared as well.
        normed = _call(layer, record.calls, modules.norm, "norm of the block")
        given = _by_token(normed.inputs, record)
        read = read_by_norm(block.parameters.norm_position, block.inputs, block.attention_output)
        yield Difference(layer, "input of the block's norm", relative_error(read, given, given, tokens))
    match block.parameters.norm_position:
        case "post":
            expected = normed.output
        case "branch":
            expected = residual_input(modules, record) + _by_token(normed.output, record)
        case "pre":
            expected = record.output
            if modules.sum_consumer is not None:
                expected = _call(layer, record.calls, modules.sum_consumer, "reader of the sum").inputs
        case "parallel":
            output = _attention_output(modules, record)
            for module, call in record.calls.items():
                # Attention may add little to the stream, so the difference is compared with what it adds.
                if _error(call.inputs, made, output, tokens) < _LITTLE:
                    raise NotObservableError(
                        layer,
                        f"{_path(modules.entry, module)} reads the sum of attention and residual, so no other branch is "
                        "parallel to attention",
                    )
            return
    expected = _by_token(expected, record)
    yield Difference(layer, "block output", relative_error(made, expected, expected, tokens))


def rest_of_layer(
    block: AttentionBlock,
    modules: BlockModules,
    record: LayerRecord,
    bound: float,
    crossing: BlockModules | None = None,
) -> tuple[Difference, Rest | None]:
    """Compare what leaves the layer with the block's output plus what one module adds, the rest of the layer.

    How the rest computes its vectors is not checked, only that the layer adds nothing else to the stream.

    Args:
        block: A block of the observed pass.
        record: What the untouched model did in its layer.
        bound: A difference below it is taken for none, so that no other module has to be looked at.
        crossing: The cross-attention that follows in the same layer and has a proof of its own; the block's output must be what
            its residual connection carries.

    Returns:
        The comparison, and the module if there is one.
    """
    output, tokens = block.composition.block_output, block.token_mask
    if modules.site.inner:
        return Difference(block.layer, "layer output", 0.0), None  # more follows, which nothing describes
    if crossing is not None:
        carried = residual_input(crossing, record)
        return Difference(
            block.layer, "input of cross-attention", relative_error(output, carried, carried, tokens)
        ), None
    leaving = record.output
    if modules.output_norm is not None:
        leaving = _by_token(_call(block.layer, record.calls, modules.output_norm, "norm of its output").inputs, record)
    if modules.site.residual.sum_consumer == "":
        return Difference(block.layer, "layer output", relative_error(output, leaving, leaving, tokens)), None
    errors = (
        (_error(call.output * scale, leaving - output, leaving, tokens), Rest(module, scale))
        for module, call in reversed(list(record.calls.items()))  # the rest comes last
        for scale in modules.later_scales
        if call.output is not None and (isinstance(scale, float) or len(scale) in (1, call.output.shape[-1]))
    )
    least, found = math.inf, None
    for error, rest in errors:
        if error < least:
            least, found = error, rest
        if least < bound:
            break
    return Difference(block.layer, "layer output", least), found


def stream_differences(
    model: nn.Module, layout: ModelLayout, expected: UntouchedPass, token_mask: Tensor
) -> Iterator[Difference]:
    """Compare what each layer reads with what the one before leaves, and the last with the model's output.

    Args:
        expected: What the untouched model did.
        token_mask: False at padding.

    Raises:
        NotObservableError: If hidden vectors are the output of a norm that the layout leaves out.
    """
    beside = None if layout.stream.convolution is None else attrgetter(layout.stream.convolution)(model)
    declared = layout.hidden_norms(model)
    records = expected.layers
    vectors: Tensor = records[1].inputs
    last = len(layout.stream.layers)
    for layer in range(last + 1):
        calls = expected.around if layer == 0 else records[layer].calls
        if layer:
            leaves = records[layer].output
            if beside is not None and layer == 1:
                convolved = _call(layer, expected.around, beside.LayerNorm, "norm of its convolution").output
                assert convolved is not None
                leaves = convolved
            vectors = leaves if layer == last else records[layer + 1].inputs
            yield Difference(layer, "stream", relative_error(leaves, vectors, vectors, token_mask))
        norm = declared.get(layer)
        if norm is not None:
            normed = calls.get(norm, expected.around.get(norm))
            error = math.inf if normed is None else _error(normed.output, vectors, vectors, token_mask)
            yield Difference(layer, "hidden vector", error)
        else:
            _check_no_norm(model, layer, calls, vectors, token_mask)
    yield Difference(last, "model output", _output_error(model, layout, vectors, expected.output, token_mask))


def _check_no_norm(
    model: nn.Module, layer: int, calls: Mapping[nn.Module, Call], vectors: Tensor, token_mask: Tensor
) -> None:
    """Check that no norm makes hidden vectors."""
    for module, call in calls.items():
        if call.output is None or call.output.shape != vectors.shape:
            continue
        equal = torch.equal(call.output[token_mask], vectors[token_mask])
        if equal and is_norm(module, vectors.shape[-1], vectors.device, vectors.dtype):
            raise NotObservableError(
                layer, f"hidden vectors are the output of the norm {_path(model, module)}, which the layout leaves out"
            )


def _output_error(model: nn.Module, layout: ModelLayout, vectors: Tensor, output: Tensor, token_mask: Tensor) -> float:
    made = full_precision(vectors)
    if layout.stream.final_norm is not None:
        made = layout.normalisation(attrgetter(layout.stream.final_norm)(model), made.device).normalised(made)
    if layout.stream.output_projection is not None:
        weight, bias = scaled_projection(attrgetter(layout.stream.output_projection)(model), 1.0)
        made = made @ weight if bias is None else made @ weight + bias
    return relative_error(made, output, output, token_mask)


def layer_differences(block: FeedForwardBlock, record: LayerRecord) -> Iterator[Difference]:
    """Compare a whole layer of the observed pass with the untouched model, and with the sum of its parts.

    Args:
        block: A layer of the observed pass.
        record: What the untouched model did in it.
    """
    layer, token_mask = block.layer, block.token_mask
    last = block.stages[-1]
    yield Difference(
        layer, "layer output", relative_error(block.vectors(last), record.output, record.output, token_mask)
    )
    if not block.is_parallel:
        expected = block.attention.composition.block_output
        got = block.vectors(LayerStage.BLOCK)
        yield Difference(layer, "block output", relative_error(got, expected, expected, token_mask))
    yield Difference(layer, "sum of the layer's parts", float(block.error().max()))


def residual_input(modules: BlockModules, record: LayerRecord) -> Tensor:
    """What the residual connection of a block carries, in the untouched model.

    Raises:
        NotObservableError: If the untouched model does not run the module that reads it.
    """
    if modules.bottleneck is not None:
        return _by_token(_call(modules.layer, record.calls, modules.bottleneck, "bottleneck").output, record)
    if modules.carried is None:
        return record.inputs
    inputs = _call(modules.layer, record.calls, modules.carried, "residual connection").inputs
    return _by_token(inputs, record)


def _attention_output(modules: BlockModules, record: LayerRecord) -> Tensor:
    output = _call(modules.layer, record.calls, modules.output, "W_O").output
    return _by_token(output, record) * modules.scale


def _call(layer: int, calls: Mapping[nn.Module, Call], module: nn.Module | None, part: str) -> Call:
    if module is None or module not in calls:
        raise NotObservableError(layer, f"the {part} that the layout names is never run")
    return calls[module]


def _by_token(vectors: Tensor | None, record: LayerRecord) -> Tensor:
    # OPT's network reads all tokens of a batch in one row.
    assert vectors is not None
    return vectors.reshape(*record.inputs.shape[:2], -1)


def _path(model: nn.Module, module: nn.Module) -> str:
    return next((path for path, each in model.named_modules() if each is module), type(module).__name__)


def side_by_side(heads: Float[Tensor, "text head token dimension"]) -> Float[Tensor, "text token features"]:
    """The vectors of all heads of a token as one."""
    return heads.transpose(1, 2).flatten(2)


def _error(got: Tensor | None, expected: Tensor, scale: Tensor, token_mask: Tensor) -> float:
    """`relative_error`, or infinity if what was recorded is no vector for each token."""
    if got is None or got.numel() != expected.numel():
        return math.inf
    return relative_error(got.reshape(expected.shape), expected, scale, token_mask)


def relative_error(got: Tensor, expected: Tensor, scale: Tensor, token_mask: Tensor) -> float:
    """Largest ‖got − expected‖ / ‖scale‖ over real tokens; infinity if the shapes differ."""
    if got.shape != expected.shape:
        return math.inf
    difference = torch.linalg.vector_norm((got - expected).cpu().double(), dim=-1)
    size = torch.linalg.vector_norm(scale.cpu().double(), dim=-1).clamp(min=torch.finfo(torch.float64).tiny)
    return float((difference / size)[token_mask.cpu()].max())


def row_error(got: Tensor, wanted: Tensor, scale: Tensor) -> Float[Tensor, "*row"]:
    """‖got − wanted‖ / ‖scale‖ of every row, where the tensors are."""
    size = torch.linalg.vector_norm(scale, dim=-1).clamp(min=torch.finfo(scale.dtype).tiny)
    return torch.linalg.vector_norm(got - wanted, dim=-1) / size


def norm_error(module: nn.Module, norm: Normalisation, dtype: torch.dtype) -> float:
    """The largest difference between a norm module and its parameters, on probe vectors.

    Vectors whose variance is near ε prove ε, which the activations of a model are too large to show.
    """
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(2, 8, len(norm.weight), generator=generator, dtype=torch.float64)
    # A norm without ε may divide by at least some tiny number.
    vectors[0] *= max(norm.epsilon if norm.adds_outside else math.sqrt(norm.epsilon), 1e-7)
    probe = vectors.to(norm.weight.device, dtype)
    with torch.inference_mode():
        expected = module(probe)
    made = norm.normalised(full_precision(probe))
    return relative_error(made, expected, expected, torch.ones(probe.shape[:-1], dtype=torch.bool))
