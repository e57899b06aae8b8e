"""Models measured while they train."""

import re
import sys
import types

import pandas as pd
import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)

import normscope
from normscope.api import training
from normscope.errors import InputError
from normscope.reporting.tracker import log_to_active_run

TEXTS = ["the old river", "a cat sees it, and walks"]
METRIC = "mixing/attnresln_n/mean"


@pytest.fixture
def train(tokenizer, tmp_path):
    """Trains a tiny classifier for seven steps; returns the trainer."""

    def train(*callbacks, resume=None, steps=7, **arguments):
        torch.manual_seed(0)
        shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
        model = BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), **shape))
        examples = [
            {"input_ids": tokenizer(text)["input_ids"], "labels": number % 2} for number, text in enumerate(TEXTS * 8)
        ]
        given = {"output_dir": str(tmp_path / "out"), "report_to": [], "use_cpu": True, "save_strategy": "no"}
        given |= {"disable_tqdm": True, "per_device_train_batch_size": 1, "learning_rate": 0.05, "max_steps": steps}
        trainer = Trainer(
            model, TrainingArguments(**given | arguments), train_dataset=examples, callbacks=list(callbacks)
        )
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    return train


def callback(tokenizer, **options):
    return normscope.Callback("mixing", texts=TEXTS, tokenizer=tokenizer, **{"every": 3} | options)


@pytest.mark.slow
def test_every_measurement_is_that_of_the_model_at_its_step(train, tokenizer, monkeypatch, tmp_path):
    """And goes to the active run of W&B."""
    logged = []
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(run=object(), log=logged.append))
    measured = callback(tokenizer, name="held out")
    trainer = train(measured)
    history = measured.history
    assert [row["train/global_step"] for row in logged] == [0, 3, 6, 7]
    for row in logged:
        expected = history[history["step"] == row["train/global_step"]]
        named = {
            f"held out/{metric}" + ("" if layer is pd.NA else f"/layer {layer}"): value
            for _, metric, layer, value in expected.itertuples(index=False)
        }
        assert named == {name: value for name, value in row.items() if name != "train/global_step"}
    assert list(history) == ["step", "metric", "layer", "value"]
    assert sorted(set(history["step"])) == [0, 3, 6, 7]
    afterwards = normscope.run("mixing", model=trainer.model, tokenizer=tokenizer, texts=TEXTS)
    last = history.query("step == 7")
    whole = last[last["layer"].isna()].set_index("metric")["value"]
    assert whole.to_dict() == afterwards.metrics
    curves = afterwards.tables["curves"]
    by_layer = last.dropna(subset="layer").set_index(["metric", "layer"])["value"]
    assert by_layer.to_dict() == curves.set_index(["curve", "layer"])["value"].to_dict()
    assert history[history["layer"].isna() & (history["metric"] == METRIC)]["value"].nunique() == 4, (
        "the model does not train"
    )
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "out/held out.csv", dtype={"layer": "Int64"}), history)


@pytest.mark.parametrize("precision", [{}, {"bf16": True}])
@pytest.mark.slow
def test_training_goes_on_as_if_nothing_had_happened(train, tokenizer, precision):
    """Dropout draws from the same generator, and mixed precision stays on."""
    measured = train(callback(tokenizer), **precision).model
    undisturbed = train(**precision).model
    assert measured.training
    for name, value in undisturbed.state_dict().items():
        assert torch.equal(value, measured.state_dict()[name]), name
    assert ("forward" in vars(measured)) == bool(precision) == ("forward" in vars(undisturbed))


@pytest.mark.slow
def test_resumed_training_continues_the_history(train, tokenizer, tmp_path):
    """What was measured after the checkpoint is measured again."""
    whole = callback(tokenizer)
    train(whole, save_strategy="steps", save_steps=4)
    resumed = callback(tokenizer)
    train(resumed, resume=str(tmp_path / "out/checkpoint-4"), save_strategy="steps", save_steps=4)
    pd.testing.assert_frame_equal(resumed.history, whole.history)


@pytest.mark.slow
def test_the_embeddings_are_not_the_whole_model(train, tokenizer, monkeypatch):
    """Curves of hidden vectors begin with layer 0, the output of the embeddings."""
    logged = []
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(run=object(), log=logged.append))
    measured = normscope.Callback("outliers", texts=TEXTS, tokenizer=tokenizer, every=9, dimensions=[3])
    train(measured, steps=1)
    history = measured.history[measured.history["step"] == 0]
    layers = history[history["metric"] == "outliers/mean/3"]["layer"].tolist()
    assert layers == [0, 1, 2]
    assert {f"normscope/outliers/mean/3/layer {layer}" for layer in layers} < logged[0].keys()
    assert history[history["metric"] == "outliers/count"]["layer"].isna().all()


def test_wandb_may_still_be_being_imported(monkeypatch):
    """By the thread of a tracker that starts."""
    monkeypatch.setitem(sys.modules, "wandb", types.ModuleType("wandb"))
    log_to_active_run({"mixing/attn_w/mean": 0.5}, 3)


