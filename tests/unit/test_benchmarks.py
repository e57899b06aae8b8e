"""The benchmark of a GPU, tried without one; and that of commands, without new processes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pandas as pd
import pytest
from transformers import AutoTokenizer

from benchmarks import commands, gpu, growth, measuring, results, sources
from benchmarks.__main__ import main as benchmark
from benchmarks.measuring import measured
from benchmarks.scenarios import ANSWER, ANSWER_THROUGH, BARE, PROMPT, SHAPES, Scenario
from docs.hooks import measurements
from normscope import cli
from normscope.errors import InputError
from tests.end_to_end.shell import ROOT

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


@pytest.mark.parametrize(("shape", "parameters"), [("Llama-3.1-8B", 8_030_261_248), ("Llama-3.2-1B", 1_235_814_400)])
def test_shapes_are_those_of_the_models(shape, parameters):
    config = SHAPES[shape]
    head_dim = config.hidden_size // config.num_attention_heads
    attention = config.hidden_size * head_dim * (2 * config.num_attention_heads + 2 * config.num_key_value_heads)
    layer = attention + 3 * config.hidden_size * config.intermediate_size + 2 * config.hidden_size
    tables = 1 if config.tie_word_embeddings else 2
    outside = tables * config.vocab_size * config.hidden_size + config.hidden_size
    assert config.num_hidden_layers * layer + outside == parameters  # with its head


@pytest.mark.parametrize(("free", "layers"), [(141, 32), (79, 32), (0, 1)])
def test_fewer_layers_are_measured_if_memory_lacks(free, layers):
    assert gpu.layers_that_fit(SHAPES["Llama-3.1-8B"], free * GIBIBYTE) == layers


def test_more_memory_takes_more_layers():
    fitting = [gpu.layers_that_fit(SHAPES["Llama-3.1-8B"], free * GIBIBYTE) for free in (16, 24, 40, 80)]
    assert fitting == sorted(fitting)
    assert 1 <= fitting[0] < fitting[2] <= 32


def test_a_gpu_is_filled_with_every_shape_in_both_dtypes_at_three_lengths(monkeypatch):
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (79 * GIBIBYTE, 80 * GIBIBYTE))
    found = list(gpu.scenarios("cuda"))
    analysed = [scenario for scenario in found if scenario.ways == gpu.WAYS]
    assert {(each.shape, each.dtype, each.length) for each in analysed} == {
        (shape, dtype, length)
        for shape in ("BERT-base", "Llama-3.2-1B", "Llama-3.1-8B")
        for dtype in ("bfloat16", "float32")
        for length in (128, 512, 4096)
    }
    assert all(each.sequences * each.length >= 4096 for each in analysed)
    assert len(gpu.WAYS[-1].split("+")) == 5
    others = [scenario for scenario in found if scenario.ways != gpu.WAYS]
    assert {each.length for each in others} == {600, 2100, 5100, 32768}
    assert {each.shape for each in others} == {"Llama-3.1-8B"}
    assert {each.device for each in found} == {"cuda"}


def test_without_a_gpu_none_is_measured(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--only", "cuda", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="1"):
        benchmark()
    assert "no such device" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_each_row_of_a_step_is_written_and_replaces_what_the_step_found_before(monkeypatch, tmp_path):
    def cut(_device, _repeats):
        yield {"way": "one", "seconds": 1.0, "note": ""}
        raise KeyboardInterrupt

    monkeypatch.setitem(gpu.STEPS, "fast", lambda _device, _repeats: iter([{"way": "two", "note": "2 failed"}]))
    assert not gpu.measure(["fast"], "cpu", tmp_path, 1)
    monkeypatch.setitem(gpu.STEPS, "right", cut)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            gpu.measure(["right"], "cpu", tmp_path, 1)
    monkeypatch.setitem(gpu.STEPS, "fast", lambda *_: iter([{"way": "three", "note": "it failed: CUDA out of memory"}]))
    assert gpu.measure(["fast"], "cpu", tmp_path, 1)
    table = pd.read_csv(tmp_path / "gpu_rehearsal.csv")
    assert table[["step", "way"]].to_numpy().tolist() == [["right", "one"], ["fast", "three"]]
    assert not (tmp_path / "gpu.csv").exists(), "no GPU has been used"


def test_a_scenario_that_fails_as_a_whole_loses_no_other(monkeypatch):
    def prepare(scenario):
        if scenario.length == 64:
            raise MemoryError("CUDA out of memory")
        return dict.fromkeys(scenario.ways, lambda: None)

    monkeypatch.setattr(measuring, "prepare", prepare)
    rows = [row for row in gpu.fast("cpu", 1) if row["way"] == BARE]
    lost = "it failed: MemoryError: CUDA out of memory"
    assert [(row["dtype"], row["length"], row["note"]) for row in rows] == [
        *(("float32", 64, lost), ("bfloat16", 64, lost)),
        *(("float32", 128, ""), ("float32", PROMPT + 20, "")),
    ]


def test_the_page_of_costs_shows_what_a_gpu_did_or_that_none_has_been_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(measurements, "MEASURED", tmp_path)
    assert measurements.TABLES["gpu"]().startswith("No GPU has been measured yet.")
    size = {"shape": "BERT-base", "device": "cuda", "dtype": "bfloat16", "sequences": 512, "length": 128, "layers": 12}
    memory = {"memory_ratio": 1.5, "pass_ratio": 2.0, "mebibytes": 3072, "note": ""}
    lost = "it failed: OutOfMemoryError: CUDA out of memory. Tried to allocate"
    found = {
        "right": [{"way": "40 tests on gpu", "seconds": 30.5, "note": ""}],
        "fast": [
            size | {"way": BARE, "time_ratio": 1.0, "seconds": 0.05, "tokens_per_second": 1_310_720, "note": ""},
            size | {"way": gpu.WAYS[-1], "note": lost},
        ],
        "memory": [size | {"way": BARE} | memory],
        "command": [
            {"shape": "MiniLM", "way": "normscope", "time_ratio": 1.25, "tokens_per_second": 90_000, "note": ""}
        ],
    }
    monkeypatch.setattr(gpu, "card", lambda: "a card, driver 1, CUDA 2")
    for step, rows in found.items():
        gpu.keep(tmp_path, "cuda", step, rows)
    page = measurements.TABLES["gpu"]()
    assert "| BERT-base | bfloat16 | 12 | 512 × 128 | bare | 1.00 | 1,310,720 | 1.50 | 3.0 |  |" in page
    assert "| BERT-base | bfloat16 | 12 | 512 × 128 | all five | – | – | – | – | out of memory |" in page
    assert "`normscope` (MiniLM, the sample corpus) analyses 90,000 tokens/s, and takes 1.25 times as long" in page
    assert "Tests that compare the GPU with the CPU: 40 passed." in page
    assert page.endswith("Measured on: a card, driver 1, CUDA 2.")


def test_answers_are_attributed_beside_a_pass_over_prompt_and_answer():
    length = PROMPT + 4
    scenario = Scenario("tiny Llama", 1, length, (BARE, ANSWER, ANSWER_THROUGH), layers=1, memory=False)
    rows = {row["way"]: row for row in measured(scenario, repeats=1)}
    assert {way: row["note"] for way, row in rows.items()} == {BARE: "", ANSWER: "", ANSWER_THROUGH: ""}
    assert all(row["length"] == length and row["seconds"] > 0 for row in rows.values())


def test_the_command_has_random_weights_where_the_default_model_is_missing(monkeypatch, tmp_path):
    def missing():
        raise InputError("there is none")

    monkeypatch.setattr(gpu, "default_model", missing)
    shape, settings = gpu._model(tmp_path)
    assert shape == "MiniLM, random weights"
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.tokenize("The river, [SEP] qqqq") == ["The", "river", ",", "[SEP]", "[UNK]"]
    assert tokenizer("the river")["input_ids"][0] == tokenizer.cls_token_id
    assert f"model.name={tmp_path / 'model'}" in settings


@pytest.mark.slow
def test_the_script_runs_everything_small_on_a_cpu(tmp_path):
    environment = os.environ | {"DEVICE": "cpu", "OUT": str(tmp_path), "PYTHON": sys.executable}
    done = subprocess.run(["bash", "benchmarks/gpu.sh"], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    table = pd.read_csv(tmp_path / "gpu_rehearsal.csv").fillna({"note": ""})
    assert list(table["step"].unique()) == list(gpu.STEPS)
    assert (table["note"] == "").all()
    assert not table["machine"].str.contains("CUDA").any()
    assert [path.name for path in tmp_path.iterdir()] == ["gpu_rehearsal.csv"]


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
            phases = {"start": 1.0, "pass": 4.0, "views": 1.0}
            (run / "results.json").write_text(json.dumps({"facts": {"tokens": 9, "phases": phases}}))
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


def test_what_methods_find_is_summarised_over_prompts():
    """Shares are means over prompts, and ρ is a median with an interval that holds it; all kinds come first."""
    rows = pd.DataFrame(
        {
            "kind": ["single", "single", "chain"],
            "prompt": [1, 2, 1],
            "method": "attention",
            "top1": [True, False, True],
            "top3": True,
            "ablations": [0.25, 0.5, 1.0],
            "passes": [1, 1, 1],
            "seconds": 1.0,
        }
    )
    table = sources.summary(rows)
    assert table["kind"].tolist() == ["all", "single", "chain"]
    assert table["prompts"].tolist() == [3, 2, 1]
    assert table["top1"].tolist() == pytest.approx([2 / 3, 1 / 2, 1])
    assert table["rho"].tolist() == [0.5, 0.375, 1.0]
    assert (table["rho_low"] <= table["rho"]).all()
    assert (table["rho"] <= table["rho_high"]).all()


@pytest.mark.parametrize("kind", sources.KINDS)
def test_generated_prompts_say_which_passages_are_needed(kind):
    """An answer stands in one of the passages that it needs, and what is wrong is no answer."""
    prompt, other = (next(sources.prompts(kind, 0, 200)) for _ in range(2))
    assert prompt == other
    assert len(prompt.passages) == sources.PASSAGES
    for answer, needed in prompt.needs.items():
        last = answer.replace(":", ",").split(", ")[-1]
        assert any(last in prompt.passages[place] for place in needed)
        assert answer not in prompt.others


def test_how_cost_grows_is_said_and_drawn(tmp_path):
    sizes = [(1, 1.0), (2, 5.0), (4, 20.0)]
    rows = [{"shape": "MiniLM", "way": "mixing", "layers": size, "seconds": seconds} for size, seconds in sizes]
    rows += [{"shape": "MiniLM", "way": "norms", "layers": 4, "seconds": 1.0}]
    assert [*growth.exponents(rows, "layers")] == ["MiniLM, mixing: from 2 to 4 layers, time grows with the power 2.00"]
    of_batches = [row | {"sequences": 4 // row["layers"]} for row in rows[:3]]
    assert "power 3.00" in next(growth.exponents(of_batches, "layers"))
    results.write(tmp_path, "depths", [row | {"time_ratio": 1.1, "memory_ratio": 1.0} for row in rows])
    results.write(tmp_path, "corpora", [{**row, "examples": 2, "mebibytes": 9} for row in rows[:2]])
    assert (tmp_path / "depths.png").exists()
    assert not (tmp_path / "corpora.png").exists(), "a single size shows no growth"
    assert len(set(growth.sentences(500))) == 500
