"""Runs of several processes that are killed, resumed and restarted."""

import random
import shutil
import signal

import pytest

from normscope.running import run
from normscope.running.memory import BatchRunner
from normscope.running.shares import CHECKPOINT, Share, Shares
from tests.end_to_end import forks
from tests.end_to_end.disturbed import SMALL, dying, results, torchrun
from tests.end_to_end.shell import run_here, run_once
from tests.end_to_end.test_trust import Killed, assert_same_numbers, tables

PARTS = 3


@pytest.fixture(scope="module")
def given(saved_model):
    return [*SMALL, "analysis=[mixing,frequency]", f"model.name={saved_model}", "checkpoint.every_seconds=0"]


@pytest.fixture(scope="module")
def merged(given, tmp_path_factory):
    """The run that merges three shards: what three processes together must give."""
    place = tmp_path_factory.mktemp("merged")
    folders = [place / str(number) for number in range(PARTS)]
    assert run_once("prepare", *given, f"output_dir={place / 'prepared'}").status == 0
    prepared = f"prepared={place / 'prepared'}"
    for number, folder in enumerate(folders):
        shard = [f"shard={number}", f"shards={PARTS}", f"output_dir={folder}"]
        assert run_once(*given, prepared, *shard).status == 0
    assert run_once("merge", *map(str, folders), f"output_dir={place / 'merged'}").status == 0
    return place / "merged"


@pytest.fixture
def killed(capsys, monkeypatch, given, tmp_path):
    """A run of three parts, killed once a file exists in its folder; one process takes the parts of three."""

    def killed(file: str):
        def die(self, batch):
            if (folder / file).exists():
                raise Killed
            original(self, batch)

        folder, original = tmp_path / "run", BatchRunner.run
        three = Shares(PARTS, [Share(number, PARTS) for number in range(PARTS)])
        with monkeypatch.context() as patched:
            patched.setattr(Shares, "of", lambda *_, **__: three)
            patched.setattr(BatchRunner, "run", die)
            patched.setattr("normscope.running.status._recorded", lambda *_: Untouched())
            with pytest.raises(Killed):
                run_here(capsys, monkeypatch, *given, f"output_dir={folder}")
        return folder

    return killed


class Untouched:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


@pytest.mark.slow
def test_another_number_of_processes_continues_to_the_same_bytes(capsys, monkeypatch, killed, merged):
    killed = killed(Share(1, PARTS).file)  # in the second part
    assert {path.name for path in killed.glob("checkpoint*")} == {Share(0, PARTS).file, Share(1, PARTS).file}

    def refused() -> str:
        outcome = run_here(capsys, monkeypatch, f"resume={killed}")
        assert outcome.status == 2, outcome.err
        return outcome.err

    first, second = (killed / Share(part, PARTS).file for part in (0, 1))
    content = first.read_bytes()
    shutil.copy(second, first)
    assert "the part of the corpus was '1 of 3' when the run was stopped and is '0 of 3' now" in refused()
    first.write_bytes(content)
    shutil.copy(second, killed / CHECKPOINT)
    assert "it has checkpoints of runs with 1 and 3 processes" in refused()
    (killed / CHECKPOINT).unlink()
    outcome = run_here(capsys, monkeypatch, f"resume={killed}")
    assert outcome.status == 0, outcome.err
    assert "3 processes began this run: 1 continues" in outcome.err
    assert "1 of 1 process begins with a part that is finished" in outcome.err
    assert results(killed)["metrics"] == results(merged)["metrics"]
    assert tables(killed) == tables(merged)
    assert not list(killed.glob("checkpoint*"))


@pytest.mark.slow
def test_a_run_that_is_killed_before_its_first_batch_keeps_its_parts(capsys, monkeypatch, killed, merged):
    """As many as processes began it, however many continue: otherwise sums would be added up in another order."""
    killed = killed("config.yaml")
    assert [path.name for path in killed.glob("checkpoint*")] == [Share(0, PARTS).file]
    outcome = run_here(capsys, monkeypatch, f"resume={killed}")
    assert outcome.status == 0, outcome.err
    assert "3 processes began this run: 1 continues" in outcome.err
    assert "resuming after" not in outcome.err
    assert results(killed)["metrics"] == results(merged)["metrics"]
    assert tables(killed) == tables(merged)
    assert not list(killed.glob("checkpoint*"))


