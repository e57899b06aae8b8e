"""What the options of each analysis accept, at the ends of the range; and what each analysis declares about itself."""

import dataclasses
import re
from types import SimpleNamespace

import pytest
import torch

from normscope.analyses.declarations.alignment import AlignmentOptions, LinkFileOptions
from normscope.analyses.declarations.attribution import AttributionMethod, AttributionOptions
from normscope.analyses.declarations.norms import NormsOptions
from normscope.analyses.declarations.outliers import OutliersOptions
from normscope.analyses.declarations.score import ScoreOptions
from normscope.analyses.declarations.sinks import SinkInput, SinksOptions
from normscope.analyses.frequency import MEASURE_AXIS, RANK_AXIS
from normscope.analyses.norms import NORM_AXIS, WEIGHT_AXIS
from normscope.analyses.registry import analyses, plug_ins
from normscope.config.schema import check_options
from normscope.errors import InputError
from normscope.running.options import RunOptions, check, run_options

ENDS = [
    (AttributionOptions, "sequences", 1, 0),
    (AttributionOptions, "orders", 1, 0),
    (AttributionOptions, "steps", 1, 0),
    (AttributionOptions, "shares", [0.01, 99.99], [0.0]),
    (AttributionOptions, "shares", [50.0], [20.0, 100.0]),
    (AttributionOptions, "shares", [50.0], []),
    (AttributionOptions, "methods", [AttributionMethod.rollout], []),
    (NormsOptions, "scatter_pairs", 1, 0),
    (NormsOptions, "sampled_queries", 1, 0),
    (NormsOptions, "sampled_queries", None, -3),
    (OutliersOptions, "threshold", 1e-9, 0.0),
    (OutliersOptions, "threshold", 3.0, float("nan")),
    (OutliersOptions, "share", 0.0, -1e-9),
    (OutliersOptions, "share", 1.0, 1 + 1e-9),
    (ScoreOptions, "sequences", None, 0),
    (ScoreOptions, "sequences", 1, 0),
    (ScoreOptions, "intervention_sequences", 1, 0),
    (ScoreOptions, "controls", 0, -1),
    (SinksOptions, "inputs", [SinkInput.repeat], []),
    (SinksOptions, "length", 2, 1),
    (SinksOptions, "epsilon", 0.0, 1.0),
    (SinksOptions, "epsilon", 0.99, -0.1),
    (SinksOptions, "sequences", 1, 0),
    (SinksOptions, "ablation_sequences", 1, 0),
    (SinksOptions, "controls", 0, -1),
]


@pytest.mark.parametrize(("kind", "key", "good", "bad"), ENDS)
def test_the_ends_of_what_is_accepted(kind, key, good, bad):
    name = next(info.name for info in analyses().values() if info.options is kind)
    others = {"seed": 0} if hasattr(kind, "seed") else {}
    check_options(kind(**others, **{key: good}), f"analysis.{name}.")
    shown = re.escape(f"analysis.{name}.{key}={str(bad).replace(' ', '')}: expected ")
    with pytest.raises(InputError, match=f"^{shown}"):
        check_options(kind(**others, **{key: bad}), f"analysis.{name}.")


def test_sequences_of_sink_rates_must_fit_the_corpus():
    run = RunOptions()
    run.dataset.max_length = 32
    SinksOptions(length=32, seed=0).validate(run)
    with pytest.raises(InputError, match=re.escape("analysis.sinks.length=33: expected at most dataset.max_length=32")):
        SinksOptions(length=33, seed=0).validate(run)
    settings = {"model": {"name": "tiny"}, "dataset": {"kind": "sample", "max_length": 32}}
    check(run_options(settings | {"analysis": {"mixing": {"enabled": True}}}))
    with pytest.raises(InputError, match=re.escape("analysis.sinks.length=64: expected at most dataset.max_length=32")):
        check(run_options(settings | {"analysis": {"sinks": {"enabled": True}}}))


def aligned(stack=None, dataset="parallel", **options):
    run = SimpleNamespace(model=SimpleNamespace(stack=stack), dataset=SimpleNamespace(kind=dataset))
    given = {"enabled": True, "gold": LinkFileOptions(path="gold")} | options
    options = AlignmentOptions(**given)
    check_options(options, "analysis.alignment.")
    options.validate(run)


