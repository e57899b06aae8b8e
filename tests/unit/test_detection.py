"""How well low values detect what is marked, by hand and pair by pair."""

import itertools

import numpy as np
import pytest

from normscope.statistics.detection import detection

NAN = float("nan")


def test_by_hand():
    """Marked: 0.1, 0.3, 0.3; others: 0.2, 0.3, 0.9, 0.95."""
    values = np.array([0.9, 0.1, 0.3, 0.2, 0.3, 0.3, 0.95])
    marked = np.array([False, True, True, False, True, False, False])
    found = detection(values, marked, 0.25)
    assert found.precision == 1 / 2  # 0.1 and 0.2 are flagged
    assert found.recall == 1 / 3
    assert found.auc == pytest.approx((4 + 2 * (2 + 0.5)) / 12)
    assert found.average_precision == pytest.approx(1 / 3 * 1 + 2 / 3 * 3 / 5)
    assert (found.marked, found.labelled) == (3, 7)


def test_what_is_not_defined_is_nan():
    values = np.array([0.1, 0.5])
    none, every = (detection(values, np.full(2, marked), 0.3) for marked in (False, True))
    assert none == pytest.approx((0.0, NAN, NAN, NAN, 0, 2), nan_ok=True)
    assert every == pytest.approx((1.0, 0.5, NAN, 1.0, 2, 2), nan_ok=True)
    assert np.isnan(detection(values, np.array([True, False]), 0.05).precision)


def test_values_that_only_rounding_tells_apart_are_equal():
    assert detection(np.array([1.0, 1.0 - 1e-15]), np.array([True, False]), 0.5).auc == 0.5


@pytest.mark.parametrize("seed", range(5))
def test_against_every_pair_and_threshold(seed):
    random = np.random.default_rng(seed)
    values, marked = random.integers(0, 12, size=40) / 12, random.random(40) < 0.3
    found = detection(values, marked, 0.3)
    pairs = [np.sign(other - one) / 2 + 0.5 for one, other in itertools.product(values[marked], values[~marked])]
    assert found.auc == pytest.approx(np.mean(pairs))
    area, before = 0.0, 0.0
    for threshold in np.unique(values):
        flagged = values <= threshold
        recall = (flagged & marked).sum() / marked.sum()
        area += (recall - before) * (flagged & marked).sum() / flagged.sum()
        before = recall
    assert found.average_precision == pytest.approx(area)
