"""Arguments of the Python interface are checked against their annotations; its results are finite."""

import contextlib
import dataclasses
import enum
import inspect
import itertools
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForSequenceClassification

import normscope
from normscope.config.calls import Choice, Several, checked
from normscope.errors import InputError
from tests.one_text import attribute, attribution_maps, decompose, similarity
from tests.unit.test_wrapping import TEXT, in_memory


class Anything:
    """Compares like an array: an `in` of a list would fail."""

    def __eq__(self, other):
        raise ValueError

    __hash__ = None


class Size(enum.StrEnum):
    small = "small"
    large = "large"


def taking(hint):
    """A checked function of an argument, which it returns."""

    def function(argument):
        return argument

    function.__annotations__ = {"argument": hint}
    return checked(function)


@pytest.mark.parametrize(
    ("hint", "fit", "others"),
    [
        (
            int,
            [0, -3, 10**30, np.int64(3)],
            {"True": True, "1.0": 1.0, "'1'": "1", "None": None, "ndarray": np.ones(2)},
        ),
        (float, [0, 1.5, np.float32(1)], {"False": False, "'x'": "x", "Tensor": torch.ones(2)}),
        (bool, [True, np.bool_(False)], {"0": 0, "'yes'": "yes", "ndarray": np.ones(2), "Tensor": torch.ones(2)}),
        (str, ["", "a", np.str_("a")], {"bytes": b"a", "None": None, "PosixPath": Path("a"), "Anything": Anything()}),
        (str | None, ["", None], {"3": 3}),
        (str | Path, ["a", Path("a")], {"3": 3}),
        (Sequence[str], [["a"], ("a",)], {"bytes": b"a", "'a'": "a", "set": {"a"}, "1 in a list of 1 (int)": [1]}),
        (Mapping[str, Any], [{}, {"a": 1}], {"dict": {3: 1}, "a list of 0 ()": []}),
        (tuple[str, str], [("a", "b")], {"3 in a tuple of 2 (str, int)": ("a", 3), "a tuple of 1 (str)": ("a",)}),
        (Callable[[Tensor], Tensor], [len, nn.Identity()], {"3": 3}),
        (nn.Module, [nn.Identity()], {"type": nn.Identity, "3": 3}),
        (object, [None, True, 3, []], {}),
        (Any, [None, True, 3, []], {}),
    ],
)
def test_arguments_have_the_types_of_their_annotations(hint, fit, others):
    function = taking(hint)
    for value in fit:
        assert function(value) == value
        assert function(argument=value) == value
        assert not isinstance(function(value), np.generic) or isinstance(value, np.str_)
    for shown, value in others.items():
        with pytest.raises(InputError) as raised:
            function(value)
        assert str(raised.value).startswith("argument: expected ")
        assert str(raised.value).endswith(f", got {shown}")


@pytest.mark.parametrize(
    ("hint", "value", "listed"),
    [
        (Several[int], (1, 2), [1, 2]),
        (Several[int], range(2), [0, 1]),
        (Several[int], iter([3, np.int64(4)]), [3, 4]),
        (Several[int], np.array([3, 4]), [3, 4]),
        (Several[str], "alti", ["alti"]),
        (Several[str], {"a"}, ["a"]),
        (Several[Choice[Size]] | None, ["small", Size.large], [Size.small, Size.large]),
        (str | Several[str], "all", "all"),
        (int | Several[int], [1], [1]),
    ],
)
def test_several_are_read_once_into_a_list(hint, value, listed):
    found = taking(hint)(value)
    assert found == listed
    assert [type(each) for each in found] == [type(each) for each in listed]


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (Several[int], 3, "argument: expected a list of items, each a whole number, got 3"),
        (
            Several[int] | None,
            [1, True],
            "argument: expected a list of items, each a whole number, or None, got True in a list of 2 (int, bool)",
        ),
        (Several[int], b"ab", "argument: expected a list of items, each a whole number, got bytes"),
        (Several[int], itertools.count(), "argument: expected a list of items, each a whole number, got count"),
        (Several[str], {"a": 1}, "argument: expected a list of items, each a str, got dict"),
        (Choice[Size], "huge", "argument='huge': expected one of small, large"),
        (Choice[Size] | None, 3, "argument: expected one of small, large, or None, got 3"),
        (Several[Choice[Size]], ["small", "huge"], "argument='huge': expected one of small, large"),
    ],
)
def test_what_is_wrong_with_several_or_a_choice_is_one_line(hint, value, message):
    with pytest.raises(InputError) as raised:
        taking(hint)(value)
    assert str(raised.value) == message


@pytest.mark.parametrize("name", [name for name in dir(normscope) if name not in ("LivePage", "Result", "__version__")])
def test_every_public_annotation_has_words(name):
    public = inspect.unwrap(getattr(normscope, name))
    hints = typing.get_type_hints(public.__init__ if inspect.isclass(public) else public, include_extras=True)
    given = {argument: hint for argument, hint in hints.items() if argument not in ("return", "options")}
    for hint in given.values():
        if hint not in (Any, object):
            with pytest.raises(InputError, match="^argument: expected (?!any value).*, got object$"):
                taking(hint)(object())


