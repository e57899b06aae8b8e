"""The sinks analysis by brute force."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import scipy.stats
import torch

from normscope.analyses.sinks.options import SinksOptions
from normscope.data.token_sequence import fingerprint
from tests.oracles.activations import Block, Sequence_
from tests.oracles.comparison import (
    Expected,
    Picture,
    clearly_apart,
    percent,
    spoken,
    table,
    three_digits,
    visibly_apart,
)
from tests.oracles.score_oracle import CHANGES, _drawn, _head, _loss, _removals, _row, _weight_by_category
from tests.oracles.specimens import Specimen

PLACE = ["layer", "head", "inputs", "bos"]
BOS = {True: "with_bos", False: "without_bos"}
WORDS = {"text": "text", "random": "random tokens", "repeat": "one token repeated"}
Variants = dict[tuple[str, bool], list[Sequence_]]


def expected(specimen: Specimen, layers: Sequence[int], categories: Sequence[str], options: SinksOptions) -> Expected:
    """Everything that the sinks analysis publishes."""
    variants = made(specimen, options)
    positions = ["first", *(category for category in categories if category not in ("first", "all"))]
    tables = _rates(specimen, layers, positions, options, variants)
    tables |= _hidden(specimen)
    tables |= _ablation(specimen, layers, categories, options, tables["massive"])
    rates = tables["summary"]["sink_rate"]
    of_first = {name: rates.get((*next(iter(variants)), name), -1.0) for name in positions} if len(rates) else {}
    mass = tables["mass"]["mass"].groupby(["inputs", "bos", "position"]).mean()
    weights = {name: mass.get((*next(iter(variants)), name), 0.0) for name in positions} if len(rates) else {}
    candidates = [
        name for name in positions if name == "first" or weights.get(name, 0.0) >= 0.03 * of_first.get(name, 0)
    ]
    main = max(candidates, key=of_first.__getitem__) if of_first else None
    if main is not None and of_first[main] < 0.01:
        main = "first"
    metrics = _metrics(tables)
    if variants:
        metrics["sink_rates/sequences"] = max(map(len, variants.values()))
    return Expected(
        tables=tables,
        metrics=metrics,
        curves=_curves(tables, main),
        figures=_figures(specimen, tables, main),
        summary=_summary(specimen, tables, main),
        sentences=_sentences(specimen, tables, metrics, main, variants, options.dormant),
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


def made(specimen: Specimen, options: SinksOptions) -> Variants:
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


def strongest(block: Block) -> np.ndarray:
    """The key that receives most, head by head; of equal ones the first."""
    received = block.alpha.sum(axis=1)
    return np.array([np.flatnonzero(row > row.max() - 1e-5 * row.max())[0] for row in received])


def _rates(
    specimen: Specimen, layers: Sequence[int], positions: Sequence[str], options: SinksOptions, variants: Variants
) -> dict[str, pd.DataFrame]:
    by_head, mass, by_strength = [], [], []
    for (inputs, bos), sequences in variants.items():
        for layer, head in itertools.product(layers, range(1, len(sequences[0].blocks[0].alpha) + 1)):
            place = {"layer": layer, "head": head, "inputs": inputs, "bos": bos}
            values: dict[str, list[float]] = {position: [] for position in positions}
            weight: dict[str, list[float]] = {position: [] for position in positions}
            keys, tokens, entropies, dormant = [], [], [], []
            for sequence in sequences:
                block = sequence.blocks[layer - 1]
                of_token, length = specimen.categories(sequence), len(sequence.ids)
                share = block.alpha[head - 1].sum(axis=0) / length
                for position in positions:
                    chosen = [0] if position == "first" else np.flatnonzero(of_token == position)
                    values[position] += importance_of(block)[head - 1][chosen].tolist()
                    weight[position].append(share[chosen].sum())
                keys.append(int(strongest(block)[head - 1]))
                tokens.append(int(sequence.ids[keys[-1]]))
                entropies.append(scipy.stats.entropy(share))
                dormant.append(share.max() > options.dormant)
            for position in positions:
                if values[position]:
                    found = np.array(values[position])
                    row = place | {"position": position}
                    rate = float((found > options.epsilon).mean())
                    by_head.append(row | {"received": found.mean(), "sink_rate": rate, "count": len(found)})
                    mass.append(row | {"mass": np.mean(weight[position])})
            key = min(set(keys), key=lambda key: (-keys.count(key), key))
            standing = [token for token, where in zip(tokens, keys, strict=True) if where == key]
            token = min(set(standing), key=lambda token: (-standing.count(token), token))
            by_strength.append(
                place
                | {
                    "position": key + 1,
                    "token": specimen.loaded.tokenizer.convert_ids_to_tokens(token),
                    "share": keys.count(key) / len(keys),
                    "entropy": np.mean(entropies),
                    "dormant": np.mean(dormant),
                    "nowhere": 0.0,
                }
            )
    heads = table([*PLACE, "position"], by_head, ["received", "sink_rate", "count"])
    rates = heads["sink_rate"].groupby(["inputs", "bos", "position"], sort=False).mean()
    summary = pd.DataFrame({"epsilon": options.epsilon, "sink_rate": rates})
    return {
        "by_head": heads,
        "mass": table([*PLACE, "position"], mass, ["mass"]),
        "strongest": table(PLACE, by_strength, ["position", "token", "share", "entropy", "dormant", "nowhere"]),
        "summary": summary if len(heads) else table(["inputs", "bos", "position"], [], ["epsilon", "sink_rate"]),
    }


def massive_of(hidden: np.ndarray) -> list[tuple[int, int]]:
    """Token and dimension of the massive activations of one sequence in one layer."""
    sizes = np.abs(hidden)
    return [tuple(place) for place in np.argwhere((sizes > 100) & (sizes >= 1000 * np.median(sizes))).tolist()]


def _hidden(specimen: Specimen) -> dict[str, pd.DataFrame]:
    depth = specimen.loaded.layers
    magnitude, norms, massive = [], [], []
    for layer in range(depth + 1):
        vectors = [sequence.hidden[layer] for sequence in specimen.sequences]
        flat = [values.ravel() for values in vectors]
        magnitude.append(
            {
                "layer": layer,
                "max_abs": np.mean([np.abs(values).max() for values in flat]),
                "kurtosis": np.mean([scipy.stats.kurtosis(values, fisher=False) for values in flat]),
                "beyond_6_sigma": np.mean([(np.abs(scipy.stats.zscore(values)) > 6).mean() for values in flat]),
            }
        )
        for place in range(5):
            sizes = [
                np.linalg.norm(values[token])
                for values in vectors
                for token in ([place] if place < 4 else range(4, len(values)))
                if token < len(values)
            ]
            if sizes:
                name = str(place + 1) if place < 4 else "5 or later"
                norms.append({"layer": layer, "position": name, "norm": np.mean(sizes), "count": len(sizes)})
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
                        "median": middle,
                        "ratio": abs(values[token, dimension]) / middle,
                        "sequences": 1,
                    }
                )
    keys = ["layer", "dimension", "position", "token"]
    every = table(keys, massive, ["value", "median", "ratio", "sequences"])
    rows = every.groupby(keys)
    joined = rows.mean().assign(sequences=rows["sequences"].sum()) if len(every) else every
    return {
        "magnitude": table(["layer"], magnitude),
        "norms": table(["layer", "position"], norms),
        "massive": joined,
    }


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
    ratios = read["ratio"].groupby("dimension").max()
    prominent = sorted(ratios.index, key=lambda j: -ratios[j])
    outliers, reported = sorted(prominent), [category for category in categories if category != "all"]
    drawn = _drawn(specimen, outliers, options.controls, options.seed, alone=False)
    before, loss_before = _replaced(specimen, start, "zero", [], prominent)
    rows, losses = [], []
    for value in ("zero", "mean"):
        random = {
            size: [_replaced(specimen, start, value, one, prominent) for one in sets] for size, sets in drawn.items()
        }
        for name, dimensions in _removals(outliers, sorted(prominent[:8])):
            after, loss = _replaced(specimen, start, value, dimensions, prominent)
            others = random.get(len(dimensions), [])
            place = {"from_layer": start, "value": value, "removed": name, "dimensions": " ".join(map(str, dimensions))}
            losses.append(place | _row(loss_before, loss, [lost for _, lost in others]))
            for layer, category in itertools.product(layers, reported):
                if layer >= start and before(layer, category) > 0:
                    controls = [weight(layer, category) for weight, _ in others]
                    numbers = _row(before(layer, category), after(layer, category), controls)
                    rows.append(place | {"layer": layer, "category": category} | numbers)
    keys = ["from_layer", "value", "removed", "dimensions"]
    tables = {"ablation": table([*keys, "layer", "category"], rows, CHANGES).assign(sequences=len(specimen.sequences))}
    return tables | ({"ablation_loss": table(keys, losses)} if _head(specimen) is not None else {})


def _carriers(specimen: Specimen, layer: int) -> np.ndarray | None:
    """Mean hidden vector of the tokens with massive activations."""
    carrying = [
        sequence.hidden[layer, token]
        for sequence in specimen.sequences
        for token in sorted({token for token, _ in massive_of(sequence.hidden[layer])})
    ]
    return np.mean(carrying, axis=0) if carrying else None


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
    for name, source in (("sink_rate", "by_head"), ("mass", "mass")):
        for (inputs, bos), rows in _variants_of(tables[source]):
            for position, values in rows[name].groupby("position"):
                metrics[f"{inputs}/{BOS[bos]}/{name}/{position}"] = values.mean()
    for (inputs, bos), rows in _variants_of(tables["strongest"]):
        metrics |= {f"{inputs}/{BOS[bos]}/{name}": rows[name].mean() for name in ("entropy", "dormant", "nowhere")}
    massive = tables["massive"]
    metrics["massive/count"] = float(massive.index.get_level_values("dimension").nunique())
    if len(massive):
        layers = massive.index.get_level_values("layer")
        largest = massive.iloc[int(np.abs(massive["value"].to_numpy()).argmax())]
        metrics |= {"massive/first_layer": layers.min(), "massive/last_layer": layers.max()}
        metrics |= {"massive/largest": abs(largest["value"]), "massive/ratio": largest["ratio"]}
    magnitude = tables["magnitude"]
    metrics["magnitude/max_abs"] = magnitude["max_abs"].max()
    metrics["magnitude/kurtosis"] = magnitude["kurtosis"].mean()
    metrics["magnitude/beyond_6_sigma"] = magnitude["beyond_6_sigma"].mean()
    if "ablation" in tables:
        metrics["ablation/sequences"] = tables["ablation"]["sequences"].max()
        together = tables["ablation"].xs("outliers", level="removed")
        for (value, category), rows in together.groupby(["value", "category"]):
            metrics[f"ablation/{value}/before/{category}"] = rows["before"].mean()
            metrics[f"ablation/{value}/after/{category}"] = rows["after"].mean()
    if "ablation_loss" in tables:
        for value, rows in tables["ablation_loss"].xs("outliers", level="removed").groupby("value"):
            [row] = rows.to_dict("records")
            metrics |= {f"ablation/{value}/loss_{name}": row[name] for name in ("before", "after")}
            if not np.isnan(row["controls_mean"]):
                metrics[f"ablation/{value}/loss_controls"] = row["before"] + row["controls_mean"]
    return metrics


def _curves(tables: dict[str, pd.DataFrame], main: str | None) -> dict[str, dict[int, float]]:
    curves: dict[str, dict[int, float]] = {}
    if main is not None:
        rates = tables["by_head"].xs(main, level="position")["sink_rate"]
        for (inputs, bos), rows in _variants_of(rates.to_frame()):
            curves[f"{inputs}/{BOS[bos]}/sink_rate/{main}"] = rows["sink_rate"].groupby("layer").mean().to_dict()
    magnitude, massive = tables["magnitude"], tables["massive"].reset_index()
    curves |= {name: magnitude[name].to_dict() for name in ("max_abs", "kurtosis")}
    curves["massive"] = {
        layer: float(massive.loc[massive["layer"] == layer, "dimension"].nunique()) for layer in magnitude.index
    }
    return curves


def _figures(specimen: Specimen, tables: dict[str, pd.DataFrame], main: str | None) -> dict[str, Picture]:
    figures: dict[str, Picture] = {}
    if main is not None:
        rows = tables["by_head"].xs(main, level="position")
        titles = {"sink_rate": "sink rate", "received": "weight received, αₖ"}
        figures["rate"] = Picture(
            {
                (_label(specimen, inputs, bos), title, layer, head): row[name]
                for (layer, head, inputs, bos), row in rows.iterrows()
                for name, title in titles.items()
            },
            {"limits": (0.0, 1.0)},
        )
    norms = tables["norms"]["norm"]
    figures["norms"] = Picture(
        {(None, f"token {position}", layer): norm for (layer, position), norm in norms.items()}, {"log_y": True}
    )
    return figures


def _summary(specimen: Specimen, tables: dict[str, pd.DataFrame], main: str | None) -> pd.DataFrame:
    if main is None:
        return pd.DataFrame()
    rows = {}
    for (inputs, bos), found in _variants_of(tables["by_head"]):
        mass, strength = (tables[name].xs((inputs, bos), level=("inputs", "bos")) for name in ("mass", "strongest"))
        rows[_label(specimen, inputs, bos)] = {
            f"sink rate of {'the first token' if main == 'first' else spoken(main)} %": 100
            * found["sink_rate"].xs(main, level="position").mean(),
            "its weight %": 100 * mass["mass"].xs(main, level="position").mean(),
            **(
                {}
                if main == "first"
                else {"first token's weight %": 100 * mass["mass"].xs("first", level="position").mean()}
            ),
            "dormant heads %": 100 * strength["dormant"].mean(),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def number(value: float) -> str:
    """Three digits without a plus sign; thousands separated."""
    if abs(value) >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return three_digits(value).removeprefix("+")


def _listed(parts: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def _sentences(
    specimen: Specimen,
    tables: dict[str, pd.DataFrame],
    metrics: dict[str, float],
    main: str | None,
    variants: Variants,
    most: float,
) -> list[str]:
    sentences = []
    if main is not None:
        rates = tables["summary"]["sink_rate"]
        one, begin = next(iter(variants)), _begins(specimen)
        mass = tables["mass"].xs((*one, main), level=("inputs", "bos", "position"))["mass"].mean()
        is_sink, receives = (
            ("the first token is a sink", "it receives")
            if main == "first"
            else (f"{spoken(main)} tokens are, on average, sinks", "together they receive")
        )
        where = WORDS[one[0]] if begin is None else f"{WORDS[one[0]]} {'with' if one[1] else 'without'} {begin}"
        sentences.append(
            f"On {where}, {is_sink} in {percent(rates[(*one, main)])} of the heads, and {receives} {percent(mass)} of all "
            "attention weight."
        )
        if one[1] and (one[0], False, main) in rates.index:
            whose = "the token that then comes first" if main == "first" else f"{spoken(main)} tokens"
            sentences.append(f"Without {begin}, the sink rate of {whose} is {percent(rates[one[0], False, main])}.")
        others = [name for name in WORDS if name != one[0] and (name, one[1], main) in rates.index]
        if others:
            rest = [f"{percent(rates[name, one[1], main])} on {WORDS[name]}" for name in others]
            of = "the first token" if main == "first" else f"{spoken(main)} tokens"
            sentences.append(f"The sink rate of {of} is {_listed(rest)}.")
        dormant = percent(metrics[f"{one[0]}/{BOS[one[1]]}/dormant"])
        sentences.append(
            f"On {where}, {dormant} of the heads are dormant: a single key receives more than {percent(most)} of their weight."
        )
    return sentences + _massive_sentences(tables, metrics)


def _massive_sentences(tables: dict[str, pd.DataFrame], metrics: dict[str, float]) -> list[str]:
    massive = tables["massive"]
    if not len(massive):
        return ["There are no massive activations: no value exceeds 100 and is at least 1,000 times the median."]
    layers = massive.index.get_level_values("layer")
    count = massive.index.get_level_values("dimension").nunique()
    sentences = [
        f"{count} dimensions have massive activations, between layers {layers.min()} and {layers.max()}.",
        f"The largest massive activation is {number(metrics['massive/largest'])}, {number(metrics['massive/ratio'])} times the "
        "median.",
    ]
    if "ablation_loss" in tables:
        losses = [
            metrics[f"ablation/{name}"]
            for name in ("zero/loss_before", "zero/loss_after", "mean/loss_after", "zero/loss_controls")
        ]
        before, zero, mean, controls = map(number, losses)
        changes, to_mean = (
            f"leaves the loss at {'' if before == after else 'about '}{after}"
            if not visibly_apart(losses[0], loss)
            else f"changes the loss {start}to {after}"
            for loss, after, start in ((losses[1], zero, f"from {before} "), (losses[2], mean, ""))
        )
        sentences += [
            f"Setting the massive activations to zero {changes} nats; with as many random dimensions set to zero, it is "
            f"{controls}.",
            f"Setting the massive activations to their mean {to_mean} nats.",
        ]
    if "ablation" in tables:
        effects = {
            key.split("/")[-1]: (metrics[key], metrics[key.replace("before", "after")])
            for key in metrics
            if key.startswith("ablation/zero/before/")
        }
        if effects:
            most = max(effects, key=lambda name: abs(effects[name][0] - effects[name][1]))
            before, after = effects[most]
            whose = f"on {spoken(most)} tokens"
            effect = (
                f"attention weights hardly change: that {whose} stays at "
                f"{'' if percent(before) == percent(after) else 'about '}{percent(after)}"
                if not clearly_apart(before, after)
                else f"the attention weight {whose} {'rises' if after > before else 'falls'} from {percent(before)} to "
                f"{percent(after)}"
            )
            sentences.append(f"With the massive activations set to zero, {effect}.")
    return sentences


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
    if "ablation" in tables and "ablation_loss" not in tables:
        notes.append(
            "the checkpoint has no language-modelling head, so the effect of massive activations on the loss is not measured"
        )
    return notes
