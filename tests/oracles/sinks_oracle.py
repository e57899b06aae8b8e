"""The sinks analysis by brute force."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch

from normscope.analyses.declarations.sinks import SinkInput, SinksOptions
from normscope.data.token_sequence import fingerprint
from normscope.results.result import Result
from tests.oracles.activations import Block, Sequence_
from tests.oracles.comparison import Expected, Picture, assert_expected, said, spoken, table
from tests.oracles.score_oracle import CHANGES, _drawn, _row, _weight_by_category
from tests.oracles.specimens import CHOICES, Specimen, made, reported

PLACE = ["layer", "head", "inputs", "bos"]
BOS = {True: "with_bos", False: "without_bos"}
WORDS = {"text": "text", "random": "random tokens", "repeat": "one token repeated"}
Variants = dict[tuple[str, bool], list[Sequence_]]


def expected(specimen: Specimen, layers: Sequence[int], categories: Sequence[str], options: SinksOptions) -> Expected:
    """Everything that the sinks analysis returns."""
    variants = sequences_of(specimen, options)
    positions = ["first", *(category for category in categories if category not in ("first", "all"))]
    tables = _rates(specimen, layers, positions, options, variants) | _massive(specimen)
    tables |= _ablation(specimen, layers, categories, options, tables["massive"])
    means = tables["by_head"].groupby(["inputs", "bos", "position"]).mean()
    main = None
    if variants:
        of_first = means.xs(next(iter(variants)), level=("inputs", "bos"))
        weighty = of_first[(of_first["mass"] >= 0.03 * of_first["sink_rate"]) | (of_first.index == "first")]
        main = weighty["sink_rate"].idxmax()
        if weighty["sink_rate"][main] < 0.01:
            main = "first"
    metrics = _metrics(tables)
    if variants:
        metrics["sink_rates/sequences"] = max(map(len, variants.values()))
        if all(len(sequences) > 1 for sequences in variants.values()):
            metrics["sink_rates/half_width"] = max(_half_width(each, layers, options) for each in variants.values())
    return Expected(
        tables=tables,
        metrics=metrics,
        curves=_curves(specimen, tables, main),
        figures=_figures(specimen, tables, main),
        summary=_summary(specimen, means, main),
        sentences=said("sinks", metrics, _begins(specimen) or "BOS", options.length),
        notes=_notes(specimen, options, tables),
    )


def first_token(specimen: Specimen) -> int | None:
    """The token that begins sequences."""
    tokenizer = specimen.loaded.tokenizer
    return tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.cls_token_id


def _begins(specimen: Specimen) -> str | None:
    token = first_token(specimen)
    return None if token is None else str(specimen.loaded.tokenizer.convert_ids_to_tokens(token))


def _label(specimen: Specimen, inputs: str, bos: bool) -> str:
    begin = _begins(specimen)
    return WORDS[inputs] if begin is None else f"{WORDS[inputs]}, {'with' if bos else 'without'} {begin}"


def sequences_of(specimen: Specimen, options: SinksOptions) -> Variants:
    """The sequences that rates are measured on, as the model reads and processes them."""
    tokenizer, begin = specimen.loaded.tokenizer, first_token(specimen)
    special = {*tokenizer.all_special_ids}
    ordinary = [token for token in range(len(tokenizer)) if token not in special]
    found: Variants = {}
    for inputs, bos in itertools.product(map(str, options.inputs), (True, False) if begin is not None else (False,)):
        sequences = []
        for sequence in specimen.sequences:
            # The original without its first special token, and its special tokens at the end apart.
            ids = sequence.ids.tolist()
            segments = (
                sequence.inputs["token_type_ids"][0].tolist() if "token_type_ids" in sequence.inputs else [0] * len(ids)
            )
            pairs = list(zip(ids, segments, strict=True))[int(ids[0] == begin) :]
            tail: list[tuple[int, int]] = []
            while pairs[-1][0] in special:
                tail.insert(0, pairs.pop())
            head = [(begin, segments[0])] if bos else []
            room = options.length - len(head) - len(tail)
            if not 1 <= room <= len(pairs):
                continue
            cut = [*head, *pairs[:room], *tail]
            numbers = np.array([token for token, _ in cut])
            generator = np.random.default_rng(
                [options.seed, fingerprint(numbers), ["text", "random", "repeat"].index(inputs)]
            )
            words = [place for place, token in enumerate(numbers) if token not in special]
            if inputs == "random":
                numbers[words] = generator.choice(ordinary, size=len(words))
            elif inputs == "repeat":
                numbers[words] = generator.choice(ordinary)
            given = {"input_ids": torch.from_numpy(numbers)[None]}
            if "token_type_ids" in sequence.inputs:
                given["token_type_ids"] = torch.tensor([[segment for _, segment in cut]])
            sequences.append(specimen.brute_force(specimen.loaded.model, given))
        if sequences:
            found[inputs, bos] = sequences
    return found


def importance_of(block: Block) -> np.ndarray:
    """αₖ of every head: Gu et al. 2025, the mean over the queries that see key k."""
    values = np.zeros(block.alpha.shape[::2])
    for head, key in np.ndindex(*values.shape):
        queries = np.flatnonzero(block.visible[:, key])
        values[head, key] = sum(block.alpha[head, query, key] for query in queries) / len(queries)
    return values


def _rates(
    specimen: Specimen, layers: Sequence[int], positions: Sequence[str], options: SinksOptions, variants: Variants
) -> dict[str, pd.DataFrame]:
    rows = []
    for (inputs, bos), sequences in variants.items():
        for layer, head in itertools.product(layers, range(1, len(sequences[0].blocks[0].alpha) + 1)):
            values: dict[str, list[float]] = {position: [] for position in positions}
            shares: dict[str, list[tuple[float, float]]] = {position: [] for position in positions}
            for sequence in sequences:
                block = sequence.blocks[layer - 1]
                of_token = specimen.categories(sequence)
                weight, norms = block.alpha[head - 1].sum(axis=0), block.weighted[head - 1].sum(axis=0)
                for position in positions:
                    chosen = [0] if position == "first" else np.flatnonzero(of_token == position)
                    values[position] += importance_of(block)[head - 1][chosen].tolist()
                    shares[position].append(
                        (weight[chosen].sum() / len(sequence.ids), norms[chosen].sum() / norms.sum())
                    )
            for position in positions:
                if values[position]:
                    found = np.array(values[position])
                    mass, contribution = np.mean(shares[position], axis=0)
                    rows.append(
                        {"layer": layer, "head": head, "inputs": inputs, "bos": bos, "position": position}
                        | {"received": found.mean(), "sink_rate": float((found > options.epsilon).mean())}
                        | {"mass": mass, "contribution": contribution, "count": len(found)}
                    )
    columns = ["received", "sink_rate", "mass", "contribution", "count"]
    return {"by_head": table([*PLACE, "position"], rows, columns)}


def massive_of(hidden: np.ndarray) -> list[tuple[int, int]]:
    """Token and dimension of the massive activations of one sequence in one layer."""
    sizes = np.abs(hidden)
    return [tuple(place) for place in np.argwhere((sizes > 100) & (sizes >= 1000 * np.median(sizes))).tolist()]


def _massive(specimen: Specimen) -> dict[str, pd.DataFrame]:
    massive = []
    for layer in range(specimen.loaded.layers + 1):
        vectors = [sequence.hidden[layer] for sequence in specimen.sequences]
        for sequence, values in zip(specimen.sequences, vectors, strict=True):
            middle = np.median(np.abs(values))
            for token, dimension in massive_of(values):
                massive.append(
                    {
                        "layer": layer,
                        "dimension": dimension,
                        "position": token + 1,
                        "token": specimen.loaded.tokenizer.convert_ids_to_tokens(int(sequence.ids[token])),
                        "value": values[token, dimension],
                        "std": values[token, dimension],
                        "median": middle,
                        "ratio": abs(values[token, dimension]) / middle,
                        "sequences": 1,
                    }
                )
    keys = ["layer", "dimension", "position", "token"]
    every = table(keys, massive, ["value", "std", "median", "ratio", "sequences"])
    rows = every.groupby(keys)
    if len(every):
        every = rows.mean().assign(sequences=rows["sequences"].sum(), std=rows["value"].std(ddof=0))
    return {"massive": every}


def _half_width(sequences: Sequence[Sequence_], layers: Sequence[int], options: SinksOptions) -> float:
    """That of Student's interval of the first token's sink rate or weight, whichever is wider."""
    values = []
    for sequence in sequences:
        blocks = [sequence.blocks[layer - 1] for layer in layers]
        rates = [np.mean(importance_of(block)[:, 0] > options.epsilon) for block in blocks]
        masses = [block.alpha[:, :, 0].sum() / len(block.alpha) / len(sequence.ids) for block in blocks]
        values.append((np.mean(rates), np.mean(masses)))
    errors = scipy.stats.sem(np.array(values))
    return float(scipy.stats.t.ppf(0.975, len(values) - 1) * errors.max())


def _ablation(
    specimen: Specimen,
    layers: Sequence[int],
    categories: Sequence[str],
    options: SinksOptions,
    massive: pd.DataFrame,
) -> dict[str, pd.DataFrame]:
    """The model again, with hooks that replace dimensions of the tokens with massive activations."""
    read = massive[massive.index.get_level_values("layer") < max(layers)]
    if not options.ablation or not len(read):
        return {}
    start = int(read.index.get_level_values("layer").min()) + 1
    replaced, reported = sorted({*read.index.get_level_values("dimension")}), [c for c in categories if c != "all"]
    drawn = _drawn(specimen, replaced, options.controls, options.seed, alone=False)
    changed = [layer for layer in layers if layer >= start]

    def measures(value: str, dimensions: Sequence[int]) -> dict[str, float]:
        weight, loss = _replaced(specimen, start, value, dimensions, replaced)
        of_loss = {} if _head(specimen) is None else {"loss": loss}
        weights = {f"weight_on_{name}": np.mean([weight(layer, name) for layer in changed]) for name in reported}
        return of_loss | {name: float(value) for name, value in weights.items()}

    before, rows = measures("zero", []), []
    for value in ("zero", "mean"):
        after, others = measures(value, replaced), [measures(value, one) for one in drawn.get(len(replaced), [])]
        rows += [
            {"value": value, "measure": name} | _row(before[name], after[name], [other[name] for other in others])
            for name in before
            if before[name] > 0
        ]
    return {"ablation": table(["value", "measure"], rows, CHANGES).assign(sequences=len(specimen.sequences))}


def _carriers(specimen: Specimen, layer: int) -> np.ndarray | None:
    """Mean hidden vector of the tokens with massive activations."""
    carrying = [
        sequence.hidden[layer, token]
        for sequence in specimen.sequences
        for token in sorted({token for token, _ in massive_of(sequence.hidden[layer])})
    ]
    return np.mean(carrying, axis=0) if carrying else None


def _head(specimen: Specimen) -> Any:
    return specimen.loaded.next_token_head or specimen.loaded.masked_language_head


def _loss(specimen: Specimen) -> float:
    """Mean cross-entropy of the tokens that the encoder masks; in a causal model, of all tokens but the first."""
    head, causal = _head(specimen), specimen.loaded.next_token_head is not None
    if head is None:
        return 0.0
    losses: list[float] = []
    for sequence in specimen.sequences:
        ids = sequence.ids
        read = ids if causal else specimen.encoder.masked(ids, 0.15)
        with torch.inference_mode():
            inputs = dict(sequence.inputs) | {"input_ids": torch.from_numpy(read)[None]}
            logits = head(**inputs).logits[0].numpy()
        positions = range(1, len(ids)) if causal else np.flatnonzero(read != ids)
        for position in positions:
            row = logits[position - causal]
            losses.append(float(np.log(np.exp(row - row.max()).sum()) + row.max() - row[ids[position]]))
    return float(np.mean(losses))


def _replaced(
    specimen: Specimen, start: int, value: str, dimensions: Sequence[int], massive: Sequence[int]
) -> tuple[Callable[[int, str], float], float]:
    """Weight by layer and category, and the loss, with dimensions replaced at the tokens with massive ones."""
    model: Any = specimen.loaded.model
    modules, handles = model.encoder.layer if hasattr(model, "encoder") else model.layers, []
    for layer, module in enumerate(modules, start=1):
        mean = _carriers(specimen, layer - 1)
        if layer < start or not dimensions or mean is None:
            continue
        filling = mean[list(dimensions)] if value == "mean" else np.zeros(len(dimensions))

        def replace(_module, args, filling=filling):
            vectors = args[0].clone()
            for row, hidden in enumerate(args[0].numpy()):
                for token in {token for token, dimension in massive_of(hidden) if dimension in massive}:
                    vectors[row, token, list(dimensions)] = torch.from_numpy(filling)
            return (vectors, *args[1:])

        handles.append(module.register_forward_pre_hook(replace))
    changed = [specimen.brute_force(model, sequence.inputs) for sequence in specimen.sequences]
    loss = _loss(specimen)
    for handle in handles:
        handle.remove()

    def weight(layer: int, category: str) -> float:
        alphas = [(sequence, sequence.blocks[layer - 1].alpha) for sequence in changed]
        return float(np.mean([_weight_by_category(specimen, one, alpha)(category) for one, alpha in alphas]))

    return weight, loss


def _variants_of(frame: pd.DataFrame) -> Iterator[tuple[tuple[str, bool], pd.DataFrame]]:
    if len(frame):
        yield from frame.groupby(["inputs", "bos"], sort=False)


def _metrics(tables: dict[str, pd.DataFrame]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for name in ("sink_rate", "mass", "contribution"):
        for (inputs, bos), rows in _variants_of(tables["by_head"]):
            for position, values in rows[name].groupby("position"):
                metrics[f"{inputs}/{BOS[bos]}/{name}/{position}"] = values.mean()
    massive = tables["massive"]
    metrics["massive/count"] = float(massive.index.get_level_values("dimension").nunique())
    if len(massive):
        layers = massive.index.get_level_values("layer")
        largest = massive.iloc[int(np.abs(massive["value"].to_numpy()).argmax())]
        metrics |= {"massive/first_layer": layers.min(), "massive/last_layer": layers.max()}
        metrics |= {"massive/largest": abs(largest["value"]), "massive/ratio": largest["ratio"]}
    if "ablation" in tables:
        metrics["ablation/sequences"] = tables["ablation"]["sequences"].max()
        for (value, measure), row in tables["ablation"].iterrows():
            metrics |= {f"ablation/{value}/{measure}/{name}": row[name] for name in ("before", "after")}
            if not np.isnan(row["controls_mean"]):
                metrics[f"ablation/{value}/{measure}/controls"] = row["before"] + row["controls_mean"]
    return metrics


def _largest(specimen: Specimen) -> dict[int, float]:
    layers = range(specimen.loaded.layers + 1)
    return {layer: np.mean([np.abs(one.hidden[layer]).max() for one in specimen.sequences]) for layer in layers}


def _curves(specimen: Specimen, tables: dict[str, pd.DataFrame], main: str | None) -> dict[str, dict[int, float]]:
    curves: dict[str, dict[int, float]] = {"max_abs": _largest(specimen)}
    if main is not None:
        rates = tables["by_head"].xs(main, level="position")["sink_rate"]
        for (inputs, bos), rows in _variants_of(rates.to_frame()):
            curves[f"{inputs}/{BOS[bos]}/sink_rate/{main}"] = rows["sink_rate"].groupby("layer").mean().to_dict()
    return curves


def _figures(specimen: Specimen, tables: dict[str, pd.DataFrame], main: str | None) -> dict[str, Picture]:
    largest = {(None, "largest |x|", layer): value for layer, value in _largest(specimen).items()}
    figures = {"largest": Picture(largest, {"log_y": True})}
    if main is not None:
        rows = tables["by_head"].xs(main, level="position")
        titles = {
            "sink_rate": "sink rate",
            "mass": "share of the weight",
            "contribution": "share of the contribution",
        }
        variants = list(
            dict.fromkeys(zip(*(rows.index.get_level_values(name) for name in ("inputs", "bos")), strict=True))
        )
        figures["rate"] = Picture(
            {
                (None, title, layer, head): row[name]
                for (layer, head, *variant), row in rows.iterrows()
                for name, title in titles.items()
                if tuple(variant) == variants[0]
            },
            {"limits": (0.0, 1.0)},
        )
        if len(variants) > 1:
            means = {
                (title, _label(specimen, *variant)): 100 * values.mean()
                for name, title in titles.items()
                for variant, values in rows[name].groupby(["inputs", "bos"], sort=False)
            }
            figures["by_input"] = Picture(means, {"order": list(dict.fromkeys(row for _, row in means))})
    return figures


def _summary(specimen: Specimen, means: pd.DataFrame, main: str | None) -> pd.DataFrame:
    if main is None:
        return pd.DataFrame()
    rows = {}
    for (inputs, bos), found in _variants_of(means):
        of_sink, of_first = (100 * found.loc[(inputs, bos, position)] for position in (main, "first"))
        rows[_label(specimen, inputs, bos)] = {
            f"sink rate of {'the first token' if main == 'first' else spoken(main)} %": of_sink["sink_rate"],
            "its weight %": of_sink["mass"],
            "its contribution %": of_sink["contribution"],
        } | ({} if main == "first" else {"first token's weight %": of_first["mass"]})
    return pd.DataFrame.from_dict(rows, orient="index")


def _notes(specimen: Specimen, options: SinksOptions, tables: dict[str, pd.DataFrame]) -> list[str]:
    begin = first_token(specimen)
    lengths = [len(s.ids) - (s.ids[0] == begin) + (begin is not None) for s in specimen.sequences]
    short = sum(length < options.length for length in lengths)
    notes = []
    if short == len(lengths):
        notes.append(
            f"no sequence has {options.length} tokens or more, so sink rates are not measured (analysis.sinks.length)"
        )
    elif short:
        sequences = "1 sequence" if short == 1 else f"{short} sequences"
        notes.append(
            f"sink rates leave out {sequences} with fewer than {options.length} tokens (analysis.sinks.length)"
        )
    if begin is None:
        notes.append("the tokenizer has no beginning-of-sequence token, so sink rates are only measured without one")
    if "ablation" in tables and _head(specimen) is None:
        notes.append(
            "the checkpoint has no language-modelling head, so the effect of massive activations on the loss is not measured"
        )
    return notes


def everything() -> Result:
    """Everything that the analysis can return, on a tiny model."""
    options = SinksOptions(length=6, controls=1, seed=0)
    return made("massive").findings("sinks", options, [1, 2], ["other", "first"])


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("name", ["massive", "qwen2", "bert"])  # the quick one of the first has ablations
@pytest.mark.spread(1)
def test_sinks(name, choice):
    specimen, (layers, categories) = made(name), CHOICES[choice]
    categories = reported(specimen, categories)
    options = {
        "everything": SinksOptions(length=6, epsilon=0.2, controls=2, seed=3),
        "some": SinksOptions(inputs=[SinkInput.random, SinkInput.text], length=4, epsilon=0.35, controls=1, seed=4),
        "all": SinksOptions(length=30, ablation=False, seed=5),  # no sequence is long enough
    }[choice]
    findings = specimen.findings("sinks", options, layers, categories)
    assert_expected(findings, expected(specimen, layers, categories, options))


SINK = {
    "text/with_bos/sink_rate/first": 0.6,
    "text/with_bos/sink_rate/sep": 0.25,
    "text/with_bos/mass/first": 0.5,
    "text/with_bos/contribution/first": 0.12,
    "random/without_bos/sink_rate/first": 0.4,
    "random/without_bos/sink_rate/sep": 0.9,
}
MASSIVE = {
    "massive/count": 2.0,
    "massive/first_layer": 3.0,
    "massive/last_layer": 11.0,
    "massive/largest": 3024.0,
    "massive/ratio": 12345.0,
}

CASES = [
    ({}, []),
    (
        SINK,
        [
            "On text with BOS, the first token is a sink in 60% of the heads, with 50% of the attention weight and 12% of "
            "the norms ‖αf(x)‖ of what heads contribute."
        ],
    ),
    (
        SINK
        | {
            "text/without_bos/sink_rate/first": 0.1,
            "random/with_bos/sink_rate/first": 0.5,
            "repeat/with_bos/sink_rate/first": 0.3,
        },
        [
            "On text with BOS, the first token is a sink in 60% of the heads, with 50% of the attention weight and 12% of "
            "the norms ‖αf(x)‖ of what heads contribute.",
            "The sink rate of whichever token comes first is 10% without BOS, 50% on random tokens and 30% on one token "
            "repeated.",
        ],
    ),
    (
        {"text/without_bos/sink_rate/first": 0.0, "text/without_bos/sink_rate/other": 0.009},
        ["On text, the first token is a sink in 0% of the heads."],
    ),
    (
        SINK | {"text/with_bos/contribution/first": 0.0},
        [
            "On text with BOS, the first token is a sink in 60% of the heads, with 50% of the attention weight and 0% of "
            "the norms ‖αf(x)‖ of what heads contribute."
        ],
    ),
    (
        {
            "text/with_bos/sink_rate/first": 0.1,
            "text/with_bos/sink_rate/sep": 0.25,
            "text/without_bos/sink_rate/sep": 0.3,
        },
        {"first_token": "[CLS]", "length": 64},
        [
            "On the first 64 tokens of text with [CLS], [SEP] tokens are, on average, sinks in 25% of the heads.",
            "The sink rate of [SEP] tokens is 30% without [CLS].",
        ],
    ),
    *(
        (
            # Every head has its last [SEP] look at itself, in texts of 64 tokens of a causal model.
            {
                "text/without_bos/sink_rate/first": 0.5,
                "text/without_bos/sink_rate/sep": 0.9,
                "text/without_bos/mass/first": 0.15,
                "text/without_bos/mass/sep": mass,
                "text/without_bos/contribution/first": 0.2,
                "text/without_bos/contribution/sep": 0.2,
            },
            [
                f"On text, {subject} of the heads, with {weight} of the attention weight and 20% of the norms ‖αf(x)‖ of "
                "what heads contribute.",
            ],
        )
        for mass, subject, weight in (
            (0.0269, "the first token is a sink in 50%", "15%"),
            (0.0271, "[SEP] tokens are, on average, sinks in 90%", "2.7%"),
        )
    ),
    (
        {"text/without_bos/sink_rate/first": 0.0, "text/without_bos/sink_rate/other": 0.01},
        ["On text, other tokens are, on average, sinks in 1.0% of the heads."],
    ),
    (
        {"text/without_bos/sink_rate/cls": 0.25, "text/without_bos/mass/nowhere": 0.125},
        [
            "On text, [CLS] tokens are, on average, sinks in 25% of the heads; learned sinks take 13% of the weight, which "
            "goes to no key.",
        ],
    ),
    (
        {"massive/count": 0.0},
        ["There are no massive activations: no value exceeds 100 and is at least 1,000 times the median."],
    ),
    (
        MASSIVE,
        ["2 dimensions have massive activations in layers 3 to 11, up to 3,020 (12,300 times the median)."],
    ),
    (
        MASSIVE | {"massive/count": 1.0, "massive/last_layer": 3.0},
        ["1 dimension has massive activations in layer 3, up to 3,020 (12,300 times the median)."],
    ),
    (
        MASSIVE | {"ablation/zero/loss/before": 3.4, "ablation/zero/loss/after": 3.401},
        [
            "2 dimensions have massive activations in layers 3 to 11, up to 3,020 (12,300 times the median); setting "
            "them to zero leaves the loss at 3.4 nats."
        ],
    ),
    (
        MASSIVE
        | {
            "ablation/zero/loss/before": 3.4,
            "ablation/zero/loss/after": 9.0,
            "ablation/zero/loss/controls": 3.42,
        },
        [
            "2 dimensions have massive activations in layers 3 to 11, up to 3,020 (12,300 times the median); setting "
            "them to zero changes the loss from 3.40 to 9.0 nats; with as many random dimensions set to zero, the loss is "
            "3.42."
        ],
    ),
]

EFFECTS = [
    (
        {
            "text/with_bos/sink_rate/first": 0.5,
            "text/with_bos/mass/first": 0.31,
            "text/with_bos/contribution/first": 0.026,
        },
        {},
        0.284,
    ),
]

CLAIMS = {
    r"changes the loss from (\S+) to (\S+) nats": lambda before, after: before != after,
}