@pytest.mark.slow
def test_a_figure_has_a_line_for_each_layer(train, tokenizer, tmp_path):
    measured = callback(tokenizer)
    with pytest.raises(InputError, match="nothing has been measured"):
        measured.figure(METRIC)
    train(measured, steps=1)
    assert set(measured.figure(METRIC).description.table["layer"]) == {1, 2}
    measured.figure(METRIC).save(tmp_path / "figure.png")
    assert measured.figure(METRIC).description.y_label == "mixing ratio (attention block, AttnResLn-N)"
    whole = measured.figure("mixing/attnresln_n/max").description
    assert set(whole.table["layer"]) == {"whole model"}
    assert whole.y_label == "largest mixing ratio (attention block, AttnResLn-N)"
    assert measured.figure(METRIC, "ours").description.y_label == "ours"
    with pytest.raises(InputError, match="expected one of .*mixing/attn_w"):
        measured.figure("mixing")


class Damage(TrainerCallback):
    """Fills a weight after some step."""

    def __init__(self, step, value):
        self.step, self.value = step, value

    def on_step_end(self, _args, state, _control, *, model, **_kwargs):
        if state.global_step == self.step:
            model.bert.encoder.layer[1].attention.self.key.weight.data.fill_(self.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.slow
def test_training_goes_on_when_weights_are_no_numbers_any_more(train, tokenizer, caplog, tmp_path, value):
    """The step is left out with a warning, and training is what it would be alone."""
    measured = callback(tokenizer)
    model = train(Damage(5, value), measured).model
    undisturbed = train(Damage(5, value)).model
    for name, expected in undisturbed.state_dict().items():
        assert torch.equal(model.state_dict()[name].nan_to_num(), expected.nan_to_num()), name
    assert sorted(set(measured.history["step"])) == [0, 3]
    assert [record.message.partition(" is ")[0] for record in caplog.records] == [
        "normscope: step 6",
        "normscope: step 7",
    ]
    assert all("NaN or infinity in the weight " in record.message for record in caplog.records)
    pd.testing.assert_frame_equal(
        pd.read_csv(tmp_path / "out/normscope.csv", dtype={"layer": "Int64"}), measured.history
    )


@pytest.mark.parametrize(
    ("options", "error"),
    [({"categories": ["mask"]}, "categories=\\[mask]: no token"), ({"layers": [9]}, "layers=\\[9]: expected")],
)
@pytest.mark.slow
def test_training_goes_on_where_nothing_can_be_measured(train, tokenizer, caplog, options, error):
    measured = callback(tokenizer, **options)
    model = train(measured).model
    for name, expected in train().model.state_dict().items():
        assert torch.equal(model.state_dict()[name], expected), name
    assert measured.history.empty
    assert len(caplog.records) == 4
    assert all(re.search(f"is not measured: {error}", record.message) for record in caplog.records)
    with pytest.raises(InputError, match="nothing has been measured"):
        measured.figure(METRIC)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, MemoryError])  # torch's on a GPU, and NumPy's
def test_training_goes_on_without_memory_for_a_measurement_or_a_place_for_its_history(
    train, tokenizer, caplog, monkeypatch, tmp_path, kind
):
    run = training.run
    given = iter([True, False, True, True])

    def sometimes(*args, **kwargs):
        if next(given):
            return run(*args, **kwargs)
        raise kind("out of memory")

    monkeypatch.setattr(training, "run", sometimes)
    (tmp_path / "taken").write_text("")
    measured = callback(tokenizer, name="taken")
    monkeypatch.setattr(measured, "_path", lambda _args: tmp_path / "taken" / "history.csv")
    train(measured)
    assert sorted(set(measured.history["step"])) == [0, 6, 7]
    messages = [record.message for record in caplog.records]
    assert "taken: step 3 is not measured: out of memory" in messages
    assert sum("is only in memory: " in message for message in messages) == 3


def test_a_bug_of_ours_keeps_its_traceback(train, tokenizer, monkeypatch):
    monkeypatch.setattr(training, "run", lambda *_args, **_kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(callback(tokenizer))


def test_only_the_main_process_measures(tokenizer, tmp_path):
    measured = callback(tokenizer)
    elsewhere = TrainerState(is_world_process_zero=False)
    measured.on_train_begin(TrainingArguments(str(tmp_path), use_cpu=True), elsewhere, None, model=torch.nn.Identity())
    assert measured.history.empty


def test_bad_arguments_and_split_models_are_refused(tokenizer, tmp_path):
    for options, message in (
        ({"every": 0}, "every=0: expected a positive number of steps"),
        ({"every": True}, "every: expected a whole number, got True"),
        ({"texts": 5}, "texts: expected a str, .*, got 5"),
        ({"texts": []}, "texts: expected at least one text, got none"),
        ({"texts": ["a", 3]}, "expected a str, a pair .*; got int"),
        ({"analyses": "mixin"}, "analyses='mixin': expected one or more of .*; did you mean mixing?"),
        ({"analyses": ["mixing", "outliers"], "treshold": 3}, "treshold=3: no such option .*; did you mean threshold?"),
        ({"name": "a/b"}, "name='a/b': expected a file's name without a folder"),
    ):
        with pytest.raises(InputError, match=message):
            normscope.Callback(**{"analyses": "mixing", "texts": TEXTS, "tokenizer": tokenizer} | options)
    measured = callback(tokenizer)
    arguments = TrainingArguments(str(tmp_path), use_cpu=True)
    (tmp_path / "normscope.csv").write_text("not,a,history\n")
    with pytest.raises(InputError, match="expected the history of an earlier training"):
        measured.on_train_begin(arguments, TrainerState(global_step=3), None, model=torch.nn.Identity())
    arguments.fsdp = ["full_shard"]
    with pytest.raises(InputError, match="whole in one process"):
        measured.on_train_begin(arguments, TrainerState(), None, model=torch.nn.Identity())
