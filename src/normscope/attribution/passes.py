"""Forward passes of an untouched model, recorded as affine maps of its tokens' vectors.

The model runs its own code, so every value is its own; `rules.py` says how gradients go back through it. That scores and
constants add up to what the model computes is checked for every text.
"""

import contextlib
import dataclasses
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils._pytree import tree_iter, tree_map
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError
from normscope.linear.held_values import HeldValues
from normscope.linear.layer_calls import LayerCalls
from normscope.linear.layers import start
from normscope.linear.rules import (
    HeldFixed,
    Kind,
    NotAffineError,
    Stack,
    kind_of,
    marked,
    parts_from,
    stack_of,
    way_of,
    with_tensors,
)
from normscope.maths.tensors import lengthened, version_of, wide
from normscope.models.blocks.block import full_precision
from normscope.models.facts import ModelFacts
from normscope.models.load.any_module import returned_vectors
from normscope.models.observe.attention_function import IMPLEMENTATION, active, attention_by
from normscope.models.observe.cancelling import check_cancelled
from normscope.models.observe.check import BOUNDS
from normscope.models.observe.observer import Observer
from normscope.models.observe.reading import facts_of_config
from normscope.models.stored.model_code import model_code
from normscope.models.stored.stored_weights import is_offloaded
from normscope.rounding import number

_AT_ONCE = {"cpu": 2**15}
"""Elements to multiply at a time, by device: few enough for a CPU's cache."""

_AT_ONCE_ON_ACCELERATORS = 2**22


@dataclasses.dataclass(eq=False)
class RecordedLayer:
    """The vectors that enter a layer, and what its parts write: leaves from which autograd records what follows."""

    inputs: Tensor
    entered: Tensor | None
    """The same vectors as what the layers before gave; None for the first layer."""
    values: list[Tensor] = dataclasses.field(default_factory=list)
    """What attention adds up, (text, head, key, dimension); several tensors if heads are modules."""
    from_inputs: list[Tensor] = dataclasses.field(default_factory=list)
    """The same values as what the layer made of its inputs."""
    networks: list[tuple[Tensor, Tensor]] = dataclasses.field(default_factory=list)
    """What each feed-forward network adds, as a leaf, and as what the network made of its inputs."""


class Bound(NamedTuple):
    """The largest error that rounding explains."""

    name: str
    """The model's, for messages."""
    bound: float
    """Relative to the sum of the sizes of the parts."""

    def require(self, what: str, error: Tensor) -> None:
        """Check that parts add up.

        Args:
            what: The parts.
            error: The difference from what they should add up to, relative to their size; NaN if the model returns NaN.

        Raises:
            InputError: If they do not.
        """
        if error.device.type == "meta":
            return
        largest = float(error.max())
        if not math.isfinite(largest):
            raise InputError(f"{self.name} cannot be attributed on these texts: it returns NaN or infinity")
        if largest >= self.bound:
            raise InputError(
                f"{self.name} cannot be attributed on these texts: {what} do not add up to it; they differ by "
                f"{number(largest, digits=2)} (relative; the limit is {number(self.bound, digits=1)})"
            )


class Back(NamedTuple):
    """Gradients of scalars at leaves."""

    inputs: Sequence[Tensor]
    """At what enters each stack, or the layer, by text."""
    values: Float[Tensor, "batch head token head_dim"] | None
    """At what attention adds up; None without attention."""
    ones: Float[Tensor, ""]
    """At the constants from this layer on: what they add, in float64."""
    absorbed: Float[Tensor, ""]
    """What softmaxes absorb, in float64; 0 where attention weights are held."""


