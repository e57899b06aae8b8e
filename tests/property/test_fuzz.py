"""Random configs on random corpora with models of every family: a result that keeps the invariants, or one clear line."""

import json
import math
import runpy
import shutil
import sys
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings

from normscope.reporting import views
from normscope.running import plan
from tests.end_to_end.shell import ROOT, draw_nothing
from tests.tiny import FAMILY_CONFIGS, STACK_CONFIGS, tiny_model

FAMILIES = sorted({**FAMILY_CONFIGS, **STACK_CONFIGS})
NAMES = ["mixing", "norms", "frequency", "outliers", "score"]
WORDS = [*"cat river , . [MASK] [SEP] walks naïve 雪 unbelievably <s> 🙂".split(), "\u200d", "\x00", "a" * 200]

rows = st.lists(
    st.fixed_dictionaries(
        {"text": st.lists(st.sampled_from(WORDS), max_size=30).map(" ".join)},
        optional={"text_pair": st.lists(st.sampled_from(WORDS), max_size=30).map(" ".join)},
    ),
    min_size=1,
    max_size=7,
)

overrides = st.fixed_dictionaries(
    {"analysis": st.lists(st.sampled_from(NAMES), min_size=1, unique=True).map(lambda names: f"[{','.join(names)}]")},
    optional={
        "layers": st.sampled_from(["all", "[1]", "[2,1]", "[3]", "[4]", "[]"]),
        "categories": st.sampled_from(["all", "[cls]", "[other,all]", "[mask,first]", "[nothing]"]),
        "dataset.mask_fraction": st.sampled_from([0, 0.12, 0.9, 1.5]),
        "dataset.max_length": st.sampled_from([2, 3, 7, 40, 10**6]),
        "dataset.limit": st.integers(0, 5),
        "dataset.segmentation": st.sampled_from(["none", "sentence", "pair", "window"]),
        "dataset.seed": st.integers(-1, 3),
        "device.batch_tokens": st.sampled_from([0, 1, 7, 64, 4096]),
        "device.dtype": st.sampled_from(["float32", "float64", "bfloat16"]),
        "model.stack": st.sampled_from(["null", "encoder", "decoder", "cross"]),
        "analysis.norms.sampled_queries": st.sampled_from(["null", 0, 1, 4]),
        "analysis.outliers.threshold": st.sampled_from([0, 0.5, 3]),
        "analysis.outliers.dimensions": st.sampled_from(["null", "[0,5]", "[99999]"]),
        "analysis.score.sequences": st.sampled_from(["null", 1, 0]),
        "checkpoint.every_seconds": st.sampled_from([0, 60]),
    },
)


@pytest.fixture(scope="session")
def zoo(tmp_path_factory, tokenizer):
    """A folder with a tiny model of every family, each built on first use."""
    folder = tmp_path_factory.mktemp("zoo")

    def model(family: str) -> Path:
        if not (folder / family).exists():
            config = {**FAMILY_CONFIGS, **STACK_CONFIGS}[family] | {"vocab_size": len(tokenizer)}
            tiny_model(config, torch.float32).save_pretrained(folder / family)
            tokenizer.save_pretrained(folder / family)
        return folder / family

    return model


def run(folder: Path, model: Path, corpus: list[dict[str, str]], given_: dict[str, object]) -> tuple[int, dict]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in corpus))
    arguments = [
        *(f"{key}={value}" for key, value in given_.items()),
        *(f"model.name={model}", "dataset=text", f"dataset.path={folder / 'corpus.jsonl'}", "tracking=disabled"),
        *(
            "device=cpu",
            "analysis.score.controls=1",
            f"output_dir={folder / 'run'}",
        ),
    ]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", ["run.py", *arguments])
        draw_nothing(patched)
        patched.setattr(plan, "_texts", lambda *_: [])
        patched.setattr(views, "page", lambda *_: "")
        with pytest.raises(SystemExit) as exit_:
            runpy.run_path(str(ROOT / "run.py"), run_name="__main__")
    path = folder / "run/results.json"
    return int(exit_.value.code or 0), json.loads(path.read_text()) if path.exists() else {}


# Their heads have a learned sink, a key that is no token and takes a part of the weight.
WITH_SINK = {"gpt_oss"}


# The parts of an output, which add up to 1.
SHARES = {"share", "own", "residual", "bias"}


def check(status: int, results: dict, given_: dict[str, object], family: str) -> None:
    # A bug of ours keeps its traceback: it would have come through as an exception.
    assert status in (0, 2)
    if status == 2:
        return
    facts, metrics = results["facts"], results["metrics"]
    assert results["status"] == "completed"
    assert all(math.isfinite(value) for value in metrics.values())
    shares: dict[str, float] = {}
    for name, value in metrics.items():
        if name.startswith("mixing/") and name.rpartition("/")[2] in SHARES:  # which may be negative
            shares[name.rpartition("/")[0]] = shares.get(name.rpartition("/")[0], 0.0) + value
        elif name.startswith("mixing/"):
            assert -1e-6 <= value <= 1 + 1e-6, (name, value)
    error = 2e-2 if given_.get("device.dtype") == "bfloat16" else 1e-4
    assert all(abs(total - 1) <= error for total in shares.values()), shares
    if "norms/alpha/all" in metrics:
        assert 0 < metrics["norms/alpha/all"] <= 1 + error
        assert family in WITH_SINK or metrics["norms/alpha/all"] >= 1 - error
    assert facts["examples"] == facts["examples_used"] + sum(facts["skipped"].values())
    assert facts["tokens"] == sum(facts["tokens_by_category"].values())
    if given_.get("device.dtype") != "bfloat16":
        assert facts["verification_error"] < 1e-4


FUZZ = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
}


@pytest.mark.slow
@given(family=st.sampled_from(FAMILIES), corpus=rows, given_=overrides)
@example(family="deberta", corpus=[{"text": "cat"}], given_={"analysis": "[mixing]", "device.dtype": "bfloat16"})
@example(
    family="mbart",
    corpus=[{"text": "cat river"}],
    given_={"analysis": "[score]", "analysis.outliers.dimensions": "[0,5]", "layers": "[1]"},
)
@example(family="gpt_oss", corpus=[{"text": "cat"}], given_={"analysis": "[mixing,norms]"})
@example(
    family="smollm3",
    corpus=[{"text": "cat river"}],
    given_={"analysis": "[mixing,norms,frequency,outliers]", "analysis.norms.sampled_queries": 1},
)
@settings(max_examples=2, **FUZZ)
def test_a_few_random_runs(zoo, tmp_path, family, corpus, given_):
    check(*run(tmp_path / "fuzz", zoo(family), corpus, given_), given_, family)


@pytest.mark.slow
@pytest.mark.parametrize("_part", range(5))  # each of which has a seed of its own, and any worker runs
@given(family=st.sampled_from(FAMILIES), corpus=rows, given_=overrides)
@settings(max_examples=30, **FUZZ)
def test_random_runs(zoo, tmp_path, _part, family, corpus, given_):
    check(*run(tmp_path / "fuzz", zoo(family), corpus, given_), given_, family)
