"""Similarity of texts: which categories of tokens carry it, how much is constant? (DecompX's vectors, pooled)

The cosine of two embeddings is a sum over pairs of tokens (Modarressi et al. 2023, for the vectors x_{i⇐k}). Vectors of whole
categories are carried through the model's own code, and what a token adds together with the whole other text comes from one
backward pass; only a few pairs are split token by token, when the corpus has been read.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.analyses.base import Analysis, AnalysisContext, Requirements
from normscope.analyses.declarations.similarity import SIMILARITY, SimilarityOptions
from normscope.analyses.finite import require_finite
from normscope.analyses.text_pairs import FRIENDS, DrawnPair, Embedded, PairMaps, Words
from normscope.attribution.methods import check_followed
from normscope.attribution.similarities import PairSums, embedded_parts, sums_of_pairs
from normscope.data.batching import Batch
from normscope.data.encoders import NO_PROMPTS, Prompts
from normscope.errors import InputError
from normscope.maths.choices import Pooling
from normscope.maths.embedder import Embedder
from normscope.maths.tensors import to_device
from normscope.models.facts import ModelFacts
from normscope.models.load.interventions import InterventionRunner
from normscope.results.codes import category_name
from normscope.results.figures import Figure, Lines, WordMaps
from normscope.results.findings import Sentence, Summary
from normscope.results.result import Result
from normscope.results.rollups import by_axes, metrics_of
from normscope.results.token_labels import label
from normscope.rounding import begun, between, brief, compared, counted, differ, enumeration, number
from normscope.statistics.intervals import Interval, interval_over_texts
from normscope.statistics.kept_tensors import KeptTensors
from normscope.statistics.keyed_means import KeyedMeans, KeyedSummary
from normscope.statistics.mean import Mean, MeanSummary
from normscope.statistics.rank_correlation import FEWEST_PAIRS, correlation
from normscope.statistics.tidy import tidy

BIAS = "bias"
"""The category of the model's biases."""

SPANS = ("special", "prompt", "text", BIAS)
"""Special tokens, wherever they are; other tokens of a prompt; all other tokens; and the biases."""

_LISTED = 10
"""Documents in the terminal."""

_LOW = 0.25
"""The share of pairs whose gold scores are low."""

_GROUPS = 5
"""Groups of pairs, from the least to the most similar."""