class Effects(NamedTuple):
    """What heads and networks add to a scalar, in float64: gradient × what they write, with everything held fixed, of one text.

    The scalar is affine in what any head or network writes. Two gradients answer two questions:

    - **direct**: along the residual connections and their norms alone, so what a part writes into the output itself. The parts
      of all layers, the embeddings and the biases add up to the scalar. For a logit of a pre-LN model this is direct logit
      attribution.
    - **total**: through all later layers as well. Within a layer, the heads, what bypasses attention, and the biases that come
      later add up to the scalar; parts of different layers do not, since later ones pass on what earlier ones write.
    """

    heads: Float[Tensor, "layer head token"]
    """From the values of each token, which include b_V. NaN for heads that a layer does not have."""
    networks: Float[Tensor, "layer token"]
    """From what each feed-forward network adds to each token's vector."""
    rest: Float[Tensor, "before token"]
    """Total effects: from each layer's inputs, by all ways but through its attention. Direct ones: one row, the embeddings."""
    bias: Float[Tensor, " before"]
    """From constants that come later; of direct effects, a single number."""
    direct: bool


class Source(NamedTuple):
    """What enters a stack of layers: the vectors of its tokens."""

    inputs: Float[Tensor, "batch token model"]
    """A leaf."""
    token_mask: Bool[Tensor, "batch token"]

    @property
    def vectors(self) -> Float[Tensor, "batch token model"]:
        """Each token's vector, with position, segment and the embedding norm's β."""
        return self.inputs.detach()

    def scores(self, gradient: Float[Tensor, "batch token model"]) -> Float[Tensor, "batch token"]:
        """Gradient × input, in float64; 0 at padding."""
        product = wide(gradient) * wide(self.vectors)
        return product.sum(dim=-1) * wide(self.token_mask)


