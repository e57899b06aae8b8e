"""The explorer from Python: its numbers are the decomposition's, and its page works in a notebook's frame."""

import base64
import html
import json
import re

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

import normscope
from normscope.errors import InputError
from normscope.reporting.page import explorer as report_explorer
from normscope.reporting.page.explorer import payload
from normscope.results import pictures
from normscope.results.maps import pairs_table
from normscope.results.token_labels import label
from normscope.rounding import number
from tests.end_to_end.browser import needs_browser, opened
from tests.one_text import attribute, attribution_maps, decompose, similarity
from tests.tiny import FAMILY_CONFIGS, STACK_CONFIGS
from tests.unit.test_explorer import unpacked

TEXT = 'The cat sat on </script> the "mat".'


@pytest.fixture(scope="module")
def model(saved_model):
    return normscope.load(saved_model, device="cpu", dtype="float64")


@pytest.fixture(scope="module")
def explorer(model):
    return normscope.decompose(model, TEXT, heads=True).explorer()


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="explorer-data">(.+?)</script>', page)[1])


def test_its_numbers_are_the_decompositions(model, explorer):
    result = decompose(model, TEXT, heads=True)
    pairs = pairs_table(explorer.maps)
    block = pairs[pairs["head"] == 0].reset_index(drop=True)
    for column in ("layer", "query", "key", "query_token", "key_token"):
        assert block[column].tolist() == result.pairs[column].tolist()
    for measure in result.maps:
        np.testing.assert_allclose(block[measure], result.pairs[measure], rtol=1e-5)  # float32
    for head in range(1, result.head_maps["attn_w"].shape[1] + 1):
        rows = pairs[pairs["head"] == head]
        np.testing.assert_allclose(rows["attn_w"], result.head_maps["attn_w"][:, head - 1].flatten(), rtol=1e-5)
        np.testing.assert_allclose(rows["attn_n"], result.head_maps["attn_n"][:, head - 1].flatten(), rtol=1e-5)


def test_without_heads_the_page_has_blocks_only(model):
    (sentence,) = normscope.decompose(model, TEXT).explorer().maps
    assert sentence.heads == 0
    assert sentence.head_maps == {}
    assert sentence.maps["attn_w"].shape == sentence.maps["attn_n"].shape


def test_it_shows_every_stage_of_the_layer(model):
    result = decompose(model, TEXT, feed_forward=True)
    page = result.result.explorer().page
    assert list(data_of(page)["sentences"][0]["maps"]) == [*result.maps]
    assert "atbffresln_n" in result.maps
    for name in ("atbffresln_n", "share"):
        pd.testing.assert_series_equal(pairs_table(result.result.maps)[name], result.pairs[name], check_dtype=False)


def test_many_texts_share_a_page(model):
    texts = normscope.decompose(model, ["The cat sat.", "A dog barked at it."])
    sentences = data_of(texts.explorer().page)["sentences"]
    assert [sentence["queries"] for sentence in sentences] == [list(one.queries) for one in texts.maps]
    with pytest.raises(InputError, match="explorer: expected a result with token maps"):
        normscope.Result().explorer()


def test_cross_attention_has_two_sides(tokenizer):
    torch.manual_seed(0)
    config = AutoConfig.for_model(**STACK_CONFIGS["bart"] | {"vocab_size": len(tokenizer)})
    model = normscope.wrap(AutoModel.from_config(config), tokenizer, stack="cross")
    page = normscope.decompose(model, ("The cat sat on the mat.", "A dog.")).explorer().page
    (sentence,) = data_of(page)["sentences"]
    assert sentence["is_cross_attention"]
    assert len(sentence["queries"]) < len(sentence["keys"])
    assert "Rows are the tokens that the decoder reads" in page
    assert " → " in sentence["title"]


METHODS = ["rollout", "alti", "decompx"]


