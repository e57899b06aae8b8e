"""Every public function has an example in its docstring, which does what it shows."""

import doctest
import functools
import inspect
from types import FunctionType, MethodType

import pytest

import normscope
from tests.contract.test_saved_runs import RUN

FUNCTIONS = [
    name
    for name in dir(normscope)
    if not name.startswith("__") and isinstance(getattr(normscope, name), FunctionType | MethodType)
]


@pytest.fixture(scope="module")
def loaded():
    """`normscope.load`, which loads the default model once."""
    return functools.cache(normscope.load)


def test_the_functions_are_found():
    assert {"load", "wrap", "run", "read", "decompose", "attribute"} <= set(FUNCTIONS)


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_example_of_a_function_runs_as_it_stands(name, loaded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "first").symlink_to(RUN)
    text = inspect.getdoc(getattr(normscope, name))
    if name != "load":
        monkeypatch.setattr(normscope, "load", loaded)
    assert text.count("Examples:") == 1
    example = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    assert len(example.examples) >= 2
    assert any(one.want for one in example.examples), "it shows a result"
    assert example.examples[0].source.startswith("import normscope"), "it stands on its own"
    report: list[str] = []
    failed, _ = doctest.DocTestRunner(verbose=False).run(example, out=report.append)
    assert not failed, "".join(report)
