"""Presets of papers: what they set, and when a run is compared with the paper."""

import itertools
import json
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
import yaml

from normscope.analyses.declarations.norms import NormsOpening
from normscope.analyses.registry import analyses
from normscope.config.schema import plain
from normscope.reporting.published import PAPERS, compare, with_published
from normscope.reporting.terminal import show_comparison
from normscope.results.declare import declared
from normscope.results.result import Result
from tests.contract.test_configs import composed
from tests.end_to_end.shell import ROOT, run_here

RECIPES = sorted(path.stem for path in (ROOT / "conf/experiment").glob("*.yaml"))
# Those of translation models are run in test_alignment.py.
# Kobayashi et al. 2024 have published curves, not numbers: there is nothing to compare with.
# That of DecompX is too slow for every day, and tested by hand below, as are those of causal models. Clark et al. 2019 need a
# treebank.
BY_HAND = {"kobayashi2024", "decompx2023", "clark2019", "gu2025_sinks", "sun2024_massive"}
BY_HAND |= {"cunningham2026_contributions", "sun2026_spikes"}  # nothing to compare with, either
MASKED = [name for name in RECIPES if "alignment" not in name and name not in BY_HAND]
BERT = "google-bert/bert-base-uncased"
MINILM = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def published(paper: str) -> list[dict]:
    return yaml.safe_load((PAPERS / paper / "published.yaml").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", MASKED)
def test_a_preset_runs_on_another_model_and_says_what_differs(capsys, monkeypatch, tmp_path, saved_model, name):
    folder = tmp_path / "run"
    arguments = [f"experiment={name}", f"model.name={saved_model}", "dataset.limit=6", "tracking=disabled"]
    outcome = run_here(capsys, monkeypatch, *arguments, f"output_dir={folder}")
    assert outcome.status == 0, outcome.err
    if name.startswith("maruta"):  # about places in other weights
        assert "this run has measured none of the published numbers of maruta2024" in outcome.err
        assert not (folder / "tables/comparison.parquet").exists()
        return
    table = pd.read_parquet(folder / "tables/comparison.parquet")
    assert len(table)
    assert {key for keys in table["differs_in"] for key in keys.split(", ")} <= {
        "model.name",
        "dataset.name",
        "dataset.mask_fraction",
    }
    assert table["differs_in"].str.startswith("model.name").all()
    assert not table["metric"].duplicated().any()
    assert "beside this run, which is not the paper's" in " ".join(outcome.out.split())  # lines are wrapped
    assert "model, dataset" in outcome.out


@pytest.mark.slow
def test_feed_forward_networks_of_the_papers_models():
    """The commands of the preset are those of eleven masked language models and GPT-2, each on both corpora."""
    assert composed("experiment=kobayashi2024").model.name == BERT
    commands = [
        line.removeprefix("# python run.py -m ").split()
        for line in (ROOT / "conf/experiment/kobayashi2024.yaml").read_text().splitlines()
        if line.startswith("# python")
    ]
    jobs = [
        composed(*(f"{argument.split('=')[0]}={value}" for argument, value in zip(command, values, strict=True)))
        for command in commands
        for values in itertools.product(*(argument.split("=")[1].split(",") for argument in command))
    ]
    assert Counter(job.dataset.name for job in jobs) == {"wikipedia-20231101": 12, "sst2": 12}
    names = {job.model.name for job in jobs}
    assert len(names) == 12
    assert {"openai-community/gpt2", "FacebookAI/roberta-large", "google/multiberts-seed_2"} < names
    for job in jobs:
        assert job.analysis.feedforward.enabled
        assert job.recipe.paper is None


@pytest.mark.parametrize(
    ("more", "decompx"),
    [([], 0.627), (["model=bert-mnli", "dataset=mnli"], 0.703)],
)
def test_aopc_is_compared_with_that_of_decompx(more, decompx):
    """Table 1 of the paper as if measured, except for one method."""
    options = composed("experiment=decompx2023", *more)
    chosen = options.analysis.attribution
    prefix = "attribution/probability/comprehensiveness/"
    measured = {prefix + method: decompx for method in chosen.methods}
    rows = compare(options.recipe.paper, measured, {}, plain(options)).set_index("metric")
    assert not rows["differs_in"].any()
    assert list(rows.index) == [prefix + method for method in chosen.methods]
    assert rows["published"][f"{prefix}decompx"] == decompx
    assert bool(rows["within"][f"{prefix}decompx"])
    assert not rows["within"][f"{prefix}globenc"]
    other = compare(options.recipe.paper, measured, {}, plain(composed("experiment=decompx2023", "model=minilm")))
    assert set(other["differs_in"]) == {"model.name"}
    first, *_ = published("decompx2023")
    assert other.set_index("metric")["published"].to_dict() == first["values"]  # of two that differ as much


def test_a_number_stands_beside_the_published_one_whose_conditions_are_the_closest(monkeypatch, tmp_path, capsys):
    (tmp_path / "nobody2000").mkdir()
    when = {"model.name": "a", "dataset.name": "b"}
    groups = [
        {"source": source, "exhibit": "Table 1", "when": conditions, "tolerance": 0.1, "values": values}
        for source, conditions, values in (
            ("far", when | {"level": "word"}, {"x": 1.0, "y": 2.0}),
            ("first", when, {"x": 3.0, "z": 3.0}),
            ("second", when, {"x": 4.0}),
            ("ours", {"model.name": "mine"}, {"z": 5.0, "nothing": 0.0}),
        )
    ]
    (tmp_path / "nobody2000/published.yaml").write_text(yaml.safe_dump(groups))
    monkeypatch.setattr("normscope.reporting.published.PAPERS", tmp_path)
    config = {"model": {"name": "mine", "random_init": False}, "dataset": {"name": "b"}, "level": "token"}
    table = compare("nobody2000", {"x": 0.0, "y": 0.0, "z": 5.05}, {}, config)
    rows = table[["metric", "published", "within", "differs_in", "source"]].to_numpy().tolist()
    assert rows == [
        ["y", 2.0, False, "level, model.name", "far"],
        ["x", 3.0, False, "model.name", "first"],
        ["z", 5.0, True, "", "ours"],
    ]
    show_comparison(table)
    printed = capsys.readouterr().out
    assert "ours: 1 of 1 within 0.1\n" in printed
    assert "first, beside this run, which is not the paper's\n" in printed
    assert printed.split("differs in\n")[1].splitlines()[0].split() == [
        "y",
        "0",
        "2",
        "−2",
        "level,",
        "model",
    ]


def test_dependency_relations_of_the_papers_model(capsys):
    options = composed("experiment=clark2019", "dataset.path=dev.conllu", "dataset.name=en_ewt-dev")
    assert (options.model.name, options.dataset.kind) == (BERT, "conllu")
    measured = {"syntax/attn_w/best/det": 0.9, "syntax/attn_w/best/all": 0.43}
    comparison = compare("clark2019", measured, {}, plain(options))
    assert comparison["published"].tolist() == [0.345, 0.943, 0.419]
    assert comparison["within"].all()
    assert not comparison["differs_in"].any()
    show_comparison(comparison)
    printed = " ".join(capsys.readouterr().out.split())
    assert "so not compared) measure this run published difference accuracy of" in printed
    assert "English Web Treebank: 1 of 1 within 0.03" in printed


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("recipe", "model", "measured", "within"),
    [
        ("gu2025_sinks", "openai-community/gpt2-xl", {"random/without_bos/sink_rate/first": 0.71}, [True]),
        ("gu2025_sinks", "mistralai/Mistral-7B-v0.1", {"repeat/without_bos/sink_rate/first": 0.1}, [False]),
        ("sun2024_massive", "openai-community/gpt2", {"massive/count": 1.0, "massive/largest": 3500.0}, [True, False]),
        ("sun2024_massive", "meta-llama/Llama-3.2-1B", {"massive/count": 5.0, "massive/largest": 220.0}, [False, True]),
    ],
)
def test_sinks_and_massive_activations_of_the_papers_models(recipe, model, measured, within):
    options = composed(f"experiment={recipe}", f"model.name={model}")
    values = {f"sinks/{name}": value for name, value in measured.items()}
    assert compare(options.recipe.paper, values, {}, plain(options))["within"].tolist() == within
    other = compare(options.recipe.paper, values, {}, plain(composed(f"experiment={recipe}", "model.name=some/model")))
    assert set(other["differs_in"]) == {"model.name"}
    assert other["metric"].tolist() == list(values)


