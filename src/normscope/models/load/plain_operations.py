"""Runs a model that is not from transformers in plain operations: linear layers and norms as modules, attention as a softmax.

`nn.MultiheadAttention` and fused attention hide their softmax, and products with bare parameters (`x @ self.W_Q`, an `einsum`)
have no module that could be observed. While the model runs, `PlainOperations` replaces each of these functions by equivalent
ones: attention by two products and a softmax, and a product with a bare parameter by a linear layer between movements. These
linear layers and norms are submodules of the module that owns the parameter, and share its memory.
"""

import dataclasses
import functools
import math
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils.hooks import RemovableHandle
from transformers.pytorch_utils import Conv1D

from normscope.models.infer.pointwise import PointwiseLinear

_OWN_PRODUCTS = (nn.Linear, nn.Embedding, nn.modules.conv._ConvNd, Conv1D)
"""Modules that compute the product with their weight themselves."""


class _View(NamedTuple):
    """A part of a parameter's memory, with its axes in some order: as a matrix, inputs × outputs."""

    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    inputs: int
    copied: "_View | None" = None
    """What has been copied from the parameter, if this is a part of the copy: a reshape of permuted axes makes one."""

    @classmethod
    def of(cls, tensor: Tensor, inputs: int, copied: "_View | None" = None) -> "_View":
        return cls(int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride()), inputs, copied)

    def take(self, parameter: Tensor) -> Tensor:
        """The matrix (input, output)."""
        memory = parameter if self.copied is None else self.copied.take(parameter).contiguous()
        return torch.as_strided(memory, self.size, self.stride, self.offset).reshape(self.inputs, -1)


class BareLinear(nn.Module):
    """x W + b with parameters of another module, or parts of them.

    Args:
        parameter: The parameter that holds W.
        view: Where W is in it.
    """

    def __init__(self, parameter: nn.Parameter, view: _View) -> None:
        super().__init__()
        self.parameter, self.view = parameter, view
        self.bias_parameter: nn.Parameter | None = None
        self.bias_view: _View | None = None
        self.adds_later = False
        """Whether the model adds the bias after the product, in a separate operation."""

    @property
    def weight(self) -> Tensor:
        """W, of shape (input, output)."""
        return self.view.take(self.parameter)

    @property
    def bias(self) -> Tensor | None:
        """b."""
        if self.bias_parameter is None or self.bias_view is None:
            return None
        return self.bias_view.take(self.bias_parameter).reshape(-1)

    def forward(self, vectors: Tensor) -> Tensor:
        """The product, and the bias if there is one."""
        made = vectors @ self.weight
        return made if self.bias is None else made + self.bias


