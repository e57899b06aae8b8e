"""Steps of datatrove's pipelines: its executors run the shards of a corpus, on one machine, Slurm or Ray.

```python
from datatrove.executor import LocalPipelineExecutor
from normscope.datatrove import MergeShards, RunShard

shards = LocalPipelineExecutor([RunShard("outputs/large", ["dataset=text", "dataset.path=corpus/*.jsonl"])], tasks=8, workers=2)
LocalPipelineExecutor([MergeShards("outputs/large")], depends=shards).run()
```

Needs the extra `datatrove`.
"""

import contextlib
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from datatrove.pipeline.base import PipelineStep
from datatrove.utils.logging import logger

from normscope.reporting.earlier_runs import CONFIG, is_complete, read_results
from normscope.running.options import SCHEMA
from normscope.running.shutdown import terminate

_PREPARED = "prepared"
_MERGED = "merged"


class _NormscopeStep(PipelineStep):
    """A step that runs a command and passes on its documents unchanged.

    Args:
        folder: Holds the run folders of all steps; every task must see it.
        overrides: As on the command line.
    """

    type = "normscope"

    def __init__(self, folder: str | Path, overrides: Sequence[str]) -> None:
        super().__init__()
        self.folder = Path(folder)
        self.overrides = list(overrides)

    def run(self, data: Iterable[Any] | None = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Run the task's command, or resume it, unless an earlier attempt has completed it.

        Raises:
            RuntimeError: If the command fails.
        """
        yield from data or ()
        run_folder = self.run_folder(rank)
        if not is_complete(run_folder):
            begun = (run_folder / CONFIG).is_file()
            trusting = [text for text in self.overrides if text.partition("=")[0] in SCHEMA.keys_that_run_code]
            _normscope([f"resume={run_folder}", *trusting] if begun else self.command(rank, world_size))
        facts = read_results(run_folder)["provenance"]
        for name in ("sequences", "tokens"):
            self.stat_update(name, value=facts[name], unit="task")

    def run_folder(self, rank: int) -> Path:
        """Where the results of a task are."""
        raise NotImplementedError

    def command(self, rank: int, world_size: int) -> list[str]:
        """The command of a new task, without `normscope`."""
        raise NotImplementedError


class PrepareShards(_NormscopeStep):
    """Makes what some analyses need of the whole corpus: `normscope prepare`. For an executor with one task.

    Args:
        folder: Holds the run folders of all steps.
        overrides: Analyses, model and corpus, as on the command line; the same as those of the shards.
    """

    name = "prepare shards"

    def run_folder(self, _rank: int) -> Path:
        """`prepared`."""
        return self.folder / _PREPARED

    def command(self, rank: int, _world_size: int) -> list[str]:
        """`normscope prepare …`."""
        return ["prepare", *self.overrides, f"output_dir={self.run_folder(rank)}"]


class RunShard(_NormscopeStep):
    """Analyses one shard of a corpus per task: task i of N runs `normscope … shard=i shards=N`.

    A task that is run again continues after the last checkpoint. What `PrepareShards` has made in the same folder is used.

    Args:
        folder: Holds the run folders of all steps.
        overrides: Analyses, model and corpus, as on the command line.
    """

    name = "run shard"

    def run_folder(self, rank: int) -> Path:
        """`shard-00000` and so on."""
        return self.folder / f"shard-{rank:05d}"

    def command(self, rank: int, world_size: int) -> list[str]:
        """`normscope … shard=RANK shards=WORLD_SIZE`."""
        prepared = self.folder / _PREPARED
        given = [f"prepared={prepared}"] if prepared.is_dir() else []
        shard = [f"shard={rank}", f"shards={world_size}", f"output_dir={self.run_folder(rank)}"]
        return [*self.overrides, *given, *shard]


class MergeShards(_NormscopeStep):
    """Makes one run of all shards: `normscope merge`. For an executor with one task that depends on that of the shards.

    Args:
        folder: Holds the run folders of all steps.
        overrides: Keys that may differ from those of the shards, such as `tracking`.
    """

    name = "merge shards"

    def __init__(self, folder: str | Path, overrides: Sequence[str] = ()) -> None:
        super().__init__(folder, overrides)

    def run_folder(self, _rank: int) -> Path:
        """`merged`."""
        return self.folder / _MERGED

    def command(self, rank: int, _world_size: int) -> list[str]:
        """`normscope merge …`."""
        shards = map(str, sorted(self.folder.glob("shard-*")))
        return ["merge", *shards, *self.overrides, f"output_dir={self.run_folder(rank)}"]


def _normscope(arguments: Sequence[str]) -> None:
    """Run a command in a separate process, whose messages go to the log of the task.

    Raises:
        RuntimeError: If it fails.
    """
    last = deque(["no message"], maxlen=1)
    command = [sys.executable, "-m", "normscope", *arguments]
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace") as process,
        _ending_with_this_one(process),
    ):
        assert process.stderr is not None
        for line in process.stderr:
            if line.strip():
                logger.info("{}", line.rstrip())
                last.append(line.strip())
    if process.returncode:
        raise RuntimeError(f"normscope {' '.join(arguments)}: exit status {process.returncode}: {last[0]}")


@contextlib.contextmanager
def _ending_with_this_one(process: "subprocess.Popen[str]") -> Iterator[None]:
    """Stop a process if this one is stopped: datatrove ends the other tasks when one fails. It saves its state first."""
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, terminate) if is_main else None
    try:
        yield
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before)
