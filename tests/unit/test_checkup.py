"""A checkup: what is measured, against brute force and cases by hand, and what it says and writes."""

import copy
import functools
import math
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from normscope.checkup import findings
from normscope.checkup.against import differences, require_same_shape, weights_changed
from normscope.checkup.figures import part_of
from normscope.checkup.heads import HeadOutputs, alike_heads, head_names, idle_heads
from normscope.checkup.linear_inputs import LinearInputs
from normscope.checkup.passes import LinearCall, Passes, Returned
from normscope.checkup.rounding_cost import Rounding, SkipList, costs, distance, summary_of
from normscope.cli import command_line
from normscope.errors import InputError
from normscope.maths.quantisation import NumberFormat, rounded
from normscope.models.load.interventions import InterventionRunner
from normscope.results.findings import Sentence
from normscope.streams import no_bar
from tests.oracles import specimens
from tests.oracles.specimens import Specimen

NOTHING = torch.tensor([], dtype=torch.int64)
WEIGHT = torch.ones(1, 2)


def test_int8_has_one_scale_or_one_for_each_token():
    inputs = torch.tensor([[127.0, 1.4, -0.6], [12.7, 1.4, -0.6]])
    largest = torch.tensor([127.0, 1.4, 0.6])
    per_tensor = rounded(inputs, NumberFormat.int8_per_tensor, NOTHING, largest)
    assert per_tensor.tolist() == [[127, 1, -1], [13, 1, -1]]
    per_token = rounded(inputs, NumberFormat.int8_per_token, NOTHING, largest)
    torch.testing.assert_close(per_token, torch.tensor([[127, 1, -1], [12.7, 1.4, -0.6]]))


def test_what_exceeds_the_scale_is_cut_off_and_zeros_stay_zeros():
    inputs, largest = torch.tensor([[254.0, -300.0]]), torch.tensor([127.0, 127.0])
    assert rounded(inputs, NumberFormat.int8_per_tensor, NOTHING, largest).tolist() == [[127, -127]]
    for target in NumberFormat:
        assert rounded(torch.zeros(1, 2), target, NOTHING, torch.zeros(2)).tolist() == [[0, 0]]


def test_dimensions_that_are_kept_do_not_count_for_the_scale():
    inputs, largest, kept = torch.tensor([[1270.3, 12.7, 1.01]]), torch.tensor([1270.3, 12.7, 1.01]), torch.tensor([0])
    for target in (NumberFormat.int8_per_tensor, NumberFormat.int8_per_token):
        expected = torch.tensor([[1270.3, 12.7, 1.0]])
        torch.testing.assert_close(rounded(inputs, target, kept, largest), expected)
        torch.testing.assert_close(rounded(inputs, target, kept), expected)


def test_weights_have_one_scale_or_one_for_each_row_and_bfloat16_keeps_eight_bits():
    weights = torch.tensor([[127.0, 1.4], [1.27, 0.014]])
    assert rounded(weights, NumberFormat.int8_per_tensor, NOTHING).tolist() == [[127, 1], [1, 0]]
    by_row = rounded(weights, NumberFormat.int8_per_token, NOTHING)
    torch.testing.assert_close(by_row, torch.tensor([[127.0, 1.0], [1.27, 0.01]]))
    assert rounded(torch.tensor([[257.0, 1.0]]), NumberFormat.bfloat16, NOTHING).tolist() == [[256, 1]]


def test_inputs_of_linear_layers_by_hand():
    inputs = LinearInputs()
    for values, layer in (([[[1.0, -5.0], [3.0, 2.0], [4.0, 0.0]]], 1), ([[[9.0, 1.0]]], 2)):
        vectors = torch.tensor(values)
        assert inputs(LinearCall("a.0.up", layer, vectors, WEIGHT)) == (vectors, WEIGHT)
    inputs(LinearCall("out", None, torch.tensor([[[5e5, 200.0], [200.0, 200.0], [1.0, 1.0]]]), WEIGHT))
    table = inputs.table()
    assert table["module"].tolist() == ["out", "a.0.up"]
    row = table.iloc[1]  # medians of the texts: 3, without the zero, and 1, the lower of two
    assert (row["layer"], row["largest"], row["dimension"], row["median"], row["ratio"]) == (1, 9, 0, 2, 4.5)
    assert table["massive"].tolist() == [True, False]
    assert pd.isna(table["layer"][0])


