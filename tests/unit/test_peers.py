"""The benchmark of other tools: their tasks on two inputs, failures by name, and the rows that parts replace."""

import importlib.util
import json
import types

import numpy as np
import pytest

from benchmarks import peer_tasks, peers
from benchmarks.peer_tasks import CAUSAL, ENCODER, TASKS, Task, Tool
from docs.hooks import measurements
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


def test_lines_are_the_texts_of_the_sample():
    rows = [json.loads(line) for line in (ROOT / "src/normscope/data/sample.jsonl").read_text().splitlines()]
    assert len(peer_tasks.lines()) == len(rows) + sum("text_pair" in row for row in rows)
    assert all(len(prompt.split()) == 32 for prompt, _ in TASKS["word"].inputs())


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


def test_runs_are_summed_up_by_medians_and_what_failed_is_not_tried_again(monkeypatch, tmp_path):
    runs = iter(range(100))
    tried = []

    def process(_task: str, tool: int, _models) -> dict[str, object]:
        tried.append(tool)
        number = next(runs)
        return {"failed": "fails: no"} if tool else {"startup": 1.0, "seconds": float(number), "bytes": number * 2**20}

    monkeypatch.setitem(TASKS, "adding", task_of("normscope", "b"))
    monkeypatch.setattr(peers, "_in_its_own_process", process)
    ours, other = peers._measured("adding", tmp_path, 3)
    assert tried == [0, 1, 0, 0]
    assert (ours["inputs"], ours["seconds"], ours["mebibytes"], ours["note"]) == (2, 2.0, 3, "")
    assert (other["version"], other["note"]) == ("", "fails: no")
    assert "seconds" not in other


def test_a_process_that_is_killed_is_a_failure(monkeypatch, tmp_path):
    ended = types.SimpleNamespace(returncode=-9, stdout="", stderr="some\nlast words\n")
    monkeypatch.setattr(peers.subprocess, "run", lambda *_args, **_kwargs: ended)
    assert peers._in_its_own_process("word", 0, tmp_path) == {"failed": "ended with status -9: last words"}


def test_the_table_of_a_page_names_versions_agreement_and_reasons(monkeypatch):
    tools = TASKS["zeroing"].tools
    rows = [
        {
            "task": "zeroing",
            "tool": tools[0].name,
            "version": "1.2",
            "inputs": 5,
            "startup": 1.25,
            "seconds": 61.0,
            "mebibytes": 1234,
            "numbers": "value zeroing",
            "beside": tools[1].name,
            "difference": 7.6e-05,
            "note": "",
        },
        {"task": "zeroing", "tool": tools[1].name, "version": "0.2.0", "inputs": 5, "note": "fails: TypeError: no"},
    ]
    monkeypatch.setattr(measurements, "_rows", lambda _suite: rows)
    _, _, first, second = measurements.TABLES["peers"]().splitlines()
    assert first == (
        "| value zeroing (5) | inseq 1.2, value_zeroing | 1.2 | 61.0 | 1,234 | value zeroing: within 8e-05 of normscope's |"
    )
    assert second == "|  | normscope, attribution_maps | fails: TypeError: no |  |  |  |"


def test_peers_are_pinned_and_their_environment_is_made_from_the_file():
    required = [line for line in (ROOT / "benchmarks/peers.txt").read_text().splitlines() if not line.startswith("#")]
    pinned = dict(line.split("==") for line in required)
    known = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert {name: version for name, version in pinned.items() if known.get(name, version) != version} == {}
    packages = {tool.package for task in TASKS.values() for tool in task.tools} - {"normscope", "transformers"}
    assert packages <= {*pinned, "sentence-transformers"}  # which the default model's package requires
    assert "benchmarks/peers.txt" in (ROOT / "Makefile").read_text()
