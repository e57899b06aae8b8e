"""Attention sinks and massive activations (Gu et al. 2025; Sun et al. 2024)."""

from collections.abc import Collection

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from normscope.analyses.ablations import PropagatedEffects, Removals, StreamAblations, ablate_residual_stream
from normscope.analyses.base import Analysis, AnalysisContext, Requirements
from normscope.analyses.sinks.figures import describe_figures
from normscope.analyses.sinks.options import SINKS, SinksOptions
from normscope.analyses.sinks.rates import SinkRates
from normscope.analyses.sinks.report import (
    main_position,
    masses_of_first_variant,
    massive_by_layer,
    rates_of_first_variant,
    summary_table,
    terminal_summary,
)
from normscope.analyses.sinks.residual_stream import ResidualStream
from normscope.analyses.sinks.sentences import sentences_of
from normscope.analyses.sinks.variants import long_enough, sequences_of, variants
from normscope.data.batching import Batch
from normscope.maths.massive import massive_activations
from normscope.models.interventions import InterventionRunner
from normscope.models.model_info import ModelInfo
from normscope.results.findings import Summary
from normscope.results.result import Result
from normscope.results.rollups import roll_up
from normscope.rounding import counted
from normscope.statistics.accumulator import EmptyAccumulatorError
from normscope.statistics.counts import Counts
from normscope.statistics.kept_tensors import KeptTensors
from normscope.statistics.precision import in_rounds, until_precise


