"""Values that Hydra's grammar cannot read are printed in the form that it reads."""

import shlex

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from normscope.cli.command_line import quoted_override, with_checkpoints
from tests.end_to_end.shell import run_here

PRINTABLE = st.text(st.characters(codec="utf-8").filter(str.isprintable), min_size=1)


def read(word):
    """The value that a command has of a word typed in a shell."""
    (override,) = shlex.split(word)
    parsed = OverridesParser.create().parse_override(override)
    return OmegaConf.to_container(OmegaConf.create({"value": parsed.value()}), resolve=True)["value"]


@given(PRINTABLE)
@example("data/year=2020/a.jsonl")
@example("reviews (1).jsonl")
@example("Süd.jsonl")
@example('it\'s "good" \\')
@example(r"a\"b\\")
@example("${x")
@example("a,b.txt")
@example("{x}.txt")
@example("$HOME `id` #1 ! ~")
@example("[a")
def test_every_printable_value_has_a_quoted_form(value):
    if "${" in value and "}" in value:  # which may refer to another key
        return
    word = quoted_override(f"dataset.path={value}")
    meant = [item.strip() for item in value[1:-1].split(",")] if value[:1] == "[" and value[-1:] == "]" else value
    assert read(word) == meant


def test_lists_stay_lists():
    assert read(quoted_override("tracking.tags=[a b, c=d,Süd]")) == ["a b", "c=d", "Süd"]
    assert quoted_override("live.models=[a (1),b]") == """'live.models=["a (1)","b"]'"""


def test_what_has_no_quoted_form():
    assert quoted_override("seed=\x00") is quoted_override("dataset.path=") is quoted_override("a b=c") is None


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", ["year=2020/a.txt", "reviews (1).txt", "Süd.txt", "it's.txt", 'a"b\\".txt', "a,b.txt"])
def test_the_printed_form_works(capsys, monkeypatch, tmp_path, name):
    """The first run prints it; with it, the second reads the file, which holds no text."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    typed = f"dataset.path={path}"
    outcome = run_here(capsys, monkeypatch, "dataset=text", typed)
    assert outcome.status == 2
    assert "Exception" not in outcome.err
    (line,) = outcome.err.splitlines()
    assert line.startswith(f"normscope: {typed}: expected ")
    word = line[line.rindex(f"'dataset.path=\"{tmp_path}") :]
    outcome = run_here(capsys, monkeypatch, "dataset=text", *shlex.split(word))
    assert outcome.err.splitlines() == [f"normscope: {typed}: the file is empty"]


def test_folders_of_checkpoints_keep_their_signs(tmp_path):
    names = ["a\\b-1", 'c"d-2', "e (1)-3"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    expanded, sweep = with_checkpoints([f"model.checkpoints={tmp_path}/*"], "run")
    assert sweep == "-m"
    override = OverridesParser.create().parse_override(expanded)
    assert sorted(map(str, override.sweep_string_iterator())) != []
    assert {value.text for value in override.value().list} == {str(tmp_path / name) for name in names}
