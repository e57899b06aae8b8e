"""A whole command says what it is doing and for how long, and records how long each phase took."""

import json
import os
import pty
import struct
import sys
import termios
import time
from fcntl import ioctl

import pytest

from tests.end_to_end.shell import ROOT, run_here

ALL = ["start", "model", "corpus", "pass", "interventions", "results", "maps", "views"]
SINKS = ("analysis=[mixing,sinks]", "dataset=text", "tracking=disabled")


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("The cat sat on the mat.\nA dog barked, and nobody heard it.\nThe mat was red.\nIt was a cat.\n")
    return path


def facts_of(folder):
    return json.loads((folder / "results.json").read_text())["facts"]


@pytest.mark.slow
@pytest.mark.reports
def test_a_run_names_its_phases_and_records_their_times(capsys, monkeypatch, tmp_path, corpus, saved_model):
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda _: True, raising=False)
    outcome = run_here(
        capsys,
        monkeypatch,
        *SINKS,
        "analysis.sinks.length=4",  # the texts are short
        f"model.name={saved_model}",
        f"dataset.path={corpus}",
        f"output_dir={tmp_path / 'run'}",
    )
    assert outcome.status == 0, outcome.err
    numbered = [f"{name} ({number} of 8)" for number, name in enumerate(ALL, start=1)]
    places = [outcome.err.index(name) for name in ["start …", *numbered]]
    assert places == sorted(places)
    assert "pass (4 of 8): 100%" in outcome.err
    assert "interventions (5 of 8), sink rates:" in outcome.err
    facts = facts_of(tmp_path / "run")
    assert list(facts["phases"]) == ALL
    assert facts["steps"].keys() == {"sink rates", "texts", "figures", "report"}
    assert 0 < facts["steps"]["sink rates"] <= facts["phases"]["interventions"]
    # `seconds` begins within the start and ends before the report is written.
    own = sum(seconds for name, seconds in facts["phases"].items() if name != "start")
    before_views = own - facts["phases"]["views"]
    assert before_views <= facts["seconds"] + 0.01
    assert own > 0.5 * facts["seconds"]


@pytest.mark.slow  # a new interpreter, which is what this is about
def test_a_terminal_shows_something_before_the_libraries_are_loaded(tmp_path):
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(ROOT)
        arguments = ["tracking=disabled", "dataset.limit=30", f"output_dir={tmp_path / 'run'}"]
        os.execv(sys.executable, [sys.executable, "-X", "importtime", "run.py", *arguments])
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
    shown = bytearray()
    end = time.monotonic() + 300
    while time.monotonic() < end:
        try:
            shown += os.read(terminal, 65536)
        except OSError:  # the process has ended
            break
    assert os.waitpid(process, 0)[1] == 0, shown.decode()
    text = shown.decode()
    before = text[: text.index("start …")]
    assert "hydra" in before
    assert "torch" not in before.split()
    assert "pandas" not in before.split()
    assert facts_of(tmp_path / "run")["phases"]["start"] > 0.2
