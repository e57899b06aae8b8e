"""The loop over a corpus: batch → blocks and hidden vectors → analyses, with its progress."""

import contextlib
import resource
import sys
import time
from collections.abc import Callable, Iterator

import torch

from normscope.reporting.terminal import CorpusBar, Throughput
from normscope.reporting.weights_and_biases import Tracker
from normscope.running.memory import explain_out_of_memory
from normscope.running.phases import Phase
from normscope.running.run import Run
from normscope.running.shutdown import ShutdownRequest, deferred_signals
from normscope.running.views import ViewRunner

_SECONDS_BETWEEN_LOGS = 10.0
_GIB = 2**30


class ProgressMeter:
    """Measures a run's throughput and memory while it reads its corpus.

    Args:
        tracker: Receives the values every ten seconds, and once at the end.
        bar: Shows them.
        clock: Seconds that never go back.
    """

    def __init__(self, run: Run, tracker: Tracker, bar: CorpusBar, clock: Callable[[], float] = time.monotonic) -> None:
        self._run, self._tracker, self._bar, self._clock = run, tracker, bar, clock
        self._examples, self._tokens = _examples(run), run.counts.all_tokens
        self._started = self._logged = clock()
        self._model_seconds = 0.0

    @contextlib.contextmanager
    def model_runs(self) -> Iterator[None]:
        """Measure the time in which the model and the analyses run, as opposed to waiting for a batch."""
        started = self._clock()
        yield
        self._model_seconds += self._clock() - started

    def update(self) -> None:
        """Measure after a batch."""
        now = self._clock()
        throughput = self._measured(now)
        self._bar.update(throughput)
        if now - self._logged >= _SECONDS_BETWEEN_LOGS:
            self._log(throughput, now)

    def finish(self) -> None:
        """Log the final values."""
        now = self._clock()
        throughput = self._measured(now)
        self._log(throughput, now)
        self._run.provenance.model_seconds += throughput.model_seconds
        self._run.provenance.corpus_seconds += throughput.seconds

    def _measured(self, now: float) -> Throughput:
        examples = _examples(self._run)
        return Throughput(
            examples=examples,
            total=self._run.plan.total,
            new_examples=examples - self._examples,
            new_tokens=self._run.counts.all_tokens - self._tokens,
            seconds=now - self._started,
            model_seconds=self._model_seconds,
        )

    def _log(self, throughput: Throughput, now: float) -> None:
        self._logged = now
        left = throughput.seconds_left
        values = {
            "tokens_per_second": throughput.tokens_per_second,
            "examples_per_second": throughput.examples_per_second,
            "model_share": throughput.model_share,
            "peak_memory_gib": peak_memory(self._run.plan.model.device) / _GIB,
        }
        self._tracker.progress(throughput.examples, values | ({} if left is None else {"seconds_left": left}))


@contextlib.contextmanager
def progress_meter(run: Run, tracker: Tracker) -> Iterator[ProgressMeter]:
    """A meter that logs its final values if the corpus has been read to its end."""
    with run.phases.corpus_bar(run.plan.total) as bar:
        meter = ProgressMeter(run, tracker, bar)
        yield meter
        meter.finish()


def peak_memory(device: torch.device) -> int:
    """The most memory used so far, in bytes: of a CUDA device, or otherwise of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024  # macOS counts bytes, Linux KiB


def _examples(run: Run) -> int:
    return run.counts.used + run.counts.skipped.total()


def accumulate(run: Run, tracker: Tracker) -> None:
    """Run this process's batches through every analysis, with regular checkpoints.

    Args:
        tracker: Receives throughput, memory and the time that is left.

    Raises:
        KeyboardInterrupt: If a signal requests shutdown; the current batch is finished and the state saved first.
        InputError: If a batch of one sequence does not fit into the device's memory.
    """
    run.phases.begin(Phase.PASS)
    runner = ViewRunner(run.plan.observer, run.plan.model.device, run.plan.views)
    with (
        explain_out_of_memory(run.plan.options.device.batch_tokens, run.plan.model.device),
        run.plan.observer,
        deferred_signals() as request,
    ):
        for number, share in enumerate(run.plan.shares.own):
            if number:  # the first has begun
                run.begin(share)
            with progress_meter(run, tracker) as meter:
                _accumulate_share(run, runner, meter, request)
        runner.finish()


def _accumulate_share(run: Run, runner: ViewRunner, meter: ProgressMeter, request: ShutdownRequest) -> None:
    checkpoint, position = run.checkpoint, run.position
    with run.stream.ahead_of(run.plan.model.device):
        for batch, mine in run.stream:
            if mine:
                with meter.model_runs():
                    runner.run(batch)
            position = position.after(batch)
            meter.update()
            if checkpoint is not None:
                checkpoint.save_if_due(run.plan.analyses, position, at_once=request.error is not None)
            if request.error is not None:
                raise request.error
    run.finish_share(position)
