"""Shards that datatrove's local executor runs and merges."""

import importlib.util
import json

import pytest

from tests.end_to_end import forks
from tests.end_to_end.disturbed import python, results

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("datatrove") is None, reason="datatrove is not installed"),
]

EXECUTE = """
import sys
from datatrove.executor import LocalPipelineExecutor
from normscope.datatrove import MergeShards, PrepareShards, RunShard

def executor(step, depends=None, **tasks):
    return LocalPipelineExecutor([step], logging_dir=f"{folder}/logs/{type(step).__name__}", depends=depends, **tasks)

if __name__ == "__main__":
    folder, *options = sys.argv[1:]
    prepare = executor(PrepareShards(folder, options))
    shards = executor(RunShard(folder, options), prepare, tasks=3, workers=2)
    executor(MergeShards(folder), shards).run()
"""


def test_tasks_run_shards_and_go_on_after_a_failure(saved_model, tmp_path):
    program, folder = tmp_path / "execute.py", tmp_path / "large"
    program.write_text(EXECUTE)
    given = [f"model.name={saved_model}", "analysis=[mixing,frequency]", "device=cpu", "device.batch_tokens=256"]
    given += ["dataset.limit=40", "tracking=disabled", "report.enabled=false"]
    (folder / "shard-00001").mkdir(parents=True)
    (folder / "shard-00001/config.yaml").write_text("model: {}\n")  # of a run that cannot be resumed
    outcome = python(str(program), str(folder), *given)
    assert outcome.returncode
    assert f"resume={folder}/shard-00001: exit status 2" in outcome.stderr
    assert not (folder / "merged").exists()

    (folder / "shard-00001/config.yaml").unlink()
    outcome = python(str(program), str(folder), *given)
    assert outcome.returncode == 0, outcome.stderr
    stats = json.loads((folder / "logs/MergeShards/stats.json").read_text())
    assert stats[0]["stats"]["sequences"]["total"] == results(folder / "merged")["provenance"]["sequences"]
    assert forks.run(*given, f"output_dir={tmp_path / 'whole'}").status == 0
    assert results(folder / "merged")["metrics"] == pytest.approx(results(tmp_path / "whole")["metrics"], rel=1e-9)
