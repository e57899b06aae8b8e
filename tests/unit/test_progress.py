"""Throughput, the time that is left, and how they are shown."""

import sys
import time

import pytest

from normscope.reporting.terminal import CorpusBar, Throughput, duration, say, show_table, steps_bar
from normscope.running.progress import Phase, Phases


def state(seconds: float = 10.0, total: int | None = 500) -> Throughput:
    """After a resumption: 200 of 500 examples, 100 of them in this process."""
    return Throughput(
        examples=200, total=total, new_examples=100, new_tokens=12_340, seconds=seconds, model_seconds=9.5
    )


def test_rates_are_those_of_this_process():
    assert state().tokens_per_second == 1234
    assert state().examples_per_second == 10
    assert state().model_share == 0.95
    assert state().seconds_left == 30
    assert state().sentence() == "200 of 500 examples, 1,234 tokens/s, 30 s left"


def test_nothing_is_promised_without_a_size_or_a_speed():
    assert state(total=None).seconds_left is None
    assert state(total=None).sentence() == "200 examples, 1,234 tokens/s"
    assert state(seconds=0.0).seconds_left is None
    assert state(seconds=0.0).model_share == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (89.0, "89 s"), (90.0, "2 min"), (300.0, "5 min"), (7800.0, "2 h 10 min"), (180e3, "50 h 0 min")],
)
def test_durations_are_rounded(seconds, text):
    assert duration(seconds) == text


def test_a_log_gets_a_plain_line_every_ten_seconds(capsys):
    with CorpusBar(500, "pass") as bar:
        for seconds in (0.0, 9.0, 10.0, 19.0, 21.0):
            bar.update(state(seconds))
    assert capsys.readouterr().err.splitlines() == [f"pass: {state(each).sentence()}" for each in (10.0, 21.0)]
    assert list(steps_bar("abc", 3, "ablations")) == ["a", "b", "c"]
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_no_phase_is_silent_for_ten_seconds(capsys, monkeypatch):
    monkeypatch.setattr("normscope.reporting.terminal._SECONDS_BETWEEN_BEATS", 0.01)
    monkeypatch.setattr("normscope.reporting.terminal._SECONDS_BETWEEN_LINES", 0.1)
    phases = Phases([Phase.START, Phase.INTERVENTIONS], shown=True)
    phases.begin(Phase.INTERVENTIONS)
    time.sleep(0.35)
    said = capsys.readouterr().err.splitlines()
    assert 2 <= len(said) <= 4
    assert set(said) == {"interventions (2 of 2): 0 s so far"}
    phases.end()
    time.sleep(0.25)
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_what_is_printed_postpones_what_is_said_in_silence(capsys, monkeypatch):
    monkeypatch.setattr("normscope.reporting.terminal._SECONDS_BETWEEN_BEATS", 0.01)
    monkeypatch.setattr("normscope.reporting.terminal._SECONDS_BETWEEN_LINES", 0.2)
    phases = Phases([Phase.START], shown=True)
    for _ in range(8):
        time.sleep(0.05)
        say("a line")
    phases.end()
    assert set(capsys.readouterr().err.splitlines()) == {"a line"}


def test_a_terminal_gets_a_bar_with_throughput(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with CorpusBar(500, "pass") as bar:
        bar.update(state())
    shown = capsys.readouterr().err
    assert "pass: " in shown
    assert "200/500" in shown
    assert "1,234 tokens/s" in shown


def test_a_table_has_a_caption(capsys):
    import pandas as pd

    show_table("sinks", pd.DataFrame(), 1)
    show_table("mixing", pd.DataFrame({"mean": [0.5]}, index=["attn_w"]), 1, "how much comes from others")
    assert capsys.readouterr().out.splitlines()[1] == "mixing: how much comes from others"
