"""The graph of a recorded forward pass, in which linear layers and norms are single nodes."""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map_only

from normscope.models.infer.trace import Call, Operation, Trace, Value, changed_in_place

MOVEMENTS = frozenset(
    {
        *("view", "_unsafe_view", "reshape", "transpose", "permute", "t", "expand", "clone", "_to_copy", "unsqueeze"),
        *("squeeze", "slice", "select", "split", "split_with_sizes", "unbind", "chunk", "alias", "detach", "narrow"),
        *("contiguous", "repeat", "lift_fresh", "_reshape_alias", "as_strided", "unfold", "index", "index_select"),
    }
)
"""Operations that move elements and do not change them, except by rounding."""

COPIES = frozenset({"_to_copy", "clone", "contiguous", "alias", "detach", "lift_fresh", "expand"})
"""Movements that leave every element in its place."""

PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "dot", "mv", "convolution", "_grouped_mm"})
"""Operations that multiply matrices."""

_REDUCTIONS = frozenset(
    {
        *("native_layer_norm", "_fused_rms_norm", "rms_norm", "mean", "var", "std", "var_mean", "linalg_vector_norm"),
        *("norm", "native_group_norm"),
    }
)


_TURNS = frozenset({"transpose", "permute", "t"})


@dataclasses.dataclass(eq=False)
class Atom:
    """A module that is a single step of the computation."""

    call: Call
    reads: Value
    gives: Value

    @property
    def path(self) -> str:
        """The path of the module."""
        return self.call.path


class Projection(Atom):
    """x W + b, computed by a linear layer."""


class Norm(Atom):
    """A norm, computed by a module."""


Node = Operation | Atom
"""A step of the computation, which reads values and makes values."""


