"""How numbers are written for readers: in findings, tables, reports and the terminal.

Tables have three significant digits and percentages with one decimal. Sentences have two digits, unless numbers that they
compare would then look the same (`brief`, `brief_share`). Percentages have no space, thousands are separated, and minus signs
are true ones. Halves are rounded away from zero, as JavaScript does, so that a page's script (`reporting/page/rounding.js`)
writes the same digits.
"""

import decimal
import math
from collections.abc import Callable, Iterable, Sequence

MINUS = "−"

VISIBLE = 0.005
"""An error below this does not show in a number with two decimals."""

_DIGITS = 3
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float, *, signed: bool = False, digits: int = _DIGITS) -> str:
    """A number with three significant digits: `0.0123`, `1,230`, `−4.56×10⁻⁷`.

    Args:
        value: The number.
        signed: Whether to write a plus sign before positive numbers.
        digits: Significant digits, if not three.
    """
    if not math.isfinite(value):
        return "" if math.isnan(value) else _with_sign("∞", value, signed)
    if value == 0:
        return "0"
    size = decimal.Decimal(abs(value))
    exponent = size.adjusted()
    rounded = _rounded(size, exponent - digits + 1)
    if rounded.adjusted() > exponent:  # 9.999 has become 10.00
        exponent = rounded.adjusted()
        rounded = _rounded(size, exponent - digits + 1)
    if -4 < exponent < 6:
        return _with_sign(f"{rounded:,f}", value, signed)
    mantissa = rounded.scaleb(-exponent)
    return _with_sign(f"{mantissa:f}×{power_of_ten(exponent)}", value, signed)


def power_of_ten(exponent: int) -> str:
    """A power of ten in plain characters: `10⁻³`."""
    return f"10{str(exponent).translate(_SUPERSCRIPTS)}"


def percentage(share: float, *, signed: bool = False, decimals: int = 1) -> str:
    """A share as a percentage with one decimal: `12.3%`."""
    written = fixed(share * 100, decimals, signed=signed)
    return f"{written}%" if math.isfinite(share) else written


def fixed(value: float, decimals: int, *, signed: bool = False) -> str:
    """A number with so many decimals: `12.3`, `−0.40`; with a plus sign before positive ones if `signed`."""
    if not math.isfinite(value):
        return number(value, signed=signed)
    rounded = _rounded(decimal.Decimal(abs(value)), -decimals)
    return _with_sign(f"{rounded:,f}", value if rounded else 0.0, signed)


def decimals_of(value: float) -> int:
    """How many decimals a number was given with, six at most: 2 of 0.37, none of a whole number."""
    return len(f"{value:f}".rstrip("0").partition(".")[2])


def brief(value: float, *beside: float, signed: bool = False) -> str:
    """A number in a sentence, with two significant digits: `0.012`, `4.6`; whole numbers from 100 keep three.

    Args:
        value: The number.
        beside: Numbers that the sentence compares it with. If it would look like one that differs, it has three digits.
        signed: Whether to write a plus sign before positive numbers.
    """
    return _told_apart(value, beside, lambda each: _brief(each, signed), lambda each: number(each, signed=signed))


def estimate(value: float, bound: float) -> str:
    """A rank correlation in a sentence, with the largest possible error if that shows in two decimals: `−0.12 ± 0.034`."""
    written = brief(value, signed=True)
    return f"{written} ± {brief(bound)}" if bound >= VISIBLE else written


def brief_share(share: float, *beside: float, signed: bool = False) -> str:
    """A share in a sentence, as a percentage with two significant digits: `24%`, `2.6%`; never 100% if it is less.

    Args:
        share: The share.
        beside: Shares that the sentence compares it with. If it would look like one that differs, it has one decimal.
        signed: Whether to write a plus sign before positive numbers.
    """
    return _told_apart(
        share, beside, lambda each: _brief_share(each, signed), lambda each: percentage(each, signed=signed)
    )


def _told_apart(
    value: float, beside: Sequence[float], short: Callable[[float], str], full: Callable[[float], str]
) -> str:
    """A value in its short form, or in its full one if only that differs from another value's."""
    alike = any(short(other) == short(value) and full(other) != full(value) for other in beside)
    return full(value) if alike else short(value)


def compared(write: Callable[..., str], *values: float) -> list[str]:
    """Numbers that a sentence compares with each other, written by `brief` or `brief_share`."""
    return [write(value, *values) for value in values]


def _brief(value: float, signed: bool) -> str:
    short = number(value, signed=signed, digits=2)
    whole = math.isfinite(value) and 99.5 <= abs(value) < 1e6
    return number(value, signed=signed) if whole else short


def _brief_share(share: float, signed: bool) -> str:
    whole = percentage(share, signed=signed, decimals=0)
    one = percentage(share, signed=signed)
    nearly = abs(share) != 1 and one != percentage(math.copysign(1, share), signed=signed) and whole.endswith("100%")
    return one if (abs(share) < 0.0995 and share) or nearly else whole


