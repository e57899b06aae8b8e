"""A run over texts in memory, without a folder, a tracker or a page."""

import dataclasses

from normscope.results.result import Result
from normscope.running.conclusions import conclude
from normscope.running.inputs import InputsInMemory
from normscope.running.memory import explain_out_of_memory
from normscope.running.options import RunOptions, check, settled
from normscope.running.phases import Phase, Phases
from normscope.running.run import Run
from normscope.running.views import ViewRunner


def analyse(options: RunOptions, inputs: InputsInMemory, *, progress: bool) -> Result:
    """Run the enabled analyses over texts in memory, in this process.

    Args:
        options: The whole config; nothing in it says where model and texts come from.
        inputs: The model and the texts.
        progress: Whether a terminal shows what the run is doing.
    """
    options = settled(options)
    check(options)
    phases = Phases.of(options, shown=progress)
    try:
        run = Run.in_memory(options, inputs, phases)
        runner = ViewRunner(run.plan.observer, run.plan.model.device, run.plan.views)
        with explain_out_of_memory(options.device.batch_tokens, run.plan.model.device):
            with run.plan.observer, run.stream.ahead_of(run.plan.model.device):
                phases.begin(Phase.PASS)
                for batch, _ in run.stream:
                    runner.run(batch)
                runner.finish()
            result = conclude(run)
    finally:
        phases.end()
    return dataclasses.replace(result, facts=run.provenance.facts())
