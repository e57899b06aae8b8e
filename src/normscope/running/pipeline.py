"""A run: claim a folder, prepare, accumulate over the corpus, reduce, publish."""

import contextlib
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import torch

from normscope.analyses.findings import Findings
from normscope.config.schema import INCIDENTAL, RunOptions, flat, plain
from normscope.config.tracking_environment import with_environment
from normscope.config.validation import check
from normscope.errors import InputError
from normscope.models.interventions import ModelInterventionRunner
from normscope.models.loaded import LoadedModel
from normscope.reporting.published import published
from normscope.reporting.run_folder import RunFolder, Status, fail_abandoned
from normscope.reporting.terminal import say
from normscope.reporting.tracking import track
from normscope.running.checkpoint import Checkpoint
from normscope.running.distributed import ProcessGroup, process_group
from normscope.running.loop import explain_out_of_memory, observe
from normscope.running.provenance import account, say_absent, say_counts
from normscope.running.publish import publish_comparison, publish_findings, publish_pages, say_results
from normscope.running.session import Job, Started, no_example, prepare
from normscope.running.shutdown import Terminated, deferred_signals


def run(options: RunOptions, folder: Path, command: str = "", *, fresh: bool = False) -> dict[str, float]:
    """Run the chosen analyses over the corpus and publish their results in a folder.

    The folder is claimed first, by the first process alone. Bad input that is found before the first batch is measured
    removes what the claim made; from then on the folder says how the run ended.

    Args:
        options: The whole config.
        folder: The run folder; made if it is not there.
        command: What the user typed, to be published beside the results.
        fresh: Whether the folder must be new; if it exists, the run takes the next free name beside it.

    Returns:
        The metrics; empty in all processes but the first, where there are several.

    Raises:
        InputError: If the input is bad, or the folder cannot be used.
    """
    started = time.monotonic()
    with process_group() as processes:
        with processes.agreeing():
            check(options)
            results = _claim(options, folder, fresh, processes)
        place = Path(processes.shared("" if results is None else str(results.path)))
        if results is None:
            return _measure_share(options, processes, Started(started, command), place)
        begun = False
        try:
            with processes.agreeing():
                job = prepare(options, processes, Started(started, command))
                checkpoint = _resume(job, results) if processes.size == 1 else None
            options.tracking = with_environment(options.tracking)
            results.begin(options)
            begun = True
            return _measure(job, results, checkpoint)
        finally:
            results.release() if begun else results.abandon()


def _claim(options: RunOptions, folder: Path, fresh: bool, processes: ProcessGroup) -> RunFolder | None:
    """The run folder, in the first process alone."""
    if options.resume is not None and processes.size > 1:
        raise InputError(
            f"resume={options.resume}: several processes cannot go on with a run; start it without torchrun"
        )
    if options.recipe.paper is not None:
        published(options.recipe.paper)  # that it is not there must not be found out after the run
    return RunFolder(folder, resumed=options.resume is not None, fresh=fresh) if processes.first else None


def _resume(job: Job, results: RunFolder) -> Checkpoint:
    """The checkpoint of a run, and the job at the position where it stands."""
    checkpoint = Checkpoint(results, _identity(job.options, job.model), job.options.checkpoint.every_seconds)
    job.position = checkpoint.resume(job.analyses, job.stream)
    if job.position.batches:
        say(f"going on after {job.position.batches:,} batches")
    return checkpoint


def _measure_share(options: RunOptions, processes: ProcessGroup, started: Started, folder: Path) -> dict[str, float]:
    """Measure this process's share of the corpus, which the first process publishes."""
    with processes.agreeing():
        job = prepare(options, processes, started)
    try:
        with explain_out_of_memory(options.device.batch_tokens, job.model.device):
            _accumulate(job)
    except BaseException:
        # If it was the first process that died, nobody else says so.
        with deferred_signals():
            fail_abandoned(folder, f"the first of {processes.size} processes died")
        raise
    return {}


def _measure(job: Job, results: RunFolder, checkpoint: Checkpoint | None) -> dict[str, float]:
    """Measure the corpus and publish the results."""
    options = job.options
    with (
        _recorded(job, results),
        track(options, results.path) as tracker,
        _recorded(job, results),  # before the tracker ends, which may wait for its server
        explain_out_of_memory(options.device.batch_tokens, job.model.device),
    ):
        _accumulate(job, checkpoint)
        findings = _reduce(job)
        metrics = publish_findings(findings, results, tracker, depth=job.model.layers)
        comparison = publish_comparison(options, metrics, findings, results, tracker)
        facts = publish_pages(job, findings, comparison, results, tracker)
        tracker.summary(metrics, facts)
    results.finish(Status.COMPLETED, metrics, facts)
    if checkpoint is not None:
        checkpoint.remove()
    say_results(options, findings, comparison, results.path)
    return metrics


def _accumulate(job: Job, checkpoint: Checkpoint | None = None) -> None:
    """Show this process's batches to the analyses, and add up in the first process what all have added up."""
    arguments = (job.observer, job.model.device, job.analyses, job.stream, job.total, job.counts)
    observe(*arguments, checkpoint, job.position)
    job.processes.gather(job.analyses, job.counts)


@contextlib.contextmanager
def _recorded(job: Job, results: RunFolder) -> Iterator[None]:
    """Write into the run folder how a run ended that does not complete."""
    try:
        yield
    except BaseException as error:
        status, text = Status.FAILED, str(error)
        if isinstance(error, KeyboardInterrupt):
            # torchrun sends SIGTERM to all processes when one of them has died.
            if job.processes.size > 1 and isinstance(error, Terminated):
                text = f"ended by SIGTERM: another of the {job.processes.size} processes died, or torchrun was ended"
            else:
                status = Status.INTERRUPTED
        # One more signal must not cost the run its status; a folder that refuses it is what the error says already.
        with deferred_signals(), contextlib.suppress(InputError):
            if not results.ended:
                results.finish(status, {}, account(job.progress, job.options), error=text)
        raise


def _reduce(job: Job) -> dict[str, Findings]:
    """What every analysis found in the whole corpus."""
    if not job.counts.used:
        raise no_example(job.options, job.counts)
    say_counts(job.counts, job.encoder)
    if not job.only_alignment:
        say_absent(job.categories, job.counts)
    runner = ModelInterventionRunner(job.model, job.encoder, job.layers, job.options.device.batch_tokens)
    for analysis in job.analyses:
        analysis.experiment(runner)
    return {analysis.name: analysis.findings() for analysis in job.analyses}


def _identity(options: RunOptions, model: LoadedModel) -> dict[str, object]:
    """What must not have changed when a run goes on."""
    config = {key: value for key, value in flat(plain(options)).items() if key.split(".")[0] not in INCIDENTAL}
    return config | {
        "the model's weights": model.weights_sha256,
        "torch": torch.__version__,
        "normscope": metadata.version("normscope"),
    }
