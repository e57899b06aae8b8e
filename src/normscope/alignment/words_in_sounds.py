"""What is said of the heads that find words in sounds, and drawn of them."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from jaxtyping import Float
from torch import Tensor

from normscope.analyses.declarations.alignment import METHOD, SETTING, Setting
from normscope.results.figures import Figure, Heatmaps, SoundMaps
from normscope.results.findings import Sentence, Summary
from normscope.rounding import brief_share, counted, enumeration, numbered, percentage

_METHODS = {"attn_w": "α: weights", "attn_n": "‖αf(x)‖: vectors"}
_ROWS = {str(Setting.awo): "the position that predicts a word", str(Setting.awi): "the position that reads it"}
_NEAR = 0.1
"""Heads are proposed that find at most so much less, as a share of words, than the best one."""
_MOST = 16
"""The largest number of heads that are proposed: Whisper's own lists have 6 to 23."""


def best_heads(heads: pd.DataFrame) -> dict[tuple[str, str], tuple[int, int]]:
    """The layer and the head that find most words, by method and setting; the first of several."""
    first = heads.loc[heads.groupby(["method", "setting"], sort=False)["right"].idxmax()]
    rows = first[["method", "setting", "layer", "head"]].itertuples(index=False)
    return {(str(method), str(setting)): (int(layer), int(head)) for method, setting, layer, head in rows}


def proposed_heads(heads: pd.DataFrame) -> list[list[int]]:
    """The heads for a generation config, from 0: those that find nearly as many words as the best, by weights, in the row that
    predicts a word, which is the row that generation reads."""
    rows = _of(heads, "attn_w", Setting.awo).sort_values("right", ascending=False, kind="stable")
    near = rows[rows["right"] >= rows["right"].max() - _NEAR].head(_MOST)
    return [[layer - 1, head - 1] for layer, head in zip(near["layer"].tolist(), near["head"].tolist(), strict=True)]


def sentences_of(heads: pd.DataFrame, tolerance: float) -> list[Sentence]:
    """Which heads find words, where the published ones rank, and the heads to paste into a generation config.

    Args:
        heads: The table `heads`.
        tolerance: Seconds by which a frame may lie outside its word.
    """
    words = int(heads["words"].iloc[0])
    sentences = []
    for setting, row in _ROWS.items():
        best = [_of(heads, method, setting).nlargest(1, "right").iloc[0] for method in _METHODS]
        weights, vectors = (float(each["right"]) for each in best)
        shares = brief_share(weights, vectors), brief_share(vectors, weights)
        found = [
            f"{share} by {METHOD.title(each['method'])} (layer {each['layer']}, head {each['head']})"
            for share, each in zip(shares, best, strict=True)
        ]
        sentences.append(
            Sentence(
                f"In {row}, the best head has its largest value in a frame inside the word (± {tolerance:g} s) for "
                f"{enumeration(found)} of {counted(words, 'word')}.",
                figure="by_head",
                table="heads",
                effect=vectors - weights,
                place={"layer": int(best[0]["layer"]), "head": int(best[0]["head"])},
            )
        )
    sentences += [Sentence(_about_published(heads), figure="by_head", table="heads")] * bool(heads["published"].any())
    sentences.append(
        Sentence(
            "The heads that find nearly as many words as the best head, by weights in the position that predicts a word, in "
            f"the form of a generation config (counted from 0): alignment_heads={proposed_heads(heads)}.",
            table="heads",
        )
    )
    return sentences


def _about_published(heads: pd.DataFrame) -> str:
    rows = _of(heads, "attn_w", Setting.awo)
    own, others = (rows[rows["published"] == known] for known in (True, False))
    ranks = numbered(sorted(own["rank"].tolist()))
    means = [percentage(float(each["right"].mean())) for each in (own, others)]
    return (
        f"By weights in the position that predicts a word, the {counted(len(own), 'head')} that the model's generation config "
        f"names rank {ranks} of {len(rows)}: they find {means[0]} of the words on average, the others {means[1]}."
    )


def _of(heads: pd.DataFrame, method: str, setting: str) -> pd.DataFrame:
    return heads[(heads["method"] == method) & (heads["setting"] == str(setting))]


def summary_of(heads: pd.DataFrame) -> Summary:
    """The best heads and the published ones, in per cent of the words."""
    rows = {}
    for setting in _ROWS:
        for method in _METHODS:
            of_map = _of(heads, method, setting)
            best, known = of_map.nlargest(1, "right").iloc[0], of_map[of_map["published"]]
            row = {"best head": f"layer {best['layer']}, head {best['head']}", "words found %": best["right"] * 100}
            row |= {"published heads %": known["right"].mean() * 100} if len(known) else {}
            rows[f"{METHOD.title(method)} {SETTING.title(setting)}"] = row | {
                "all heads %": of_map["right"].mean() * 100
            }
    return Summary(
        pd.DataFrame.from_dict(rows, orient="index"),
        digits=1,
        caption="words whose frame of largest value lies inside the word (higher is better), by weights and by vectors, in the "
        "position that predicts a word (output) or reads it (input): best head, and means over heads",
    )


def figures_of(
    heads: pd.DataFrame,
    found: pd.DataFrame,
    values: Mapping[str, Float[Tensor, "word frame"]],
    wave: Float[np.ndarray, "frame 2"],
    seconds: float,
) -> dict[str, Figure]:
    """How many words every head finds, and one recording: its wave, and what the best heads give to its frames for each word.

    Args:
        heads: The table `heads`.
        found: The rows of the table `times` of the recording, in the position that predicts a word.
        values: By method, in the same row.
        wave: The lowest and the highest sample of each frame.
        seconds: From one frame to the next.
    """
    best = best_heads(heads)
    titles = {
        method: f"{_METHODS[method]}, layer {best[method, str(Setting.awo)][0]}, head {best[method, str(Setting.awo)][1]}"
        for method in values
    }
    maps = SoundMaps.of(
        {method: each.numpy() for method, each in values.items()},
        found.drop_duplicates("word")["text"].tolist(),
        titles,
        wave,
        seconds,
        seconds,
        spans=list(zip(*(found.drop_duplicates("word")[end].tolist() for end in ("start", "end")), strict=True)),
        caption=f"Row {found['row'].iloc[0]} of the corpus: what each frame of the sound gives to each word in the row that "
        "predicts it, in the best head by weights and by vectors. Shaded: when the word is spoken.",
    )
    drawn = heads.assign(percent=heads["right"] * 100).replace({"method": _METHODS})
    drawn["panel"] = drawn["method"] + ", " + drawn["setting"].map(_ROWS)
    known = heads[heads["published"]].drop_duplicates(["layer", "head"])
    named = enumeration([f"{layer}.{head}" for layer, head in zip(known["layer"], known["head"], strict=True)])
    return {
        "by_head": Heatmaps(
            table=drawn,
            panel="panel",
            row="layer",
            column="head",
            values={"percent": ""},
            value_label="words found (%)",
            limits=(0.0, 100.0),
            numbered=True,
            caption="Words whose frame of largest value lies inside the word, by head; higher is better."
            + (f" The generation config names (layer.head) {named}." if len(known) else ""),
        ),
        "sound": maps,
    }
