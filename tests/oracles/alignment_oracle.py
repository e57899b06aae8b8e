"""The alignment analysis by brute force: maps over tokens from explicit vectors, then words, links and error rates."""

import copy
import dataclasses
import itertools
import types
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from transformers import MarianMTModel

from normscope.alignment.analysis import REFERENCE
from normscope.alignment.links import Links
from normscope.alignment.reference import Reference, SentencePair
from normscope.analyses.base import AnalysisContext
from normscope.analyses.declarations.alignment import AlignmentOptions, Setting
from normscope.attribution.smooth_gradients import smooth_gradients
from normscope.data.batching import Batch
from normscope.errors import InputError
from normscope.models.observe.observer import Observer
from normscope.results.parts import rolled_up
from normscope.results.result import Result
from normscope.rounding import in_points
from normscope.statistics.intervals import Interval
from tests.contract import test_sounds
from tests.oracles.comparison import (
    Drawn,
    Expected,
    Picture,
    assert_expected,
    cloud,
    interval,
    percent,
    table,
    with_inputs_of_its_own,
)
from tests.oracles.specimens import analysed
from tests.tiny import facts_for, tiny_stack

METHODS = {"attn_w": "α: weights", "attn_n": "‖αf(x)‖: vectors"}
WORDS = {"attn_w": "weights", "attn_n": "vectors", "awo": "with output", "awi": "with input"}
SETTINGS = {"awo": "alignment with output", "awi": "alignment with input"}
RATES = ["aer", "precision", "recall"]
NAMES = {"smoothgrad": "SmoothGrad"}

Link = tuple[int, int]
LinkSet = frozenset[Link]