def test_a_published_table_is_compared_cell_by_cell(capsys):
    """Table 1 of M24 as if measured, except for one cell."""
    options = composed("experiment=maruta2024", "dataset=stsb", "dataset.path=dev.csv")
    assert (options.model.name, options.dataset.name) == (BERT, "stsb")
    *_, group = published("maruta2024")
    cells = [
        row["at"] | {"head": head, "mean": value}
        for row in group["rows"]
        for head, value in enumerate(row["values"], 1)
    ]
    table = pd.DataFrame(cells)
    table.loc[7, "mean"] += 2.0
    tables, bert = {"score_contributions": table}, group["weights"][0]
    comparison = compare("maruta2024", {}, tables, plain(options), bert)
    assert not comparison["differs_in"].any()
    assert len(comparison) == 24 * 12
    assert comparison["within"].sum() == 24 * 12 - 1
    wrong = comparison[~comparison["within"]].iloc[0]
    assert wrong["metric"] == "score_contributions layer=2 dimension=308 category=cls head=8"
    assert wrong["published"] == 10.7
    show_comparison(comparison)
    printed = " ".join(capsys.readouterr().out.split())
    assert "287 of 288 within 0.3 to 2.54; the 10 farthest from the published ones" in printed
    assert printed.count("contribution to the score (") == 10
    assert "contribution to the score (layer 2, 12.7000 10.7000 2.0000 False dimension 308, [CLS], head 8)" in printed


