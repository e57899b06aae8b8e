"""Which dimensions determine the attention scores, and attention without them (Maruta & Matsuzaki 2024, section 3)."""

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from normscope.analyses.ablations import (
    ALONE,
    PropagatedEffects,
    Removals,
    StreamAblations,
    ablate_residual_stream,
    remove_from_scores,
)
from normscope.analyses.base import Analysis, AnalysisContext, Requirements
from normscope.analyses.finite import require_finite
from normscope.analyses.hidden_moments import HiddenMoments
from normscope.analyses.score.figures import describe_figures
from normscope.analyses.score.options import SCORE, ScoreOptions
from normscope.analyses.score.sentences import sentences_of
from normscope.analyses.score.tables import ScoreReport
from normscope.data.batching import Batch
from normscope.data.categories import ALL
from normscope.maths.masks import Mask
from normscope.maths.scores import (
    causal_score_spread,
    contribution_sums,
    covariances,
    masked_sum,
    score_spread,
    seen_by,
    visible_contribution_sums,
    visible_score_spread,
)
from normscope.maths.tensors import lengthened
from normscope.models.block import AttentionBlock
from normscope.models.interventions import InterventionRunner
from normscope.models.model_info import ModelInfo
from normscope.results.findings import Summary
from normscope.results.result import Result
from normscope.results.rollups import roll_up
from normscope.statistics.kept_tensors import KeptTensors
from normscope.statistics.mean import Mean


