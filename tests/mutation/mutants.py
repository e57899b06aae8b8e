"""Small errors planted in source code, one at a time.

What no test should notice is left alone: docstrings, annotations, assertions, strings, the text of errors, `__all__`, numbers
from 100 on (sizes of buffers), and statements that say `pragma: no mutate`.
"""

import ast
import copy
import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.mutation.covering import PACKAGES, ROOT, SOURCE

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_PAIRS = (
    "min max|amin amax|minimum maximum|argmin argmax|any all|floor ceil|sum mean|zeros ones|idxmin idxmax|head tail"
)
_NAMES = {"sorted": "list", "reversed": "list"}
for _pair in _PAIRS.split("|"):
    _one, _other = _pair.split()
    _NAMES |= {_one: _other, _other: _one}

_SKIPPED_STATEMENTS = (ast.Assert, ast.Import, ast.ImportFrom, ast.Pass, ast.Global, ast.Nonlocal)
_SKIPPED_FIELDS = {
    (ast.AnnAssign, "annotation"),
    (ast.arg, "annotation"),
    (ast.FunctionDef, "returns"),
    (ast.FunctionDef, "decorator_list"),
    (ast.ClassDef, "decorator_list"),
    (ast.ClassDef, "bases"),
    (ast.FormattedValue, "format_spec"),
    (ast.Raise, "exc"),
    (ast.Raise, "cause"),
}
_SKIPPED_KEYWORDS = {"strict", "repr", "init", "maxsize", "device"}
_ORDERLESS = {
    "kernel_for",
    "isinstance",
    "getattr",
    "setattr",
    "transpose",
    "maximum",
    "minimum",
    "max",
    "min",
    "logical_and",
}
"""Functions that do not care which of their arguments comes first, or that fail at once if it does."""
_LARGE = 100


@dataclasses.dataclass(frozen=True, eq=False)
class Mutant:
    """One error in one file."""

    path: Path
    lines: range
    """Where the error is."""
    statement: range
    """The lines of the statement that it is in."""
    scope: str | None
    """Qualified name of the function that it is in; None for what runs when the module is imported."""
    before: str
    after: str
    _tree: ast.Module
    _holder: Any
    _key: Any
    _replacement: ast.AST

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """File, function, line and changed line, which stay the same when the error moves to another line."""
        return str(self.path), self.scope or "", self.before, self.after

    def plant(self) -> ast.Module:
        """The module's syntax tree with the error in it. The tree is shared: plant one error per process."""
        _put(self._holder, self._key, self._replacement)
        return ast.fix_missing_locations(self._tree)

    def __str__(self) -> str:
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(self.before, self.after, strict=False))
        start = max(0, len(list(same)) - 60)
        before, after = ("…" * (start > 0) + text[start : start + 120] for text in (self.before, self.after))
        return f"{self.path}:{self.lines.start}\n    - {before}\n    + {after}"


def all_mutants(packages: Iterable[str] = PACKAGES) -> Iterator[Mutant]:
    """Every error that can be planted in some packages."""
    for package in packages:
        for path in sorted((SOURCE / package).rglob("*.py")):
            yield from mutants_of(path.relative_to(ROOT), path.read_text())


def mutants_of(path: Path, source: str) -> Iterator[Mutant]:
    """Every error that can be planted in a file.

    Args:
        path: What the mutants call the file.
        source: Its text.
    """
    tree, text = ast.parse(source), source.splitlines()
    for holder, key, node, statement, scope in _places(tree, None, None, ""):
        lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
        if any("pragma: no mutate" in text[line - 1] for line in (lines.start, lines.stop - 1)):
            continue
        before = ast.unparse(statement).splitlines()
        for replacement in _alternatives(node, holder):
            ast.copy_location(replacement, node)
            _put(holder, key, replacement)
            # A statement that is dropped is itself what differs.
            after = ast.unparse(replacement if node is statement else statement).splitlines()
            _put(holder, key, node)
            differing = next((pair for pair in zip(before, after, strict=False) if pair[0] != pair[1]), None)
            if differing:
                placed = node if hasattr(node, "lineno") else node.target  # a comprehension itself has no lines
                own = range(placed.lineno, (placed.end_lineno or placed.lineno) + 1)
                yield Mutant(path, own, lines, scope, *map(str.strip, differing), tree, holder, key, replacement)


def _put(holder: Any, key: Any, node: ast.AST) -> None:
    if isinstance(holder, list):
        holder[key] = node
    else:
        setattr(holder, key, node)


