"""Other word aligners, if they are installed: `pip install eflomal simalign`.

eflomal is licensed under the GPL: we run it and never ship it.
"""

import importlib
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from normscope.alignment.links import parsed
from normscope.alignment.symmetrisation import Heuristic, symmetrised
from normscope.data.examples import Link
from normscope.errors import InputError, one_line

Words = tuple[str, ...]
Alignments = dict[int, frozenset[Link]]

KEY = "analysis.alignment.aligners"

_SPACE = re.compile(r"\s")


def align(name: str, pairs: Mapping[int, tuple[Words, Words]], model: str, heuristic: Heuristic) -> Alignments:
    """Align a corpus with another aligner.

    Args:
        name: `eflomal` or `simalign`.
        pairs: Source and target words, by row.
        model: Hub name or folder of the model whose embeddings simalign compares.
        heuristic: Combines the two directions that eflomal aligns.

    Raises:
        InputError: If the aligner is unknown, not installed, or fails.
    """
    if name not in _ALIGNERS:
        raise InputError(f"{KEY}=[{name}]: unknown aligner; expected some of {', '.join(_ALIGNERS)}")
    try:
        library = importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"{KEY}=[{name}]: {name} is not installed; run `pip install {name}`") from error
    try:
        alignments = _ALIGNERS[name](library, list(pairs.values()), model, heuristic)
    except Exception as error:  # foreign code may raise anything
        raise InputError(f"{KEY}=[{name}]: {name} failed: {one_line(error)}") from error
    return dict(zip(pairs, alignments, strict=True))


def _eflomal(
    library: Any, pairs: Sequence[tuple[Words, Words]], _model: str, heuristic: Heuristic
) -> list[frozenset[Link]]:
    """Both directions, trained on the pairs themselves, symmetrised."""
    with tempfile.TemporaryDirectory() as folder:
        forward, backward = Path(folder, "forward"), Path(folder, "backward")
        # eflomal separates words by any white space, so no word may contain some.
        sides = [[" ".join(_SPACE.sub("_", word) for word in pair[side]) for pair in pairs] for side in (0, 1)]
        library.Aligner().align(*sides, links_filename_fwd=str(forward), links_filename_rev=str(backward))
        directions = [[parsed(line) for line in path.read_text().splitlines()] for path in (forward, backward)]
    return [symmetrised(first, second, heuristic) for first, second in zip(*directions, strict=True)]


def _simalign(
    library: Any, pairs: Sequence[tuple[Words, Words]], model: str, _heuristic: Heuristic
) -> list[frozenset[Link]]:
    aligner = library.SentenceAligner(model=model, token_type="bpe", matching_methods="i")
    alignments = (aligner.get_word_aligns(list(source), list(target))["itermax"] for source, target in pairs)
    return [frozenset((int(source), int(target)) for source, target in links) for links in alignments]


_ALIGNERS: dict[str, Callable[[Any, Sequence[tuple[Words, Words]], str, Heuristic], list[frozenset[Link]]]] = {
    "eflomal": _eflomal,
    "simalign": _simalign,
}
