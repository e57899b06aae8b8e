"""The report of a run: what it says, what the explorer shows, and that it loads nothing from elsewhere."""

import html
import json
import re
import runpy
import shlex
import sys
from urllib.parse import parse_qsl, urlencode

import numpy as np
import pandas as pd
import pytest

from normscope.config.schema import plain
from normscope.models.options import ModelOptions
from normscope.reporting import drawing
from normscope.reporting.page.elements import SHOWN_ROWS, asset
from normscope.reporting.page.explorer import payload, view_of
from normscope.reporting.page.report import page
from normscope.results.figures import Heatmaps, WordMaps
from normscope.results.findings import Sentence
from normscope.results.maps import TokenMap
from normscope.results.result import Result
from normscope.results.token_labels import label
from normscope.rounding import number, percentage
from normscope.running import token_maps
from normscope.running.options import RunOptions
from tests.end_to_end.browser import checked, needs_browser, opened
from tests.end_to_end.disturbed import python
from tests.end_to_end.shell import ROOT, draw_nothing, run_here
from tests.unit.test_figures_fit import FIGURES, product

pytestmark = pytest.mark.reports

SENTENCES = [
    "The cat sat on the mat, and the dog barked.",
    "</script><script>console.error('executed')</script> <img src=x onerror=console.error(1)> & \"quotes\" =cmd()",
    "One more sentence for the explorer, with a comma.",
]


def made(folder, *arguments):
    """A finished run on hostile sentences."""
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in SENTENCES))
    given = ["dataset=text", f"dataset.path={folder / 'corpus.jsonl'}", "tracking=disabled", "device=cpu"]
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sys, "argv", ["run.py", *arguments, *given, f"output_dir={folder / 'run'}"])
        with pytest.raises(SystemExit) as exit_:
            runpy.run_path(str(ROOT / "run.py"), run_name="__main__")
        assert not exit_.value.code
    return folder / "run"


@pytest.fixture(scope="module")
def reported(tmp_path_factory, saved_model):
    """Whose page has its figures, which are drawn in no other file."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(drawing, "drawn", lambda _figure, formats, _look: [b""] * len(formats))
        given = ("analysis=[mixing,norms,feedforward]", f"model.name={saved_model}")
        return made(tmp_path_factory.mktemp("reported"), *given)


@pytest.fixture(scope="module")
def without_figures(tmp_path_factory, saved_model):
    with pytest.MonkeyPatch.context() as monkeypatch:
        draw_nothing(monkeypatch)
        given = ("analysis=[mixing,norms]", f"model.name={saved_model}")
        return made(tmp_path_factory.mktemp("without_figures"), *given)


def of_mixing(**parts) -> Result:
    facts = dict.fromkeys(("sequences", "tokens", "seconds", "verification_error"), 1)
    facts |= dict.fromkeys(("model", "dtype", "device", "finished", "command"), "x")
    config = plain(RunOptions(model=ModelOptions(name="x")))
    config["analysis"]["mixing"]["enabled"] = True
    return Result(facts=facts, config=config, **parts)


def test_a_page_with_three_long_texts_stays_below_three_megabytes():
    """As many values as with six layers of twelve heads, which nothing compresses, and tables as long as a page shows."""
    generator = np.random.default_rng(0)
    tokens = tuple(f"token{position}" for position in range(64))
    weights = generator.random((6, 12, 64, 64), dtype=np.float32)
    measures = ("attn_w", "attn_n", "attnres_n", "attnresln_n")
    maps = {name: generator.random((6, 64, 64), dtype=np.float32) for name in measures}
    text = TokenMap("text", tokens, tokens, tuple(range(1, 7)), maps, {"attn_w": weights}, weights[:, :, 0])
    assert 3 * 6 * 64**2 * (12 + token_maps._MAPS) <= token_maps._BUDGET, "such texts are shown with all their heads"
    rows = pd.DataFrame(generator.random((1000, 8)), columns=list("abcdefgh"))
    content = page(of_mixing(tables={f"mixing_table{number}": rows for number in range(4)}, maps=[text] * 3))
    assert len(content.encode()) < 3_000_000


def test_the_page_holds_everything_and_fetches_nothing(without_figures):
    page = (without_figures / "report.html").read_text()
    metrics = json.loads((without_figures / "results.json").read_text())["metrics"]
    assert f"{metrics['mixing/attnresln_n/mean']:.0%}" in page
    assert "python run.py" in page
    assert "kobayashi-etal-2021-incorporating" in page
    assert not re.search(r"""<[^>]*(src|href)\s*=\s*["']?(https?:)?//""", page), "nothing is fetched"
    assert "default-src 'none'" in page
    assert "unsafe-eval" not in page.split("</head>")[0]
    # The corpus's tags are text, in tables and in the script's data.
    assert "<script>console.error" not in page
    assert "<img src=x" not in page
    assert len(page) < 3_000_000


