"""`--help` is one screen; `help KEY` prints what the schema knows of keys, as the documentation does; neither needs torch."""

import re

import pytest

from docs.hooks.config_keys import keys
from normscope import help_page
from normscope.analyses.registry import analyses
from normscope.distribution import folder
from tests.contract.test_configs import CONF, composed
from tests.end_to_end.shell import run_here


def page(capsys, monkeypatch, *words: str) -> str:
    outcome = run_here(capsys, monkeypatch, *words)
    assert outcome.status == 0, outcome.err
    return outcome.out


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"], ["merge", "--help"], ["layers=[1]", "--help"]])
def test_the_help_page_is_one_screen(capsys, monkeypatch, words):
    lines = page(capsys, monkeypatch, *words).splitlines()
    assert len(lines) <= 40
    assert max(len(line) for line in lines if str(folder("experiments")) not in line) <= 100
    assert {"CHOICES", "KEYS", "EXAMPLES", "MORE"} <= set(lines)
    assert all(name in " ".join(lines) for name in analyses())


def test_what_the_help_page_shows_exists():
    known = {key.name for key in keys()}
    assert {key.partition("=")[0] for key in help_page._KEYS} <= known
    assert len(help_page._KEYS) == 8
    for group, names in help_page._SHOWN.items():
        assert set(names) <= {path.stem for path in (CONF / group).glob("*.yaml")}
    for words in help_page._EXAMPLES:
        chosen = words.replace("-m ", "").replace("false,true", "true")
        composed(*re.sub(r'^explain ".*?" ', "", chosen).split())


@pytest.mark.parametrize("section", ["analysis.sinks", "sinks", "dataset", "device", "tracking", "model", "report"])
@pytest.mark.parametrize("first", ["help", "--help"])
def test_a_group_prints_all_its_keys(capsys, monkeypatch, first, section):
    shown = page(capsys, monkeypatch, first, section)
    prefix = "analysis.sinks" if section == "sinks" else section
    own = [key for key in keys() if key.name.startswith(f"{prefix}.")]
    assert own
    for key in own:
        assert f"  {key.name}   " in shown
    words = " ".join(shown.split())
    for key in own:
        for part in (key.type, f"default: {key.default}", key.meaning):
            assert " ".join(part.replace("`", "").split()) in words
    assert max(map(len, shown.splitlines())) <= 100


def test_a_group_of_presets_is_listed_with_what_they_are(capsys, monkeypatch):
    shown = " ".join(page(capsys, monkeypatch, "help", "model").split())
    for path in (CONF / "model").glob("*.yaml"):
        assert f" {path.stem} " in shown
    assert "bert BERT-base, the model of the papers." in shown


def test_one_key(capsys, monkeypatch):
    assert page(capsys, monkeypatch, "help", "analysis.sinks.epsilon").splitlines() == [
        "KEYS: analysis.sinks.epsilon",
        "  analysis.sinks.epsilon   a share of attention weight in [0, 1); default: 0.3",
        "      A key is a sink of a head if its mean weight over the queries that see it exceeds this.",
    ]


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        ("analysis.sink", "closest: analysis.sinks"),
        ("mdel.name", "closest: model.name"),
        ("qqqq", "see python run.py --help"),
    ],
)
def test_an_unknown_key_gets_the_closest_names(capsys, monkeypatch, topic, message):
    outcome = run_here(capsys, monkeypatch, "help", topic)
    assert outcome.status == 2
    (line,) = outcome.err.splitlines()
    assert line.startswith(f"normscope: help {topic}: no such key or group; ")
    assert message in line
