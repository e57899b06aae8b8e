"""What argparse takes of a command line, and what it leaves to Hydra."""

import pytest

from normscope.cli.command_line import asked_of, attention_keys, text_of, with_checkpoints
from normscope.errors import InputError
from normscope.running.options import SCHEMA

FLAGS = ["-m", "--cfg", "job", "--config-dir", "a=b", "--info", "-sc", "install=bash"]
"""Of Hydra, with their values."""


@pytest.mark.parametrize(
    ("typed", "command", "left"),
    [
        ([], "run", []),
        (["analysis=[mixing,norms]", "~tracking", "+a.b=1"], "run", ["analysis=[mixing,norms]", "~tracking", "+a.b=1"]),
        (["model=bert", *FLAGS, "seed=-1"], "run", ["model=bert", *FLAGS, "seed=-1"]),
        (["-m", "--quiet", "seed=1,2"], "run", ["-m", "verbosity=quiet", "seed=1,2"]),
        (["run", "seed=1"], "run", ["run", "seed=1"]),
        (["serve", "live.port=0", "-m"], "serve", ["live.port=0", "-m"]),
        (["explain", "A text.", "--quiet", "model=bert"], "explain", ["verbosity=quiet", "model=bert"]),
        (["attention", "A text.", "queries=last", "-m"], "attention", ["queries=last", "-m"]),
    ],
)
def test_what_is_not_ours_is_left_to_hydra_as_it_was_typed(typed, command, left):
    asked, words = asked_of(typed)
    assert (asked.command, words, asked.help) == (command, left, False)


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        (["A text."], "A text."),
        (["E=mc2"], "E=mc2"),
        (["-5 degrees"], "-5 degrees"),
        (["--", "-m"], "-m"),
        (["--", "--help"], "--help"),
        (["--", "README.md"], "README.md"),
        (["--", "model=bert"], "model=bert"),
    ],
)
def test_a_text_is_what_was_typed(typed, text):
    asked, words = asked_of(["explain", *typed, "seed=1"])
    assert (text_of(asked, SCHEMA.knows), words, asked.help) == (text, ["seed=1"], False)


@pytest.mark.parametrize(
    "word", ["model.name=X", "dataset.limit=4", "experiment=clark2019", "+model.step=1", "model=bert"]
)
def test_explaining_an_override_without_a_text_is_refused(word):
    asked, _ = asked_of(["explain", word])
    with pytest.raises(InputError, match="expected a text before"):
        text_of(asked, SCHEMA.knows)


def test_the_keys_of_attention_are_read_as_hydra_reads_them():
    words = ["queries=[0:5,last]", "layers=[1]", "keys=words,3", "top=2", "-m", "measure=é("]
    keys, others = attention_keys(words)
    assert keys == {"queries": ["0:5", "last"], "keys": ["words", 3], "top": 2, "measure": "é("}
    assert others == ["layers=[1]", "-m"]
    for again in ("top=3", "top=2"):
        with pytest.raises(InputError, match=f"{again} and top=2 are both set; expected one of them"):
            attention_keys(["top=2", again])


def test_checkpoints_are_a_sweep_or_the_models_of_a_page(tmp_path):
    for step in (1, 2):
        (tmp_path / f"c-{step}").mkdir()
        (tmp_path / f"c-{step}" / "config.json").write_text("{}")
    words = ["seed=1", f"model.checkpoints={tmp_path}/*"]
    first, second = (f'"{tmp_path}/c-{step}"' for step in (1, 2))
    assert with_checkpoints(words, "run") == ["seed=1", f"model.name={first},{second}", "-m"]
    assert with_checkpoints([*words, "--multirun"], "run") == ["seed=1", f"model.name={first},{second}", "--multirun"]
    assert with_checkpoints(words, "serve") == ["seed=1", f"model.name={first}", f"live.models=[{second}]"]
    assert with_checkpoints(["model.checkpoints=null"], "run") == ["model.checkpoints=null"]
    with pytest.raises(InputError, match="are both set"):
        with_checkpoints([*words, "model.name=x"], "serve")
