import pytest

from tests.end_to_end import forks
from tests.end_to_end.disturbed import SMALL


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, saved_model):
    """A run that nothing happens to, in a process of its own."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    outcome = forks.run(*SMALL, f"model.name={saved_model}", f"output_dir={folder}")
    assert outcome.status == 0, outcome.err
    return folder