class SimilarityAnalysis(Analysis):
    """What tokens, spans and each pair of categories add to the cosine similarity of the texts of a pair."""

    info = SIMILARITY

    def __init__(self, options: SimilarityOptions, context: AnalysisContext) -> None:
        super().__init__(options, context)
        assert context.observed is not None
        self._model = context.observed
        self._embedder = _embedder(options, context)
        self._rule, self._maps_wanted = options.bias, not options.sums
        self._columns = PairColumns((*context.names, BIAS))
        self._groups = len(self._columns.categories)
        self._pairs = KeptTensors(torch.float64)  # a row of numbers for each pair
        self._spans, self._tokens = Mean(1, len(SPANS)), KeyedMeans(1, 1)
        self._words = Words(context.vocabulary, context.names)
        self._cells = Mean(1, self._groups**2)
        self._maps = PairMaps(None if options.rows is None else frozenset(options.rows), self._words)
        self._drawn: dict[int, DrawnPair] = {}
        self.accumulators = {"pairs": self._pairs, "by_span": self._spans, "by_token": self._tokens}
        if self._maps_wanted:
            self.accumulators |= {"cells": self._cells, **self._maps.accumulators}

    @classmethod
    def requirements(cls, options: SimilarityOptions, facts: ModelFacts) -> Requirements:
        """Pairs of texts.

        Raises:
            InputError: If vectors cannot be followed through all layers.
        """
        if facts.stack is None:
            check_followed(facts)
        return Requirements(keeps_layers=True, prompts=functools.partial(_prompts, options))

    def end_batch(self, batch: Batch) -> None:
        """Add the cosines of a batch and what they are made of."""
        sums, cells = self._sums(batch)
        members = self._members(batch).to(sums.a)
        first, second = members[0::2], members[1::2]
        # What a pair of tokens adds is split equally between the two.
        categories = (torch.einsum("nk,nkc->nc", sums.a, first) + torch.einsum("nk,nkc->nc", sums.b, second)) / 2
        halves = torch.stack([sums.a, sums.b], dim=1).flatten(0, 1) / 2
        if self._maps_wanted:
            counts = first.sum(dim=1).T @ second.sum(dim=1)
            self._cells.update(0, cells.flatten(), counts.round().long().flatten())
            self._maps.update(batch, sums.value, halves[:, :-1])
        spans = members_of_spans(batch, self._words.special).to(halves)
        counts = spans.sum(dim=(0, 2)).round().long()
        self._spans.update(0, torch.einsum("nsk,nk->s", spans, halves), counts)
        mask, added = batch.host.token_mask, halves[:, :-1].cpu()
        keys, terms = batch.host.input_ids[mask][:, None], torch.ones(int(mask.sum()), dtype=torch.long)
        self._tokens.update(keys, added[mask][:, None], terms)
        friends = self._words.that_add_most(batch, added.numpy())
        self._pairs.update(batch.rows[0::2], self._columns.rows(batch, sums, categories, friends))

    def intervene(self, runner: InterventionRunner) -> None:
        """Draw some pairs."""
        if self._maps_wanted:
            self._drawn = self._maps.drawn(runner, self._embedded, self.context.vocabulary.text)

    def _embedded(self, text: Batch, prompt: int, units: Int[Tensor, "1 token"]) -> Embedded:
        """What the units of a text contribute to its embedding, and the embedding."""
        given = (*self._model, text.model_inputs())
        return embedded_parts(*given, embedder=self._embedder, bias=self._rule, prompt=prompt, units=units)

    def _sums(self, batch: Batch) -> tuple[PairSums, Float[Tensor, "category category"]]:
        """What the tokens of each text add to the cosines; and what pairs of categories do, unless only sums were asked for."""
        # A vector for each category but the last is carried through all layers, so those that do not occur are left out.
        occur, counts = batch.categories[batch.token_mask & self._maps_wanted].unique(return_counts=True)
        occur = occur[counts.argsort()]
        units = torch.full_like(batch.categories, -1)
        for unit, category in enumerate(occur.tolist()):
            units[batch.categories == category] = unit
        given = (*self._model, batch.model_inputs(), units)
        sums = sums_of_pairs(*given, embedder=self._embedder, bias=self._rule, prompt=prompt_lengths(batch))
        places = torch.cat([occur, occur.new_tensor([self._groups - 1])])
        cells = sums.units.new_zeros(self._groups, self._groups)
        cells[places[:, None], places] = sums.units.sum(dim=0)
        return sums, cells

    def _members(self, batch: Batch) -> Int[Tensor, "batch source category"]:
        """1 where a token, or last the bias, belongs to a category."""
        categories = batch.categories.masked_fill(~batch.token_mask, self._groups)
        bias = torch.full_like(categories[:, :1], self._groups - 1)
        return torch.nn.functional.one_hot(torch.cat([categories, bias], dim=1), self._groups + 1)[..., : self._groups]

    def result(self) -> Result:
        """What similarity comes from, and every pair's cosine."""
        kept, columns = torch.stack(self._pairs.compute().tensors), self._columns
        require_finite(columns.of(kept, "value"), "the cosine similarities")
        pairs, parts = pair_table(kept, columns), columns.parts(kept)
        friends, text = false_friends(kept, columns), self.context.vocabulary.text
        tables = {
            "pairs": pairs.sort_values(["query", "rank"], kind="stable", na_position="first", ignore_index=True),
            "by_token": token_table(self._tokens.compute(), friends, len(pairs), text),
        }
        metrics = metrics_of(self.info.declared, tables)
        cosine, with_bias = metrics["cosine"], float(columns.of(kept, "with_bias").mean())
        metrics |= {"with_bias": with_bias} | ({"with_bias_share": with_bias / cosine} if cosine else {})
        metrics |= {f"category/{name}": float(values.mean()) for name, values in parts.items()}
        metrics |= span_metrics(self._spans.compute(), len(pairs), cosine) | gold_correlation(pairs, parts)
        cells = None
        if self._maps_wanted:
            cells = cell_table(self._cells.compute(), len(kept), columns, self.context.categories)
            tables["by_category"] = cells
        summary, caption = _summary(tables, parts, cosine)
        most = tables["by_token"].dropna(subset="low_gold").nlargest(FRIENDS, "low_gold")["token"].tolist()
        return Result(
            tables=tables,
            metrics=metrics,
            sentences=sentences_of(
                metrics,
                most,
                self._drawn,
                {str(name): interval_over_texts(values.to_numpy()) for name, values in parts.items()},
                maps=self._maps_wanted,
            ),
            figures=describe_figures(cells, pairs, parts, self._drawn, metrics),
            summaries={self.info.name: Summary(summary, digits=3, caption=caption)},
        )


