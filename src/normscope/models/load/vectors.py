"""Models of images and other vectors as models of tokens: each vector that enters the first layer is a token with a name.

A model of texts looks its tokens' vectors up in a table. Any other model makes them of pixels or audio, by code of its own,
which stays as it is: what enters its first layer is found by running it, and which token is which by changing its input. Only
short probes without an input of their own take vectors from a table, of those that the model has made of noise.
"""

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError
from normscope.linear.layer_calls import LayerCall, LayerCalls
from normscope.linear.provenance import begin
from normscope.models.stored.model_code import StopForward, model_code

_IMAGES = 4
"""Axes of a batch of images: image, channel, row, column."""


@dataclasses.dataclass(frozen=True)
class Geometry:
    """What the tokens of an input are."""

    names: tuple[str, ...]
    """A name for each token: `[CLS]`, `[REGISTER1]`, and for a patch its row and column from the upper left, `3,5`."""
    categories: Mapping[str, list[str]]
    """The names of the tokens of each category but `cls`: `register`, `border`, `patch`."""
    grid: tuple[int, int] | None
    """Rows and columns of patches, which come last, row by row; None if they are on no grid."""

    @property
    def before(self) -> tuple[str, ...]:
        """The names of the tokens that no input changes, such as [CLS] and registers, which come first."""
        own = {name for kind in ("border", "patch", "frame") for name in self.categories.get(kind, ())}
        return tuple(name for name in self.names if name not in own)


class _Table(nn.Embedding):
    """The vectors of tokens by number, unless those of an input are given."""

    given: Tensor | None = None

    def forward(self, ids: Int[Tensor, "text token"]) -> Float[Tensor, "text token model"]:
        """The vectors of the tokens; an input may lack some of them."""
        if self.given is None:
            return super().forward(ids)
        with torch._C.DisableTorchFunction():  # how a model makes them is no part of what is measured
            vectors = self.given.take_along_dim(ids.unsqueeze(-1), dim=1)
        return begin(vectors)


class _AttentionWatch(TorchFunctionMode):
    """Notes whether attention is computed."""

    seen = False

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.seen = self.seen or getattr(function, "__name__", "") in ("softmax", "scaled_dot_product_attention")
        return function(*args, **(kwargs or {}))