@dataclasses.dataclass(eq=False)
class HeldPass:
    """A pass of a model, recorded with everything held fixed that is not linear."""

    output: Any
    """What the model has returned. Tensors that are affine in the tokens' vectors are leaves, from which autograd records what
    is made of them."""
    sources: Sequence[Source]
    """What enters the model; of an encoder–decoder, the source's tokens, then the target's."""
    recorded: Sequence[RecordedLayer]
    """The layers, in order; none of an encoder–decoder."""
    hidden: Float[Tensor, "batch token model"]
    """The vectors that the base model returns, as autograd has recorded them."""
    value_bias: Callable[[], Float[Tensor, "head head_dim"]]
    """Returns b_V of the first layer."""
    check: Bound
    _affine: Sequence[tuple[Tensor, Tensor]]
    """The tensors of the output that are affine, and the leaves that take their place."""
    _ones: Tensor
    """A number, 1, of which every constant is a multiple."""
    _absorbed: Tensor
    """The same for what softmaxes absorb."""
    _why: Callable[[], str]
    _parts: bool

    @property
    def token_mask(self) -> Bool[Tensor, "batch token"]:
        """True at the tokens of the last stack, False at padding."""
        return self.sources[-1].token_mask

    @property
    def returned(self) -> Float[Tensor, "batch *token model"]:
        """The last hidden vectors that the model returns; of a head that makes embeddings, these."""
        returned = returned_vectors(self.output)
        assert returned is not None
        return full_precision(returned)

    def at_output(self, target: Tensor) -> tuple[list[Tensor], Tensor]:
        """The gradient of a scalar at what the model returns, and the part of the scalar that is not linear in that.

        Args:
            target: A scalar that autograd has recorded from `output`.

        Raises:
            InputError: If the scalar does not depend on anything that is affine in the tokens' vectors.
        """
        leaves = [leaf for _, leaf in self._affine]
        if not target.requires_grad:
            raise self.not_affine()
        gradients = list(torch.autograd.grad(target, leaves, retain_graph=True, materialize_grads=True))
        linear = [_product(gradient, leaf.detach()) for gradient, leaf in zip(gradients, leaves, strict=True)]
        return gradients, wide(target.detach()) - torch.stack(linear).sum()

    def not_affine(self) -> NotAffineError:
        """Why nothing can be attributed."""
        return not_affine(self.check.name, self._why())

    def linear(self, gradients: Sequence[Tensor]) -> Float[Tensor, " batch"]:
        """Gradient × value of what the model returns, by text."""
        parts = [
            (wide(gradient) * wide(leaf.detach())).flatten(1).sum(dim=1)
            for gradient, (_, leaf) in zip(gradients, self._affine, strict=True)
            if len(leaf) == len(self.token_mask)
        ]
        return torch.stack(parts).sum(dim=0)

    def of_tokens(self, gradients: Sequence[Tensor]) -> Float[Tensor, "batch token"]:
        """Gradient × input of each token."""
        parts = [source.scores(each) for source, each in zip(self.sources, gradients, strict=True)]
        return torch.cat(parts, dim=-1)

    def at_hidden(self, target: Float[Tensor, ""]) -> Float[Tensor, "batch token model"]:
        """The gradient of a scalar at the vectors that the base model returns."""
        gradients, _ = self.at_output(target)
        made = [made for made, _ in self._affine]
        (gradient,) = torch.autograd.grad(made, self.hidden, gradients, retain_graph=True, materialize_grads=True)
        return gradient

    def of_value_biases(self, gradient: Float[Tensor, "batch head token head_dim"]) -> Float[Tensor, "batch token"]:
        """What b_V of each token's values in the first layer adds."""
        return torch.einsum("bhtd,hd->bt", wide(gradient), wide(self.value_bias())) * wide(self.token_mask)

    def back(self, gradients: Sequence[Tensor]) -> "Back":
        """The gradients at the leaves of the first layer, and at the constants.

        Args:
            gradients: Those at what the model returns; see `at_output`.
        """
        if self._parts:
            *_, (_, back) = self._staged(gradients, direct=False)
            return back
        values = [each for layer in self.recorded[:1] for each in layer.values]
        leaves = [*(source.inputs for source in self.sources), *values, self._ones, self._absorbed]
        made = [made for made, _ in self._affine]
        *found, ones, absorbed = torch.autograd.grad(made, leaves, gradients, retain_graph=True, materialize_grads=True)
        inputs, heads = found[: len(self.sources)], found[len(self.sources) :]
        return Back(inputs, torch.cat(heads, dim=1) if heads else None, wide(ones), wide(absorbed))

    def effects(self, target: Tensor, constant: Tensor | float = 0.0, *, direct: bool) -> Effects:
        """What the parts of each layer add to a scalar. The pass must have been made with parts.

        Args:
            target: A scalar that autograd has recorded from `output`.
            constant: What biases outside the model add to it.
            direct: Whether gradients go back only along the residual connections and their norms.
        """
        at_output, _ = self.at_output(target)
        of_layers = [parts for parts, _ in self._staged(at_output, direct=direct)][::-1]
        of_heads, *others = zip(*of_layers, strict=True)
        most = max(len(heads) for heads in of_heads)
        heads = torch.stack([lengthened(each, most, 0, fill=torch.nan) for each in of_heads])
        networks, before, bias = map(torch.stack, others)
        if direct:  # those of the first layer's inputs, and all constants
            before, bias = before[:1], bias[:1]
        return Effects(heads, networks, before, bias + constant, direct)

    def _staged(self, gradients: Sequence[Tensor], *, direct: bool) -> Iterator[tuple[Sequence[Tensor], "Back"]]:
        """Layer by layer, from the last to the first: what its parts add, and the gradients at its leaves."""
        made: list[Tensor] = [made for made, _ in self._affine]
        later = wide(torch.zeros_like(self._ones.detach()))
        for layer in reversed(self.recorded):
            at = _Gradients.of(made, gradients, layer, self._ones)
            if not direct:
                for (_, written), gradient in zip(layer.networks, at.networks, strict=True):
                    at = at.plus(_Gradients.of([written], [gradient], layer, self._ones))
            later = later + wide(at.ones)
            parts = [*self._parts_of(layer, at), later]
            inputs = at.inputs
            if not direct and layer.from_inputs:
                through = _Gradients.of(layer.from_inputs, at.values, layer, self._ones)
                inputs, later = inputs + through.inputs, later + wide(through.ones)
            values = torch.cat(at.values, dim=1) if at.values else None
            yield parts, Back([inputs], values, later, torch.zeros_like(later))
            if layer.entered is not None:
                made, gradients = [layer.entered], [inputs]

    def _parts_of(self, layer: RecordedLayer, at: "_Gradients") -> tuple[Tensor, Tensor, Tensor]:
        """What heads add (head, token), and networks and the layer's input (token)."""
        heads = torch.cat(
            [
                (wide(gradient) * wide(leaf.detach())).sum(dim=-1)[0]
                for leaf, gradient in zip(layer.values, at.values, strict=True)
            ]
        )
        networks = heads.new_zeros(self.token_mask.shape[1])
        for (leaf, _), gradient in zip(layer.networks, at.networks, strict=True):
            networks = networks + (wide(gradient) * wide(leaf.detach())).sum(dim=-1).flatten()
        bypass = self.sources[0]._replace(inputs=layer.inputs).scores(at.inputs)[0]
        return heads, networks, bypass