def test_calls_keep_their_names_defaults_and_other_arguments():
    @checked
    def function(first: int, *others: str, last: "bool" = True, **more: int) -> Iterator[int]:
        """Says what it does."""
        return first, others, last, more

    assert function.__name__ == "function"
    assert function.__doc__ == "Says what it does."
    assert function(1, "a", 3, last=False, more="x") == (1, ("a", 3), False, {"more": "x"})
    with pytest.raises(InputError, match=r"^last: expected True or False, got 1$"):
        function(1, last=1)
    with pytest.raises(TypeError, match=r"function\(\) missing"):
        function()


def test_an_unknown_argument_is_named_with_the_one_that_was_meant():
    @checked
    def function(text: str, *, layers: int = 1) -> None: ...

    with pytest.raises(TypeError, match=r"function\(\) got .* 'layer'; did you mean layers\?$"):
        function("a", layer=3)
    with pytest.raises(TypeError, match=r"function\(\) got an unexpected keyword argument 'zzz'$"):
        function("a", zzz=3)


def test_attributes_of_targets_are_checked_too():
    assert normscope.NextToken(3) == normscope.NextToken(token=3)
    with pytest.raises(InputError, match=r"^token: expected a str or a whole number, or None, got True$"):
        normscope.NextToken(True)
    with pytest.raises(InputError, match=r"^measure='nats': expected one of logit, log_probability$"):
        normscope.Answer("film", measure="nats")
    assert dataclasses.replace(normscope.Label("a"), label=2).label == 2


@pytest.fixture
def damaged(tokenizer):
    """A wrapped classifier, and the model that it shares its weights with."""
    model = in_memory(AutoModelForSequenceClassification, "bert", tokenizer)
    return normscope.wrap(model, tokenizer), model


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("encoder.layer.1.attention.self.key.weight", lambda model: decompose(model, TEXT)),
        ("encoder.layer.2.attention.output.dense.bias", lambda model: decompose(model, [TEXT, TEXT])),
    ],
)
def test_a_weight_that_has_become_nan_is_named(damaged, name, call):
    wrapped, model = damaged
    call(wrapped)
    model.bert.get_parameter(name).data.view(-1)[0] = torch.nan
    with pytest.raises(InputError, match=f"^model=.*: NaN or infinity in the weight {name}"):
        call(wrapped)


@pytest.mark.slow
def test_a_head_that_has_become_infinite_is_named(damaged):
    wrapped, model = damaged
    attribute(wrapped, TEXT, 0)
    model.classifier.weight.data.fill_(torch.inf)
    with pytest.raises(InputError, match="NaN or infinity in the weight classifier.weight"):
        attribute(wrapped, TEXT, 0)


def test_numbers_that_overflow_name_the_dtype(damaged, monkeypatch):
    wrapped, _ = damaged
    monkeypatch.setattr(type(wrapped), "require_finite_weights", lambda _self: None)
    wrapped.model.encoder.layer[0].output.LayerNorm.weight.data.fill_(1e38)
    with pytest.raises(InputError, match="computes NaN or infinity in float32; try float64"):
        decompose(wrapped, TEXT)


@pytest.mark.slow
def test_a_target_may_change_the_vectors_that_it_gets(damaged):
    wrapped, _ = damaged
    expected = attribute(wrapped, TEXT, lambda hidden: 2 * hidden[1, 3])
    in_place = attribute(wrapped, TEXT, lambda hidden: hidden.mul_(2)[1, 3])
    assert np.array_equal(in_place.scores, expected.scores)
    assert (in_place.target, in_place.remainder) == (expected.target, expected.remainder)


def test_a_message_is_one_line_of_limited_length():
    assert str(InputError("two\nlines")) == "two\\nlines"
    long = str(InputError(f"name={'x' * 5000}: expected a or b"))
    assert long.startswith("name=xxx")
    assert long.endswith("xxx: expected a or b")
    assert len(long) < 300
    path = "/" + "/".join(["folder"] * 40)
    assert str(InputError(path)) == path
    assert len(str(InputError("word " * 5000))) == 1000  # without the space at the cut


@contextlib.contextmanager
def default_device(name):
    before = torch.get_default_device()
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(before)


SETTINGS = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "a default device": lambda: default_device("meta"),
    "a device": lambda: torch.device("meta"),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.slow
def test_settings_of_torch_change_no_result(setting, tokenizer):
    model = in_memory(AutoModel, "bert", tokenizer)

    def everything():
        wrapped = normscope.wrap(model, tokenizer)
        yield decompose(wrapped, TEXT).maps["attn_n"]
        yield attribute(wrapped, TEXT, lambda hidden: hidden[0, 0]).scores
        yield attribution_maps(wrapped, TEXT, "decompx")["decompx"].total
        yield similarity(wrapped, TEXT, "A cat.", pooling="mean").matrix
        yield np.array(list(normscope.run("mixing", model=wrapped, texts=[TEXT]).metrics.values()))
        yield np.stack([block.inputs.numpy() for block in normscope.observe(wrapped, TEXT)])

    expected = list(everything())
    with SETTINGS[setting]():
        results = list(everything())
        assert torch.is_autocast_enabled("cpu") == (setting == "autocast")
        assert torch.get_default_device().type == ("cpu" if setting == "autocast" else "meta")
    for result, right in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, right)