def _summary(tables: Mapping[str, pd.DataFrame], parts: pd.DataFrame, cosine: float) -> tuple[pd.DataFrame, str]:
    """The table that the terminal prints, and its caption."""
    ranking = tables["pairs"].query("query == 1").head(_LISTED)
    if len(ranking):
        table = ranking.set_index("rank")[["document", "value"]].rename(columns={"value": "cosine"})
        return table, "the documents that are most similar to query 1, by cosine similarity (higher is more similar)"
    if "by_category" in tables:
        table = tables["by_category"].pivot(index="category_a", columns="category_b", values="contribution")
        table = table.rename(index=category_name, columns=category_name)
        table = table.rename_axis(index="first text", columns="second text")
        return table, f"what pairs of categories add to the mean cosine of {cosine:.3f}"
    table = parts.mean().rename(index=category_name).rename_axis("category").to_frame("contribution")
    return table, f"what the tokens of each category add to the mean cosine of {cosine:.3f}"


def _prompts(options: SimilarityOptions, embedder: Callable[[], Embedder]) -> Prompts:
    """What is put before the texts."""
    if options.prompts == []:
        return NO_PROMPTS
    try:
        own = embedder()
    except InputError:  # pooling is given, or the analysis says what is missing
        own = Embedder(Pooling.mean)
    if options.prompts is not None:
        try:
            given = own.prompt(options.prompts[0]), own.prompt(options.prompts[-1])
        except InputError as error:
            raise InputError(f"analysis.similarity.{error}") from error
        return Prompts(given, given)
    return Prompts(own.default_prompts(), own.default_prompts(ranked=True))


def _embedder(options: SimilarityOptions, context: AnalysisContext) -> Embedder:
    if options.pooling is not None:
        return Embedder(options.pooling)
    try:
        return context.own_embedder()
    except InputError as error:
        raise InputError(f"analysis.similarity.{error}") from error


def prompt_lengths(batch: Batch) -> Int[Tensor, " batch"]:
    """Number of tokens at the start of each text that a prompt takes, on the batch's device."""
    assert batch.pairing is not None
    return to_device(batch.pairing.prompts, batch.input_ids.device)


def members_of_spans(batch: Batch, special: Int[Tensor, " _"]) -> Bool[Tensor, "batch span source"]:
    """Which tokens of each text, and last its bias, belong to each of SPANS.

    Args:
        special: The ids of special tokens.
    """
    mask = batch.token_mask
    is_special = torch.isin(batch.input_ids, to_device(special, mask.device)) & mask
    in_prompt = torch.arange(mask.shape[1], device=mask.device) < prompt_lengths(batch)[:, None]
    prompt = mask & in_prompt & ~is_special
    spans = torch.stack([is_special, prompt, mask & ~is_special & ~prompt, torch.zeros_like(mask)], dim=1)
    members = torch.nn.functional.pad(spans, (0, 1))
    members[:, -1, -1] = True  # of the biases
    return members


_OF_PAIR = ("row", "query", "document", "value", "with_bias", "gold")


