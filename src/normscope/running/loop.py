"""The loop over a corpus: batch → blocks and hidden vectors → analyses."""

from normscope.reporting.weights_and_biases import Tracker
from normscope.running.memory import explain_out_of_memory
from normscope.running.phases import Phase
from normscope.running.progress import ProgressMeter, progress_meter
from normscope.running.run import Run
from normscope.running.shutdown import ShutdownRequest, deferred_signals
from normscope.running.views import ViewRunner


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
