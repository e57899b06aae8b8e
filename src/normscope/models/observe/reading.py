"""Reads what a model is from one pass of its own code: of the model, or of one without numbers, built from its config."""

import contextlib
import copy
import dataclasses
import functools
import inspect
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch._guards import detect_fake_mode
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModel, PretrainedConfig
from transformers.initialization import no_init_weights
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError, one_line
from normscope.linear.axes import USUAL
from normscope.linear.block_attention import heads_of, is_gated
from normscope.linear.block_output import norm_position
from normscope.linear.blocks import Block, BlockRecogniser
from normscope.linear.layer_calls import LayerCalls, Places
from normscope.linear.projections import Projections
from normscope.linear.provenance import AFFINE, Made, ancestors, begin_vectors, made_of
from normscope.linear.refusals import (
    AFTER_OTHERS,
    TWO_BLOCKS,
    NoneMeasuredError,
    NotRecognisedError,
    StageError,
    none_measured,
    refusal,
)
from normscope.linear.rules import DIVISIONS, SUMS
from normscope.maths.attention import AttentionCall
from normscope.models.facts import TARGETS, BlockFacts, ModelFacts, StackName, token_mask_of
from normscope.models.observe.attention_function import IMPLEMENTATION, active, attention_by, unobserved
from normscope.models.probes import after_encoder, random_batch
from normscope.models.stored.config_checks import bounded_modules
from normscope.models.stored.model_code import model_code
from normscope.models.stored.random_state import drawing

_SMALL = 500_000_000
"""The largest number of parameters for which a model with random weights is built to read what it is."""

_SOURCE, _TARGET = 11, 7
"""Lengths of the texts that are read. They differ, so that cross-attention can be recognised."""


def facts_of(
    model: nn.Module,
    stack: StackName | None = None,
    inputs: Mapping[str, Any] | None = None,
    token_mask: Tensor | None = None,
) -> ModelFacts:
    """What a model is, from one pass over two short texts.

    Args:
        model: A base model in evaluation mode; if the stack is the encoder, the encoder alone.
        stack: The stack of an encoder–decoder.
        inputs: Keyword arguments of a model that reads vectors or images: two of them, of one size. By default, token ids.
        token_mask: See `Observer.run`.

    Raises:
        NotRecognisedError: If it has attention that is not part of a block that can be measured, or no attention.
    """
    inputs = _inputs(model, stack) if inputs is None else inputs
    token_mask = token_mask_of(inputs, stack) if token_mask is None else token_mask
    reader = _Reader(model, stack, token_mask)
    try:
        return reader.facts(inputs)
    except StageError as error:
        if reader.tokens is None:
            raise
        try:  # entries of the list may be stages, with layers of their own
            return _Reader(model, stack, token_mask, stages=reader.list).facts(inputs)
        except NoneMeasuredError:
            raise
        except NotRecognisedError:
            raise error from None


