"""Where the numbers of a run come from: the facts that explain a difference between two runs."""

import dataclasses
import functools
import platform
import subprocess
import time
from collections.abc import Mapping
from importlib import metadata

from normscope.config.training_step import training_step
from normscope.data.corpora import left_out
from normscope.data.examples import CorpusCounts
from normscope.distribution import CHECKOUT, VERSION
from normscope.models.layout import ModelLayout
from normscope.models.loaded import LoadedModel
from normscope.models.options import ModelOptions
from normscope.models.stored_weights import number_format
from normscope.models.verification import Verification
from normscope.running.phases import Phases
from normscope.running.plan import Plan

_LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "pandas")


@dataclasses.dataclass(frozen=True)
class Origin:
    """How a run was started."""

    started: float
    """Start time, by `time.monotonic`."""
    command: str
    """What the user typed."""


@dataclasses.dataclass
class Provenance:
    """The facts of a run, complete at whatever point it ends."""

    origin: Origin
    phases: Phases
    seed: int
    options: ModelOptions
    model: LoadedModel
    verification: Verification
    counts: CorpusCounts
    left_out: list[str]
    """Files in the folder of the corpus that are no part of it."""
    model_seconds: float = 0.0
    """Seconds in which the model and the analyses ran on the corpus."""
    corpus_seconds: float = 0.0
    """Seconds of the whole pass over the corpus, waiting for batches and saving checkpoints included."""

    @classmethod
    def of(cls, plan: Plan, origin: Origin, phases: Phases) -> "Provenance":
        """The facts of a run that begins."""
        return cls(
            origin,
            phases,
            plan.options.seed,
            plan.options.model,
            plan.model,
            plan.verification,
            CorpusCounts(),
            left_out(plan.options.dataset),
        )

    def facts(self) -> dict[str, object]:
        """Software, model, corpus, time and verification error, as they are now."""
        counts, model = self.counts, self.model
        return dict(software()) | {
            "finished": time.strftime("%Y-%m-%d %H:%M:%S"),
            "command": self.origin.command,
            "model": model.name,
            "model_revision": model.revision,
            "model_sha256": model.weights_sha256,
            "training_step": training_step(vars(self.options), model.folder),
            "device": str(model.device),
            "dtype": number_format(model.model),
            **_of_layers(model.layout),
            "seed": self.seed,
            "examples": counts.read,
            **counts.facts(),
            "left_out": self.left_out,
            "tokens_by_category": dict(counts.categories),
            "compared": _of_compared(counts.compared),
            "seconds": round(time.monotonic() - self.origin.started, 3),
            **self.times(),
            "model_share": round(self.model_seconds / self.corpus_seconds, 4) if self.corpus_seconds else None,
            "verification_error": self.verification.error,
            "verification_layer": self.verification.layer,
            "verification_part": self.verification.part,
        }

    def times(self) -> dict[str, object]:
        """Seconds of the phases of the run and of their steps so far."""
        return {"phases": self.phases.seconds(), "steps": self.phases.step_seconds()}


def _of_layers(layout: ModelLayout) -> dict[str, object]:
    """The layers of a hybrid that have no block, which the analyses of blocks leave out."""
    return {"layers_without_attention": layout.without_attention} if layout.without_attention else {}


def _of_compared(counts: CorpusCounts | None) -> dict[str, object] | None:
    """The same of pairs whose texts are compared, if other analyses read them otherwise."""
    return None if counts is None else counts.facts()


@functools.cache
def software() -> Mapping[str, object]:
    """Versions of the software that the numbers depend on, and the commit of this code."""
    libraries = {name: metadata.version(name) for name in _LIBRARIES}
    return {
        "versions": {"python": platform.python_version(), "normscope": VERSION, **libraries},
        "platform": platform.platform(),
        "git_commit": git_commit(),
    }


@functools.cache
def git_commit() -> str | None:
    """Commit of the checkout that contains this code, followed by `+` if files have changed; None outside a checkout."""
    if CHECKOUT is None or not (CHECKOUT / ".git").exists():
        return None
    # `git status` refreshes the index under a lock, which would stay in the checkout if the run were killed meanwhile.
    command = ["git", "--no-optional-locks", "-C", str(CHECKOUT), "status", "--porcelain=v2", "--branch"]
    try:
        status = subprocess.run(
            [*command, "--no-ahead-behind", "--untracked-files=no"], check=True, capture_output=True, text=True
        ).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return None
    commit = next(line.split()[-1] for line in status if line.startswith("# branch.oid"))
    if commit == "(initial)":
        return None
    return commit + ("+" if any(not line.startswith("#") for line in status) else "")