class Graph:
    """The recorded pass as a graph, with walks along it."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._atoms = _atoms(trace)
        self._by_output = {atom.gives: atom for atom in self._atoms}
        covered = {number for atom in self._atoms for number in range(atom.call.first, atom.call.end)}
        self._users: dict[Value, list[Node]] = defaultdict(list)
        self._ancestors: dict[Value, frozenset[Value]] = {}
        self._descends: dict[tuple[Value, frozenset[Value]], bool] = {}
        for operation in trace.operations:
            if operation.number not in covered and operation.outputs:
                for value in dict.fromkeys(operation.reads):
                    self._users[value].append(operation)
        for atom in self._atoms:
            self._users[atom.reads].append(atom)

    @property
    def norms(self) -> list[Norm]:
        """All norms of the pass."""
        return [atom for atom in self._atoms if isinstance(atom, Norm)]

    def maker(self, value: Value) -> Node | None:
        """The node that makes a value; None if the value existed before the pass."""
        return self._by_output.get(value) or value.source

    def users(self, value: Value) -> list[Node]:
        """The nodes that read a value."""
        return self._users[value]

    def operands(self, node: Node) -> tuple[Value, ...]:
        """The values that a node reads and that depend on the tokens."""
        read = (node.reads,) if isinstance(node, Atom) else node.reads
        return tuple(value for value in read if value.tokens)

    def results(self, node: Node) -> tuple[Value, ...]:
        """The values that a node makes."""
        return (node.gives,) if isinstance(node, Atom) else node.outputs

    def back(self, value: Value, until: Callable[[Node], bool]) -> tuple[list[Node], list[Node]]:
        """Walk back from a value along all values that depend on the tokens.

        Args:
            until: Whether a node ends the walk.

        Returns:
            The nodes at which the walk ended, and the nodes on the way, latest first.
        """
        ends, way, seen = [], [], {value}
        pending = [value]
        while pending:
            node = self.maker(pending.pop())
            if node is None:
                continue
            if until(node):
                if node not in ends:
                    ends.append(node)
                continue
            if node not in way:
                way.append(node)
            for operand in self.operands(node):
                if operand not in seen:
                    seen.add(operand)
                    pending.append(operand)
        return ends, way

    def chain(self, value: Value, through: Callable[[Node], bool]) -> tuple[Value, list[Node]]:
        """Walk back from a value as long as the node that makes it qualifies and has a single operand.

        Returns:
            The value at which the walk ended, and the nodes on the way, latest first.
        """
        way: list[Node] = []
        while (node := self.maker(value)) is not None and through(node):
            operands = self.operands(node)
            if len(operands) != 1:
                break
            way.append(node)
            (value,) = operands
        return value, way

    def same(self, value: Value) -> Value:
        """The original of a value: the value before any movements."""
        return self.chain(value, is_movement)[0]

    def equal(self, value: Value, other: Value) -> bool:
        """Whether two values hold the same vectors: movements of one value, or what one norm makes of it in two calls."""
        one, two = self.same(value), self.same(other)
        if one is two:
            return True
        first, second = self.maker(one), self.maker(two)
        return (
            isinstance(first, Norm)
            and isinstance(second, Norm)
            and first.call.module is second.call.module
            and self.same(first.reads) is self.same(second.reads)
        )

    def ancestors(self, value: Value) -> frozenset[Value]:
        """All values that depend on the tokens and from which a value is computed, including the value itself."""
        if value not in self._ancestors:
            self._ancestors[value] = self._walk_back(value)
        return self._ancestors[value]

    def _walk_back(self, value: Value) -> frozenset[Value]:
        found: set[Value] = set()
        pending = [value]
        while pending:
            current = pending.pop()
            if current in found:
                continue
            found.add(current)
            node = self.maker(current)
            if node is not None:
                pending.extend(self.operands(node))
        return frozenset(found)

    def is_used(self, value: Value) -> bool:
        """Whether a linear layer or a norm reads something that is computed from a value."""
        pending, seen = [value], set[Value]()
        while pending:
            current = pending.pop()
            for node in self.users(current):
                if isinstance(node, Atom):
                    return True
                pending.extend(each for each in node.outputs if each not in seen)
                seen.update(node.outputs)
        return False

    def comes_before(self, value: Value, other: Value) -> bool:
        """Whether another value is computed from this value, or is the same value."""
        return value in self.ancestors(other)

    def forward(self, value: Value, through: Callable[[Node], bool]) -> Iterator[tuple[Node, Value]]:
        """The nodes that read a value or a copy of it.

        Args:
            through: Whether a node counts as making a copy.

        Yields:
            A node that makes no copy, and the value that it reads.
        """
        for node in self.users(value):
            if through(node):
                for result in self.results(node):
                    yield from self.forward(result, through)
            else:
                yield node, value

    def moved(self, target: Value, start: Value, given: Tensor) -> Tensor:
        """What a value would be if its start held other data and only the movements between the two were applied.

        Args:
            given: The data to use for the start.
        """
        if target is start:
            return given
        node = self.maker(target)
        assert node is not None
        (read,) = self.operands(node)
        tensor = self.moved(read, start, given)
        if not isinstance(node, Operation) or node.name not in MOVEMENTS or node.name in COPIES:
            return tensor.expand(target.shape)
        if node.name in ("view", "_unsafe_view", "reshape", "_reshape_alias"):
            return tensor.reshape(target.shape)

        def numbers(value: Value) -> Tensor:
            known = tensor if value is read else constant(value)
            if known is None:
                raise NotInferredError(
                    "the order of elements depends on data known only when the model runs", value.source
                )
            return known

        moved: Tensor = _run(node, {value: numbers(value) for value in node.reads})[node.outputs.index(target)]
        return moved

    def replay(
        self,
        target: Value,
        given: Mapping[Value, Tensor],
        others: Callable[[Value], Tensor] = lambda value: value.tensor,
    ) -> Tensor:
        """What a value would be if some other values had been different.

        Args:
            target: The value to compute again.
            given: Tensors to use in place of values.
            others: What to use for values that do not depend on the given ones; by default, the recorded tensors.
        """
        known: dict[Value, Any] = dict(given)
        needed = [target]
        while needed:
            value = needed[-1]
            if value in known:
                needed.pop()
                continue
            if value.source is None or not self._made_from(value, frozenset(given)):
                known[value] = others(value)
                continue
            missing = [read for read in value.source.reads if read not in known]
            if missing:
                needed.extend(missing)
                continue
            for output, tensor in zip(value.source.outputs, _run(value.source, known), strict=True):
                known[output] = tensor
        return known[target]

    def _made_from(self, value: Value, given: frozenset[Value]) -> bool:
        key = (value, given)
        if key not in self._descends:
            self._descends[key] = _reaches(value, given)
        return self._descends[key]


def _reaches(value: Value, given: frozenset[Value]) -> bool:
    """Whether a value is computed from one of those given."""
    pending, seen = [value], set()
    first = min((each.source.number for each in given if each.source is not None), default=-1)
    while pending:
        current = pending.pop()
        if current in given:
            return True
        if current.source is not None and current not in seen and current.source.number >= first:
            seen.add(current)
            pending.extend(current.source.reads)
    return False


def _run(operation: Operation, known: Mapping[Value, Any]) -> tuple[Any, ...]:
    """Run an operation again. Data of another dtype than in the recorded pass keep their dtype."""
    args, kwargs = tree_map_only(Value, lambda value: known[value], (operation.args, dict(operation.kwargs)))
    if operation.name == "_to_copy":
        return (args[0],)
    if operation.function is changed_in_place:
        value, written = operation.reads
        return (_with_part(value, written, *args),)
    if operation.name.endswith("_"):
        args = (args[0].clone(), *args[1:])
    result = operation.function(*args, **kwargs)
    if operation.name.endswith("_"):
        result = args[0]
    results = result if isinstance(result, tuple | list) else (result,)
    return tuple(each for each in results if isinstance(each, Tensor))


def _with_part(value: Value, written: Value, tensor: Tensor, part: Tensor) -> Tensor:
    """A tensor after another view of the same memory has been written.

    Args:
        value: The tensor in the recorded pass.
        written: The view, likewise.
        tensor: The tensor before.
        part: What has been written.
    """
    memory = tensor.new_zeros(value.tensor.untyped_storage().nbytes() // value.tensor.element_size())
    places = [(each.shape, each.tensor.stride(), each.tensor.storage_offset()) for each in (value, written)]
    for place, data in zip(places, (tensor, part), strict=True):
        memory.as_strided(*place).copy_(data)
    return memory.as_strided(*places[0])


class NotInferredError(Exception):
    """The model does something that no rule covers.

    Args:
        reason: Why nothing could be inferred.
        node: The operation or module at which inference stopped.
    """

    def __init__(self, reason: str, node: Node | None = None) -> None:
        where = "" if node is None else f" ({_name(node)})"
        super().__init__(f"{reason}{where}")


def _name(node: Node) -> str:
    if isinstance(node, Operation):
        where = node.call.path if node.call is not None and node.call.path else "the model"
        return f"operation {node.name} in {where}"
    return f"module {node.path}"


def is_one_of(node: Node | None, *names: str) -> TypeGuard[Operation]:
    """Whether a node is one of these operations, in place or not."""
    return isinstance(node, Operation) and node.name.rstrip("_") in names


def is_sum(node: Node | None) -> TypeGuard[Operation]:
    """Whether a node adds two vectors that both depend on the tokens."""
    return is_one_of(node, "add") and sum(value.tokens for value in node.reads) == 2


def is_product(node: Node | None) -> TypeGuard[Operation]:
    """Whether a node multiplies matrices, batched or not."""
    return is_one_of(node, "bmm", "baddbmm", "mm")


def factor_of(node: Node) -> float | None:
    """The number by which a node multiplies or divides; None if it does something else."""
    if not is_one_of(node, "mul", "div") or sum(value.tokens for value in node.reads) != 1:
        return None
    for value in node.args if node.name.startswith("mul") else node.args[1:]:
        number = _number(value)
        if number is not None:
            return number if node.name.startswith("mul") else 1 / number
    return None


def _number(value: object) -> float | None:
    if isinstance(value, int | float):
        return float(value)
    if not isinstance(value, Value) or value.tokens or value.tensor.numel() != 1:
        return None
    tensor = constant(value)
    return None if tensor is None else float(tensor)


def constant(value: Value) -> Tensor | None:
    """The data of a value that does not depend on the tokens; None if they are known only when the model runs."""
    return value.tensor.constant if isinstance(value.tensor, FakeTensor) else value.tensor


def bias_of(node: Node) -> str | None:
    """The name of the parameter that a node adds, if the node does nothing else."""
    if not is_one_of(node, "add") or len(node.reads) != 2:
        return None
    constants = [value for value in node.reads if not value.tokens]
    if len(constants) != 1:
        return None
    return _parameter(constants[0])


def scale_of(node: Node) -> str | None:
    """The name of the parameter by which a node multiplies vectors: one number, or one for each dimension."""
    if not is_one_of(node, "mul") or len(node.reads) != 2 or sum(value.tokens for value in node.reads) != 1:
        return None
    (value,) = (value for value in node.reads if not value.tokens)
    last = node.outputs[0].shape[-1:]
    one_each = value.tensor.numel() == last[0] and value.shape[-1:] == last
    return _parameter(value) if one_each or value.tensor.numel() == 1 else None


def _parameter(value: Value) -> str | None:
    """The name of the parameter of which a value is a view."""
    while value.source is not None and value.source.name in MOVEMENTS and value.source.reads:
        value = value.source.reads[0]
    return value.name


def is_movement(node: Node) -> bool:
    """Whether a node only moves elements, to places that do not depend on the tokens, or changes nothing at all."""
    if not isinstance(node, Operation) or sum(value.tokens for value in node.reads) != 1:
        return False
    # Optional factors and terms that are not in use: x * 1.0, x + 0.0.
    if is_one_of(node, "mul", "div") and len(node.args) == 2 and node.args[1] in (1, 1.0):
        return True
    if is_one_of(node, "add", "sub") and len(node.args) == 2 and node.args[1] in (0, 0.0):
        return True
    # A cache that is still empty is put in front of keys and values.
    return node.name in MOVEMENTS or (
        node.name == "cat" and all(value.tokens or value.tensor.numel() == 0 for value in node.reads)
    )


def is_mask(node: Node) -> bool:
    """Whether a node multiplies each token's vector by a number, as a mask of padding does, or sets some vectors to zero."""
    if not isinstance(node, Operation) or sum(value.tokens for value in node.reads) != 1:
        return False
    others = [value for value in node.reads if not value.tokens]
    if len(others) != 1 or others[0].shape[-1:] != (1,):
        return False
    return is_one_of(node, "mul") or (is_one_of(node, "masked_fill") and node.args[-1] in (0, 0.0))