def test_the_zeros_of_a_relu_and_inputs_that_are_all_zero_are_not_massive():
    inputs = LinearInputs()
    inputs(LinearCall("relu", 1, torch.tensor([[[0.0, 0.0, 0.0, 2.0], [0.0, 0.0, 0.0, 3.0]]]), WEIGHT))
    inputs(LinearCall("zeros", 1, torch.zeros(1, 2, 4), WEIGHT))
    table = inputs.table().set_index("module")
    assert table["median"].to_dict() == {"relu": 2, "zeros": 0}
    assert table["ratio"].to_dict() == {"relu": 1.5, "zeros": 0}
    assert not table["massive"].any()


class Cases:
    """A tiny model, with its texts one by one."""

    def __init__(self, specimen: Specimen) -> None:
        self.specimen = specimen
        self.runner = InterventionRunner(specimen.loaded, specimen.encoder, [1, 2, 3], 45)
        self.passes = Passes(self.runner)
        self.batches = [batch.part(row, row + 1) for batch in specimen.batches for row in range(batch.sequences)]
        self.inputs = LinearInputs()
        for batch in self.batches:
            self.passes.run(batch, self.inputs)

    def rounding(self, target: NumberFormat, skipped: SkipList = SkipList(), layer: int | None = None) -> Rounding:  # noqa: B008
        return Rounding(target, self.inputs.largest, self.specimen.loaded.facts.width, skipped, layer)


@pytest.fixture(scope="module")
def qwen2() -> Cases:
    return Cases(specimens.qwen2())


@pytest.fixture(scope="module")
def bert() -> Cases:
    return Cases(specimens.bert())


def test_a_pass_gives_the_loss_and_the_last_vectors_of_the_untouched_model(qwen2, bert):
    for cases in (qwen2, bert):
        for batch in cases.batches:
            unchanged = cases.runner.unchanged(batch, lambda _block: None).loss
            outcome = cases.passes.run(batch)
            assert outcome.loss == (unchanged.total / unchanged.tokens if unchanged.tokens else None)
    vectors = qwen2.specimen.loaded.model(**qwen2.batches[0].model_inputs()).last_hidden_state
    assert torch.equal(qwen2.passes.run(qwen2.batches[0]).vectors, vectors)
    assert "model.layers.2.mlp.down_proj" in qwen2.inputs.largest
    assert "lm_head" not in qwen2.passes.linear


@pytest.mark.parametrize("target", NumberFormat)
def test_rounding_is_that_of_a_model_whose_linear_layers_round(qwen2, target):
    """Brute force: a copy with rounded weights, and inputs that a hook rounds."""
    skipped = SkipList(["model.layers.1.mlp.down_proj"], [3, 5])
    copied = copy.deepcopy(qwen2.passes.whole)
    for name, module in copied.model.named_modules():
        full = f"model.{name}"
        if not isinstance(module, nn.Linear) or full in skipped.modules:
            continue
        kept = torch.tensor([3, 5]) if module.in_features == 16 else NOTHING
        largest = qwen2.inputs.largest[full]
        module.weight.data = rounded(module.weight.data, target, kept)
        module.register_forward_pre_hook(
            lambda _module, args, kept=kept, largest=largest: (rounded(args[0], target, kept, largest),)
        )
    for batch in qwen2.batches:
        expected = copied(**batch.model_inputs())
        found = qwen2.passes.run(batch, qwen2.rounding(target, skipped))
        loss = nn.functional.cross_entropy(expected.logits[0, :-1], batch.input_ids[0, 1:])
        assert found.loss == pytest.approx(float(loss))
        assert found.loss != qwen2.passes.run(batch).loss


def test_the_cost_of_a_layer_is_that_of_whole_passes(qwen2, bert):
    for cases in (qwen2, bert):
        variants = [
            ({"layer": layer, "format": target}, functools.partial(cases.rounding, target, layer=layer))
            for layer in (1, 2, 3)
            for target in NumberFormat
        ]
        table = costs(cases.passes, cases.batches, variants, no_bar, "")
        assert len(table) == 3 * len(NumberFormat)
        before = [cases.passes.run(batch) for batch in cases.batches]
        for row in table.to_dict("records"):
            around = cases.rounding(NumberFormat(row["format"]), layer=row["layer"])
            expected = summary_of(before, [cases.passes.run(batch, around) for batch in cases.batches])
            assert {name: row[name] for name in expected} == pytest.approx(expected, nan_ok=True)
            assert row["change"] > 0