@dataclasses.dataclass(frozen=True)
class PairColumns:
    """The numbers that are kept for every pair of texts."""

    categories: tuple[str, ...]
    """The categories of tokens, and last `bias`."""

    @property
    def names(self) -> tuple[str, ...]:
        """What the numbers are. The last are what each category adds to the cosine."""
        friends = [f"{what}_{place}" for what in ("friend", "added") for place in range(FRIENDS)]
        return (*_OF_PAIR, *friends, *self.categories)

    def rows(
        self,
        batch: Batch,
        sums: PairSums,
        categories: Float[Tensor, "pair category"],
        friends: Float[np.ndarray, "pair number"],
    ) -> Float[Tensor, "pair column"]:
        """The numbers of a batch of pairs, in float64.

        Args:
            categories: What each category adds; the last is `bias`.
            friends: See `Words.that_add_most`.
        """
        assert batch.pairing is not None
        gold = [math.nan if score is None else score for score in batch.pairing.scores]
        ranked = zip(*batch.pairing.ranked, strict=True)
        numbers = [batch.rows[0::2], *ranked, sums.value, sums.with_bias, gold]
        columns = [torch.as_tensor(column).cpu().double() for column in numbers]
        return torch.cat([torch.stack(columns, dim=1), torch.from_numpy(friends), categories.cpu().double()], dim=1)

    def of(self, kept: Float[Tensor, "pair column"], name: str) -> Float[np.ndarray, " pair"]:
        """One of the numbers of each pair."""
        column: np.ndarray = kept[:, self.names.index(name)].numpy()
        return column

    def friends(self, kept: Float[Tensor, "pair column"]) -> pd.DataFrame:
        """The words that add most to each pair: the number of the pair, the token's id, and what the token adds."""
        start = len(_OF_PAIR)
        ids, added = kept[:, start : start + FRIENDS].numpy(), kept[:, start + FRIENDS : start + 2 * FRIENDS].numpy()
        pairs = np.repeat(np.arange(len(kept)), FRIENDS)
        table = pd.DataFrame({"pair": pairs, "token_id": ids.ravel(), "added": added.ravel()})
        return table[table["added"] > 0].astype({"token_id": np.int64})

    def parts(self, kept: Float[Tensor, "pair column"]) -> pd.DataFrame:
        """What each category adds to the cosine of each pair of texts: one column per category that occurs in the corpus."""
        parts = pd.DataFrame(kept[:, -len(self.categories) :].numpy(), columns=list(self.categories))
        return parts.loc[:, (parts != 0).any(axis=0)]


def pair_table(kept: Float[Tensor, "pair column"], columns: PairColumns) -> pd.DataFrame:
    """The table `pairs`, in the order of the data."""
    table = pd.DataFrame({name: columns.of(kept, name) for name in ("row", "value", "gold", "query", "document")})
    value = columns.of(kept, "value")
    share = np.divide(columns.of(kept, "with_bias"), value, out=np.full_like(value, np.nan), where=value != 0)
    table.insert(2, "bias_share", share)
    ranked = table["query"].where(table["query"] > 0)
    ranks = table["value"].groupby(ranked).rank(method="first", ascending=False)
    kinds = dict.fromkeys(("query", "document", "rank"), "Int64")
    return table.assign(query=ranked, document=table["document"].where(ranked.notna()), rank=ranks).astype(
        {"row": np.int64, **kinds}
    )


def token_table(tokens: KeyedSummary, friends: pd.DataFrame, pairs: int, text: Callable[[int], str]) -> pd.DataFrame:
    """The table `by_token`, the largest contribution first.

    Args:
        tokens: What the tokens add.
        friends: See `false_friends`.
        pairs: Number of pairs of texts.
        text: Returns the text of a token.
    """
    ids, mean, count = tokens.keys[:, 0].numpy(), tokens.mean[:, 0].numpy(), tokens.count.numpy()
    table = pd.DataFrame(
        {
            "token": pd.Series([text(identifier) for identifier in ids.tolist()], dtype=object),
            "token_id": ids,
            "contribution": mean * count / pairs,
            "mean": mean,
            "count": count,
        }
    )
    table = table.join(friends, on="token_id").astype({"low_gold_pairs": "Int64"})
    return table.sort_values("contribution", ascending=False, kind="stable", ignore_index=True)


