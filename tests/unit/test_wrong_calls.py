"""Wrong calls of the Python interface end in one line that names the argument, and in no other exception."""

import pytest

from tests.unit.wrong_calls.arguments import wrong_arguments
from tests.unit.wrong_calls.call import fault
from tests.unit.wrong_calls.models import changes_after_wrapping, damaged_models, other_models
from tests.unit.wrong_calls.stock import Stock
from tests.unit.wrong_calls.targets import wrong_targets
from tests.unit.wrong_calls.texts import wrong_texts

KINDS = {
    wrong_arguments: 3500,
    wrong_texts: 400,
    wrong_targets: 40,
    damaged_models: 300,
    changes_after_wrapping: 50,
    other_models: 10,
}
"""How many calls of each kind there are at least."""


@pytest.fixture(scope="module")
def stock(saved_model, tokenizer):
    return Stock.made(saved_model, tokenizer)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Some calls are right after all, and write a file."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_wrong_call(kind, stock):
    calls = list(kind(stock))
    assert len(calls) >= KINDS[kind]
    faults = [found for found in map(fault, calls) if found is not None]
    assert not faults, "\n".join(faults)


def test_models_whose_modules_were_exchanged_are_observed(stock):
    """A layer may lack a norm that others have, and keep a norm or a projection elsewhere."""
    exchanged = {
        f"wrap with {module} for encoder.layer.1.attention.{part}"
        for module in ("Identity", "a Sequential around it")
        for part in ("output.LayerNorm", "self.key")
    }
    calls = [call for call in damaged_models(stock) if call.what in exchanged]
    assert len(calls) == len(exchanged)
    for call in calls:
        call.make()
