"""Models of strangers: files that are none, configs out of bounds, and values of other types are refused in one line."""

import ast
import json
import os
import re
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import CONFIG_MAPPING, AutoModel

from normscope.errors import InputError
from normscope.models.load.loading import load
from normscope.models.options import DeviceOptions, ModelOptions
from normscope.models.stored import config_checks
from normscope.models.stored.config_checks import check_config_file, check_supported
from normscope.models.stored.embedder_files import embedder_of
from normscope.models.stored.weight_checks import check_size
from tests.source import parsed

SOURCE = Path(__file__).parents[2] / "src" / "normscope"

CPU = DeviceOptions(name="cpu")


@pytest.fixture
def folder(saved_model, tmp_path) -> Path:
    """A copy of a tiny BERT, to be changed."""
    copy = tmp_path / "model"
    shutil.copytree(saved_model, copy)
    return copy


def changed(folder: Path, name: str, **values: object) -> Path:
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return folder


def loaded(folder: Path) -> None:
    _ = load(ModelOptions(name=str(folder)), CPU).verification


@pytest.mark.parametrize(
    "name",
    [
        *("config.json", "tokenizer_config.json", "tokenizer.json", "model.safetensors", "generation_config.json"),
        *("special_tokens_map.json", "chat_template.jinja", "1_Pooling/config.json", "model.safetensors.index.json"),
    ],
)
@pytest.mark.parametrize("kind", ["pipe", "device", "hole"])
def test_what_is_no_file_of_ordinary_size_is_refused(folder, name, kind):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as stream:
            stream.truncate(2**40)
    with pytest.raises(InputError, match=f"model.name={re.escape(str(folder))}: "):
        loaded(folder)


@pytest.mark.slow
def test_links_into_a_cache_are_read(folder, tmp_path):
    for number, path in enumerate(sorted(folder.iterdir())):
        shutil.move(path, tmp_path / f"blob{number}")
        path.symlink_to(tmp_path / f"blob{number}")
    loaded(folder)


@pytest.mark.parametrize("name", ["modules.json", "1_Pooling/config.json", "sentence_bert_config.json"])
@pytest.mark.parametrize(
    "content", ["[" * 100_000, '{"a":' * 100_000, "\0" * 100, '[{"type": 5, "path": [1]}]', "9" * 5000]
)
def test_small_files_of_encoders_are_checked(folder, name, content):
    modules = [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1_Pooling"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode": "mean"}')
    (folder / name).write_text(content)
    with pytest.raises(InputError):
        embedder_of(folder, "name")


@pytest.mark.spread(4)
@pytest.mark.parametrize(
    "values",
    [
        {"hidden_size": 10_000_000},
        {"hidden_size": 1_000_000_000},
        {"intermediate_size": 10**8},
        {"vocab_size": 10**9},
        {"max_position_embeddings": 10**9},
        {"type_vocab_size": 10**9},
        pytest.param({"num_hidden_layers": 9_999}, marks=pytest.mark.slow),
        {"num_hidden_layers": 10**9},
        {"num_attention_heads": 10**9},
        {"num_labels": 10**9},
        {"layer_norm_eps": -1e-12},
        {"layer_norm_eps": -1.0},
        {"layer_norm_eps": float("inf")},
    ],
    ids=str,
)
def test_configs_out_of_bounds_cost_nothing(folder, values):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError):
        loaded(changed(folder, "config.json", **values))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # KiB


def test_a_key_is_bounded_by_what_it_means(tmp_path):
    """Gemma's `vocab_size_per_layer_input`, 262,144 by default, is no number of layers."""
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "hidden_size_per_layer_input": 1}
    config = CONFIG_MAPPING["gemma4_text"](**sizes, **heads)
    assert config.vocab_size_per_layer_input == 262_144
    check_supported(config)
    AutoModel.from_config(config).save_pretrained(tmp_path)
    check_config_file(tmp_path, "name")
    check_size(config, tmp_path, "name")


@pytest.mark.parametrize(
    ("family", "values", "line"),
    [
        # Qwen's config lists the kind of each layer, GPT-2 has another name for their number.
        ("qwen2", {"num_hidden_layers": 10**12}, "to 10,000 for num_hidden_layers, got"),
        ("gpt2", {"n_layer": 10**12}, "to 10,000 for n_layer, got"),
        ("llava", {"text_config": {"model_type": "gpt2", "n_layer": 10**12}}, "to 10,000 for n_layer, got"),
        # No name that all families share.
        pytest.param(
            *("bart", {"decoder_layers": 10**12, "d_model": 16, "decoder_ffn_dim": 4}, "at most 200,000 modules"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_is_repeated_too_often_is_refused_at_once(tmp_path, monkeypatch, family, values, line):
    monkeypatch.setattr(config_checks.bounded_modules.__wrapped__, "__defaults__", (2000, config_checks._TOO_MANY))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family} | values))
    (tmp_path / "model.safetensors").write_bytes(b"")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=line):
        load(ModelOptions(name=str(tmp_path), random_init=True), CPU)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # KiB


@pytest.mark.spread(1)
@pytest.mark.parametrize("value", [5, 0.5, ["a"], {"default": 3}])
def test_a_chat_template_is_a_text(folder, value):
    with pytest.raises(InputError, match="chat_template|cannot load a tokenizer"):
        loaded(changed(folder, "tokenizer_config.json", chat_template=value))


# Who reads files by other means, and why.
_ELSEWHERE = {
    "checkup/findings.py": "tables that pandas has written to memory",
    "cli/__init__.py": "a preset of ours, or of the user's",
    "cli/command_line.py": "the standard input",
    "data/categories.py": "a file that the user has named",
    "data/conllu_file.py": "a corpus",
    "data/input_files.py": "a corpus",
    "data/examples.py": "examples that another process of ours sends",
    "data/lines.py": "a corpus",
    "data/resources.py": "a checkpoint that has been checked",
    "data/text_files.py": "a corpus",
    "data/token_frequencies.py": "a file that the user has named",
    "live/explaining.py": "answers of our own session",
    "live/server.py": "requests, whose size is limited",
    "models/load/input_reading.py": "an image that the user has named, whose size is limited",
    "models/stored/files.py": "weights, for their digest",
    "models/load/loading.py": "the weights of an adapter, for their digest",
    "reporting/comparison/runs.py": "lines of a text that the reader has read",
    "reporting/exhibits.py": "our own files",
    "results/maps.py": "an image within a file that the reader has read",
    "reporting/page/elements.py": "our own files",
    "reporting/published.py": "our own files",
    "reporting/weights_and_biases.py": "our own results",
    "running/checkpoint.py": "our own values, a file that has been checked, and messages of our own processes",
    "config/training_step.py": "a text that the reader has read",
    "streams.py": "the standard input",
    "testing/test_contract.py": "our own files",
    "translation/toy.py": "our own code",
    "untrusted/plain_data.py": "the reader",
    "api/training.py": "a text that the reader has read",
}

_READS = re.compile(r"read_text|read_bytes|read_csv|read_parquet|read_json")


def _reads(tree: ast.AST) -> Iterator[str]:
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = ast.unparse(call.func)
        of_path = name.endswith(".open") and not name.startswith(("os.", "self."))
        if of_path or _READS.fullmatch(name.rpartition(".")[2]) or name in ("open", "json.load", "json.loads"):
            yield name


@pytest.mark.slow
def test_small_files_are_read_by_one_reader():
    reading = {
        path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if any(_reads(parsed(path.read_text())))
    }
    assert sorted(reading - _ELSEWHERE.keys()) == []