class ScoreAnalysis(Analysis):
    """C_j by layer, head, category of the key and dimension, its share of the spread of the scores, and interventions."""

    info = SCORE

    def __init__(self, options: ScoreOptions, context: AnalysisContext) -> None:
        super().__init__(options, context)
        self._moments = HiddenMoments(context, [ALL])
        layers, heads, model = len(context.layers), context.heads, context.model
        # After the dimensions: the contribution of b_K to the score, and the score itself.
        self._contributions = Mean(layers, len(context.categories), heads, model + 2)
        # After the dimensions: the contribution of b_K to the spread, and the spread itself.
        self._spread = Mean(layers, 1, heads, model + 2)
        sizes = [options.intervention_sequences, options.ablation_sequences, options.sequences or 0]
        self._sample = KeptTensors(torch.int64, max(sizes))
        self._interventions: pd.DataFrame | None = None
        self._ablations: PropagatedEffects | None = None
        self.accumulators = {
            "moments": self._moments.accumulator,
            "contributions": self._contributions,
            "spread": self._spread,
            "sample": self._sample,
        }

    @classmethod
    def requirements(cls, options: ScoreOptions, _model: ModelInfo) -> Requirements:
        """Hidden vectors, from which the outlier dimensions are determined, and the head whose loss ablations change."""
        return Requirements(hidden=True, weights_of_keys=True, language_head=options.ablation)

    def start_batch(self, batch: Batch) -> None:
        """Offer the sequences of a batch to the sample for interventions, and find the tokens of each category."""
        self.context.parts(batch)
        self._sample.update(*batch.for_samples(self.options.seed))

    def update_attention(self, block: AttentionBlock, batch: Batch) -> None:
        """Add the scores of a block, unless they are averaged over a sample."""
        if self.options.sequences is None:
            self._add(block, batch)

    def update_hidden(self, layer: int, vectors: Float[Tensor, "batch token model"], batch: Batch) -> None:
        """Add the hidden vectors of one layer."""
        self._moments.update(layer, vectors, batch)

    def intervene(self, runner: InterventionRunner) -> None:
        """Measure contributions, if they are averaged over a sample; then run the interventions and the ablations."""
        options, context = self.options, self.context
        sample = self._sample.compute().tensors
        if options.sequences is not None:
            for batch in runner.batches(sample[: options.sequences]):
                runner.observe(batch, lambda block, batch=batch: self._add(block, batch))  # type: ignore[misc]
        hidden = self._moments.compute()
        if not hidden.outliers:
            return
        prominent = sorted(hidden.outliers, key=lambda j: -float(hidden.scores[:, j].abs().max()))
        if options.interventions:
            removals = Removals.of(prominent, context.model, options.controls, options.seed)
            part = sample[: options.intervention_sequences]
            self._interventions = remove_from_scores(runner, part, context, removals, options.intervention_precision)
        if options.ablation:
            removals = Removals.of(prominent, context.model, options.ablation_controls, options.seed, alone=False)
            part, stream = sample[: options.ablation_sequences], StreamAblations(hidden.mean[:, -1], context.layers)
            self._ablations = ablate_residual_stream(
                runner, part, context, removals, stream, options.ablation_precision, options.ablation_budget
            )

    def result(self) -> Result:
        """Table 1 and figures 4 and 5 of the paper, the ranking of the dimensions, and the interventions."""
        contributions, spread = self._contributions.compute(), self._spread.compute()
        require_finite(spread.mean, "the scores of layer {layer}", self.context.layers)
        outliers = self._moments.compute().outliers
        report = ScoreReport(self.context, contributions, spread, outliers)
        tables = report.tables()
        notes = [f"{'' if outliers else 'no '}outlier dimensions: {self._moments.criterion}"]
        if len(outliers) > ALONE and (self._interventions is not None or self._ablations is not None):
            notes.append(
                f"only the {ALONE} most prominent of the {len(outliers)} outlier dimensions are removed individually"
            )
        if self.context.has_position_terms:
            notes.append("scores of this family also have position terms: contributions cover only q·k")
        if self._interventions is not None:
            tables["intervention"] = self._interventions
        if self._ablations is not None:
            tables["ablation"] = self._ablations.attention
            if len(self._ablations.loss):
                tables["ablation_loss"] = self._ablations.loss
            if self._ablations.reduced is not None:
                notes.append(f"{self._ablations.reduced} (analysis.score.ablation_budget)")
            if self._ablations.without_loss is not None:
                notes.append(f"{self._ablations.without_loss}, so the loss under ablation is not measured")
        rolled = roll_up(self.info.published, tables)
        return Result(
            tables=tables,
            metrics=rolled.metrics,
            sentences=sentences_of(rolled.metrics, outliers if len(outliers) <= ALONE else ()),
            curves=rolled.curves,
            figures=describe_figures(tables, outliers),
            summaries={
                self.info.name: Summary(
                    report.summary(tables),
                    caption="mean over a layer's heads: how few dimensions make up 50% and 90% of the variance of attention "
                    "scores, the share of it that comes from the outlier dimensions and from b_K, and α with all dimensions, "
                    "without the outlier dimensions, and without as many random ones",
                )
            },
            notes=notes,
        )

    def _add(self, block: AttentionBlock, batch: Batch) -> None:
        layer = self.context.index(block.layer)
        members = self.context.members(batch)
        weights, inputs = block.parameters, block.attention_inputs
        token_mask = batch.token_mask.to(block.query.dtype)
        groups = members.to(block.query.dtype)
        mask = block.mask or Mask()
        if block.alpha.seen.is_complete and block.key_map.same_for_all_keys:
            query_sums = masked_sum(block.query, batch.token_mask)
            key_sums = torch.einsum("gbk,bhkd->gbhd", groups, block.key)
            sums = contribution_sums(query_sums, weights.key_weight, torch.einsum("gbk,bkm->gbm", groups, inputs))
            bias = torch.einsum("bhd,hd,gb->gh", query_sums, weights.key_bias, groups.sum(dim=-1))
            score = torch.einsum("bhd,gbhd->gh", query_sums, key_sums)
            pairs = (members.sum(dim=-1) * batch.token_mask.sum(dim=-1)).sum(dim=-1)
        else:
            queries_of_key = seen_by(block.query, batch.token_mask, mask)
            score = torch.einsum("bhkd,bhkd,gbk->gh", queries_of_key, block.key, groups)
            queries_of_key = block.key_map.back(queries_of_key)
            parts = visible_contribution_sums(queries_of_key, weights.key_weight, inputs, self.context.parts(batch))
            of_part = iter(parts)
            sums = torch.stack(
                [parts.sum(dim=0) if category == ALL else next(of_part) for category in self.context.categories]
            )
            bias = torch.einsum("bhkd,hd,gbk->gh", queries_of_key, weights.key_bias, groups)
            counts = seen_by(torch.ones_like(token_mask)[:, None, :, None], batch.token_mask, mask)
            pairs = (counts[:, 0, :, 0].long() * members).sum(dim=(1, 2))
        if block.alpha.seen.is_complete:
            spread = score_spread(block.query, block.key, batch.token_mask)
        elif mask.causal and mask.keys is None:  # padding at the end
            spread = causal_score_spread(block.query, block.key, batch.token_mask)
        else:
            spread = visible_score_spread(block.query, block.key, batch.token_mask, mask)
        directions = block.key_map.back(spread.directions)
        shares = covariances(directions, weights.key_weight, inputs)
        # A bias that all keys share adds no spread. Computing it would only add rounding errors.
        key_bias = torch.zeros_like(shares[:, 0])
        if not block.key_map.same_for_all_keys:
            key_bias = torch.einsum("bhkd,hd->h", directions, weights.key_bias)
        contributions = torch.cat([sums, bias[..., None], score[..., None]], dim=-1)
        self._contributions.update(layer, lengthened(contributions, self.context.heads, 1), pairs)
        columns = torch.cat([shares, key_bias[:, None], spread.variance[:, None]], dim=-1)
        self._spread.update(layer, lengthened(columns, self.context.heads, 0)[None], batch.token_mask.sum()[None])