class BareNorm(nn.Module):
    """`layer_norm` or `rms_norm` with parameters of another module, or parts of them.

    Args:
        function: The function.
        weight: The parameter that holds γ, and where.
        bias: The same for β.
        epsilon: ε.
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        weight: tuple[nn.Parameter, _View],
        bias: tuple[nn.Parameter, _View] | None,
        epsilon: float | None,
    ) -> None:
        super().__init__()
        self.function = function
        self.parameter, self.view = weight
        self.bias_parameter: nn.Parameter | None = None
        self.bias_view: _View | None = None
        if bias is not None:
            self.bias_parameter, self.bias_view = bias
        self.normalized_shape = tuple(self.weight.shape)
        self.eps = torch.finfo(self.parameter.dtype).eps if epsilon is None else epsilon

    @property
    def weight(self) -> Tensor:
        """γ."""
        return self.view.take(self.parameter).reshape(-1)

    @property
    def bias(self) -> Tensor | None:
        """β."""
        if self.bias_parameter is None or self.bias_view is None:
            return None
        return self.bias_view.take(self.bias_parameter).reshape(-1)

    def forward(self, vectors: Tensor) -> Tensor:
        """The normed vectors."""
        parameters = [self.weight] if self.function is functional.rms_norm else [self.weight, self.bias]
        return self.function(vectors, self.normalized_shape, *parameters, self.eps)


class UnweightedNorm(nn.Module):
    """`layer_norm` or `rms_norm` without parameters.

    Args:
        function: The function.
        like: What it is applied to.
        epsilon: ε.
    """

    def __init__(self, function: Callable[..., Tensor], like: Tensor, epsilon: float | None) -> None:
        super().__init__()
        self.function, self.normalized_shape = function, tuple(like.shape[-1:])
        self.eps = torch.finfo(like.dtype).eps if epsilon is None else epsilon
        self.register_buffer("like", like.new_empty(0), persistent=False)  # where the norm runs

    def forward(self, vectors: Tensor) -> Tensor:
        """The normed vectors."""
        return self.function(vectors, self.normalized_shape, eps=self.eps)


class BareEmbedding(nn.Embedding):
    """Token embeddings in a parameter of another module.

    Args:
        table: The parameter, (token, model).
    """

    def __init__(self, table: nn.Parameter) -> None:
        tokens, width = table.shape
        super().__init__(tokens, width, _weight=table)
        self.weight = table


class _Pending(NamedTuple):
    """A product whose bias the model may add later."""

    given: Tensor
    """The product, as returned to the model."""
    linear: BareLinear
    vectors: Tensor
    move: Callable[[Tensor], Tensor]
    """The movement from the linear layer's output to `given`."""


@dataclasses.dataclass
class _Running:
    """A module that is running."""

    module: nn.Module
    norms: int = 0
    """How many norms without parameters it has applied."""


_COPIES = 8
"""Number of copies of parameters that are remembered: a layer makes a few before it multiplies with them."""

_PENDING = 4
"""Number of products that are remembered: queries, keys and values may be computed before any bias is added."""