EXPLORED = [
    (1, 0, "attn_w", 3),
    (1, 0, "attn_n", 3),
    (1, 0, "attnres_n", 0),
    (1, 0, "attnresln_n", 5),
    (1, 0, "atbff_n", 1),
    (1, 0, "atbffresln_n", 2),
    (1, 2, "attn_w", 2),
    (2, 3, "attn_n", 1),
]
LAYER = 2


def fragment(sentence, head, measure, token, **more):
    given = {"sentence": sentence, "layer": LAYER, "head": head, "measure": measure, "token": token} | more
    return "#explore?" + "&".join(f"{name}={value}" for name, value in given.items())


VIEWS = {
    "layer": fragment(1, 0, "attn_n", 2, minus="layer:1"),
    "measure": fragment(1, 0, "attn_n", 2, minus="measure:attn_w"),
    "words": fragment(3, 0, "attn_n", 10, words=1),
    "every head": fragment(1, -1, "attn_w", 2, hideSelf=1, log=1),
}


@pytest.fixture(scope="module")
def wide(reported, tmp_path_factory):
    """The report in a window as wide as a desk, light."""
    fragments = [fragment(*chosen) for chosen in EXPLORED] + list(VIEWS.values())
    return checked(reported / "report.html", tmp_path_factory.mktemp("wide"), fragments, size=(1400, 900))


@pytest.fixture(scope="module")
def narrow(reported, tmp_path_factory):
    """The report on a phone, dark, for a reader who wants no motion."""
    flags = ["--force-dark-mode", "--force-prefers-reduced-motion"]
    return checked(reported / "report.html", tmp_path_factory.mktemp("narrow"), size=(390, 844), flags=flags)


def pairs_of(reported, sentence, head):
    pairs = pd.read_parquet(reported / "maps.parquet")
    return pairs[(pairs["sentence"] == sentence) & (pairs["head"] == head)]