def test_costs_are_means_over_texts_with_intervals():
    vectors = torch.tensor([[[3.0, 4.0], [1.0, 0.0]]])
    moved = torch.tensor([[[3.0, 9.0], [1.0, 0.5]]])
    assert distance(moved, vectors) == pytest.approx(0.75)
    before = [Returned(loss, vectors) for loss in (1.0, 2.0, 3.0, 4.0, 5.0)]
    after = [Returned(loss, moved) for loss in (2.0, 2.0, 4.0, 4.0, 6.0)]
    row = summary_of(before, after)
    assert (row["loss_before"], row["loss"], row["loss_change"], row["change"]) == pytest.approx((3, 3.6, 0.6, 0.75))
    half = 2.776445105 * math.sqrt(0.3 / 5)  # Student's t of 4 degrees of freedom
    assert (row["loss_low"], row["loss_high"]) == pytest.approx((0.6 - half, 0.6 + half))
    without = summary_of([Returned(None, vectors)] * 5, [Returned(None, moved)] * 5)
    assert all(math.isnan(without[name]) for name in without if name.startswith("loss"))


@pytest.mark.parametrize("name", ["qwen2", "bert"])
def test_heads_by_brute_force(name):
    cases = Cases(getattr(specimens, name)())
    heads, outputs = HeadOutputs(), {}
    for batch in cases.specimen.batches:

        def visit(block):
            heads.update(block)
            of_heads = torch.einsum("bhqk,bhkm->bqhm", block.weights, block.transformed())
            outputs.setdefault(block.layer, []).append(of_heads[block.token_mask].numpy())

        cases.runner.observe(batch, visit)
    table = heads.table().set_index(["layer", "head"])
    for layer, parts in outputs.items():
        centred = np.concatenate(parts) - np.concatenate(parts).mean(axis=0)
        energy = (centred**2).sum(axis=(0, 2))
        for head in range(len(energy)):
            row = table.loc[layer, head + 1]
            assert row["share"] == pytest.approx(energy[head] / energy.sum())
            own = np.concatenate(parts)[:, head]
            assert row["constant"] == pytest.approx((own.mean(axis=0) ** 2).sum() / (own**2).sum(axis=1).mean())
            others = [
                (centred[:, head] * centred[:, other]).sum() / math.sqrt(energy[head] * energy[other])
                for other in range(len(energy))
            ]
            others[head] = -np.inf
            assert row["twin"] == np.argmax(others) + 1
            assert row["correlation"] == pytest.approx(max(others))


def test_heads_that_do_nothing_and_heads_that_do_the_same():
    """Head 1 adds the same vector to both tokens, heads 2 and 3 add the same up to a constant, head 4 something else."""
    outputs = torch.tensor(
        [[[5.0, 5.0], [5.0, 5.0]], [[1.0, 0.0], [3.0, 0.0]], [[9.0, 1.0], [13.0, 1.0]], [[0.0, 2.0], [0.0, 1.0]]]
    )
    block = SimpleNamespace(
        layer=2,
        value=outputs[None],
        weights=torch.eye(2).expand(1, 4, 2, 2),
        token_mask=torch.ones(1, 2, dtype=torch.bool),
        parameters=SimpleNamespace(output_weight=torch.eye(2).expand(4, 2, 2)),
        gated=lambda vectors: vectors,
    )
    heads = HeadOutputs()
    heads.update(block)
    table = heads.table()
    assert table["share"].tolist() == pytest.approx([0, 4 / 21, 16 / 21, 1 / 21])
    assert idle_heads(table, 0.1) == [{"layer": 2, "head": 1}]
    assert idle_heads(table, 0.2) == [{"layer": 2, "head": 1}, {"layer": 2, "head": 4}]
    assert alike_heads(table, 0.99) == [{"layer": 2, "heads": [2, 3]}]
    assert head_names([*idle_heads(table, 0.2), {"layer": 3, "head": 5}]) == "layer 2: 1, 4; layer 3: 5"


