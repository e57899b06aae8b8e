"""Two hundred generated bad inputs: one line and exit status 2 each, or a run that was fine after all."""

import pytest

from tests.end_to_end.bad_input.generate import run_all
from tests.end_to_end.bad_input.stock import Stock


@pytest.fixture(scope="module")
def stock(tmp_path_factory, tokenizer):
    return Stock.made(tmp_path_factory.mktemp("stock"), tokenizer)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_every_bad_input_gives_one_line(stock, tmp_path, monkeypatch, first):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    faults = run_all(stock, tmp_path, seed=0, numbers=range(first, first + 50))
    assert not faults, "\n".join(faults)
