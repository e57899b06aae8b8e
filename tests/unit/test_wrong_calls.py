"""Wrong calls of the Python interface end in one line that names the argument, and in no other exception."""

import contextlib

import pytest

from normscope.errors import InputError
from tests.unit.wrong_calls.arguments import wrong_arguments
from tests.unit.wrong_calls.call import fault
from tests.unit.wrong_calls.models import changes_after_wrapping, damaged_models, other_models
from tests.unit.wrong_calls.stock import Stock
from tests.unit.wrong_calls.targets import wrong_targets
from tests.unit.wrong_calls.texts import wrong_texts

KINDS = {
    # How many calls there are at least, one of how many is made every day, and those that are in any case.
    wrong_arguments: (3500, 60, ("5,000 characters", "run(analyses=", "methods=", "Callback(texts=", "NextToken(")),
    wrong_texts: (400, 1, ()),
    wrong_targets: (40, 1, ()),
    damaged_models: (
        300,
        30,
        ("Identity for encoder.layer.1.a", "Sequential around it for encoder.layer.1.a", "heads"),
    ),
    changes_after_wrapping: (50, 12, ("decompose after nan",)),
    other_models: (10, 1, ()),
}


@pytest.fixture(scope="module")
def stock(saved_model, tokenizer):
    return Stock.made(saved_model, tokenizer)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Some calls are right after all, and write a file."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_wrong_calls_of_every_day(kind, stock):
    at_least, stride, always = KINDS[kind]
    every = list(kind(stock))
    assert len(every) >= at_least
    calls = [
        call for number, call in enumerate(every) if number % stride == 0 or any(part in call.what for part in always)
    ]
    faults = [found for found in map(fault, calls) if found is not None]
    assert not faults, "\n".join(faults)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind, (_, stride, _) in KINDS.items() if stride > 1])
def test_every_wrong_call(kind, stock):
    faults = [found for found in map(fault, kind(stock)) if found is not None]
    assert not faults, "\n".join(faults)


def test_models_whose_modules_were_exchanged_are_observed_or_refused(stock):
    """A layer may lack a norm that others have, and keep a projection elsewhere."""
    exchanged = {
        f"wrap with {module} for encoder.layer.1.attention.{part}"
        for module in ("Identity", "a Sequential around it")
        for part in ("output.LayerNorm", "self.key")
    }
    calls = [call for call in damaged_models(stock) if call.what in exchanged]
    assert len(calls) == len(exchanged)
    for call in calls:
        refused = call.what.startswith("wrap with a Sequential") and call.what.endswith("LayerNorm")
        message = "cannot be observed exactly: "
        with pytest.raises(InputError, match=message) if refused else contextlib.nullcontext():
            call.make()