def assert_lists(lists, expected, name, step=6e-5):
    """Both lists of the explorer: what a token receives, and what it contributes.

    `expected` is query, key and value, `step` how far apart the numbers are that the page can hold.
    """
    assert len(lists) == 2
    drawn = []
    for listed, side, other, token in ((lists[0], "query", "key", name), (lists[1], "key", "query", name)):
        row = expected[expected[side] == token].set_index(other)
        assert len(listed) == min(10, len(row))
        for written, shown, width in listed:
            text, place = re.fullmatch(r"(.*) \((\d+)\)", written, re.DOTALL).groups()
            own = row.loc[int(place)]
            assert text == label(own[f"{other}_token"])
            digits, _, power = shown.replace("−", "-").replace("+", "").partition("×10")
            exponent = int(power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")) or 0)
            value = float(digits) * 10**exponent
            # Half of the third digit, and the step of 16 bits.
            assert value == pytest.approx(own["value"], rel=6e-3, abs=step)
            drawn.append((width, abs(value)))
    longest = max(value for _, value in drawn)
    for width, value in drawn:
        # Half of the third digit of this number and of the largest.
        assert width == pytest.approx(100 * value / longest, rel=1.1e-2), "both lists have one scale"


@pytest.mark.slow
@needs_browser
def test_the_explorer_shows_the_numbers_of_the_tables(reported, wide):
    seen, console = wide
    assert console == []
    assert "error" not in seen, seen["error"]
    for sentence, head, measure, token in EXPLORED:
        pairs = pairs_of(reported, sentence, head)
        shown = seen["explored"][fragment(sentence, head, measure, token)]
        rows = pairs[pairs["layer"] == LAYER]
        assert shown["cells"] == len(rows)
        assert_lists(shown["lists"], rows.assign(value=rows[measure]), token)
        # The scale is shared over layers, and over heads where single heads are shown.
        every = pd.read_parquet(reported / "maps.parquet")
        every = every[(every["sentence"] == sentence) & ((every["head"] > 0) == (head > 0))]
        assert f"{every[measure].max():#.3g}" in shown["legend"]


@pytest.mark.slow
@needs_browser
def test_the_explorer_opens_on_weights_beside_norms(reported):
    shown, console = opened(reported / "report.html", size=(1400, 900))
    assert console == []
    start = payload(Result.read(reported).maps)["start"]
    pairs = pairs_of(reported, start["sentence"], start["head"])
    pairs = pairs[pairs["layer"] == start["layer"]]
    legend = r'<h3 class="map-title">([^<]*)</h3>.*?<div class="legend">.*?<span>([^<]*)</span></div></div>'
    own, beside = (re.search(before + legend, shown, re.DOTALL) for before in ("", r'<div class="beside">.*?'))
    assert own is not None
    assert beside is not None
    where = f", layer {start['layer']}, head {start['head']}"
    assert (beside[1], own[1]) == (f"α (attention weight){where}", f"‖αf(x)‖ (weighted vector){where}")
    pinned = re.search(r'class="lists"><section><h3>“(.+?)” receives from', shown)
    assert html.unescape(pinned[1]) == label(pairs.loc[pairs["query"] == start["token"], "query_token"].iloc[0])
    for end, measure in ((beside[2], "attn_w"), (own[2], "attn_n")):  # each on its own scale
        assert float(end) == pytest.approx(pairs[measure].max(), rel=6e-3), "three digits of codes of 16 bits"


@pytest.mark.slow
@needs_browser
def test_a_finding_that_names_a_place_opens_the_map_there(reported, tmp_path):
    """Its link shows the head in which the category differs most, the category's key pinned, as `view_of` says."""
    result = Result.read(reported)
    views = [view_of(Sentence.of(each), result.maps) for each in result.sentences if Sentence.of(each).place]
    assert views
    page = (reported / "report.html").read_text()
    links = [html.unescape(link) for link in re.findall(r'<a href="(#explore\?[^"]+)"', page)]
    assert set(links) == {f"#explore?{urlencode(view)}" for view in views}
    link = links[-1]
    seen, console = checked(reported / "report.html", tmp_path, [link], size=(1400, 900))
    assert console == []
    asked = dict(parse_qsl(link.partition("?")[2]))
    shown = seen["explored"][link]
    assert f"layer {asked['layer']}, head {asked['head']}" in shown["legend"]
    pairs = pairs_of(reported, int(asked["sentence"]), int(asked["head"]))
    pairs = pairs[pairs["layer"] == int(asked["layer"])]
    assert_lists(shown["lists"], pairs.assign(value=pairs["attn_n"]), int(asked["token"]))


@pytest.mark.slow
@needs_browser
def test_the_explorer_shows_differences_words_and_all_heads(reported, wide):
    seen, _ = wide
    pairs = pairs_of(reported, 1, 0)
    now, before = (pairs[pairs["layer"] == layer].reset_index(drop=True) for layer in (LAYER, 1))
    assert_lists(seen["explored"][VIEWS["layer"]]["lists"], now.assign(value=now["attn_n"] - before["attn_n"]), 2)
    shares = {name: now[name] / now.groupby("query")[name].transform("sum") for name in ("attn_n", "attn_w")}
    shown = seen["explored"][VIEWS["measure"]]
    # Values are coded to within 0.05%, so a difference is known to within that of both.
    step = 6e-5 + 5e-4 * float(shares["attn_n"].max() + shares["attn_w"].max())
    assert_lists(shown["lists"], now.assign(value=shares["attn_n"] - shares["attn_w"]), 2, step)
    assert "as shares of a row" in shown["legend"]
    words = pairs_of(reported, 3, 0)
    words = words[words["layer"] == LAYER]
    # The last but two tokens are "com" and "##ma": one word, number 10.
    words = words.assign(
        query=words["query"].map(lambda at: at - (at > 10)), key=words["key"].map(lambda at: at - (at > 10))
    )
    names = words.drop_duplicates("key").set_index("key")["key_token"].to_dict() | {10: "comma"}
    # Summed over the tokens of a column's word, averaged over those of a row's.
    sums = words.groupby(["query", "key"])["attn_n"].sum()
    sums = sums.reset_index(name="value")
    sums["value"] /= sums["query"].map(lambda at: 2 if at == 10 else 1)
    sums = sums.assign(query_token=sums["query"].map(names), key_token=sums["key"].map(names))
    assert_lists(seen["explored"][VIEWS["words"]]["lists"], sums, 10)
    assert "(logarithmic)" in seen["explored"][VIEWS["every head"]]["legend"]


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("window", ["wide", "narrow"])
def test_the_page_works_in_light_and_dark_and_on_a_phone(reported, request, window):
    seen, console = request.getfixturevalue(window)
    assert console == []
    assert "error" not in seen, seen["error"]
    assert seen["faint"] == [], "WCAG AA: text has a contrast of 4.5 at least"
    assert seen["dark"] == ("#ffffff" if window == "wide" else "#15171a")
    assert seen["smooth"] == ("smooth" if window == "wide" else "auto")
    assert seen["wider"] <= 0, "the page does not scroll sideways"
    assert seen["dead"] == [], "links lead somewhere"
    assert seen["sticky"] == ["sticky", "sticky"]
    drawn = {file.stem for file in (reported / "figures").glob("*.png")}
    assert set(seen["figures"]) == drawn
    for name, figure in seen["figures"].items():
        assert figure["marks"], name
        assert figure["lost"] == [], "what a figure refers to is in the page once"
        assert figure["in_the_pages_font"], name
        assert figure["least"] >= 7, f"{name}: pixels of the smallest letters"
    tap = seen["tapped"]
    assert not tap["hidden"]
    assert tap["near"]
    assert tap["pinned"].endswith("receives from")
    for name, table in seen["tables"].items():
        rows = len(pd.read_parquet(reported / f"tables/{name.removeprefix('table_')}.parquet"))
        assert table["rows"] == min(rows, SHOWN_ROWS)
        assert f"{rows:,}" in table["caption"]
        assert table["focused"]
        assert table["sorted"] in ("ascending", "descending")
        assert table["left"] == 0
        assert table["shadow"] == "local, local, scroll, scroll", "a cut table shows that it scrolls"
    words = " ".join(seen["figures"]["mixing_heatmap"]["texts"])
    assert "weights + residual (AttnRes-W)" in words, "with the words after the name"
    assert "attention block (AttnResLn-N)" in words
    cells = pd.read_parquet(reported / "tables/mixing_by_layer.parquet")["mean"]
    written = [text for text in seen["figures"]["mixing_heatmap"]["texts"] if text.isdecimal()]
    for value in cells:
        assert f"{100 * value:.0f}" in written


@pytest.mark.slow
@needs_browser
def test_numbers_are_written_alike_in_python_and_in_the_page(tmp_path):
    generator = np.random.default_rng(0)
    values = [
        0.0,
        2.125,
        -2.125,
        9.996,
        99.95,
        999.5,
        13059.0,
        999_600.0,
        0.001,
        0.00099995,
        1e-7,
        -1e9,
        0.125,
        0.00125,
    ]
    values += (generator.normal(size=300) * 10.0 ** generator.integers(-8, 9, size=300)).tolist()
    script = f"{asset('rounding.js')}; const values = {json.dumps(values)};"
    written = "JSON.stringify(values.map((value) => [formatNumber(value), formatNumber(value, true), formatPercentage(value)]))"
    page = f'<meta charset="utf-8"><pre id="out"></pre><script>{script} out.textContent = {written};</script>'
    (tmp_path / "page.html").write_text(page)
    shown, console = opened(tmp_path / "page.html")
    assert console == []
    found = json.loads(html.unescape(re.search(r'<pre id="out">(.*?)</pre>', shown)[1]))
    assert found == [[number(value), number(value, signed=True), percentage(value)] for value in values]


def test_every_finding_has_its_number_and_links(without_figures):
    page = (without_figures / "report.html").read_text()
    found = re.search(r'<ol class="findings">(.*?)</ol>', page, re.DOTALL)
    assert found is not None
    sentences = re.findall(r"<li[^>]*>(.*?)</li>", found[1], re.DOTALL)
    assert len(sentences) >= 5
    for sentence in sentences:
        assert re.search(r"\d", sentence)
        assert re.search(r'href="#table_\w+"', sentence)


@pytest.mark.slow
def test_the_command_of_the_page_works_when_it_is_pasted(capsys, monkeypatch, reported, tmp_path):
    page = (reported / "report.html").read_text()
    (command,) = re.findall(r"<pre[^>]*>(python run.py.*?)</pre>", page)
    monkeypatch.chdir(tmp_path)
    outcome = run_here(capsys, monkeypatch, *shlex.split(html.unescape(command))[2:], "report.enabled=false")
    assert outcome.status == 0, outcome.err
    (results,) = tmp_path.glob("outputs/*/results.json")
    assert json.loads(results.read_text())["metrics"] == pytest.approx(
        json.loads((reported / "results.json").read_text())["metrics"]
    )


@pytest.mark.slow
def test_a_custom_text(capsys, monkeypatch, saved_model, tmp_path):
    given = ["dataset.limit=3", f"model.name={saved_model}", "tracking=disabled", f"output_dir={tmp_path / 'run'}"]
    outcome = run_here(capsys, monkeypatch, *given, "report.text='my own words'", "layers=2")
    assert outcome.status == 0, outcome.err
    assert "layer 2</span>" in (tmp_path / "run/report.html").read_text()
    pairs = pd.read_parquet(tmp_path / "run/maps.parquet")
    assert list(dict.fromkeys(pairs["query_token"])) == ["[CLS]", "my", "own", "words", "[SEP]"]
    assert "explorer:" not in outcome.err
    long = run_here(
        capsys, monkeypatch, *given[:-1], f"output_dir={tmp_path / 'long'}", f"report.text='{'word ' * 400}'"
    )
    assert long.status == 2
    assert "report.text" in long.err


@pytest.mark.slow
def test_long_texts_are_truncated_for_the_explorer_with_a_note(capsys, monkeypatch, saved_model, tmp_path):
    (tmp_path / "long.txt").write_text("".join(f"{'long ' * 140}text {number}\n" for number in range(3)))
    corpus = ["dataset=text", f"dataset.path={tmp_path / 'long.txt'}", f"model.name={saved_model}", "tracking=disabled"]
    chosen = ["report.tokens=20", "report.examples=2", f"output_dir={tmp_path / 'run'}"]
    outcome = run_here(capsys, monkeypatch, *corpus, *chosen)
    assert outcome.status == 0, outcome.err
    note = "2 texts are truncated to at most 20 tokens (report.tokens)"
    assert outcome.said.count(f"token maps: {note}") == 1
    assert note in (tmp_path / "run/report.html").read_text()
    pairs = pd.read_parquet(tmp_path / "run/maps.parquet")
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
    assert (tmp_path / "true/maps.parquet").stat().st_size < 20_000_000


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("size", [(1400, 900), (390, 844)])
@pytest.mark.draws
def test_figures_fit_into_their_places(tmp_path, size):
    """Whatever the number of panels, and however long the labels."""
    methods = ["rollout of weights", "rollout of norms", "value zeroing", "gradient × input"]
    agreement = product(panel=["tokens", "rows"], row=methods, column=methods)
    relations = product(
        special=["with sinks", "sinks masked"],
        row=["itself masked", "itself counts"],
        column=[f"relation{number}" for number in range(24)],
    )
    maps = product(method=list("012345"), row=range(24), column=range(24)).assign(frame="none")
    quick = {name: figure for name, figure in FIGURES.items() if len(figure.table) < 5000}
    figures = quick | {
        "long labels": Heatmaps(
            agreement,
            {"value": ""},
            "row",
            "column",
            "Caption.",
            "panel",
            {"tokens": "scores of tokens", "rows": "rows of the map"},
            limits=(0.0, 100.0),
            value_label="ρ",
            numbered=True,
        ),
        "one grid": Heatmaps(relations, {"value": "gain"}, "row", "column", "Caption.", "special", diverging=True),
        "six maps": WordMaps(
            maps.assign(word=maps["row"].map("word{}".format), other=maps["column"].map("word{}".format)),
            "method",
            {key: f"method {key}" for key in "012345"},
            "Caption.",
            "row",
            "word",
            "column",
            "other",
        ),
    }
    text = TokenMap("text", ("a",), ("a",), (1,), {"attn_w": np.ones((1, 1, 1))})
    report = tmp_path / "report.html"
    named = {f"mixing_{name}": figure for name, figure in figures.items()}
    report.write_text(page(of_mixing(figures=named, maps=[text])))
    seen, console = checked(report, tmp_path, size=size)
    assert console == []
    assert "error" not in seen, seen["error"]
    assert len(seen["figures"]) == len(figures)
    assert all(figure["marks"] and not figure["lost"] for figure in seen["figures"].values())
    assert {name: figure["overflow"] for name, figure in seen["figures"].items() if figure["overflow"] > 0} == {}
