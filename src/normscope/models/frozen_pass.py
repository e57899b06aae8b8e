"""A forward pass that keeps only the layers' inputs, and rebuilds one layer at a time with everything but its inputs fixed."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError
from normscope.maths.frozen import FrozenLayer, FrozenNorm, Gradient, LayerGradients, Noted, transposed_through
from normscope.maths.normalisation import Normalisation
from normscope.models.any_module import returned_vectors
from normscope.models.attention_function import attention_by
from normscope.models.block import full_precision
from normscope.models.block_modules import bind_blocks
from normscope.models.feed_forward import FeedForwardBlock
from normscope.models.feed_forward_modules import bind_feed_forward
from normscope.models.forward_pass import LayerCall
from normscope.models.frozen_functions import frozen_functions, recorded_biases
from normscope.models.frozen_layers import LayerFreezer
from normscope.models.identities import BOUNDS, FLOAT32_INSIDE, bound_with_norms, row_error
from normscope.models.layer_hooks import hook_on_end
from normscope.models.layout import ModelLayout
from normscope.models.observer import Observer
from normscope.models.stored_weights import execution_device, is_offloaded
from normscope.models.text_check import Check, TextCheck
from normscope.models.untouched import reference_attention

_CHANGED = 1e-3
"""The relative difference of vectors beyond which they are others, not the same ones rounded."""


@dataclasses.dataclass(frozen=True, eq=False)
class FrozenPass:
    """A forward pass whose layers can be rebuilt, held fixed at their inputs."""

    hidden: Float[Tensor, "batch token model"]
    """The last hidden vectors. Autograd records what the model or its head does with them."""
    output: Any
    """What the model, or the head, has returned."""
    check: TextCheck
    """Refuses what is not equal up to rounding."""
    biases: Sequence[Tensor]
    """Biases of the model and the head. Autograd records those that come after the last hidden vectors."""
    final_norm: FrozenNorm | None
    """The norm after the last layer; None if there is none."""
    _observer: Observer
    _blocks: Sequence[FeedForwardBlock]
    """The networks of all layers, with their attention blocks, if no module runs a layer; else empty."""
    _inputs: Mapping[str, Tensor]
    _calls: Sequence[LayerCall]
    _freezer: LayerFreezer

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self._calls)

    @property
    def embeddings(self) -> Float[Tensor, "batch token model"]:
        """The inputs of the first layer: each token's vector, with position, segment and the embedding norm's β."""
        return full_precision(self._calls[0].inputs)

    @property
    def returned(self) -> Float[Tensor, "batch token model"]:
        """The last hidden vectors that the model itself returns, as autograd records them.

        They are `hidden` unless the model changes them after its last layer in other ways than by its final norm.
        """
        returned = returned_vectors(self.output)
        if returned is None or (returned.shape == self.hidden.shape and torch.equal(returned, self.hidden)):
            return self.hidden
        return full_precision(returned)

    def check_returned(self) -> None:
        """Check that the vectors that are followed through the layers and the final norm are those that the model returns.

        Raises:
            InputError: If the model changes them afterwards.
        """
        hidden, returned = self.hidden.detach(), self.returned.detach()
        if returned.shape == hidden.shape:
            difference = (returned - hidden)[self.token_mask]
            if float(difference.norm()) <= _CHANGED * float(hidden[self.token_mask].norm()):
                return
        raise InputError(
            "model: expected one that returns the vectors of its last layer or of the norm after it, which similarities "
            "follow; this one changes them afterwards; use normscope.attribute with SimilarityTo instead"
        )

    @property
    def token_mask(self) -> Bool[Tensor, "batch token"]:
        """True at tokens, False at padding."""
        return self._inputs["attention_mask"].bool()

    def block(self, layer: int) -> FeedForwardBlock:
        """One layer, rebuilt from its inputs.

        Args:
            layer: Counted from 1.
        """
        if self._blocks:
            return self._blocks[layer - 1]
        blocks: list[FeedForwardBlock] = []
        self._observer.run_layer(self._calls[layer - 1], self._inputs, lambda _block: None, blocks.append)
        return blocks[0]

    def layer(self, layer: int) -> FrozenLayer:
        """One layer, rebuilt and held fixed.

        Args:
            layer: Counted from 1.

        Raises:
            InputError: If the activation of its network is none that we know.
        """
        block = self.block(layer)
        with torch.inference_mode():
            return self._freezer.layer(block)

    def transposed(
        self,
        gradient: Float[Tensor, "scalar token model"],
        note: Callable[[FeedForwardBlock, LayerGradients], None] | None = None,
        *,
        direct: int = 0,
    ) -> Gradient:
        """Carry the gradient of a scalar from the last hidden vectors back to the first layer's inputs.

        Args:
            gradient: At `hidden`, of one scalar of each sequence, or of any number of a single one; zero at padding.
            note: Receives each layer, from the last to the first, and the gradients at its parts: of the direct gradients, if
                there are any. Their bias includes that of all later layers.
            direct: Number of gradients, the last ones, that go back along the residual connections and their norms alone.

        Returns:
            The gradient at `embeddings`, the part of the scalar that comes from biases other than those of the first layer's
            values, and by token what comes from these; of the gradients that are not direct.

        Raises:
            InputError: If the activation of a network is none that we know.
        """
        with torch.inference_mode():
            return transposed_through(self._back(note), self.final_norm, full_precision(gradient), direct=direct)

    def _back(
        self, note: Callable[[FeedForwardBlock, LayerGradients], None] | None
    ) -> Iterator[tuple[FrozenLayer, Noted | None]]:
        """The layers from the last to the first, one at a time."""
        for number in range(self.layers, 0, -1):
            block = self.block(number)
            yield self._freezer.layer(block), None if note is None else functools.partial(note, block)


@contextlib.contextmanager
def frozen_pass(
    model: PreTrainedModel,
    layout: ModelLayout,
    inputs: Mapping[str, Tensor],
    head: PreTrainedModel | None = None,
) -> Iterator[FrozenPass]:
    """Run a model once, and keep what it takes to rebuild its layers while the context is open.

    Args:
        model: A base model in evaluation mode.
        inputs: Keyword arguments of the model.
        head: A model that contains `model`; it is run instead. The slopes of its own activations and the deviations of its own
            norms are held fixed.

    Raises:
        InputError: If a layer has no feed-forward network that can be observed, the model is a single layer with a convolution
            beside it, some of its weights are not on its device, or the pass differs from that of the untouched model.
    """
    whole = model if head is None else head
    if is_offloaded(whole):
        raise InputError(
            "device.map=auto: attribution through all layers needs all weights on one device; leave out device.map"
        )
    freezer = LayerFreezer(model, layout)
    freezer.check(len(layout.stream.layers))
    calls: list[LayerCall] = []
    blocks: list[FeedForwardBlock] = []
    untouched, bound = _untouched(model, layout, inputs, whole), _untouched_bound(model, layout)
    with contextlib.ExitStack() as exit_:
        for handle in _exact_norms(model, layout):
            exit_.callback(handle.remove)
        observer = exit_.enter_context(Observer(model, layout, feed_forward=True))
        biases = exit_.enter_context(recorded_biases(whole))
        last = _LastVectors(model, layout, calls)
        with contextlib.ExitStack() as running:
            running.callback(last.handle.remove)
            running.enter_context(torch.inference_mode(False))
            running.enter_context(frozen_functions())
            # A layer that no module runs cannot run again.
            keep = blocks.append if layout.stream.places else _nothing
            output = observer.run(
                inputs, _nothing, visit_feed_forward=keep, whole=whole, calls=calls, check=Check.TOKENS
            )
        if not layout.routed:  # rounding may change the choice of experts, whose layers were compared one by one
            _compare(observer.check.name, bound, (last.vectors, output), untouched, inputs["attention_mask"].bool())
        yield FrozenPass(
            last.vectors,
            output,
            observer.check,
            biases,
            last.final_norm,
            observer,
            blocks,
            inputs,
            calls,
            freezer,
        )


def _nothing(_block: object) -> None:
    """Visit a block, and do nothing."""


def _untouched(
    model: PreTrainedModel, layout: ModelLayout, inputs: Mapping[str, Tensor], whole: nn.Module
) -> tuple[Tensor, Any]:
    """The last hidden vectors of the untouched model, and what it or its head returns."""
    kept: list[Tensor] = []

    def take(_module: nn.Module, _args: Any, output: Any) -> None:
        vectors = output[0] if isinstance(output, tuple | list) else output
        kept.append(layout.by_text(vectors).clone())

    final = None if layout.stream.final_norm is None else attrgetter(layout.stream.final_norm)(model)
    if final is None and layout.stream.places:
        handle = hook_on_end(model, layout, lambda vectors: kept.append(layout.by_text(vectors).clone()))
    else:
        handle = (layout.parts(model)[-1].entry if final is None else final).register_forward_hook(take)
    with contextlib.ExitStack() as exit_:
        exit_.callback(handle.remove)
        if layout.attention.registry:
            exit_.enter_context(attention_by(model, reference_attention(model, layout)))
        exit_.enter_context(torch.inference_mode())
        output = whole(**inputs)
    return kept[-1], output


def _untouched_bound(model: PreTrainedModel, layout: ModelLayout) -> float:
    """The largest difference from the untouched model that rounding can bring about; float32 inside float64 adds up."""
    norms = [norm for block in bind_blocks(model, layout) for norm in (block.norm, block.attention_norm)]
    bound = bound_with_norms(model, layout, norms)
    return bound if bound == BOUNDS[model.dtype] else max(bound, BOUNDS[torch.float32])


def _compare(
    name: str, bound: float, frozen: tuple[Tensor, Any], untouched: tuple[Tensor, Any], tokens: Tensor
) -> None:
    """Compare what the frozen pass computes with the untouched model.

    Raises:
        InputError: If the last hidden vectors or the logits differ.
    """
    if tokens.device.type == "meta":
        return
    logits = [getattr(output, "logits", None) for _, output in (frozen, untouched)]
    compared: list[tuple[str, Tensor | None, Tensor | None]] = [
        ("the last hidden vectors differ", frozen[0], untouched[0]),
        ("the logits differ", logits[0], logits[1]),
    ]
    for part, got, wanted in compared:
        if got is None or wanted is None:
            continue
        got, wanted = full_precision(got.detach()), full_precision(wanted)
        errors = row_error(got, wanted, wanted)
        if errors.shape == tokens.shape:
            errors = errors.masked_fill(~tokens.to(errors.device), 0)
        if float(errors.max()) >= bound:
            raise InputError(
                f"{name} cannot be attributed on these texts: {part} from those of the untouched model by "
                f"{float(errors.max()):.1e} (relative, at most {bound:.0e}), with slopes, deviations and attention weights "
                "held fixed"
            )


class _LastVectors:
    """Makes the last hidden vectors of a pass the leaves from which autograd records."""

    def __init__(self, model: PreTrainedModel, layout: ModelLayout, calls: Sequence[LayerCall]) -> None:
        self._layers, self._calls = len(layout.stream.layers), calls
        module: Any = None if layout.stream.final_norm is None else attrgetter(layout.stream.final_norm)(model)
        # Reading a norm may run it, so it is read before it has the hook.
        self._by_text = layout.by_text
        self._norm = None if module is None else layout.normalisation(module, execution_device(model))
        if module is None and layout.stream.places:
            self.handle = hook_on_end(model, layout, self._as_leaf)
        else:
            last = layout.parts(model)[-1].entry if module is None else module
            self.handle = last.register_forward_hook(self._leave)
        self.vectors = torch.empty(0)
        self.final_norm: FrozenNorm | None = None

    def _leave(self, _module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        if len(self._calls) < self._layers:  # layers that share their modules share the hook
            return None
        if self._norm is not None:
            self.final_norm = FrozenNorm.at(self._norm, full_precision(self._by_text(args[0])))
        if isinstance(output, tuple | list):  # of a list, in openai-gpt
            return type(output)((self._as_leaf(output[0]), *output[1:]))
        return self._as_leaf(output)

    def _as_leaf(self, vectors: Tensor) -> Tensor:
        self.vectors = self._by_text(vectors).detach().clone().requires_grad_()
        torch.set_grad_enabled(True)  # until the pass ends, which restores the mode
        return self._by_text(self.vectors)


def _exact_norms(model: PreTrainedModel, layout: ModelLayout) -> Iterator[RemovableHandle]:
    """Make the norms of a float64 model compute in float64, where their family rounds to float32.

    A rounded norm is not linear, so its parts could add up to 1e-7 at best.
    """
    if model.dtype is not torch.float64:
        return
    blocks = [norm for layer in bind_blocks(model, layout) for norm in (layer.attention_norm, layer.norm)]
    networks = [norm for layer in bind_feed_forward(model, layout) for norm in (layer.norm, layer.output_norm)]
    final = None if layout.stream.final_norm is None else attrgetter(layout.stream.final_norm)(model)
    convolution = None if layout.stream.convolution is None else attrgetter(layout.stream.convolution)(model)
    beside = None if convolution is None else convolution.LayerNorm
    paths = {module: path for path, module in model.named_modules()}
    norms = {id(norm): norm for norm in (*blocks, *networks, final, beside) if norm is not None}
    for norm in norms.values():
        if not isinstance(norm, nn.Identity):
            exact = layout.normalisation(norm, execution_device(model))
            yield norm.register_forward_hook(functools.partial(_exactly, exact, paths.get(norm, type(norm).__name__)))


def _exactly(norm: Normalisation, path: str, _module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
    """The output of a norm in float64.

    Raises:
        InputError: If the norm's own output differs by more than float32 explains.
    """
    made = norm.normalised(args[0])
    error = float(row_error(output.detach().to(made), made.detach(), made.detach()).max())
    if error >= FLOAT32_INSIDE:
        raise InputError(
            f"the model cannot be attributed on these texts: the output of the norm {path} differs by {error:.1e} (relative, "
            f"at most {FLOAT32_INSIDE:.0e}) from what its weights make, so it does something else with them"
        )
    return made
