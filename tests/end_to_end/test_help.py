"""`--help` is a short page; `help KEY` prints what the schema knows of keys, as the documentation does; neither needs torch."""

import re

import pytest

from normscope.analyses.registry import analyses
from normscope.distribution import folder
from normscope.running.options import SCHEMA
from tests.contract.test_configs import composed
from tests.end_to_end.shell import run_here


def page(capsys, monkeypatch, *words: str) -> str:
    outcome = run_here(capsys, monkeypatch, *words)
    assert outcome.status == 0, outcome.err
    return outcome.out


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["-h"],
        ["help"],
        ["help", "--help"],
        ["serve", "--help"],
        ["explain", "--help"],
        ["layers=[1]", "--help"],
    ],
)
def test_the_help_page_is_short(capsys, monkeypatch, words):
    text = page(capsys, monkeypatch, *words)
    lines = text.splitlines()
    assert len(lines) <= 20
    assert max(len(line) for line in lines if str(folder("conf").parent) not in line) <= 100
    assert all(name in text for name in analyses())


def test_what_the_help_page_shows_can_be_typed(capsys, monkeypatch):
    run, asked = re.findall(r"^  python run\.py (.*)$", page(capsys, monkeypatch, "--help"), re.M)
    composed(*run.split())
    assert page(capsys, monkeypatch, *asked.split())


@pytest.mark.spread(3)
@pytest.mark.parametrize("section", ["analysis.sinks", "sinks", "dataset", "device", "tracking", "model", "report"])
def test_a_group_prints_all_its_keys(capsys, monkeypatch, section):
    shown = page(capsys, monkeypatch, "help", section)
    prefix = "analysis.sinks" if section == "sinks" else section
    own = [key for key in SCHEMA.keys.values() if key.name.startswith(f"{prefix}.")]
    assert own
    assert re.findall(r"^(\S+)   ", shown, re.M) == [key.name for key in own]
    words = " ".join(shown.split())
    for key in own:
        for part in (key.expected, f"default: {key.shown_default}", key.meaning):
            assert " ".join(part.replace("`", "").split()) in words


def test_keys(capsys, monkeypatch):
    assert page(capsys, monkeypatch, "help", "analysis.sinks.epsilon", "seed").splitlines() == [
        "analysis.sinks.epsilon   a number from 0 to below 1; default: 0.3",
        "    A key is a sink of a head if its mean weight over the queries that see it exceeds this.",
        "",
        "seed   a whole number from 0 to 2^63 − 1; default: 0",
        "    Seed of all random choices, unless a more specific one is set.",
    ]


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        ("analysis.sink", "analysis.sinks"),
        ("mdel.name", "model.name"),
        ("qqqq", "dataset, layers"),
    ],
)
def test_an_unknown_key_gets_the_closest_names(capsys, monkeypatch, topic, message):
    outcome = run_here(capsys, monkeypatch, "help", topic)
    assert outcome.status == 2
    (line,) = outcome.err.splitlines()
    assert line.startswith(f"normscope: help {topic}: no such key or group; expected one such as {message}")
