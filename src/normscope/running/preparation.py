"""What shards need of the whole corpus, made once by `normscope prepare` and read by each of them."""

import dataclasses

from normscope.reporting.earlier_runs import Status
from normscope.reporting.run_folder import RunFolder
from normscope.reporting.terminal import say
from normscope.reporting.weights_and_biases import Tracker
from normscope.running.phases import Phase
from normscope.running.prepared import FILE
from normscope.running.run import Run
from normscope.running.state_file import packed


@dataclasses.dataclass(frozen=True)
class Preparation:
    """A run that has prepared its resources."""

    run: Run
    results: RunFolder

    def complete(self) -> dict[str, float]:
        """Record that the run is complete; it has no metrics."""
        self.results.finish(Status.PREPARED, {}, self.run.provenance.facts())
        say(f"add prepared={self.results.path} to every shard")
        return {}


def prepare(run: Run, results: RunFolder, _tracker: Tracker) -> Preparation:
    """Save what the analyses need of the whole corpus.

    Raises:
        InputError: If the run folder is not writable.
    """
    run.phases.begin(Phase.PUBLISHING)
    prepared = run.plan.resources.items()
    states = {name: resource.state for name, resource in prepared if resource.state is not None}
    content = {"identity": run.plan.prepared_identity, "resources": list(states)}
    tensors = {f"{name}/{part}": tensor for name, state in states.items() for part, tensor in state().items()}
    results.write(FILE, packed(content, tensors))
    return Preparation(run, results)
