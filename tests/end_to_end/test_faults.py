"""Full disks, too little memory, and trackers and processes that die."""

import contextlib
import http.server
import json
import resource
import signal
import subprocess
import sys
import threading
import time

import pandas as pd
import psutil
import pytest
import torch
import wandb

from normscope.analyses.frequency import FrequencyAnalysis
from normscope.analyses.norms import NormsAnalysis
from normscope.reporting import tracker
from normscope.running import pipeline
from tests.end_to_end.disturbed import SMALL, mounted, python, results
from tests.end_to_end.forks import Fork
from tests.end_to_end.shell import run_here
from tests.end_to_end.wandb_file import contents, run_of


@pytest.mark.slow
def test_infinity_in_the_activations_names_its_layer(capsys, monkeypatch, tmp_path, saved_model):
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(saved_model)
    with torch.no_grad():  # finite weights whose products are not
        model.encoder.layer[1].attention.self.value.weight.fill_(3e38)
    model.save_pretrained(tmp_path / "broken")
    AutoTokenizer.from_pretrained(saved_model).save_pretrained(tmp_path / "broken")
    outcome = run_here(capsys, monkeypatch, f"model.name={tmp_path / 'broken'}", "dataset.limit=3", "tracking=disabled")
    assert outcome.status == 2
    assert "layer 2" in outcome.err


@pytest.mark.slow
def test_a_full_disk_gives_one_line_and_the_run_can_be_resumed(capsys, monkeypatch, tmp_path, saved_model):
    """Files are limited to a few kilobytes: the system itself refuses to write more."""

    def limit() -> None:
        sys.dont_write_bytecode = True  # Python would keep what of it has room
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (9000, resource.RLIM_INFINITY))

    arguments = [f"model.name={saved_model}", "dataset.limit=30", "tracking=disabled", "report.enabled=false"]
    arguments = [*arguments, "checkpoint.every_seconds=0", f"output_dir={tmp_path / 'run'}"]
    outcome = Fork(*arguments, first=limit).wait()
    assert outcome.status == 2, outcome.err
    assert "Traceback" not in outcome.err
    assert "File too large" in outcome.err
    goes_on = run_here(capsys, monkeypatch, f"resume={tmp_path / 'run'}")
    assert goes_on.status == 0, goes_on.err


REFUSALS = [
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
    MemoryError("Unable to allocate 1.91 MiB for an array with shape (250000,) and data type float64"),
]
"""How a GPU, torch on the CPU and NumPy refuse memory."""


class TooSmall:
    """A device whose memory holds this many tokens of a batch: larger batches fail in the middle of a layer, as on a GPU."""

    def __init__(self, monkeypatch, tokens: int, error: Exception, *, at_the_end: bool = False) -> None:
        self.refused: list[tuple[int, ...]] = []

        def check(batch):
            if batch.token_mask.numel() > tokens:
                self.refused.append(tuple(batch.token_mask.shape))
                raise error

        update, end = NormsAnalysis.update_attention, FrequencyAnalysis.end_batch

        def update_until_full(analysis, block, batch):
            update(analysis, block, batch)  # other analyses, and this one, have counted the layer by then
            if block.layer == 2:
                check(batch)

        def end_until_full(analysis, batch):
            end(analysis, batch)
            check(batch)

        if at_the_end:
            monkeypatch.setattr(FrequencyAnalysis, "end_batch", end_until_full)
        else:
            monkeypatch.setattr(NormsAnalysis, "update_attention", update_until_full)


@pytest.mark.slow
@pytest.mark.parametrize("at_the_end", [False, True])
def test_batches_that_do_not_fit_are_split(capsys, monkeypatch, tmp_path, saved_model, undisturbed, at_the_end):
    device = TooSmall(monkeypatch, 150, REFUSALS[0], at_the_end=at_the_end)
    outcome = run_here(capsys, monkeypatch, *SMALL, f"model.name={saved_model}", f"output_dir={tmp_path / 'run'}")
    assert outcome.status == 0, outcome.err
    assert 0 < len(device.refused) < 6
    assert outcome.said.count("does not fit into the memory of cpu: batches are split") == 1
    ours, whole = results(tmp_path / "run"), results(undisturbed)
    for name, value in whole["metrics"].items():
        assert ours["metrics"][name] == pytest.approx(value, rel=1e-5, abs=1e-7), name
    assert ours["facts"]["tokens"] == whole["facts"]["tokens"]
    mine, theirs = (
        pd.read_parquet(place / "tables/norms_by_head.parquet") for place in (tmp_path / "run", undisturbed)
    )
    assert mine["count"].equals(theirs["count"])