def planted() -> Cases:
    """A model with one dimension of one network's input that is thousands of times the others."""
    specimen = specimens.qwen2()
    network = specimen.loaded.model.layers[1].mlp
    network.up_proj.weight.data[3] *= 3e5
    network.down_proj.weight.data[:, 3] *= 1e-5
    return Cases(specimen)


def test_what_is_skipped_because_of_its_inputs_helps_and_random_modules_do_not():
    cases = planted()
    table = cases.inputs.table()
    assert table["module"][0] == "model.layers.1.mlp.down_proj"
    assert table["massive"].tolist()[:2] == [True, False]
    assert table["dimension"][0] == 3
    chosen = table.loc[table["massive"], "module"].tolist()
    target = NumberFormat.int8_per_tensor
    lists = {"all": SkipList(), "chosen": SkipList(chosen)}
    lists |= {name: SkipList([name]) for name in cases.inputs.largest if name not in chosen}
    variants = [({"rounded": name}, functools.partial(cases.rounding, target, each)) for name, each in lists.items()]
    cost = costs(cases.passes, cases.batches, variants, no_bar, "").set_index("rounded")["change"]
    saved = cost["all"] - cost.drop("all")
    assert saved["chosen"] > 10 * saved.drop("chosen").max()


def test_differences_from_a_base(qwen2):
    changed = specimens.qwen2()
    for parameter in changed.loaded.model.layers[2].parameters():
        parameter.data *= 1.25
    table = differences(Cases(changed).passes, qwen2.passes, qwen2.batches)
    assert table["weights"].tolist() == pytest.approx([0, 0, 0.25])
    assert table["vectors"].tolist()[:2] == [0, 0]
    distances = []
    for batch in qwen2.batches:
        ours, theirs = (_before_norm(each, batch) for each in (changed, qwen2.specimen))
        distances.append(distance(ours, theirs))
    assert table["vectors"][2] == pytest.approx(np.mean(distances))
    assert weights_changed(nn.Linear(2, 2), nn.Linear(2, 2)) > 0


def _before_norm(specimen, batch):
    kept = []
    hook = specimen.loaded.model.norm.register_forward_pre_hook(lambda _module, args: kept.append(args[0]))
    specimen.loaded.model(**batch.model_inputs())
    hook.remove()
    return kept[0]


def test_a_base_of_another_shape_is_refused(qwen2, bert):
    require_same_shape(qwen2.specimen.loaded, qwen2.specimen.loaded)
    with pytest.raises(InputError, match="^--against=tiny: expected a model of the same shape .qwen2, 3 layers of 16"):
        require_same_shape(qwen2.specimen.loaded, bert.specimen.loaded)


def test_a_base_with_other_tokens_or_weights_of_other_shapes_is_refused(qwen2):
    other = specimens.qwen2().loaded
    mlp = other.model.layers[0].mlp
    mlp.up_proj.weight = nn.Parameter(torch.zeros(7, 16))
    with pytest.raises(InputError, match=r"same shape \(layers.0.mlp.up_proj.weight: \d+ × 16\), got 7 × 16"):
        require_same_shape(qwen2.specimen.loaded, other)
    other = specimens.qwen2().loaded
    other.tokenizer.add_tokens(["brandnew"])
    with pytest.raises(InputError, match="expected a model with the tokenizer of tiny, got one .* .'brandnew'."):
        require_same_shape(qwen2.specimen.loaded, other)


def asked(*words: str) -> list[str]:
    found, rest = command_line.asked_of(["checkup", *words])
    return command_line.checkup_words(found, rest, _Presets())


class _Presets:
    def __truediv__(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(is_file=lambda: name == "minilm.yaml")


def test_a_model_is_a_preset_or_a_name():
    assert asked("minilm")[0] == "model=minilm"
    assert asked("some/model", "--against", "other", "dataset=text")[0] == 'model.name="some/model"'
    assert asked("some/model", "dataset=text")[-1] == "dataset=text"
    assert command_line.asked_of(["checkup", "a", "--against", "b"])[0].against == "b"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "expected a preset, a Hub name or a folder of a model; for example, "),
        (["model=gpt2"], "expected a preset, a Hub name or a folder of a model, got model=gpt2"),
        (["minilm", "model.name=x"], "checkup minilm and model.name=x are both set"),
        (["minilm", "-m"], "expected one model, got a sweep"),
    ],
)
def test_bad_words(words: Sequence[str], message: str):
    with pytest.raises(InputError, match=message):
        asked(*words)


