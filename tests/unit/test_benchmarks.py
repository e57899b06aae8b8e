"""The benchmark of large language models on CUDA, tried without one; and that of commands, without new processes."""

import dataclasses
import json
import sys
from pathlib import Path
from unittest import mock

import pandas as pd
import pytest

from benchmarks import commands, measuring
from benchmarks.__main__ import main as benchmark
from benchmarks.measuring import measured
from benchmarks.scenarios import (
    BARE,
    SHAPES,
    SUITES,
    Scenario,
    large_language_model,
    layers_that_fit,
)
from docs.hooks import measurements
from normscope import cli

GIBIBYTE = 2**30


def test_what_fails_is_named_and_loses_nothing_else(monkeypatch):
    def fail() -> None:
        raise MemoryError("not enough\nof it")

    once = iter([None])

    def fail_later() -> None:
        if next(once, True):
            raise ValueError("later")

    ways = {BARE: lambda: None, "mixing": fail, "norms": fail_later, "score": lambda: None}
    scenario = Scenario("MiniLM", 1, 128, tuple(ways))
    monkeypatch.setattr(measuring, "prepare", lambda _scenario: ways)

    def memory(_scenario: Scenario, way: str) -> measuring.Memory:
        if way == "score":
            raise RuntimeError("killed")
        return measuring.Memory(2, 2)

    monkeypatch.setattr(measuring, "_memory_of", memory)
    rows = {row["way"]: row for row in measured(scenario, repeats=2)}
    assert {way: row["note"] for way, row in rows.items()} == {
        BARE: "",
        "mixing": "it failed: MemoryError: of it",
        "norms": "it failed: ValueError: later",
        "score": "memory failed: RuntimeError: killed",
    }
    assert {way for way, row in rows.items() if "seconds" in row} == {BARE, "score"}
    assert {way for way, row in rows.items() if "memory_ratio" in row} == {BARE}
    monkeypatch.setitem(ways, BARE, fail)
    with pytest.raises(RuntimeError, match="MiniLM, 128 tokens: bare: it failed: MemoryError"):
        measured(scenario, repeats=1)


def test_the_shape_is_llamas_and_the_batch_that_of_the_target():
    scenario = large_language_model(20)
    assert (scenario.sequences, scenario.length, scenario.dtype, scenario.layers) == (4, 4096, "bfloat16", 20)
    config = SHAPES[scenario.shape]
    head_dim = config.hidden_size // config.num_attention_heads
    attention = config.hidden_size * head_dim * (2 * config.num_attention_heads + 2 * config.num_key_value_heads)
    layer = attention + 3 * config.hidden_size * config.intermediate_size + 2 * config.hidden_size
    total = config.num_hidden_layers * layer + 2 * config.vocab_size * config.hidden_size + config.hidden_size
    assert total == 8_030_261_248  # the parameters of Llama-3.1-8B, with its head


@pytest.mark.parametrize(("free", "layers"), [(141, 32), (0, 1)])
def test_fewer_layers_are_measured_if_memory_lacks(free, layers):
    assert layers_that_fit(SHAPES["Llama-3.1-8B"], free * GIBIBYTE) == layers


def test_more_memory_takes_more_layers():
    fitting = [layers_that_fit(SHAPES["Llama-3.1-8B"], free * GIBIBYTE) for free in (16, 24, 40, 80)]
    assert fitting == sorted(fitting)
    assert 1 <= fitting[0] < fitting[2] <= 32


def test_without_cuda_its_suite_is_empty(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert not list(SUITES["cuda"]())
    assert dataclasses.replace(large_language_model(), memory=False).packed()


@pytest.mark.slow
def test_a_bare_command_runs_the_untouched_model_on_all_batches(monkeypatch, saved_model, tmp_path):
    monkeypatch.setattr(cli, "_import_pipeline", cli._import_pipeline)
    arguments = [
        f"model.name={saved_model}",
        "dataset.limit=5",
        "device.batch_tokens=64",
        f"output_dir={tmp_path / 'run'}",
    ]
    monkeypatch.setattr(sys, "argv", ["commands.py", *arguments])
    bare, tokens, runs = commands._bare, [], []

    def counted(run, file):
        model = run.plan.model.model
        forward = model.forward

        def counting(**inputs):
            assert model.config._attn_implementation == "sdpa"
            tokens.append(int(inputs["attention_mask"].sum()))
            return forward(**inputs)

        monkeypatch.setattr(model, "forward", counting)
        runs.append(run)
        bare(run, file)

    monkeypatch.setattr(commands, "_bare", counted)
    with pytest.raises(SystemExit, match="0"):
        commands._run(tmp_path / "seconds")
    mock.patch.stopall()
    assert json.loads((tmp_path / "seconds").read_text()) > 0
    assert runs[0].counts.sequences == 5
    assert sum(tokens) == runs[0].counts.tokens
    assert len(tokens) > 1


@pytest.mark.slow
def test_commands_are_measured_beside_bare_passes_and_drawn(monkeypatch, tmp_path):
    started = []

    def timed(*command):
        started.append(command)
        if command[0] == "-m":
            Path(command[2]).write_text("2.0")
        else:
            run = Path(command[-1].removeprefix("output_dir="))
            run.mkdir()
            phases = {"start": 1.0, "pass": 4.0, "publishing": 1.0}
            (run / "results.json").write_text(json.dumps({"facts": {"phases": phases}}))
        return 8.0

    monkeypatch.setattr(commands, "_timed", timed)
    ways = ["mixing", commands.TOGETHER]
    monkeypatch.setattr(commands, "WAYS", ways)
    asked = ["benchmarks", "--only", "commands", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*asked, "--repeats", "2"])
    benchmark()
    table = pd.read_csv(tmp_path / "commands.csv")
    assert table[["shape", "examples"]].drop_duplicates().to_numpy().tolist() == [
        *(["MiniLM", 120], ["MiniLM", 2000]),
        *(["BERT-base", 120], ["BERT-base", 2000]),
    ]
    assert table["way"].tolist() == 4 * ways
    assert (table["ratio"] == 2.5).all()
    assert len(started) == 4 * len(table)
    assert started[1][:3] == ("run.py", "analysis=[mixing]", "model=minilm")
    assert (tmp_path / "commands.png").read_bytes()[:4] == b"\x89PNG"
    monkeypatch.setattr(measurements, "MEASURED", tmp_path)
    assert (
        "| MiniLM | 120 | mixing | 8 | 2.0 | 2.50 | 2.00 | 0.00 | 0.00 | 0.00 | 0.50 |"
        in measurements.TABLES["commands"]()
    )
    assert f"| BERT-base | 2,000 | all {len(commands.ANALYSES)} | 8 |" in measurements.TABLES["commands"]()


def test_a_command_that_fails_says_why():
    with pytest.raises(RuntimeError, match="exit status 3\nbroken"):
        commands._timed("-c", "import sys; sys.stderr.write('broken'); sys.exit(3)")


def test_commands_cover_the_examples_of_the_sample_in_turn():
    lines = list(commands.examples(450))
    assert lines[:200] == lines[200:400]
    assert len(set(lines)) == 200
    assert {"similarity", "syntax", "alignment"}.isdisjoint(commands.ANALYSES)
