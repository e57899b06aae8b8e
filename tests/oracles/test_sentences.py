"""The sentences of the report are those written out by hand in the oracles; where a number decides what is said, on both sides
of the boundary."""

import inspect
import re
import sys

import numpy as np
import pytest

from normscope.analyses.registry import analyses
from tests.oracles.comparison import everything, module_of_sentences, oracle


@pytest.mark.parametrize("name", analyses())
def test_sentences(name):
    for metrics, *keywords, expected in oracle(name).CASES:
        assert module_of_sentences(name).sentences_of(metrics, **(keywords[0] if keywords else {})) == expected


@pytest.mark.parametrize("name", analyses())
def test_what_a_sentence_claims_holds_of_the_numbers_it_prints(name):
    """Close to every threshold: each metric of each case is moved by up to a half, several times."""
    draw, claimed, claims = np.random.default_rng(0), set(), getattr(oracle(name), "CLAIMS", {})
    for metrics, *keywords, _ in oracle(name).CASES:
        for _ in range(60):
            moved = {key: value * (1 + draw.choice(MOVES)) for key, value in metrics.items()}
            for sentence in module_of_sentences(name).sentences_of(moved, **(keywords[0] if keywords else {})):
                for pattern, holds in claims.items():
                    for found in re.finditer(pattern, sentence):
                        claimed.add(pattern)
                        assert holds(*map(_read, found.groups())), sentence
    assert claimed == set(claims)


@pytest.mark.parametrize("name", analyses())
def test_the_answer_has_the_effect_that_follows_from_its_numbers(name):
    for metrics, keywords, effect in oracle(name).EFFECTS:
        answer, *_ = module_of_sentences(name).sentences_of(metrics, **keywords)
        assert answer.effect == pytest.approx(effect), answer


@pytest.mark.parametrize("name", analyses())
def test_the_answer_of_every_analysis_has_an_effect_on_one_scale(name):
    """Zero only where an interval says so: an answer that states no difference could not be ranked among the others."""
    answer = everything(name).sentences[0]
    assert 0 <= answer.effect <= 1
    if answer.interval is not None:
        low, high = answer.interval
        assert low <= high
        assert (answer.effect == 0) == (low <= 0 <= high)
        assert answer.effect > 0 or "no detectable" in answer
        assert answer.effect == 0 or min(abs(low), abs(high)) <= answer.effect <= max(abs(low), abs(high))
    else:
        written = re.findall(r"\d[\d.]*%", answer)
        assert answer.effect > 0 or written[0] == written[1], answer


MOVES = (0, 0, 1e-4, -1e-4, 1e-3, -1e-3, 0.01, -0.01, 0.1, -0.1, 0.5, -0.5)


def _read(written):
    digits, _, power = written.replace(",", "").replace("−", "-").partition("×10")
    value = float(digits.rstrip("%")) * (0.01 if digits.endswith("%") else 1)
    return value * 10.0 ** int(power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))) if power else value


@pytest.mark.parametrize("name", analyses())
def test_every_line_that_makes_a_sentence_is_tested(name):
    """If a sentence had no case, its lines would never run."""
    sentences = module_of_sentences(name)
    codes = {
        code for function in _called_by(sentences.sentences_of) for code in _nested(inspect.unwrap(function).__code__)
    }
    codes = {code for code in codes if code.co_filename == sentences.__file__}
    assert codes
    run = set()

    def trace(frame, _event, _argument):
        if frame.f_code not in codes:
            return None
        run.add((frame.f_code, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for metrics, *keywords, _ in oracle(name).CASES:
            sentences.sentences_of(metrics, **(keywords[0] if keywords else {}))
    finally:
        sys.settrace(before)
    lines = {(code, line) for code in codes for _, _, line in code.co_lines() if line and line > code.co_firstlineno}
    missed = sorted(line for code, line in lines - run)
    assert not missed, f"lines of {sentences.__file__} that no case runs: {missed}"


def _called_by(function):
    """A function, and those of its module that it names, directly or through others."""
    called, waiting = set(), [function]
    while waiting:
        one = waiting.pop()
        if inspect.isfunction(one) and one.__module__ == function.__module__ and one not in called:
            called.add(one)
            named = (name for code in _nested(inspect.unwrap(one).__code__) for name in code.co_names)
            waiting += [one.__globals__[name] for name in named if name in one.__globals__]
    return called


def _nested(code):
    yield code
    for constant in code.co_consts:
        if inspect.iscode(constant):
            yield from _nested(constant)
