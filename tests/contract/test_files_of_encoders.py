"""A sentence encoder on disk is loaded as sentence-transformers loads it, whatever version of it has written the files."""

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Pooling, Transformer
from torch import nn
from transformers import AutoTokenizer

import normscope
from normscope.errors import InputError
from normscope.models.stored.embedder_files import TRANSFORMER_SETTINGS
from tests.one_text import similarity
from tests.tiny import FAMILY_CONFIGS, tiny_model

# peft uses a deprecated attribute of transformers.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

A, B = "The OLD bridge was Closed", "A crossing that Nobody could use in SPRING"

WHOLE = ("modules.json", "config_sentence_transformers.json", "README.md")
"""Files that are never the Transformer's."""


@pytest.fixture(scope="module")
def base(minilm_folder, tmp_path_factory) -> Path:
    """A tiny model whose tokenizer tells capitals apart."""
    place = tmp_path_factory.mktemp("base")
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder, do_lower_case=False)
    settings = FAMILY_CONFIGS["bert"] | {"vocab_size": len(tokenizer), "model_type": "bert"}
    model = tiny_model(settings, torch.float32)
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def saved(base, tmp_path_factory) -> Path:
    """An encoder as today's version of the library saves it. Its first token is pooled."""
    place = tmp_path_factory.mktemp("saved")
    torch.manual_seed(0)
    modules = [Transformer(str(base)), Pooling(24, "cls"), Dense(24, 10, activation_function=nn.Tanh())]
    SentenceTransformer(modules=modules, device="cpu", similarity_fn_name="dot").save_pretrained(str(place))
    return place


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(saved, tmp_path / "encoder"))


def change(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path


def cosine_of(encoder: SentenceTransformer) -> float:
    return float(encoder.similarity(*encoder.encode([A, B], convert_to_tensor=True))[0, 0])


@functools.cache
def of_library(folder: Path) -> float:
    return cosine_of(SentenceTransformer(str(folder), device="cpu").eval())


def assert_as_the_library(folder: Path, *, differs_from: Path | None = None) -> None:
    """Load = wrap = library, and another number than that of another folder."""
    library = SentenceTransformer(str(folder), device="cpu").eval()
    expected = cosine_of(library)
    for model in (normscope.load(str(folder)), normscope.wrap(library)):
        assert similarity(model, A, B).value == pytest.approx(expected, rel=1e-5)
    if differs_from is not None:
        assert of_library(differs_from) != pytest.approx(expected, rel=1e-3)


def moved(folder: Path, place: str) -> None:
    """Move the Transformer to a folder of its own, as versions before 2 have saved it."""
    (folder / place).mkdir()
    for file in [file for file in folder.iterdir() if file.is_file() and file.name not in WHOLE]:
        file.rename(folder / place / file.name)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0] |= {"path": place, "type": "sentence_transformers.models.Transformer"}
    (folder / "modules.json").write_text(json.dumps(modules))


@pytest.mark.parametrize("file", TRANSFORMER_SETTINGS)
@pytest.mark.spread(1)
def test_settings_are_read_from_the_file_of_any_version(file, folder, saved):
    settings = change(folder / "sentence_bert_config.json", do_lower_case=True, max_seq_length=21)
    settings.rename(folder / file)
    assert_as_the_library(folder, differs_from=saved)
    assert normscope.load(str(folder)).max_length == 21


@pytest.mark.slow
@pytest.mark.parametrize("config", [None, {"__version__": "0.2.5"}], ids=["no config", "a config of version 0"])
def test_a_transformer_in_a_folder_of_its_own(config, folder, saved):
    moved(folder, "0_Transformer")
    change(folder / "0_Transformer" / "sentence_bert_config.json", do_lower_case=True)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    assert_as_the_library(folder, differs_from=saved)
    assert normscope.load(str(folder)).folder == folder


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    "flags",
    [
        {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False},
        {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False},  # which stands for the mean
        {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False},
    ],
)
def test_flags_of_older_pooling_modules(flags, folder, saved):
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 24} | flags))
    assert_as_the_library(folder, differs_from=saved)


@pytest.mark.slow
def test_arguments_of_the_tokenizer(folder, saved):
    path = folder / "sentence_bert_config.json"
    change(
        path,
        tokenizer_args={"do_lower_case": True, "model_max_length": 30},
        model_args={"attn_implementation": "eager"},
    )
    assert_as_the_library(folder, differs_from=saved)
    assert normscope.load(str(folder)).max_length == 30


@pytest.mark.slow
def test_a_longer_text_than_the_tokenizer_says(folder):
    """The encoder's own limit stands in place of the tokenizer's."""
    change(folder / "tokenizer_config.json", model_max_length=8)
    assert normscope.load(str(folder)).max_length == 8
    change(folder / "sentence_bert_config.json", max_seq_length=32)
    assert normscope.load(str(folder)).max_length == 32
    assert_as_the_library(folder)


