"""The loop over a corpus: batch → blocks and hidden vectors → analyses."""

from normscope.reporting.tracker import Tracker
from normscope.running.memory import explain_out_of_memory
from normscope.running.progress import ProgressMeter, progress_meter
from normscope.running.session import Session
from normscope.running.shutdown import ShutdownRequest, deferred_signals
from normscope.running.views import ViewRunner


def accumulate(session: Session, tracker: Tracker) -> None:
    """Run this process's batches through every analysis, with regular checkpoints.

    Args:
        session: The run.
        tracker: Receives throughput, memory and the time that is left.

    Raises:
        KeyboardInterrupt: If a signal requests shutdown; the current batch is finished and the state saved first.
        InputError: If a batch of one sequence does not fit into the device's memory.
    """
    runner = ViewRunner(session.observer, session.model.device, session.views)
    with (
        explain_out_of_memory(session.options.device.batch_tokens, session.model.device),
        session.observer,
        deferred_signals() as request,
    ):
        for number, share in enumerate(session.parts.own):
            if number:  # the first has begun
                session.begin(share)
            with progress_meter(session, tracker) as meter:
                _accumulate_part(session, runner, meter, request)


def _accumulate_part(session: Session, runner: ViewRunner, meter: ProgressMeter, request: ShutdownRequest) -> None:
    checkpoint, position = session.checkpoint, session.position
    with session.stream.ahead_of(session.model.device):
        for batch, mine in session.stream:
            if mine:
                with meter.model_runs():
                    runner.run(batch)
            position = position.after(batch)
            meter.update()
            if checkpoint is not None:
                checkpoint.save_if_due(session.analyses, position, at_once=request.error is not None)
            if request.error is not None:
                raise request.error
    session.finish_part(position)
