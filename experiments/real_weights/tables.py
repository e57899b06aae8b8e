"""Run the experiments on real weights, and write what they measured into the tables of their READMEs.

python experiments/real_weights/fetch.py all
python experiments/real_weights/tables.py
python experiments/real_weights/tables.py gu2025 sun2024      # only these

A README says `<!-- table NAME -->` and `<!-- end -->` around a table, which is replaced. Runs that are complete are kept, and
others resumed. The atoms and the heads of Whisper have scripts of their own, which fill their tables likewise.
"""

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd
import sklearn.datasets

sys.path.insert(0, str(Path(__file__).parents[2]))  # when it is run as a script

from docs.hooks.markdown import ROOT, table
from experiments.papers.repeat import completed
from experiments.real_weights.fetch import OUTPUT
from experiments.schwaller2021.reactions import reactions
from normscope.reporting.page.paper import numbers_of_paper
from normscope.results.result import Result
from normscope.rounding import brief, brief_share, counted, duration, fixed, number, numbered, percentage

EXPERIMENTS = ROOT / "experiments"
PHOTOGRAPHS = Path(sklearn.datasets.__file__).parent / "images/*.jpg"
SAMPLE = ("dataset=sample", "dataset.limit=60")
ALONE = ("tracking=disabled", "report.enabled=false", "figures.format=[png]")
BEGINS = {"without_bos": "without", "with_bos": "with"}
INPUTS = {"text": "natural text", "random": "random tokens", "repeat": "one token repeated"}
ROUNDED = {"int8_per_tensor": "all", "without_skipped": "the skip list", "without_random": "random lists of its size"}