@pytest.mark.spread(1)
@pytest.mark.parametrize(("model", "digest"), [("bert", None), ("minilm", MINILM), ("/data/tuned", "a" * 64)])
def test_a_dimension_of_other_weights_is_not_compared(model, digest):
    """Whatever the model is called: a dimension of the same number is another dimension."""
    options = composed("experiment=maruta2024", f"model.name={model}", "dataset=stsb", "dataset.path=dev.csv")
    table = pd.DataFrame({"layer": [2], "dimension": [308], "category": ["cls"], "head": [1], "mean": [11.9]})
    measured = {"outliers/308/share_of_layers": 1.0}
    tables = {"score_contributions": table}
    assert compare("maruta2024", measured, tables, plain(options), digest).empty
    result = with_published(Result(tables=tables, metrics=measured, config=plain(options), notes=["a"]), digest)
    assert set(result.tables) == {"score_contributions"}
    assert result.notes == [
        "a",
        *(
            f"not compared with Maruta & Matsuzaki 2024, {where}: dimensions and heads are places in the paper's weights, and "
            "these are others"
            for where in ("section 2.1", "Table 1, mean contributions by category of the key")
        ),
    ]
    for same in options.analysis.outliers.known_for:  # also in a folder of another name
        assert compare("maruta2024", measured, tables, plain(options), same)["within"].tolist() == [True, True]


