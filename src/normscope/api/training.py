"""Measures a model while it trains: a callback for the trainer of transformers."""

import contextlib
import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn
from transformers import TrainerCallback, TrainerState, TrainingArguments

from normscope.api.analysing import check_names, listed, run
from normscope.api.types import ManyTexts, Tokenizer
from normscope.config.calls import Several, checked
from normscope.errors import InputError, one_line
from normscope.models.load.text_batches import is_ids
from normscope.models.stored.random_state import generators_restored
from normscope.reporting.tracker import log_to_active_run
from normscope.results.figures import Lines
from normscope.results.measures import metric_title
from normscope.results.pictures import Picture
from normscope.rounding import counted
from normscope.running.memory import is_out_of_memory
from normscope.untrusted.plain_data import MIB, text
from normscope.untrusted.writing import write_named

log = logging.getLogger("normscope")

_MOST = 256 * MIB
"""Bytes of a history."""

COLUMNS = ("step", "metric", "layer", "value")
"""Of the history."""


class Callback(TrainerCallback):
    """Runs analyses on a few texts at regular intervals during training.

    ```python
    callback = normscope.Callback("mixing", texts=held_out, tokenizer=tokenizer, every=500)
    Trainer(model, args, train_dataset=…, callbacks=[callback]).train()
    callback.history                             # a DataFrame: step, metric, layer, value
    callback.figure("mixing/attnresln_n/mean")   # its curves by layer over training
    ```

    The model is measured before the first step, every `every` steps, and after the last. Training is unaffected: the model
    stays in its mode, its weights are shared rather than copied, and torch's random number generators are restored. Metrics go
    to the active W&B run, if there is one, on the trainer's own axis (`train/global_step`). The history is also kept in
    `<name>.csv` in the trainer's output directory, where resumed training continues it. A step that cannot be measured, for
    example because weights have become NaN, is skipped with a warning.

    In distributed training, only the main process measures. It must hold the whole model, so FSDP and DeepSpeed's ZeRO-3 are
    rejected.
    """

    @checked
    def __init__(
        self,
        analyses: Several[str],
        *,
        texts: ManyTexts,
        tokenizer: Tokenizer,
        every: int = 500,
        name: str = "normscope",
        **options: Any,
    ) -> None:
        """Say what to measure, on what, and how often.

        Args:
            analyses: The name of an analysis, or several names.
            texts: Texts, and pairs (tuples) of texts; for cross-attention, pairs of a source and its translation. A hundred are
                usually enough, since all measurements use the same.
            tokenizer: The model's tokenizer.
            every: Number of training steps between two measurements.
            name: Prefix of the metrics in the tracker, and name of the history's file. Two callbacks need two names.
            **options: Further arguments of `normscope.run`, such as `layers`, `batch_tokens` and options of the analyses.

        Raises:
            InputError: If an argument is invalid, as far as that is known without the model.
        """
        if every < 1:
            raise InputError(f"every={every!r}: expected a positive number of steps")
        if not name or Path(name).name != name:
            raise InputError(f"name={name!r}: expected a file's name without a folder")
        check_names(analyses, options)
        self._analyses = analyses
        self._texts = listed(texts)
        if any(is_ids(text) for text in self._texts):
            raise InputError("texts: expected texts, because a Trainer's model has a tokenizer, got token ids")
        self._tokenizer = tokenizer
        self._every = every
        self._name = name
        self._options = options
        self._rows: list[tuple[int, str, int | None, float]] = []
        self._skipped: int | None = None

    @property
    def history(self) -> pd.DataFrame:
        """All measurements: columns `step`, `metric`, `layer` (missing for the whole model) and `value`."""
        return pd.DataFrame(self._rows, columns=list(COLUMNS)).astype({"layer": "Int64"})

    @checked
    def figure(self, metric: str, label: str | None = None) -> Picture:
        """One metric over training: a line for each layer, or one for the whole model if the metric has no layers.

        Args:
            metric: The name of a metric in `history`.
            label: Title of the axis; by default, what the metric measures, in words.

        Raises:
            InputError: If nothing of that name has been measured.
        """
        table = self.history.query("metric == @metric")
        if table.empty:
            names = ", ".join(sorted(set(self.history["metric"])))
            raise InputError(
                f"metric={metric!r}: expected one of {names or 'none yet, since nothing has been measured'}"
            )
        label = label or metric_title(metric)
        shown = table[table["layer"].notna()]
        titles = {layer: f"layer {layer}" for layer in sorted(set(shown["layer"]))}
        if shown.empty:
            shown, titles = table.assign(layer="whole model"), {"whole model": "whole model"}
        return Picture(
            Lines(
                shown.rename(columns={"step": "training step"}),
                x="training step",
                y="value",
                series="layer",
                series_titles=titles,
                y_label=label,
                caption=f"Over training, on {counted(len(self._texts), 'text')}: {label}.",
            )
        )

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Measure the model before the first step, or read what was measured before training was interrupted."""
        if args.fsdp or getattr(args, "hf_deepspeed_config", None) is not None:
            raise InputError(
                "normscope.Callback: expected a model that is whole in one process; FSDP and DeepSpeed split its weights. "
                "Measure saved checkpoints instead"
            )
        self._rows = [row for row in self._saved(args) if row[0] <= state.global_step] if state.global_step else []
        if not state.global_step:
            self._measure(args, state, kwargs["model"])

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Measure the model if it is time."""
        if state.global_step % self._every == 0:
            self._measure(args, state, kwargs["model"])

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Measure the trained model."""
        self._measure(args, state, kwargs["model"])

    def _measure(self, args: TrainingArguments, state: TrainerState, model: nn.Module) -> None:
        step = state.global_step
        if not state.is_world_process_zero or step == self._skipped or step in {row[0] for row in self._rows}:
            return
        try:
            with _own_forward(model), generators_restored():
                results = run(
                    self._analyses, model=model, tokenizer=self._tokenizer, texts=self._texts, **self._options
                )
        except Exception as error:  # a training must not end because of a measurement
            if not (isinstance(error, InputError) or is_out_of_memory(error)):
                raise
            self._skipped = step
            log.warning("%s: step %d is not measured: %s", self._name, step, one_line(error))
            return
        measured: list[tuple[str, int | None, float]] = [
            (metric, None, value) for metric, value in results.metrics.items()
        ]
        measured += results.tables["curves"][["curve", "layer", "value"]].itertuples(index=False, name=None)
        self._rows += [(step, *row) for row in measured]
        log_to_active_run(
            {
                f"{self._name}/{metric}" + ("" if layer is None else f"/layer {layer}"): value
                for metric, layer, value in measured
            },
            step,
        )
        path = self._path(args)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_named(path, self.history.to_csv(index=False).encode())
        except (OSError, InputError) as error:
            log.warning("%s: the history of step %d is only in memory: %s", self._name, step, one_line(error))

    def _path(self, args: TrainingArguments) -> Path:
        return Path(args.output_dir or ".") / f"{self._name}.csv"

    def _saved(self, args: TrainingArguments) -> list[tuple[int, str, int | None, float]]:
        path = self._path(args)
        if not path.exists():
            return []
        try:
            table = pd.read_csv(io.StringIO(text(path, _MOST)))[list(COLUMNS)]
        except (InputError, ValueError, KeyError) as error:
            raise InputError(f"{path}: expected the history of an earlier training; remove the file") from error
        return [
            (int(step), str(metric), None if pd.isna(layer) else int(layer), float(value))
            for step, metric, layer, value in table.itertuples(index=False)
        ]


@contextlib.contextmanager
def _own_forward(model: nn.Module) -> Iterator[None]:
    """The model with the `forward` of its class, which the trainer replaces when it trains in mixed precision."""
    replaced: dict[str, Any] = {
        name: vars(model)[name] for name in ("forward", "_original_forward") if name in vars(model)
    }
    try:
        for name in replaced:
            del vars(model)[name]
        yield
    finally:
        vars(model).update(replaced)