class SinksAnalysis(Analysis):
    """Sink rates by head, the size of activations, and what massive ones cause."""

    info = SINKS

    def __init__(self, options: SinksOptions, context: AnalysisContext) -> None:
        super().__init__(options, context)
        self._stream = ResidualStream(context)
        # Sequences long enough to be cut, and sequences that are too short.
        self._lengths = Counts(1, 2)
        self._long = KeptTensors(torch.int64, options.sequences)
        self._sample = KeptTensors(torch.int64, options.ablation_sequences)
        self._rates: list[SinkRates] = []
        self._ablations: PropagatedEffects | None = None
        self.accumulators = {
            **self._stream.accumulators,
            "lengths": self._lengths,
            "long": self._long,
            "sample": self._sample,
        }

    @classmethod
    def requirements(cls, options: SinksOptions, _model: ModelInfo) -> Requirements:
        """The hidden vectors, and the head whose loss massive activations may decide."""
        return Requirements(hidden=True, language_head=options.ablation)

    def start_batch(self, batch: Batch) -> None:
        """Offer the sequences of a batch to the samples."""
        self._stream.massive.start_batch()
        numbers, sequences = batch.for_samples(self.options.seed)
        self._sample.update(numbers, sequences)
        ids, lengths = batch.host.input_ids.numpy(), batch.lengths
        rows = [
            row
            for row, length in enumerate(lengths)
            if long_enough(ids[row, :length], self.options.length, self.context)
        ]
        self._long.update([numbers[row] for row in rows], [sequences[row] for row in rows])
        self._lengths.update(0, torch.tensor([len(rows), len(lengths) - len(rows)]))

    def update_hidden(self, layer: int, vectors: Float[Tensor, "batch token model"], batch: Batch) -> None:
        """Add the hidden vectors of one layer."""
        self._stream.update(layer, vectors, batch)

    def layers_to_see_again(self, batch: Batch) -> Collection[int]:
        """The layers in which massive activations could not be looked for during the pass."""
        return self._stream.massive.again(batch)

    def update_hidden_again(self, layer: int, vectors: Float[Tensor, "batch token model"], batch: Batch) -> None:
        """Look for massive activations."""
        self._stream.massive.update_again(layer, vectors, batch)

    def intervene(self, runner: InterventionRunner) -> None:
        """Measure sink rates on sequences of one length, and replace massive activations."""
        try:
            sample = self._long.compute().tensors
        except EmptyAccumulatorError:
            sample = []
        options, context = self.options, self.context
        every = [SinkRates(variant, context, options) for variant in variants(options, context.vocabulary.first)]
        parts = in_rounds(sample, options.precision)
        enough = until_precise(parts, lambda: max(rates.half_width() for rates in every), options.precision)
        steps = ((part, rates) for part in enough for rates in every)
        for part, rates in runner.progress(steps, len(parts) * len(every), "sink rates"):
            rates.measure(runner, runner.batches(sequences_of(rates.variant, part, options, context)))
        self._rates = [rates for rates in every if rates.sequences]
        if self.options.ablation:
            self._ablate(runner)

    def _ablate(self, runner: InterventionRunner) -> None:
        massive = self._stream.massive.table()
        # What the last layer writes, no layer reads.
        read = massive[massive["layer"] < max(self.context.layers)]
        if not len(read):
            return
        prominent = read.groupby("dimension")["ratio"].max().sort_values(ascending=False, kind="stable").index.tolist()
        dimensions = torch.tensor(prominent)

        def carriers(vectors: Tensor, token_mask: Tensor) -> Tensor:
            """The tokens with a massive activation in one of these dimensions."""
            chosen = torch.zeros_like(token_mask)
            row, token, dimension = massive_activations(vectors, token_mask).places.unbind(dim=1)
            among = torch.isin(dimension, dimensions.to(dimension.device))
            chosen[row[among], token[among]] = True
            return chosen

        removals = Removals.of(prominent, self.context.model, self.options.controls, self.options.seed, alone=False)
        stream = StreamAblations(self._stream.massive.carriers(), [int(read["layer"].min()) + 1], carriers)
        options, sample = self.options, self._sample.compute().tensors
        self._ablations = ablate_residual_stream(
            runner, sample, self.context, removals, stream, options.ablation_precision, options.ablation_budget
        )

    def result(self) -> Result:
        """Tables, figures and sentences."""
        tables = self._tables()
        rates = rates_of_first_variant(tables["summary"])
        position = main_position(rates, masses_of_first_variant(tables["mass"])) if rates else None
        by_head = tables["by_head"]
        rolled = roll_up(self.info.published, tables | {"by_head": by_head[by_head["position"] == position]})
        sequences = [float(rates.sequences) for rates in self._rates]
        measured = {"sink_rates/sequences": max(sequences)} if sequences else {}
        first_token = (
            None
            if self.context.vocabulary.first is None
            else self.context.vocabulary.text(self.context.vocabulary.first)
        )
        return Result(
            tables=tables,
            metrics=rolled.metrics | measured,
            sentences=sentences_of(rolled.metrics, first_token or "BOS", self.options.dormant),
            curves=rolled.curves | {"massive": massive_by_layer(tables)},
            figures=describe_figures(tables, position, first_token, self.options.epsilon),
            summaries={
                self.info.name: Summary(
                    terminal_summary(tables, position, first_token),
                    digits=1,
                    caption=f"sink rate: % of the heads in which it receives more than {self.options.epsilon:g} of the weight; "
                    "its weight: % of all attention weight; dormant heads: % of the heads in which one key receives more than "
                    f"{self.options.dormant:g} of the weight",
                )
            },
            notes=self._notes(),
        )

    def _tables(self) -> dict[str, pd.DataFrame]:
        columns = {name: list(table.columns) for name, table in self.info.published.tables.items()}
        measured = {
            "by_head": [rates.by_head() for rates in self._rates],
            "mass": [rates.mass() for rates in self._rates],
            "strongest": [rates.strongest() for rates in self._rates],
        }
        tables = {
            name: pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns[name])
            for name, parts in measured.items()
        }
        tables |= {
            "summary": summary_table(tables["by_head"], self.options.epsilon),
            "massive": self._stream.massive.table(),
            "magnitude": self._stream.magnitude(),
            "norms": self._stream.norms(),
        }
        if self._ablations is not None:
            tables["ablation"] = self._ablations.attention[columns["ablation"]]
            if len(self._ablations.loss):
                tables["ablation_loss"] = self._ablations.loss[columns["ablation_loss"]]
        return tables

    def _notes(self) -> list[str]:
        notes = []
        long, short = self._lengths.compute()[0].tolist()
        if not long:
            notes.append(
                f"no sequence has {self.options.length} tokens or more, so sink rates are not measured (analysis.sinks.length)"
            )
        elif short:
            notes.append(
                f"sink rates leave out {counted(short, 'sequence')} with fewer than {self.options.length} tokens "
                "(analysis.sinks.length)"
            )
        if self.context.vocabulary.first is None:
            notes.append(
                "the tokenizer has no beginning-of-sequence token, so sink rates are only measured without one"
            )
        if self._ablations is not None and self._ablations.reduced is not None:
            notes.append(f"{self._ablations.reduced} (analysis.sinks.ablation_budget)")
        if self._ablations is not None and self._ablations.without_loss is not None:
            notes.append(
                f"{self._ablations.without_loss}, so the effect of massive activations on the loss is not measured"
            )
        return notes
