"""Which dimensions decide the attention scores, and what attention does without them (Maruta & Matsuzaki 2024, section 3)."""

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from normscope.analyses.base import Analysis, AnalysisContext, Requirements
from normscope.analyses.findings import Findings
from normscope.analyses.outliers.hidden_moments import HiddenMoments
from normscope.analyses.score.ablations import ALONE, Propagated, Removals, block_alone, propagated
from normscope.analyses.score.figures import describe_figures
from normscope.analyses.score.options import SCORE, ScoreOptions
from normscope.analyses.score.sentences import sentences_of
from normscope.analyses.score.tables import ScoreReport
from normscope.data.batching import Batch
from normscope.data.categories import ALL
from normscope.errors import InputError
from normscope.maths.masks import Mask
from normscope.maths.scores import (
    causal_score_spread,
    contribution_sums,
    covariances,
    score_spread,
    seen_by,
    visible_contribution_sums,
    visible_score_spread,
)
from normscope.models.block import AttentionBlock
from normscope.models.interventions import InterventionRunner
from normscope.models.model_info import ModelInfo
from normscope.statistics.mean import Mean
from normscope.statistics.sequence_sample import SequenceSample


class ScoreAnalysis(Analysis):
    """C_j by layer, head, category of the key and dimension; its share of the scores' spread; and the causal test."""

    info = SCORE

    def __init__(self, options: ScoreOptions, context: AnalysisContext) -> None:
        super().__init__(options, context)
        self._moments = HiddenMoments(context, [ALL])
        layers, heads, model = len(context.layers), context.heads, context.model
        # Beside the dimensions: what b_K adds to the score, and the score itself.
        self._contributions = Mean(layers, len(context.categories), heads, model + 2)
        # Beside the dimensions: what b_K adds to the spread, and the spread itself.
        self._spread = Mean(layers, 1, heads, model + 2)
        sizes = [options.intervention_sequences, options.ablation_sequences, options.sequences or 0]
        self._sample = SequenceSample(max(sizes), options.seed)
        self._interventions: pd.DataFrame | None = None
        self._propagated: Propagated | None = None
        self.accumulators = {
            "moments": self._moments.accumulator,
            "contributions": self._contributions,
            "spread": self._spread,
            "sample": self._sample,
        }

    @classmethod
    def requirements(cls, _options: ScoreOptions, _model: ModelInfo) -> Requirements:
        """Hidden vectors, which tell the outlier dimensions."""
        return Requirements(hidden=True)

    def start_batch(self, batch: Batch) -> None:
        """Offer the sequences of a batch to the sample."""
        packed = batch.packed()
        self._sample.update(batch.fingerprints, packed, (packed >= 0).any(dim=0))

    def update_attention(self, block: AttentionBlock, batch: Batch) -> None:
        """Add the scores of one block."""
        if self.options.sequences is None:
            self._add(block, batch)

    def update_hidden(self, layer: int, vectors: Float[Tensor, "batch token model"], batch: Batch) -> None:
        """Add the hidden vectors of one layer."""
        self._moments.update(layer, vectors, batch)

    def intervene(self, runner: InterventionRunner) -> None:
        """Contributions, where they are asked for on a sample only; interventions and ablations."""
        options, context = self.options, self.context
        sample = self._sample.compute()
        if options.sequences is not None:
            for batch in runner.batches(sample[: options.sequences]):
                runner.observe(batch, lambda block, batch=batch: self._add(block, batch))  # type: ignore[misc]
        found = self._moments.compute()
        if not found.outliers:
            return
        prominent = sorted(found.outliers, key=lambda j: -float(found.scores[:, j].abs().max()))
        if options.interventions:
            removals = Removals.of(prominent, context.model, options.controls, options.seed)
            batches = runner.batches(sample[: options.intervention_sequences])
            self._interventions = block_alone(runner, batches, context, removals)
        if options.ablation:
            removals = Removals.of(prominent, context.model, options.ablation_controls, options.seed, alone=False)
            batches = runner.batches(sample[: options.ablation_sequences])
            self._propagated = propagated(runner, batches, context, removals, found.mean[:, -1])

    def result(self) -> Findings:
        """Table 1, figures 4 and 5 of the paper, the ranking of dimensions, and the causal test."""
        contributions, spread = self._contributions.compute(), self._spread.compute()
        for number, layer in enumerate(self.context.layers):
            if not torch.isfinite(spread.mean[number]).all():
                raise InputError(f"NaN or infinity in the scores of layer {layer}; try device.dtype=float32")
        outliers = self._moments.compute().outliers
        report = ScoreReport(self.context, contributions, spread, outliers)
        tables = report.tables()
        notes = [f"outlier dimensions: {', '.join(map(str, outliers)) or 'none'} ({self._moments.criterion})"]
        if len(outliers) > ALONE and (self._interventions is not None or self._propagated is not None):
            notes.append(f"of the {len(outliers)} outlier dimensions only the {ALONE} most prominent are removed alone")
        if self.context.has_position_terms:
            notes.append(
                "scores of this family have terms of position beside q·k: contributions are those of q·k alone"
            )
        if self._interventions is not None:
            tables["intervention"] = self._interventions
        if self._propagated is not None:
            tables["ablation"] = self._propagated.attention
            if len(self._propagated.loss):
                tables["ablation_loss"] = self._propagated.loss
            else:
                notes.append("the checkpoint has no masked-language-modelling head: no loss under ablation")
        metrics = report.metrics(tables)
        return Findings(
            tables=tables,
            metrics=metrics,
            sentences=sentences_of(metrics),
            curves=report.curves(tables),
            figures=describe_figures(tables, outliers),
            summary=report.summary(tables),
            notes=notes,
        )

    def _add(self, block: AttentionBlock, batch: Batch) -> None:
        layer = self.context.index(block.layer)
        members = self.context.members(batch)
        weights, inputs = block.parameters, block.attention_inputs
        token_mask = batch.token_mask.to(block.query.dtype)
        groups = members.to(block.query.dtype)
        mask = block.mask or Mask()
        if block.everything_visible and block.key_map.same_for_all_keys:
            query_sums = torch.einsum("bhqd,bq->bhd", block.query, token_mask)
            key_sums = torch.einsum("gbk,bhkd->gbhd", groups, block.key)
            sums = contribution_sums(query_sums, weights.key_weight, torch.einsum("gbk,bkm->gbm", groups, inputs))
            bias = torch.einsum("bhd,hd,gb->gh", query_sums, weights.key_bias, groups.sum(dim=-1))
            score = torch.einsum("bhd,gbhd->gh", query_sums, key_sums)
            pairs = (members.sum(dim=-1) * batch.token_mask.sum(dim=-1)).sum(dim=-1)
        else:
            meeting = seen_by(block.query, batch.token_mask, mask)
            score = torch.einsum("bhkd,bhkd,gbk->gh", meeting, block.key, groups)
            meeting = block.key_map.back(meeting)
            sums = visible_contribution_sums(meeting, weights.key_weight, inputs, members)
            bias = torch.einsum("bhkd,hd,gbk->gh", meeting, weights.key_bias, groups)
            queries = seen_by(torch.ones_like(token_mask)[:, None, :, None], batch.token_mask, mask)
            pairs = (queries[:, 0, :, 0].long() * members).sum(dim=(1, 2))
        if block.everything_visible:
            spread = score_spread(block.query, block.key, batch.token_mask)
        elif mask.causal and mask.keys is None:  # padding at the end
            spread = causal_score_spread(block.query, block.key, batch.token_mask)
        else:
            spread = visible_score_spread(block.query, block.key, batch.token_mask, mask)
        directions = block.key_map.back(spread.directions)
        shares = covariances(directions, weights.key_weight, inputs)
        # A bias that every key has in common spreads nothing; computed, it would leave rounding errors.
        key_bias = torch.zeros_like(shares[:, 0])
        if not block.key_map.same_for_all_keys:
            key_bias = torch.einsum("bhkd,hd->h", directions, weights.key_bias)
        self._contributions.update(layer, torch.cat([sums, bias[..., None], score[..., None]], dim=-1), pairs)
        columns = torch.cat([shares, key_bias[:, None], spread.variance[:, None]], dim=-1)
        self._spread.update(layer, columns[None], batch.token_mask.sum()[None])