class _Gradients(NamedTuple):
    """Gradients at the leaves of a layer."""

    inputs: Tensor
    values: list[Tensor]
    networks: list[Tensor]
    ones: Tensor

    @classmethod
    def of(
        cls,
        made: Sequence[Tensor],
        gradients: Sequence[Tensor],
        layer: RecordedLayer,
        ones: Tensor,
    ) -> "_Gradients":
        """Go back from some tensors to the leaves of their layer."""
        leaves = [layer.inputs, *layer.values, *(leaf for leaf, _ in layer.networks), ones]
        inputs, *found, of_ones = torch.autograd.grad(
            list(made), leaves, list(gradients), retain_graph=True, materialize_grads=True
        )
        heads = len(layer.values)
        return cls(inputs, found[:heads], found[heads:], of_ones)

    def plus(self, other: "_Gradients") -> "_Gradients":
        """The sum of both."""
        values = [one + two for one, two in zip(self.values, other.values, strict=True)]
        networks = [one + two for one, two in zip(self.networks, other.networks, strict=True)]
        return _Gradients(self.inputs + other.inputs, values, networks, self.ones + other.ones)


def not_affine(name: str, why: str) -> NotAffineError:
    """The refusal of a model whose output is not an affine map of its tokens' vectors.

    Args:
        name: The model's.
        why: The function that is not linear, and the module that calls it.
    """
    return NotAffineError(
        f"{name} cannot be attributed: even with attention weights, deviations and slopes held fixed, {why} is not linear in "
        "the tokens' vectors; its attention blocks can still be measured"
    )


def _product(one: Tensor, other: Tensor) -> Float[Tensor, ""]:
    """Sum of the products of all elements, in float64, a piece at a time: all logits of a long text would take gigabytes."""
    size = _AT_ONCE.get(one.device.type, _AT_ONCE_ON_ACCELERATORS)
    pieces = zip(one.flatten().split(size), other.flatten().split(size), strict=True)
    return torch.stack([torch.dot(wide(left), wide(right)) for left, right in pieces]).sum()


def held_pass(
    model: PreTrainedModel,
    facts: ModelFacts,
    inputs: Mapping[str, Any],
    head: PreTrainedModel | None = None,
    *,
    parts: bool = False,
    through: bool = False,
) -> HeldPass:
    """Run a model once, recorded by autograd, with everything held fixed that is not linear.

    Args:
        model: A base model in evaluation mode.
        facts: What it is.
        inputs: Keyword arguments of the model.
        head: A model that contains `model`; it is run instead.
        parts: Whether what heads and networks write can be told apart, which a single text allows.
        through: Whether attention weights are followed as well, instead of held; see `HeldFixed`.

    Raises:
        InputError: If what the model returns is not an affine map, or some of its weights are not on its device.
    """
    whole = model if head is None else head
    if is_offloaded(whole):
        raise InputError(
            "device.map=auto: attribution through all layers needs all weights on one device; leave out device.map"
        )
    if parts and (facts.not_measured or facts.has_other_layers):
        raise InputError(
            f"by: effects of heads and networks need layers of one attention block and one feed-forward network, but some "
            f"layers of this {facts.family} are different; leave out by="
        )
    facts.require_starts("attributed to")
    _require_one_entry(model, inputs)
    recorders = [_Recorder(model, facts, parts=parts)]
    by_name = model if facts.calls_function else None
    return _recorded(whole, inputs, recorders, [inputs["attention_mask"].bool()], by_name, through=through)


