"""Bounds on the numbers of a run, for continuous integration of models: `assert=["mixing/attnresln_n/mean<0.3"]`."""

import dataclasses
import difflib
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from normscope.analyses.registry import analyses
from normscope.errors import InputError, printable
from normscope.results.declare import declared

_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_PARTS = re.compile(rf"\s*([^<>=!]+?)\s*({'|'.join(_OPERATORS)})\s*([^<>=!\s]+)\s*")


@dataclasses.dataclass(frozen=True)
class Assertion:
    """A bound on one metric."""

    text: str
    """As the user wrote it."""
    metric: str
    operator: str
    bound: float

    @classmethod
    def parsed(cls, text: str) -> "Assertion":
        """An assertion from its text.

        Raises:
            InputError: If it is not a metric, an operator and a finite number.
        """
        parts = _PARTS.fullmatch(text)
        bound = _number(parts[3]) if parts else math.nan
        if parts is None or not math.isfinite(bound):
            raise InputError(
                f"assert={text}: expected a metric, one of {' '.join(_OPERATORS)}, and a number, as in "
                "mixing/attnresln_n/mean<0.3"
            )
        return cls(text.strip(), parts[1], parts[2], bound)

    def holds(self, value: float) -> bool:
        """Whether a value is within the bound."""
        return _OPERATORS[self.operator](value, self.bound)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def check_assertions(texts: Iterable[str], enabled: Sequence[str]) -> None:
    """Check that every text is an assertion on a metric that the enabled analyses declare.

    A declared name such as `<method>/mean` stands for several; which of them a run has is known at its end.

    Raises:
        InputError: If one is not.
    """
    known = analyses()
    for assertion in map(Assertion.parsed, texts):
        analysis, _, name = assertion.metric.partition("/")
        if analysis not in known:
            raise InputError(
                f"assert={assertion.text}: expected a metric of {', '.join(enabled)}, got {assertion.metric}"
            )
        if analysis not in enabled:
            raise InputError(f"assert={assertion.text}: analysis={analysis} does not run; enable it, or leave this out")
        metrics = known[analysis].published.metrics
        if metrics and declared(metrics, name) is None:
            names = [f"{analysis}/{metric.name}" for metric in metrics]
            raise InputError(
                f"assert={assertion.text}: analysis={analysis} has no metric {assertion.metric}; "
                f"expected one such as {', '.join(_close(assertion.metric, names))}"
            )


def violations(texts: Iterable[str], metrics: Mapping[str, float]) -> list[str]:
    """A line for each assertion that does not hold, or whose metric the run does not have."""
    lines = []
    for assertion in map(Assertion.parsed, texts):
        value = metrics.get(assertion.metric)
        if value is None:
            close = ", ".join(_close(assertion.metric, list(metrics)))
            lines.append(f"assert={assertion.text}: the run has no such metric; the closest are {close}")
        elif not assertion.holds(value):
            lines.append(f"assert={assertion.text}: got {value!r}")
    return [printable(line, 1000) for line in lines]


def _close(metric: str, names: Sequence[str]) -> list[str]:
    return difflib.get_close_matches(metric, names, n=3, cutoff=0) or list(names[:3])