def test_no_number_of_a_paper_is_about_random_weights():
    options = composed("experiment=kobayashi2020_weights_and_norms", "model.random_init=true", "dataset.name=wikipedia")
    comparison = compare("kobayashi2020", {"norms/spearman/cls": -0.34}, {}, plain(options))
    assert comparison["differs_in"].tolist() == ["model.random_init"]


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", [name for name in MASKED if name.startswith("kobayashi")])
def test_the_papers_model_and_data_are_compared(name):
    options = composed(f"experiment={name}")
    assert options.recipe.name == name
    assert options.model.name == BERT
    assert options.dataset.max_length == 128
    config = {
        "model": {"name": BERT, "random_init": False},
        "dataset": {"name": "wikipedia", "mask_fraction": options.dataset.mask_fraction},
        "level": "token",
    }
    chosen = [analysis for analysis in ("mixing", "norms", "frequency") if getattr(options.analysis, analysis).enabled]
    groups = [group for group in published(options.recipe.paper) if "values" in group]
    measured = {key: value for group in groups for key, value in group["values"].items() if key.split("/")[0] in chosen}
    comparison = compare(options.recipe.paper, measured, {}, config)
    ours = comparison[comparison["differs_in"] == ""]
    assert not set(ours["metric"]) & set(
        comparison["metric"][comparison["differs_in"] != ""]
    )  # only other models have those
    assert len(ours) >= 2
    for row in ours.itertuples():
        assert row.within == (abs(row.value - row.published) <= row.tolerance)


@pytest.mark.slow
def test_a_comparison_is_printed_and_saved(capsys, monkeypatch, tmp_path, saved_model):
    """With an invented paper about the tiny model."""
    papers = tmp_path / "papers"
    (papers / "nobody2000").mkdir(parents=True)
    group = {
        "source": "Nobody 2000, Table 1",
        "exhibit": "Table 1",
        "when": {"model.name": str(saved_model), "dataset.name": "mine"},
        "tolerance": 0.01,
        "values": {"mixing/attn_w/mean": 0.0, "mixing/attn_n/mean": 5.0, "norms/nothing": 1.0},
    }
    (papers / "nobody2000/published.yaml").write_text(yaml.safe_dump([group], sort_keys=False))
    monkeypatch.setattr("normscope.reporting.published.PAPERS", papers)
    folder = tmp_path / "run"
    arguments = [f"model.name={saved_model}", "dataset.limit=3", "dataset.name=mine", "recipe.paper=nobody2000"]
    outcome = run_here(capsys, monkeypatch, *arguments, "tracking=disabled", f"output_dir={folder}")
    assert outcome.status == 0, outcome.err
    assert "Nobody 2000, Table 1: 0 of 2 within 0.01" in outcome.out
    table = pd.read_parquet(folder / "tables/comparison.parquet").set_index("metric")
    metrics = json.loads((folder / "results.json").read_text())["metrics"]
    assert table.loc["mixing/attn_n/mean", "difference"] == pytest.approx(metrics["mixing/attn_n/mean"] - 5)
    assert list(table.index) == ["mixing/attn_w/mean", "mixing/attn_n/mean"]


@pytest.mark.slow
def test_published_numbers_name_metrics_that_a_run_has(capsys, monkeypatch, tmp_path, saved_model):
    arguments = [
        f"model.name={saved_model}",
        "dataset.limit=4",
        "analysis=[mixing,norms,frequency]",
        "device.dtype=float64",  # a random model's ratios are so close that rounding in float32 leaves one ρ in doubt
        "tracking=disabled",
        "dataset.mask_fraction=0",
    ]
    assert run_here(capsys, monkeypatch, *arguments, f"output_dir={tmp_path / 'a'}").status == 0
    metrics = json.loads((tmp_path / "a/results.json").read_text())["metrics"]
    layers = "/layer_"  # the tiny model has three
    for paper in ("kobayashi2020", "kobayashi2021"):
        names = {name for group in published(paper) for name in group["values"] if layers not in name}
        names = {name for name in names if not name.startswith("alignment/")}  # test_alignment.py
        assert names
        assert names <= set(metrics), names - set(metrics)