@pytest.mark.parametrize(
    ("good", "bad", "key"),
    [
        ({"stack": "cross"}, {"stack": "encoder"}, "model.stack=encoder: analysis=alignment needs cross-attention"),
        ({"stack": None}, {"stack": "decoder"}, "model.stack=decoder"),
        ({"gold": LinkFileOptions(), "dataset": "toy"}, {"gold": LinkFileOptions()}, "analysis.alignment.gold.path"),
        ({"baselines": {"a.b+c-d_1": "f"}}, {"baselines": {"a b": "f"}}, "analysis.alignment.baselines.a b"),
        ({"baselines": {"attn": "f"}}, {"baselines": {"attn_w": "f"}}, "analysis.alignment.baselines.attn_w"),
        ({"baselines": {}}, {"baselines": {"attn_n": "f"}}, "analysis.alignment.baselines.attn_n"),
        ({"baselines": {"smooth": "f"}}, {"baselines": {"smoothgrad": "f"}}, "analysis.alignment.baselines.smoothgrad"),
        (
            {"baselines": None},
            {"baselines": ["f"]},
            "analysis.alignment.baselines=[f]: expected {NAME: FILE, ...}, or null",
        ),
    ],
)
def test_what_alignment_accepts(good, bad, key):
    aligned(**good)
    with pytest.raises(InputError, match=re.escape(key)):
        aligned(**bad)


def test_what_analyses_declare():
    cited = {name: [paper.key for paper in info.papers] for name, info in analyses().items()}
    assert (
        cited["norms"]
        == [*cited["frequency"], "cunningham2026"]
        == ["kobayashi2020", "kobayashi2021", "cunningham2026"]
    )
    assert cited["mixing"] == ["kobayashi2021", "cunningham2026"]
    assert cited["alignment"] == ["kobayashi2020", "ding2019"]
    assert cited["syntax"] == ["clark2019"]
    assert cited["feedforward"] == ["kobayashi2024", "cunningham2026"]
    assert cited["similarity"] == ["modarressi2023"]
    assert cited["attribution"][-3:] == ["modarressi2023", "achtibat2024", "deyoung2020"]
    assert cited["outliers"] == cited["score"] == ["maruta2024"]
    assert cited["sinks"] == ["gu2025", "kobayashi2020", "sun2024"]
    for info in analyses().values():
        assert info.load().info is info
        assert {field.name for field in dataclasses.fields(info.options)} >= {"enabled"}
        assert info.options.enabled is False
        for paper in info.papers:
            name, year = re.fullmatch(r"([a-z]+)(\d{4})b?", paper.key).groups()
            assert re.match(rf"@(inproceedings|misc){{{name}-.*{year}", paper.bibtex)
            assert f"year = {{{year}}}" in paper.bibtex


def test_an_entry_point_that_is_no_analysis_is_ignored_with_a_warning(monkeypatch, caplog):
    built_in = [name for name, info in analyses().items() if info not in plug_ins()]
    entries = [SimpleNamespace(name=name, value=f"{name}:INFO", load=lambda: 3) for name in ("other", "another")]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: entries if "analyses" in group else [])
    analyses.cache_clear()
    try:
        with caplog.at_level("WARNING", "normscope"):
            assert list(analyses()) == built_in
    finally:
        analyses.cache_clear()
    assert [record.getMessage() for record in caplog.records] == [
        f"analysis plug-in {name} ({name}:INFO) is ignored: expected an AnalysisInfo, got int"
        for name in ("another", "other")
    ]


@pytest.mark.parametrize(
    ("axis", "cells_per_factor", "lowest", "highest"),
    [
        (WEIGHT_AXIS, 32, 2.0**-30, 1.0),
        (NORM_AXIS, 64, 2.0**-10, 2.0**12),
        (RANK_AXIS, 16, 1.0, 2.0**18),  # more than the largest vocabularies
        (MEASURE_AXIS, 32, 2.0**-16, 2.0**10),
    ],
)
def test_grids_reach_as_far_and_are_as_fine_as_estimates_need(axis, cells_per_factor, lowest, highest):
    """Within the range, numbers that differ by more than one cell's width are told apart; beyond it they are not."""
    cells = axis.cell(torch.tensor([0.0, lowest / 4, lowest, 2 * lowest, highest / 2, highest, highest * 4]))
    assert cells.diff().tolist() == [
        0,
        0,
        cells_per_factor,
        axis.cells - 1 - 2 * cells_per_factor,
        cells_per_factor,
        0,
    ]
