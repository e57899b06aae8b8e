"""`model.factory` runs a model of the user's own code."""

import json
import re

import pytest

import normscope
from tests import own_models
from tests.end_to_end.shell import run_here

TEXTS = ["5 7 12 3", "9 1 4 8 60 2", "3 3 3"]


def bare():
    return own_models.gpt()


def named():
    return {"model": own_models.gpt(), "tokens": [str(number) for number in range(own_models.V)]}


def number():
    return 3


def failing():
    raise ValueError("no weights here")


@pytest.fixture
def arguments(tmp_path):
    path = tmp_path / "ids.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    return ["model=own", "dataset=text", f"dataset.path={path}", "analysis=mixing", f"output_dir={tmp_path / 'run'}"]


@pytest.mark.slow
@pytest.mark.parametrize("factory", ["bare", "named"])
def test_a_factory_gives_the_numbers_of_the_model_in_memory(capsys, monkeypatch, tmp_path, arguments, factory):
    outcome = run_here(capsys, monkeypatch, *arguments, f"model.factory={__name__}:{factory}")
    assert outcome.status == 0, outcome.err
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    expected = normscope.run("mixing", model=own_models.gpt(), texts=TEXTS).metrics
    assert expected
    for name, value in expected.items():
        assert results["metrics"][name] == pytest.approx(value, rel=1e-5)


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (
            f"{__name__}:number",
            "expected a torch.nn.Module, a pair of a module and its tokenizer, or a dict .* got int",
        ),
        (f"{__name__}:failing", "the function failed: no weights here"),
        (f"{__name__}:missing", "cannot import it: .*missing"),
        (f"{__name__}:TEXTS", "expected a function, got list"),
        ("no_such_package:build", "cannot import it: No module named 'no_such_package'"),
        ("build", "expected package.module:function"),
    ],
)
def test_what_is_no_factory_gives_one_line(capsys, monkeypatch, arguments, factory, message):
    outcome = run_here(capsys, monkeypatch, *arguments, f"model.factory={factory}")
    assert outcome.status == 2
    assert re.search(rf"^normscope: model\.factory={re.escape(factory)}: {message}", outcome.err, re.MULTILINE), (
        outcome.err
    )


@pytest.mark.spread(1)
@pytest.mark.parametrize("key", ["model.random_init=true", f"model.sha256={'0' * 64}"])
def test_what_does_not_go_with_a_factory_is_refused(capsys, monkeypatch, arguments, key):
    outcome = run_here(capsys, monkeypatch, *arguments, f"model.factory={__name__}:bare", key)
    assert outcome.status == 2
    assert f"the function builds the model; leave out {key.partition('=')[0]}" in outcome.err


def test_the_default_preset_does_not_name_another_model(capsys, monkeypatch, arguments):
    outcome = run_here(capsys, monkeypatch, *arguments[1:], f"model.factory={__name__}:bare")
    assert outcome.status == 2
    assert "set model=own" in outcome.err
