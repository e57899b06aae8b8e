"""What a run prints: progress and notes on stderr, tables and the folder of the results on stdout."""

import json
import re
import subprocess
import sys

import pytest

from normscope.reporting import terminal
from normscope.rounding import percentage
from tests.end_to_end.shell import run_here


@pytest.fixture(autouse=True)
def loud(monkeypatch):
    monkeypatch.setattr(terminal, "_quiet", False)


@pytest.mark.slow
def test_a_quiet_run_prints_its_folder_alone(capsys, monkeypatch, tmp_path, saved_model):
    arguments = [f"model.name={saved_model}", "dataset.limit=2", "tracking=disabled", f"output_dir={tmp_path / 'run'}"]
    outcome = run_here(capsys, monkeypatch, "--quiet", *arguments)
    assert (outcome.status, outcome.out, outcome.err) == (0, f"{tmp_path / 'run'}\n", "")


def test_a_quiet_run_still_says_what_is_wrong(capsys, monkeypatch, saved_model):
    outcome = run_here(capsys, monkeypatch, "--quiet", f"model.name={saved_model}", "layers=[9]", "tracking=disabled")
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err == "normscope: layers=[9]: expected all or numbers from 1 to 3 (this model's layers), got 9\n"


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.slow
def test_a_job_of_a_sweep_is_one_line(capsys, monkeypatch, tmp_path, saved_model, quiet):
    arguments = ["-m", f"model.name={saved_model}", "layers=[1],[2]", "dataset.limit=2", "tracking=disabled"]
    folder = tmp_path / "sweep"
    outcome = run_here(capsys, monkeypatch, *arguments, f"output_dir={folder}", *(["--quiet"] if quiet else []))
    assert outcome.status == 0, outcome.err
    lines = outcome.out.splitlines()
    if quiet:
        assert lines == [str(folder / "0"), str(folder / "1"), str(folder)]
        assert outcome.err == ""
        return
    for number, text in enumerate(lines[:2]):
        ratio = json.loads((folder / str(number) / "results.json").read_text())["metrics"]["mixing/attnresln_n/mean"]
        start = f"job {number}: layers=[{number + 1}]: mixing ratio (attention block)"
        assert text == f"{start} {percentage(ratio)}"
    assert lines[-1] == str(folder)
    end = "\n".join(lines[2:])
    assert re.match(
        r"\n2 choices of layers of tiny-bert on the sample corpus: .*\.\n\nMeasures that differ most\. Signed shares",
        end,
        re.S,
    )
    assert not re.search("results in|sequences,|matches the", outcome.err), "details of single runs"


def test_type_checkers_find_the_package():
    """They read paths and cannot run the hook by which setuptools would make several folders importable."""
    code = "from importlib.machinery import PathFinder; print(PathFinder.find_spec('normscope').origin)"
    found = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip().endswith("normscope/__init__.py")
