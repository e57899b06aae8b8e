"""Where attention maps the atoms of products: by one head, by the mean of heads, and by all heads summed as vectors.

python experiments/real_weights/fetch.py rxnmapper
python experiments/schwaller2021/map_atoms.py

Each atom of a product is mapped to the atom of the reactants to which it has most attention, both directions added, as in
Schwaller et al. 2021, but without their further rules. For a head, attention is α or ‖αf(x)‖; for all heads of a pass, the mean
of α, or ‖Σ αf(x)‖, the norm of the vectors summed over heads.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import normscope

sys.path.insert(0, str(Path(__file__).parents[2]))  # when it is run as a script

from experiments.schwaller2021.reactions import Reaction, is_atom, reactions, rewritten
from normscope.models.load.loaded import LoadedModel
from normscope.statistics.intervals import interval_over_texts

MODEL = Path("outputs/real_weights/rxnmapper")


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=MODEL, help=f"default: {MODEL}")
    parser.add_argument(
        "--rewritten", action="store_true", help="write products from their last atom on, in another order"
    )
    arguments = parser.parse_args()
    if not arguments.model.is_dir():
        print(f"{arguments.model}: no such folder: python experiments/real_weights/fetch.py rxnmapper", file=sys.stderr)
        return 2
    model = normscope.load(str(arguments.model), dtype="float32")
    every = [rewritten(reaction) if arguments.rewritten else reaction for reaction in reactions()]
    right = pd.concat([mapped(model, reaction) for reaction in every], keys=range(len(every)), names=["reaction"])
    print(tables(right.reset_index("reaction").reset_index(drop=True), [reaction.kind for reaction in every]))
    return 0


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


def tables(right: pd.DataFrame, kinds: list[str]) -> str:
    """The atoms that are mapped rightly by pass, in per cent; and what is chosen on half of the kinds, judged on the others."""
    sums = right.groupby(["way", "head", "pass"])[["right", "atoms"]].sum()
    share = (100 * sums["right"] / sums["atoms"]).unstack("pass")
    heads = share[share.index.get_level_values("head") > 0].groupby("way")
    best = heads.max().rename(index=lambda way: f"{way}, best head of the pass")
    whole = share.xs(0, level="head")
    parts = [
        f"{right.loc[right['way'] == 'mean α', 'atoms'].sum() // right['pass'].max()} atoms of {len(kinds)} reactions, % right"
    ]
    parts.append(pd.concat([best, whole]).round(1).to_string())
    names = list(dict.fromkeys(kinds))
    right = right.assign(chosen_on=[kinds[number] in names[::2] for number in right["reaction"]])
    rows = []
    shares: dict[str, np.ndarray] = {}
    for way in ("α", "‖αf(x)‖", "mean α", "‖Σ αf(x)‖"):
        own = right[right["way"] == way]
        sums = own[own["chosen_on"]].groupby(["pass", "head"])[["right", "atoms"]].sum()
        place = (sums["right"] / sums["atoms"]).idxmax()
        judged = own[~own["chosen_on"] & (own["pass"] == place[0]) & (own["head"] == place[1])]
        shares[way] = (100 * judged["right"] / judged["atoms"]).to_numpy(dtype=float)
        interval, more = interval_over_texts(shares[way]), interval_over_texts(shares[way] - shares["α"])
        rows.append(
            {
                "way": way,
                "pass": place[0],
                "head": place[1] or "all",
                "% right": 100 * judged["right"].sum() / judged["atoms"].sum(),
                "mean over reactions": interval.mean,
                "low": interval.low,
                "high": min(interval.high, 100.0) if not np.isnan(interval.high) else interval.high,
                "more than α": more.mean,
                "from": more.low,
                "to": more.high,
            }
        )
    parts.append("\nchosen on half of the kinds of reactions, judged on the others")
    parts.append(pd.DataFrame(rows).round(1).to_string(index=False))
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
