"""What scripts and continuous integration read: one line of JSON, bounds on metrics, and commands that run again."""

import json
import operator
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import normscope
from normscope.errors import InputError
from normscope.running import assertions
from normscope.running.assertions import Assertion, check_assertions, violations
from tests.end_to_end import forks
from tests.end_to_end.shell import ROOT, Outcome, run_here

MEAN = "mixing/attnresln_n/mean"


@pytest.fixture
def small(saved_model):
    """A run that takes a second."""
    return [f"model.name={saved_model}", "dataset.limit=2", "device=cpu", "tracking=disabled", "report.enabled=false"]


@pytest.fixture
def command(capsys, monkeypatch, tmp_path, small):
    """Runs a command on a small model, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Outcome:
        return run_here(capsys, monkeypatch, *arguments, *small)

    return run


def ending(outcome: Outcome) -> dict[str, object]:
    """The only thing on stdout."""
    (line,) = outcome.out.splitlines()
    return json.loads(line)


def stored(folder: Path) -> dict[str, float]:
    return json.loads((folder / "results.json").read_text())["metrics"]


def test_json_is_all_that_a_run_prints_to_stdout(command, tmp_path):
    outcome = command("--json", f"output_dir={tmp_path / 'run'}")
    assert outcome.status == 0, outcome.err
    assert ending(outcome) == {
        "schema": 1,
        "status": "completed",
        "exit": 0,
        "folder": str(tmp_path / "run"),
        "metrics": stored(tmp_path / "run"),
    }
    assert "mixing:" in outcome.err, "people still read the tables"


def test_json_of_bad_input(command, tmp_path):
    outcome = command("--json", "layers=[9]", f"output_dir={tmp_path / 'run'}")
    reason = "layers=[9]: expected all or numbers from 1 to 3 (this model's layers), got 9"
    assert outcome.status == 2
    assert outcome.err == f"normscope: {reason}\n"
    assert ending(outcome) == {
        "schema": 1,
        "status": "failed",
        "exit": 2,
        "folder": None,
        "metrics": {},
        "errors": [reason],
    }


@pytest.mark.parametrize("first", ["explain", "serve"])
def test_json_is_of_runs(command, first):
    outcome = command(first, "A text.", "--json")
    assert outcome.status == 2
    assert ending(outcome)["errors"] == [
        f"--json: expected a run or a sweep, got {first}, which has no metrics; leave out --json"
    ]


def test_help_is_no_json(command):
    outcome = command("--help", "--json")
    assert (outcome.status, outcome.err) == (0, "")
    assert "--json" in outcome.out


def test_json_of_a_bug(command, monkeypatch, tmp_path, capsys):
    """The traceback stays, and its last line is in the JSON."""

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("normscope.running.pipeline.accumulate", broken)
    with pytest.raises(ZeroDivisionError):
        command("--json", f"output_dir={tmp_path / 'run'}")
    line = json.loads(capsys.readouterr().out)
    assert (line["status"], line["exit"], line["folder"]) == ("failed", 1, str(tmp_path / "run"))
    assert line["errors"] == ["ZeroDivisionError: division by zero"]


def test_json_of_a_sweep_with_a_failed_job(command, tmp_path):
    folder = tmp_path / "sweep"
    outcome = command("-m", "layers=[1],[9],[2]", "--json", f"output_dir={folder}")
    line = ending(outcome)
    assert outcome.status == line["exit"] == 1
    assert (line["status"], line["folder"], line["metrics"]) == ("failed", str(folder), {})
    expected = [
        {"status": "completed", "folder": str(folder / job), "metrics": stored(folder / job)} for job in ("0", "2")
    ]
    assert line["runs"] == expected
    (error,) = line["errors"]
    assert "layers=[9]" in error


def test_an_assertion_that_holds_changes_nothing(command, tmp_path):
    outcome = command(f'assert=["{MEAN}<1","{MEAN}>=0"]', f"output_dir={tmp_path / 'run'}")
    assert outcome.status == 0, outcome.err
    assert outcome.out.splitlines()[-1] == str(tmp_path / "run")
    assert yaml.safe_load((tmp_path / "run/config.yaml").read_text())["assertions"] == [f"{MEAN}<1", f"{MEAN}>=0"]


@pytest.mark.parametrize("quoted", [f"[{MEAN}<0.001, {MEAN}>0.5,{MEAN}!=2]", f'["{MEAN}<0.001","{MEAN}>0.5"]'])
def test_every_violated_assertion_has_its_line(command, tmp_path, quoted):
    """With and without the quotes that a shell removes."""
    outcome = command("--json", f"assert={quoted}", f"output_dir={tmp_path / 'run'}")
    line, value = ending(outcome), stored(tmp_path / "run")[MEAN]
    assert outcome.status == line["exit"] == 4
    lines = [f"assert={MEAN}<0.001: got {value!r}", f"assert={MEAN}>0.5: got {value!r}"]
    wrong = lines if value <= 0.5 else lines[:1]
    assert line["violations"] == wrong
    assert outcome.err.splitlines()[-len(wrong) :] == [f"normscope: {text}" for text in wrong]
    assert line["status"] == "completed"
    assert line["metrics"] == stored(tmp_path / "run")
    assert normscope.read(tmp_path / "run").status == "completed", "the numbers are whole"


def test_a_sweep_fails_if_an_assertion_of_a_job_does(command, tmp_path):
    folder = tmp_path / "sweep"
    outcome = command("-m", "layers=[1],[2]", f"assert={MEAN}<0", "--json", f"output_dir={folder}")
    assert outcome.status == 4
    wrong = [f"{folder / job}: assert={MEAN}<0: got {stored(folder / job)[MEAN]!r}" for job in ("0", "1")]
    assert ending(outcome)["violations"] == wrong


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("mixing/attnresln_n/mean", "expected a metric, one of <= >= == != < >, and a number, as in"),
        ("mixing/attnresln_n/mean<", "expected a metric, one of"),
        ("<0.3", "expected a metric, one of"),
        ("mixing/attnresln_n/mean<a", "expected a metric, one of"),
        ("mixing/attnresln_n/mean<nan", "expected a metric, one of"),
        ("mixing/attnresln_n/mean=0.3", "expected a metric, one of"),
        ("mixing/attnresln_n/mean<0.3<1", "expected a metric, one of"),
        ("mean<0.3", "expected a metric of mixing, got mean"),
        ("mixings/attnresln_n/mean<0.3", "expected a metric of mixing, got mixings/attnresln_n/mean"),
        ("norms/f/cls<0.3", "analysis=norms does not run; enable it, or leave this out"),
        (
            "mixing/attnresln_n/men<0.3",
            "analysis=mixing has no metric mixing/attnresln_n/men; expected one such as mixing/",
        ),
    ],
)
def test_wrong_assertions_are_refused_before_a_model_is_loaded(command, text, reason, tmp_path):
    outcome = command(f'assert=["{text}"]', "model.name=no/such-model", f"output_dir={tmp_path / 'run'}")
    assert outcome.status == 2
    (line,) = outcome.err.splitlines()
    assert line.startswith(f"normscope: assert={text}: {reason}")
    assert not (tmp_path / "run").exists()


def test_a_metric_that_only_the_run_lacks_is_a_violation(command, tmp_path):
    """The declaration `<method>/mean` cannot tell it from one that the run has."""
    outcome = command("assert=mixing/attnresln/mean<0.3", f"output_dir={tmp_path / 'run'}")
    assert outcome.status == 4
    assert outcome.err.splitlines()[-1] == (
        "normscope: assert=mixing/attnresln/mean<0.3: the run has no such metric; the closest are mixing/attnresln_n/mean, "
        "mixing/attnres_n/mean, mixing/attnres_w/mean"
    )


def test_operators_are_those_of_python():
    values = [-1.0, 0.3, 0.30000000000000004, 2.0]
    for sign, function in assertions._OPERATORS.items():
        assertion = Assertion.parsed(f" a/b {sign} 0.3 ")
        assert (assertion.metric, assertion.operator, assertion.bound) == ("a/b", sign, 0.3)
        assert [assertion.holds(value) for value in values] == [function(value, 0.3) for value in values]
        assert violations([f"a/b{sign}0.3"], {"a/b": 0.3}) == (
            [] if function(0.3, 0.3) else [f"assert=a/b{sign}0.3: got 0.3"]
        )
    assert assertions._OPERATORS["<="] is operator.le
    assert Assertion.parsed("norms/f/cls>=-1e-3").bound == -0.001


def test_metrics_of_a_plug_in_without_declarations_are_left_to_the_run(monkeypatch):
    class Undeclared:
        published = normscope_published()

    monkeypatch.setattr(assertions, "analyses", lambda: {"own": Undeclared})
    check_assertions(["own/anything<1"], ["own"])
    with pytest.raises(InputError, match="does not run"):
        check_assertions(["own/anything<1"], [])


def normscope_published() -> object:
    from normscope.results.declare import Published

    return Published()


def test_assertions_of_a_run_may_change_when_it_is_repeated(command, tmp_path):
    assert command(f"assert={MEAN}<0", f"output_dir={tmp_path / 'run'}").status == 4
    outcome = command(f"reproduce={tmp_path / 'run'}", f"assert={MEAN}>0", f"output_dir={tmp_path / 'again'}")
    assert outcome.status == 0, outcome.err
    assert "numbers are the same" in outcome.out


def test_the_command_of_a_job_runs_this_job_alone(command, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "sweep"
    assert command("-m", "layers=[1],[2]", "seed=3", f"output_dir={folder}").status == 0
    job = normscope.read(folder / "1")
    program, *arguments = shlex.split(job.provenance["command"].removeprefix("python "))
    assert program == "run.py"
    before = sorted(path.name for path in folder.iterdir())
    outcome = run_here(capsys, monkeypatch, *arguments)
    assert outcome.status == 0, outcome.err
    alone = Path(outcome.out.splitlines()[-1])
    assert alone.parent == tmp_path / "outputs"
    assert sorted(path.name for path in folder.iterdir()) == before
    again = normscope.read(alone)
    assert again.metrics == job.metrics
    others = {key: value for key, value in again.config.items() if key not in ("output_dir", "tracking")}
    assert others == {key: value for key, value in job.config.items() if key not in ("output_dir", "tracking")}
    for name, table in job.tables.items():
        assert table.equals(again.tables[name]), name


@pytest.mark.slow
def test_a_pipe_gets_json_alone(small, tmp_path):
    """In a process of its own, whose standard output is a file of the operating system."""
    words = [sys.executable, str(ROOT / "run.py"), "--json", *small, f"output_dir={tmp_path / 'run'}"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    finished = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    assert json.loads(finished.stdout)["metrics"] == stored(tmp_path / "run")
    assert "mixing:" in finished.stderr


@pytest.mark.slow
def test_only_the_first_of_several_processes_prints_json(small, tmp_path):
    outcomes = forks.run_several(2, "--json", *small, f"output_dir={tmp_path / 'run'}")
    assert [outcome.status for outcome in outcomes] == [0, 0], outcomes
    (line,) = [line for outcome in outcomes for line in outcome.out.splitlines()]
    assert json.loads(line)["folder"] == str(tmp_path / "run")