class _Reader:
    """Runs a model, and notes what its blocks and layers are."""

    masks_on_host: Sequence[Tensor] = ()

    def __init__(
        self, model: nn.Module, stack: StackName | None, token_mask: Tensor, *, stages: int | None = None
    ) -> None:
        self._model, self._stack = model, stack
        self._texts = texts = len(token_mask)
        self._found: dict[int, BlockFacts] = {}
        self._sums: dict[int, Made] = {}
        """How the sums of blocks were made, by layer."""
        self._left: Made | None = None
        """How what the last layer has returned was made."""
        self._writes_between = self._calls_function = False
        self._is_plain = True
        self._axes = self._within = USUAL
        """The axes of what layers read, and of what the residual connection carries within them."""
        self._in_modules = True
        self._width = self._hidden = 0
        """Numbers of dimensions of a block, and of what its layer has been given."""
        self._starts: list[int] = []
        self._given: dict[Made, int] = {}
        """Which call of a part of a layer, counted from 1, was the first to be given what vectors."""
        self._lists = set[int]()
        self.tokens = token_mask.shape[1] if stack is None and hasattr(model, "random_batch") else None
        self._recogniser = BlockRecogniser(model, texts, self._visit, lambda: self._calls.number, tokens=self.tokens)
        begin_layer, end_layer = self._recogniser.begin_layer, self._recogniser.end_layer
        self._stages, places = stages, Places(axes=getattr(model, "axes", None), stages=stages)
        self._others: dict[int, int] = {}
        """The first layer of each list that leaves another number of tokens than there are."""
        self._calls = LayerCalls(
            model, texts, self._enter, self._leave, begin=begin_layer, end=end_layer, places=places
        )

    @property
    def list(self) -> int:
        """The list of the last layer that was called."""
        return self._calls.list

    def facts(self, inputs: Mapping[str, Any]) -> ModelFacts:
        """What the model is."""
        model = self._model
        attention: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if isinstance(model, PreTrainedModel) and model._can_set_attn_implementation():
            attention = attention_by(model, IMPLEMENTATION)
        with torch.no_grad(), attention, model_code(model):
            if self._stack in TARGETS:
                with unobserved(self.masks_on_host):
                    inputs = after_encoder(model, inputs)
            token = active.set(self)
            try:
                begin_vectors(inputs)
                with self._calls, self._recogniser:
                    output = model(**inputs)
            finally:
                active.reset(token)
        for layer in [] if self._in_modules else [*self._sums]:
            self._note_networks(layer, _before_head(made_of(output[0]), self._sums[layer]))
        left_out = self._recogniser.left_out
        for layer in {*self._found} & {*left_out}:
            raise refusal(f"its layer has {left_out[layer].has}", layer, left_out[layer].place, StageError)
        layers = max(self._calls.calls[each] for each in self._lists) if self._in_modules else len(self._found)
        layers = min([layers, *(self._others[each] - 1 for each in self._lists & {*self._others})])
        if layers < 1:
            raise StageError("what leaves its first layer has another number of tokens than enter it")
        blocks = tuple(self._found[layer] for layer in sorted(self._found) if layer <= layers)
        if not blocks:
            raise none_measured(left_out)
        has = {layer: each.has for layer, each in left_out.items()} | {
            layer: AFTER_OTHERS for layer in self._found if layer > layers
        }
        return ModelFacts(
            reads_vectors=hasattr(model, "random_batch"),
            family=getattr(getattr(model, "config", None), "model_type", None) or type(model).__name__,
            source=_where(model),
            width=self._hidden or self._width,
            layers=layers,
            blocks=blocks,
            stack=self._stack,
            routed=self._recogniser.is_routed,
            places=self._places,
            writes_between=self._writes_between and self._in_modules,
            calls_function=self._calls_function,
            is_plain=self._is_plain,
            left_out=tuple(sorted(has.items())),
        )

    @property
    def _places(self) -> Places:
        """Where layers are."""
        if self._in_modules:
            return Places(frozenset(self._lists), None, self._axes, self._stages, self._within)
        starts = tuple(self._starts) if len(self._starts) == len(self._found) else ()
        return Places(None, starts, self._axes, None, self._within)

    def attend(self, module: nn.Module, call: AttentionCall) -> Tensor | None:
        """The attention of a module that calls transformers' function."""
        self._calls_function = True
        self._is_plain = self._is_plain and call.cap is None and call.sinks is None
        return self._recogniser.attend(module, call)

    def _visit(self, block: Block) -> None:
        trail = block.trail
        if self._stack in TARGETS and block.is_self is (self._stack == "cross"):
            return
        assert trail.written is not None
        if block.layer in {*self._found, *self._recogniser.left_out}:
            raise trail.refusal(TWO_BLOCKS, StageError)
        self._width, self._axes, self._within = trail.written.width, trail.axes, trail.axes
        self._in_modules = self._in_modules and trail.in_layer
        self._sums[block.layer] = trail.made
        heads = heads_of(trail, self._texts)
        with torch._C.DisableTorchFunction():
            projections = Projections(trail, self._texts, heads)
        self._found[block.layer] = BlockFacts(
            layer=block.layer,
            heads=heads,
            norm_position=norm_position(trail),
            has_gate=is_gated(trail),
            has_value_weights=projections.has_value_weights and projections.reads(self._width),
            has_score_weights=projections.has_score_weights,
            networks=len(trail.beside),
        )
        if trail.in_layer:
            self._lists.add(self._calls.list)
            assert self._calls.call is not None
            # A layer may read channels first, and attend with them last.
            self._axes = self._calls.places.axes or trail.axes
            self._hidden = self._calls.call.vectors.shape[self._axes.dimension]
        else:
            entered = made_of(trail.inputs)
            if entered in self._given:
                self._starts.append(self._given[entered])
            self._note_networks(block.layer - 1, made_of(trail.inputs))

    def _enter(self, layer: int, vectors: Tensor) -> None:
        made = made_of(vectors)
        begins = layer == 1 and self._stages == self._calls.list
        if begins and (made is None or made.unscaled().function != "tokens"):
            raise NotRecognisedError("its first layer is not given the tokens' vectors")
        if made is not None:
            self._given.setdefault(made, self._calls.entries)
        if layer > 1 and self._left is not None and made is not None and made.unscaled() is not self._left.unscaled():
            self._writes_between = True

    def _leave(self, layer: int, vectors: Tensor) -> None:
        self._left = made_of(vectors)
        if self.tokens not in (None, vectors.shape[1]):
            self._others.setdefault(self._calls.list, layer)
        if self._axes != self._within and layer in self._sums:
            self._found[layer] = dataclasses.replace(self._found[layer], networks=None)
        elif self._in_modules and vectors.shape[self._axes.dimension] == self._width:  # in front of a bottleneck
            self._note_networks(layer, self._left)

    def _note_networks(self, layer: int, left: Made | None) -> None:
        """Note how many networks have added something to a block before its layer ended."""
        if layer in self._sums and left is not None:
            start, beside = self._sums.pop(layer), self._found[layer].networks
            networks = _networks(left, start)
            mixes = networks and left.reads_other_tokens(start, chosen=False)
            networks = None if networks is None or mixes else max(networks, beside or 0)
            self._found[layer] = dataclasses.replace(self._found[layer], networks=networks)


