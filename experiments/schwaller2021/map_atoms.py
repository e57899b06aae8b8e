"""Where attention maps the atoms of products: by one head, by the mean of heads, and by all heads summed as vectors.

python experiments/real_weights/fetch.py rxnmapper
python experiments/schwaller2021/map_atoms.py

Each atom of a product is mapped to the atom of the reactants to which it has most attention, both directions added, as in
Schwaller et al. 2021, but without their further rules. For a head, attention is α or ‖αf(x)‖; for all heads of a pass, the mean
of α, or ‖Σ αf(x)‖, the norm of the vectors summed over heads. The tables are written into the README.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import normscope

sys.path.insert(0, str(Path(__file__).parents[2]))  # when it is run as a script

from docs.hooks.markdown import table
from experiments.real_weights.tables import EXPERIMENTS, fill
from experiments.schwaller2021.reactions import Reaction, is_atom, reactions, rewritten
from normscope.models.load.loaded import LoadedModel
from normscope.rounding import duration, fixed
from normscope.statistics.intervals import interval_over_texts

MODEL = Path("outputs/real_weights/rxnmapper")
README = EXPERIMENTS / "schwaller2021/README.md"
WAYS = {
    "α": "α, best head of the pass",
    "‖αf(x)‖": "‖αf(x)‖, best head",
    "mean α": "mean of α over heads",
    "‖Σ αf(x)‖": "‖Σ αf(x)‖, all heads as vectors",
}
"""Ways to read attention, in words."""


def main() -> int:
    """Fill the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=MODEL, help=f"default: {MODEL}")
    arguments = parser.parse_args()
    if not arguments.model.is_dir():
        print(f"{arguments.model}: no such folder: python experiments/real_weights/fetch.py rxnmapper", file=sys.stderr)
        return 2
    model = normscope.load(str(arguments.model), dtype="float32")
    start, every = time.monotonic(), reactions()
    right, other = (right_atoms(model, some) for some in (every, [rewritten(reaction) for reaction in every]))
    rows = [*by_pass(right), *([f"rewritten: {way}", *shares] for way, *shares in by_pass(other))]
    passes = table(["pass", *map(str, sorted(right["pass"].unique()))], rows)
    atoms = sum(len(reaction.links) for reaction in every)
    took = duration(time.monotonic() - start)
    fill(README, "passes", f"{passes}\n{atoms} atoms of {len(every)} reactions; {took} for both.")
    fill(README, "chosen", chosen(other, [reaction.kind for reaction in every]))
    return 0


def right_atoms(model: LoadedModel, every: Sequence[Reaction]) -> pd.DataFrame:
    """The rows of `mapped` for some reactions, numbered from 0."""
    rows = [mapped(model, reaction).assign(reaction=number) for number, reaction in enumerate(every)]
    return pd.concat(rows, ignore_index=True)


def mapped(model: LoadedModel, reaction: Reaction) -> pd.DataFrame:
    """How many atoms of one reaction each way of reading attention maps rightly: a row for each layer, way and head."""
    rows = []
    for block in normscope.observe(model, reaction.text):
        tokens = model.tokenizer.convert_ids_to_tokens(model.tokenizer(reaction.text)["input_ids"])
        products, sources = atoms_of(tokens)
        weights, vectors = block.weights[0], block.transformed()[0]
        norms = weights * vectors.norm(dim=-1)[:, None]
        together = torch.einsum("hqk,hkm->qkm", weights, vectors).norm(dim=-1)
        of_heads = [("α", weights), ("‖αf(x)‖", norms)]
        read = [(way, head + 1, each[head]) for way, each in of_heads for head in range(len(each))]
        read += [("mean α", 0, weights.mean(dim=0)), ("‖Σ αf(x)‖", 0, together)]
        for way, head, values in read:
            scores = values[products][:, sources] + values[sources][:, products].T
            found = scores.argmax(dim=1).tolist()
            right = sum(atom in links for atom, links in zip(found, reaction.links, strict=True))
            rows.append({"pass": block.layer, "way": way, "head": head, "right": right, "atoms": len(products)})
    return pd.DataFrame(rows)


def atoms_of(tokens: list[str]) -> tuple[list[int], list[int]]:
    """The positions of the product's atoms, and of the reactants'."""
    arrow = tokens.index(">>")
    atoms = [place for place, token in enumerate(tokens) if is_atom(token)]
    return [place for place in atoms if place > arrow], [place for place in atoms if place < arrow]


def by_pass(right: pd.DataFrame) -> list[list[str]]:
    """The atoms that each way maps rightly, in per cent: a line for each way, with a cell for each pass."""
    sums = right.groupby(["way", "head", "pass"])[["right", "atoms"]].sum()
    best = (100 * sums["right"] / sums["atoms"]).groupby(["way", "pass"]).max().unstack("pass")
    return [[words, *(fixed(share, 1) for share in best.loc[way])] for way, words in WAYS.items()]


def chosen(right: pd.DataFrame, kinds: Sequence[str]) -> str:
    """The table of passes and heads that are chosen on half of the kinds of reactions, and judged on the others."""
    names = list(dict.fromkeys(kinds))
    on_half = right["reaction"].map(lambda number: kinds[number] in names[::2])
    rows = []
    shares: dict[str, np.ndarray] = {}
    for way in WAYS:
        own = right["way"] == way
        sums = right[own & on_half].groupby(["pass", "head"])[["right", "atoms"]].sum()
        place, head = (sums["right"] / sums["atoms"]).idxmax()
        judged = right[own & ~on_half & (right["pass"] == place) & (right["head"] == head)]
        shares[way] = (100 * judged["right"] / judged["atoms"]).to_numpy(dtype=float)
        interval, more = interval_over_texts(shares[way]), interval_over_texts(shares[way] - shares["α"])
        where = f"pass {place}, head {head}" if head else f"pass {place}"
        ends = f"{fixed(interval.low, 1)} to {fixed(min(interval.high, 100.0), 1)}"
        beside = "" if way == "α" else f"{fixed(more.mean, 1)} ({fixed(more.low, 1)} to {fixed(more.high, 1)})"
        rows.append([way, where, fixed(interval.mean, 1), ends, beside])
    return table(["method", "chosen", "% right", "95% interval", "points more than α on the same reactions"], rows)


if __name__ == "__main__":
    sys.exit(main())