@pytest.fixture(scope="module")
def tuned(saved, tmp_path_factory) -> Path:
    """An encoder tuned with LoRA, whose pooling is not that of its base."""
    place = tmp_path_factory.mktemp("tuned")
    before = SentenceTransformer(str(saved), device="cpu")
    encoder = SentenceTransformer(
        modules=[before[0], Pooling(24, "mean"), before[2]], device="cpu", similarity_fn_name="dot"
    )
    encoder.add_adapter(LoraConfig(r=2, target_modules=["query", "value"], task_type="FEATURE_EXTRACTION"))
    torch.manual_seed(0)
    for name, parameter in encoder.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter, std=0.5)
    encoder.eval().save_pretrained(str(place))
    return place


@pytest.mark.slow
def test_an_encoder_tuned_with_lora_has_its_own_files(tuned, saved):
    assert not (tuned / "config.json").exists()
    assert_as_the_library(tuned, differs_from=saved)


@pytest.mark.slow
def test_settings_beside_an_adapter_are_read(tuned, tmp_path):
    folder = Path(shutil.copytree(tuned, tmp_path / "lower"))
    change(folder / "sentence_bert_config.json", do_lower_case=True, max_seq_length=19)
    assert_as_the_library(folder, differs_from=tuned)
    expected = similarity(normscope.load(str(folder)), A, B).value
    assert normscope.load(str(folder)).max_length == 19
    moved(folder, "0_Transformer")  # from where the library does not read adapters
    assert similarity(normscope.load(str(folder)), A, B).value == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow
def test_an_adapter_that_does_not_say_how_it_pools_is_not_guessed(tuned, tmp_path):
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(tuned / file, tmp_path)
    model = normscope.load(str(tmp_path))
    with pytest.raises(InputError, match=r"has no modules\.json that says how it pools; expected one of mean"):
        similarity(model, A, B)


def with_module(folder: Path, number: int, **changes: Any) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules[number] |= changes
    (folder / "modules.json").write_text(json.dumps(modules))


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("number", "changes", "message"),
    [
        (2, {"path": "../other/2_Dense"}, r"expected folders inside its own, got '\.\./other/2_Dense'"),
        (2, {"path": "/etc"}, "expected folders inside its own, got '/etc'"),
        (
            0,
            {"type": "custom_st.Transformer"},
            r"has a custom_st\.Transformer module, expected a Transformer, one Pooling",
        ),
        (2, {"type": "sentence_transformers.models.LSTM"}, "has a LSTM module, expected a Transformer, one Pooling"),
    ],
)
def test_modules_that_are_not_known_are_named(number, changes, message, folder):
    with_module(folder, number, **changes)
    model = normscope.load(str(folder))
    with pytest.raises(InputError, match=message):
        similarity(model, A, B)


@pytest.mark.parametrize("kind", ["WordEmbeddings", "BoW", "StaticEmbedding", "Router"])
def test_an_encoder_without_a_transformer_is_named(kind, tmp_path):
    modules = [{"path": f"0_{kind}", "type": f"sentence_transformers.models.{kind}"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(InputError, match=f"expected a Transformer as the first module of its modules.json, got {kind}"):
        normscope.load(str(tmp_path))


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"config_args": {"is_decoder": True}}, r"sets is_decoder in config_args, which normscope does not know"),
        ({"tokenizer_args": {"nonsense": 1}}, r"sets nonsense in tokenizer_args, which normscope does not know"),
        ({"modality_config": {"message": {}}}, r"writes texts in the tokenizer's chat template"),
        ({"module_output_name": "sentence_embedding"}, r"returns sentence_embedding, expected one that reads the text"),
        (
            {"processing_kwargs": {"text": {"max_length": 5}}},
            r"sets processing_kwargs, expected one that reads the text",
        ),
        ({"transformer_task": "fill-mask"}, r"has the task fill-mask, expected one that reads the text itself"),
    ],
)
def test_settings_that_change_what_is_embedded_are_named(settings, message, folder):
    change(folder / "sentence_bert_config.json", **settings)
    with pytest.raises(InputError, match=message):
        similarity(normscope.load(str(folder)), A, B)


def test_a_chat_template_that_the_library_would_write_is_named(base, tmp_path):
    shutil.copytree(base, tmp_path, dirs_exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.chat_template = "{% for each in messages %}{{ each['content'] }}{% endfor %}"
    tokenizer.save_pretrained(tmp_path)
    encoder = SentenceTransformer(modules=[Transformer(str(tmp_path)), Pooling(24, "mean")], device="cpu").eval()
    with pytest.raises(InputError, match="writes texts in the tokenizer's chat template"):
        normscope.wrap(encoder)


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("change_of", "message"),
    [
        (lambda weights: weights.update({"gate.weight": torch.ones(2)}), "have gate.weight, which it does not use"),
        (lambda weights: weights.pop("linear.weight"), "lack linear.weight"),
    ],
)
def test_every_tensor_of_a_module_is_used(change_of, message, folder):
    path = folder / "2_Dense" / "model.safetensors"
    weights = load_file(path)
    change_of(weights)
    save_file(weights, path)
    model = normscope.load(str(folder))
    with pytest.raises(InputError, match=f"the weights of the Dense module of .* {message}; to leave the rest out"):
        similarity(model, A, B)
