"""The order in which findings are read: answers, then surprises, then the rest."""

import json
import math
from pathlib import Path

import pandas as pd

from normscope.results.findings import MOST_ON_TOP, Sentence, Summary, ranked


def of(analysis: str, *texts: str) -> list[Sentence]:
    return [Sentence.of(text).but(analysis=analysis) for text in texts]


def test_answers_come_first_then_surprises_then_the_rest():
    odd = Sentence("odd", surprising=True)
    top = ranked([*of("one", "answer 1", "plain 1", odd), *of("three", "answer 3", "plain 3", "plain 4")])
    assert top == ["answer 1", "answer 3", "odd", "plain 1", "plain 3"]
    assert [sentence.analysis for sentence in top] == ["one", "three", "one", "one", "three"]


def test_the_answer_with_the_largest_effect_is_first():
    small, large = Sentence("small", effect=0.1, analysis="one"), Sentence("large", effect=0.4, analysis="two")
    later = Sentence("larger, but no answer", effect=0.9, analysis="one")
    assert ranked([small, later, large]) == [large, small, later]


def test_at_most_five_are_on_top():
    top = ranked([sentence for name in "abcdefg" for sentence in of(name, f"{name} 0", f"{name} 1")])
    assert top == [f"{name} 0" for name in "abcde"]
    assert len(top) == MOST_ON_TOP


def test_equal_sentences_of_two_analyses_are_both_kept():
    top = ranked([*of("one", "the same"), *of("two", "the same")])
    assert [sentence.analysis for sentence in top] == ["one", "two"]


def test_few_findings_are_all_on_top():
    assert ranked(of("one", "a", "b")) == ["a", "b"]
    assert ranked([]) == []


def test_a_summary_without_numbers_is_read_again():
    """That of an analysis with nothing to say about the corpus."""
    assert Summary.of(Summary(pd.DataFrame()).plain()).table.empty


def test_an_effect_is_on_one_scale_and_is_none_where_its_interval_contains_0():
    assert Sentence("falls", effect=-0.3).effect == 0.3
    assert Sentence("beyond the range", effect=-1.2).effect == 1.0
    assert Sentence("sure", effect=-0.3, interval=(-0.4, -0.2)).effect == 0.3
    assert Sentence("unsure", effect=-0.3, interval=(-0.61, 0.01)).effect == 0.0
    assert Sentence("all alike", effect=0.0, interval=(0.0, 0.0)).effect == 0.0


def test_an_interval_without_ends_is_none():
    assert Sentence("few texts", effect=0.3, interval=(math.nan, math.nan)).interval is None
    assert Sentence("few texts", effect=0.3, interval=(math.nan, math.nan)).effect == 0.3


def test_a_sentence_keeps_its_interval_when_it_is_written_and_changed():
    sentence = Sentence("sure", effect=0.3, interval=(0.2, 0.4))
    assert sentence.but("other words").interval == (0.2, 0.4)
    written = json.loads(json.dumps({"text": str(sentence), **vars(sentence)}))
    read = Sentence.read(Path("results.json"), written)
    assert (read, read.effect, read.interval) == ("sure", 0.3, (0.2, 0.4))
