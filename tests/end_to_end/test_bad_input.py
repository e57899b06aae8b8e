"""Bad input: one line that names the key, exit status 2, and nothing left behind that looks like a result."""

import contextlib
import json
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from omegaconf.errors import ValidationError
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForMaskedLM

from normscope.config.schema import nested
from normscope.errors import InputError
from normscope.models.load.loading import open_model
from normscope.models.options import DeviceOptions, ModelOptions
from normscope.running.options import SCHEMA, RunOptions
from tests.end_to_end.bad_input.answer import PROGRESS
from tests.end_to_end.bad_input.case import Case
from tests.end_to_end.bad_input.overrides import STRINGS
from tests.end_to_end.bad_input.suggestions import followed
from tests.end_to_end.bad_input.values import FOUND
from tests.end_to_end.shell import run_here


def refuse(capsys, monkeypatch, tmp_path, *arguments: str) -> str:
    """Run a command that must be refused and return its one line."""
    folder = tmp_path / "out"
    settings = ["tracking=disabled", f"output_dir={folder}"]
    if arguments[0] in ("explain", "attention"):
        given = [*arguments, *(settings if len(arguments) > 2 else [])]
    else:
        given = list(arguments) if arguments[0] in ("serve", "compare", "page") else [*settings, *arguments]
    outcome = run_here(capsys, monkeypatch, *given)
    assert outcome.status == 2, outcome.err
    lines = [line for line in outcome.err.splitlines() if not PROGRESS.fullmatch(line)]
    assert len(lines) == 1, outcome.err
    assert lines[0].startswith("normscope: ")
    assert not folder.exists(), "nothing may be left behind"
    assert outcome.out == ""
    return lines[0]


@pytest.mark.parametrize(("words", "arguments", "message"), FOUND)
@pytest.mark.spread(14)
def test_what_was_found(capsys, monkeypatch, tmp_path, saved_model, words, arguments, message):
    if arguments == ["device=cuda"]:  # on every machine
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    given = (word.replace("{model}", str(saved_model)) for word in (*words, *arguments))
    assert message in refuse(capsys, monkeypatch, tmp_path, *given)


@pytest.mark.parametrize("arguments", [[], ["--multirun"]])
def test_an_empty_output_folder_is_refused_before_anything_is_made(capsys, monkeypatch, tmp_path, arguments):
    monkeypatch.chdir(tmp_path)
    outcome = run_here(capsys, monkeypatch, *arguments, "tracking=disabled", "output_dir=")
    assert outcome.status == 2
    assert "normscope: output_dir='': expected a folder on this machine, or null, got an empty text" in outcome.err
    assert "Traceback" not in outcome.err
    assert not list(tmp_path.iterdir())


CONFIG = OmegaConf.structured(RunOptions)


@pytest.mark.parametrize("key", STRINGS)
def test_null_is_suggested_only_where_it_is_accepted(key):
    """An empty value of every key that takes a text: the message offers null if, and only if, the key may be null."""
    with pytest.raises(InputError) as raised:
        SCHEMA.check(nested(key, ""))
    try:
        OmegaConf.update(CONFIG, key, None)
        accepted = key != "figures.width"  # OmegaConf takes null for any type of several
    except ValidationError:
        accepted = False
    line = str(raised.value)
    assert line.endswith(f", got an empty text; leave {key} out")
    assert (", or null, got" in line) == accepted


# Messages that suggest something, each with what it suggests.
@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (["dataset.categories=''"], 1),
        (["analysis=[]"], 1),
        (["figures.format=pdf"], 1),
        (["figures.format=jpg"], 0),
        (["analysis=mixing,norms"], 1),
        (["level=word", "analysis=outliers"], 1),
        (["dataset.wikitext=true", "dataset=conllu"], 1),
        (["device.max_memory.cpu=1GiB"], 1),
        (["device.name=cuda:99"], 2),
    ],
)
@pytest.mark.spread(1)
def test_what_a_message_suggests_is_accepted(capsys, monkeypatch, tmp_path, saved_model, arguments, count):
    arguments = [f"model.name={saved_model}", "dataset.limit=1", "report.enabled=false", *arguments]
    case = Case("", arguments, [])
    found = list(followed(case, refuse(capsys, monkeypatch, tmp_path, *arguments)))
    assert len(found) == count, found
    for number, suggested in enumerate(found):
        folder = f"output_dir={tmp_path / str(number)}"
        outcome = run_here(capsys, monkeypatch, "tracking=disabled", folder, *suggested.arguments)
        assert outcome.status in (0, 2), outcome.err
        assert not outcome.err.startswith(tuple(suggested.refused)), outcome.err