def is_projection(node: Node) -> bool:
    """Whether a node is a linear layer."""
    return isinstance(node, Projection)


def _atoms(trace: Trace) -> list[Atom]:
    atoms: list[Atom] = []
    end = -1
    for call in trace.calls:
        if call.first < end:  # inside an atom
            continue
        atom = _atom(call, trace)
        if atom is not None:
            atoms.append(atom)
            end = call.end
    return atoms


def _atom(call: Call, trace: Trace) -> Atom | None:
    reads = [value for value in call.inputs if value.tokens]
    if len(reads) != 1 or not call.outputs or call.end == call.first:
        return None
    (read,), given = reads, call.outputs[0]
    if not given.tokens or given is read or given.shape[:-1] != read.shape[:-1] or len(call.outputs) > 1:
        return None
    weight = getattr(call.module, "weight", None)
    if _is_leaf(call.module) and isinstance(weight, Tensor) and weight.ndim == 2 and hasattr(call.module, "bias"):
        return Projection(call, read, given)
    inside = trace.operations[call.first : call.end]
    if given.shape == read.shape and _only_vectors(call.module) and _is_norm(inside, call.module):
        return Norm(call, read, given)
    return None


def _is_norm(inside: Sequence[Operation], module: nn.Module) -> bool:
    """Whether a module of these operations is a norm, or stands for one, as γ ⊙ x + β does in MobileBERT."""
    names = {operation.name for operation in inside}
    if names & _REDUCTIONS:
        return not names & (PRODUCTS | _TURNS)  # what turns the axes is no norm of the last one
    return {"mul", "add"} <= names <= {"mul", "add"} | MOVEMENTS and len(list(module.parameters())) == 2


def _is_leaf(module: nn.Module) -> bool:
    return next(module.children(), None) is None


def _only_vectors(module: nn.Module) -> bool:
    return all(parameter.ndim <= 2 for parameter in module.parameters())