@pytest.mark.spread(1)
@pytest.mark.parametrize("level", ["token", "word"])
def test_maps_through_all_layers_have_an_explorer(model, level):
    maps = attribution_maps(model, TEXT, METHODS, level=level)
    explorer = maps["alti"].result.explorer()
    (sentence,) = explorer.maps
    pairs = pairs_table([sentence])
    assert list(pairs.columns)[-len(METHODS) - 1 :] == [*METHODS, "sentence"]
    tokens = len(maps["alti"].tokens)
    assert len(pairs) == tokens**2 * len(maps["alti"].cumulative)
    for method in METHODS:
        expected = maps[method].cumulative[:, :, :tokens].ravel()
        np.testing.assert_allclose(pairs[method], expected, rtol=1e-5, atol=1e-7)  # float32
    assert list(data_of(explorer.page)["sentences"][0]["maps"]) == list(maps)


@pytest.mark.slow
def test_maps_of_a_translation_have_an_explorer(tokenizer):
    torch.manual_seed(0)
    config = AutoConfig.for_model(**STACK_CONFIGS["bart"] | {"vocab_size": len(tokenizer)})
    model = normscope.wrap(AutoModel.from_config(config), tokenizer, stack="cross")
    found = attribution_maps(model, ("The cat sat on the mat.", "A dog."))
    (sentence,) = data_of(found["alti"].result.explorer().page)["sentences"]
    assert sentence["is_cross_attention"]
    assert sentence["keys"] == list(found["alti"].sources)


@pytest.mark.slow
@needs_browser
def test_the_page_of_maps_draws_what_they_say(model, tmp_path):
    maps = attribution_maps(model, TEXT, METHODS)
    for method in METHODS:
        normscope.attribution_maps(model, TEXT, method).explorer().save(tmp_path / "map.html")
        shown, console = opened(tmp_path / "map.html")
        assert console == []
        seen = re.sub("<[^>]+>", "", re.search(r'class="lists">(.+?)</div>', shown, re.DOTALL)[1])
        total = np.asarray(maps[method].total)[:, : len(maps[method].tokens)]
        first = int(
            (total * ~np.eye(len(total), dtype=bool)).max(axis=1).argmax()
        )  # it receives most from another token
        to, source = (label(maps[method].tokens[place]) for place in (first, total[first].argmax()))
        assert html.unescape(seen).startswith(f"“{to}” receives from{source}"), method
    maps["alti"].result.explorer().save(tmp_path / "maps.html")
    shown, _ = opened(tmp_path / "maps.html")
    measures = re.search(r'<select[^>]*name="measure".+?</select>', shown, re.DOTALL)[0]
    assert re.findall(r'value="(\w+)"', measures) == METHODS


@pytest.fixture(scope="module")
def causal(tokenizer):
    torch.manual_seed(0)
    config = AutoConfig.for_model(**FAMILY_CONFIGS["gpt2"] | {"vocab_size": len(tokenizer)})
    return normscope.wrap(AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval(), tokenizer)


def assert_on_page(map_, page):
    """Compare a map of the page with what it should be, within half a step of the codes or 0.05%."""
    expected = np.asarray(map_, dtype=float)
    largest = np.abs(expected).reshape(len(expected), -1).max(axis=1).reshape(-1, *[1] * (expected.ndim - 1))
    found = unpacked(page, expected.shape)
    assert (np.abs(found - expected) <= 6e-4 * np.abs(expected) + 0.6 * largest / 65535 + 1e-12).all()