def _require_one_entry(model: nn.Module, inputs: Mapping[str, object]) -> None:
    """Check that all that a model reads enters its first layer.

    Raises:
        InputError: If something of an image enters later layers (DeepStack), which would be counted among biases.
    """
    read = {name for name, value in inputs.items() if isinstance(value, Tensor)}
    if getattr(model, "reads_later", False) and not read <= {"input_ids", "attention_mask"}:
        raise InputError(
            f"{_name(model)} cannot be attributed on texts with images: it adds something of the image to the vectors between "
            "layers as well; its attention blocks can still be measured"
        )


def held_translation(model: PreTrainedModel, inputs: Mapping[str, Tensor], *, through: bool = False) -> HeldPass:
    """Run an encoder–decoder once, recorded as by `held_pass`. Cross-attention is linear in the encoder's vectors.

    Args:
        model: The encoder–decoder with its head, in evaluation mode.
        inputs: Its keyword arguments.
        through: Whether attention weights are followed as well.

    Raises:
        InputError: If what the model returns is not an affine map.
    """
    encoder, decoder = facts_of_config(model.config, "encoder"), facts_of_config(model.config, "cross")
    recorders = [
        _Recorder(model.get_encoder(), encoder, parts=False),
        _Recorder(model.get_decoder(), decoder, parts=False, of=model),
    ]
    tokens = inputs["decoder_input_ids"]
    masks = inputs["attention_mask"].bool(), inputs.get("decoder_attention_mask", torch.ones_like(tokens)).bool()
    by_name = model if decoder.calls_function else None
    return _recorded(model, inputs, recorders, masks, by_name, through=through)


class Carried(NamedTuple):
    """What sources contribute to the vectors that a model returns."""

    parts: Float[Tensor, "source batch *token model"]
    vectors: Float[Tensor, "batch *token model"]
    """The vectors themselves."""
    check: Bound
    """The largest error that rounding explains."""


def carried_pass(
    model: PreTrainedModel,
    facts: ModelFacts,
    inputs: Mapping[str, Tensor],
    own: Float[Tensor, "source batch token"],
    *,
    bias: bool,
    credited: bool = False,
    visit: Callable[[Float[Tensor, "source batch token model"]], None] = lambda _parts: None,
    head: PreTrainedModel | None = None,
) -> Carried:
    """Run a model once, and carry what some sources contribute through its code, with everything held fixed.

    Stacks are made layer by layer, so that memory does not grow with depth.

    Args:
        model: A base model in evaluation mode.
        facts: What it is.
        inputs: Keyword arguments of the model.
        own: 1 for the tokens whose vectors make up a source.
        bias: Whether to carry what all biases contribute, as one more source.
        credited: Whether the value biases of the first layer belong to the tokens whose values they are added to.
        visit: Receives the parts after every layer.
        head: A model that contains `model`; it is run instead, and the sources are carried to what it returns.

    Raises:
        InputError: If the vectors that the model returns are not an affine map of its tokens' vectors.
    """
    _require_one_entry(model, inputs)
    carrier = _Carrier(model, facts, own, visit, bias=bias, credited=credited)
    mode = HeldFixed(model, carries=True)
    if credited:
        mode = HeldValues(model, len(inputs["input_ids"]), carrier.values, carries=True)
    with contextlib.ExitStack() as exit_:
        exit_.enter_context(torch.inference_mode())
        exit_.enter_context(_attention_in(mode, model if facts.calls_function else None))
        exit_.enter_context(model_code(model))
        exit_.enter_context(carrier.calls)
        exit_.enter_context(mode)
        output = (model if head is None else head)(**inputs)
    returned = returned_vectors(output)
    assert returned is not None
    if kind_of(returned) is not Kind.LINEAR:
        held_pass(model, facts, inputs, head)  # which says why
        raise not_affine(_name(model), _because(returned))
    with torch.inference_mode():
        bound = _bound(model)
        return Carried(full_precision(carrier.parts(returned)), full_precision(returned), bound)


