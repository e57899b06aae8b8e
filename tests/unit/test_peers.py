"""The benchmark of other tools: their tasks on two inputs, failures by name, and the rows that parts replace."""

import importlib.util

import numpy as np
import pytest

from benchmarks import peer_tasks, peers
from benchmarks.peer_tasks import CAUSAL, ENCODER, TASKS, Task, Tool
from docs.hooks.markdown import ROOT

TOLERANCES = {
    # Weights from the fused kernel's log-normaliser instead of a softmax, in float32.
    "attention weights": 1e-4,
    # inseq sets scores below 1e-5 to zero before it normalises.
    "value zeroing": 2e-4,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    (folder / ENCODER).symlink_to(peers.default_model())
    peer_tasks.save_causal(folder / CAUSAL)
    return folder


def installed(tool: Tool) -> bool:
    return importlib.util.find_spec(tool.package.replace("-", "_")) is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_tools_find_the_same_numbers(name, models, monkeypatch):
    monkeypatch.setattr(peer_tasks, "STEPS", 2)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    task = TASKS[name]
    inputs = task.inputs()[:2]
    numbers = {tool.name: tool.prepare(models)(inputs) for tool in task.tools if installed(tool)}
    assert any(tool.package == "normscope" and tool.name in numbers for tool in task.tools)
    for tool in task.tools:
        found = peers.compared(tool, task, numbers)
        if found:
            limit = max(TOLERANCES.get(each, 1e-5) for each in found["numbers"].split(" and "))
            assert found["difference"] < limit, found


def task_of(*names: str) -> Task:
    return Task("adding", lambda: [1, 2], tuple(Tool(name, lambda _folder: lambda _inputs: {}) for name in names))


def test_numbers_are_compared_with_ours_or_else_with_the_first():
    task = task_of("a", "b", "normscope, one", "normscope, two")
    numbers = {
        "a": {"x": np.array([1.0, 2.0]), "y": np.array([5.0])},
        "b": {"y": np.array([4.5])},
        "normscope, one": {"x": np.array([1.0, 2.5])},
        "normscope, two": {"x": np.array([1.0])},
    }
    a, b, one, two = (peers.compared(tool, task, numbers) for tool in task.tools)
    assert (a["numbers"], a["beside"], a["difference"], a["largest"]) == ("x", "normscope, one", 0.5, 2.0)
    assert (b["numbers"], b["beside"], b["difference"]) == ("y", "a", 0.5)
    assert one == {}
    assert two["beside"] == "normscope, one"
    assert np.isnan(two["difference"])  # another number of numbers


def test_a_tool_that_cannot_be_imported_or_fails_is_named(monkeypatch, tmp_path):
    def missing(_folder):
        import a_package_that_is_not_installed  # noqa: F401

    def failing(_folder):
        def work(_inputs):
            raise TypeError("expected a tuple\nor so")

        return work

    task = Task("adding", lambda: [1, 2, 3], (Tool("a", missing), Tool("b", failing), Tool("c", lambda _: total)))
    monkeypatch.setitem(TASKS, "adding", task)
    assert peers.work("adding", 0, tmp_path, 0.0) == {
        "failed": "cannot be imported: No module named 'a_package_that_is_not_installed'"
    }
    assert peers.work("adding", 1, tmp_path, 0.0) == {"failed": "fails: TypeError: expected a tuple"}
    worked = peers.work("adding", 2, tmp_path, 0.0)
    assert worked["seconds"] >= 0
    assert worked["bytes"] > 2**20
    assert np.load(tmp_path / "adding-2.npz")["total"] == 6


def total(inputs):
    return {"total": np.array([sum(inputs)])}


def test_peers_are_pinned_and_their_environment_is_made_from_the_file():
    required = [line for line in (ROOT / "benchmarks/peers.txt").read_text().splitlines() if not line.startswith("#")]
    pinned = dict(line.split("==") for line in required)
    known = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert {name: version for name, version in pinned.items() if known.get(name, version) != version} == {}
    packages = {tool.package for task in TASKS.values() for tool in task.tools} - {"normscope", "transformers"}
    assert packages <= {*pinned, "sentence-transformers"}  # which the default model's package requires
    assert "benchmarks/peers.txt" in (ROOT / "Makefile").read_text()
