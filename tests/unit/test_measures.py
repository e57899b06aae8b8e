"""Numbers and curves are shown together with those of the same declaration, whatever analysis they are of."""

import pytest

from normscope.analyses.registry import analyses
from normscope.reporting.tracking import chart_key, chart_title
from normscope.results.measures import families


def lines(*names: str) -> dict[str, list[str]]:
    """The titles of the members of each family of curves, by its name."""
    return {family.name: [panel.title or panel.words for panel in family.panels.values()] for family in families(names)}


def test_methods_and_categories_are_lines():
    names = ["mixing/attn_w/mean", "mixing/attn_n/mean", "mixing/attn_n/share", "norms/alpha/cls", "norms/expansion"]
    assert lines(*names) == {
        "mixing/mean": ["attention weights (Attn-W)", "weighted vectors (Attn-N)"],
        "mixing/share": ["weighted vectors (Attn-N)"],
        "norms/alpha": ["[CLS]"],
        "norms/expansion": ["expansion rate"],
    }
    first, *_, last = families(names)
    assert (first.analysis, last.analysis) == ("mixing", "norms")
    assert (chart_key(first), chart_title(first)) == ("mixing/mean by layer", "Mixing ratios: mixing ratio (%)")
    assert {panel.factor for panel in first.panels.values()} == {100.0}, "in per cent, as the title says"
    assert {panel.factor for panel in last.panels.values()} == {1.0}


def test_several_axes_are_one_line_each():
    (found,) = lines("sinks/text/with_bos/sink_rate/first").values()
    assert len(found) == 1


def test_curves_that_nobody_declares_are_families_of_their_own():
    assert lines("theirs/length", "theirs/width") == {"theirs/length": ["length"], "theirs/width": ["width"]}


def test_names_belong_to_the_family_that_describes_them_best():
    """Of several declarations that match, that is the one without placeholders; numbers have declarations of their own."""
    names = ["norms/f/cls", "norms/f/mean", "norms/other/deep/name", "norms/f/sep", "norms/f/cls", "theirs/f/cls"]
    assert {family.name: list(family.panels) for family in families(names, of_numbers=True)} == {
        "norms/f": ["norms/f/cls", "norms/f/sep"],
        "norms/f/mean": ["norms/f/mean"],
        "norms/other/deep/name": ["norms/other/deep/name"],
        "theirs/f/cls": ["theirs/f/cls"],
    }
    (curves,) = families(["mixing/attn_n/mean"])
    (numbers,) = families(["mixing/attn_n/mean"], of_numbers=True)
    assert curves.meaning == "Mean mixing ratio of all tokens."
    assert numbers.meaning == "Mean mixing ratio of all tokens in all chosen layers."


@pytest.mark.parametrize("analysis", analyses())
def test_every_declared_curve_has_a_family_with_a_name_of_its_own(analysis):
    """No two measures of an analysis share a chart."""
    declared = analyses()[analysis].declared.curves
    filled = {rollup.name: rollup.filled(dict.fromkeys(rollup.placeholders, "x")) for rollup in declared}
    found = lines(*(f"{analysis}/{name}" for name in filled.values()))
    assert len(found) == len(declared)
    assert all("<" not in name and "//" not in name for name in found)
