"""The loop over a corpus: batch → blocks and hidden vectors → analyses."""

from normscope.reporting.terminal import progress_bar
from normscope.running.memory import BatchRunner, explain_out_of_memory
from normscope.running.session import Session
from normscope.running.shutdown import deferred_signals


def accumulate(session: Session) -> None:
    """Run this process's batches through every analysis, with regular checkpoints.

    Raises:
        KeyboardInterrupt: If a signal requests shutdown; the current batch is finished and the state saved first.
        InputError: If a batch of one sequence does not fit into the device's memory.
    """
    counts, checkpoint, position = session.counts, session.checkpoint, session.position
    runner = BatchRunner(session.observer, session.model.device, session.analyses)
    with (
        explain_out_of_memory(session.options.device.batch_tokens, session.model.device),
        session.observer,
        progress_bar(session.total) as bar,
        deferred_signals() as request,
    ):
        for batch, mine in session.stream:
            if mine:
                runner.run(batch)
            position = position.after(batch)
            bar.update(counts.used + counts.skipped.total() - bar.n)
            if checkpoint is not None:
                checkpoint.save_if_due(session.analyses, position, at_once=request.error is not None)
            if request.error is not None:
                raise request.error