@pytest.mark.spread(1)
@pytest.mark.parametrize("direct", [False, True])
def test_an_attributions_page_has_its_scores_and_effects(causal, direct):
    by = ["layer", "head", "token"]
    targets = [normscope.NextToken("cat"), normscope.NextToken("mat", position=2)]
    found = attribute(causal, TEXT, targets, against="dog", by=by, direct=direct)
    scores, layers, *heads = data_of(found[0].result.explorer().page)["sentences"]
    tokens = list(found[0].tokens)
    assert [scores["keys"], layers["keys"]] == [tokens, tokens]
    assert scores["queries"] == layers["queries"] == [each.said for each in found]
    assert (scores["layers"], layers["layers"], len(heads)) == ([0], [1, 2, 3], 2)
    assert_on_page([[each.scores for each in found]], scores["maps"]["token_score"])
    rows, single, networks = [
        np.zeros((3, *axes)) for axes in ((2, len(tokens)), (4, 2, len(tokens)), (2, len(tokens)))
    ]
    rest = np.zeros((1 if direct else 3, 2, len(tokens)))
    for target, each in enumerate(found):
        for row in each.effects.dropna(subset="position").itertuples():
            match row.part:
                case "attention":
                    rows[row.layer - 1, target, row.position] += row.value
                    single[row.layer - 1, row.head - 1, target, row.position] += row.value
                case "network":
                    networks[row.layer - 1, target, row.position] += row.value
                case _:
                    rest[row.layer - (not direct), target, row.position] += row.value
        of_heads = each.effects[each.effects["part"] == "attention"]
        grid = [
            [of_heads[(of_heads["layer"] == layer) & (of_heads["head"] == head)]["value"].sum() for head in range(1, 5)]
            for layer in range(1, 4)
        ]
        assert heads[target]["keys"] == ["head 1", "head 2", "head 3", "head 4"]
        assert_on_page([grid], heads[target]["maps"]["attention"])
    assert_on_page(rows, layers["maps"]["attention"])
    assert_on_page(single, layers["head_maps"]["attention"])
    assert_on_page(networks, layers["maps"]["network"])
    assert_on_page(rest, scores["maps"]["embeddings"] if direct else layers["maps"]["bypass"])
    assert layers["heads"] == 4


def test_effects_of_all_layers_together_are_beside_the_scores(causal):
    found = attribute(causal, TEXT, normscope.NextToken("cat"), by=["head", "token"], direct=True)
    (only,) = data_of(found.result.explorer().page)["sentences"]
    assert [*only["maps"]] == ["token_score", "attention", "network", "embeddings"]
    for part in ("attention", "network", "embeddings"):
        of_part = found.effects[found.effects["part"] == part].groupby("position")["value"].sum()
        assert_on_page([[of_part.tolist()]], only["maps"][part])
    heads = found.effects.dropna().pivot_table(index="head", columns="position", values="value").to_numpy()
    assert_on_page(heads[None, :, None], only["head_maps"]["attention"])


def test_an_answers_page_has_its_matrix_and_spans(causal):
    answer = normscope.Answer("the mat", matrix=True)
    found = attribute(causal, "The cat sat.", answer, against="a dog", spans={"cat": (4, 7)})
    scores, matrix, spans = data_of(found.result.explorer().page)["sentences"]
    assert_on_page([[found.scores]], scores["maps"]["token_score"])
    assert (matrix["queries"], matrix["keys"]) == (list(found.matrix.index), list(found.matrix))
    assert_on_page([found.matrix], matrix["maps"]["token_score"])
    assert spans["keys"] == list(found.spans) == ["cat", "rest"]
    assert_on_page([[list(found.spans.values())]], spans["maps"]["token_score"])


def test_several_texts_have_a_map_each(causal):
    found = attribute(causal, ["The cat sat.", "A dog."], normscope.NextToken())
    explorer = found[0].result.explorer()
    page = explorer.page
    assert [each["keys"] for each in data_of(page)["sentences"]] == [list(each.tokens) for each in found]
    assert "<title>Attribution: " in page
    assert repr(explorer).startswith("Attribution, 2 maps;")
    assert "biases are left out" in page
    assert "predicts the next one" not in page


@pytest.mark.slow
@needs_browser
def test_the_page_of_an_attribution_draws_what_it_says(causal, tmp_path):
    found = attribute(causal, TEXT, normscope.NextToken("cat"), by=["layer", "head", "token"])
    found.result.explorer().save(tmp_path / "scores.html")
    shown, console = opened(tmp_path / "scores.html")
    assert console == []
    strongest = np.abs(found.scores).argmax()
    seen = html.unescape(re.sub("<[^>]+>", "", re.search(r'class="lists">(.+?)</div>', shown, re.DOTALL)[1]))
    name = found.tokens[strongest]
    first = f"Largest values of “{found.said}”{name}"
    sign = "\u2212" if found.scores[strongest] < 0 else "+"
    assert re.match(rf"{re.escape(first)}( \({strongest}\))?{re.escape(sign)}", seen)
    measures = re.search(r'<select[^>]*name="measure".+?</select>', shown, re.DOTALL)[0]
    assert re.findall(r'value="(\w+)"', measures) == ["token_score"]
    assert "layer" not in re.sub("<[^>]+>", "", re.search(r'class="legend">(.+?)</div>', shown, re.DOTALL)[1])


