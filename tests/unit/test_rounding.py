"""Numbers as readers see them."""

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope.rounding import (
    between,
    brief,
    brief_share,
    compared,
    decimals_of,
    differ,
    duration,
    fixed,
    in_points,
    movement,
    number,
    ordinal,
    percentage,
    shares_differ,
)

SOURCE = Path(__file__).parents[2] / "src/normscope"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (1.0, "1.00"),
        (0.5, "0.500"),
        (-0.4472098, "−0.447"),
        (0.0123456, "0.0123"),
        (0.001, "0.00100"),
        (0.000999951, "0.00100"),
        (0.00099, "9.90×10⁻⁴"),
        (-4.5649e-7, "−4.56×10⁻⁷"),
        (2.125, "2.13"),  # exact in binary: a half is rounded away from zero
        (9.996, "10.0"),
        (99.95, "100"),  # in binary a little more than a half
        (123.456, "123"),
        (13059.0, "13,100"),
        (999_600.0, "1.00×10⁶"),
        (123_456_789.0, "1.23×10⁸"),
        (5e-324, "4.94×10⁻³²⁴"),
        (1.7976931348623157e308, "1.80×10³⁰⁸"),
        (math.nan, ""),
        (-math.inf, "−∞"),
    ],
)
def test_three_significant_digits(value, written):
    assert number(value) == written


def test_signs():
    assert [number(value, signed=True) for value in (0.25, -0.25, 0.0)] == ["+0.250", "−0.250", "0"]
    assert [percentage(value, signed=True) for value in (0.25, -0.25, 0.0001)] == ["+25.0%", "−25.0%", "0.0%"]


@pytest.mark.parametrize(
    ("share", "written"),
    [(0.239024, "23.9%"), (1.0, "100.0%"), (-0.0004, "0.0%"), (-0.25, "−25.0%"), (0.00125, "0.1%"), (12.5, "1,250.0%")],
)
def test_percentages_have_one_decimal(share, written):
    assert percentage(share) == written


@pytest.mark.parametrize(
    ("value", "decimals", "written"),
    [(12.6561, 2, "12.66"), (-0.304, 2, "−0.30"), (-0.001, 2, "0.00"), (17443296, 0, "17,443,296"), (math.nan, 2, "")],
)
def test_numbers_with_the_decimals_that_were_printed(value, decimals, written):
    assert fixed(value, decimals) == written


@pytest.mark.parametrize(("value", "decimals"), [(0.37, 2), (4.0, 0), (17443296, 0), (-9.7, 1), (0.0, 0), (0.9999, 4)])
def test_decimals_that_were_printed(value, decimals):
    assert decimals_of(value) == decimals


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0.0, "0.0 s"),
        (3.14, "3.1 s"),
        (9.97, "10 s"),
        (14.4, "14 s"),
        (59.7, "1 min 0 s"),
        (74.2, "1 min 14 s"),
        (7500.0, "2 h 5 min"),
    ],
)
def test_durations(seconds, written):
    assert duration(seconds) == written