class _Carrier:
    """Puts the stack of the sources under the vectors that enter the first layer, and makes it after every layer."""

    def __init__(
        self,
        model: PreTrainedModel,
        facts: ModelFacts,
        own: Tensor,
        visit: Callable[[Tensor], None],
        *,
        bias: bool,
        credited: bool,
    ) -> None:
        self._visit, self._bias = visit, bias
        self._reads_beside = facts.writes_between
        self.calls = LayerCalls(model, own.shape[1], self._enter, self._leave, places=facts.places)
        self._known: weakref.WeakKeyDictionary[Stack, Tensor] = weakref.WeakKeyDictionary()
        """The parts of what enters the first layer and of what has left each, as long as the model keeps that."""
        last = own.new_zeros(1, *own.shape[1:])
        self._own = torch.cat([own, last]) if bias else own
        """Nothing enters the first layer from the biases."""
        self._of_bias = torch.cat([own, last - 1]) if bias else own
        """How often the value biases of the first layer belong to each source, beside what the model's code says."""
        credited = credited and 1 in facts.attends
        self._value_bias = _first_value_bias(model, facts) if credited else own.new_zeros(0, 0)
        """b_V of the heads of the first layer that have not run."""
        self._entered = False

    def _enter(self, _layer: int, given: Tensor) -> Tensor | None:
        """The vectors that enter the first layer."""
        check_cancelled()
        if self._entered and kind_of(given) is not None:
            return None
        self._entered = True
        with torch._C.DisableTorchFunction():
            # What writes to the vectors between layers reads the same tensor beside the layer.
            vectors = given if self._reads_beside else given.clone()
            self._start(marked(vectors, Kind.LINEAR), vectors * self._own.unsqueeze(-1).to(vectors.dtype))
            return None if vectors is given else vectors

    def _leave(self, _layer: int, vectors: Tensor) -> None:
        """The vectors that leave a layer."""
        if kind_of(vectors) is not Kind.LINEAR:
            return
        with torch._C.DisableTorchFunction():
            made = self.parts(vectors)
            self._start(vectors, made)
            self._visit(made)

    def parts(self, vectors: Tensor) -> Tensor:
        """What the sources contribute to linear vectors."""
        (made,) = parts_from(self._known, [stack_of(vectors)], bias=self._bias)
        return made

    def _start(self, vectors: Tensor, parts: Tensor) -> None:
        """Let parts be made of these from here on, so that what they were made of is released."""
        vectors._stack = start = Stack(None)  # type: ignore[attr-defined]
        self._known[start] = parts

    def values(self, values: Tensor) -> Tensor:
        """What attention of the first layer adds up, with its biases where they are credited."""
        heads = values.shape[1]
        bias, self._value_bias = self._value_bias[:heads], self._value_bias[heads:]
        if not len(bias):
            return values
        with torch._C.DisableTorchFunction():
            before, new = stack_of(values), marked(values.clone(), Kind.LINEAR)
            credit = self._of_bias[:, :, None, :, None].to(bias.dtype) * bias[:, None]
            new._stack = Stack(lambda parts, *, bias: parts + credit.to(values.dtype), [before])  # noqa: ARG005
        return new