@pytest.mark.slow
def test_three_processes_continue_a_run_of_two_that_was_killed_before_its_first_checkpoint(given, tmp_path):
    quietly = [*given, "checkpoint.every_seconds=3600"]
    assert [outcome.status for outcome in forks.run_several(2, *quietly, f"output_dir={tmp_path / 'whole'}")] == [0, 0]
    folder, dies = tmp_path / "run", {"DYING": "0,1", "DIES": "1"}
    outcomes = forks.run_several(2, *quietly, f"output_dir={folder}", program=dying(tmp_path), **dies)
    assert [outcome.status for outcome in outcomes] == [-signal.SIGKILL] * 2, outcomes
    outcomes = forks.run_several(3, f"resume={folder}")
    assert [outcome.status for outcome in outcomes] == [0] * 3, outcomes
    assert results(folder)["metrics"] == results(tmp_path / "whole")["metrics"]
    assert tables(folder) == tables(tmp_path / "whole")


def test_processes_that_do_not_see_the_folder_save_nothing(capsys, monkeypatch, given, tmp_path):
    monkeypatch.setattr(run.PeerFolder, "visible", False)
    outcome = run_here(capsys, monkeypatch, *given, "analysis=mixing", f"output_dir={tmp_path / 'run'}")
    assert outcome.status == 0, outcome.err
    assert "this run cannot be resumed" in outcome.err


@pytest.fixture(scope="module")
def whole(given, tmp_path_factory):
    """The run of four processes that nothing disturbs."""
    folder = tmp_path_factory.mktemp("four") / "whole"
    assert [outcome.status for outcome in forks.run_several(4, *given, f"output_dir={folder}")] == [0] * 4
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("number", range(6))
def test_four_processes_of_which_a_random_one_is_killed_go_on_to_the_same_bytes(given, whole, tmp_path, number):
    draw, folder = random.Random(number), tmp_path / "run"
    rank, batch = draw.randrange(4), draw.randint(1, 2)
    dies = {"DYING": str(rank), "DIES": str(batch)}
    outcomes = forks.run_several(4, *given, f"output_dir={folder}", program=dying(tmp_path), **dies)
    assert outcomes[rank].status == -signal.SIGKILL, (dies, outcomes)
    outcomes = forks.run_several(4, f"resume={folder}")
    assert [outcome.status for outcome in outcomes] == [0] * 4, (dies, outcomes)
    assert results(folder)["metrics"] == results(whole)["metrics"], dies
    assert tables(folder) == tables(whole), dies


@pytest.mark.slow
def test_torchrun_restarts_a_run_that_goes_on(monkeypatch, tmp_path, saved_model, undisturbed):
    (tmp_path / "dying.py").write_text(
        "import os, runpy, signal\n"
        "from normscope.running.memory import BatchRunner\n"
        "run, seen = BatchRunner.run, []\n"
        "def die(runner, batch):\n"
        "    seen.append(1)\n"
        "    if os.environ['RANK'] == '1' and os.environ['TORCHELASTIC_RESTART_COUNT'] < '2' and len(seen) == 2:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return run(runner, batch)\n"
        "BatchRunner.run = die\n"
        "runpy.run_path('run.py', run_name='__main__')\n"
    )
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    folder = tmp_path / "run"
    arguments = [*SMALL, f"model.name={saved_model}", "checkpoint.every_seconds=0", f"output_dir={folder}"]
    outcome = torchrun(2, *arguments, program=str(tmp_path / "dying.py"), launcher=["--max-restarts=3"])
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stderr.count("resuming after") == 2
    assert_same_numbers(folder, undisturbed)