def _networks(left: Made, start: Made) -> int | None:
    """How many networks have added something since a block's sum; 0 if another block comes after.

    None if what leaves the layer is not the sum with what networks have added, and norms of that.
    """

    found: dict[Made, int | None] = {start: 0}
    waiting = [left]
    while waiting:  # there may be more functions than calls that Python nests
        made = waiting[-1]
        passes = made.by_token and made.function in AFFINE | DIVISIONS | {"added", "sum"}
        missing = [each for each in made.parents if each not in found] if passes and made not in found else []
        if not missing:
            found.setdefault(waiting.pop(), _counted(made, found) if passes else None)
        waiting += missing
    networks = found[left]
    return networks if networks is None or networks >= 0 else 0


def _counted(made: Made, before: Mapping[Made, int | None]) -> int | None:
    """How many networks have added something to vectors, given how many have to what they are made of."""
    reached = [each for each in map(before.get, made.parents) if each is not None]
    if not reached:
        return None
    if made.function == "sum":
        return _ANOTHER
    # A norm subtracts a mean of the same vectors.
    sources = {each.unscaled() for each in made.parents}
    return min(reached) + (made.function in SUMS | {"added"} and len(sources) == 2)


def _before_head(returned: Made | None, start: Made) -> Made | None:
    """What a head reads, if a model has one: the last vectors that are a block's sum with what networks have added."""
    before = [] if returned is None else ancestors(returned, lambda _made: True)
    return next((each for each in before if _networks(each, start) is not None), returned)


_ANOTHER = -1000
"""Stands for another block."""


def _inputs(model: nn.Module, stack: StackName | None) -> dict[str, Any]:
    """Random token ids without padding: two texts of the same length."""
    targets = 2 * [_TARGET] if stack in TARGETS else None
    length = min(_SOURCE, getattr(model, "longest_probe", None) or _SOURCE)
    inputs: dict[str, Any] = {**random_batch(model, 2 * [length], targets)}
    if "use_cache" in inspect.signature(model.forward).parameters:
        inputs["use_cache"] = False
    return inputs


def _where(model: nn.Module) -> str:
    """Where the model's code is, for error messages."""
    module = type(getattr(model, "tower", model)).__module__
    if module.startswith("transformers."):
        return f"https://github.com/huggingface/transformers/blob/main/src/{module.replace('.', '/')}.py"
    return module


# From a config.


def facts_of_config(config: PretrainedConfig, stack: StackName | None = None) -> ModelFacts:
    """What the model is that a config describes, from a model without numbers. The result is cached.

    Args:
        config: The config of a transformers model.
        stack: The stack of an encoder–decoder; by default the encoder.

    Raises:
        InputError: If the model cannot be observed exactly, or has no such stack; the message gives the reason.
    """
    stack = observed_stack(config, stack)
    with refusal_explained(config.model_type):
        return _facts_of_config(_described(config), _Config(config), stack)


def _described(config: PretrainedConfig) -> str:
    """A config as text without the name of the checkpoint, which says nothing of the model."""
    return json.dumps({key: value for key, value in config.to_dict().items() if key != "_name_or_path"}, default=str)


def observed_stack(config: PretrainedConfig, stack: StackName | None) -> StackName | None:
    """The stack to observe: for an encoder–decoder, by default the encoder; for other models, None.

    Raises:
        InputError: If a stack is given for a model that has only one.
    """
    if config.is_encoder_decoder:
        return stack or "encoder"
    if stack is not None:
        raise InputError(
            f"model.stack={stack}: {config.model_type} has only one stack and no cross-attention; leave it out or, for "
            "analysis=alignment, set model.name to an encoder–decoder, such as a Marian model"
        )
    return None


class ObservedStack(NamedTuple):
    """One stack, with what to observe it through."""

    model: PreTrainedModel
    """The encoder alone, or the whole model for the decoder's attention."""
    facts: ModelFacts