def _recorded(
    whole: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    recorders: Sequence["_Recorder"],
    masks: Sequence[Tensor],
    by_name: PreTrainedModel | None,
    *,
    through: bool,
) -> HeldPass:
    """Run a model with everything held fixed.

    Args:
        whole: The model that runs.
        recorders: Those of its stacks.
        masks: True at the tokens of each stack, (text, token).
        by_name: The model that calls attention by name; None if none does.
        through: Whether attention weights are followed as well.

    Raises:
        NotAffineError: If nothing that the model returns is affine.
    """
    first, last = recorders[0], recorders[-1]
    like: dict[str, Any] = {"dtype": whole.dtype, "device": inputs["input_ids"].device, "requires_grad": True}
    ones, absorbed = torch.ones((), **like), torch.ones((), **like)

    def run(recorders: Sequence[_Recorder], *, explains: bool) -> Any:
        added = recorders[0].add if recorders[0].parts else None
        mode = HeldFixed(whole, ones, absorbed=absorbed if through else None, added=added)
        if len(recorders) == 1 and not through:
            mode = HeldValues(whole, len(inputs["input_ids"]), recorders[0].values, ones, added=added)
        mode.explains = explains
        output = _outputs(whole, inputs, recorders, by_name, mode)
        attends = sum(len(recorder.attends) for recorder in recorders)
        if through and mode.softmaxes < attends:
            raise InputError(
                f"attention=through: the attention weights of {_name(whole)} cannot be followed: only {mode.softmaxes} of its "
                f"{attends} layers with attention apply a softmax to scores of queries and keys; set attention=held"
            )
        return output

    def why() -> str:
        return _because(run([recorder.again() for recorder in recorders], explains=True))

    output, affine = _with_leaves(run(recorders, explains=False))
    if not affine:
        raise not_affine(_name(whole), why())
    return HeldPass(
        output,
        [Source(recorder.recorded[0].inputs, mask) for recorder, mask in zip(recorders, masks, strict=True)],
        first.recorded if len(recorders) == 1 else [],
        last.hidden,
        first.value_bias,
        _bound(last.of),
        affine,
        ones,
        absorbed,
        why,
        first.parts,
    )


def _outputs(
    whole: PreTrainedModel,
    inputs: Mapping[str, Any],
    recorders: Sequence["_Recorder"],
    by_name: PreTrainedModel | None,
    mode: HeldFixed,
) -> Any:
    """What a model returns in a mode; autograd records it."""
    with contextlib.ExitStack() as exit_:
        exit_.enter_context(_without_gradients(whole))
        exit_.enter_context(torch.inference_mode(False))
        exit_.enter_context(torch.enable_grad())
        exit_.enter_context(_attention_in(mode, by_name))
        for recorder in recorders:
            exit_.enter_context(recorder.hooks(len(inputs["input_ids"])))
        exit_.enter_context(model_code(whole))
        exit_.enter_context(mode)
        return whole(**with_tensors(dict(inputs), Tensor.clone))


@contextlib.contextmanager
def _attention_in(mode: HeldFixed, model: PreTrainedModel | None) -> Iterator[None]:
    """Context in which a mode computes the attention that a model calls by name, if it does."""
    if model is None:
        yield
        return
    token = active.set(mode)
    try:
        with attention_by(model, IMPLEMENTATION):
            yield
    finally:
        active.reset(token)


def _with_leaves(output: Any) -> tuple[Any, list[tuple[Tensor, Tensor]]]:
    """What a model has returned with leaves in place of what is affine, and these pairs."""
    affine: list[tuple[Tensor, Tensor]] = []

    def leaf(tensor: Any) -> Any:
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            return tensor
        still = tensor.detach()
        if kind_of(tensor) is Kind.LINEAR:
            with torch.inference_mode(False):
                affine.append((tensor, still.requires_grad_()))
        return still

    return tree_map(leaf, output), affine


def _because(output: Any) -> str:
    """Why what a model returns is held."""
    reasons = (getattr(each, "_because", None) for each in tree_iter(output))
    return next(filter(None, reasons), "what it returns")


def _bound(model: PreTrainedModel) -> Bound:
    return Bound(_name(model), BOUNDS[model.dtype])


_VALUE_BIASES: "weakref.WeakKeyDictionary[nn.Module, tuple[object, Tensor]]" = weakref.WeakKeyDictionary()
"""b_V of models, which take a pass to be found, and the state of their weights then."""


def _first_value_bias(model: PreTrainedModel, facts: ModelFacts) -> Float[Tensor, "head head_dim"]:
    """b_V of the first layer with attention; found once for a model whose weights stay as they are."""
    layer = facts.attends[0]
    state = layer, [(id(each), version_of(each), each.dtype, each.device) for each in model.parameters()]
    known = _VALUE_BIASES.get(model)
    if known is not None and known[0] == state:
        return known[1]
    with Observer(model, facts, [layer]) as observer:
        bias = observer.parameters[
            layer
        ].value_bias.clone()  # a view may keep weights in memory that were loaded for this
    _VALUE_BIASES[model] = state, bias
    return bias


def _name(model: PreTrainedModel) -> str:
    return model.config.name_or_path or type(model).__name__


