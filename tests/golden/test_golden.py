"""Every table and metric of every analysis is what it was."""

import pandas as pd
import pytest

from tests.end_to_end.shell import run_once
from tests.golden.commands import commands
from tests.golden.make import FOLDER
from tests.golden.results import differences, measured


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, tokenizer):
    return commands(tmp_path_factory.mktemp("golden"), tokenizer)


QUICK = {"bert_pairs", "bert_treebank", "bert_words"}
"""Those of every level; the others are of every analysis and model, whose numbers the oracles judge every day."""


def _slow_if_large(name):
    return name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.parametrize("name", [_slow_if_large(path.stem) for path in sorted(FOLDER.glob("*.parquet"))])
def test_results_are_those_that_were_kept(name, prepared, tmp_path):
    outcome = run_once(*prepared[name].arguments, f"output_dir={tmp_path / 'run'}")
    assert outcome.status == 0, outcome.err
    pictures = {path.read_bytes() for path in (tmp_path / "run" / "figures").glob("*.png")}
    assert len(pictures) <= 1, "tests draw figures, which takes longer than all the rest of a run"
    found = differences(
        pd.read_parquet(FOLDER / f"{name}.parquet"), measured(tmp_path / "run"), prepared[name].tolerance
    )
    assert not found, "\n".join(found[:40])


def test_no_command_is_left_out(prepared):
    assert {path.stem for path in FOLDER.glob("*.parquet")} == set(prepared)


def test_a_changed_number_is_found():
    kept = pd.DataFrame({"table": "t", "column": "c", "row": [0, 1], "number": [1.0, float("nan")], "text": ""})
    assert differences(kept, kept, 1e-9) == []
    assert differences(kept, kept.assign(number=[1 + 1e-6, float("nan")]), 1e-9)
    assert differences(kept, kept.assign(number=[1.0, 2.0]), 1e-9)
    assert differences(kept, kept.assign(text=["", "x"]), 1e-9)
    assert differences(kept, kept[:1], 1e-9)
    assert differences(kept, kept.assign(column="d"), 1e-9) == [], "oracles judge names"
    assert differences(kept, kept.assign(column="d", number=[1.0, 2.0]), 1e-9) == ["t.c: other cells are empty"]
    more = pd.concat([kept, kept.assign(column="d")])
    assert differences(kept, more, 1e-9) == ["t.d is not among the golden results"]
    assert differences(more, kept, 1e-9) == ["t.d is missing"]
