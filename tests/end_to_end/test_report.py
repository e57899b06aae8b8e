"""The report of a run: what it says, what the explorer shows, and that it loads nothing from elsewhere."""

import html
import json
import re
import runpy
import sys

import pandas as pd
import pytest

from tests.end_to_end.browser import needs_browser, opened
from tests.end_to_end.disturbed import python
from tests.end_to_end.shell import ROOT, draw_nothing, run_here

pytestmark = pytest.mark.reports

SENTENCES = [
    "The cat sat on the mat, and the dog barked.",
    "</script><script>console.error('executed')</script> <img src=x onerror=console.error(1)> & \"quotes\" =cmd()",
    "One more sentence for the explorer, with a comma.",
]


@pytest.fixture(scope="module")
def reported(tmp_path_factory, saved_model):
    """A finished run on hostile sentences."""
    folder = tmp_path_factory.mktemp("reported")
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in SENTENCES))
    with pytest.MonkeyPatch.context() as monkeypatch:
        draw_nothing(monkeypatch)
        arguments = [
            "analysis=[mixing,norms]",
            f"model.name={saved_model}",
            "dataset=text",
            f"dataset.path={folder / 'corpus.jsonl'}",
            "tracking=disabled",
            "device=cpu",
            f"output_dir={folder / 'run'}",
        ]
        monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
        with pytest.raises(SystemExit) as exit_:
            runpy.run_path(str(ROOT / "run.py"), run_name="__main__")
        assert not exit_.value.code
    return folder / "run"


def test_the_page_holds_everything_and_fetches_nothing(reported):
    page = (reported / "report.html").read_text()
    metrics = json.loads((reported / "results.json").read_text())["metrics"]
    assert f"{metrics['mixing/attnresln_n/mean']:.1%}" in page
    assert "python run.py" in page
    assert "kobayashi-etal-2021-incorporating" in page
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", page), "nothing is fetched"
    assert "default-src 'none'" in page
    # The corpus's tags are text, in tables and in the script's data.
    assert "<script>console.error" not in page
    assert "<img src=x" not in page
    assert len(page) < 8_000_000


@needs_browser
@pytest.mark.parametrize(
    ("head", "measure", "token"),
    [
        (0, "attn_w", 3),
        (0, "attn_n", 3),
        (0, "attnres_n", 0),
        (0, "attnresln_n", 5),
        (2, "attn_w", 2),
        (3, "attn_n", 1),
    ],
)
def test_the_explorer_shows_the_numbers_of_the_tables(reported, head, measure, token):
    layer, sentence = 2, 1
    pairs = pd.read_parquet(reported / "tables/explorer_pairs.parquet")
    chosen = pairs[(pairs["sentence"] == sentence) & (pairs["layer"] == layer) & (pairs["head"] == head)]
    fragment = f"#explore?sentence={sentence}&layer={layer}&head={head}&measure={measure}&token={token}"
    shown, console = opened(reported / "report.html", fragment)
    assert console == []
    lists = re.findall(r'<ol class="ranks">(.*?)</ol>', shown)
    assert len(lists) == 2
    for listed, side, other in ((lists[0], "query", "key"), (lists[1], "key", "query")):
        expected = chosen[chosen[side] == token].set_index(other)
        found = re.findall(r"<span>(.*?) \((\d+)\)</span><b>([\d.]+)</b>", listed)
        assert len(found) == min(12, len(expected))
        for name, place, number in found:
            row = expected.loc[int(place)]
            assert html.unescape(name) == row[f"{other}_token"]
            assert float(number) == pytest.approx(row[measure], abs=1.2e-4, rel=1e-4)
    cells = len(re.findall(r"<rect[^>]* data-at=", shown))
    assert cells == len(chosen)


@needs_browser
def test_hostile_text_stays_text_in_the_browser(reported):
    for size in ((1280, 900), (390, 844)):
        shown, console = opened(
            reported / "report.html", "#explore?sentence=2&layer=1&head=0&measure=attn_n", size=size
        )
        assert console == []
        assert "&lt;" in shown


def test_every_result_is_stated_in_words_with_its_number(reported):
    page = (reported / "report.html").read_text()
    found = re.search(r'<ul class="findings">(.*?)</ul>', page, re.DOTALL)
    assert found is not None
    sentences = re.findall(r"<li[^>]*>(.*?)</li>", found[1])
    assert len(sentences) >= 5
    assert all(re.search(r"\d", sentence) for sentence in sentences)


def test_a_custom_text(capsys, monkeypatch, saved_model, tmp_path):
    given = ["dataset.limit=3", f"model.name={saved_model}", "tracking=disabled", f"output_dir={tmp_path / 'run'}"]
    outcome = run_here(capsys, monkeypatch, *given, "report.text='my own words'")
    assert outcome.status == 0, outcome.err
    pairs = pd.read_parquet(tmp_path / "run/tables/explorer_pairs.parquet")
    assert list(dict.fromkeys(pairs["query_token"])) == ["[CLS]", "my", "own", "words", "[SEP]"]
    assert "explorer:" not in outcome.err
    long = run_here(
        capsys, monkeypatch, *given[:-1], f"output_dir={tmp_path / 'long'}", f"report.text='{'word ' * 400}'"
    )
    assert long.status == 2
    assert "report.text" in long.err


def test_long_texts_are_truncated_for_the_explorer_with_a_note(capsys, monkeypatch, saved_model, tmp_path):
    (tmp_path / "long.txt").write_text("".join(f"{'long ' * 140}text {number}\n" for number in range(3)))
    corpus = ["dataset=text", f"dataset.path={tmp_path / 'long.txt'}", f"model.name={saved_model}", "tracking=disabled"]
    chosen = ["report.tokens=20", "report.examples=2", f"output_dir={tmp_path / 'run'}"]
    outcome = run_here(capsys, monkeypatch, *corpus, *chosen)
    assert outcome.status == 0, outcome.err
    note = "2 texts are truncated to at most 20 tokens (report.tokens)"
    assert outcome.err.count(f"token maps: {note}") == 1
    assert note in (tmp_path / "run/report.html").read_text()
    pairs = pd.read_parquet(tmp_path / "run/tables/explorer_pairs.parquet")
    assert pairs.groupby("sentence")["key"].max().tolist() == [19, 19]


@pytest.mark.slow
def test_long_texts_add_little_to_the_memory_of_the_report(tmp_path):
    (tmp_path / "long.txt").write_text("".join(f"{number} {'word ' * 600}\n" for number in range(5)))
    program = (
        "import resource, runpy, sys\n"
        "sys.argv = ['run.py', *sys.argv[1:]]\n"
        "try:\n"
        "    runpy.run_path('run.py', run_name='__main__')\n"
        "finally:\n"
        "    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    peaks = {}
    for enabled in ("true", "false"):
        arguments = ["dataset=text", f"dataset.path={tmp_path / 'long.txt'}", "tracking=disabled", "device=cpu"]
        folder = f"output_dir={tmp_path / enabled}"
        outcome = python("-c", program, *arguments, f"report.enabled={enabled}", folder, OMP_NUM_THREADS="1")
        assert outcome.returncode == 0, outcome.stderr
        peaks[enabled] = int(outcome.stdout.split()[-1])
    assert peaks["true"] < 1.3 * peaks["false"]
    assert (tmp_path / "true/tables/explorer_pairs.parquet").stat().st_size < 20_000_000
