"""Reactions with certain atom maps, written by templates: which atom of the reactants each atom of the product comes from.

A template has numbered atoms (`[C:2]`), which are the same on both sides, and fragments (`{a}`), which are copied as they
are; `{a|b}` attaches b to the first atom of a. All other atoms of the reactants are lost. Atoms that nothing tells apart, such
as the ortho carbons of a phenyl ring, are found by colour refinement.
"""

import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

TEMPLATES = {
    "amide from an acid": "[O:1]=[C:2](O){a}.[N:3]{b}>>[O:1]=[C:2]([N:3]{b}){a}",
    "amide from an acid chloride": "CCN(CC)CC.[O:1]=[C:2](Cl){a}.[N:3]{b}>>[O:1]=[C:2]([N:3]{b}){a}",
    "ester from an acid chloride": "ClCCl.[O:1]=[C:2](Cl){a}.[O:3]{b}>>[O:1]=[C:2]([O:3]{b}){a}",
    "Suzuki coupling": "Br{a}.O=C([O-])[O-].OB(O){c}.[K+].[K+]>>{a|c}",
    "ether from a phenol": "CN(C)C=O.[O:1]{a}.Br{b}>>[O:1]({a}){b}",
    "alkylation of an amine": "Br{b}.CC#N.{m}>>{m|b}",
    "reductive amination": "CO.O=[C:1]{a}.[N:2]{b}.[BH4-].[Na+]>>[C:1]({a})[N:2]{b}",
    "sulfonamide": "[O:1]=[S:2](=[O:3])(Cl){a}.[N:4]{b}.c1ccncc1>>[O:1]=[S:2](=[O:3])([N:4]{b}){a}",
    "urea from an isocyanate": "C1CCOC1.[O:1]=[C:2]=[N:3]{a}.[N:4]{b}>>[O:1]=[C:2]([N:3]{a})[N:4]{b}",
    "removal of Boc": "C1COCCO1.CC(C)(C)OC(=O)[N:1]{b}.Cl>>[N:1]{b}",
    "reduction of a nitro group": "CC(=O)O.O=[N+:1]([O-]){a}.[Fe]>>[N:1]{a}",
    "reduction of a ketone": "CO.[O:1]=[C:2]({a}){b}.[BH4-].[Na+]>>[O:1][C:2]({a}){b}",
}

FRAGMENTS = {
    "a": ["c1ccc(Br)cc1", "c1cccc(C#N)c1", "c1ccc(F)cc1", "c1ccc(OC)nc1"],  # aromatic
    "b": ["CCc1ccccc1", "Cc1cccs1", "CC1CCCC1", "CCCOC"],  # begin with CH2
    "c": ["c1ccccc1", "c1ccncc1", "c1ccc2ncccc2c1", "c1cccc(OC)c1"],  # aromatic as well
    "m": ["N1CCOCC1", "N1CCCCC1", "N1CCN(C)CC1", "N1CCCC1"],  # rings with NH
}

_TOKEN = re.compile(r"\[[^\]]+\]|Br|Cl|[BCNOPSFIbcnops]|>>|[().=#%\-+\d]")
_ORGANIC = {"B", "C", "N", "O", "P", "S", "F", "Cl", "Br", "I"}


_RINGS = 2
"""The most rings of a fragment."""


class Reaction(NamedTuple):
    """A reaction whose atom map is certain."""

    kind: str
    text: str
    """Reactants>>product in SMILES."""
    links: tuple[frozenset[int], ...]
    """For each atom of the product, in order, the atoms of the reactants that it may come from, counted from 0."""


class _Token(NamedTuple):
    text: str
    origin: tuple[str, int] | None
    """What tells that an atom of the product is one of the reactants; None for other tokens, and for atoms that are lost."""


def reactions() -> list[Reaction]:
    """Every template with four pairs of fragments."""
    found = []
    for kind, template in TEMPLATES.items():
        for number in range(4):
            parts = {name: own[(number + place) % 4] for place, (name, own) in enumerate(FRAGMENTS.items())}
            found.append(_reaction(kind, template, parts))
    return found


def _reaction(kind: str, template: str, parts: dict[str, str]) -> Reaction:
    reactants, product = (list(_filled(side, parts)) for side in template.split(">>"))
    origins = [token.origin for token in reactants if is_atom(token.text)]
    colour = colours([token.text for token in reactants])
    links = []
    for token in product:
        if is_atom(token.text):
            place = origins.index(token.origin)
            links.append(frozenset(other for other, own in enumerate(colour) if own == colour[place]))
    text = f"{''.join(token.text for token in reactants)}>>{''.join(token.text for token in product)}"
    return Reaction(kind, text, tuple(links))


