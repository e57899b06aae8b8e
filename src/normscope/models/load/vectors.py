"""Models that are given images, audio or other vectors instead of token ids, with the interface of one that reads ids.

The code that makes the tokens' vectors, of pixels or samples, stays as it is: what enters the first layer is found by running
it, and which token is which by changing its input. Every pass, probes included, begins with a whole input.
"""

import contextlib
import copy
import dataclasses
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map
from transformers import PretrainedConfig
from transformers.modeling_utils import PreTrainedModel

from normscope.data.token_sequence import patch_names
from normscope.errors import InputError
from normscope.linear.axes import Axes
from normscope.linear.layer_calls import LayerCall, LayerCalls
from normscope.linear.provenance import begin, known
from normscope.models.stored.model_code import StopForward, model_code

_IMAGES = 4
"""Axes of a batch of images: image, channel, row, column."""

_LARGEST_GRID = 128
"""Rows and columns of patches that have names if inputs have several sizes; as many tokens on no grid have."""


@dataclasses.dataclass(frozen=True)
class Geometry:
    """What the tokens of an input are."""

    names: tuple[str, ...]
    """A name for each token: `[CLS]`, `[REGISTER1]`, and for a patch its row and column from the upper left, `3,5`."""
    categories: Mapping[str, list[str]]
    """The names of the tokens of each category but `cls`: `register`, `border`, `patch`."""
    grid: tuple[int, int] | None
    """Rows and columns of patches, which come last, row by row; None if they are on no grid."""
    fixed: tuple[str, ...] = ()
    """The names of the tokens that no input changes, such as [CLS] and registers."""


class _Table(nn.Embedding):
    """Stands for the table in which a model of texts looks up its tokens: its output is the vectors of the tokens.

    Args:
        names: Number of names of tokens.
        width: Size of a vector.
    """

    given: Tensor | None = None

    def __init__(self, names: int, width: int) -> None:
        super().__init__(1, width, _weight=torch.zeros(1, width))
        self.weight.requires_grad_(False)
        self.num_embeddings = names

    def forward(self, _ids: Int[Tensor, "text token"]) -> Float[Tensor, "text token model"]:
        """The vectors of the tokens."""
        assert self.given is not None
        return self.given


_ATTENTION = ("softmax", "scaled_dot_product_attention", "multi_head_attention_forward")
"""The names of functions that attend, or do so within."""


class _AttentionWatch(TorchFunctionMode):
    """Notes whether attention is computed."""

    seen = False

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.seen = self.seen or getattr(function, "__name__", "") in _ATTENTION
        return function(*args, **(kwargs or {}))


class _WidthWatch(TorchFunctionMode):
    """Notes the number of dimensions of what the first norm or linear layer reads."""

    width: int | None = None

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if self.width is None and getattr(function, "__name__", "") in ("layer_norm", "rms_norm", "linear"):
            self.width = args[0].shape[-1]
        return function(*args, **(kwargs or {}))


def noise(
    probe: Mapping[str, Tensor], seed: int, inputs: int = 1, region: tuple[Any, ...] = (...,)
) -> dict[str, Tensor]:
    """Inputs whose numbers stand for nothing, the same at every call.

    Args:
        probe: Arguments of a model for one input. Those that are whole numbers stay as they are.
        inputs: How many there are.
        region: Where they are other numbers than in the probe.
    """
    generator = torch.Generator().manual_seed(seed)
    made = dict(probe) if inputs == 1 else {name: each.expand(inputs, *each.shape[1:]) for name, each in probe.items()}
    for name, given in made.items():
        if given.is_floating_point():
            made[name] = given.clone()
            made[name][region] = torch.randn(given.shape, generator=generator).to(given)[region]
    return made


def first_layer(model: nn.Module, probe: Mapping[str, Tensor]) -> nn.Module:
    """The first entry of a list of layers that is given vectors and attends; what convolves before it is no layer.

    Raises:
        InputError: If the model fails on the probe, or has none.
    """
    found: list[nn.Module] = []

    def run(_number: int, call: LayerCall, forward: Callable[[], Any]) -> Any:
        attention.seen = False
        output = forward()
        if attention.seen and call.place is not None:
            found.append(call.layer)
        return output

    calls = LayerCalls(model, 1, run=run)
    with torch.no_grad(), model_code(model), _AttentionWatch() as attention, calls:
        model(**noise(probe, 0))
    if not found:
        raise InputError(
            f"model: no list of layers of {type(model).__name__} takes token vectors of shape (input, token, dimension) and "
            "attends"
        )
    return found[0]


