"""A parallel corpus and its links, by hand."""

import pytest

from normscope.alignment.links import Links, parsed
from normscope.alignment.reference import ReferenceResource, SentencePair
from normscope.analyses.declarations.alignment import AlignmentOptions, LinkFileOptions, WordsAre
from normscope.data.examples import Example
from normscope.data.resources import ResourceContext
from normscope.errors import InputError

EXAMPLES = [Example("Ja, gut!", "yes"), "too long", Example("der Hund", "the dog")]


def read(options: AlignmentOptions, examples=EXAMPLES):
    """A reference that is read in two stretches, and its digest. What is saved of it gives the same."""
    resource = ReferenceResource(options)
    resource.start(object.__new__(ResourceContext))  # of which nothing is read
    for part in (examples[:1], examples[1:]):
        resource.read(part)
    value = resource.finish()
    other = ReferenceResource(options)
    other.start(object.__new__(ResourceContext))
    other.add(resource.state())
    assert other.finish() == value
    return value, resource.digest(value)


@pytest.fixture
def written(tmp_path):
    def write(name, text, **options):
        (tmp_path / name).write_text(text)
        return LinkFileOptions(path=str(tmp_path / name), **options)

    return write


def test_pairs_keep_their_rows_and_links(written):
    options = AlignmentOptions(gold=written("gold", "1-1 2p1\n\n2-1 2-2\n", base=1))
    value, _ = read(options)
    assert value.pairs == {
        1: SentencePair(("Ja,", "gut!"), ("yes",), Links(frozenset({(0, 0)}), frozenset({(0, 0), (1, 0)})))
    } | {3: SentencePair(("der", "Hund"), ("the", "dog"), Links(parsed("1-0 1-1"), parsed("1-0 1-1")))}
    assert value.baselines == {}


def test_punctuation_may_be_words(written):
    value, _ = read(AlignmentOptions(gold=written("gold", "3-0\n\n1-1\n"), words=WordsAre.punctuated))
    assert value.pairs[1].source == ("Ja", ",", "gut", "!")


def test_links_of_the_corpus_itself():
    sure = frozenset({(0, 0)})
    examples = [Example("a b", "c", links=Links(sure, sure)), "skipped"]
    value, _ = read(AlignmentOptions(), examples)
    assert value.pairs == {1: SentencePair(("a", "b"), ("c",), Links(sure, sure))}
    with pytest.raises(InputError, match="gold.path is not set"):
        read(AlignmentOptions(), EXAMPLES)
    none = frozenset()
    with pytest.raises(InputError, match=r"expected a sure link \(1-2\)"):
        read(AlignmentOptions(), [Example("a b", "c", links=Links(none, sure)), "skipped"])


def test_links_of_others(written):
    gold = written("gold", "0-0\n\n1-1\n")
    other = written("other", "1-1\n\n1p2 2-1\n")
    reordered = {"path": other.path, "base": 1, "direction": "target-source"}
    value, _ = read(AlignmentOptions(gold=gold, baselines={"one": gold.path, "two": reordered}))
    assert value.baselines["one"] == {1: {(0, 0)}, 2: frozenset(), 3: {(1, 1)}}
    assert value.baselines["two"] == {1: {(0, 0)}, 2: frozenset(), 3: {(1, 0), (0, 1)}}, "possible links count"
    for wrong in ({"path": 3}, {"file": gold.path}, {"path": gold.path, "bases": 1}, 7):
        with pytest.raises(InputError, match=r"analysis.alignment.baselines.one=.*expected a file"):
            read(AlignmentOptions(gold=gold, baselines={"one": wrong}))


def test_whatever_changes_words_or_links_changes_the_digest(written):
    texts = ["0-0\n\n1-1\n", "0p0\n\n1-1\n", "0-0 1-0\n\n1-1\n", "0-0\n\n0-1\n"]
    digests = [read(AlignmentOptions(gold=written("gold", text)))[1] for text in texts]
    gold = written("gold", texts[0])
    digests += [
        read(AlignmentOptions(gold=gold), [Example(source, target), *EXAMPLES[1:]])[1]
        for source, target in (("Ja, schön!", "yes"), ("Ja, gut!", "no"))
    ]
    assert len(set(digests)) == len(digests)
    assert read(AlignmentOptions(gold=gold))[1] == digests[0]