@pytest.mark.slow
def test_overrides_are_recorded_as_they_were_typed(capsys, monkeypatch, tmp_path, saved_model):
    monkeypatch.setenv("MY_MODEL", str(saved_model))
    arguments = ["model.name='${oc.env:MY_MODEL}'", "tracking=disabled", "report.enabled=false", "dataset.limit=2"]
    assert run_here(capsys, monkeypatch, *arguments, f"output_dir={tmp_path / 'a'}").status == 0
    assert "oc.env:MY_MODEL" in json.loads((tmp_path / "a/results.json").read_text())["facts"]["command"]


@pytest.mark.slow
def test_files_and_folders_of_other_kinds(capsys, monkeypatch, tmp_path):
    """A treebank read as text, keys of columns for a file without, and the folder of a training run."""
    for name in (
        "a.conllu",
        "a.txt",
        "folder/b.conllu",
        "run/checkpoint-900/config.json",
        "run/checkpoint-1000/config.json",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a\n")
    text = "dataset=text"
    for path in ("a.conllu", "folder"):
        line = refuse(capsys, monkeypatch, tmp_path, text, f"dataset.path={tmp_path / path}")
        assert line.endswith("; for a treebank, set dataset=conllu")
    for key in ("text_column=body", "pair_column=text", "score_column=3", "delimiter=x", "quoting=none"):
        line = refuse(capsys, monkeypatch, tmp_path, text, f"dataset.path={tmp_path / 'a.txt'}", f"dataset.{key}")
        assert line.startswith(f"normscope: dataset.{key}: expected a file with columns, got {tmp_path / 'a.txt'}")
    run = tmp_path / "run"
    line = refuse(capsys, monkeypatch, tmp_path, f"model.name={run}")
    assert line.endswith(f"model.name={run}/checkpoint-1000, or model.checkpoints='{run}/checkpoint-*' for all 2")


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("name", "arguments", "advice"),
    [
        ("a.txt", [], "; check dataset.path"),
        ("a.csv", [], "; check dataset.path and dataset.text_column"),
        ("a.txt", ["analysis=similarity", "analysis.similarity.pooling=mean"], " (dataset.pair_column))"),
    ],
)
def test_a_corpus_without_an_example_names_the_keys_that_it_depends_on(
    capsys, monkeypatch, tmp_path, saved_model, name, arguments, advice
):
    path = tmp_path / name
    path.write_text("text\n\u200b\n" if name == "a.csv" else "A cat." if arguments else "\u200b\n")
    line = refuse(
        capsys, monkeypatch, tmp_path, f"model.name={saved_model}", "dataset=text", f"dataset.path={path}", *arguments
    )
    assert "no usable example" in line
    assert line.endswith(advice)


@pytest.mark.slow
def test_a_template_that_rejects_everything_is_what_is_named(capsys, monkeypatch, tmp_path, saved_model):
    folder, path = broken_copy(saved_model, tmp_path), tmp_path / "a.jsonl"
    (folder / "chat_template.jinja").write_text("{{ raise_exception('nobody may speak') }}")
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "Hello."}]}))
    arguments = ["dataset=text", f"dataset.path={path}", "dataset.chat_template=true"]
    line = refuse(capsys, monkeypatch, tmp_path, f"model.name={folder}", *arguments)
    reason = "messages that the chat template rejects: nobody may speak (dataset.chat_template)"
    assert line.endswith(f"no usable example (1 {reason})")


def broken_copy(saved_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved_model, tmp_path / "broken"))


def test_a_truncated_weights_file(capsys, monkeypatch, tmp_path, saved_model):
    folder = broken_copy(saved_model, tmp_path)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "its weights cannot be read" in refuse(capsys, monkeypatch, tmp_path, f"model.name={folder}")


def test_a_bad_config_gives_one_line_without_warnings(tmp_path, saved_model):
    folder = broken_copy(saved_model, tmp_path)
    config = json.loads((folder / "config.json").read_text()) | {"rope_scaling": "foo"}
    (folder / "config.json").write_text(json.dumps(config))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InputError, match=r"its config\.json cannot be used") as raised:
            open_model(ModelOptions(name=str(folder), seed=0))
    assert "\n" not in str(raised.value)


def with_longest_sequence(folder: Path, limit: object) -> Path:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": limit}))
    return folder


@pytest.mark.parametrize("limit", [3.5, -5, 0, True, "x", float("nan"), float("inf"), [1]])
@pytest.mark.spread(1)
def test_a_tokenizer_whose_limit_is_no_number_of_tokens(tmp_path, saved_model, limit):
    folder = with_longest_sequence(broken_copy(saved_model, tmp_path), limit)
    opened = open_model(ModelOptions(name=str(folder), seed=0))
    with pytest.raises(InputError, match="model_max_length") as raised:
        opened.load(DeviceOptions(name="cpu"))
    assert str(folder) in str(raised.value)


