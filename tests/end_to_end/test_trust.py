"""Runs that are killed, split between processes, reproduced, or resumed after something has changed."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time

import pandas as pd
import pytest
import safetensors.torch

from normscope.data import batching
from normscope.results.measures import metric_title
from normscope.running.checkpoint import CHECKPOINT, Checkpoint
from tests.end_to_end import forks
from tests.end_to_end.disturbed import SMALL, results
from tests.end_to_end.forks import Fork
from tests.end_to_end.shell import ROOT, run_here


def tables(folder):
    return {path.name: path.read_bytes() for path in (folder / "tables").glob("*.parquet")}


class Killed(BaseException):
    """Simulates SIGKILL in the tests' own process: the program never catches it."""


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_bytes(capsys, monkeypatch, tmp_path, saved_model, undisturbed):
    """SIGKILL after some batches, with no chance to clean up."""
    folder = tmp_path / "run"
    process = Fork(*SMALL, f"model.name={saved_model}", f"output_dir={folder}", "checkpoint.every_seconds=0")
    process.wait_until(lambda: saved_batches(folder) >= 7)
    process.send_signal(signal.SIGKILL)
    assert process.wait().status == -signal.SIGKILL
    assert not (folder / "results.json").exists()
    goes_on = run_here(capsys, monkeypatch, f"resume={folder}")
    assert goes_on.status == 0, goes_on.err
    assert "resuming after" in goes_on.err
    assert results(folder)["metrics"] == results(undisturbed)["metrics"]
    assert tables(folder) == tables(undisturbed)
    assert not (folder / CHECKPOINT).exists()


def saved_batches(folder, file=CHECKPOINT) -> int:
    path = folder / file
    if not path.exists():
        return 0
    with safetensors.safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["normscope"])["batches"]


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path, saved_model):
    """Repeatedly killed while it computes or saves, each time further on, and resumed."""
    draw = random.Random(0)
    given = [*SMALL, "analysis=[mixing,frequency]", "dataset.limit=200", f"model.name={saved_model}"]
    folder, often = tmp_path / "run", "checkpoint.every_seconds=0"
    assert forks.run(*given, f"output_dir={tmp_path / 'whole'}").status == 0
    for moment in range(8):
        before = saved_batches(folder)
        process = Fork(often, *([f"resume={folder}"] if moment else [*given, f"output_dir={folder}"]))
        process.wait_until(lambda before=before: saved_batches(folder) > before)
        time.sleep(draw.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        outcome = process.wait()
        assert outcome.status == -signal.SIGKILL, (moment, outcome.err)
    outcome = forks.run(f"resume={folder}")
    assert outcome.status == 0, outcome.err
    assert results(folder)["metrics"] == results(tmp_path / "whole")["metrics"]
    assert tables(folder) == tables(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_says_so(capsys, monkeypatch, tmp_path, saved_model, undisturbed, number, status):
    folder = tmp_path / "run"
    process = Fork(*SMALL, f"model.name={saved_model}", f"output_dir={folder}", "checkpoint.every_seconds=0")
    process.wait_until(lambda: saved_batches(folder) >= 2)
    process.send_signal(number)
    outcome = process.wait()
    assert outcome.status == status, outcome.err
    assert "Traceback" not in outcome.err
    assert outcome.err.splitlines()[-1].startswith("interrupted; to continue: ")
    assert outcome.err.splitlines()[-1].endswith(f" resume={folder}")
    assert (results(folder)["status"], results(folder)["metrics"]) == ("interrupted", {})
    assert run_here(capsys, monkeypatch, f"resume={folder}").status == 0
    assert results(folder)["metrics"] == results(undisturbed)["metrics"]


@pytest.fixture
def stopped(capsys, monkeypatch, tmp_path, saved_model):
    """A run folder with a checkpoint after its third batch, as a kill leaves it."""
    (tmp_path / "corpus.txt").write_text("".join(f"sentence number {n} of the corpus .\n" for n in range(200)))
    original = Checkpoint.save

    def save(self, analyses, position):
        original(self, analyses, position)
        if position.batches == 3:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "save", save)
        patched.setattr("normscope.running.pipeline.RunFolder.save_facts", lambda *_, **__: None)
        with pytest.raises(Killed):
            run_here(
                capsys,
                monkeypatch,
                f"model.name={saved_model}",
                "dataset=text",
                f"dataset.path={tmp_path / 'corpus.txt'}",
                "device.batch_tokens=256",
                "checkpoint.every_seconds=0",
                "tracking=disabled",
                f"output_dir={tmp_path / 'run'}",
            )
    assert saved_batches(tmp_path / "run") == 3
    return tmp_path / "run"


@pytest.mark.slow
def test_changes_since_the_run_began_are_refused_and_named(capsys, monkeypatch, stopped, saved_model):
    again = [f"resume={stopped}", f"dataset.path={stopped.parent / 'corpus.txt'}"]  # which is not in the folder

    def refused(*arguments: str) -> str:
        outcome = run_here(capsys, monkeypatch, *again, *arguments)
        assert outcome.status == 2, outcome.err
        assert "Traceback" not in outcome.err
        return outcome.err

    assert "dataset.limit was None in that run and is 7 now" in refused("dataset.limit=7")
    assert "analysis" in refused("analysis=norms")
    assert "expected the folder of a run" in refused("resume=/nowhere")
    weights = saved_model / "model.safetensors"
    before = weights.read_bytes()
    try:
        changed = safetensors.torch.load_file(weights)
        changed["embeddings.word_embeddings.weight"][0, 0] += 1
        safetensors.torch.save_file(changed, weights, metadata={"format": "pt"})
        assert "the model's weights was" in refused()
    finally:
        weights.write_bytes(before)
    corpus = stopped.parent / "corpus.txt"
    text = corpus.read_text()
    corpus.write_text(text.replace("sentence number 3 of", "another one of"))
    assert "the corpus has changed" in refused()
    corpus.write_text(text)
    checkpoint = stopped / CHECKPOINT
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[:-100])
    assert "the checkpoint cannot be read" in refused()
    checkpoint.write_bytes(whole)
    assert run_here(capsys, monkeypatch, *again).status == 0
    assert "the run is already complete" in refused()