def duration(seconds: float) -> str:
    """A time as a person would say it: `14 s`, `1 min 14 s`, `2 h 5 min`."""
    if seconds < 9.95:
        return f"{_rounded(decimal.Decimal(max(seconds, 0.0)), -1):f} s"
    whole = int(_rounded(decimal.Decimal(seconds), 0))
    minutes, hours = whole // 60, whole // 3600
    if hours:
        return f"{hours:,} h {minutes % 60} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def numbered(numbers: Iterable[int]) -> str:
    """Whole numbers in ascending order, with ranges for three or more in a row: `1–3, 5`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def begun(text: str) -> str:
    """A text at the beginning of a sentence."""
    return f"{text[:1].upper()}{text[1:]}" if text[:1].isascii() else text  # no capital alpha


def counted(count: float, noun: str, plural: str | None = None) -> str:
    """A number of things: `1 sentence`, `1,230 sentences`.

    Args:
        count: A whole number.
        noun: What there is one of, with anything that depends on the number: `sentence is`.
        plural: The same of several; None adds an s.
    """
    return f"{count:,.0f} {noun if count == 1 else plural or f'{noun}s'}"


def ordinal(place: int) -> str:
    """A place in order, from 1: `1st`, `2nd`, `3rd`, `11th`."""
    ending = "th" if place % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place:,}{ending}"


def differ(one: float, other: float) -> bool:
    """Whether a sentence may call one number the larger: by at least a unit of the third digit, so not by rounding alone.

    4.6 and 4.601 are written alike; 1.246 and 1.254 are written 1.2 and 1.3, but a reader would take the difference for 0.1.
    """
    largest = max(abs(one), abs(other))
    if not math.isfinite(largest) or largest == 0:
        return one != other
    unit = decimal.Decimal(1).scaleb(decimal.Decimal(largest).adjusted() - _DIGITS + 1)
    return abs(one - other) >= float(unit) * (1 - 1e-9)


def shares_differ(one: float, other: float) -> bool:
    """Whether a sentence may call one share the larger: by half a percentage point, or by a tenth of itself and 0.1 points.

    1.26% and 1.24% are written 1.3% and 1.2%, and their difference means nothing.
    """
    difference = abs(one - other) * (1 + 1e-9)
    return difference >= 0.001 and difference >= min(0.005, 0.1 * max(abs(one), abs(other)))


def movement(before: float, after: float, *beside: float) -> str:
    """How a share moves: `rises from 10% to 12%`, `stays at 10%`; `stays at about 10%` if the difference means nothing."""
    start, end = brief_share(before, after, *beside), brief_share(after, before, *beside)
    if not shares_differ(before, after):
        return f"stays at {end}" if start == end else f"stays at about {end}"
    if abs(after - before) < 0.02:  # whole percentages would exaggerate it or hide it
        start, end = percentage(before), percentage(after)
    return f"{'rises' if after > before else 'falls'} from {start} to {end}"


def in_points(difference: float, low: float, high: float, sequences: int) -> str:
    """A difference with its 95% interval, after the two shares of a sentence; empty without one, and for next to none.

    It is written ` (difference 5.9 points, 95% interval 5.1 to 6.6 over 40 sequences)`, after `, no detectable difference` if
    the interval contains 0. It has no sign, since the sentence says which of the two shares is larger.

    Args:
        difference: A share minus the other.
        low: The lower end of its interval; NaN if there is none.
        high: The upper end.
        sequences: The number of sequences that it was resampled over.
    """
    if math.isnan(low) or math.isnan(high):
        return ""
    detectable = not low <= 0 <= high
    if detectable and abs(difference) < 0.0005:  # 0.0 points
        return ""
    none = "" if detectable else ", no detectable difference"
    if low == high:
        return f"{none} (difference {fixed(100 * abs(difference), 1)} points)"
    ends = sorted(math.copysign(100, difference) * end for end in (low, high))
    decimals = next((few for few in (1, 2) if fixed(ends[0], few) != fixed(ends[1], few)), 3)
    size, lower, upper = (fixed(value, decimals) for value in (100 * abs(difference), *ends))
    interval = f"95% interval {lower} to {upper} over {counted(sequences, 'sequence')}"
    return f"{none} (difference {size} points, {interval})"


def between(low: float, high: float) -> str:
    """The ends of an interval after a number that it belongs to: ` (95% interval 0.12 to 0.22)`; empty if there is none."""
    if math.isnan(low) or math.isnan(high):
        return ""
    ends = compared(brief, low, high)
    return f" (95% interval {ends[0]} to {ends[1]})"


def enumeration(parts: list[str]) -> str:
    """Parts of a sentence: `a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _rounded(value: decimal.Decimal, exponent: int) -> decimal.Decimal:
    """Rounded to a multiple of a power of ten."""
    with decimal.localcontext() as context:
        context.prec = 400  # the largest float has 309 digits before the point
        return value.quantize(decimal.Decimal(1).scaleb(exponent), rounding=decimal.ROUND_HALF_UP)


def _with_sign(digits: str, value: float, signed: bool) -> str:
    if value < 0:
        return MINUS + digits
    return f"+{digits}" if signed and value > 0 else digits