def test_the_advice_for_a_page_that_is_too_large_names_what_was_asked(causal, monkeypatch):
    found = attribute(causal, TEXT, normscope.NextToken("cat"), by=["layer", "head", "token"])
    monkeypatch.setattr(pictures, "_LARGEST", 20)
    with pytest.raises(InputError, match=r"fewer targets, or leave \"head\" out of by$"):
        found.result.explorer()


def test_a_page_that_would_be_too_large_is_refused(model, monkeypatch):
    monkeypatch.setattr(pictures, "_LARGEST", 100)
    with pytest.raises(InputError, match=r"explorer: expected at most 100 values .+, or leave out heads=True"):
        normscope.decompose(model, TEXT, heads=True).explorer()
    with pytest.raises(InputError, match=r"take shorter or fewer texts$"):
        normscope.decompose(model, TEXT).explorer()


@pytest.mark.slow
def test_a_notebook_gets_a_frame_and_a_picture(explorer, tmp_path):
    shown = explorer._repr_html_()
    frame = re.search(r'<iframe [^>]*sandbox="([^"]*)"[^>]* srcdoc="([^"]*)"', shown)
    assert frame[1].split() == ["allow-scripts", "allow-downloads"], "no access to the notebook"
    explorer.save(tmp_path / "map.html")
    assert html.unescape(frame[2]) == (tmp_path / "map.html").read_text(encoding="utf-8") == explorer.page
    assert not re.search(r"""<[^>]*(src|href)\s*=\s*["']?(https?:)?//""", explorer.page), "nothing is fetched"
    assert explorer._repr_png_().startswith(b"\x89PNG")
    assert base64.b64encode(explorer._repr_png_()).decode() in shown, (
        "where the frame is taken away, the picture is left"
    )
    assert repr(explorer).startswith("Token maps of 1 text;")
    with pytest.raises(InputError, match=r"map\.html: "):
        explorer.save(tmp_path / "none" / "map.html")


@pytest.mark.slow
@needs_browser
def test_the_frame_draws_in_its_sandbox(explorer, tmp_path):
    # The frame cannot be read from outside, so it posts what it shows.
    report = (
        "<script>new MutationObserver(() => parent.postMessage(document.querySelector('.lists')?.textContent ?? '', '*'))"
        ".observe(document.body, { childList: true, subtree: true })</script></body>"
    )
    page = html.escape(explorer.page.replace("</body>", report))
    notebook = explorer._repr_html_().replace(html.escape(explorer.page), page)
    (tmp_path / "notebook.html").write_text(
        '<meta charset="utf-8"><pre id="seen"></pre><script>addEventListener("message", '
        '({ data }) => { document.getElementById("seen").textContent = data; });</script>' + notebook,
        encoding="utf-8",
    )
    for _ in range(9):  # Chromium's virtual time does not wait for a frame in a process of its own
        shown, console = opened(tmp_path / "notebook.html")
        assert console == []
        if match := re.search(r'<pre id="seen">(.+?)</pre>', shown):
            break
    seen = match[1]
    pairs, start = pairs_table(explorer.maps), payload(explorer.maps)["start"]
    opened_at = (pairs["head"] == start["head"]) & (pairs["layer"] == start["layer"])
    row = pairs[opened_at & (pairs["query"] == start["token"])]
    first = row.loc[pd.Series(row["attn_n"]).idxmax()]
    to, source = label(first["query_token"]), label(first["key_token"])
    assert html.unescape(seen).startswith(f"“{to}” receives from{source} ({first['key']})")


@pytest.fixture(scope="module")
def compared(model):
    return similarity(model, "The old cat slept.", TEXT, pooling="mean")


