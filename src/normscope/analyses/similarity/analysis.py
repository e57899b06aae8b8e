"""Cosine similarities of pairs of texts, split into pairs of tokens."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.analyses.base import Analysis, AnalysisContext, Requirements
from normscope.analyses.findings import Findings
from normscope.analyses.finite import require_finite
from normscope.analyses.similarity.figures import LONGEST, describe_figures
from normscope.analyses.similarity.options import SIMILARITY, SimilarityOptions
from normscope.analyses.similarity.pair_maps import PairMaps
from normscope.analyses.similarity.sentences import sentences_of
from normscope.analyses.similarity.tables import PairColumns, cell_table, gold_correlation, pair_table
from normscope.attribution.carried_vectors import CarriedVectors
from normscope.attribution.methods import check_supported
from normscope.attribution.similarities import SimilarityParts, cosine_parts
from normscope.data.batching import Batch
from normscope.errors import InputError
from normscope.maths.embedder import Embedder, pooled
from normscope.maths.frozen import FrozenNorm
from normscope.maths.tensors import wide
from normscope.models.block import full_precision
from normscope.models.feed_forward import FeedForwardBlock
from normscope.models.model_info import ModelInfo
from normscope.results.rollups import roll_up
from normscope.statistics.kept_rows import KeptRows
from normscope.statistics.mean import Mean


class SimilarityAnalysis(Analysis):
    """What each pair of categories adds to the cosine similarity of the texts of a pair.

    The vectors x_{i⇐k} of DecompX are carried through the layers while the model runs, so that a batch needs one pass.
    """

    info = SIMILARITY

    def __init__(self, options: SimilarityOptions, context: AnalysisContext) -> None:
        super().__init__(options, context)
        assert context.freezer is not None
        context.freezer.check(context.depth)
        self._freezer = context.freezer
        self._embedder = _embedder(options, context)
        self._rule = options.bias
        self._columns = PairColumns((*context.names, "bias"))
        groups = len(self._columns.categories)
        self._cells, self._pairs = Mean(1, groups**2), KeptRows(len(self._columns.names))
        self._maps = PairMaps(frozenset(options.rows), LONGEST)
        self._vectors: CarriedVectors | None = None
        self._parts: SimilarityParts | None = None
        self.accumulators = {"cells": self._cells, "pairs": self._pairs, **self._maps.accumulators}

    @classmethod
    def requirements(cls, _options: SimilarityOptions, model: ModelInfo) -> Requirements:
        """Pairs of texts, and every layer with its feed-forward network.

        Raises:
            InputError: If vectors cannot be followed through all layers.
        """
        if model.layout is not None and model.layout.stack is None:
            check_supported(model.layout)
        return Requirements(pairs=True, hidden=True, feed_forward=True, all_layers=True, vectors_of_pairs=True)

    def start_batch(self, _batch: Batch) -> None:
        """Forget the vectors of a batch that did not fit."""
        self._vectors = self._parts = None

    def update_feed_forward(self, block: FeedForwardBlock, _batch: Batch) -> None:
        """Carry the vectors through a layer."""
        if self._vectors is None:
            self._vectors = CarriedVectors(block.attention.inputs, self._rule)
        self._vectors.pass_layer(self._freezer.layer(block))

    def update_hidden(self, layer: int, vectors: Float[Tensor, "batch token model"], batch: Batch) -> None:
        """Pool the last hidden vectors and what tokens contribute to them."""
        if layer < self.context.depth:
            return
        assert self._vectors is not None
        hidden, norm = full_precision(vectors), self._freezer.final_norm
        if norm is not None:
            self._vectors.pass_norm(FrozenNorm(norm, norm.deviation(hidden)))
            hidden = norm.normalised(hidden)
        weights = self._embedder.weights(hidden, batch.token_mask)
        parts, whole = self._embedder.parts(self._vectors.pooled(weights), pooled(wide(weights), wide(hidden)))
        self._parts = cosine_parts(parts[0::2], whole[0::2], parts[1::2], whole[1::2])
        self._vectors = None

    def end_batch(self, batch: Batch) -> None:
        """Add the cosines of a batch and what they are made of."""
        assert self._parts is not None
        matrix, value = self._parts
        members = self._members(batch).to(matrix)
        first, second = members[0::2], members[1::2]
        cells = torch.einsum("nkc,nkl,nld->ncd", first, matrix, second)
        counts = torch.einsum("nkc,nld->cd", first, second)
        self._cells.update(0, cells.sum(dim=0).flatten(), counts.round().long().flatten())
        self._pairs.update(self._columns.rows(batch.rows[0::2], value.cpu(), cells.cpu(), batch.scores or ()))
        self._maps.update(batch, matrix.cpu())

    def result(self) -> Findings:
        """The categories that similarity comes from, and every pair's cosine."""
        kept, cells = self._pairs.compute(), self._cells.compute()
        require_finite(kept[:, 1], "the cosine similarities")
        table = cell_table(cells, len(kept), self._columns, self.context.categories)
        pairs = pair_table(kept)
        parts = self._columns.parts(kept)
        cosine = float(kept[:, 1].mean())
        metrics = roll_up(self.info.published, {"pairs": pairs}).metrics | {"with_bias": float(kept[:, 2].mean())}
        metrics |= {f"category/{name}": float(values.mean()) for name, values in parts.items()}
        metrics |= gold_correlation(pairs)
        texts, notes = self._maps.texts(self.context.vocabulary.text)
        prompt = self._embedder.prompts.get(self._embedder.default_prompt or "")
        if prompt:
            notes.append(
                f"texts are read as they are, without the model's default prompt “{prompt}”; put it into the texts"
            )
        return Findings(
            tables={"by_category": table, "pairs": pairs},
            metrics=metrics,
            sentences=sentences_of(metrics),
            figures=describe_figures(table, pairs, parts, texts, cosine),
            text_pairs=texts,
            summary=table.pivot(index="category_a", columns="category_b", values="contribution").rename_axis(
                index="first text", columns="second text"
            ),
            summary_digits=3,
            summary_caption=f"what pairs of categories add to the mean cosine of {cosine:.3f}",
            notes=notes,
        )

    def _members(self, batch: Batch) -> Int[Tensor, "batch source category"]:
        """1 where a token, or last the bias, belongs to a category."""
        groups = len(self._columns.categories)
        categories = batch.categories.masked_fill(~batch.token_mask, groups)
        bias = torch.full_like(categories[:, :1], groups - 1)
        return torch.nn.functional.one_hot(torch.cat([categories, bias], dim=1), groups + 1)[..., :groups]


def _embedder(options: SimilarityOptions, context: AnalysisContext) -> Embedder:
    if options.pooling is not None:
        return Embedder(options.pooling)
    try:
        return context.own_embedder()
    except InputError as error:
        raise InputError(f"analysis.similarity.{error}") from error
