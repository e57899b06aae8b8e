"""The figure that a finding links to has the numbers that the finding names: drawn, in a label, or in its caption.

A cloud of points is no place to read a number from; the mean of a line is.
"""

import re
from collections.abc import Iterator

import numpy as np
import pytest

from normscope.analyses.registry import analyses
from normscope.results.figures import Figure, Scatter
from tests.oracles.comparison import NUMBER, everything, picture_of, read_number

INTERVAL = re.compile(r" \((difference|95% interval)[^)]*\)")
"""How sure a number is, not what a figure of means shows."""


@pytest.mark.parametrize("name", analyses())
def test_a_figure_has_the_numbers_of_the_findings_that_link_to_it(name):
    result = everything(name)
    missing = {
        sentence: absent
        for sentence in result.sentences
        if sentence.figure and (absent := absent_numbers(sentence, result.figures[sentence.figure]))
    }
    assert missing == {}


@pytest.mark.parametrize("name", analyses())
def test_the_answer_of_every_analysis_links_to_a_figure_and_a_table(name):
    result = everything(name)
    assert result.sentences[0].figure in result.figures
    assert result.sentences[0].table in result.tables


def absent_numbers(sentence: str, figure: Figure) -> list[str]:
    """The numbers of a sentence that its figure does not have, to the digits that are written."""
    shown = np.array([number * factor for number in numbers_of(figure) for factor in (1, 0.01, 100)])
    absent = []
    for written in NUMBER.findall(INTERVAL.sub("", sentence)):
        value, unit = read_number(written)
        if not (np.abs(shown - value) <= unit * (0.5 + 1e-6)).any():
            absent.append(written)
    return absent


def numbers_of(figure: Figure) -> Iterator[float]:
    """What can be read off a figure."""
    drawn = picture_of(figure).drawn
    texts = [figure.caption, *(part for place in drawn for part in place if isinstance(part, str))]
    yield from (abs(read_number(written)[0]) for text in texts for written in NUMBER.findall(text))
    yield from (read_number(written)[0] for text in texts for written in NUMBER.findall(text))
    yield from (float(part) for place in drawn for part in place if isinstance(part, int | np.integer))
    if isinstance(figure, Scatter):
        return
    lines: dict[tuple[object, ...], list[float]] = {}
    for place, values in drawn.items():
        numbers = np.atleast_1d(np.asarray(values, dtype=float))
        yield from numbers[np.isfinite(numbers)].tolist()
        yield from np.abs(numbers[np.isfinite(numbers)]).tolist()
        lines.setdefault(place[:2], []).append(numbers[0])
    yield from (float(np.nanmean(line)) for line in lines.values())


def test_the_check_sees_what_is_not_there():
    """34% and 2.6% of the default model's [CLS] were not in its figure of raw norms."""
    figure = everything("norms").figures["by_layer"]
    assert absent_numbers("[CLS] tokens receive 12.34% of the weight.", figure) == ["12.34%"]