def false_friends(kept: Float[Tensor, "pair column"], columns: PairColumns) -> pd.DataFrame:
    """The words that add most to the pairs whose gold scores are in the lowest quarter; none if scores do not differ.

    Returns:
        By the token's id: `low_gold`, what it adds to these pairs in total, and `low_gold_pairs`, their number.
    """
    gold, friends = columns.of(kept, "gold"), columns.friends(kept)
    scored = gold[~np.isnan(gold)]
    low = np.zeros_like(gold, dtype=bool)
    if len(scored) >= FEWEST_PAIRS and scored.min() < scored.max():
        low = gold <= np.quantile(scored, _LOW)
    groups = friends[low[friends["pair"]]].groupby("token_id")["added"]
    return groups.agg(["sum", "count"]).set_axis(["low_gold", "low_gold_pairs"], axis="columns")


def cell_table(cells: MeanSummary, pairs: int, columns: PairColumns, reported: Collection[str]) -> pd.DataFrame:
    """The table `by_category`: pairs of reported categories that have tokens; `bias` is always reported.

    Args:
        cells: What pairs of tokens of each pair of categories add to cosines.
        pairs: Number of pairs of texts.
        columns: Names the categories.
        reported: The categories to report.
    """
    size = len(columns.categories)
    contribution = _per_pair(cells, pairs)
    total = float(contribution.sum())
    numbers = {
        "contribution": contribution,
        "share": contribution / total if total else np.full_like(contribution, np.nan),
        "mean": cells.mean[0].numpy(),
        "count": cells.count[0].numpy(),
    }
    table = tidy(
        {name: values.reshape(size, size) for name, values in numbers.items()},
        category_a=columns.categories,
        category_b=columns.categories,
    )
    shown = [*reported, BIAS]
    chosen = table["category_a"].isin(shown) & table["category_b"].isin(shown) & (table["count"] > 0)
    return table[chosen].reset_index(drop=True)


def span_metrics(spans: MeanSummary, pairs: int, cosine: float) -> dict[str, float]:
    """What each span that has tokens adds to the mean cosine, and its share.

    Args:
        spans: What the tokens of SPANS add.
        pairs: Number of pairs of texts.
        cosine: The mean cosine.
    """
    added = dict(zip(SPANS, _per_pair(spans, pairs).tolist(), strict=True))
    occur = [span for span, count in zip(SPANS, spans.count[0].tolist(), strict=True) if count]
    shares = {f"span_share/{span}": added[span] / cosine for span in occur if cosine}
    return {f"span/{span}": added[span] for span in occur} | shares


def _per_pair(summary: MeanSummary, pairs: int) -> Float[np.ndarray, " group"]:
    """What each group adds to the mean over pairs of texts."""
    count = summary.count[0].numpy()
    added: np.ndarray = np.where(count > 0, summary.mean[0].numpy(), 0.0) * count / pairs
    return added


def gold_correlation(pairs: pd.DataFrame, parts: pd.DataFrame) -> dict[str, float]:
    """Spearman's ρ with the gold scores, of the cosines and of each part, and the number of pairs; nothing without scores.

    ρ is left out if it is undefined: fewer than three pairs, or one side is constant.

    Args:
        pairs: See `pair_table`.
        parts: What each category adds to the cosine of each of these pairs.
    """
    scored = pairs["gold"].notna()
    if not scored.any():
        return {}
    gold, metrics = pairs["gold"][scored], {"gold/count": float(scored.sum())}
    sides = {"gold/spearman": pairs["value"], **{f"gold/category/{name}": parts[name] for name in parts}}
    if len(gold) < FEWEST_PAIRS:
        return metrics
    ranks = gold.rank().to_numpy()
    found = {name: correlation(values[scored].rank().to_numpy(), ranks) for name, values in sides.items()}
    return metrics | {name: value for name, value in found.items() if value is not None}


