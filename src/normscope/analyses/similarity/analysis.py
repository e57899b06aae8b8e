"""Cosine similarities of pairs of texts, split into pairs of tokens, or into the tokens of each text."""

import functools
from collections.abc import Callable, Mapping

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.analyses.base import Analysis, AnalysisContext, Requirements
from normscope.analyses.finite import require_finite
from normscope.analyses.similarity.figures import describe_figures
from normscope.analyses.similarity.options import SIMILARITY, SimilarityOptions
from normscope.analyses.similarity.pair_maps import DrawnPair, Embedded, PairMaps
from normscope.analyses.similarity.parts import PairSpans, PairTokens, prompt_lengths
from normscope.analyses.similarity.sentences import sentences_of
from normscope.analyses.similarity.tables import (
    PairColumns,
    cell_table,
    false_friends,
    gold_correlation,
    pair_table,
    ranking_table,
    span_table,
    token_table,
)
from normscope.attribution.methods import check_followed
from normscope.attribution.similarities import PairSums, embedded_parts, sums_of_pairs
from normscope.data.batching import Batch
from normscope.data.encoders import NO_PROMPTS, Prompts
from normscope.errors import InputError
from normscope.maths.choices import Pooling
from normscope.maths.embedder import Embedder
from normscope.models.interventions import InterventionRunner
from normscope.models.model_info import ModelInfo
from normscope.results.codes import category_name
from normscope.results.findings import Summary
from normscope.results.result import Result
from normscope.results.rollups import roll_up
from normscope.statistics.kept_tensors import KeptTensors
from normscope.statistics.mean import Mean

_LISTED = 10
"""Documents in the terminal."""


class SimilarityAnalysis(Analysis):
    """What tokens, spans and each pair of categories add to the cosine similarity of the texts of a pair.

    The vectors x_{i⇐k} of DecompX are carried through the model's own code: those of a category added up and, when the corpus
    has been read, those of the tokens of a few pairs. What a token adds together with the whole other text comes from one
    backward pass.
    """

    info = SIMILARITY

    def __init__(self, options: SimilarityOptions, context: AnalysisContext) -> None:
        super().__init__(options, context)
        assert context.observed is not None
        self._model = context.observed
        self._embedder = _embedder(options, context)
        self._rule, self._maps_wanted = options.bias, not options.sums
        self._columns = PairColumns((*context.names, "bias"))
        groups = len(self._columns.categories)
        self._pairs = KeptTensors(torch.float64)  # a row of numbers for each pair
        self._spans, self._tokens = PairSpans(context.vocabulary), PairTokens(context.vocabulary, context.names)
        self._cells = Mean(1, groups**2)
        self._maps = PairMaps(None if options.rows is None else frozenset(options.rows), self._tokens.words)
        self._drawn: dict[int, DrawnPair] = {}
        self.accumulators = {"pairs": self._pairs, "by_span": self._spans.sums, "by_token": self._tokens.sums}
        if self._maps_wanted:
            self.accumulators |= {"cells": self._cells, **self._maps.accumulators}

    @classmethod
    def requirements(cls, options: SimilarityOptions, model: ModelInfo) -> Requirements:
        """Pairs of texts.

        Raises:
            InputError: If vectors cannot be followed through all layers.
        """
        if model.layout is not None and model.layout.stack is None:
            check_followed(model.layout)
        return Requirements(
            pairs=True,
            keeps_layers=True,
            prompts=functools.partial(_prompts, options),
        )

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
        self._spans.update(batch, halves)
        friends = self._tokens.update(batch, halves[:, :-1])
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
        groups = len(self._columns.categories)
        # A vector for each category is carried through all layers, so those that do not occur are left out.
        occur = batch.categories[batch.token_mask & self._maps_wanted].unique()
        units = torch.full_like(batch.categories, -1)
        for unit, category in enumerate(occur.tolist()):
            units[batch.categories == category] = unit
        given = (*self._model, batch.model_inputs(), units)
        sums = sums_of_pairs(*given, embedder=self._embedder, bias=self._rule, prompt=prompt_lengths(batch))
        places = torch.cat([occur, occur.new_tensor([groups - 1])])
        cells = sums.units.new_zeros(groups, groups)
        cells[places[:, None], places] = sums.units.sum(dim=0)
        return sums, cells

    def result(self) -> Result:
        """What similarity comes from, and every pair's cosine."""
        kept, columns = torch.stack(self._pairs.compute().tensors), self._columns
        require_finite(columns.of(kept, "value"), "the cosine similarities")
        pairs, parts = pair_table(kept, columns), columns.parts(kept)
        tables = {
            "pairs": pairs,
            "by_span": span_table(self._spans.sums.compute(), len(pairs), float(pairs["value"].mean())),
            "by_token": token_table(self._tokens.sums.compute(), len(pairs), self.context.vocabulary.text),
        }
        friends, rankings = false_friends(kept, columns, self.context.vocabulary.text), ranking_table(kept, columns)
        tables |= {} if friends is None else {"false_friends": friends}
        tables |= {} if rankings is None else {"rankings": rankings}
        metrics = roll_up(self.info.published, tables).metrics
        metrics["with_bias"] = float(columns.of(kept, "with_bias").mean())
        if metrics["cosine"]:
            metrics["with_bias_share"] = metrics["with_bias"] / metrics["cosine"]
        metrics |= {f"category/{name}": float(values.mean()) for name, values in parts.items()}
        metrics |= gold_correlation(pairs, parts)
        table = None
        if self._maps_wanted:
            table = cell_table(self._cells.compute(), len(kept), columns, self.context.categories)
            tables["by_category"] = table
        summary, caption = _summary(tables, metrics["cosine"])
        return Result(
            tables=tables,
            metrics=metrics,
            sentences=sentences_of(
                metrics,
                [] if friends is None else friends["token"].tolist(),
                self._drawn,
                maps=self._maps_wanted,
            ),
            figures=describe_figures(table, pairs, parts, self._drawn, metrics["cosine"]),
            summaries={self.info.name: Summary(summary, digits=3, caption=caption)},
        )

    def _members(self, batch: Batch) -> Int[Tensor, "batch source category"]:
        """1 where a token, or last the bias, belongs to a category."""
        groups = len(self._columns.categories)
        categories = batch.categories.masked_fill(~batch.token_mask, groups)
        bias = torch.full_like(categories[:, :1], groups - 1)
        return torch.nn.functional.one_hot(torch.cat([categories, bias], dim=1), groups + 1)[..., :groups]


def _summary(tables: Mapping[str, pd.DataFrame], cosine: float) -> tuple[pd.DataFrame, str]:
    """The table that the terminal prints, and its caption."""
    if "rankings" in tables:
        ranking = tables["rankings"].query("query == 1").head(_LISTED)
        table = ranking.set_index("rank")[["document", "value"]].rename(columns={"value": "cosine"})
        return table, "the documents that are most similar to query 1, by cosine similarity (higher is more similar)"
    if "by_category" in tables:
        table = tables["by_category"].pivot(index="category_a", columns="category_b", values="contribution")
        table = table.rename(index=category_name, columns=category_name)
        table = table.rename_axis(index="first text", columns="second text")
        return table, f"what pairs of categories add to the mean cosine of {cosine:.3f}"
    table = tables["by_span"].pivot(index="span", columns="text", values="contribution")
    return table, f"what the tokens of each text add to the mean cosine of {cosine:.3f}"


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