@pytest.mark.parametrize("error", REFUSALS, ids="gpu torch numpy".split())
@pytest.mark.slow
def test_a_sequence_that_does_not_fit_says_what_to_change(capsys, monkeypatch, tmp_path, saved_model, error):
    TooSmall(monkeypatch, 3, error)
    folder = f"output_dir={tmp_path / 'run'}"
    outcome = run_here(capsys, monkeypatch, "analysis=norms", f"model.name={saved_model}", "tracking=disabled", folder)
    assert outcome.status == 2
    assert "set device.batch_tokens=2048 or a smaller dataset.max_length" in outcome.err


@pytest.mark.slow
def test_the_system_refuses_memory(tmp_path, saved_model):
    """The address space of the process is bounded once its first batch has been seen: allocations fail for real."""
    (tmp_path / "bounded.py").write_text(
        "import resource, runpy, sys\n"
        "from normscope.running.memory import BatchRunner\n"
        "run = BatchRunner._run\n"
        "def bounded(runner, batch):\n"
        "    pages = int(open('/proc/self/statm').read().split()[0])\n"
        "    limit = pages * resource.getpagesize() + 12 * 2**20\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))\n"
        "    try:\n"
        "        return run(runner, batch)\n"
        "    finally:\n"
        "        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "BatchRunner._run = bounded\n"
        "runpy.run_path('run.py', run_name='__main__')\n"
    )
    arguments = [f"model.name={saved_model}", "tracking=disabled", "report.enabled=false", "device.batch_tokens=400000"]
    command = [str(tmp_path / "bounded.py"), "analysis=mixing", *arguments, f"output_dir={tmp_path / 'run'}"]
    outcome = python(*command, MALLOC_MMAP_THRESHOLD_="65536", MALLOC_ARENA_MAX="1")
    assert outcome.returncode == 0, outcome.stderr
    assert "batches are split from now on" in " ".join(outcome.stderr.split())


@pytest.mark.slow
def test_a_small_disk_gives_one_line_and_the_run_can_be_resumed(capsys, monkeypatch, tmp_path, saved_model):
    """A disk of sixteen pages, enlarged before the run is resumed."""
    with mounted(tmp_path / "disk", "size=64k") as disk:
        arguments = [f"model.name={saved_model}", "dataset.limit=30", "tracking=disabled", "report.enabled=false"]
        folder = f"output_dir={disk / 'run'}"
        outcome = run_here(capsys, monkeypatch, "analysis=norms", *arguments, "checkpoint.every_seconds=0", folder)
        assert outcome.status == 2, outcome.err
        assert "No space left on device" in outcome.err
        assert "free some space, then continue with resume=" in outcome.err
        assert "Traceback" not in outcome.err
        subprocess.run(["mount", "-o", "remount,size=40m", str(disk)], check=True)
        # Saving after every batch, as the run did, takes more room than this disk has.
        again = [f"resume={disk / 'run'}", "tracking=disabled", "checkpoint.every_seconds=60"]
        goes_on = run_here(capsys, monkeypatch, *again)
        assert goes_on.status == 0, goes_on.err
        assert results(disk / "run")["status"] == "completed"


def test_a_read_only_disk_gives_one_line(capsys, monkeypatch, tmp_path, saved_model):
    with mounted(tmp_path / "disk", "size=1m,ro") as disk:
        arguments = [f"model.name={saved_model}", "dataset.limit=3", "tracking=disabled", f"output_dir={disk / 'run'}"]
        outcome = run_here(capsys, monkeypatch, *arguments)
    assert outcome.status == 2, outcome.err
    assert "Read-only file system" in outcome.err
    assert "set output_dir to another folder" in outcome.err
    assert "Traceback" not in outcome.err


