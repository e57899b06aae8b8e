"""Six hundred generated bad inputs: one line and exit status 2 each, or a run that was fine after all."""

import pytest

from tests.end_to_end.bad_input.generate import run_all
from tests.end_to_end.bad_input.stock import Stock


@pytest.mark.slow
def test_every_bad_input_gives_one_line(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    faults = run_all(Stock.made(tmp_path / "stock", tokenizer), tmp_path, seed=0, numbers=range(600))
    assert not faults, "\n".join(faults)
