"""The phases of a run: their order, their times, and what a terminal and a log show of them."""

import sys

import pytest

from normscope.running.options import run_options
from normscope.running.progress import Phase, Phases, coming

ALL = ["start", "model", "corpus", "pass", "interventions", "results", "maps", "publishing"]


class Clock:
    """Shows the time that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


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
    phases = Phases([Phase.START, Phase.MODEL, Phase.PASS, Phase.PUBLISHING], begun=97.0, clock=clock)
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