def rewritten(reaction: Reaction) -> Reaction:
    """The same reaction with its product written from the last atom on, and branches in another order."""
    reactants, product = reaction.text.split(">>")
    tokens = _TOKEN.findall(product)
    near, atoms = bonds(tokens), [token for token in tokens if is_atom(token)]
    order: list[int] = []
    rings: dict[frozenset[int], str] = {}
    before: dict[int, int | None] = {len(atoms) - 1: None}
    _visit(len(atoms) - 1, near, before, order, rings)

    def written(atom: int) -> str:
        own = [number for ring, number in rings.items() if atom in ring]
        children = [f"{near[atom][other]}{written(other)}" for other in order if before[other] == atom]
        return atoms[atom] + "".join(own) + "".join(f"({child})" for child in children[:-1]) + "".join(children[-1:])

    text = written(order[0])
    places = _order_of(order, before)
    return Reaction(reaction.kind, f"{reactants}>>{text}", tuple(reaction.links[atom] for atom in places))


def _visit(
    atom: int,
    near: list[dict[int, str]],
    before: dict[int, int | None],
    order: list[int],
    rings: dict[frozenset[int], str],
) -> None:
    """Go through a molecule in depth; `rings` gets a number for each bond that closes one."""
    order.append(atom)
    for other in sorted(near[atom], reverse=True):
        if other not in before:
            before[other] = atom
            _visit(other, near, before, order, rings)
        elif before[atom] != other and frozenset((atom, other)) not in rings:
            rings[frozenset((atom, other))] = str(len(rings) + 1)


def _order_of(order: list[int], before: dict[int, int | None]) -> list[int]:
    """The atoms as they are written: depth first, children in the order in which they were found."""
    found: list[int] = []

    def add(atom: int) -> None:
        found.append(atom)
        for other in order:
            if before[other] == atom:
                add(other)

    add(order[0])
    return found


def _filled(side: str, parts: dict[str, str]) -> Iterator[_Token]:
    """The tokens of one side of a template."""
    for piece in re.findall(r"\{[^}]+\}|[^{]+", side):
        if piece.startswith("{"):
            name, _, attached = piece.strip("{}").partition("|")
            tokens = list(_fragment(name, parts))
            if attached:
                first = next(place for place in range(1, len(tokens)) if not tokens[place].text.isdigit())
                # The ring of the first fragment is still open: rings of the other one have other numbers.
                other = [
                    _Token(str(int(token.text) + _RINGS), None) if token.text.isdigit() else token
                    for token in _fragment(attached, parts)
                ]
                branch = [_Token("(", None), *other, _Token(")", None)]
                tokens[first:first] = branch
            yield from tokens
            continue
        for text in _TOKEN.findall(piece):
            numbered = re.fullmatch(r"\[(.+):(\d+)\]", text)
            if numbered is None:
                yield _Token(text, None)
            else:
                atom, number = numbered[1], int(numbered[2])
                yield _Token(atom if atom in _ORGANIC else f"[{atom}]", ("template", number))


def _fragment(name: str, parts: dict[str, str]) -> Iterator[_Token]:
    atoms = itertools.count()
    for text in _TOKEN.findall(parts[name]):
        yield _Token(text, (name, next(atoms)) if is_atom(text) else None)


def is_atom(token: str) -> bool:
    """Whether a token of SMILES is an atom."""
    return token[0].isalpha() or (token[0] == "[" and token not in ("[CLS]", "[SEP]", "[MASK]", "[PAD]", "[UNK]"))


def bonds(tokens: list[str]) -> list[dict[int, str]]:
    """The neighbours of each atom and the sign of the bond, empty for a plain one; of valid SMILES without `%` rings."""
    near: list[dict[int, str]] = []
    last: int | None = None
    branches: list[int | None] = []
    rings: dict[str, int] = {}
    sign = ""
    for token in tokens:
        if is_atom(token) or (token.isdigit() and token in rings):
            other = len(near) if is_atom(token) else rings.pop(token)
            near += [{}] if other == len(near) else []
            if last is not None:
                near[last][other] = near[other][last] = sign
            last, sign = (other if is_atom(token) else last), ""
        elif token.isdigit():
            assert last is not None
            rings[token] = last
        elif token == "(":
            branches.append(last)
        elif token == ")":
            last = branches.pop()
        elif token in (".", ">>"):
            last = None
        else:
            sign = token
    return near


def colours(tokens: list[str]) -> list[int]:
    """A number for each atom; atoms with the same number look alike from everywhere."""
    near = bonds(tokens)
    own: list[object] = [token for token in tokens if is_atom(token)]
    for _ in range(len(own)):
        refined = [
            (own[atom], tuple(sorted(f"{sign}{own[other]}" for other, sign in near[atom].items())))
            for atom in range(len(own))
        ]
        numbers = {colour: number for number, colour in enumerate(sorted(set(map(repr, refined))))}
        own = [numbers[repr(colour)] for colour in refined]
    return [int(str(colour)) for colour in own]


if __name__ == "__main__":
    print(*(reaction.text for reaction in reactions()), sep="\n")