@dataclasses.dataclass(frozen=True)
class Pair:
    """A pair of sentences: words, tokens, the word that each token is of (−1: none), and what people aligned."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    source_ids: Sequence[int]
    source_words: Sequence[int]
    decoder_ids: Sequence[int]
    target_words: Sequence[int]
    """The word of the token that is predicted in each row."""
    sure: LinkSet
    possible: LinkSet


@dataclasses.dataclass(frozen=True)
class Maps:
    """Numbers for target and source words: by layer, method, setting and head (0: the layer's own)."""

    words: Mapping[tuple[int, str, str, int], np.ndarray]
    token_totals: Mapping[tuple[int, str, int], tuple[float, int]]
    """Sum of the numbers for pairs of tokens, and how many pairs there are."""


def maps_of(model: torch.nn.Module, pair: Pair) -> Maps:
    """The maps of one pair.

    Args:
        model: An encoder–decoder like Marian, in float64, with eager attention.
        pair: A pair.
    """
    with torch.inference_mode():
        output = model(
            input_ids=torch.tensor([list(pair.source_ids)]),
            decoder_input_ids=torch.tensor([list(pair.decoder_ids)]),
            output_attentions=True,
        )
    words, totals = {}, {}
    for layer, (module, weights) in enumerate(zip(model.decoder.layers, output.cross_attentions, strict=True), start=1):
        own, alpha = module.encoder_attn, weights[0].numpy()
        with torch.inference_mode():
            value = own.v_proj(output.encoder_last_hidden_state)[0].numpy()
        projection = own.out_proj.weight.detach().numpy().T
        parts = [slice(head * own.head_dim, (head + 1) * own.head_dim) for head in range(len(alpha))]
        vectors = np.stack([alpha[h][..., None] * (value[:, part] @ projection[part]) for h, part in enumerate(parts)])
        by_head = {
            "attn_w": [alpha.mean(axis=0), *alpha],
            "attn_n": [np.linalg.norm(every, axis=-1) for every in (vectors.sum(axis=0), *vectors)],
        }
        for method, maps in by_head.items():
            for head, tokens in enumerate(maps):
                totals[layer, method, head] = float(tokens.sum()), tokens.size
                for setting in SETTINGS:
                    words[layer, method, setting, head] = _over_words(tokens, pair, setting)
    return Maps(words, totals)


def _over_words(tokens: np.ndarray, pair: Pair, setting: str) -> np.ndarray:
    """Sums over a source word's tokens, means over a target word's; the last column is all that is of no word."""
    words = np.zeros((len(pair.target), len(pair.source) + 1))
    for target in range(len(pair.target)):
        rows = [row for row, word in enumerate(pair.target_words) if word == target]
        # A token is read in the row after the one that predicts it.
        rows = [row + 1 for row in rows if row + 1 < len(tokens)] if setting == "awi" else rows
        for column, word in enumerate(pair.source_words):
            if rows:
                words[target, word] += tokens[rows, column].mean()
    return words


def dependence(head: MarianMTModel, pair: Pair, samples: int, noise: float, random: np.random.Generator) -> np.ndarray:
    """How much the probability of every target token that follows the first depends on each source token.

    Each embedding, alone, is made a little longer and a little shorter, in each noisy copy of the source.
    """
    step = 1e-5
    embeddings = head.model.encoder.embed_tokens.weight[list(pair.source_ids)].detach().numpy()
    deviation = noise * (embeddings.max() - embeddings.min())
    total = np.zeros((len(pair.decoder_ids) - 1, len(pair.source_ids)))

    def probabilities(vectors: np.ndarray) -> np.ndarray:
        inputs = torch.from_numpy(vectors[None] * head.model.encoder.embed_scale)
        with torch.inference_mode():
            encoded = head.model.encoder(inputs_embeds=inputs)
            logits = head(encoder_outputs=encoded, decoder_input_ids=torch.tensor([list(pair.decoder_ids)])).logits[0]
        following = pair.decoder_ids[1:]
        return np.array([float(logits[row].softmax(dim=0)[token]) for row, token in enumerate(following)])

    for added in deviation * random.standard_normal((samples, *embeddings.shape)):
        for token in range(len(embeddings)):
            change = np.zeros_like(embeddings)
            change[token] = step * embeddings[token]
            noisy = embeddings + added
            slope = (probabilities(noisy + change) - probabilities(noisy - change)) / (2 * step)
            total[:, token] += np.maximum(slope, 0) / samples
    return total


def links_by_gradients(head: MarianMTModel, pairs: Mapping[int, Pair], options: AlignmentOptions) -> dict[int, LinkSet]:
    """The links of SmoothGrad, by row; no word is aligned with the end of the sentence."""
    found = {}
    for row, pair in pairs.items():
        random = np.random.default_rng([options.seed, row])
        tokens = dependence(head, pair, options.smoothgrad, options.noise, random)
        words = _over_words(np.vstack([tokens, np.zeros(tokens.shape[1])]), pair, "awo")
        words[:, -1] = 0
        found[row] = links_of(words)
    return found


def links_of(words: np.ndarray) -> LinkSet:
    """Each target word with the source word of the largest number, unless none is, or the end of the sentence has it."""
    return frozenset(
        (int(row.argmax()), target) for target, row in enumerate(words) if row.max() > 0 and row.argmax() < len(row) - 1
    )


def rates(found: Mapping[int, LinkSet], pairs: Mapping[int, Pair]) -> dict[str, float]:
    """Error rate, precision and recall over the pairs that were read."""
    links = sum(len(found[row]) for row in found)
    sure = sum(len(pairs[row].sure) for row in found)
    in_sure = sum(len(found[row] & pairs[row].sure) for row in found)
    in_possible = sum(len(found[row] & pairs[row].possible) for row in found)
    return {
        "aer": 1 - (in_sure + in_possible) / (links + sure),
        "precision": in_possible / links if links else 0.0,
        "recall": in_sure / sure,
        "sentences": len(found),
    }


def expected(
    maps: Mapping[int, Maps],
    pairs: Mapping[int, Pair],
    layers: Sequence[int],
    shown: Sequence[int],
    baselines: Mapping[str, Mapping[int, LinkSet]],
    drawn: str | None = None,
    gradients: Mapping[int, LinkSet] | None = None,
) -> Expected:
    """Everything that the alignment analysis returns.

    Args:
        maps: Of the pairs that were read, by row.
        pairs: All pairs, by row.
        layers: Layers that are looked at.
        shown: Rows whose maps are published.
        baselines: LinkSet of other aligners, by name and row.
        drawn: The setting of the maps that are drawn; None for the best.
        gradients: The links of SmoothGrad, if it was asked for.
    """
    own = [key for key in next(iter(maps.values())).words if key[0] in layers]
    links = {key: {row: links_of(maps[row].words[key]) for row in maps} for key in own}
    rows = []
    for layer, method, setting, head in own:
        totals = [maps[row].token_totals[layer, method, head] for row in maps]
        rows.append(
            {
                "layer": layer,
                "head": head,
                "method": method,
                "setting": setting,
                **rates(links[layer, method, setting, head], pairs),
                "mean_norm": sum(total for total, _ in totals) / sum(count for _, count in totals),
            }
        )
    places = ["layer", "head", "method", "setting"]
    measured = table(places, rows)
    aligners = ({} if gradients is None else {"smoothgrad": gradients}) | dict(baselines)
    others = [
        {"layer": 0, "head": 0, "method": name, "setting": "none", "mean_norm": np.nan}
        | rates({row: found[row] for row in maps}, pairs)
        for name, found in aligners.items()
    ]
    listed = links if gradients is None else links | {(0, "smoothgrad", "none", 0): gradients}
    tables = {"aer": table(places, rows + others), "links": _link_table(listed)}
    map_table = _map_table({row: maps[row] for row in shown if row in maps}, pairs, own)
    if map_table is not None:
        tables["maps"] = map_table
    metrics = _metrics(measured, others)
    layer_rows = measured.xs(0, level="head")
    return Expected(
        tables=tables,
        metrics=metrics,
        curves={
            f"{method}/{setting}/aer": layer_rows.xs((method, setting), level=("method", "setting"))["aer"].to_dict()
            for method, setting in itertools.product(METHODS, SETTINGS)
        },
        figures=_figures(measured, map_table, drawn),
        summary=_summary(layer_rows, others),
        sentences=_sentences(metrics, aligners, _apart(layer_rows, links, pairs), len(maps)),
        notes=_notes({row: pairs[row] for row in maps}, len(pairs)),
    )


def _link_table(links: Mapping[tuple[int, str, str, int], Mapping[int, LinkSet]]) -> pd.DataFrame:
    rows = [
        {
            "row": row,
            "layer": layer,
            "method": method,
            "setting": setting,
            "links": " ".join(f"{source}-{target}" for source, target in sorted(found)),
        }
        for (layer, method, setting, head), by_row in links.items()
        if head == 0
        for row, found in by_row.items()
    ]
    return table(["row", "layer", "method", "setting"], rows)


def _map_table(shown: Mapping[int, Maps], pairs: Mapping[int, Pair], keys) -> pd.DataFrame | None:
    rows = []
    for (row, maps), (layer, method, setting, head) in itertools.product(shown.items(), keys):
        pair = pairs[row]
        for (target, source), value in np.ndenumerate(maps.words[layer, method, setting, head]):
            link = (source, target)
            rows.append(
                {
                    "row": row,
                    "layer": layer,
                    "method": method,
                    "setting": setting,
                    "head": head,
                    "target": target,
                    "source": source,
                    "target_word": pair.target[target],
                    "source_word": (*pair.source, "</s>")[source],
                    "value": value,
                    "gold": "sure" if link in pair.sure else "possible" if link in pair.possible else "none",
                    "link": link in links_of(maps.words[layer, method, setting, head]),
                }
            )
    places = ["row", "layer", "method", "setting", "head", "target", "source"]
    return table(places, rows).sort_index() if rows else None


def _metrics(measured: pd.DataFrame, others) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for method, setting in itertools.product(METHODS, SETTINGS):
        chosen = measured.xs((method, setting), level=("method", "setting"))
        of_layers, of_heads = chosen.xs(0, level="head"), chosen[chosen.index.get_level_values("head") > 0]
        layer, (of_head, head) = of_layers["aer"].idxmin(), of_heads["aer"].idxmin()
        found = {
            "layer_mean/aer": of_layers["aer"].mean(),
            "best_layer/layer": layer,
            "best_head/layer": of_head,
            "best_head/head": head,
            "best_head/aer": of_heads["aer"].min(),
        } | {f"best_layer/{rate}": of_layers.loc[layer, rate] for rate in RATES}
        if method == "attn_n":
            loudest, (its_layer, its_head) = of_layers["mean_norm"].idxmax(), of_heads["mean_norm"].idxmax()
            found |= {
                "largest_norm_layer/layer": loudest,
                "largest_norm_layer/aer": of_layers.loc[loudest, "aer"],
                "largest_norm_head/layer": its_layer,
                "largest_norm_head/head": its_head,
                "largest_norm_head/aer": of_heads.loc[(its_layer, its_head), "aer"],
            }
            if of_heads["aer"].nunique() > 1:
                found["heads/spearman_norm_aer"] = scipy.stats.spearmanr(
                    of_heads["mean_norm"], of_heads["aer"]
                ).statistic
        metrics |= {f"{method}/{setting}/{name}": float(value) for name, value in found.items()}
    for other in others:
        metrics |= {f"{other['method']}/{rate}": other[rate] for rate in RATES}
    return metrics


def _figures(measured: pd.DataFrame, maps: pd.DataFrame | None, drawn: str | None) -> dict[str, Picture]:
    percent = {place: aer * 100 for place, aer in measured["aer"].items()}
    points: dict[str, list[tuple[float, float]]] = {}
    for (_, head, method, setting), row in measured.iterrows():
        if head and method == "attn_n":
            points.setdefault(SETTINGS[setting], []).append((row["mean_norm"], row["aer"] * 100))
    figures = {
        "by_layer": Picture(
            {
                (SETTINGS[setting], layer, METHODS[method]): value
                for (layer, head, method, setting), value in percent.items()
                if head == 0
            },
            {"limits": (0, 100)},
        ),
        "norm_and_aer": Picture(cloud(points)),
    }
    for number in [] if maps is None else maps.index.get_level_values("row").unique():
        rates = measured.xs((0, "attn_n"), level=("head", "method"))["aer"]
        best, side = min((key for key in rates.index if drawn in (None, key[1])), key=lambda key: rates[key])
        pictures: dict[str, Drawn] = {"map": {}, "map_layers": {}}
        for (layer, method, of, head, target, source), cell in maps.loc[number].iterrows():
            if head or of != side:
                continue
            place, value = (target, cell["target_word"], source, cell["source_word"]), cell["value"]
            frame = "sure" if cell["link"] else "none"
            pictures["map_layers"][(f"layer {layer}, {METHODS[method]}", *place, frame)] = value
            if layer == best:
                has_possible = "possible" in maps.loc[number]["gold"].values
                pictures["map"][(METHODS[method], *place, frame)] = value
                title = f"reference{'; dashed: only possible' if has_possible else ''}"
                value = {"sure": 1.0, "possible": 0.5, "none": 0.0}[cell["gold"]]
                pictures["map"][(title, *place, cell["gold"])] = value
        figures |= {f"{name}_{number}": Picture(picture) for name, picture in pictures.items()}
    return figures


def _summary(layer_rows: pd.DataFrame, others) -> pd.DataFrame:
    rows = {}

    def percent(found: Mapping[str, float]) -> dict[str, float]:
        return {"AER %": found["aer"] * 100} | {f"{name} %": found[name] * 100 for name in ("precision", "recall")}

    for method, setting in itertools.product(METHODS, SETTINGS):
        of_layers = layer_rows.xs((method, setting), level=("method", "setting"))
        best = of_layers["aer"].idxmin()
        rows[f"{WORDS[method]} {WORDS[setting]}"] = {
            "layer mean AER %": of_layers["aer"].mean() * 100,
            "best layer": str(best),
            **percent(of_layers.loc[best]),
        }
    for other in others:
        rows[NAMES.get(other["method"], other["method"])] = {
            "layer mean AER %": np.nan,
            "best layer": "",
            **percent(other),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def _apart(layer_rows: pd.DataFrame, links: Mapping, pairs: Mapping[int, Pair]) -> dict[str, Interval]:
    """The rate of vectors less that of weights in their best layers; each pair's part by the derivative of a ratio of sums."""
    intervals = {}
    for setting in SETTINGS:
        parts = []
        for method in METHODS:
            errors = layer_rows.xs((method, setting), level=("method", "setting"))["aer"]
            found = links[errors.idxmin(), method, setting, 0]
            agreed = {row: len(own & pairs[row].sure) + len(own & pairs[row].possible) for row, own in found.items()}
            total = {row: len(own) + len(pairs[row].sure) for row, own in found.items()}
            size, right = sum(total.values()), sum(agreed.values())
            # d(1 − a/t) = −da/t + a dt/t², of each pair's part times the number of pairs
            parts.append([len(found) * (right * total[row] / size - agreed[row]) / size for row in found])
        difference = layer_rows["aer"].groupby(["method", "setting"]).min().xs(setting, level="setting")
        mean = float(difference["attn_n"] - difference["attn_w"])
        _, low, high = interval([mean + vectors - weights for weights, vectors in zip(*parts, strict=True)])
        few = len(parts[0]) < 5
        intervals[setting] = Interval(mean, np.nan if few else low, np.nan if few else high)
    return intervals


def _sentences(metrics: Mapping[str, float], baselines, apart: Mapping[str, Interval], pairs: int) -> list[str]:
    sentences = []
    for setting, side in (("awo", "output"), ("awi", "input")):
        best = {method: percent(metrics[f"{method}/{setting}/best_layer/aer"]) for method in METHODS}
        mean = {method: percent(metrics[f"{method}/{setting}/layer_mean/aer"]) for method in METHODS}
        sentences.append(
            f"Alignment with {side}: vector norms have an alignment error rate of "
            f"{best['attn_n']} and attention weights of {best['attn_w']}{in_points(*apart[setting], pairs)}, "
            f"each in its best layer; averaged over "
            f"layers, {mean['attn_n']} and {mean['attn_w']}."
        )
    others = [f"{percent(metrics[f'{name}/aer'])} by {NAMES.get(name, name)}" for name in baselines]
    if others:
        listed = others[0] if len(others) == 1 else f"{', '.join(others[:-1])} and {others[-1]}"
        sentences.append(f"On the same pairs, the alignment error rate is {listed}.")
    return sentences


def _notes(read: Mapping[int, Pair], total: int) -> list[str]:
    notes = []
    for side in ("source", "target"):
        lost = sum(
            len(set(range(len(getattr(pair, side)))) - set(getattr(pair, f"{side}_words"))) for pair in read.values()
        )
        if lost:
            words = f"1 {side} word: it is" if lost == 1 else f"{lost:,} {side} words: they are"
            notes.append(f"the tokenizer drops {words} never aligned")
    if len(read) < total:
        notes.append(f"error rates cover only the {len(read):,} of {total:,} pairs that were read")
    return notes


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
    return {row: maps_of(model, PAIRS[row]) for row in READ}


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
    facts = facts_for("marian", "cross")
    observer = Observer(model, facts, layers)
    reference = Reference(
        {row: SentencePair(own.source, own.target, Links(own.sure, own.possible)) for row, own in PAIRS.items()},
        baselines,
    )
    context = AnalysisContext(layers, ["all"], observer.parameters, resources={REFERENCE: reference})
    return analysed("alignment", options, context, observer, [batch(1, 3), batch(4, 2), batch(5)])


def findings(options: AlignmentOptions, baselines, layers):
    analysis = seen(tiny_stack("marian", "cross", torch.float64), options, baselines, layers)
    analysis.intervene(translator())
    return rolled_up("alignment", analysis.info.declared, analysis.result())


def translator(head: bool = True):
    """What runs the tiny model again, with a head that predicts tokens."""
    model = tiny_stack("marian", "cross", torch.float64)
    whole = MarianMTModel(copy.deepcopy(model.config)).double().eval()
    whole.model = model
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        whole.lm_head.weight.copy_(torch.randn(whole.lm_head.weight.shape, generator=generator) / 8)
    loaded = types.SimpleNamespace(translator=whole if head else None, name="tiny")
    return types.SimpleNamespace(model=loaded, progress=lambda steps, _total, _title: steps)


def everything() -> Result:
    """Everything that the analysis can return, on a tiny model."""
    texts = findings(AlignmentOptions(smoothgrad=2, seed=0), BASELINES, LAYERS)
    return with_inputs_of_its_own("alignment", texts, test_sounds.measured())


def test_maps_that_are_not_finite_are_refused_when_the_corpus_has_been_read():
    model = tiny_stack("marian", "cross", torch.float64)
    with torch.no_grad():
        model.decoder.layers[1].encoder_attn.out_proj.weight[3, 1] = float("inf")
    analysis = seen(model, AlignmentOptions(), {}, LAYERS)
    with pytest.raises(InputError, match="^NaN or infinity in the activations of layer 2; try device.dtype=float32$"):
        analysis.result()


@pytest.mark.spread(1)
@pytest.mark.parametrize("layers", [[1, 2], [2]])
def test_alignment(maps, layers):
    found = findings(AlignmentOptions(sentences=[1, 3, 5]), BASELINES, layers)
    computed = expected(maps, PAIRS, layers, [1, 3, 5], BASELINES)
    assert_expected(found, computed, tolerance=1e-6)  # maps are kept in float32


def test_the_first_three_pairs_are_shown_and_nothing_to_compare_with_is_fine(maps):
    found = findings(AlignmentOptions(), {}, LAYERS)
    assert_expected(found, expected(maps, PAIRS, LAYERS, [1, 2, 3], {}), tolerance=1e-6)


@pytest.mark.spread(1)
@pytest.mark.parametrize("setting", ["awo", "awi"])
def test_maps_are_drawn_in_the_setting_that_was_asked_for(maps, setting):
    found = findings(AlignmentOptions(setting=Setting(setting)), {}, LAYERS)
    assert_expected(found, expected(maps, PAIRS, LAYERS, [1, 2, 3], {}, setting), tolerance=1e-6)


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    "options", [{"smoothgrad": 3}, {"smoothgrad": 1, "noise": 0.0}, {"smoothgrad": 2, "noise": 0.6}]
)
def test_alignment_by_gradients(maps, options):
    options = AlignmentOptions(seed=4, **options)
    found = findings(options, BASELINES, LAYERS)
    gradients = links_by_gradients(translator().model.translator, {row: PAIRS[row] for row in READ}, options)
    computed = expected(maps, PAIRS, LAYERS, [1, 2, 3], BASELINES, None, gradients)
    assert_expected(found, computed, tolerance=1e-6)
    assert len({(source, row) for row, links in gradients.items() for source, _ in links}) > 3, "or any map would do"


@pytest.mark.parametrize("row", [2, 3])
def test_dependence_is_the_mean_of_positive_slopes(row):
    head, pair = translator().model.translator, PAIRS[row]
    ids = {"input_ids": torch.tensor([pair.source_ids]), "decoder_input_ids": torch.tensor([pair.decoder_ids])}
    found = smooth_gradients(head, ids, 3, 0.3, np.random.default_rng([0, row]))
    np.testing.assert_allclose(found, dependence(head, pair, 3, 0.3, np.random.default_rng([0, row])), atol=1e-8)
    assert (found.numpy() == 0).any(), "some slopes are negative in all samples"


def test_dependence_without_noise_is_captums_gradient_times_input():
    from captum.attr import InputXGradient

    head, pair = translator().model.translator, PAIRS[1]
    ids = {"input_ids": torch.tensor([pair.source_ids]), "decoder_input_ids": torch.tensor([pair.decoder_ids])}
    found = smooth_gradients(head, ids, 1, 0.0, np.random.default_rng(0))

    def probability(vectors, place):
        encoded = head.model.encoder(inputs_embeds=vectors * head.model.encoder.embed_scale)
        logits = head(encoder_outputs=encoded, decoder_input_ids=ids["decoder_input_ids"]).logits[0, place]
        return logits.softmax(dim=0)[None, pair.decoder_ids[place + 1]]

    embeddings = head.model.encoder.embed_tokens(ids["input_ids"]).detach().requires_grad_()
    for place, row in enumerate(found):
        parts = InputXGradient(probability).attribute(embeddings, additional_forward_args=place)
        np.testing.assert_allclose(row, parts[0].sum(dim=-1).clamp(min=0).detach(), atol=1e-12)


def test_gradients_need_a_head_that_predicts_translations():
    analysis = seen(tiny_stack("marian", "cross", torch.float64), AlignmentOptions(smoothgrad=1), {}, LAYERS)
    with pytest.raises(
        InputError, match=r"^analysis\.alignment\.smoothgrad=1: expected a model that predicts translations"
    ):
        analysis.intervene(translator(head=False))


def test_maps_of_a_pair_that_was_not_read_are_left_out(maps):
    found = findings(AlignmentOptions(sentences=[6]), {}, LAYERS)
    assert_expected(found, expected(maps, PAIRS, LAYERS, [6], {}), tolerance=1e-6)


AER = {
    "attn_w/awi/best_layer/aer": 0.4,
    "attn_n/awi/best_layer/aer": 0.3,
    "attn_w/awi/layer_mean/aer": 0.8,
    "attn_n/awi/layer_mean/aer": 0.7,
}
ALIGNED = (
    "vector norms have an alignment error rate of 30% and attention weights of 40%, each in its best layer; averaged over "
    "layers, 70% and 80%."
)

CASES = [
    ({}, []),
    (
        AER | {"giza/aer": 0.1, "giza/recall": 0.2, "attn_w/awi/union/aer": 0.6},
        [f"Alignment with input: {ALIGNED}", "On the same pairs, the alignment error rate is 10% by giza."],
    ),
    ({name.replace("awi", "awo"): value for name, value in AER.items()}, [f"Alignment with output: {ALIGNED}"]),
    ({"attn_n/awo/best_layer/aer": 0.3}, []),
    (
        AER,
        {"apart": {"awi": Interval(-0.1, -0.12, -0.08)}, "pairs": 500},
        [
            "Alignment with input: vector norms have an alignment error rate of 30% and attention weights of 40% (difference "
            "10.0 points, 95% interval 8.0 to 12.0 over 500 sequences), each in its best layer; averaged over layers, 70% and "
            "80%."
        ],
    ),
]

EFFECTS = [(AER, {}, 0.1), (AER, {"apart": {"awi": Interval(-0.1, -0.3, 0.1)}}, 0.0)]