def main() -> int:
    """Run what is missing, and fill the tables; the exit status is 1 if a run failed, and 2 if a name is unknown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--weights", type=Path, default=OUTPUT, help=f"folder of the models' folders (default: {OUTPUT})"
    )
    experiments = sorted({experiment for experiment, _ in TABLES})
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(experiments)} (default: all)")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in experiments]
    if unknown:
        print(f"{unknown[0]}: expected one of {', '.join(experiments)}", file=sys.stderr)
        return 2
    weights, names = given.weights, given.names or experiments
    wanted = {place: filled for place, filled in TABLES.items() if place[0] in names}
    (weights / "reactions.txt").write_text("".join(f"{reaction.text}\n" for reaction in reactions()))
    sources = {source for _, needed in wanted.values() for source in needed}
    folders = {name: weights / "runs" / name for name in sorted(sources)}
    failed = [name for name, folder in folders.items() if not completed(folder, runs(weights)[name])]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
        return 1
    results = {name: Result.read(folder) for name, folder in folders.items()}
    for (experiment, name), (contents, needed) in wanted.items():
        fill(EXPERIMENTS / experiment / "README.md", name, contents(*(results[source] for source in needed)))
    return 0


def runs(weights: Path) -> dict[str, list[str]]:
    """The words of each command, by the name of its folder."""
    texts = ["dataset=text", f"dataset.path={weights / 'reactions.txt'}", "analysis.sinks.length=24"]
    models = {
        "gu2025": ["experiment=gu2025_sinks", "smollm2", *SAMPLE],
        "sun2024": ["experiment=sun2024_massive", "smollm2", *SAMPLE],
        "cunningham2026": ["experiment=cunningham2026_contributions", "smollm2", *SAMPLE],
        "sun2026_before": ["experiment=sun2026_spikes", "smollm2", *SAMPLE],
        "kobayashi2020": ["experiment=kobayashi2020_weights_and_norms", "quire-distilbert", *SAMPLE],
        "dinov2_norms": ["analysis=[mixing,norms,sinks]", "dinov2", "dataset=images", f"dataset.path={PHOTOGRAPHS}"],
    }
    found = {
        name: [words, f"model.name={weights / model}", *more, *ALONE] for name, (words, model, *more) in models.items()
    }
    found["sun2026_after"] = ["experiment=sun2026_spikes", "model=minilm", *SAMPLE, *ALONE]
    found["checkup_minilm"] = ["checkup", "minilm"]
    found["checkup_smollm2"] = ["checkup", str(weights / "smollm2")]
    found["against_minilm"] = ["checkup", str(weights / "sre-minilm"), "--against", "minilm"]
    pair = [str(weights / f"rxnfp-{part}") for part in ("classes", "pretrained")]
    found["against_reactions"] = ["checkup", pair[0], "--against", pair[1], *texts]
    return found


def fill(readme: Path, name: str, content: str) -> None:
    """Replace a table of a README.

    Raises:
        ValueError: If the README does not have the marks of the table once.
    """
    marks = re.compile(rf"(?<=<!-- table {re.escape(name)} -->\n).*?(?=<!-- end -->)", re.DOTALL)
    filled, times = marks.subn(lambda _: f"\n{content.strip()}\n\n", readme.read_text())
    if times != 1:
        raise ValueError(f"{readme}: expected one place for the table {name}, got {times}")
    readme.write_text(filled)


def sink_rates(run: Result) -> str:
    """Gu et al. 2025, Table 1."""
    rows = [
        [words, *(percentage(run.metrics[f"sinks/{inputs}/{bos}/sink_rate/first"]) for inputs in INPUTS)]
        for bos, words in BEGINS.items()
    ]
    return f"{table(['beginning of sequence', *INPUTS.values()], rows)}\n{_sample(run)}"


def _sample(run: Result) -> str:
    """How much was measured, how precisely, and the time it took."""
    sequences, width = (run.metrics[f"sinks/sink_rates/{name}"] for name in ("sequences", "half_width"))
    return (
        f"{counted(sequences, 'sequence')}; the widest 95% interval of a sink rate or weight is ± {percentage(width)}; "
        f"{_time(run)}."
    )


def _time(run: Result) -> str:
    return duration(float(run.facts["seconds"]))


def massive(run: Result) -> str:
    """Dimensions with massive activations, and the loss without them."""
    rows = []
    for dimension, own in run.tables["sinks_massive"].groupby("dimension"):
        largest = max((_over_tokens(same) for _, same in own.groupby("layer")), key=lambda mean: abs(mean["value"]))
        layers = " to ".join(map(str, dict.fromkeys((own["layer"].min(), own["layer"].max()))))
        positions = numbered(sorted(own["position"].unique()))
        value = f"{number(largest['value'])} ± {number(largest['std'])}"
        rows.append(
            [str(dimension), layers, positions, value, number(largest["ratio"]), str(int(largest["sequences"]))]
        )
    header = ["dimension", "layers", "positions", "largest, mean ± standard deviation", "× median", "texts"]
    return f"{table(header, rows)}\n{_losses(run)} {_time(run)}."


def _over_tokens(own: pd.DataFrame) -> "pd.Series[float]":
    """A dimension of one layer, whatever tokens have its massive activations."""
    count = own["sequences"]
    means = own[["value", "ratio"]].mul(count, axis=0).sum() / count.sum()
    square = ((own["std"] ** 2 + own["value"] ** 2) * count).sum() / count.sum()
    means["std"], means["sequences"] = max(square - means["value"] ** 2, 0.0) ** 0.5, count.sum()
    return means


def _losses(run: Result) -> str:
    """The loss with massive activations as they are, set to zero, and set to their mean."""
    effects = run.tables["sinks_ablation"].query("measure == 'loss'").set_index("value")
    zero, mean = effects.loc["zero"], effects.loc["mean"]
    ends = "controls_low", "controls_high"
    return (
        f"In {counted(zero['sequences'], 'text')}, the loss is {fixed(zero['before'], 2)} nats; {fixed(zero['after'], 2)} with "
        f"these activations set to zero, and {fixed(mean['after'], 2)} with their mean. As many random dimensions of the same "
        f"tokens, set to zero, change it by {' to '.join(fixed(zero[end], 3, signed=True) for end in ends)}."
    )


def contributions(run: Result) -> str:
    """The first token's share by weight, by norms and along the output, in all heads and in those whose weight it has."""
    wide = run.tables["norms_by_head"].pivot(index=["layer", "head"], columns="category")
    weight = wide["alpha"]["first"]
    rows = []
    for words, chosen in {
        "all": weight > 0,
        "more than half": weight > 0.5,
        "more than 90%": weight > 0.9,
    }.items():
        own = wide[chosen]
        norms, along = (own[name]["first"].sum() / own[name]["all"].sum() for name in ("alpha_f", "share"))
        against = int((own["share"]["first"] < 0).sum())
        shares = map(percentage, (own["alpha"]["first"].mean(), norms, along))
        rows.append([words, f"{len(own)} of {len(wide)}", *shares, str(against)])
    header = [
        "heads in which the first token has … of the weight",
        "number",
        "α",
        "‖αf(x)‖",
        "along the output",
        "heads in which it points against the output",
    ]
    apart = next(each for each in run.sentences if "first token" in each and each.interval is not None)
    low, high = apart.interval
    return (
        f"{table(header, rows)}\n{counted(run.facts['sequences'], 'text')}; over all heads, the share of the weight less that "
        f"of the norms is {percentage(apart.effect)} (95% interval over texts {percentage(low)} to {percentage(high)}); "
        f"{_time(run)}."
    )