@pytest.mark.slow
def test_the_preset_of_dispersion_opens_with_it():
    """What this changes is in tests/oracles/norms_oracle.py."""
    openings = {name: composed(f"experiment={name}").analysis.norms.opens_with for name in RECIPES}
    assert openings.pop("kobayashi2020_dispersion") is NormsOpening.dispersion
    assert set(openings.values()) == {NormsOpening.weights}


def test_every_number_of_two_tables_is_compared():
    """Tables 1 and 4 of K20, row by row."""
    groups = {group["exhibit"]: group for group in published("kobayashi2020") if "norms/x/mean" in group["values"]}
    groups |= {group["exhibit"]: group for group in published("kobayashi2020") if "norms/f/mean" in group["values"]}
    assert {name: len(group["values"]) for name, group in groups.items()} == {"Table 1": 13, "Table 4": 13}
    for group in groups.values():
        for number in group["values"]:
            assert declared(analyses()["norms"].declared.metrics, number.removeprefix("norms/"))


def test_every_paper_has_its_page():
    for paper in {published_path.parent.name for published_path in PAPERS.glob("*/published.yaml")}:
        page = Path(PAPERS / paper / "README.md").read_text()
        for recipe in RECIPES:
            if recipe.startswith(paper) and (PAPERS / paper / "exhibits.yaml").is_file():  # the guide lists its presets
                assert f"guides/papers.md#{paper}" in page
            elif recipe.startswith(paper):
                assert f"experiment={recipe}" in page


def preset_on(capsys, monkeypatch, saved_model, folder, *more):
    outcome = run_here(
        capsys,
        monkeypatch,
        "experiment=kobayashi2020_dispersion",
        f"model.name={saved_model}",
        "tracking=disabled",
        f"output_dir={folder}",
        *more,
    )
    assert outcome.status == 0, outcome.err
    differs_in = pd.read_parquet(folder / "tables/comparison.parquet")["differs_in"]
    return " ".join(outcome.err.split()), {key for keys in differs_in for key in keys.split(", ")}


def test_a_papers_preset_says_first_that_its_data_are_not_the_papers(capsys, monkeypatch, saved_model, tmp_path):
    said, differs_in = preset_on(capsys, monkeypatch, saved_model, tmp_path / "run", "dataset.limit=3")
    assert said.startswith(
        "kobayashi2020_dispersion: sample is not the paper's data (wikipedia), so no number need be the"
    )
    assert "see experiments/kobayashi2020/README.md" in said
    assert differs_in == {"model.name", "dataset.name"}
    (tmp_path / "own.txt").write_text("the old river\na cat sees it\n")
    own = ["dataset=text", f"dataset.path={tmp_path / 'own.txt'}"]
    said, _ = preset_on(capsys, monkeypatch, saved_model, tmp_path / "own", *own)
    assert said.replace("- ", "-").startswith(
        f"kobayashi2020_dispersion: {tmp_path / 'own.txt'} is not the paper's data"
    )


@pytest.mark.slow
def test_the_authors_data_are_a_preset(capsys, monkeypatch, saved_model, tmp_path):
    rows = [{"text": "the old river", "text_pair": "a cat sees it"}, {"text": "it walks", "text_pair": "the river"}]
    (tmp_path / "clark.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    said, differs_in = preset_on(capsys, monkeypatch, saved_model, tmp_path / "run", "dataset=clark")
    assert "not the paper's data" not in said
    assert differs_in == {"model.name"}
    assert json.loads((tmp_path / "run/results.json").read_text())["facts"]["sequences"] == 2


OF_THE_PAPERS = [name for name in RECIPES if name.startswith(("kobayashi2020", "kobayashi2021", "maruta"))]


@pytest.mark.parametrize("name", OF_THE_PAPERS)
def test_presets_of_the_papers_name_their_data(name):
    options = composed(f"experiment={name}")
    assert options.recipe.data
    named = {group["when"].get("dataset.name") for group in published(options.recipe.paper)}
    assert set(options.recipe.data) <= named
    assert "# Data: " in (ROOT / f"conf/experiment/{name}.yaml").read_text()
