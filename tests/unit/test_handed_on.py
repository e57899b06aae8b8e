"""Parts of an answer's own sentences that are handed on to the prompt: a case by hand, and sums."""

import numpy as np

from normscope.attribution.handed_on import handed_on


def test_by_hand():
    """The first sentence comes to 3/4 from the first source, and the second to (1 + 2 · 3/4) / 4 from it."""
    prompt = np.array([[3.0, 1.0, -5.0], [1.0, 1.0, -1.0]])
    answer = np.array([[0.4, 0.0], [2.0, -8.0]])
    found = handed_on(prompt, answer)
    first, second = np.array([3, 1, 0]) / 4, np.array([1 + 1.5, 1 + 0.5, 0]) / 4
    np.testing.assert_allclose(found.through[0], [0.4 * first, 0 * first])
    np.testing.assert_allclose(found.through[1], [2 * first, -8 * second])
    np.testing.assert_allclose(found.parts, prompt + found.through.sum(axis=1))
    np.testing.assert_array_equal(found.kept, 0)


def test_they_add_up():
    random = np.random.default_rng(0)
    prompt, answer = random.normal(size=(6, 4)), np.tril(random.normal(size=(6, 6)))
    prompt[:2] = -np.abs(prompt[:2])  # the first sentence has nothing to hand on to
    found = handed_on(prompt, answer)
    np.testing.assert_allclose(found.parts.sum(axis=1) + found.kept, prompt.sum(axis=1) + answer.sum(axis=1))
    assert found.kept[0] == answer[0, 0]