def stacks_of(model: PreTrainedModel) -> Mapping[StackName, ObservedStack]:
    """The stacks of an encoder–decoder."""
    parts = {stack: model.get_encoder() if stack == "encoder" else model for stack in get_args(StackName)}
    return {stack: ObservedStack(part, facts_of_config(model.config, stack)) for stack, part in parts.items()}


@contextlib.contextmanager
def refusal_explained(name: str, advice: str = "") -> Iterator[None]:
    """Add the name of a model, and what to do, to the message about attention that cannot be measured.

    Args:
        name: The model's name or family.
        advice: What to do about it; by default, choose another model.

    Raises:
        InputError: In place of `NotRecognisedError`.
    """
    try:
        yield
    except NotRecognisedError as error:
        advice = advice or (
            "set model.name to another model (the list of models in the documentation says what can be observed in each)"
        )
        raise InputError(f"model: {name} is refused because {error}; {advice}") from error


@dataclasses.dataclass(frozen=True)
class _Config:
    """A config that the cache ignores: the text of the config is the key."""

    config: PretrainedConfig

    def __eq__(self, _other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


@functools.lru_cache(maxsize=64)
def _facts_of_config(_text: str, given: _Config, stack: StackName | None) -> ModelFacts:
    failures: list[InputError] = []
    # Some experts run only in bfloat16, and some models need real data: None stands for a model with random weights.
    for dtype in (torch.float64, torch.float32, torch.bfloat16, None):
        try:
            with drawing(), contextlib.nullcontext() if dtype is None else _without_numbers():
                return facts_of(_built(given.config, dtype or torch.float64, stack), stack)
        except InputError as error:
            failures.append(error)
        except Exception as error:
            if dtype is None:
                raise
            # Our own code cannot do everything without numbers either.
            failures.append(
                NotRecognisedError(f"a forward pass over two texts fails without weights: {one_line(error)}")
            )
    raise failures[0]


def facts_without_numbers(
    config: PretrainedConfig, adapt: Callable[[PreTrainedModel], PreTrainedModel], stack: StackName | None = None
) -> ModelFacts:
    """What the model is that a config describes, from a model without numbers that is adapted first.

    Args:
        config: The config of a transformers model.
        adapt: Makes what is observed of the model.
        stack: The stack of an encoder–decoder; None for what has only one.

    Raises:
        NotRecognisedError: If it has attention that cannot be measured, or fails without numbers.
    """
    failure: Exception | None = None
    for context in (_without_numbers, contextlib.nullcontext):  # some models count their layers with tensors
        model = None
        try:
            with drawing(), context():
                model = _built(config, torch.float32, None)
                return facts_of(adapt(model), stack)
        except Exception as error:  # our own code cannot do everything without numbers either
            failure = error if model is not None else failure or error
        if model is not None:
            break
    if isinstance(failure, InputError):
        raise failure
    assert failure is not None
    raise NotRecognisedError(f"a forward pass over two inputs fails without weights: {one_line(failure)}") from failure


class _Supposed(TorchDispatchMode):
    """Answers what only numbers could: the batch has no padding, so any condition on its mask is true."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return function(*args, **(kwargs or {}))
        except DataDependentOutputException:
            kind: type = {torch.bool: bool}.get(args[0].dtype, float if args[0].is_floating_point() else int)
            return kind(1)


@contextlib.contextmanager
def _without_numbers() -> Iterator[None]:
    """Context in which tensors have shapes, but neither memory nor data."""
    log = logging.getLogger(fake_tensor.__name__)  # it logs failing operations before they raise
    silent = log.disabled
    log.disabled = True
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), no_init_weights(), warnings.catch_warnings(), _Supposed():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.disabled = silent


def _built(given: PretrainedConfig, dtype: torch.dtype, stack: StackName | None) -> PreTrainedModel:
    """A model built from this config. Outside fake mode, only small models are built."""
    config = copy.deepcopy(given)
    config._experts_implementation_internal = None
    try:
        if detect_fake_mode() is None:
            with torch.device("meta"), bounded_modules():
                shape = AutoModel.from_config(config)
            if sum(parameter.numel() for parameter in shape.parameters()) > _SMALL:
                raise NotRecognisedError(
                    "it cannot run without weights, and is too large to be built with random weights"
                )
        with bounded_modules():
            model: PreTrainedModel = AutoModel.from_config(config, dtype=dtype).eval()
    except NotRecognisedError:
        raise
    except Exception as error:  # each architecture fails on an invalid config in its own way
        raise InputError(f"model.name: cannot build the model from its config: {one_line(error)}") from error
    return model.get_encoder() if stack == "encoder" else model
