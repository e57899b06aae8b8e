"""Damaged run folders, in every command that reads them: one line that names the file, exit status 2, and no traceback."""

import pytest

from tests.end_to_end.bad_input.generate import run_cases
from tests.end_to_end.bad_input.run_folders import COMMANDS, Runs, cases
from tests.end_to_end.bad_input.stock import Stock


@pytest.fixture(scope="module")
def runs(tmp_path_factory, tokenizer):
    return Runs.made(Stock.made(tmp_path_factory.mktemp("stock"), tokenizer))


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_damaged_files_are_named(command, runs, tmp_path, monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    damaged = list(cases(runs, command))
    assert len(damaged) >= 40
    damaged = damaged[COMMANDS.index(command) % 4 :: 4]  # commands share readers: what one leaves out, others have
    faults = run_cases(enumerate(damaged), tmp_path)
    assert not faults, "\n".join(faults)