@pytest.mark.spread(1)
@pytest.mark.parametrize(("limit", "expected"), [(30.0, 30), (10**30, 160)])
def test_a_tokenizer_limits_sequences_that_the_model_would_take(tmp_path, saved_model, limit, expected):
    folder = with_longest_sequence(broken_copy(saved_model, tmp_path), limit)
    loaded = open_model(ModelOptions(name=str(folder), seed=0)).load(DeviceOptions(name="cpu"))
    assert (loaded.max_length, type(loaded.max_length)) == (expected, int)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda bias: bias[:3], "the weight cls.predictions.transform.dense.bias has the shape (3,)"),
        (lambda bias: bias.to(torch.int8), "got I8 for cls.predictions.transform.dense.bias"),
        (lambda bias: bias * float("nan"), "NaN or infinity in the weight cls.predictions.transform.dense.bias"),
    ],
)
@pytest.mark.slow
def test_damaged_weights_of_the_head(capsys, monkeypatch, tmp_path, saved_model, change, message):
    """Refused before the corpus is read, by an analysis that uses the head."""
    folder = broken_copy(saved_model, tmp_path)
    AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
    tensors, key = load_file(folder / "model.safetensors"), "cls.predictions.transform.dense.bias"
    save_file(tensors | {key: change(tensors[key])}, folder / "model.safetensors", {"format": "pt"})
    arguments = (f"model.name={folder}", "device=cpu", "analysis=sinks")
    line = refuse(capsys, monkeypatch, tmp_path, *arguments)
    assert message in line
    assert f"model.name={folder}: " in line


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], "expected named tensors in pytorch_model.bin, got list;"),
        ({1: torch.ones(1)}, "expected named tensors in pytorch_model.bin, got Tensor for 1;"),
        ({"a": 3}, "expected named tensors in pytorch_model.bin, got int for 'a';"),
        ({"a": contextlib.suppress}, "pytorch_model.bin is damaged, or holds something other than tensors;"),
        (b"\x80\x02", "pytorch_model.bin is damaged, or holds something other than tensors;"),
    ],
)
def test_pickled_weights_that_are_none(tmp_path, saved_model, content, message):
    folder = broken_copy(saved_model, tmp_path)
    (folder / "model.safetensors").unlink()
    if isinstance(content, bytes):
        (folder / "pytorch_model.bin").write_bytes(content)
    else:
        torch.save(content, folder / "pytorch_model.bin")
    with pytest.raises(InputError) as raised:
        open_model(ModelOptions(name=str(folder), seed=0, allow_pickle=True))
    assert f"model.name={folder}: {message}" in str(raised.value)


def test_a_folder_with_results_is_not_overwritten(capsys, monkeypatch, tmp_path, saved_model):
    folder = tmp_path / "taken"
    folder.mkdir()
    (folder / "results.json").write_text("{}")
    outcome = run_here(capsys, monkeypatch, f"model.name={saved_model}", f"output_dir={folder}")
    assert outcome.status == 2
    assert "holds the results of another run" in outcome.err
    assert (folder / "results.json").read_text() == "{}"


def test_a_bug_keeps_its_traceback(capsys, monkeypatch, tmp_path, saved_model):
    from normscope.analyses.mixing import MixingAnalysis

    monkeypatch.setattr(MixingAnalysis, "result", lambda _self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_here(
            capsys,
            monkeypatch,
            f"model.name={saved_model}",
            f"output_dir={tmp_path / 'a'}",
            "tracking=disabled",
            "dataset.limit=2",
        )
    kept = json.loads((tmp_path / "a/results.json").read_text())
    assert kept["status"] == "failed"
    assert list(kept["facts"]["phases"])[-1] == "results", "it says how far it came"


@pytest.mark.slow
def test_a_file_that_turns_bad_late_gives_one_line_too(capsys, monkeypatch, tmp_path, saved_model):
    path = tmp_path / "late.txt"
    path.write_bytes(b"fine\n" * 6000 + b"caf\xe9\n")
    arguments = [f"model.name={saved_model}", "dataset=text", f"dataset.path={path}", "tracking=offline"]
    outcome = run_here(capsys, monkeypatch, *arguments, f"output_dir={tmp_path / 'a'}")
    assert outcome.status == 2
    assert "Traceback" not in outcome.err
    assert "line 6001, byte 30003: not UTF-8 (0xe9" in outcome.err
    assert json.loads((tmp_path / "a/results.json").read_text())["status"] == "failed"


@pytest.mark.slow
def test_categories_that_never_occur_are_refused_if_they_are_all(capsys, monkeypatch, tmp_path, saved_model):
    arguments = [f"model.name={saved_model}", "categories=[mask]", "analysis=[mixing,norms]", "tracking=disabled"]
    outcome = run_here(capsys, monkeypatch, *arguments, "dataset.limit=3", f"output_dir={tmp_path / 'a'}")
    assert outcome.status == 2
    assert "categories=[mask]: no token of these categories occurs in the corpus" in outcome.err
