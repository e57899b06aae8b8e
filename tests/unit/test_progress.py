"""The phases of a run, throughput, the time that is left, and how a terminal and a log show them."""

import re
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from normscope.data.examples import CorpusCounts
from normscope.models.observe.cancelling import check_cancelled
from normscope.reporting import drawing
from normscope.reporting.options import Appearance
from normscope.reporting.run_folder import RunFolder
from normscope.reporting.terminal import say, show
from normscope.reporting.tracker import no_tracker
from normscope.reporting.views import make_views
from normscope.results.result import Result
from normscope.running.options import run_options
from normscope.running.progress import CorpusProgress, Phase, Phases, coming

ALL = ["start", "model", "corpus", "pass", "interventions", "results", "maps", "views"]


class Clock:
    """Shows the time that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def progress(total: int | None = 500, seconds: float = 10.0) -> CorpusProgress:
    """After a resumption: 200 of 500 examples, 100 of them in this process."""
    clock, counts = Clock(), CorpusCounts(used=90, skipped=Counter({"empty": 10}), tokens=1000)
    made = CorpusProgress(counts, total, torch.device("cpu"), no_tracker(), clock)
    with made.shown(Phases([Phase.PASS])):
        with made.model_runs():
            clock.now += 0.95 * seconds
        counts.used, counts.tokens = 190, 13_340
        clock.now += 0.05 * seconds
        made.update()
    return made


def test_rates_are_those_of_this_process():
    state = progress()
    assert (state.examples, state.seconds) == (200, 10)
    assert state.tokens_per_second == 1234
    assert state.examples_per_second == 10
    assert state.model_share == pytest.approx(0.95)
    assert state.seconds_left == 30
    assert state.sentence() == "200 of 500 examples, 1,234 tokens/s, 30 s left"


def test_a_batch_that_runs_is_not_done_and_the_time_that_it_takes_counts():
    """Examples are counted when their batch begins; of the last one, all of them would have been read."""
    clock, counts = Clock(), CorpusCounts()
    state = CorpusProgress(counts, 200, torch.device("cpu"), no_tracker(), clock)
    with Phases([Phase.PASS]) as phases, state.shown(phases):
        counts.used, counts.tokens, clock.now = 150, 1500, 10.0
        assert (state.sentence(), state.seconds_left) == ("0 of 200 examples", None)
        state.update()
        assert state.sentence() == "150 of 200 examples, 150 tokens/s, 3.3 s left"
        counts.used, counts.tokens, clock.now = 200, 2000, 30.0
        assert state.sentence() == "150 of 200 examples, 150 tokens/s, 10 s left"
        state.update()
    assert state.sentence() == "200 of 200 examples, 67 tokens/s, 0.0 s left"


def test_layers_are_counted_where_nobody_knows_how_many_there_are(capsys, monkeypatch):
    monkeypatch.setattr("normscope.running.progress._SECONDS_BETWEEN_LINES", 0.0)
    phases = Phases([Phase.MODEL, Phase.TEXT], shown=True)
    phases.end()
    phases.begin(Phase.TEXT)
    with phases.layers():
        check_cancelled()
        check_cancelled()
        phases.beat()
    check_cancelled()
    assert capsys.readouterr().err.splitlines() == ["text (2 of 2): 2 layers so far"]


@pytest.mark.reports
@pytest.mark.parametrize("formats", [["png"], ["png", "pdf"]])
def test_figures_and_the_report_move_the_bar_as_they_are_made(tmp_path, monkeypatch, formats):
    result = Result.read(Path(__file__).parents[1] / "contract/run")
    monkeypatch.setattr(drawing, "drawn", lambda _figure, formats, _look: [b""] * len(formats))
    monkeypatch.setattr(RunFolder, "write", lambda *_: None)
    bars = []

    def progress(steps, total, title):
        made = 0
        for step in steps:
            yield step
            made += 1
        bars.append((title, made, total))

    folder = RunFolder(tmp_path)
    try:
        look = Appearance(formats=formats, caption=False)
        make_views(result, folder, no_tracker(), look, report=True, progress=progress)
    finally:
        folder.release()
    files = len(result.figures) * (len(formats) + 1)
    assert bars == [("figures", files, files), ("report", len(result.analyses), len(result.analyses))]
    assert files


def test_nothing_is_promised_without_a_size_or_a_speed():
    assert progress(total=None).seconds_left is None
    assert progress(total=None).sentence() == "200 examples, 1,234 tokens/s"
    assert progress(seconds=0.0).seconds_left is None
    assert progress(seconds=0.0).model_share == 0


def test_a_log_gets_a_plain_line_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr("normscope.running.progress._SECONDS_BETWEEN_LINES", 0.0)
    phases = Phases([Phase.START, Phase.PASS], shown=True)
    phases.begin(Phase.PASS)
    phases.end()  # the thread, not the phases
    with phases.bar(3, lambda: "two of three"):
        phases.beat()
    for _ in phases.steps("ab", 2, "ablations"):
        phases.beat()
    phases.beat()
    *said, last = capsys.readouterr().err.splitlines()
    assert said[0] == "pass (2 of 2): two of three"
    assert said[1] == "pass (2 of 2), ablations: 0 of 2"
    assert re.fullmatch(r"pass \(2 of 2\), ablations: 1 of 2, \d\.\d s left", said[2])
    assert re.fullmatch(r"pass \(2 of 2\): \d\.\d s so far", last)


@pytest.mark.slow
def test_no_phase_is_silent_for_ten_seconds(capsys, monkeypatch):
    monkeypatch.setattr("normscope.running.progress._SECONDS_BETWEEN_BEATS", 0.01)
    monkeypatch.setattr("normscope.running.progress._SECONDS_BETWEEN_LINES", 0.1)
    phases = Phases([Phase.START, Phase.INTERVENTIONS], shown=True)
    phases.begin(Phase.INTERVENTIONS)
    time.sleep(0.35)
    said = capsys.readouterr().err.splitlines()
    assert 2 <= len(said) <= 4
    assert set(said) <= {f"interventions (2 of 2): 0.{tenth} s so far" for tenth in range(1, 5)}
    phases.end()
    time.sleep(0.25)
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_what_is_printed_postpones_what_is_said_in_silence(capsys, monkeypatch):
    monkeypatch.setattr("normscope.running.progress._SECONDS_BETWEEN_BEATS", 0.01)
    monkeypatch.setattr("normscope.running.progress._SECONDS_BETWEEN_LINES", 0.2)
    phases = Phases([Phase.START], shown=True)
    for _ in range(8):
        time.sleep(0.05)
        say("a line")
    phases.end()
    assert set(capsys.readouterr().err.splitlines()) == {"a line"}


def test_a_terminal_gets_a_bar_with_throughput(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    clock, counts = Clock(), CorpusCounts(used=100)
    state = CorpusProgress(counts, 500, torch.device("cpu"), no_tracker(), clock)
    with Phases([Phase.PASS], shown=True) as phases, state.shown(phases):
        clock.now, counts.used, counts.tokens = 10.0, 200, 12_340
        state.update()
        phases.beat()
    shown = capsys.readouterr().err
    assert "pass (1 of 1): " in shown
    assert "200/500" in shown
    assert "1,234 tokens/s" in shown


def test_a_table_has_a_caption(capsys):
    import pandas as pd

    from normscope.results.findings import Summary
    from normscope.results.result import Result

    mean = Summary(pd.DataFrame({"mean": [0.5]}, index=["attn_w"]), digits=1, caption="how much comes from others")
    enabled = {name: {"enabled": True} for name in ("sinks", "mixing")}
    show(Result(summaries={"sinks": Summary(pd.DataFrame()), "mixing": mean}, config={"analysis": enabled}))
    assert capsys.readouterr().out.splitlines()[1] == "mixing: how much comes from others"


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, ALL),
        ({"report": {"enabled": False}}, [name for name in ALL if name != "maps"]),
    ],
)
def test_a_run_knows_its_phases_from_its_options(settings, names):
    options = run_options({"model": {"name": "m"}, "dataset": {"kind": "text"}, **settings})
    assert [str(phase) for phase in coming(options)] == names


def test_each_phase_ends_where_the_next_begins():
    clock = Clock()
    phases = Phases([Phase.START, Phase.MODEL, Phase.PASS, Phase.VIEWS], begun=-3.0, clock=clock)
    assert phases.seconds() == {"start": 3.0}
    clock.now += 1
    phases.begin(Phase.MODEL)
    clock.now += 2
    phases.begin(Phase.PASS)
    clock.now += 4.0004
    phases.begin(Phase.PASS)  # of another share
    clock.now += 8
    assert phases.seconds() == {"start": 4.0, "model": 2.0, "pass": 12.0}
    assert phases.title == "pass (3 of 4)"


def test_steps_are_timed_by_what_they_are():
    clock = Clock()
    phases = Phases([Phase.START, Phase.INTERVENTIONS], clock=clock)
    phases.begin(Phase.INTERVENTIONS)
    for what, seconds in (("a", 3.0), ("b", 1.0), ("a", 2.0)):
        for _ in phases.steps(range(2), 2, what):
            clock.now += seconds
    for _ in phases.steps(range(2), 2, "b"):
        clock.now += 1
        break
    assert phases.step_seconds() == {"a": 10.0, "b": 3.0}
    assert phases.seconds() == {"start": 0.0, "interventions": 13.0}


def test_a_log_has_nothing_of_phases_that_are_short(capsys):
    phases = Phases([Phase.START, Phase.PASS], shown=True)
    phases.begin(Phase.PASS)
    assert list(phases.steps("abc", 3, "letters")) == ["a", "b", "c"]
    phases.end()
    assert capsys.readouterr() == ("", "")


def test_a_terminal_names_the_phase_until_a_bar_does(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    phases = Phases([Phase.START, Phase.MODEL, Phase.PASS], shown=True)
    phases.begin(Phase.MODEL)
    phases.begin(Phase.PASS)
    for letter in phases.steps("ab", 2, "letters"):
        if letter == "b":
            shown = capsys.readouterr().err
    names = ["start (1 of 3) …", "model (2 of 3) …", "pass (3 of 3) …", "pass (3 of 3), letters:   0%"]
    places = [shown.index(name) for name in names]
    assert places == sorted(places)
    phases.end()
    rest = capsys.readouterr().err
    assert "letters: 100%" in rest
    assert rest.endswith("\r")  # the line has gone


def test_nobody_sees_the_phases_of_a_run_in_memory(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    phases = Phases([Phase.START, Phase.PASS])
    phases.begin(Phase.PASS)
    assert list(phases.steps("ab", 2, "letters")) == ["a", "b"]
    assert capsys.readouterr() == ("", "")