def test_a_pair_of_texts_in_a_page_has_the_numbers_of_the_similarity(compared):
    explorer = compared.result.explorer()
    (pair,) = json.loads(re.search(r'id="pairs-data">(.+?)</script>', explorer.page)[1])["pairs"]
    assert [text["tokens"] for text in pair["texts"]] == [list(compared.tokens_a), list(compared.tokens_b)]
    np.testing.assert_allclose(np.reshape(pair["values"], compared.matrix.shape), compared.matrix, rtol=1e-4)
    assert "sandbox" in explorer._repr_html_()
    assert repr(explorer).startswith(f"cosine similarity {number(compared.value)}")


@pytest.mark.slow
@needs_browser
def test_pointing_at_a_token_colours_the_other_text(compared, tmp_path):
    page = compared.result.explorer().page
    point = """
<script>
const said = () => document.querySelector(".pair-hint").textContent;
const shown = (side) => [...document.querySelectorAll(".pair-text")[side].children].map((span) => span.title);
const before = [said(), shown(0), shown(1), [...document.querySelectorAll(".pair-sum b")].map((part) => part.textContent)];
const token = document.querySelectorAll(".pair-text")[0].children[1];
token.dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));
const pre = document.createElement("pre");
pre.id = "seen";
const bars = [...document.querySelectorAll(".ranks li")].map((row) => {
  const { width, background } = row.querySelector("i").style;
  return [row.querySelector("b").textContent, parseFloat(width), background];
});
pre.textContent = JSON.stringify([...before, said(), shown(0), shown(1), bars]);
document.body.append(pre);
</script></body>"""
    (tmp_path / "pair.html").write_text(page.replace("</body>", point))
    shown, console = opened(tmp_path / "pair.html")
    assert not [line for line in console if "pair.html" in line]
    hint, sums_a, sums_b, total, said, own, partners, bars = json.loads(
        html.unescape(re.search(r'<pre id="seen">(.+?)</pre>', shown, re.DOTALL)[1])
    )
    words = compared.matrix[:-1, :-1]
    np.testing.assert_allclose([_number(each) for each in sums_a], words.sum(axis=1), rtol=6e-3, atol=2e-5)
    np.testing.assert_allclose([_number(each) for each in sums_b], words.sum(axis=0), rtol=6e-3, atol=2e-5)
    np.testing.assert_allclose([_number(each) for each in partners], words[1], rtol=6e-3, atol=2e-5)
    assert set(own) == {""}
    assert hint != said
    assert compared.tokens_a[1] in said
    biases = abs(compared.value - words.sum())
    np.testing.assert_allclose([_number(part) for part in total], [compared.value, words.sum(), biases], rtol=6e-3)
    values = np.array([_number(value) for value, *_ in bars])
    assert (values > 0).any()
    assert (values < 0).any(), "one list adds, the other subtracts"
    widths = 100 * np.abs(values) / np.abs(values).max()
    np.testing.assert_allclose([width for _, width, _ in bars], widths, rtol=6e-3, atol=0.1)
    assert len({colour for _, _, colour in bars}) == 2


DOCUMENTS = ["It rained in the town.", "The old dog slept.", *(f"There were {number} cats." for number in range(2, 11))]