def spikes(before: Result, after: Result) -> str:
    """Massive activations and sinks of a model that normalises before its blocks, and of one that normalises after them."""
    rows = []
    for words, run in {"SmolLM2, before": before, "MiniLM, after": after}.items():
        metrics = run.metrics
        count = metrics["sinks/massive/count"]
        largest = f"{number(metrics['sinks/massive/largest'])} in {counted(count, 'dimension')}" if count else "none"
        starts = [f"sinks/text/{bos}" for bos in BEGINS if f"sinks/text/{bos}/mass/first" in metrics]
        shares = [
            ", ".join(percentage(metrics[f"{start}/{measure}/first"]) for start in starts)
            for measure in ("sink_rate", "mass", "contribution")
        ]
        without = ["", ""]
        if count:
            weights = run.tables["sinks_ablation"].query("measure == 'weight_on_first'").set_index("value")
            without = [
                f"{percentage(row['before'])} → {percentage(row['after'])}"
                for row in (weights.loc["zero"], weights.loc["mean"])
            ]
        width = percentage(metrics["sinks/sink_rates/half_width"])
        rows.append([words, largest, *shares, f"± {width}", *without, _time(run)])
    header = [
        "model, place of its norms",
        "massive activations",
        "sink rate of the first token, without and with a beginning of sequence",
        "its weight",
        "its contribution",
        "widest interval",
        "its weight, massive activations set to zero",
        "set to their mean",
        "time",
    ]
    return table(header, rows)


def published_beside(run: Result) -> str:
    """The numbers of Kobayashi et al. 2020 beside those of a model."""
    frame = numbers_of_paper([run])
    rows = [
        [*row[:2], *(number(value) if pd.notna(value) else "" for value in row[2:])]
        for row in frame.itertuples(index=False)
    ]
    name = Path(str(run.facts["model"])).name
    metrics = run.metrics
    weight, norms = (
        percentage(metrics[f"norms/{measure}/sep"] / metrics[f"norms/{measure}/all"])
        for measure in ("alpha", "alpha_f")
    )
    return (
        f"{table(['in the paper', 'number', 'BERT-base, published', name], rows)}\n[SEP] receives {weight} of the attention "
        f"weight and contributes {norms} of Σ‖αf(x)‖. {counted(run.facts['sequences'], 'text')}, {_time(run)}."
    )


def patches(run: Result) -> str:
    """Norms of patches before and after the last norm."""
    returned = run.tables["norms_returned"]
    returned = returned[~returned["category"].isin(["all", "cls"])]  # patches at the border and others
    rows = []
    for place, words in {"before": "before the last norm", "after": "after the last norm"}.items():
        own = returned[returned["place"] == place]
        count = own["count"].sum()
        mean, high = ((own[name] * own["count"]).sum() / count for name in ("mean", "high"))
        rows.append([words, number(mean), number(own["max"].max()), percentage(high), f"{count:,}"])
    header = ["", "mean ‖x‖", "largest", "beyond twice the median of their image", "patches"]
    shares = [run.metrics[f"sinks/text/with_bos/{name}/first"] for name in ("sink_rate", "mass", "contribution")]
    rate, weight, norms = map(percentage, shares)
    mixing = [percentage(run.metrics[f"mixing/{name}/mean"]) for name in ("attn_w", "attnres_n")]
    return (
        f"{table(header, rows)}\n{mixing[0]} of the attention weight goes to other tokens, which make {mixing[1]} of what a "
        f"token becomes with the residual connection. [CLS] is a sink in {rate} of the heads, with {weight} of the weight and "
        f"{norms} of the norms that heads contribute. {_time(run).capitalize()}."
    )


