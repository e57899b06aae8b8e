"""Damaged run folders, in every command that reads them: one line that names the file, exit status 2, and no traceback."""

import pytest

from tests.end_to_end.bad_input.generate import run_cases
from tests.end_to_end.bad_input.run_folders import COMMANDS, Runs, cases
from tests.end_to_end.bad_input.stock import Stock


class Undisturbed:
    """A run that other tests have made, in place of all."""

    def __init__(self, folder):
        self.folder = folder

    def __getitem__(self, _name):
        return self.folder


@pytest.mark.slow
def test_a_comparison_names_the_damaged_file(undisturbed, tmp_path):
    """A small part of what follows."""
    some = [case for case in cases(Undisturbed(undisturbed), "compare") if "feedforward" not in case.what][::47]
    assert len(some) >= 12
    faults = run_cases(enumerate(some), tmp_path)
    assert not faults, "\n".join(faults)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, tokenizer):
    return Runs.made(Stock.made(tmp_path_factory.mktemp("stock"), tokenizer))


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_damaged_file_is_named(command, runs, tmp_path, monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    damaged = list(cases(runs, command))
    assert len(damaged) >= 40
    faults = run_cases(enumerate(damaged), tmp_path)
    assert not faults, "\n".join(faults)