@pytest.mark.slow
@needs_browser
def test_a_page_of_a_query_lists_its_documents_in_order(model, tmp_path):
    found = similarity(model, "The old cat slept.", DOCUMENTS, pooling="mean")
    look = """
<script>
const pre = document.createElement("pre");
pre.id = "seen";
const of = (item) => ({
  head: [...item.querySelectorAll(".document-head > *")].map((part) => part.textContent),
  tokens: [...item.querySelectorAll(".pair-text span")].map((span) => [span.title, span.style.background]),
  bars: [...item.querySelectorAll(".ranks li")].map((row) =>
    [row.querySelector("b").textContent, parseFloat(row.querySelector("i").style.width)]),
  ahead: item.querySelector(".ahead")?.textContent ?? "",
  chosen: item.classList.contains("chosen-document"),
});
const listed = () => [...document.querySelectorAll(".documents > li")];
const before = listed().map(of);
listed()[3].querySelector("button").click();
const total = document.querySelector("#pairs-root .pair-sum b").textContent;
const [query, select] = [".query", "#pairs-root select"].map((place) => document.querySelector(place));
pre.textContent = JSON.stringify([query.textContent, before, listed().map((item) => of(item).chosen), total, select.value]);
document.body.append(pre);
</script></body>"""
    (tmp_path / "ranking.html").write_text(found.result.explorer().page.replace("</body>", look))
    shown, console = opened(tmp_path / "ranking.html")
    assert not [line for line in console if "ranking.html" in line]
    query, items, chosen, total, selected = json.loads(
        html.unescape(re.search(r'<pre id="seen">(.+?)</pre>', shown, re.DOTALL)[1])
    )
    assert "slept" in query
    ranked = [found[number - 1] for number in found.ranking["number"]]
    assert len(items) == 10
    assert [item["chosen"] for item in items] == [True, *[False] * 9]
    words = [each.matrix[:-1, :-1].sum(axis=0) for each in ranked[:10]]
    parts = np.array([[added.sum(), each.value - added.sum()] for each, added in zip(ranked, words, strict=False)])
    longest, near = np.abs(parts).max(), {"rtol": 6e-3, "atol": 2e-5}
    colours: dict[str, list[list[int]]] = {}
    for at, (item, each) in enumerate(zip(items, ranked, strict=False)):
        assert item["head"][0] == f"{at + 1}."
        np.testing.assert_allclose(_number(item["head"][1]), each.value, **near)
        assert item["head"][2] == f"document {found.ranking['number'][at]}"
        np.testing.assert_allclose([_number(title) for title, _ in item["tokens"]], words[at], **near)
        np.testing.assert_allclose([_number(value) for value, _ in item["bars"]], parts[at], **near)
        np.testing.assert_allclose([width for _, width in item["bars"]], 100 * np.abs(parts[at]) / longest, atol=0.5)
        for title, colour in item["tokens"]:
            colours.setdefault(title, []).append([int(part) for part in re.findall(r"\d+", colour)])
        if at < 9:
            said = re.fullmatch(r"(\S+) ahead of the next: tokens (\S+), constant part (\S+)", item["ahead"])
            expected = [each.value - ranked[at + 1].value, *(parts[at] - parts[at + 1])]
            np.testing.assert_allclose([_number(part) for part in said.groups()], expected, rtol=1e-2, atol=1e-4)
    assert max(len(same) for same in colours.values()) > 1
    for same in colours.values():  # one scale for all documents; titles are rounded
        np.testing.assert_allclose(np.ptp(same, axis=0), 0, atol=3)
    assert chosen == [place == 3 for place in range(10)]
    np.testing.assert_allclose(_number(total), ranked[3].value, **near)
    assert selected == "3"
    assert "The 10 most similar of 11 documents are listed." in shown


def test_pairs_without_a_query_are_not_listed_in_order(model):
    found = similarity(model, DOCUMENTS[:2], DOCUMENTS[2:4], pooling="mean")
    assert "ranking-root" not in found.result.explorer().page.partition("<script>")[0]


def _number(text):
    """The value of a number written for readers."""
    plain = text.translate(str.maketrans("\u2212⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "--0123456789"))
    return float(plain.replace("×10", "e") or 0)


def test_a_page_says_what_does_not_fit(model, monkeypatch):
    """Single heads go first, then the last queries, then further texts."""
    found = normscope.decompose(model, ["The old cat slept.", TEXT, "A dog."], heads=True)
    first, second, _ = found.maps
    of_first = sum(values.size for values in first.maps.values())
    row = sum(values.size for values in second.maps.values()) // len(second.queries)
    monkeypatch.setattr(report_explorer, "_LARGEST", of_first + 2 * row)
    shown, notes = report_explorer.within_limit(found.maps)
    assert [len(each.queries) for each in shown] == [len(first.queries), 2]
    assert [each.heads for each in shown] == [0, 0]
    np.testing.assert_array_equal(shown[1].maps["attn_n"], second.maps["attn_n"][:, :2])
    assert notes == [
        "Text 1 is shown without individual heads.",
        "Text 2 is shown without individual heads.",
        f"Only the first 2 of {len(second.queries)} queries of text 2 fit on the page.",
        "1 text does not fit on the page.",
    ]
    page = normscope.page(found)
    assert all(note in page for note in notes)