def describe_figures(
    table: pd.DataFrame | None,
    pairs: pd.DataFrame,
    parts: pd.DataFrame,
    drawn: Mapping[int, DrawnPair],
    metrics: Mapping[str, float],
) -> dict[str, Figure]:
    """Pairs of categories, what each category adds to dissimilar and similar pairs, and single pairs.

    Args:
        table: The table `by_category`; None without one.
        pairs: See `pair_table`.
        parts: What each category adds to the cosine of each of these pairs.
        drawn: Single pairs, by their rows.
        metrics: Numbers by name.
    """
    figures: dict[str, Figure] = {} if table is None else {"by_category": _cells(table, len(pairs), metrics)}
    groups = by_similarity(pairs, parts)
    if groups["cosine"].nunique() == groups["group"].nunique() > 1:
        figures["by_similarity"] = Lines(
            table=groups,
            x="cosine",
            y="contribution",
            series="category",
            y_label="added to the cosine",
            series_titles={category: category for category in parts.columns},
            caption=(
                "What the tokens of each category, and the biases, add to the cosine similarity, from the least to the most "
                f"similar pairs of texts ({groups['group'].nunique()} groups, as equal in size as possible). A category whose "
                "line rises distinguishes similar from dissimilar texts; one whose line is flat adds the same to all groups."
            ),
        )
    return figures | {f"pair_{row}": pair.texts.figure() for row, pair in drawn.items()}


def by_similarity(pairs: pd.DataFrame, parts: pd.DataFrame) -> pd.DataFrame:
    """What each category adds in groups of equal size, from the least to the most similar pairs: group, category, means."""
    order = np.argsort(pairs["value"].to_numpy(), kind="stable")
    groups = np.array_split(order, min(_GROUPS, len(order)))
    means = np.array([parts.to_numpy()[group].mean(axis=0) for group in groups])
    # Ticks stand at these places, so they should be short.
    cosines = np.array([pairs["value"].to_numpy()[group].mean() for group in groups]).round(3)
    return tidy(
        {"cosine": cosines[:, None], "contribution": means}, group=range(len(groups)), category=list(parts.columns)
    )


def _cells(table: pd.DataFrame, pairs: int, metrics: Mapping[str, float]) -> WordMaps:
    cosine, with_bias = metrics["cosine"], metrics["with_bias"]
    of_categories = by_axes("category/<category>", metrics)
    of_categories.pop(BIAS, None)
    _, others, biases = compared(brief, cosine, cosine - with_bias, with_bias)
    halves = enumeration([f"{category_name(name)} {brief(value)}" for name, value in of_categories.items()])
    order = list(dict.fromkeys([*table["category_a"], *table["category_b"]]))
    order.sort(key=BIAS.__eq__)  # the biases come last
    numbers = {category: position for position, category in enumerate(order)}
    title = f"mean cosine {number(cosine)}"
    return WordMaps(
        table=table.assign(
            panel=title,
            frame="none",
            a=table["category_a"].map(numbers),
            b=table["category_b"].map(numbers),
            category_a=table["category_a"].map(category_name),
            category_b=table["category_b"].map(category_name),
        ),
        panel="panel",
        panel_titles={title: title},
        row="a",
        row_label="category_a",
        column="b",
        column_label="category_b",
        value="contribution",
        largest=float(table["contribution"].abs().max()) or 1.0,
        digits=3,
        caption=(
            f"What pairs of tokens add to the mean cosine similarity of {counted(pairs, 'pair')} of texts, by the category of "
            "the token in the first text (rows) and in the second (columns). Over all categories, the cells add up to "
            f"{number(cosine)}: orange raises it, purple lowers it. The biases belong to no token: pairs with them add "
            f"{biases}, all others {others}. If each token is credited with half of what its pairs add, "
            f"the categories add up to: {halves}."
        ),
    )