def _places(
    node: ast.AST, statement: ast.stmt | None, scope: str | None, prefix: str
) -> Iterator[tuple[Any, Any, Any, ast.stmt, str | None]]:
    """Where something can be exchanged: what holds it, by which key, itself, its statement and its function."""
    for field, value in ast.iter_fields(node):
        if any(isinstance(node, kind) and field == name for kind, name in _SKIPPED_FIELDS):
            continue
        inner, within = scope, prefix
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and field == "body":
            within = f"{prefix}{node.name}."
            inner = f"{prefix}{node.name}" if scope is None and isinstance(node, ast.FunctionDef) else scope
        places = enumerate(value) if isinstance(value, list) else [(field, value)]
        for key, child in places:
            if not isinstance(child, ast.AST) or _is_skipped(child, inner):
                continue
            own = child if isinstance(child, ast.stmt) else statement
            if own is not None:
                yield value if isinstance(value, list) else node, key, child, own, inner
            if not (isinstance(child, ast.UnaryOp) and isinstance(child.operand, ast.Constant)):
                yield from _places(child, own, inner, within)


def _is_skipped(node: ast.AST, scope: str | None) -> bool:
    match node:
        case ast.Expr(value=ast.Constant()) | ast.JoinedStr():
            return True
        case ast.Assign(value=ast.Subscript() | ast.BinOp(op=ast.BitOr()) | ast.Call(func=ast.Name(id="TypeVar"))):
            return scope is None  # the name of a type
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
        case ast.keyword(arg=name):
            return name in _SKIPPED_KEYWORDS
    return isinstance(node, _SKIPPED_STATEMENTS)


def _alternatives(node: ast.AST, holder: Any) -> Iterator[ast.AST]:
    """What may stand wrongly in the place of a node."""
    yield from _other_numbers(node)
    yield from _other_operators(node)
    yield from _swapped(node, holder)
    match node:
        case ast.Call(func=ast.Attribute(attr=name)) if name in _NAMES and _NAMES[name] != "list":
            yield _with(node, func=_with(node.func, attr=_NAMES[name]))
        case ast.Call(func=ast.Name(id=name)) if name in _NAMES and _NAMES[name] != "mean":
            yield _with(node, func=_with(node.func, id=_NAMES[name]))
        case ast.keyword(arg="min" | "max" as name):
            yield _with(node, arg=_NAMES[name])
        case ast.Slice(lower=lower, upper=upper):
            yield from (_with(node, lower=None) for _ in [lower] if lower)
            yield from (_with(node, upper=None) for _ in [upper] if upper)
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) if not isinstance(test, ast.Compare):
            yield _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.comprehension(ifs=[_, *rest]):
            yield _with(node, ifs=rest)
        case ast.Return(value=ast.AST()):
            yield _with(node, value=ast.Constant(None))
        case ast.Raise() | ast.Continue() | ast.Break() | ast.AugAssign() | ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.Return(value=None):
            yield ast.Pass()


def _other_numbers(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)) if value < _LARGE:
            yield ast.Constant(value + 1)
            yield from (ast.Constant(value - 1) for _ in range(value > 0))
        case ast.Constant(value=float(value)) if value:
            yield ast.Constant(2 * value)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            yield ast.UnaryOp(ast.USub(), ast.Constant(value + 1))
            yield ast.Constant(value) if value > 1 else ast.Constant(0)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield operand


def _other_operators(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=[operator, *rest]):
            yield from (_with(node, ops=[other(), *rest]) for other in _COMPARISONS[type(operator)])
        case ast.BoolOp(op=operator):
            yield _with(node, op=ast.Or() if isinstance(operator, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not() | ast.Invert(), operand=operand):
            yield operand
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator) if type(operator) in _OPERATORS:
            yield _with(node, op=_OPERATORS[type(operator)]())


def _swapped(node: ast.AST, holder: Any) -> Iterator[ast.AST]:
    """The first two arguments of a call, entries of a tuple or a list, or values of a dict the other way round."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _ORDERLESS:
            return
        case ast.Call(args=[one, other, *rest]):
            yield _with(node, args=[other, one, *rest])
        case ast.Dict(values=[one, other, *rest]) if not isinstance(one, ast.Constant):
            yield _with(node, values=[other, one, *rest])
        case ast.Tuple(elts=[one, other, *rest], ctx=ast.Load()) | ast.List(elts=[one, other, *rest], ctx=ast.Load()):
            # The order of what is only searched or gone through does not matter.
            if not (
                isinstance(holder, ast.For | ast.comprehension | list) or getattr(holder, "arg", "") in ("dim", "axis")
            ):
                yield _with(node, elts=[other, one, *rest])


def _with(node: Any, **fields: Any) -> Any:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed
