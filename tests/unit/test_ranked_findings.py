"""The order in which findings are read: answers, then surprises, then the rest."""

from normscope.analyses.findings import MOST_ON_TOP, Sentence, ranked


def test_answers_come_first_then_surprises_then_the_rest():
    odd = Sentence("odd", surprising=True)
    sentences = {"one": ["answer 1", "plain 1", odd], "two": [], "three": [Sentence("answer 3"), "plain 3", "plain 4"]}
    top, others = ranked(sentences)
    assert top == [("one", "answer 1"), ("three", "answer 3"), ("one", "odd"), ("one", "plain 1"), ("three", "plain 3")]
    assert others == [("three", "plain 4")]


def test_at_most_five_are_on_top_and_none_is_lost():
    sentences = {name: [f"{name} {number}" for number in range(4)] for name in "abcdefg"}
    top, others = ranked(sentences)
    assert top == [(name, f"{name} 0") for name in "abcde"]
    assert len(top) == MOST_ON_TOP
    assert sorted(top + others) == sorted((name, text) for name, found in sentences.items() for text in found)


def test_few_findings_are_all_on_top():
    assert ranked({"one": ["a", "b"]}) == ([("one", "a"), ("one", "b")], [])
    assert ranked({}) == ([], [])
