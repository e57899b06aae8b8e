"""`make mutants` plants errors that matter, each at the place it reports, and changes nothing else."""

import ast
from pathlib import Path

import pytest

from tests.mutation.covering import ROOT
from tests.mutation.equivalents import equivalents
from tests.mutation.mutants import mutants_of
from tests.mutation.trials import Trial, _exchange

FILE = Path("src/normscope/maths/some.py")


def changed(source: str) -> set[str]:
    """The lines that mutants put in the place of others."""
    return {mutant.after for mutant in mutants_of(FILE, source)}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("y = a + b", {"y = a - b"}),
        ("y = a < b", {"y = a <= b", "y = a >= b"}),
        ("y = a and b", {"y = a or b"}),
        ("y = not a", {"y = a"}),
        ("y = -a", {"y = a"}),
        ("y = a[1:]", {"y = a[2:]", "y = a[0:]", "y = a[:]"}),
        ("y = a.sum(dim=-1)", {"y = a.mean(dim=-1)", "y = a.sum(dim=-2)", "y = a.sum(dim=0)"}),
        ("y = a.clamp(min=0.5)", {"y = a.clamp(max=0.5)", "y = a.clamp(min=1.0)"}),
        ("y = f(a, b)", {"y = f(b, a)"}),
        ("y = {'one': a, 'two': b}", {"y = {'one': b, 'two': a}"}),
        ("y = [a for a in b if c]", {"y = [a for a in b]"}),
        ("y[a] = b", {"pass"}),
        ("y += b", {"y -= b", "pass"}),
        ("keep = True", {"keep = False"}),
        ("if a: b = c", {"if not a:"}),
        ("return a", {"return None"}),
        ("raise ValueError(a + b)", {"pass"}),
    ],
)
def test_errors_that_are_planted(line, expected):
    assert changed(f"def f(a, b, c):\n    {line}") == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""One + two."""',
        "def f(a: tuple[int, int] = None) -> dict[int, int]: pass",
        "__all__ = ['one', 'two']",
        "Link = tuple[int, int]",
        "SIZE = 256",
        "SIZE = 2**19  # pragma: no mutate",
        "def f(a): assert a > 0, 1 + 1",
        "def f(a): y = f'{a}: one + two'",
        "import a, b",
        "y = a.transpose(b, c)",
        "for a in (b, c): pass",
    ],
)
def test_what_no_test_should_notice_is_left_alone(source):
    assert changed(source) == set()


def test_a_mutant_knows_its_place_and_plants_its_error_alone():
    source = """ONE = a + b
class C:
    def f(self):
        def g():
            return (
                a
                - b
            )
"""
    at_import, *_ = mutants_of(FILE, source)
    assert (at_import.scope, at_import.lines) == (None, range(1, 2))
    inside = next(mutant for mutant in mutants_of(FILE, source) if "a + b" in mutant.after)
    assert (inside.scope, inside.lines) == ("C.f", range(6, 8))
    assert ast.unparse(inside.plant()) == ast.unparse(ast.parse(source.replace("- b", "+ b")))


def test_a_mutant_meets_the_tests_that_run_its_line_the_quickest_first():
    source = "ONE = a + b\ndef f():\n    return a * b\ndef g():\n    return a / b"
    covering = {
        "slow": {"duration": 2.0, "lines": {str(FILE): [3]}},
        "quick": {"duration": 0.5, "lines": {str(FILE): [3, 5]}},
        "other": {"duration": 0.1, "lines": {str(FILE): [5]}},
        "elsewhere": {"duration": 0.1, "lines": {"src/normscope/maths/other.py": [1, 3]}},
    }
    tests = {mutant.after: Trial.of(mutant, covering).tests for mutant in mutants_of(FILE, source)}
    assert tests["return a / b"] == ("quick", "slow")
    assert tests["return a * b"] == ("other", "quick")
    assert tests["ONE = a - b"] == ("other", "quick", "slow"), "what runs at import concerns whoever runs the file"


@pytest.mark.slow
def test_every_error_that_is_said_to_change_nothing_can_be_planted():
    files = {Path(file) for file, *_ in equivalents()}
    planted = {mutant.identity for file in files for mutant in mutants_of(file, (ROOT / file).read_text())}
    assert not equivalents().keys() - planted, "remove what the source no longer has"
    assert all(equivalents().values()), "each needs a reason"


def test_a_method_without_its_call_of_super_can_be_exchanged():
    source = "class A(dict):\n    def __init__(self):\n        super().__init__(a=1)\n        self.b = 2"
    path = str(ROOT / FILE)
    exec(compile(source, path, "exec"), names := {})
    kept = names["A"]
    [mutant] = [
        each for each in mutants_of(FILE, source) if (each.before, each.after) == ("super().__init__(a=1)", "pass")
    ]
    _exchange(mutant, {(path, "A.__init__"): [kept.__init__]})
    assert kept() == {}
    assert kept().b == 2