class Server:
    """The part of a Weights & Biases server that a run needs to start, and to have no file uploaded."""

    def __init__(self, monkeypatch) -> None:
        asked = self.asked = []
        goes_on = self.goes_on = threading.Event()
        goes_on.set()

        class Answers(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                asked.append(self.path)
                goes_on.wait()
                answer = {}
                if b"upsertBucket" in body:
                    project = {"id": "1", "name": "normscope", "entity": {"id": "1", "name": "somebody"}}
                    bucket = {"id": "1", "name": "run", "config": "{}", "historyLineCount": 0, "project": project}
                    answer = {"upsertBucket": {"bucket": bucket, "inserted": True}}
                elif b"createRunFiles" in body:
                    answer = {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": []}}
                content = json.dumps({"data": answer}).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_PUT = do_POST

            def log_message(self, *_: object) -> None: ...

        wandb.teardown()  # it reads its environment once per process
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{self._server.server_port}")
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        monkeypatch.delenv("WANDB_MODE", raising=False)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.mark.slow
@pytest.mark.parametrize("goes", ["away", "quiet"])
def test_a_server_that_goes_does_not_hold_a_run(capsys, monkeypatch, tmp_path, saved_model, goes):
    """It answers when the run starts, and never again."""
    server, folder = Server(monkeypatch), tmp_path / "run"
    accumulate = pipeline.accumulate

    def accumulate_and_go(session, followed):
        accumulate(session, followed)
        until = time.monotonic() + 60
        while not (folder / "wandb/run_id").exists():
            assert time.monotonic() < until
            time.sleep(0.02)
        server.stop() if goes == "away" else server.goes_on.clear()

    monkeypatch.setattr(pipeline, "accumulate", accumulate_and_go)
    monkeypatch.setattr(tracker, "_END_SECONDS", 15)
    arguments = [f"model.name={saved_model}", f"output_dir={folder}", "tracking=online", "dataset.limit=4"]
    outcome = run_here(capsys, monkeypatch, *arguments, "report.enabled=false")
    server.goes_on.set()
    if goes == "quiet":
        server.stop()
    assert outcome.status == 0, outcome.err
    assert server.asked
    assert outcome.said.count("Weights & Biases has not finished within 15 s; the run ends without it") == 1
    assert "Traceback" not in outcome.err
    kept = results(folder)
    assert kept["status"] == "completed"
    assert 15 <= kept["facts"]["phases"]["views"] < 30
    (unsent,) = folder.glob("wandb/run-*/run-*.wandb")  # for `wandb sync`
    metrics = contents(unsent)["summary"]
    assert {name: metrics[name] for name in kept["metrics"]} == kept["metrics"]
    until = time.monotonic() + 10
    while services(folder):
        assert time.monotonic() < until, "nothing of W&B outlives a run"
        time.sleep(0.1)


def services(folder):
    """The processes that log a run, and W&B's, which are told where."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("WANDB_DATA_DIR") == str(folder / "wandb") and process.status() != "zombie":
                found.append(process)
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.slow
def test_a_run_that_is_stopped_while_its_tracker_starts(tmp_path, saved_model, number):
    """The status is recorded, and the W&B run is finished once it has started, even if nothing waits for it."""
    folder = tmp_path / "run"
    (tmp_path / "late.py").write_text(
        "import runpy, time\n"
        "from pathlib import Path\n"
        "from normscope.running import pipeline\n"
        "def accumulate(*_):\n"
        f"    Path({str(folder)!r}, 'reading').touch()\n"
        "    for _ in range(30_000): time.sleep(0.01)\n"  # `signal.pause()` would miss a signal that came before it
        "pipeline.accumulate = accumulate\n"
        "runpy.run_path('run.py', run_name='__main__')\n"
    )
    arguments = [f"model.name={saved_model}", "tracking=offline", "dataset.limit=4", "report.enabled=false"]
    process = Fork(*arguments, f"output_dir={folder}", program=tmp_path / "late.py")
    process.wait_until((folder / "reading").exists)
    process.send_signal(number)
    outcome = process.wait()
    if number == signal.SIGKILL:
        assert outcome.status == -number
        until = time.monotonic() + 60
        while services(folder):
            assert time.monotonic() < until
            time.sleep(0.1)
    else:
        assert outcome.status == 128 + number, outcome.err
        *_, ending = outcome.err.splitlines()
        assert ending.startswith("interrupted"), outcome.err
        assert results(folder)["status"] == "interrupted"
    assert run_of(folder)["exit"] == 1