@given(st.floats(min_value=-1e300, max_value=1e300))
def test_what_is_written_is_within_half_a_digit(value):
    written = number(value)
    digits, _, power = written.replace("−", "-").replace(",", "").partition("×10")
    exponent = int(power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")) or 0)
    back = float(f"{digits}e{exponent}")
    assert back == pytest.approx(value, rel=0.00500001, abs=5e-324)
    assert len(digits.lstrip("-").replace(".", "").lstrip("0")) <= 3 or abs(value) >= 1000


@pytest.mark.parametrize(
    ("place", "written"),
    [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"), (21, "21st"), (113, "113th")],
)
def test_places_in_order(place, written):
    assert ordinal(place) == written


@pytest.mark.parametrize(
    ("value", "beside", "written"),
    [
        (0.0, [], "0"),
        (0.0125, [], "0.013"),
        (-4.56, [], "−4.6"),
        (34.5, [], "35"),
        (99.4, [], "99"),
        (116.2, [], "116"),
        (12345.0, [], "12,300"),
        (4.56e-7, [], "4.6×10⁻⁷"),
        (math.nan, [], ""),
        (0.231, [0.229], "0.231"),
        (0.229, [0.5, 0.231], "0.229"),
        (0.231, [0.249], "0.23"),
        (0.2301, [0.2299], "0.23"),
    ],
)
def test_numbers_of_sentences_have_two_digits_unless_they_would_look_alike(value, beside, written):
    assert brief(value, *beside) == written


@pytest.mark.parametrize(
    ("share", "beside", "written"),
    [
        (0.0, [], "0%"),
        (1e-5, [], "0.0%"),
        (0.0264, [], "2.6%"),
        (0.0994, [], "9.9%"),
        (0.0996, [], "10%"),
        (0.2345, [], "23%"),
        (-0.235, [], "−24%"),
        (0.996, [], "99.6%"),
        (0.9996, [], "100%"),
        (1.0, [], "100%"),
        (0.996, [1.0], "99.6%"),
        (1.0, [0.996], "100%"),
        (0.4994, [0.5], "49.9%"),
        (0.5, [0.4994], "50.0%"),
        (0.4996, [0.5], "50%"),
        (math.nan, [], ""),
    ],
)
def test_shares_of_sentences(share, beside, written):
    assert brief_share(share, *beside) == written


def test_numbers_with_signs():
    assert brief(0.181, signed=True) == "+0.18"
    assert brief_share(-0.05, signed=True) == "−5.0%"
    assert compared(brief, 3.4, 9.0, 3.41) == ["3.40", "9.0", "3.41"]


@pytest.mark.parametrize(
    ("one", "other", "do"),
    [
        (0.0126, 0.0124, False),  # written 1.3% and 1.2%
        (0.013, 0.012, False),
        (0.013, 0.0115, True),
        (0.002, 0.001, True),
        (0.0019, 0.001, False),  # less than 0.1 points
        (0.5, 0.5049, False),
        (0.5, 0.505, True),
        (-0.1, 0.1, True),
        (0.0, 0.0, False),
    ],
)
def test_shares_that_a_sentence_may_tell_apart(one, other, do):
    assert shares_differ(one, other) is shares_differ(other, one) is do


@pytest.mark.parametrize(
    ("one", "other", "do"),
    [
        (3.4, 3.401, False),
        (3.4, 3.41, True),
        (1.246, 1.254, False),
        (0.0, 1e-12, True),
        (0.0, 0.0, False),
        (-0.2, -0.2001, False),
        (999.0, 1000.0, False),
        (990.0, 1000.0, True),
    ],
)
def test_numbers_that_a_sentence_may_tell_apart(one, other, do):
    assert differ(one, other) is differ(other, one) is do


def test_a_movement_that_rounding_makes_is_none():
    assert movement(0.0126, 0.0124) == "stays at about 1.2%"
    assert movement(0.245, 0.2549) == "rises from 24.5% to 25.5%"
    assert movement(0.25, 0.1) == "falls from 25% to 10%"


def test_no_number_for_readers_is_written_as_a_computer_does():
    """`2.0e-06` beside `2.0×10⁻⁶`."""
    scientific = re.compile(r"\{[^{}]*:[,+]?\.?\d*e\}")
    lines = {line.strip() for path in SOURCE.rglob("*.py") for line in path.read_text().splitlines()}
    assert scientific.search('f"{value:.1e}"')
    assert [line for line in lines if scientific.search(line)] == []


@pytest.mark.parametrize(
    ("difference", "low", "high", "written"),
    [
        (-0.059, -0.0662, -0.0512, " (difference 5.9 points, 95% interval 5.1 to 6.6 over 40 sequences)"),
        (0.059, 0.0512, 0.0662, " (difference 5.9 points, 95% interval 5.1 to 6.6 over 40 sequences)"),
        (
            -0.002,
            -0.008,
            0.004,
            ", no detectable difference (difference 0.2 points, 95% interval −0.4 to 0.8 over 40 sequences)",
        ),
        (0.72003, 0.72001, 0.720044, " (difference 72.003 points, 95% interval 72.001 to 72.004 over 40 sequences)"),
        (0.7191, 0.7191, 0.7194, " (difference 71.91 points, 95% interval 71.91 to 71.94 over 40 sequences)"),
        (0.5, 0.5, 0.5, " (difference 50.0 points)"),
        (0.5, math.nan, math.nan, ""),
        (0.0004, 0.0003, 0.0006, ""),
        (
            0.0004,
            -0.0003,
            0.0011,
            ", no detectable difference (difference 0.0 points, 95% interval 0.0 to 0.1 over 40 sequences)",
        ),
    ],
)
def test_a_difference_of_shares_with_its_interval(difference, low, high, written):
    assert in_points(difference, low, high, 40) == written


def test_an_interval_after_its_number():
    assert between(0.123, 0.219) == " (95% interval 0.12 to 0.22)"
    assert between(0.1231, 0.1239) == " (95% interval 0.123 to 0.124)"
    assert between(math.nan, math.nan) == ""
