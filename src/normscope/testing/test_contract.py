"""What every analysis of another package must do. Its author runs `pytest --pyargs normscope.testing`, or `-k NAME` for one.

A tiny random model and the sample corpus are used, in float64. No network is needed.
"""

import functools
import math
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

import normscope
from normscope.analyses.base import Analysis, merge_state, state_of
from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.analyses.registry import ENTRY_POINTS, plug_ins
from normscope.reporting.page.report import page
from normscope.reporting.tracker import no_tracker
from normscope.results.declare import Table, declared
from normscope.results.result import Result
from normscope.running.loop import Run, accumulate
from normscope.running.options import RunOptions, run_options
from normscope.running.pipeline import conclude
from normscope.running.pipeline import run as run_pipeline
from normscope.running.plan import Plan, configured
from normscope.running.progress import Phases, coming
from normscope.running.ranks import ProcessGroup

INSTALLED = {info.name: info for info in plug_ins()}
_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_WORDS = ["the", "a", "of", "and", "to", "in", "is", "was", "it", "that", ".", ",", "?", "!"]
_EXAMPLES, _BATCH_TOKENS = 24, 4096
_RELATIVE_ERROR = 1e-7
"""Sums of float64 in another order differ by much less."""


@pytest.fixture(params=INSTALLED or [pytest.param("", marks=pytest.mark.skip(reason="no plug-in is installed"))])
def info(request: pytest.FixtureRequest) -> AnalysisInfo:
    """Each plug-in in turn."""
    found = INSTALLED[request.param]
    if found.requires_cross_attention or found.requires_annotation or found.requires_pairs:
        pytest.skip(
            f"{found.name} needs translations, pairs of texts or annotated words, which this suite does not have"
        )
    return found


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random BERT with a tokenizer of words, saved to disk."""
    folder = tmp_path_factory.mktemp("normscope") / "tiny-model"
    vocabulary = {word: number for number, word in enumerate([*_SPECIALS, *_WORDS])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")],
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), _SPECIALS, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=128, **names).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=128,
    )
    generator = torch.Generator().manual_seed(0)
    bert = BertModel(config)
    for parameter in bert.parameters():
        torch.nn.init.normal_(parameter, std=0.4, generator=generator)
    bert.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def run(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Result]:
    """Runs an analysis with further settings of its config; the same run is made once."""

    @functools.cache
    def one(name: str, **settings: Any) -> Result:
        folder = tmp_path_factory.mktemp(name) / "run"
        return normscope.read(_folder(_options(model, name, **settings), folder))

    return one


def _options(model: Path, name: str, **settings: Any) -> RunOptions:
    fixed: dict[str, Any] = {
        "model": {"name": model},
        "dataset": {"kind": "sample", "limit": _EXAMPLES},
        "analysis": {name: {"enabled": True}},
        "device": {"name": "cpu", "dtype": "float64", "batch_tokens": settings.pop("batch_tokens", _BATCH_TOKENS)},
        "tracking": {"mode": "disabled"},
        "report": {"enabled": settings.pop("report", False)},
    }
    return run_options(fixed | settings)


def _folder(options: RunOptions, folder: Path) -> Path:
    assert run_pipeline(options, folder, "pytest --pyargs normscope.testing") is not None
    return folder


def test_plug_ins_are_installed_and_can_be_imported() -> None:
    """Runs skip a plug-in that cannot be imported, or whose name is taken, with a warning; here it is an error."""
    found = entry_points(group=ENTRY_POINTS)
    assert found, (
        f"no installed package has an entry point in {ENTRY_POINTS}: run `pip install -e .` in the folder of yours"
    )
    assert len(INSTALLED) == len(found), f"only {list(INSTALLED)} of {[entry.value for entry in found]} can be used"


def test_it_declares_itself(info: AnalysisInfo) -> None:
    """Name, title, question, options with defaults, and the class that implements it."""
    assert info.name.isidentifier()
    assert info.title
    assert info.question.endswith("?"), "AnalysisInfo(question=...) is the question that the analysis answers"
    assert issubclass(info.options, AnalysisConfig)
    assert not info.options().enabled, "analysis=NAME enables it"
    assert issubclass(info.load(), Analysis)
    assert info.load().info == info


def test_it_declares_what_it_returns(info: AnalysisInfo) -> None:
    """Every table and column has a meaning, and every number and curve comes from a column that exists."""
    assert info.declared.tables, "AnalysisInfo(declared=Declared(tables=...)) declares its tables"
    for name, table in info.declared.tables.items():
        for column, meaning in table.columns.items():
            assert meaning.endswith("."), f"{name}.{column}: expected a sentence, got {meaning!r}"
    for one in (*info.declared.metrics, *info.declared.curves):
        table_name, _, column = one.of.partition(".")
        assert not one.of or column in info.declared.tables[table_name].columns, f"{one.name}: there is no {one.of}"
        assert one.meaning.endswith("."), f"{one.name}: expected a sentence, got {one.meaning!r}"


def test_its_tables_are_those_that_it_declares(info: AnalysisInfo, run: Callable[..., Result]) -> None:
    """Names, columns, kinds, and rows that differ in the values of their axes."""
    tables = _own(info, run(info.name).tables)
    assert tables, "it wrote no table"
    for name, rows in tables.items():
        assert name in info.declared.tables, f"the table {name} is not declared"
        table = info.declared.tables[name]
        assert len(rows), f"the table {name} has no rows"
        for column, values in rows.items():
            _check_kind(f"{name}.{column}", values, _kind(table, str(column)))
        repeated = rows.duplicated(list(table.key)).sum() if table.key else 0
        assert not repeated, f"{name}: {repeated} rows have the same {table.key}"


def test_its_metrics_are_those_that_it_declares(info: AnalysisInfo, run: Callable[..., Result]) -> None:
    """Names are declared, and numbers are finite."""
    metrics = run(info.name).metrics
    for name, value in metrics.items():
        assert math.isfinite(value), name
        assert declared(info.declared.metrics, name.removeprefix(f"{info.name}/")), f"the metric {name} is not declared"


def test_it_does_not_depend_on_batches(info: AnalysisInfo, run: Callable[..., Result]) -> None:
    """Neither padding nor the number of texts in a batch changes a number."""
    _agree(run(info.name), run(info.name, batch_tokens=200))


def test_parts_of_a_corpus_add_up(info: AnalysisInfo, run: Callable[..., Result], model: Path) -> None:
    """The states of two parts give the numbers of the whole, as with several processes and resumed runs."""
    found = _in_parts(_options(model, info.name, batch_tokens=200))
    whole = run(info.name, batch_tokens=200)
    assert found.metrics == pytest.approx(whole.metrics, rel=_RELATIVE_ERROR, abs=_RELATIVE_ERROR)
    tables = _own(info, whole.tables)
    parts = _own(info, found.tables)
    assert set(parts) == set(tables)
    for name, rows in parts.items():
        pd.testing.assert_frame_equal(
            rows.reset_index(drop=True), tables[name], check_dtype=False, rtol=_RELATIVE_ERROR, atol=_RELATIVE_ERROR
        )


def test_it_gives_the_same_numbers_in_memory(info: AnalysisInfo, model: Path) -> None:
    """`normscope.run` works twice in one process, and leaves the random state of torch alone."""
    loaded = normscope.load(str(model), device="cpu", dtype="float64")
    texts: list[Any] = ["the end of it .", ("is it a pair ?", "it was the first of a pair .")]
    before = torch.get_rng_state()
    first, second = (normscope.run(info.name, model=loaded, texts=texts) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert first.metrics == second.metrics
    assert set(first.tables) == set(second.tables)


def test_it_has_a_section_in_the_report(info: AnalysisInfo, run: Callable[..., Result]) -> None:
    """The page is made, figures and token maps included."""
    assert info.title in page(run(info.name, report=True))


def _own(info: AnalysisInfo, tables: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    prefix = f"{info.name}_"
    return {name.removeprefix(prefix): rows for name, rows in tables.items() if name.startswith(prefix)}


def _kind(table: Table, column: str) -> str:
    """What a column holds; names such as `head_<head>` stand for several."""
    several = [name for name in table.columns if "<" in name and column.startswith(name.partition("<")[0])]
    assert column in table.columns or several, f"the column {column} is not declared"
    return table.kinds[column if column in table.columns else several[0]]


def _check_kind(name: str, values: "pd.Series[Any]", kind: str) -> None:
    types: dict[str, Callable[[Any], bool]] = {
        "text": pd.api.types.is_string_dtype,
        "truth": pd.api.types.is_bool_dtype,
        "whole": pd.api.types.is_integer_dtype,
        "number": pd.api.types.is_numeric_dtype,
    }
    assert types[kind](values), f"{name} is declared as {kind}, but holds {values.dtype}"


def _in_parts(options: RunOptions) -> Result:
    """What two processes find together, each of which has analysed every second batch."""
    parts = []
    for rank in range(2):
        group, phases = ProcessGroup(rank, 2), Phases(coming(options))
        plan = Plan.of(options, functools.partial(configured, options, group), group, phases)
        parts.append(Run.of(plan, phases))
        accumulate(parts[-1], no_tracker())
    first, second = parts
    merge_state(first.plan.analyses, state_of(second.plan.analyses))
    first.counts.add(second.counts)
    return conclude(first)


def _agree(one: Result, other: Result) -> None:
    assert other.metrics == pytest.approx(one.metrics, rel=_RELATIVE_ERROR, abs=_RELATIVE_ERROR)
    assert set(other.tables) == set(one.tables)
    for name, rows in one.tables.items():
        pd.testing.assert_frame_equal(other.tables[name], rows, rtol=_RELATIVE_ERROR, atol=_RELATIVE_ERROR)