def rounding(losses: dict[str, float], *, low: float = 0.1) -> pd.DataFrame:
    rows = [
        {"rounded": name, "change": 0.2, "loss_before": 4.17, "loss": loss, "loss_change": loss - 4.17}
        | {"loss_low": loss - 4.17 - low, "loss_high": loss - 4.17 + low}
        for name, loss in losses.items()
    ]
    return pd.DataFrame(rows)


LOSSES = {
    "bfloat16": 4.17,
    "int8_per_tensor": 4.94,
    "int8_per_token": 4.36,
    "without_skipped": 4.30,
    "without_random_1": 4.93,
    "without_random_2": 4.95,
}


def test_a_skip_list_that_helps_is_to_be_used_and_one_that_does_not_is_not():
    line = findings._skipped(rounding(LOSSES), ["a"] * 4, [247, 507])
    assert line.found == (
        "In int8, one scale per tensor, the loss on held-out data goes from 4.17 to 4.94; without rounding 4 linear layers and "
        "dimensions 247 and 507, to 4.30 (as many random ones: 4.93 to 4.95)."
    )
    assert line.do == 'Add "skip" of checkup.json to what your quantiser skips, or use one scale per token (4.36).'
    line = findings._skipped(rounding(LOSSES | {"without_skipped": 4.92}), ["a"] * 4, [247, 507])
    assert line.found.endswith("to 4.92 (as many random ones: 4.93 to 4.95), so that the list does not help.")
    assert line.do == "Use one scale per token (4.36)."
    line = findings._skipped(rounding(LOSSES | {"without_skipped": 4.95, "int8_per_token": 4.95}), ["a"], [])
    assert "without rounding 1 linear layer, to 4.95" in line.found
    assert line.do == "Weigh that against what it saves."
    line = findings._skipped(rounding(LOSSES | {"int8_per_token": 4.95}), ["a"], [])
    assert line.do == 'Add "skip" of checkup.json to what your quantiser skips.'


def test_formats_that_cost_nothing_detectable_can_be_used():
    per_token, bfloat16 = findings._formats(rounding(LOSSES))
    assert per_token.found.endswith("change by 20%, and the loss by +0.19 (+0.090 to +0.29).")
    assert per_token.do == "Weigh that against what it saves."
    assert bfloat16.found.endswith("and there is no detectable difference in loss.")
    assert bfloat16.do == "It can be used as it is."


def test_where_a_tuned_model_differs():
    table = pd.DataFrame({"layer": [1, 2, 3, 4], "weights": [0.07, 0.08, 0.15, 0.17], "vectors": 0.3})
    line = findings._against(table, "base")
    assert line.found == (
        "Compared with base, the weights of layers have changed by 7.0% to 17.0%, most in layers 3, 4; hidden vectors differ "
        "by 30% after the last layer."
    )
    line = findings._against(table.assign(weights=[0.012, 0.013, 0.015, 0.017]), "base")
    assert "1.2% to 1.7%, everywhere alike" in line.found


def test_modules_of_all_layers_share_a_name():
    assert part_of("model.layers.11.mlp.down_proj") == "mlp.down_proj"
    assert part_of("transformer.layer.0.ffn.lin1") == "ffn.lin1"


def metrics(**more: float) -> dict[str, float]:
    found = {"score/share_of_outliers/mean": 0.33, "sinks/ablation/zero/loss/before": 4.0}
    return found | {"sinks/ablation/zero/loss/after": 17.0, "sinks/ablation/mean/loss/after": 4.05} | more


SAID = Sentence("The analysis's own words.", figure="sinks_rate", place={"category": "first"})


def test_outlier_dimensions_and_what_they_decide():
    line = findings._outliers(SAID, metrics(), [247, 507], helps=True)
    assert line.found == "The analysis's own words. Their share of the variance of attention scores is 33%."
    assert line.do == "Do not prune them, and keep them in a wider format when you quantise."
    assert findings._outliers(SAID, metrics(), [247, 507], helps=False).do == "Do not prune them."
    assert findings._outliers(SAID, metrics(), [], helps=False).do == "Nothing has to be kept apart."


