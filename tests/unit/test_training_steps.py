"""Training steps of checkpoints, and the order of a training's folders."""

import json
import os

import pytest

from normscope.config.training_step import checkpoints, step_in, training_step, without_step
from normscope.errors import InputError

OPTIONS = {"step": None, "revision": None, "name": "a/model", "random_init": False}


@pytest.mark.parametrize(
    ("text", "step", "rest"),
    [
        ("step1000", 1000, ""),
        ("step0", 0, ""),
        ("step1000-tokens4B", 1000, ""),
        ("stage1-step1000-tokens5B", 1000, "stage1"),
        ("google/multiberts-seed_0-step_20k", 20_000, "google/multiberts-seed_0"),
        ("google/multiberts-seed_0-step_2M", 2_000_000, "google/multiberts-seed_0"),
        ("/path/run/checkpoint-500", 500, "/path/run"),
        ("/path/run/checkpoint-500/", 500, "/path/run"),
        ("run/step-10/model", 10, "run/model"),
        ("/path/run/checkpoints/checkpoint-500", 500, "/path/run"),
        ("runs/global_step300", 300, "runs"),
        ("iter_0001000", 1000, ""),
        ("main", None, "main"),
        ("stepwise-model", None, "stepwise-model"),
        ("footstep5", None, "footstep5"),
        ("bert-base-uncased", None, "bert-base-uncased"),
        ("/data/step9/run/final", None, None),
        (None, None, None),
    ],
)
def test_steps_are_read_from_revisions_and_names(text, step, rest):
    assert step_in(text) == step
    if rest is not None:
        assert without_step(text) == rest


def test_what_says_the_step_first_wins(tmp_path):
    state = {"global_step": 700, "log_history": [{"loss": float("nan")}]}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    assert training_step(OPTIONS | {"step": 5, "revision": "step6"}, tmp_path) == 5
    assert training_step(OPTIONS | {"revision": "step6", "name": "run/checkpoint-7"}, tmp_path) == 6
    assert training_step(OPTIONS | {"revision": "main", "name": "run/checkpoint-7"}, tmp_path) == 7
    assert training_step(OPTIONS, tmp_path) == 700
    assert training_step(OPTIONS, None) is None
    assert training_step(OPTIONS | {"random_init": True, "revision": "step6"}, tmp_path) is None, (
        "not that model's weights"
    )


OTHERS = ["", "[]", "{}", "[" * 10**6, '{"global_step": true}', '{"global_step": "x"}', '{"global_step": -1}']


@pytest.mark.parametrize(
    "make",
    [
        *(lambda path, content=content: path.write_text(content) for content in OTHERS),
        os.mkfifo,
        lambda path: path.symlink_to("/dev/zero"),
    ],
)
def test_other_files_of_that_name_say_nothing(make, tmp_path):
    make(tmp_path / "trainer_state.json")
    assert training_step(OPTIONS, tmp_path) is None


def test_checkpoints_are_in_the_order_of_their_steps(tmp_path):
    names = ["checkpoint-1000", "checkpoint-20", "checkpoint-3", "checkpoint-best"]
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-5").write_text("a file")
    found = checkpoints(f"{tmp_path}/checkpoint-*")
    assert [folder.name for folder in found] == ["checkpoint-3", "checkpoint-20", "checkpoint-1000", "checkpoint-best"]
    for number in (10, 9):
        (tmp_path / f"epoch{number}").mkdir()
    assert [folder.name for folder in checkpoints(f"{tmp_path}/epoch*")] == ["epoch9", "epoch10"]
    with pytest.raises(InputError, match=r"model.checkpoints=.*none: expected a pattern of folders"):
        checkpoints(f"{tmp_path}/none")
