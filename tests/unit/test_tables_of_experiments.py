"""The tables of the experiments' READMEs: where they go, and what is written into them."""

import re
from types import SimpleNamespace

import pandas as pd
import pytest

from docs import atlas
from experiments.real_weights import tables
from experiments.real_weights.fetch import PACKAGES
from experiments.schwaller2021 import map_atoms
from normscope.results.findings import Sentence

MARKS = re.compile(r"<!-- table (\w+) -->\n.*?<!-- end -->", re.DOTALL)


def measured(metrics=None, sentences=(), **found):
    facts = {"seconds": 74.0, "sequences": 60, "model": "somewhere/tiny"}
    return SimpleNamespace(metrics=metrics or {}, facts=facts, sentences=list(sentences), tables=found)


def cells(text):
    """The rows of a Markdown table without its header, and the line below it."""
    lines = [line for line in text.splitlines() if line]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return rows[2:], lines[-1]


def test_a_table_is_replaced_and_the_rest_stays(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- table a -->\nold\n<!-- end -->\n<!-- table b -->\n<!-- end -->\nafter\n")
    tables.fill(readme, "a", "| new\\1 |\n")
    tables.fill(readme, "b", "| other |\n")
    assert readme.read_text() == (
        "before\n<!-- table a -->\n\n| new\\1 |\n\n<!-- end -->\n<!-- table b -->\n\n| other |\n\n<!-- end -->\nafter\n"
    )
    with pytest.raises(ValueError, match="expected one place for the table c, got 0"):
        tables.fill(readme, "c", "")


def test_every_place_of_a_table_is_filled_by_a_script():
    by_scripts = {("schwaller2021", "passes"), ("schwaller2021", "chosen"), ("whisper_heads", "heads")}
    places = {
        (readme.parent.name, name)
        for readme in tables.EXPERIMENTS.glob("*/README.md")
        for name in MARKS.findall(readme.read_text())
    }
    assert places == {*tables.TABLES} | by_scripts


def test_every_run_is_used_and_reads_a_model_that_is_fetched(tmp_path):
    runs = tables.runs(tmp_path)
    assert {source for _, sources in tables.TABLES.values() for source in sources} <= set(runs)
    folders = [word.rpartition("/")[2] for words in runs.values() for word in words if str(tmp_path) in word]
    for folder in set(folders) - {"reactions.txt"}:
        assert any(folder.startswith(name) for name in PACKAGES)


def test_an_unknown_experiment_is_one_line_and_others_are_left_alone(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("sys.argv", ["tables.py", "--weights", str(tmp_path), "gpt9"])
    assert tables.main() == 2
    assert capsys.readouterr().err.startswith("gpt9: expected one of cunningham2026")
    started = []
    monkeypatch.setattr(tables, "completed", lambda folder, words: started.append((folder.name, words[0])))
    monkeypatch.setattr("sys.argv", ["tables.py", "--weights", str(tmp_path), "sun2026"])
    assert tables.main() == 1
    assert started == [(f"sun2026_{place}", "experiment=sun2026_spikes") for place in ("after", "before")]
    assert capsys.readouterr().err == "failed: sun2026_after, sun2026_before\n"


def test_sink_rates_by_hand():
    metrics = {
        f"sinks/{inputs}/{bos}/sink_rate/first": 0.1 * (place + 3 * (bos == "with_bos"))
        for place, inputs in enumerate(tables.INPUTS)
        for bos in tables.BEGINS
    }
    metrics |= {"sinks/sink_rates/sequences": 60.0, "sinks/sink_rates/half_width": 0.012}
    rows, below = cells(tables.sink_rates(measured(metrics)))
    assert rows == [["without", "0.0%", "10.0%", "20.0%"], ["with", "30.0%", "40.0%", "50.0%"]]
    assert below == "60 sequences; the widest 95% interval of a sink rate or weight is ± 1.2%; 1 min 14 s."


def test_massive_activations_by_hand():
    found = pd.DataFrame(
        [[12, 247, 1, -900.0, 3.0, 1000.0, 16], [13, 247, 1, 800.0, 2.0, 2000.0, 16], [12, 507, 2, 20.0, 0.0, 5.0, 1]],
        columns=["layer", "dimension", "position", "value", "std", "ratio", "sequences"],
    )
    ablation = pd.DataFrame(
        {"value": ["zero", "mean"], "measure": "loss", "before": 4.0, "after": [16.05, 4.001], "sequences": 16}
        | {"controls_low": [-0.001, 0.0], "controls_high": [0.002, 0.0]}
    )
    rows, below = cells(tables.massive(measured(sinks_massive=found, sinks_ablation=ablation)))
    assert rows[0] == ["247", "12 to 13", "1", "−900 ± 3.00", "1,000", "16"]
    assert rows[1] == ["507", "12", "2", "20.0 ± 0", "5.00", "1"]
    assert below == (
        "In 16 texts, the loss is 4.00 nats; 16.05 with these activations set to zero, and 4.00 with their mean. As many "
        "random dimensions of the same tokens, set to zero, change it by −0.001 to +0.002. 1 min 14 s."
    )


def test_contributions_of_the_first_token_by_hand():
    """One layer of three heads: shares are ratios of sums over heads."""
    rows = [
        [head, category, alpha, alpha_f, share]
        for head, first, every in (
            (1, (0.95, 1.0, -0.1), (1.0, 2.0, 0.1)),
            (2, (0.75, 1.0, 0.2), (1.0, 4.0, 0.4)),
            (3, (0.1, 0.0, 0.0), (1.0, 4.0, 0.5)),
        )
        for category, (alpha, alpha_f, share) in (("first", first), ("all", every))
    ]
    by_head = pd.DataFrame(rows, columns=["head", "category", "alpha", "alpha_f", "share"]).assign(layer=1)
    said = Sentence("The first tokens receive more.", effect=0.4, interval=(0.3, 0.45))
    found, below = cells(tables.contributions(measured(sentences=[said], norms_by_head=by_head)))
    assert [line[1:] for line in found] == [
        ["3 of 3", "60.0%", "20.0%", "10.0%", "1"],
        ["2 of 3", "85.0%", "33.3%", "20.0%", "1"],
        ["1 of 3", "95.0%", "50.0%", "−100.0%", "1"],
    ]
    assert "is 40.0% (95% interval over texts 30.0% to 45.0%)" in below


def test_spikes_by_hand():
    metrics = {
        f"sinks/text/{bos}/{name}/first": 0.5 for bos in tables.BEGINS for name in ("sink_rate", "mass", "contribution")
    }
    metrics |= {"sinks/massive/count": 2.0, "sinks/massive/largest": 26688.0, "sinks/sink_rates/half_width": 0.02}
    ablation = pd.DataFrame(
        {"value": ["zero", "mean"], "measure": "weight_on_first", "before": 0.5, "after": [0.1, 0.49]}
    )
    without = {name: value for name, value in metrics.items() if "without_bos" in name}
    without |= {"sinks/massive/count": 0.0, "sinks/sink_rates/half_width": 0.01}
    rows, _ = cells(tables.spikes(measured(metrics, sinks_ablation=ablation), measured(without)))
    assert rows[0][1:] == [
        *("26,700 in 2 dimensions", "50.0%, 50.0%", "50.0%, 50.0%", "50.0%, 50.0%", "± 2.0%"),
        *("50.0% → 10.0%", "50.0% → 49.0%", "1 min 14 s"),
    ]
    assert rows[1][1:] == ["none", "50.0%", "50.0%", "50.0%", "± 1.0%", "", "", "1 min 14 s"]


def test_changes_of_pairs_by_hand():
    moved = pd.DataFrame(
        {
            "layer": [1, 2],
            "weights": [0.045, 0.153],
            "vectors": [0.5, 1.01],
            "vectors_low": [0.4, 0.95],
            "vectors_high": [0.6, 1.1],
        }
    )
    rows, _ = cells(tables.pairs(measured(against=moved), measured(against=moved[:1])))
    assert [line[1:] for line in rows] == [
        ["4.5% to 15.3%", "2", "101% (95% to 110%)"],
        ["4.5% to 4.5%", "1", "50% (40% to 60%)"],
    ]


def test_costs_of_rounding_by_hand():
    metrics = {
        f"sinks/text/with_bos/{name}/first": value
        for name, value in (("sink_rate", 0.66), ("mass", 0.45), ("contribution", 0.25))
    }
    metrics |= {"sinks/massive/largest": 26700.0, "sinks/massive/ratio": 15700.0}
    names = ["int8_per_tensor", "without_skipped", "without_random_1", "without_random_2"]
    rounding = pd.DataFrame({"rounded": names, "loss_before": 4.58, "loss": [5.65, 4.75, 5.64, 5.73]})
    rounding = rounding.assign(loss_change=rounding["loss"] - 4.58, loss_low=0.1, loss_high=1.2)
    ablation = pd.DataFrame({"value": ["zero", "mean"], "measure": "loss", "before": 4.1, "after": [16.0, 4.09]})
    rows, below = cells(tables.checked(measured(metrics, rounding=rounding, sinks_ablation=ablation)))
    assert [line[1] for line in rows] == [
        *("66%, 45%, 25%", "26,700, 15,700", "4.10, 16.00, 4.09", "4.58, 5.65, 4.75, 5.64 to 5.73"),
    ]
    assert below == (
        "The loss in int8 rises by 1.07 (0.10 to 1.20); with the skip list, by 0.17 (0.10 to 1.20) (95% intervals over texts)."
    )


def test_patches_by_hand():
    """Three patches of which one is at the border, and a [CLS]."""
    metrics = {f"sinks/text/with_bos/{name}/first": 0.05 for name in ("sink_rate", "mass", "contribution")}
    metrics |= {"mixing/attn_w/mean": 0.937, "mixing/attnres_n/mean": 0.414}
    categories = {"cls": (90.0, 99.0, 1.0, 1), "patch": (40.0, 50.0, 0.0, 2), "border": (70.0, 70.0, 1.0, 1)}
    returned = pd.DataFrame(
        [
            [place, category, *values]
            for place in ("before", "after")
            for category, values in {**categories, "all": (60.0, 99.0, 0.5, 4)}.items()
        ],
        columns=["place", "category", "mean", "max", "high", "count"],
    )
    rows, below = cells(tables.patches(measured(metrics, norms_returned=returned)))
    assert [line[1:] for line in rows] == [["50.0", "70.0", "33.3%", "3"]] * 2
    assert below.startswith("93.7% of the attention weight goes to other tokens, which make 41.4% of")


def test_rows_of_the_atlas_are_read_back():
    rows = [
        atlas.Row([name, "p", "a | b", "6 × 12, 384", "20"], [name, *"123456", "7", "1.9"]) for name in ("dinov2", "x")
    ]
    written = atlas.page(rows)
    assert atlas.rows_of(written) == {row.what[0]: row for row in rows}
    assert "| `experiments/dinov2_norms` |" in written


def test_atoms_by_pass_and_those_chosen_on_half_of_the_kinds():
    """Two kinds of three reactions each, one pass, two heads; reactions of the second kind are judged."""
    rows = []
    for reaction, kind in enumerate("aaabbb"):
        for way in map_atoms.WAYS:
            heads = (1, 2) if way in ("α", "‖αf(x)‖") else (0,)
            for head in heads:
                right = 4 if head == (1 if kind == "a" else 2) else 2 + (reaction == 5)
                rows.append({"reaction": reaction, "pass": 1, "way": way, "head": head, "right": right, "atoms": 4})
    right = pd.DataFrame(rows)
    assert map_atoms.by_pass(right) == [
        ["α, best head of the pass", "79.2"],
        ["‖αf(x)‖, best head", "79.2"],
        ["mean of α over heads", "54.2"],
        ["‖Σ αf(x)‖, all heads as vectors", "54.2"],
    ]
    found, _ = cells(map_atoms.chosen(right, "aaabbb"))
    assert [line[:3] for line in found] == [
        ["α", "pass 1, head 1", "58.3"],
        ["‖αf(x)‖", "pass 1, head 1", "58.3"],
        ["mean α", "pass 1", "58.3"],
        ["‖Σ αf(x)‖", "pass 1", "58.3"],
    ]
    assert found[0][4] == ""
    assert found[1][4].startswith("0.0 ")


def test_the_atlas_links_to_what_is_repeated_on_a_model():
    assert atlas.experiment("kobayashi2020").endswith("](../guides/papers.md#kobayashi2020)")
    assert atlas.experiment("gu2025") == "`experiments/gu2025`"
    for name, folders in atlas.REPEATED.items():
        assert name in PACKAGES
        assert all((tables.EXPERIMENTS / folder / "README.md").is_file() for folder in folders)