@contextlib.contextmanager
def _without_gradients(model: nn.Module) -> Iterator[None]:
    """Context in which no gradient goes to the weights."""
    asked = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in asked:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in asked:
            parameter.requires_grad_(True)


class _Recorder:
    """Makes the vectors that enter the first layer leaves and, with parts, those that enter each layer and what parts write.

    Args:
        of: What the facts are about, if the model is a part of it, as a decoder is.
    """

    def __init__(
        self, model: PreTrainedModel, facts: ModelFacts, *, parts: bool, of: PreTrainedModel | None = None
    ) -> None:
        self._model, self._facts, self.parts, self.of = model, facts, parts, model if of is None else of
        self._in_layer = False
        self._heads = {block.layer: block.heads for block in facts.blocks}
        """How many heads of each layer have yet to run."""
        self._layer: int | None = None
        """The layer that is recorded; None in any other."""
        self.recorded: list[RecordedLayer] = []
        self._last: Tensor | None = None

    @property
    def attends(self) -> Sequence[int]:
        """The layers with attention."""
        return self._facts.attends

    def again(self) -> "_Recorder":
        """One for another pass."""
        return _Recorder(self._model, self._facts, parts=self.parts, of=self.of)

    @property
    def hidden(self) -> Tensor:
        """The vectors that the base model returns."""
        assert self._last is not None
        return self._last

    @contextlib.contextmanager
    def hooks(self, texts: int) -> Iterator[None]:
        """Context in which a pass is recorded."""
        with contextlib.ExitStack() as exit_:
            # A head may call a stack inside the base model, whose output the base model would hand on.
            for module in self._model.modules():
                if isinstance(module, PreTrainedModel):
                    exit_.callback(module.register_forward_hook(self._returned).remove)
            exit_.enter_context(LayerCalls(self.of, texts, self._enter, self._leave, places=self._facts.places))
            yield

    def value_bias(self) -> Float[Tensor, "head head_dim"]:
        """b_V of the first layer."""
        return _first_value_bias(self._model, self._facts)

    def _enter(self, layer: int, vectors: Tensor) -> Tensor | None:
        check_cancelled()
        self._in_layer, self._layer = True, None
        if kind_of(vectors) is None:  # whatever has run before was not the first layer
            self.recorded.clear()
        if self.recorded and not self.parts:
            return None
        self._layer = layer
        with torch._C.DisableTorchFunction():  # the mode would take the leaf for a part of the model
            entered = vectors.clone() if self.recorded else None
            if not self.recorded and self._facts.writes_between:
                # What writes to the vectors between layers reads the same tensor beside the layer.
                self.recorded.append(RecordedLayer(start(vectors.requires_grad_()).value, None))
                return None
            leaf = vectors.detach().clone().requires_grad_()
            self.recorded.append(RecordedLayer(leaf, entered))
            # The model may change what it is given in place.
            return start(leaf.clone()).value

    def _leave(self, _layer: int, _vectors: Tensor) -> None:
        self._in_layer = False

    def _returned(self, _module: nn.Module, _args: Any, output: Any) -> None:
        self._last = output[0]

    def values(self, values: Tensor) -> Tensor:
        """Take what attention adds up in a layer: of all layers with parts, of the first without."""
        if self._layer is None or not self._heads.get(self._layer):
            return values
        layer = self.recorded[-1]
        self._heads[self._layer] -= values.shape[1]
        if not self.parts:
            layer.values.append(values)
            return values
        with torch._C.DisableTorchFunction():
            leaf = values.detach().clone().requires_grad_()
            layer.from_inputs.append(values)
            layer.values.append(leaf)
            new = marked(leaf.clone(), Kind.LINEAR)
            new._way = way_of(values)
            return new

    def add(self, vectors: Tensor, _residual: Tensor) -> Tensor:
        """What a feed-forward network adds to the residual connection."""
        if not self._in_layer:
            return vectors
        leaf = vectors.detach().clone().requires_grad_()
        self.recorded[-1].networks.append((leaf, vectors))
        return marked(leaf.clone(), Kind.LINEAR)