def checked(run: Result) -> str:
    """What a checkup of SmolLM2 has measured, beside what other code did."""
    metrics = run.metrics
    rates = [metrics[f"sinks/text/with_bos/{name}/first"] for name in ("sink_rate", "mass", "contribution")]
    effects = run.tables["sinks_ablation"].query("measure == 'loss'").set_index("value")
    losses = [*effects.loc["zero", ["before", "after"]], effects.loc["mean", "after"]]
    rounding = run.tables["rounding"].set_index("rounded")
    random = rounding.loc[[name for name in rounding.index if name.startswith("without_random")], "loss"]
    costs = [
        rounding.loc["int8_per_tensor", "loss_before"],
        *rounding.loc[["int8_per_tensor", "without_skipped"], "loss"],
    ]
    rows = [
        [
            "heads in which the first token is a sink, with its share of the weight and of what heads contribute",
            ", ".join(map(brief_share, rates)),
            "65.0 to 70.2%, 42%, 22%",
        ],
        [
            "largest activation, and × median",
            f"{brief(metrics['sinks/massive/largest'])}, {brief(metrics['sinks/massive/ratio'])}",
            "24,890, 15,150",
        ],
        [
            "loss with massive activations as they are, set to zero, set to their mean",
            ", ".join(fixed(loss, 2) for loss in losses),
            "4.0, 17, 4.0",
        ],
        [
            "loss in float32, in int8 with one scale per tensor, with the skip list, with random lists",
            f"{', '.join(fixed(cost, 2) for cost in costs)}, {fixed(random.min(), 2)} to {fixed(random.max(), 2)}",
            "4.17, 4.94, 4.30, no change",
        ],
    ]
    intervals = [_interval(rounding.loc[name], "loss", 2) for name in ("int8_per_tensor", "without_skipped")]
    return (
        f"{table(['', 'ours', 'other code, on other texts'], rows)}\nThe loss in int8 rises by {intervals[0]}; with the skip "
        f"list, by {intervals[1]} (95% intervals over texts)."
    )


def _interval(row: "pd.Series[float]", name: str, decimals: int) -> str:
    """The change of the loss and the ends of its interval."""
    change, low, high = (fixed(row[f"{name}_{end}"], decimals) for end in ("change", "low", "high"))
    return f"{change} ({low} to {high})"


def pairs(minilm: Result, reaction: Result) -> str:
    """How far tuned models have moved from their bases."""
    rows = []
    for words, run in {"MiniLM tuned on 636 pairs": minilm, "reaction BERT tuned for 50 classes": reaction}.items():
        moved = run.tables["against"].set_index("layer")
        weights, last = moved["weights"], moved.iloc[-1]
        ends = f"{percentage(last['vectors_low'], decimals=0)} to {percentage(last['vectors_high'], decimals=0)}"
        rows.append(
            [
                words,
                f"{percentage(weights.min())} to {percentage(weights.max())}",
                str(weights.idxmax()),
                f"{percentage(last['vectors'], decimals=0)} ({ends})",
            ]
        )
    header = [
        "pair",
        "change of the weights by layer",
        "most in layer",
        "hidden vectors after the last layer, 95% interval",
    ]
    return table(header, rows)


TABLES: Mapping[tuple[str, str], tuple[Callable[..., str], tuple[str, ...]]] = {
    ("gu2025", "sink_rates"): (sink_rates, ("gu2025",)),
    ("sun2024", "massive"): (massive, ("sun2024",)),
    ("cunningham2026", "contributions"): (contributions, ("cunningham2026",)),
    ("sun2026", "spikes"): (spikes, ("sun2026_before", "sun2026_after")),
    ("kobayashi2020", "distilbert"): (published_beside, ("kobayashi2020",)),
    ("dinov2_norms", "patches"): (patches, ("dinov2_norms",)),
    ("real_weights", "smollm2"): (checked, ("checkup_smollm2",)),
    ("real_weights", "pairs"): (pairs, ("against_minilm", "against_reactions")),
}
"""What fills each table, by the folder of its README and its name, and the runs that it takes."""


if __name__ == "__main__":
    sys.exit(main())
