"""Tidy tables by hand."""

import numpy as np
import pandas as pd
import pytest
import torch

from normscope.statistics.tidy import tidy


def test_one_row_per_element_in_row_major_order():
    table = tidy(
        {"mean": torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])}, layer=[3, 7], category=["cls", "sep", "all"]
    )
    assert table.columns.tolist() == ["layer", "category", "mean"]
    assert table["layer"].tolist() == [3, 3, 3, 7, 7, 7]
    assert table["category"].tolist() == ["cls", "sep", "all"] * 2
    assert table["mean"].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert table["layer"].dtype == np.int64


def test_smaller_tensors_broadcast():
    table = tidy({"mean": torch.zeros(2, 2), "count": torch.tensor([[1], [2]])}, layer=[1, 2], head=[1, 2])
    assert table["count"].tolist() == [1, 1, 2, 2]


def test_another_shape_is_refused():
    with pytest.raises(ValueError, match="broadcast"):
        tidy({"mean": torch.zeros(3, 2)}, layer=[1, 2], head=[1, 2])


def test_an_empty_axis_leaves_no_row():
    table = tidy({"mean": torch.zeros(0, 2)}, dimension=[], head=[1, 2])
    assert table.columns.tolist() == ["dimension", "head", "mean"]
    assert len(table) == 0


def test_labels_keep_their_dtype():
    categories = pd.Categorical(["sep", "cls"], categories=["sep", "cls"])
    table = tidy(
        {"mean": torch.zeros(1, 2, 2)},
        head=np.array([1], dtype=np.int32),
        category=categories,
        dimension=np.array([5, 9]),
    )
    assert table["head"].dtype == np.int32
    assert table["category"].dtype == categories.dtype
    assert table["category"].tolist() == ["sep", "sep", "cls", "cls"]
    assert tidy({"mean": torch.zeros(0)}, dimension=np.zeros(0, dtype=np.int64))["dimension"].dtype == np.int64


def test_values_may_be_text():
    table = tidy({"token": np.array(["a", "b"], dtype=object)}, layer=[1, 2], position=[0, 1])
    assert table["token"].tolist() == ["a", "b", "a", "b"]
