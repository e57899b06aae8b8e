"""Array shapes in signatures are checked while the tests run."""

import functools
from collections.abc import Callable
from typing import Any

import jaxtyping

_tests = 0
"""Number of tests that have begun in this process."""


def begin_test() -> None:
    """Check the next calls again, whatever earlier tests of the process have called."""
    global _tests
    _tests += 1


def check_shapes(package: str) -> None:
    """Check the shapes in the signatures of a package's functions and dataclasses; other types are mypy's."""
    jaxtyping.jaxtyped = _for_arrays(jaxtyping.jaxtyped)
    jaxtyping.install_import_hook(package, "beartype.beartype")


def _for_arrays(jaxtyped: Callable[..., Any]) -> Callable[..., Any]:
    def decorator(*, typechecker: Any) -> Callable[[Any], Any]:
        return functools.partial(_checked, jaxtyped(typechecker=typechecker))

    return decorator


def _checked(check: Callable[[Any], Any], member: Any) -> Any:
    if "jaxtyping." not in str(getattr(member, "__annotations__", "")):
        return member
    if not isinstance(member, type):
        return _at_first(check, member)
    unchecked = member.__init__
    member = check(member)
    if member.__init__ is not unchecked:
        checked = member.__init__
        member.__init__ = _at_first(lambda _: checked, unchecked)
    return member


def _at_first(check: Callable[[Any], Any], unchecked: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose first call in each test is checked: tests call some functions a hundred thousand times.

    The check is made when it is needed, which takes a millisecond: many functions are never called.
    """
    last = -1
    checked = None

    @functools.wraps(unchecked)
    def function(*arguments: Any, **named: Any) -> Any:
        nonlocal last, checked
        if last == _tests:
            return unchecked(*arguments, **named)
        last = _tests
        checked = checked or check(unchecked)
        return checked(*arguments, **named)

    return function
