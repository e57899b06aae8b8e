"""Models that the tests of the oracles share."""

import pytest

from tests.oracles.specimens import Specimen, made


@pytest.fixture(scope="module", params=["bert", "qwen2"])
def specimen(request) -> Specimen:
    return made(request.param)


@pytest.fixture(scope="module", params=["bert", "qwen2", "marian"])
def any_specimen(request) -> Specimen:
    """For analyses that support cross-attention."""
    return made(request.param)