def sentences_of(
    metrics: Mapping[str, float],
    friends: Sequence[str] = (),
    drawn: Mapping[int, DrawnPair] = MappingProxyType({}),
    added: Mapping[str, Interval] = MappingProxyType({}),
    *,
    maps: bool = True,
) -> list[Sentence]:
    """What the mean similarity of several pairs consists of, why two texts are similar, and the agreement with gold scores.

    Args:
        metrics: Numbers by name; missing ones are skipped.
        friends: The words that add most to pairs with low gold scores, the largest first.
        drawn: Pairs that are drawn, by their rows.
        added: What each category adds to the cosine, with its interval over pairs.
        maps: Whether there is a table of pairs of categories.
    """
    # The pair, or the first query, is what one asks about; among many pairs, one is an example.
    example, of_all = list(map(_similar, list(drawn.items())[:1])), _made_of(metrics, added, maps=maps)
    is_one = metrics.get("pairs", 1) <= 1 or any(pair.document for pair in drawn.values())
    return [*(example + of_all if is_one else of_all + example), *_beside_gold(metrics, friends)]


def _similar(drawn: tuple[int, DrawnPair]) -> Sentence:
    """Why two texts are similar."""
    row, (texts, document, strongest) = drawn
    most = enumeration([f"{label(a)}–{label(b)} ({number(value, signed=True)})" for a, b, value in strongest])
    name = f"pair {row}" if not document else f"query 1 and document {document}, the most similar one,"
    return Sentence(
        f"The cosine similarity of {name} is {number(texts.value)}; "
        + (f"the pairs of words that add most are {most}." if most else "no pair of words adds to it."),
        figure=f"pair_{row}",
        table="pairs",
        effect=max((value for *_, value in strongest), default=0.0),
    )


def _made_of(metrics: Mapping[str, float], added: Mapping[str, Interval], *, maps: bool) -> list[Sentence]:
    """How much of the mean cosine is constant, and which categories add most."""
    pairs, cosine, with_bias = (metrics.get(name) for name in ("pairs", "cosine", "with_bias"))
    if pairs is None or cosine is None or with_bias is None:
        return []
    whole, tokens_alone, biases = compared(brief, cosine, abs(cosine - with_bias), abs(with_bias))
    parts = by_axes("category/<category>", metrics)
    parts.pop(BIAS, None)
    largest, most, interval = max(parts.values(), default=0.0), "", None
    if len(parts) > 1 and largest > 0:
        first = [category for category, value in parts.items() if value == largest or not differ(value, largest)]
        name = enumeration(["ordinary" if category == "other" else category_name(category) for category in first])
        amount = f"about {brief(largest)} each"
        if len(first) == 1:
            interval = added[first[0]].ends if first[0] in added else None
            amount = f"{brief(largest)}{between(*interval) if interval else ''}"
        most = f" {begun(name)} tokens add most to it: {amount}."
    return [
        Sentence(
            f"The mean cosine similarity of {counted(pairs, 'pair')} of texts is {whole}: pairs of tokens "
            f"{_verb(cosine - with_bias)} {tokens_alone}, and pairs with the model's biases on at least one side "
            f"{_verb(with_bias)} {biases}.{most}",
            figure="by_category" if maps else "",
            table="by_category" if maps else "pairs",
            effect=largest,
            interval=interval,
        )
    ]


def _beside_gold(metrics: Mapping[str, float], friends: Sequence[str]) -> list[Sentence]:
    """How well the cosines agree with the gold scores, and the words that make dissimilar texts look similar."""
    spearman, count = metrics.get("gold/spearman"), metrics.get("gold/count")
    if spearman is None or count is None:
        return []
    listed = enumeration([f"“{label(friend)}”" for friend in friends[:FRIENDS]])
    words = f"; in the quarter with the lowest gold scores, these words add most: {listed}" if listed else ""
    return [
        Sentence(
            f"Spearman's ρ between the cosines and the gold scores of {counted(count, 'pair')} is "
            f"{brief(spearman, signed=True)}{words}.",
            table="by_token" if listed else "pairs",
        )
    ]


def _verb(amount: float) -> str:
    return "add" if amount >= 0 else "subtract"
