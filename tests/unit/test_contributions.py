"""Maps of one layer, against cases computed by hand."""

import torch

from normscope.maths.contributions import cosine_distance


def test_a_cosine_distance_is_exact_where_one_minus_cos_cancels():
    one = torch.tensor([1.0, 0.0], dtype=torch.float64)
    change = torch.tensor([[0.0, 1e-9], [3.0, 0.0], [-2.0, 0.0], [-1.0, 5.0], [-2.0, 1.0]], dtype=torch.float64)
    expected = torch.tensor([0.5e-18, 0.0, 2.0, 1.0, 1 + 0.5**0.5], dtype=torch.float64)
    torch.testing.assert_close(cosine_distance(one, change), expected, rtol=1e-9, atol=0)


def test_a_cosine_distance_with_a_vector_of_zeros():
    one, zeros = torch.tensor([1.0, 0.0]), torch.zeros(2)
    assert cosine_distance(zeros, zeros) == 0
    assert cosine_distance(zeros, one) == 0.5
    assert cosine_distance(one, -one) == 0.5
