"""Everything that the alignment analysis publishes, on a tiny Marian and a corpus whose tokens and links are set by hand."""

import numpy as np
import pytest
import torch

from normscope.alignment.analysis import REFERENCE
from normscope.alignment.links import Links
from normscope.alignment.reference import Reference, SentencePair
from normscope.analyses.base import AnalysisContext
from normscope.analyses.declarations.alignment import AlignmentOptions
from normscope.data.batching import Batch
from normscope.errors import InputError
from normscope.models.observe.observer import Observer
from normscope.results.parts import rolled_up
from tests.oracles import alignment_oracle
from tests.oracles.alignment_oracle import Pair
from tests.oracles.comparison import assert_published
from tests.oracles.specimens import analysed
from tests.tiny import layout_of, tiny_stack

LAYERS = [1, 2]


def pair(source: str, target: str, source_words: list[int], target_words: list[int], sure: str, possible: str) -> Pair:
    """Random tokens; a token of no word ends each side."""
    generator = np.random.default_rng(len(source))
    ids = [generator.integers(5, 99, size=len(words)).tolist() for words in (source_words, target_words)]
    links = [frozenset(tuple(map(int, link.split("-"))) for link in text.split()) for text in (sure, possible)]
    return Pair(
        tuple(source.split()),
        tuple(target.split()),
        ids[0],
        source_words,
        ids[1],
        target_words,
        links[0],
        links[0] | links[1],
    )


PAIRS = {
    1: pair("der alte Hund", "the old dog", [0, 1, 1, 2, -1], [0, 1, 2, 2, -1], "0-0 1-1 2-2", ""),
    2: pair("er sieht sie", "he sees", [0, 1, 1, 2, -1], [0, 0, 1, -1], "0-0", "1-1 2-1"),
    # The second source word and the last target word have no token.
    3: pair("es ist kalt heute", "it is cold", [0, 2, 2, 3, -1], [0, 1, -1], "0-0 1-1", "2-2 3-1"),
    4: pair("ja", "yes indeed", [0, -1], [0, 1, 1, -1], "0-0", "0-1"),
    # Read alone, its last source word has no token: what comes after the others is the end of the sentence.
    5: pair("nun denn also", "well then", [0, 1, -1], [0, 1, -1], "0-0", "2-1"),
    6: pair("gut", "good", [0, -1], [0, -1], "0-0", ""),
}
"""The last is never read."""

READ = [1, 2, 3, 4, 5]

BASELINES = {"giza": {1: {(0, 0), (2, 1)}, 2: set(), 3: {(3, 1)}, 4: {(0, 0), (0, 1)}, 5: {(2, 1)}, 6: {(0, 0)}}}
BASELINES = {name: {row: frozenset(links) for row, links in rows.items()} for name, rows in BASELINES.items()}


@pytest.fixture(scope="module")
def maps():
    model = tiny_stack("marian", "cross", torch.float64)
    model.set_attn_implementation("eager")
    return {row: alignment_oracle.maps_of(model, PAIRS[row]) for row in READ}


def batch(*rows: int) -> Batch:
    """Pairs side by side, padded."""

    def side(ids: list, words: list, **more) -> Batch:
        length = max(map(len, ids))

        def padded(values: list, filling: int) -> torch.Tensor:
            return torch.tensor([[*own, *[filling] * (length - len(own))] for own in values])

        tokens = padded(ids, 1)
        token_mask = padded([[1] * len(own) for own in ids], 0).bool()
        return Batch(
            tokens, None, token_mask, torch.zeros_like(tokens), rows, words=padded(words, -1), rows=rows, **more
        )

    pairs = [PAIRS[row] for row in rows]
    source = side([pair.source_ids for pair in pairs], [pair.source_words for pair in pairs])
    return side(
        [pair.decoder_ids for pair in pairs],
        [pair.target_words for pair in pairs],
        source=source,
        is_cross_attention=True,
    )


def seen(model, options: AlignmentOptions, baselines, layers):
    """The analysis after the corpus."""
    layout = layout_of("marian", "cross")
    observer = Observer(model, layout, layers)
    reference = Reference(
        {row: SentencePair(own.source, own.target, Links(own.sure, own.possible)) for row, own in PAIRS.items()},
        baselines,
    )
    context = AnalysisContext(layers, ["all"], observer.parameters, resources={REFERENCE: reference})
    return analysed("alignment", options, context, observer, [batch(1, 3), batch(4, 2), batch(5)])


def findings(options: AlignmentOptions, baselines, layers):
    analysis = seen(tiny_stack("marian", "cross", torch.float64), options, baselines, layers)
    return rolled_up("alignment", analysis.info.published, analysis.result())


def test_maps_that_are_not_finite_are_refused_when_the_corpus_has_been_read():
    model = tiny_stack("marian", "cross", torch.float64)
    with torch.no_grad():
        model.decoder.layers[1].encoder_attn.out_proj.weight[3, 1] = float("inf")
    analysis = seen(model, AlignmentOptions(), {}, LAYERS)
    with pytest.raises(InputError, match="^NaN or infinity in the activations of layer 2; try device.dtype=float32$"):
        analysis.result()


@pytest.mark.parametrize("layers", [[1, 2], [2]])
def test_everything(maps, layers):
    found = findings(AlignmentOptions(sentences=[1, 3, 5]), BASELINES, layers)
    expected = alignment_oracle.expected(maps, PAIRS, layers, [1, 3, 5], BASELINES)
    assert_published(found, expected, tolerance=1e-6)  # maps are kept in float32


def test_the_first_three_pairs_are_shown_and_nothing_to_compare_with_is_fine(maps):
    found = findings(AlignmentOptions(), {}, LAYERS)
    assert_published(found, alignment_oracle.expected(maps, PAIRS, LAYERS, [1, 2, 3], {}), tolerance=1e-6)


def test_maps_of_a_pair_that_was_not_read_are_left_out(maps):
    found = findings(AlignmentOptions(sentences=[6]), {}, LAYERS)
    assert_published(found, alignment_oracle.expected(maps, PAIRS, LAYERS, [6], {}), tolerance=1e-6)
