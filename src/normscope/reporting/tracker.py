"""Tells a separate process what to log to Weights & Biases: whatever W&B does there, it can neither end nor hold the run."""

import contextlib
import dataclasses
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from normscope.errors import one_line
from normscope.reporting.options import TrackingMode, TrackingOptions
from normscope.reporting.terminal import say
from normscope.reporting.tracking import RunDescription

_END_SECONDS = 30
"""How long the end of a run waits for W&B."""
_WRITER = "normscope.reporting.weights_and_biases"


class Tracker:
    """What a run logs to Weights & Biases besides its folder. At most one warning says that something is not logged.

    Args:
        writer: The process that logs: it reads messages, and prints warnings. None if nothing is logged.
        folder: The run folder.
    """

    def __init__(self, writer: "subprocess.Popen[bytes] | None", folder: Path) -> None:
        self._writer, self._folder = writer, folder
        self._warned, self._last = False, ""
        if writer is not None:
            self._listener = threading.Thread(target=self._listen, args=(writer.stdout,), daemon=True)
            self._listener.start()

    @property
    def logs(self) -> bool:
        """Whether anything is logged."""
        return self._writer is not None

    def progress(self, examples: int, values: Mapping[str, float]) -> None:
        """Log throughput, memory and remaining time, after so many examples."""
        self._send({"progress": {"examples": examples, **values}})

    def result(self, pictures: Path) -> None:
        """Log the results of a run that has completed, which its folder holds, and end the tracking.

        Args:
            pictures: The folder that has its figures as PNGs until this returns.
        """
        self._send({"pictures": str(pictures)})
        self.finish(0)

    def finish(self, status: int) -> None:
        """Wait until everything is logged, for at most _END_SECONDS. A signal ends the wait.

        Args:
            status: 0 if the run has completed.
        """
        self._send({"status": status})
        writer, self._writer = self._writer, None
        if writer is None:
            return
        with writer:
            try:
                self._listener.join(_END_SECONDS)
                if self._listener.is_alive():
                    self._warn(
                        f"Weights & Biases has not finished within {_END_SECONDS} s; the run ends without it; use `wandb sync` "
                        f"to upload what it saved in {self._folder / 'wandb'}"
                    )
                elif status := writer.wait():
                    why = self._last or f"exit status {status}"
                    self._warn(f"Weights & Biases ended early ({why}); the run continues without tracking")
            finally:
                writer.kill()  # does nothing if it has ended

    def _send(self, message: Mapping[str, object]) -> None:
        if self._writer is not None and self._writer.stdin is not None:
            _write(self._writer.stdin.fileno(), message)

    def _listen(self, output: Iterable[bytes]) -> None:
        """Pass on warnings until the writer ends. Of anything else, such as a traceback, the last line is kept."""
        for line in output:
            self._last = line.decode(errors="replace").strip()
            if self._last.startswith("Weights & Biases"):
                self._warn(self._last)

    def _warn(self, warning: str) -> None:
        """Print the first warning; later ones follow from it."""
        if not self._warned:
            self._warned = True
            say(warning)


def no_tracker() -> Tracker:
    """A tracker that logs nothing."""
    return Tracker(None, Path())


@contextlib.contextmanager
def track(options: TrackingOptions, description: RunDescription, folder: Path) -> Iterator[Tracker]:
    """A Weights & Biases run, for the duration of a run; nothing is logged if the mode is `disabled`.

    Args:
        options: The tracking options, completed by `with_environment`.
        description: The run, as it is tracked.
        folder: The run folder.
    """
    tracker = no_tracker()
    if options.mode is not TrackingMode.disabled:
        try:
            tracker = Tracker(_started(options, description, folder), folder)
        except OSError as error:
            say(f"Weights & Biases did not start ({one_line(error)}); the run continues without tracking")
    status = 1
    try:
        yield tracker
        status = 0
    finally:
        tracker.finish(status)


def _started(options: TrackingOptions, description: RunDescription, folder: Path) -> "subprocess.Popen[bytes]":
    """The process that logs, told what to log about.

    W&B stages figures and tables in the run folder, not in the user's home. It refuses to start if WANDB_MODE holds an unknown
    value, even if the mode is passed as an argument, and records the arguments of its process as those of the program.
    """
    own = {"WANDB_DATA_DIR": str(folder / "wandb"), "WANDB_MODE": str(options.mode), "WANDB_SILENT": "true"}
    writer = subprocess.Popen(
        [sys.executable, "-P", "-m", _WRITER, *sys.argv[1:]],
        env={"WANDB_PROGRAM": sys.argv[0], **os.environ, **own},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # a signal of the terminal is for the run, which says how it ends
    )
    assert writer.stdin is not None
    described = {"options": dataclasses.asdict(options), "description": dataclasses.asdict(description)}
    _write(writer.stdin.fileno(), {**described, "folder": str(folder)})
    os.set_blocking(writer.stdin.fileno(), False)
    return writer


def _write(pipe: int, message: Mapping[str, object]) -> None:
    with contextlib.suppress(OSError):  # the writer has ended, or has not read for so long that the pipe is full
        os.write(pipe, json.dumps(message).encode() + b"\n")


def log_to_active_run(metrics: Mapping[str, float], training_step: int) -> None:
    """Log to the W&B run that this process has active, if there is one, on the axis that transformers' trainer uses."""
    wandb = sys.modules.get("wandb")
    # A module that another thread is importing has no attributes yet.
    if wandb is not None and getattr(wandb, "run", None) is not None:
        try:
            wandb.log({**metrics, "train/global_step": training_step})
        except Exception as error:  # its service may be gone, and a training must not end for that
            logging.getLogger("normscope").warning("step %d is not logged to W&B: %s", training_step, one_line(error))