def test_two_runs_do_not_share_a_folder(capsys, monkeypatch, stopped, saved_model):
    taken = run_here(capsys, monkeypatch, f"model.name={saved_model}", f"output_dir={stopped}", "tracking=disabled")
    assert taken.status == 2
    assert f"continue it with resume={stopped}" in taken.err
    import fcntl

    with (stopped / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        busy = run_here(capsys, monkeypatch, f"resume={stopped}", f"dataset.path={stopped.parent / 'corpus.txt'}")
    assert busy.status == 2
    assert "another run is using this folder" in busy.err


@pytest.mark.slow
def test_a_corpus_that_is_split_gives_the_same_numbers(tmp_path, saved_model, undisturbed):
    folder = tmp_path / "run"
    outcomes = forks.run_several(
        2, *SMALL, f"model.name={saved_model}", "model.allow_pickle=true", f"output_dir={folder}"
    )
    assert [outcome.status for outcome in outcomes] == [0, 0], outcomes
    assert [outcome.said.count("allow_pickle: pickled weights") for outcome in outcomes] == [1, 0], (
        "one says it for all"
    )
    assert_same_numbers(folder, undisturbed)


def assert_same_numbers(folder, undisturbed):
    for count in ("examples", "examples_used", "sequences", "tokens", "tokens_by_category"):
        assert results(folder)["facts"][count] == results(undisturbed)["facts"][count]
    ours, whole = results(folder)["metrics"], results(undisturbed)["metrics"]
    assert ours.keys() == whole.keys()
    for name, value in whole.items():
        assert ours[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name
    for path in (undisturbed / "tables").glob("*.parquet"):
        mine, theirs = pd.read_parquet(folder / "tables" / path.name), pd.read_parquet(path)
        pd.testing.assert_frame_equal(mine, theirs, rtol=1e-9)
        if "count" in mine:
            assert mine["count"].equals(theirs["count"])


@pytest.mark.slow
def test_windows_that_only_one_process_reads(monkeypatch, tmp_path, saved_model, undisturbed):
    monkeypatch.setattr(batching, "LOOKAHEAD", 7)
    found = {}
    for processes in (1, 3):
        folder = tmp_path / str(processes)
        given = [*SMALL, f"model.name={saved_model}", f"output_dir={folder}"]
        outcomes = forks.run_several(processes, *given)
        assert [outcome.status for outcome in outcomes] == [0] * processes, outcomes
        found[processes] = results(folder)
        for count in ("examples", "examples_used", "sequences", "tokens", "tokens_by_category"):
            assert found[processes]["facts"][count] == results(undisturbed)["facts"][count]
    for name, value in found[1]["metrics"].items():
        assert found[3]["metrics"][name] == pytest.approx(value, rel=1e-9, abs=1e-12), name


@pytest.mark.slow
def test_a_run_with_more_processes_than_batches(tmp_path, saved_model):
    """One of them has none."""
    arguments = [f"model.name={saved_model}", "dataset.limit=2", "tracking=disabled", "report.enabled=false"]
    outcomes = forks.run_several(2, *arguments, f"output_dir={tmp_path / 'run'}")
    assert [outcome.status for outcome in outcomes] == [0, 0], outcomes
    assert results(tmp_path / "run")["facts"]["sequences"] == 2


@pytest.mark.slow
def test_a_run_is_reproduced(capsys, monkeypatch, tmp_path, undisturbed):
    again = run_here(capsys, monkeypatch, f"reproduce={undisturbed}", f"output_dir={tmp_path / 'again'}")
    assert again.status == 0, again.err
    *_, agreement, last = again.out.splitlines()
    assert "numbers are the same" in agreement
    assert last == str(tmp_path / "again")
    assert tables(tmp_path / "again") == tables(undisturbed)
    lied = tmp_path / "lied"
    lied.mkdir()
    (lied / "config.yaml").write_text((undisturbed / "config.yaml").read_text())
    changed = results(undisturbed)
    name = next(iter(changed["metrics"]))
    changed["metrics"][name] += 0.01
    (lied / "results.json").write_text(json.dumps(changed))
    found = run_here(capsys, monkeypatch, f"reproduce={lied}", f"output_dir={tmp_path / 'third'}")
    assert found.status == 1
    assert metric_title(name) in found.out


def test_no_secret_is_written_anywhere(capsys, monkeypatch, tmp_path, saved_model):
    secrets = {"WANDB_API_KEY": "a1b2c3d4" * 5, "HF_TOKEN": "hf_" + "Zq9" * 11}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    outcome = run_here(
        capsys, monkeypatch, f"model.name={saved_model}", "dataset.limit=3", f"output_dir={tmp_path / 'run'}"
    )
    assert outcome.status == 0, outcome.err
    for path in (tmp_path / "run").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            for value in secrets.values():
                assert value.encode() not in content, path
    for value in secrets.values():
        assert value not in outcome.out + outcome.err


@pytest.mark.slow
def test_two_machines_meet(tmp_path, saved_model, undisturbed):
    """Two launchers, as on two machines, that know only a common address."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    arguments = [*SMALL, f"model.name={saved_model}", f"output_dir={tmp_path / 'run'}"]
    rendezvous = [
        "--nnodes=2",
        "--nproc-per-node=1",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={address}",
        "--rdzv-id=1",
    ]
    machines = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *rendezvous, "run.py", *arguments],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for machine in machines:
        _, err = machine.communicate(timeout=800)
        assert machine.returncode == 0, err
    for name, value in results(undisturbed)["metrics"].items():
        assert results(tmp_path / "run")["metrics"][name] == pytest.approx(value, rel=1e-9, abs=1e-12), name