class VectorModel(PreTrainedModel):
    """A model that reads vectors, with the interface of one that reads token ids.

    Args:
        model: A model in evaluation mode whose layers are in a list.
        probe: Its keyword arguments for one input, each with an axis of inputs first. Their shapes are read, and numbers that
            are whole.
        base: What has been made of the base model, if the model has a head around that.

    Raises:
        InputError: If the model fails on the probe, or has no layers that are given vectors.
    """

    # Whatever the model has been set to is right here: the attention is the model's own.
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True

    def __init__(self, model: PreTrainedModel, probe: Mapping[str, Tensor], base: "VectorModel | None" = None) -> None:
        config = copy.deepcopy(model.config)
        config.pad_token_id = None  # the number of a text's token
        super().__init__(config)
        self.model = model
        self._can_set_attn_implementation = model._can_set_attn_implementation
        self.probe = dict(probe)
        self._layer: nn.Module = self._first_layer() if base is None else base._layer
        self.table: _Table = self._table() if base is None else base.table
        self.eval()

    def _table(self) -> _Table:
        """The vectors that the model makes of noise."""
        vectors = self._entry(self._noise(0))[0].detach().clone()
        tokens, width = vectors.shape
        table = _Table(tokens, width, _weight=vectors)
        table.weight.requires_grad_(False)
        return table

    def set_attn_implementation(self, *arguments: Any, **options: Any) -> None:
        """Set that of the model."""
        self.model.set_attn_implementation(*arguments, **options)

    def get_input_embeddings(self) -> nn.Module:
        """The table of the tokens' vectors."""
        return self.table

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,  # noqa: ARG002
        **inputs: Tensor,
    ) -> Any:
        """Run the model.

        Args:
            input_ids: Numbers of tokens (text, token).
            attention_mask: Not read: the model is given no padding.
            inputs: The model's own keyword arguments. Without them, the vectors are those of the table.
        """
        own = inputs or {name: given.expand(len(input_ids), *given.shape[1:]) for name, given in self.probe.items()}
        with self._through_table(input_ids, given=bool(inputs)):
            return self.model(**own)

    @contextlib.contextmanager
    def _through_table(self, ids: Tensor, *, given: bool) -> Iterator[None]:
        """Context in which what enters the first layer is what the table gives."""

        def enter(
            layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            call = LayerCall(layer, args, kwargs)
            self.table.given = call.vectors if given else None
            call = call.having(self.table(ids))
            return call.args, dict(call.kwargs)

        handle = self._layer.register_forward_pre_hook(enter, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()
            self.table.given = None

    def _first_layer(self) -> nn.Module:
        """The first entry of a list of layers that is given vectors and attends; what convolves before it is no layer."""
        found: list[nn.Module] = []

        def run(_number: int, call: LayerCall, forward: Callable[[], Any]) -> Any:
            attention.seen = False
            output = forward()
            if attention.seen and call.place is not None:
                found.append(call.layer)
            return output

        calls = LayerCalls(self.model, 1, run=run)
        with torch.no_grad(), model_code(self.model), _AttentionWatch() as attention, calls:
            self.model(**self._noise(0))
        if not found:
            raise InputError(
                f"model: no list of layers of {type(self.model).__name__} takes token vectors of shape (input, token, "
                "dimension) and attends"
            )
        return found[0]

    def _entry(
        self, inputs: Mapping[str, Tensor], changed: Mapping[str, Tensor] = MappingProxyType({})
    ) -> Float[Tensor, "input token model"]:
        """What enters the first layer, in a pass that ends there.

        Args:
            changed: Parameters that stand in for the model's own, which stay as they are.
        """
        found: list[Tensor] = []

        def stop(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            found.append(LayerCall(layer, args, kwargs).vectors)
            raise StopForward

        handle = self._layer.register_forward_pre_hook(stop, with_kwargs=True)
        try:
            with torch.no_grad(), model_code(self.model), contextlib.suppress(StopForward):
                functional_call(self.model, dict(changed), kwargs=dict(inputs))
        finally:
            handle.remove()
        return found[0]

    def _noise(self, seed: int) -> dict[str, Tensor]:
        """The probe with numbers that stand for nothing, the same at every call."""
        generator = torch.Generator().manual_seed(seed)
        return {
            name: torch.randn(given.shape, generator=generator).to(given) if given.is_floating_point() else given
            for name, given in self.probe.items()
        }

    def _changed(self, region: tuple[Any, ...]) -> Bool[Tensor, " token"]:
        """Which tokens' vectors change with a region of the input."""
        one, other = self._noise(0), self._noise(1)
        for name, given in one.items():
            if given.is_floating_point():
                changed = given.clone()
                changed[region] = other[name][region]
                other[name] = changed
        return (self._entry(other)[0] != self.table.weight).any(dim=-1)

    @cached_property
    def geometry(self) -> Geometry:
        """The names of the tokens, from which of them change with what."""
        of_input = self._changed((...,))
        before = int(of_input.int().argmax())
        patches = self.table.num_embeddings - before
        if not bool(of_input[before:].all()):
            raise InputError(
                f"model: expected the tokens of {type(self.model).__name__} that depend on the input to come last"
            )
        names, registers = self._names_before(before)
        grid = self._grid(before, patches)
        if grid is None:
            own = [str(number) for number in range(1, patches + 1)]
            categories = {"patch" if any(given.ndim == _IMAGES for given in self.probe.values()) else "frame": own}
        else:
            rows, columns = grid
            places = [(row, column) for row in range(1, rows + 1) for column in range(1, columns + 1)]
            own = [f"{row},{column}" for row, column in places]
            at_border = [row in (1, rows) or column in (1, columns) for row, column in places]
            categories = {
                "border": [name for name, border in zip(own, at_border, strict=True) if border],
                "patch": [name for name, border in zip(own, at_border, strict=True) if not border],
            }
        known = {"register": registers} | categories
        return Geometry((*names, *own), {name: tokens for name, tokens in known.items() if tokens}, grid)

    def _grid(self, before: int, patches: int) -> tuple[int, int] | None:
        """Rows and columns of the patches of an image, if the first rows of pixels make the first patches, and so on."""
        images = [given for given in self.probe.values() if given.ndim == _IMAGES and given.is_floating_point()]
        if len(images) != 1:
            return None
        height, width = images[0].shape[-2:]
        sizes = [(rows, patches // rows) for rows in range(1, patches + 1) if patches % rows == 0]
        alike = [(rows, columns) for rows, columns in sizes if height * columns == width * rows]
        for rows, columns in alike:
            row, column = torch.arange(patches) // columns, torch.arange(patches) % columns
            above = self._changed((..., slice(height // rows), slice(None)))[before:].cpu()
            left = self._changed((..., slice(width // columns)))[before:].cpu()
            if torch.equal(above, row == 0) and torch.equal(left, column == 0):
                return rows, columns
        return None

    def _names_before(self, tokens: int) -> tuple[list[str], list[str]]:
        """The names of the tokens that no input changes, and which of them are registers: what the parameter is called that
        each is."""
        names, registers = [f"[{number}]" for number in range(1, tokens + 1)], []
        of_layers = {id(parameter) for parameter in self._layers.parameters()}
        for path, parameter in self.model.named_parameters() if tokens else ():
            is_vector = 1 <= parameter.ndim <= 3 and parameter.shape[-1] == self.table.embedding_dim
            if not is_vector or id(parameter) in of_layers:
                continue
            places = self._places_of(path, parameter)
            if not places or places[-1] >= tokens:
                continue
            kind = path.rpartition(".")[2].removesuffix("s").removesuffix("_token").removesuffix("_embedding")
            kind = "cls" if kind == "class" else kind
            for number, place in enumerate(places, start=1):
                names[place] = f"[{kind.upper()}{number if len(places) > 1 else ''}]"
                registers += [names[place]] if kind == "register" else []
        return names, registers

    @property
    def _layers(self) -> nn.Module:
        """The list of the layers."""
        return next(each for each in self.model.modules() if self._layer in each.children())

    def _places_of(self, path: str, parameter: Tensor) -> list[int]:
        """Which tokens' vectors a parameter is a part of."""
        vectors = self._entry(self._noise(0), {path: parameter + 1})[0]
        return torch.nonzero((vectors != self.table.weight).any(dim=-1)).flatten().tolist()