class PlainOperations(TorchFunctionMode):
    """While active, a model runs in plain operations.

    Args:
        model: The model.
        discover: Whether to add submodules for the bare parameters that the model multiplies with vectors.
    """

    def __init__(self, model: nn.Module, *, discover: bool = False) -> None:
        super().__init__()
        self._discover = discover
        self._owners: dict[int, tuple[nn.Module, str, nn.Parameter]] = {}
        self.layers: dict[int, nn.Module] = {}
        """Each linear layer, by the memory of its weight."""
        for module in model.modules():
            if isinstance(module, nn.Linear):
                self.layers[_storage(module.weight)] = module
            if not isinstance(module, (BareLinear, BareNorm, PointwiseLinear, *_OWN_PRODUCTS)):
                for name, parameter in module.named_parameters(recurse=False):
                    self._owners[_storage(parameter)] = (module, name, parameter)
        self._model, self._watches = (
            model,
            discover or any(isinstance(each, UnweightedNorm) for each in model.modules()),
        )
        self._running: list[_Running] = []
        self._handles: list[RemovableHandle] = []
        self._pending: list[_Pending] = []
        self._copies: list[tuple[Tensor, Tensor]] = []
        """Copies of parameters in another order, with the views that were copied."""
        self.complete: tuple[Tensor, Tensor] | None = None
        """What `isnan` returned last, and the tensor that it read, if no element is NaN."""

    def __enter__(self) -> "PlainOperations":
        if self._watches:
            # Norms without parameters are known by the module that applies them, and by their number in it.
            self._handles = [
                register_module_forward_pre_hook(self._begin),
                register_module_forward_hook(self._end, always_call=True),
            ]
        super().__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        for handle in self._handles:
            handle.remove()

    def _begin(self, module: nn.Module, _args: Any) -> None:
        if module is self._model:  # an earlier pass may have ended early
            self._running.clear()
        self._running.append(_Running(module))

    def _end(self, module: nn.Module, _args: Any, _output: Any) -> None:
        while self._running and self._running.pop().module is not module:
            pass

    def __torch_function__(
        self, function: Callable[..., Any], _types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        rule = _RULES.get(function)
        if rule is not None and "out" not in kwargs:
            result = rule(self, *args, **kwargs)
            if result is not NotImplemented:
                return result
        return function(*args, **kwargs)

    def bare(self, tensor: object) -> tuple[nn.Module, str, nn.Parameter] | None:
        """The bare parameter to which a tensor, or what it is a copy of, belongs: its owner, its name, and the parameter."""
        if not isinstance(tensor, Tensor):
            return None
        copied = self._copied(tensor)
        return self._owners.get(_storage(tensor if copied is None else copied))

    def note_copy(self, made: Tensor, tensor: Tensor) -> None:
        """Remember a copy of a bare parameter."""
        if self._owners.get(_storage(tensor)) is not None and _storage(made) != _storage(tensor):
            self._copies = [*self._copies[1 - _COPIES :], (made, tensor)]

    def _copied(self, tensor: Tensor) -> Tensor | None:
        return next((each for made, each in self._copies if _storage(made) == _storage(tensor)), None)

    def _view(self, tensor: Tensor, inputs: int) -> _View:
        copied = self._copied(tensor)
        return _View.of(tensor, inputs, None if copied is None else _View.of(copied, 1))

    def linear(
        self, vectors: Tensor, matrix: Tensor, inputs: int, move: Callable[[Tensor], Tensor], bias: Tensor | None = None
    ) -> Any:
        """A product of vectors and a bare parameter, as a linear layer.

        Args:
            vectors: (..., input).
            matrix: W, whose axes are those of the input followed by those of the output.
            inputs: Number of inputs.
            move: Turns (..., output) into what the model's own operation returns.
            bias: b.
        """
        owner = self.bare(matrix)
        if owner is None or (bias is not None and self.bare(bias) is None):
            return NotImplemented
        linear = self._linear(owner, self._view(matrix, inputs), bias)
        if linear is None:
            return NotImplemented
        if bias is not None or not (self._discover or linear.adds_later):
            return move(linear(vectors))
        if self._discover:
            given = move(vectors @ linear.weight)
        else:  # unless the bias is added next, the NaN shows up in the output
            shape = (*vectors.shape[:-1], linear.weight.shape[1])
            given = move(torch.full(shape, torch.nan, dtype=vectors.dtype, device=vectors.device))
        self._pending = [*self._pending[1 - _PENDING :], _Pending(given, linear, vectors, move)]
        return given

    def _linear(
        self, owner: tuple[nn.Module, str, nn.Parameter], view: _View, bias: Tensor | None
    ) -> BareLinear | None:
        module, name, parameter = owner
        for child in module.children():
            if isinstance(child, BareLinear) and child.parameter is parameter and child.view == view:
                return child
        if not self._discover:
            return None
        linear = BareLinear(parameter, view)
        if bias is not None:
            self._add_bias(linear, bias)
        module.add_module(_child(module, f"{name}[{_rows(parameter, view)}]"), linear)
        return linear

    def _add_bias(self, linear: BareLinear, bias: Tensor) -> None:
        owner = self.bare(bias)
        assert owner is not None
        linear.bias_parameter, linear.bias_view = owner[2], self._view(bias, 1)

    def add(self, first: object, second: object, alpha: float = 1) -> Any:
        """A sum: if it adds a bias to a product, that is the output of the linear layer."""
        for given, bias in ((first, second), (second, first)):
            pending = next((each for each in self._pending if each.given is given), None)
            if pending is None or alpha != 1 or self.bare(bias) is None:
                continue
            assert isinstance(bias, Tensor)
            linear = pending.linear
            if self._discover and linear.bias is None and _adds_in_order(pending, bias):
                self._add_bias(linear, bias)
                linear.adds_later = True
            if linear.adds_later:
                return pending.move(linear(pending.vectors))
        return NotImplemented

    def add_apart(self, first: Any, second: Any, alpha: float = 1) -> Any:
        """A sum that is a new tensor: a bias that is added to it may be that of a product in it, as in `x + h @ W + b`."""
        result = self.add(first, second, alpha)
        for summand, product in ((first, second), (second, first)):
            pending = next((each for each in self._pending if each.given is product), None)
            if result is NotImplemented and pending is not None and alpha == 1 and isinstance(summand, Tensor):
                result = torch.add(summand, product)
                sum_with = functools.partial(_sum_with, summand, pending.move)
                self._pending = [*self._pending[1 - _PENDING :], pending._replace(given=result, move=sum_with)]
        return result

    def look_up(self, table: Tensor, ids: Tensor) -> Any:
        """Rows of a table that is a bare parameter, as those of an embedding."""
        owner = self.bare(table)
        if owner is None or table is not owner[2]:
            return NotImplemented
        module, name, parameter = owner
        embedding = next((each for each in module.children() if isinstance(each, BareEmbedding)), None)
        if embedding is None:
            if not self._discover:
                return NotImplemented
            embedding = BareEmbedding(parameter)
            module.add_module(_child(module, f"{name}[ids]"), embedding)
        if embedding.weight is not parameter:
            return NotImplemented
        return embedding(ids)

    def norm(
        self,
        function: Callable[..., Tensor],
        vectors: Tensor,
        shape: Sequence[int],
        weight: Tensor | None,
        bias: Tensor | None,
        epsilon: float | None,
    ) -> Any:
        """A norm with bare parameters, or without any."""
        if weight is None and bias is None and len(shape) == 1 and self._running:
            return self._unweighted(function, vectors, epsilon)
        owner, owner_of_bias = self.bare(weight), self.bare(bias)
        if owner is None or weight is None or len(shape) != 1 or isinstance(owner[0], nn.LayerNorm | nn.RMSNorm):
            return NotImplemented
        module, name, parameter = owner
        view = self._view(weight, 1)
        for child in module.children():
            if isinstance(child, BareNorm) and child.parameter is parameter and child.view == view:
                return child(vectors)
        if not self._discover or (bias is not None and owner_of_bias is None):
            return NotImplemented
        beta = None if bias is None or owner_of_bias is None else (owner_of_bias[2], self._view(bias, 1))
        norm = BareNorm(function, (parameter, view), beta, epsilon)
        module.add_module(_child(module, f"{name}[norm]"), norm)
        return norm(vectors)

    def _unweighted(self, function: Callable[..., Tensor], vectors: Tensor, epsilon: float | None) -> Any:
        """A norm without parameters, as a module inside the one that applies it."""
        running = self._running[-1]
        if isinstance(running.module, nn.LayerNorm | nn.RMSNorm | UnweightedNorm):
            return NotImplemented
        running.norms += 1
        name = f"norm {running.norms}"
        if self._discover and name not in running.module._modules:
            running.module.add_module(name, UnweightedNorm(function, vectors, epsilon))
        norm = running.module._modules.get(name)
        return NotImplemented if norm is None else norm(vectors)


def _rows(parameter: nn.Parameter, view: _View) -> str:
    """Which rows of a parameter a view takes, for its name."""
    step = max(parameter.stride(0), 1)
    first, rows = view.offset // step, math.prod(view.size) // max(parameter[0].numel(), 1)
    return ":" if rows == len(parameter) else f"{first}:{first + rows}"


def _child(module: nn.Module, name: str) -> str:
    """A name that no child has yet."""
    names = (name if number == 0 else f"{name} ({number + 1})" for number in range(len(module._modules) + 1))
    return next(each for each in names if each not in module._modules)


def _storage(tensor: Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # a tensor without storage
        return -1


def _adds_in_order(pending: _Pending, bias: Tensor) -> bool:
    """Whether the elements of a bias are added to the outputs of a linear layer in order."""
    vectors, outputs = pending.vectors, pending.linear.weight.shape[1]
    if bias.numel() != outputs:
        return False
    columns = torch.arange(outputs).expand(*vectors.shape[:-1], outputs)
    moved = pending.move(columns)
    order = torch.arange(outputs).reshape(bias.shape)
    return moved.shape == pending.given.shape and bool((torch.zeros_like(moved) + order == moved).all())


def _sum_with(summand: Tensor, move: Callable[[Tensor], Tensor], made: Tensor) -> Tensor:
    moved = move(made)
    # Columns are numbered by whole numbers, to find out in which order a bias is added.
    return moved if moved.dtype is torch.long else summand + moved


def _same(made: Tensor) -> Tensor:
    return made


def _matmul(mode: PlainOperations, first: Any, second: Any) -> Any:
    if not isinstance(second, Tensor) or second.ndim != 2 or not isinstance(first, Tensor) or first.ndim < 2:
        return NotImplemented
    return mode.linear(first, second, len(second), _same)


def _reversed_matmul(mode: PlainOperations, second: Any, first: Any) -> Any:
    return _matmul(mode, first, second)


def _functional_linear(mode: PlainOperations, vectors: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    return mode.linear(vectors, weight.T, weight.shape[1], _same, bias)


def _addmm(
    mode: PlainOperations, bias: Tensor, first: Tensor, second: Tensor, *, beta: float = 1, alpha: float = 1
) -> Any:
    if beta != 1 or alpha != 1:
        return NotImplemented
    return mode.linear(first, second, len(second), _same, bias)


def _einsum(mode: PlainOperations, equation: Any, *operands: Any) -> Any:
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or len(operands) < 2 or "->" not in equation:
        return NotImplemented
    axes = _axes(equation, operands)
    if axes is None:
        return NotImplemented
    (first, second, *others), made = axes
    if not others:
        return _einsum_of_two(mode, (first, second, made), operands)
    # From left to right: the first two, then what they make and the rest.
    kept = "".join(letter for letter in dict.fromkeys(first + second) if letter in made + "".join(others))
    between = _einsum_of_two(mode, (first, second, kept), operands[:2])
    if between is NotImplemented:
        between = torch.einsum(f"{first},{second}->{kept}", *operands[:2])
    rest = f"{','.join((kept, *others))}->{made}"
    result = _einsum(mode, rest, between, *operands[2:])
    return torch.einsum(rest, between, *operands[2:]) if result is NotImplemented else result


def _axes(equation: str, operands: Sequence[Tensor]) -> tuple[list[str], str] | None:
    """The axes of the operands and of the result of an einsum, a letter for each; None if operands are broadcast."""
    given, made = equation.replace(" ", "").split("->")
    terms = given.split(",")
    unnamed = {
        tensor.ndim - len(term.replace("...", ""))
        for term, tensor in zip(terms, operands, strict=True)
        if "..." in term
    }
    if len(unnamed) > 1:
        return None
    free = [letter for letter in string.ascii_letters if letter not in equation]
    more = "".join(free[: next(iter(unnamed), 0)])
    return [term.replace("...", more) for term in terms], made.replace("...", more)


def _einsum_of_two(mode: PlainOperations, terms: tuple[str, str, str], operands: Sequence[Tensor]) -> Any:
    first, second, made = terms
    if any(len({*term}) != len(term) for term in (first, second, made)):
        return NotImplemented
    if mode.bare(operands[0]) is not None:
        first, second, operands = second, first, operands[::-1]
    shared = [letter for letter in first if letter in second]
    if any(letter not in made for letter in {*first, *second} - {*shared}):
        return NotImplemented
    sizes = dict(zip(first + second, (*operands[0].shape, *operands[1].shape), strict=True))
    summed = [letter for letter in second if letter in shared and letter not in made]
    if mode.bare(operands[1]) is not None:
        return _weighted(mode, (first, second, made), operands, summed, sizes)
    return _of_vectors((first, second, made), operands, summed)


def _of_vectors(terms: tuple[str, str, str], operands: Sequence[Tensor], summed: Sequence[str]) -> Any:
    """An einsum of vectors, such as queries and keys, as a product of matrices whose rows come first in the result."""
    first, second, made = terms
    own = [
        [letter for letter in made if letter in term and letter not in other]
        for term, other in ((first, second), (second, first))
    ]
    if len(summed) != 1 or not all(own):
        return NotImplemented
    if made.index(own[0][-1]) > made.index(own[1][-1]):
        first, second, operands, own = second, first, operands[::-1], own[::-1]
    row, column = own[0][-1], own[1][-1]
    # Keys and values that all heads share have no axis of heads.
    batch = [letter for letter in made if letter not in (row, column)]
    one, other = (
        _with_axes(tensor, term, (*batch, *last))
        for tensor, term, last in ((operands[0], first, (row, *summed)), (operands[1], second, (*summed, column)))
    )
    order = [*batch, row, column]
    return torch.matmul(one, other).permute([order.index(letter) for letter in made])


def _with_axes(tensor: Tensor, term: str, axes: Sequence[str]) -> Tensor:
    """A tensor with its axes in another order, and axes of size 1 where it lacks one."""
    present = tensor.permute([term.index(letter) for letter in axes if letter in term])
    for place, letter in enumerate(axes):
        if letter not in term:
            present = present.unsqueeze(place)
    return present


def _weighted(
    mode: PlainOperations,
    terms: tuple[str, str, str],
    operands: Sequence[Tensor],
    summed: Sequence[str],
    sizes: Mapping[str, int],
) -> Any:
    """An einsum of vectors and a weight."""
    first, second, made = terms
    kept = [letter for letter in first if letter not in second]
    new = [letter for letter in second if letter not in first]
    if len(summed) + len(new) != len(second) or not summed:
        return NotImplemented  # the weight differs along an axis of the vectors
    vectors = operands[0].permute([first.index(each) for each in (*kept, *summed)])
    inputs = math.prod(sizes[letter] for letter in summed)
    matrix = operands[1].permute([second.index(each) for each in (*summed, *new)])
    order = [*kept, *new]

    def move(outputs: Tensor) -> Tensor:
        split = outputs.reshape(*outputs.shape[:-1], *(sizes[letter] for letter in new))
        return split.permute([order.index(letter) for letter in made])

    return mode.linear(vectors.reshape(*vectors.shape[: len(kept)], inputs), matrix, inputs, move)


def _layer_norm(
    mode: PlainOperations,
    vectors: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    return mode.norm(functional.layer_norm, vectors, normalized_shape, weight, bias, eps)


def _rms_norm(
    mode: PlainOperations,
    vectors: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Any:
    return mode.norm(functional.rms_norm, vectors, normalized_shape, weight, None, eps)


def _rows_of(mode: PlainOperations, table: Any, index: Any) -> Any:
    """`table[ids]` or `table[ids, :]`."""
    ids, *rest = index if isinstance(index, tuple) else (index,)
    if not isinstance(ids, Tensor) or ids.dtype is not torch.long or ids.ndim != 2 or table.ndim != 2:
        return NotImplemented
    return mode.look_up(table, ids) if rest in ([], [slice(None)]) else NotImplemented


def _reshape(mode: PlainOperations, tensor: Tensor, *shape: Any, **keywords: Any) -> Tensor:
    made = torch.Tensor.reshape(tensor, *shape, **keywords)
    mode.note_copy(made, tensor)
    return made


def _zeros_like(_mode: PlainOperations, like: Tensor, **keywords: Any) -> Tensor:
    with no_dispatch():  # its elements do not depend on those of `like`
        return torch.zeros_like(like, **keywords)


def _isnan(mode: PlainOperations, tensor: Tensor) -> Tensor:
    with no_dispatch():  # read by `where` alone, which is left out
        missing = torch.isnan(tensor)
        mode.complete = None if bool(missing.any()) else (missing, tensor)
    return missing


def _where(mode: PlainOperations, condition: Tensor, *values: Any) -> Any:
    """`where(isnan(x), …, x)`, by which TransformerLens replaces weights of queries that see no key, if there is none."""
    if mode.complete is not None and condition is mode.complete[0] and values and values[-1] is mode.complete[1]:
        return values[-1]
    return NotImplemented


def _scaled_dot_product_attention(
    _mode: PlainOperations,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if dropout_p or query.ndim < 3:
        return NotImplemented
    if enable_gqa:
        key, value = (each.repeat_interleave(query.shape[-3] // each.shape[-3], dim=-3) for each in (key, value))
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.matmul(query, key.transpose(-1, -2)) * factor
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(diagonal=1)
        scores = scores.masked_fill(later, _hidden(scores.dtype))
    return torch.matmul(torch.softmax(_masked(scores, attn_mask), dim=-1), value)


def _hidden(dtype: torch.dtype) -> float:
    """The score of a key that is not visible. With −∞, a query that sees no key would have NaN weights."""
    return torch.finfo(dtype).min / 4


def _masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return scores
    if mask.dtype is torch.bool:
        return scores.masked_fill(~mask, _hidden(scores.dtype))
    return scores + mask.to(scores.dtype).clamp(min=_hidden(scores.dtype))


def _multi_head_attention(
    mode: PlainOperations,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _width: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,  # noqa: ARG001 - a hint: the mask is given as well
) -> Any:
    """torch's function, whose inputs have shape (token, batch, model)."""
    others = (bias_k, bias_v, static_k, static_v)
    if query.ndim != 3 or add_zero_attn or any(each is not None for each in others) or (training and dropout_p):
        return NotImplemented
    weights: Any = (q_proj_weight, k_proj_weight, v_proj_weight)
    if not use_separate_proj_weight:
        assert in_proj_weight is not None
        weights = in_proj_weight.chunk(3)
    biases = (None, None, None) if in_proj_bias is None else in_proj_bias.chunk(3)
    heads = []
    for vectors, weight, bias in zip((query, key, value), weights, biases, strict=True):
        made = _functional_linear(mode, vectors.transpose(0, 1), weight, bias)
        if made is NotImplemented:
            return NotImplemented
        heads.append(made.unflatten(-1, (num_heads, -1)).transpose(1, 2))
    queries, keys, values = heads
    scores = torch.matmul(queries, keys.transpose(-1, -2)) * queries.shape[-1] ** -0.5
    if attn_mask is not None and attn_mask.ndim == 3:
        attn_mask = attn_mask.view(-1, num_heads, *attn_mask.shape[1:])
    for mask in (attn_mask, None if key_padding_mask is None else key_padding_mask[:, None, None]):
        scores = _masked(scores, None if mask is None else ~mask if mask.dtype is torch.bool else mask)
    alpha = torch.softmax(scores, dim=-1)
    given = torch.matmul(alpha, values).transpose(1, 2).flatten(2)
    projection = mode.layers.get(_storage(out_proj_weight))
    output = functional.linear(given, out_proj_weight, out_proj_bias) if projection is None else projection(given)
    if not need_weights:
        return output.transpose(0, 1), None
    return output.transpose(0, 1), alpha.mean(dim=1) if average_attn_weights else alpha


_RULES: dict[Callable[..., Any], Callable[..., Any]] = {
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm), _matmul),
    Tensor.__rmatmul__: _reversed_matmul,
    functional.linear: _functional_linear,
    torch.addmm: _addmm,
    torch.einsum: _einsum,
    **dict.fromkeys((torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__), PlainOperations.add_apart),
    **dict.fromkeys((Tensor.add_, Tensor.__iadd__), PlainOperations.add),
    functional.layer_norm: _layer_norm,
    torch.layer_norm: lambda mode, *args, **_: _layer_norm(mode, *args[:5]),
    functional.rms_norm: _rms_norm,
    Tensor.__getitem__: _rows_of,
    **dict.fromkeys((torch.reshape, Tensor.reshape), _reshape),
    torch.zeros_like: _zeros_like,
    **dict.fromkeys((torch.isnan, Tensor.isnan), _isnan),
    torch.where: _where,
    functional.scaled_dot_product_attention: _scaled_dot_product_attention,
    functional.multi_head_attention_forward: _multi_head_attention,
}
