"""What a run says of itself while it goes and when it ends."""

import dataclasses
import time

from normscope.config.schema import RunOptions
from normscope.data.categories import ALL
from normscope.data.encoding import Encoder
from normscope.data.examples import CorpusCounts
from normscope.errors import InputError
from normscope.models.loaded import LoadedModel
from normscope.models.verification import Verification
from normscope.reporting.terminal import say
from normscope.running.software import provenance


@dataclasses.dataclass
class Progress:
    """What a run knows of itself while it goes, so that an end at any moment can be told truly."""

    started: float
    counts: CorpusCounts
    model: LoadedModel
    verification: Verification
    command: str


def account(progress: Progress, options: RunOptions) -> dict[str, object]:
    """Where the numbers come from, as far as the run has come."""
    counts, model = progress.counts, progress.model
    return provenance() | {
        "finished": time.strftime("%Y-%m-%d %H:%M:%S"),
        "command": progress.command,
        "model": model.name,
        "model_revision": model.revision,
        "model_sha256": model.weights_sha256,
        "device": str(model.device),
        "dtype": str(model.dtype).removeprefix("torch."),
        "seed": options.seed,
        "examples": counts.read,
        "skipped": dict(counts.skipped),
        "examples_used": counts.used,
        "sequences": counts.sequences,
        "cut": counts.cut,
        "tokens": counts.tokens,
        "tokens_by_category": dict(counts.categories),
        "seconds": round(time.monotonic() - progress.started, 3),
        "verification_error": progress.verification.error,
        "verification_layer": progress.verification.layer,
        "verification_part": progress.verification.part,
    }


def say_counts(counts: CorpusCounts, encoder: Encoder) -> None:
    """How much of what was read, and what was left out."""
    tokens = ", ".join(f"{number:,} {category}" for category, number in counts.categories.items() if number)
    say(f"{counts.sequences:,} sequences, {counts.tokens:,} tokens: {tokens}")
    if counts.cut:
        say(f"{counts.cut:,} of them were longer than {encoder.max_length} tokens and were cut (dataset.max_length)")
    for reason, number in counts.skipped.items():
        say(f"{number:,} examples were skipped: {reason}")


def say_absent(categories: list[str], counts: CorpusCounts) -> None:
    """Categories that never occurred have no rows; if none of those asked for did, there is nothing to report."""
    absent = [category for category in categories if category != ALL and not counts.categories[category]]
    if len(absent) == len(categories):
        raise InputError(f"categories=[{','.join(categories)}]: no token of these in the corpus")
    if absent:
        say(f"no token of category {', '.join(absent)} in the corpus: the tables have no rows of it")