def test_sinks_by_weight_and_by_contribution():
    by_head = pd.DataFrame({"position": ["first", "first", "other"], "bos": [True, False, True], "mass": [0.4, 0, 0.9]})
    by_head = by_head.assign(sink_rate=[0.65, 0, 0], contribution=[0.25, 0, 0])
    line = findings._sinks(SAID, by_head, causal=True)
    assert line.found == SAID
    assert line.do.startswith("Keep it in the cache when you cut the beginning of a text, and read maps")
    assert findings._sinks(SAID, by_head, causal=False).do.startswith("Keep it in every input, and")
    assert findings._sinks(SAID, by_head.assign(contribution=0.5), causal=False).do == "Keep it in every input."
    assert findings._sinks(SAID, by_head.assign(sink_rate=0.04), causal=True).do == "Inputs can be cut anywhere."
    commas = SAID.but(place={"category": "other"})
    line = findings._sinks(commas, by_head.assign(sink_rate=0.5), causal=True)
    assert line.do.startswith("Keep them in every input, and")


def test_massive_activations_that_are_a_constant():
    table = pd.DataFrame({"dimension": [507, 247, 507]})
    line = findings._massive(SAID, metrics(), table)
    assert line.found == "The analysis's own words. Set to their mean, it is 4.0."
    assert line.do == (
        "Do not clip or prune dimensions 247 and 507; where their range is in the way, replace them by their mean, which is a "
        "constant."
    )
    other = findings._massive(SAID, metrics(**{"sinks/ablation/mean/loss/after": 9.0}), table)
    assert other.do == "Do not clip or prune dimensions 247 and 507."
    assert findings._massive(SAID, metrics(), table[:0]).do == "Nothing has to be done about them."


def test_linear_layers_with_massive_inputs_are_named():
    table = pd.DataFrame({"module": ["a.down", "b.down", "c.up"], "ratio": [49000.0, 13000.0, 20.0]})
    line = findings._linear_inputs(table.assign(massive=[True, True, False]))
    assert line.found == (
        "The inputs of 2 of 3 linear layers have values of more than 1,000 times the median: a.down (49,000) and b.down "
        "(13,000)."
    )
    line = findings._linear_inputs(table.assign(massive=False))
    assert line.found == "No linear layer has massive inputs: the largest is 49,000 times the median, in a.down."


def test_the_layer_that_costs_most():
    rows = [
        {"layer": layer, "format": target, "change": change, "loss_change": loss}
        for layer, change, loss in ((1, 0.1, 0.001), (2, 0.2, 0.27), (3, 0.3, 0.005))
        for target in ("int8_per_tensor", "bfloat16")
    ]
    line = findings._by_layer(pd.DataFrame(rows))
    assert "layer 2 alone adds most to the loss: 0.27; half of the layers stay below 0.005" in line.found
    line = findings._by_layer(pd.DataFrame(rows).assign(loss_change=math.nan))
    assert "layer 3 alone changes the last hidden vectors most: 30%; half of the layers stay below 20%" in line.found


def test_heads_are_named_by_layer():
    shares = {"head": [1, 2, 3], "share": [0.01, 0.5, 0.49], "correlation": [0.2, 0.95, 0.95]}
    table = pd.DataFrame(shares).assign(layer=1, twin=pd.array([2, 3, 2], dtype="Int64"))
    idle, alike = findings._idle(idle_heads(table), 3), findings._alike(alike_heads(table), 0.95)
    assert idle.found.endswith("less than a tenth of an equal share of the variance: layer 1: 1.")
    assert alike.found.endswith("(correlation 0.90 or more): 2 and 3 of layer 1.")
    other = table.assign(correlation=0.5, share=0.33)
    assert findings._alike(alike_heads(other), 0.5).found.endswith("at most, they correlate at 0.50.")
    assert findings._alike([], math.nan).found == "No two heads of a layer add the same vectors to tokens."
    assert findings._idle(idle_heads(other), 3).found == "None of 3 heads adds the same vector to every token."