class Around(PreTrainedModel):
    """A model around another one, which computes.

    Args:
        config: What it says of itself.
        model: The other one, in evaluation mode.
    """

    # Whatever the model has been set to is right here: the attention is its own.
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True

    def __init__(self, config: PretrainedConfig, model: PreTrainedModel) -> None:
        super().__init__(config)
        self.model = model
        self._can_set_attn_implementation = self.computing._can_set_attn_implementation
        self.eval()

    @property
    def computing(self) -> PreTrainedModel:
        """The part whose attention is observed."""
        return self.model

    def set_attn_implementation(self, *arguments: Any, **options: Any) -> None:
        """Set that of the model."""
        self.computing.set_attn_implementation(*arguments, **options)

    def set_experts_implementation(self, *arguments: Any, **options: Any) -> None:
        """Set that of the model."""
        self.computing.set_experts_implementation(*arguments, **options)


class VectorModel(Around):
    """A model that is given vectors, with the interface of one that reads token ids.

    Args:
        model: A model in evaluation mode whose layers are in a list.
        probe: Its keyword arguments for one input, each with an axis of inputs first.
        base: What has been made of the base model, if the model has a head around that.

    Raises:
        InputError: If the model fails on the probe, or has no layers that are given vectors.
    """

    pads = False
    """Inputs of a batch have one size."""

    def __init__(self, model: PreTrainedModel, probe: Mapping[str, Tensor], base: "VectorModel | None" = None) -> None:
        config = copy.deepcopy(model.config)
        vars(config)["pad_token_id"] = None  # the number of a text's token
        config._experts_implementation_internal = "eager"  # as its experts are, the model itself knows
        super().__init__(config, model)
        self._supports_sdpa = model._supports_sdpa
        self.probe = dict(probe)
        self.positions: Positions | None = None if base is None else base.positions
        """What knows the tokens of an input; None if no input has been read, in a model without numbers."""
        self._layer: nn.Module = first_layer(model, probe) if base is None else base._layer
        self.axes: Axes | None
        """The axes of what enters the first layer; None if the shape has to tell."""
        call = given_to(self._layer, model, noise(probe, 0))
        self.axes = _axes_of(call) if base is None else base.axes
        entered = _by_input(call.vectors, 1, self.axes)
        self._takes_several: bool = self._has_batches() if base is None else base._takes_several
        self.table: _Table = _Table(entered.shape[1], entered.shape[2]) if base is None else base.table
        self.eval()

    def number(self, positions: "Positions") -> None:
        """Let token ids be the numbers of these names."""
        self.positions, self.table.num_embeddings = positions, len(positions.names)

    def _has_batches(self) -> bool:
        """Whether the model takes several inputs at once, with an axis of their own."""
        if any(len(given) != 1 for given in self.probe.values()):
            return False
        try:
            vectors = given_to(self._layer, self.model, noise(self.probe, 0, 2)).vectors
        except InputError:
            return False
        return vectors.ndim > 2 and 2 in vectors.shape[:2]

    def random_batch(self, inputs: int) -> dict[str, Tensor]:
        """Inputs whose numbers stand for nothing, as keyword arguments of `forward`; one if the model takes no more."""
        inputs = inputs if self._takes_several else 1
        given = noise(self.probe, 1, inputs)
        entered = self._entering(noise(self.probe, 0), 1)
        ids = torch.arange(entered.shape[1]).expand(inputs, -1).to(next(self.model.parameters()).device)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)} | given

    def get_input_embeddings(self) -> nn.Module:
        """What gives the tokens' vectors."""
        return self.table

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,  # noqa: ARG002
        **inputs: Tensor,
    ) -> Any:
        """Run the model.

        Args:
            input_ids: Numbers of tokens (text, token). The first layer is not given the tokens of an input that are missing.
            attention_mask: Not read: the model is given no padding.
            inputs: The model's own keyword arguments.
        """

        places = self._places(input_ids, inputs)
        kept = None if places is None else self._rows(places, inputs)

        def enter(
            layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            call = cut(layer, args, kwargs)
            with torch._C.DisableTorchFunction():  # how a model makes them is no part of what is measured
                vectors = _by_input(call.vectors, len(input_ids), self.axes)
                self.table.given = _taken(vectors, places)
            vectors = self.table(input_ids)
            with torch._C.DisableTorchFunction():
                call = call.having(begin(self._as_model(vectors, call.vectors)))
            return call.args, dict(call.kwargs)

        def cut(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LayerCall:
            with torch._C.DisableTorchFunction():
                return (
                    LayerCall(layer, args, kwargs) if kept is None else _without(LayerCall(layer, args, kwargs), kept)
                )

        known([*inputs.values()])  # they are no tokens' vectors
        with contextlib.ExitStack() as exit_:
            exit_.callback(vars(self.table).pop, "given", None)
            exit_.callback(self._layer.register_forward_pre_hook(enter, with_kwargs=True).remove)
            for layer in set(_list_of(self.model, self._layer).children()) - {self._layer} if kept is not None else ():
                handle = layer.register_forward_pre_hook(lambda *each: cut(*each)[1:], with_kwargs=True)
                exit_.callback(handle.remove)
            try:
                return self.model(**inputs)
            except _DifferentNumbersError:
                pass
        each = [
            self(input_ids[row : row + 1], **{name: given[row : row + 1] for name, given in inputs.items()})
            for row in range(len(input_ids))
        ]
        names = [name for name, value in each[0].items() if isinstance(value, Tensor)]
        return type(each[0])(**{name: torch.cat([output[name] for output in each]) for name in names})

    def _places(self, ids: Int[Tensor, "text token"], inputs: Mapping[str, Tensor]) -> Int[Tensor, "text token"] | None:
        """Where the tokens that ids name are in their input; None if they are all of its tokens, in order."""
        if self.positions is None:
            return None
        places = self.positions.places(inputs, len(ids))[ids]
        whole = torch.arange(len(self.positions.of(inputs, len(ids)).names), device=ids.device)
        return None if ids.shape[1] == len(whole) and bool((places == whole).all()) else places

    def _rows(self, places: Int[Tensor, "text token"], inputs: Mapping[str, Tensor]) -> dict[int, Tensor | None] | None:
        """Which tokens are left of all, and which patches of all, by how many there are; None if no token is missing.

        None stands for the patches if texts have different numbers of them.
        """
        assert self.positions is not None
        geometry = self.positions.of(inputs, len(places))
        if places.shape[1] == len(geometry.names):
            return None
        is_patch = torch.tensor([name not in geometry.fixed for name in geometry.names], device=places.device)
        numbers, left = is_patch.cumsum(0) - 1, is_patch[places]
        is_same = len({*left.sum(dim=1).tolist()}) == 1
        rows = numbers[places][left].view(len(places), -1) if is_same else None
        return {int(is_patch.sum()): rows, len(geometry.names): places}

    def entering(self, input_ids: Tensor, **inputs: Tensor) -> Float[Tensor, "text token model"]:
        """The tokens' vectors as they enter the first layer; the arguments are those of `forward`."""
        inputs = {name: given for name, given in inputs.items() if name != "attention_mask"}
        return _taken(self._entering(inputs, len(input_ids)), self._places(input_ids, inputs))

    def _entering(self, inputs: Mapping[str, Tensor], number: int) -> Float[Tensor, "input token model"]:
        return _by_input(given_to(self._layer, self.model, inputs).vectors, number, self.axes)

    def tokens_of(self, inputs: Mapping[str, Tensor]) -> int:
        """The number of tokens of one input."""
        return self._entering(inputs, 1).shape[1]

    def _as_model(self, vectors: Float[Tensor, "text token model"], own: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Vectors with the axes of the model's own; some tokens may be missing."""
        if own.ndim == _IMAGES and vectors.numel() != own.numel():
            raise InputError(
                f"model: patches cannot be removed from {type(self.model).__name__}, whose layers are given a grid; leave "
                "attribution out"
            )
        axes = Axes.of(own, len(vectors)) if self.axes is None else self.axes
        shape = own.shape if vectors.numel() == own.numel() else vectors.shape[-own.ndim :]
        return axes.by_model(vectors.view_as(vectors), shape)


def _taken(
    vectors: Float[Tensor, "text all model"], places: Int[Tensor, "text token"] | None
) -> Float[Tensor, "text token model"]:
    """The vectors in some places, which may be fewer than all, or some of them several times; all without places."""
    return vectors if places is None else vectors.take_along_dim(places.unsqueeze(-1), dim=1)


@contextlib.contextmanager
def on_call(module: nn.Module, call: Callable[[LayerCall], object]) -> Iterator[None]:
    """Context in which a function is called with what a part of a model is given."""
    thread = threading.get_ident()  # another may read inputs ahead of those that are observed

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if threading.get_ident() == thread:
            call(LayerCall(module, args, kwargs))

    handle = module.register_forward_pre_hook(enter, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def given_to(
    module: nn.Module,
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    changed: Mapping[str, Tensor] = MappingProxyType({}),
) -> LayerCall:
    """What a part of a model is given, in a pass that ends there.

    Args:
        changed: Parameters that stand in for the model's own, which stay as they are.
    """
    found: list[LayerCall] = []

    def stop(call: LayerCall) -> None:
        found.append(call)
        raise StopForward

    with torch.no_grad(), model_code(model), contextlib.suppress(StopForward), on_call(module, stop):
        functional_call(model, dict(changed), kwargs=dict(inputs))
    return found[0]


def _axes_of(call: LayerCall) -> Axes | None:
    """The axes of what a layer reads, on a grid with channels first or last; None if the shape tells."""
    if call.vectors.ndim != _IMAGES:
        return None
    with torch.no_grad(), _WidthWatch() as watch:
        call.layer(*call.args, **call.kwargs)
    return Axes.of(call.vectors, 1, width=watch.width)


def _by_input(vectors: Float[Tensor, "..."], inputs: int, axes: Axes | None) -> Float[Tensor, "input token model"]:
    return (Axes.of(vectors, inputs) if axes is None else axes).by_text(vectors, inputs)


def _list_of(model: nn.Module, layer: nn.Module) -> nn.Module:
    """The list that a layer is in."""
    return next(each for each in model.modules() if layer in each.children())


class _DifferentNumbersError(Exception):
    """A layer has an argument with a row for each patch, of which the texts of a batch have different numbers."""


def _without(call: LayerCall, rows: Mapping[int, Int[Tensor, "text kept"] | None]) -> LayerCall:
    """A call of a layer whose other arguments have a row for each token, or each patch, without those of missing tokens.

    Args:
        rows: The rows that are left, by how many there are of all.

    Raises:
        _DifferentNumbersError: If they are not known.
    """

    def cut(value: Any) -> Any:
        is_by_token = isinstance(value, Tensor) and value is not call.vectors and value.ndim > 1
        if not is_by_token or value.shape[-2] not in rows:
            return value
        left = rows[value.shape[-2]]
        if left is None:
            raise _DifferentNumbersError
        if value.ndim == 2:  # of all texts, as rotations are
            return value[left].unsqueeze(1)
        index = left.view(len(left), *[1] * (value.ndim - 3), -1, 1)
        is_mask = value.shape[-1] == value.shape[-2]
        value = value.take_along_dim(index, dim=-2)
        return value.take_along_dim(index.mT, dim=-1) if is_mask else value

    return LayerCall(call.layer, *tree_map(cut, (call.args, dict(call.kwargs))))


class Positions:
    """What the tokens of inputs are, found out once for each shape of an input.

    Args:
        model: A model in evaluation mode. A copy of its modules runs, so that inputs can be read while the model does.
        probe: Its keyword arguments for one input.
        axes: The axes of what enters the first layer; None if the shape has to tell.
        tokens: Names of the tokens in order, if they are given, or names by category; an input may have fewer tokens.
        sizes: Whether inputs have several sizes.

    Raises:
        InputError: If the model fails on the probe, or it has more tokens than names.
    """

    def __init__(
        self,
        model: nn.Module,
        probe: Mapping[str, Tensor],
        axes: Axes | None = None,
        tokens: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
        *,
        sizes: bool = False,
    ) -> None:
        shared = {id(each): each for each in [*model.parameters(), *model.buffers()]}
        self._model = copy.deepcopy(model, shared)
        self._layer, self._axes = first_layer(self._model, probe), axes
        self._categories: dict[str, list[str]] = {}
        self._given: list[str] | None = None
        if isinstance(tokens, Mapping):
            self._categories = {name: list(part) for name, part in tokens.items()}
            self._given = [name for part in self._categories.values() for name in part]
        elif tokens is not None:
            self._given = list(tokens)
        self._known: dict[str, Geometry] = {}
        first = self.of(probe)
        self.fixed = first.fixed
        """The names of the tokens that no input changes."""
        self.names = first.names if self._given is None else tuple(self._given)
        """All names of tokens; the place of each is its token id."""
        self.length = None if sizes else len(self.names)
        """How many tokens every input has; None if inputs differ."""
        if sizes and self._given is None:
            on_none = map(str, range(1, _LARGEST_GRID**2 + 1))
            self.names = (*first.fixed, *(patch_names(_LARGEST_GRID, _LARGEST_GRID) if first.grid else on_none))
        self._ids = {name: number for number, name in enumerate(self.names)}
        of_images = ("border", "patch") if first.grid else ()
        self.categories = tuple(dict.fromkeys([*self._categories, *first.categories, *of_images]))
        """The categories that tokens may have besides `cls`."""

    def of(self, inputs: Mapping[str, Tensor], number: int = 1) -> Geometry:
        """What the tokens of an input are.

        Args:
            inputs: Arguments of the model.
            number: For how many inputs of one shape.

        Raises:
            InputError: If the model fails on inputs of this shape, or has more tokens than names.
        """
        first = {name: each if number == 1 else each[:1] for name, each in inputs.items()}
        key = repr(
            [
                (name, tuple(each.shape), None if each.is_floating_point() else each.tolist())
                for name, each in first.items()
            ]
        )
        if key not in self._known:
            one = _Input(self._model, self._layer, first, self._axes)
            self._known[key] = one.geometry() if self._given is None else self._of_given(len(one.vectors), self._given)
        return self._known[key]

    def _of_given(self, tokens: int, names: Sequence[str]) -> Geometry:
        if tokens > len(names):
            raise InputError(f"tokens: expected a name for each of {tokens} tokens, got {len(names)}")
        return Geometry(tuple(names[:tokens]), self._categories, None)

    def ids(self, geometry: Geometry) -> list[int]:
        """The numbers of the tokens' names.

        Raises:
            InputError: If an input is so large that they have none.
        """
        missing = next((name for name in geometry.names if name not in self._ids), None)
        if missing is not None:
            raise InputError(
                f"expected at most {_LARGEST_GRID} × {_LARGEST_GRID} patches, or {_LARGEST_GRID**2:,} tokens that are on no "
                f"grid, got a token {missing}; make the input smaller"
            )
        return [self._ids[name] for name in geometry.names]

    def places(self, inputs: Mapping[str, Tensor], number: int) -> Int[Tensor, " name"]:
        """Where the token of each name is in inputs of one shape; 0 for names that they lack."""
        ids = self.ids(self.of(inputs, number))
        places = torch.zeros(len(self.names), dtype=torch.int64)
        places[ids] = torch.arange(len(ids))
        return places.to(next(iter(inputs.values())).device)


@dataclasses.dataclass
class _Input:
    """An input of noise, and what changes which of its tokens' vectors."""

    model: nn.Module
    layer: nn.Module
    probe: Mapping[str, Tensor]
    axes: Axes | None

    @cached_property
    def vectors(self) -> Float[Tensor, "token model"]:
        """The tokens' vectors."""
        return self._enter(noise(self.probe, 0))

    def _enter(
        self, inputs: Mapping[str, Tensor], changed: Mapping[str, Tensor] = MappingProxyType({})
    ) -> Float[Tensor, "token model"]:
        return _by_input(given_to(self.layer, self.model, inputs, changed).vectors, 1, self.axes)[0]

    def _changed(self, region: tuple[Any, ...]) -> Bool[Tensor, " token"]:
        """Which tokens' vectors change with a region of the input."""
        other = noise(noise(self.probe, 0), 1, region=region)
        return (self._enter(other) != self.vectors).any(dim=-1).cpu()

    def geometry(self) -> Geometry:
        """The names of the tokens."""
        of_input = self._changed((...,))
        names = [""] * len(of_input)
        registers = self._name_others(names, torch.nonzero(~of_input).flatten().tolist())
        sizes = self._grid(of_input)
        patches = int(of_input.sum())
        if sizes is None:
            own = [str(number) for number in range(1, patches + 1)]
            categories = {kind: own} if (kind := self._kind) else {}
        else:
            rows, columns = sizes
            own = patch_names(rows, columns)
            inner = [own[row * columns + column] for row in range(1, rows - 1) for column in range(1, columns - 1)]
            within = {*inner}
            categories = {"border": [name for name in own if name not in within], "patch": inner}
        patch = iter(own)
        known = {"register": registers} | categories
        return Geometry(
            tuple(name or next(patch) for name in names),
            {name: tokens for name, tokens in known.items() if tokens},
            sizes if bool(of_input[len(names) - patches :].all()) else None,
            tuple(filter(None, names)),
        )

    @property
    def _kind(self) -> str:
        """The category of tokens on no grid: by what the model declares or calls its input, or by the axes of that."""
        declared, main = (getattr(self.model, name, "") for name in ("input_modalities", "main_input_name"))
        kinds = {declared} if isinstance(declared, str) else {*declared}
        if "audio" in kinds or main in ("input_features", "input_values"):
            return "frame"
        has_axes = any(given.ndim == _IMAGES for given in self.probe.values())
        return "patch" if has_axes or kinds & {"image", "video"} else ""

    def _grid(self, of_input: Bool[Tensor, " token"]) -> tuple[int, int] | None:
        """Rows and columns of the patches of an image, if the first rows of pixels make the first patches, and so on."""
        images = [given for given in self.probe.values() if given.ndim == _IMAGES and given.is_floating_point()]
        if len(images) != 1:
            return None
        height, width = images[0].shape[-2:]
        patches = int(of_input.sum())
        for size in range(1, min(height, width) + 1):  # what is left over at the lower and the right edge is not read
            rows, columns = height // size, width // size
            if rows * columns == patches:
                row, column = torch.arange(patches) // columns, torch.arange(patches) % columns
                above = self._changed((..., slice(size), slice(None)))[of_input]
                left = self._changed((..., slice(size)))[of_input]
                if torch.equal(above, row == 0) and torch.equal(left, column == 0):
                    return rows, columns
        return None

    def _name_others(self, names: list[str], places: Sequence[int]) -> list[str]:
        """Name the tokens that no input changes: by what the parameter is called that each is.

        Returns:
            Those that are registers.
        """
        registers = []
        for number, place in enumerate(places, start=1):
            names[place] = f"[{number}]"
        of_layers = {id(parameter) for parameter in _list_of(self.model, self.layer).parameters()}
        for path, parameter in self.model.named_parameters() if places else ():
            is_vector = 1 <= parameter.ndim <= 3 and parameter.shape[-1] == self.vectors.shape[-1]
            if not is_vector or id(parameter) in of_layers:
                continue
            changed = self._places_of(path, parameter)
            if not changed or not set(changed).issubset(places):
                continue
            kind = re.sub("(_token|_embedding)s?$", "", path.rpartition(".")[2])
            kind = kind.removesuffix("s") if len(changed) > 1 else kind
            kind = "cls" if kind == "class" else kind
            for number, place in enumerate(changed, start=1):
                names[place] = f"[{kind.upper()}{number if len(changed) > 1 else ''}]"
                registers += [names[place]] if kind == "register" else []
        return registers

    def _places_of(self, path: str, parameter: Tensor) -> list[int]:
        """Which tokens' vectors a parameter is a part of."""
        vectors = self._enter(noise(self.probe, 0), {path: parameter + 1})
        return torch.nonzero((vectors != self.vectors).any(dim=-1)).flatten().tolist()
