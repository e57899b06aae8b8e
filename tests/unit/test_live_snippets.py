"""What is copied from a live page makes the numbers that the page shows."""

import json
import os
import re
import shlex
import subprocess
import sys
import types

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

import normscope
from normscope import cli  # noqa: F401 - registers the schema
from normscope.command_line import text_of
from normscope.distribution import folder
from normscope.live import snippets
from normscope.live.session import Session
from normscope.live.snippets import source_of
from normscope.live.state import State
from normscope.live.texts import Read
from normscope.models.options import DeviceOptions, DType, ModelOptions
from normscope.reporting.page.report import repeated
from normscope.rounding import number
from normscope.running.options import SCHEMA
from tests.end_to_end.shell import run_here
from tests.tiny import saved_with_head, sentence_encoder
from tests.unit.test_live_server import asked, client_of, unpacked

TEXT = 'It\'s an "old" bridge; $HOME, `so` we crossed.'
BEFORE = 'It\'s a "new" bridge; $HOME, `so` we crossed.'


@pytest.fixture(scope="module")
def folders(saved_model, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("a folder's models")  # whose name needs quotes
    return [
        sentence_encoder(saved_model, folder / "encoder"),
        saved_with_head(AutoModelForCausalLM, "gpt2", tokenizer, folder / "gpt2"),
        saved_with_head(AutoModelForMaskedLM, "bert", tokenizer, folder / "bert"),
    ]


@pytest.fixture(scope="module")
def client(folders):
    device = DeviceOptions(name="cpu")
    models = [normscope.load(str(folder), device="cpu") for folder in folders]
    sources = [
        source_of(model, ModelOptions(name=str(path)), device) for model, path in zip(models, folders, strict=True)
    ]
    session = Session(models, 24, sources)
    yield client_of(session)
    assert session.engine.close(5)


def run(code):
    names = {}
    exec(compile(code, "copied", "exec"), names)
    return names


STATES = [
    {"layer": "2", "head": "3", "measure": "attn_w"},
    {"layer": "1", "head": "2", "measure": "attn_n", "level": "word"},
    {"layer": "3", "head": "0", "measure": "share"},
    {"measure": "alti", "through": "1", "layer": "2"},
    {"layer": "3", "measure": "attnres_n", "minus": "layer:1"},
    {"layer": "3", "measure": "attn_n", "minus": "measure:attn_w"},
    {"before": BEFORE, "minus": "before", "layer": "2"},
    {"measure": "rollout", "through": "1", "layer": "2", "minus": "measure:attn_w"},
    {"measure": "norm_rollout", "through": "1", "minus": "measure:attnres_n", "head": "2"},
    {"measure": "attn_w", "through": "1", "layer": "3", "minus": "measure:alti", "head": "2"},
    {"measure": "decompx", "through": "1", "layer": "3", "minus": "layer:1", "level": "word"},
    {"layer": "2", "measure": "share", "minus": "measure:attn_w"},
    {"model": "2", "measure": "attn_n"},
    {"model": "2", "compare": "1", "target": "bridge", "against": "old"},
    {
        "model": "3",
        "text": 'It\'s an "old" [MASK]; $HOME.',
        "before": 'It\'s a "new" [MASK]; $HOME.',
        "target": "river",
    },
]


@pytest.mark.spread(1)
@pytest.mark.parametrize("state", STATES, ids=lambda state: " ".join(map("=".join, state.items()))[:60])
def test_python(client, state):
    state = {"text": TEXT} | state
    names = run(asked(client, "code", **state)["python"])
    sides = 2 if {"before", "compare"} & state.keys() else 1
    for side, suffix in zip(range(sides), ("", "_before"), strict=False):
        found = asked(client, side=side, **state)
        count = len(found["tokens"])
        maps = {name: unpacked(packed, (3, count, count)) for name, packed in found["maps"]["maps"].items()}
        weights = unpacked(found["maps"]["weights"], (3, 4, count, count))
        maps["attn_w"] = weights.mean(axis=1)
        if state.get("through"):
            for part in ("chained", "carried"):
                through = asked(client, part, side=side, **state)["maps"]
                maps |= {name: unpacked(packed, (3, count, count)) for name, packed in through.items()}
        layer, head = int(state.get("layer", 3)) - 1, int(state.get("head", 0)) - 1
        measure, (kind, _, other) = state.get("measure", "attn_n"), state.get("minus", "").partition(":")
        expected = maps[measure][layer]
        if head >= 0 and measure == "attn_w":
            expected = weights[layer, head]
        elif head >= 0 and measure == "attn_n":
            norms = unpacked(found["maps"]["head_maps"]["attn_n"], (3, 4, count, count))
            expected = norms[layer, head]
        if kind == "layer":
            expected = expected - maps[measure][int(other) - 1]
        elif kind == "measure":
            less = weights[layer, head] if head >= 0 and other == "attn_w" else maps[other][layer]
            expected, less = (values / values.sum(-1, keepdims=True) for values in (expected, less))
            expected = expected - less
        np.testing.assert_allclose(
            np.asarray(names[f"shown{suffix}"]), expected, atol=2e-3 * np.abs(maps[measure]).max(), rtol=0
        )
        if side and "compare" in state:  # an encoder, which has no such answer
            assert f"found{suffix}" not in names
        else:
            predicted = asked(client, "prediction", side=side, **state)
            np.testing.assert_allclose(names[f"found{suffix}"].scores, predicted["scores"], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_the_python_of_two_embeddings_has_their_pairs(client):
    names = run(asked(client, "code", text=TEXT, before=BEFORE)["python"])
    pair = asked(client, "pair", text=TEXT, before=BEFORE)
    np.testing.assert_allclose(names["pairs"].ravel(), pair["values"], rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_the_python_of_two_texts_in_a_model_that_says_not_how_it_pools(saved_model):
    model = normscope.load(str(saved_model), random_init=True)
    session = Session(
        [model], 24, [source_of(model, ModelOptions(name=str(saved_model), random_init=True), DeviceOptions())]
    )
    code = asked(client_of(session), "code", text=TEXT, before=BEFORE)["python"]
    assert 'text_before, pooling="mean")' in code
    names = run(code)
    expected = normscope.similarity(model, TEXT, BEFORE, pooling="mean").matrix
    np.testing.assert_allclose(names["pairs"], expected, rtol=1e-4, atol=1e-6)
    session.engine.close(5)


HOSTILE = [
    "a\x03\ntouch owned\n",
    "\x1b[201~\ntouch owned\n",
    "\x9b201~touch owned\r",
    "$(touch owned)",
    "`touch owned`; touch owned #",
    "it's\x07 !! $HOME \\x41 \\",
    "\\'$(touch owned)\n'",
    "a\tb\r\nc\x7f\x85d",
    "\u202eevil\u2028line\u200b \u00a0",
    "👩\u200d👧 naïve 北京\n",
    "README.md",
    "hello",
    "/etc/hostname",
    "-",
    "--",
    "--quiet",
    "-h --help",
    "key=value",
    "${oc.env:HOME} ~ * ? [a]",
    "  spaces  ",
]
STUB = """#!{python}
import json, sys
json.dump(sys.argv[1:], open({seen!r}, "w"))
"""


def words_of(command, folder):
    """What a shell hands to the program when a command is pasted, byte by byte as a terminal sends it."""
    seen = folder / "seen.json"
    stub = folder / "normscope"
    stub.write_text(STUB.format(python=sys.executable, seen=str(seen)))
    stub.chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    subprocess.run(["bash", "-c", command], cwd=folder, env={"PATH": path}, check=True, timeout=20)
    assert not (folder / "owned").exists()
    return json.loads(seen.read_text())


@pytest.mark.spread(6)
@pytest.mark.parametrize("text", HOSTILE)
def test_a_pasted_command_has_the_text_and_runs_nothing_else(client, tmp_path, monkeypatch, text):
    for name in ("README.md", "hello", "-", "a"):
        (tmp_path / name).write_text("not this")
    code = asked(client, "code", text=text, model="2")
    command, python = code["command"], code["python"]
    assert command.isprintable()
    assert python.replace("\n", "").isprintable()
    words = words_of(command, tmp_path)
    monkeypatch.setattr(sys, "argv", ["normscope", *words])
    monkeypatch.chdir(tmp_path)
    assert text_of("explain", SCHEMA.knows) == text
    assert not [word for word in sys.argv[1:] if "=" not in word]
    names = {}
    exec(next(line for line in python.splitlines() if line.startswith("text = ")), names)
    assert names["text"] == text


NAMES = [
    *("${oc.env:HOME}", "\\${x}", "a${b", 'it\'s "a\\b"', "ends in \\", "x\x1b[201~\ny", "\u202eevil"),
    *("null", "true", "1e5", "007", ".5", "inf", "models (1)", "Süd", "a,b=[c]", "{a: b}", "~a", "/tmp/a-b_c.d", "./a"),
]


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_a_model_is_a_literal(folders, tmp_path, name):
    model = normscope.load(str(folders[0]), device="cpu")
    source = source_of(model, ModelOptions(name=name, revision=name), DeviceOptions())
    given = []
    exec(
        source.python, {"normscope": types.SimpleNamespace(load=lambda name, revision: given.append((name, revision)))}
    )
    assert given == [(name, name)]
    command = snippets.command([source], State(text="a"), Read("a", "a", "", chat=False))
    assert command.isprintable()
    with initialize_config_dir(str(folder("conf")), version_base="1.3"):
        options = compose("config", overrides=words_of(command, tmp_path)[3:])
    assert (options.model.name, options.model.revision) == (name, name)


def test_a_text_that_no_argument_holds_has_no_command(client):
    code = asked(client, "code", text="a\0b", model="2")
    assert code["command"] == ""
    assert "text = 'a\\x00b'" in code["python"]


def test_the_command_that_repeats_a_run_is_printable(tmp_path):
    words = ["normscope", "dataset.path=a\x1b[201~\ntouch owned\n", "output_dir=x"]
    shown = repeated(shlex.join(words))
    assert shown.isprintable()
    assert words_of(shown, tmp_path) == [words[1]]


@pytest.mark.spread(1)
@pytest.mark.parametrize("model", ["2", "3"])
def test_the_command(client, capsys, monkeypatch, tmp_path, model):
    text = TEXT if model == "2" else 'It\'s an "old" [MASK]; $HOME.'
    state = {"text": text, "model": model}
    program, *words = shlex.split(asked(client, "code", **state)["command"])
    assert program == "normscope"
    outcome = run_here(capsys, monkeypatch, *words, f"output_dir={tmp_path}")
    assert outcome.status == 0, outcome.err
    predicted = asked(client, "prediction", **state)
    for name, probability in predicted["choices"][:5]:
        assert f"{number(100 * probability):>7}%  {name}" in outcome.out
    largest = sorted(predicted["scores"], key=abs, reverse=True)[:8]
    shown = re.findall(r"^  +([+−]\d\S*)  ", outcome.out, re.MULTILINE)
    assert shown == [number(score, signed=True) for score in largest]


def test_what_loads_a_model(folders):
    def code(device=None, **model):
        found = source_of(models[0], ModelOptions(**{"name": "a/b"} | model), device or DeviceOptions())
        return found.python, " ".join(found.keys)

    models = [normscope.load(str(folders[0]), device="cpu")]
    assert code() == ("normscope.load('a/b')", "model.name=a/b")
    assert code(name="it's") == ('normscope.load("it\'s")', 'model.name="it\'s"')
    assert code(revision="v1", trust_remote_code=True) == (
        "normscope.load('a/b', revision='v1', trust_remote_code=True)",
        "model.name=a/b model.revision=v1 model.trust_remote_code=true",
    )
    assert code(random_init=True, seed=3) == (
        "normscope.load('a/b', random_init=True, seed=3)",
        "model.name=a/b model.random_init=true model.seed=3",
    )
    assert code(DeviceOptions(name="cpu", dtype=DType.float64)) == (
        "normscope.load('a/b', device='cpu', dtype='float64')",
        "model.name=a/b device.name=cpu device.dtype=float64",
    )
    assert code(factory="a:b") == ("", "")
