"""Word aligners of others, where they are installed: `pip install 'normscope[aligners]'`.

eflomal is licensed under the GPL; it is run, never shipped.
"""

import importlib
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


def align(name: str, pairs: Mapping[int, tuple[Words, Words]], model: str, heuristic: Heuristic) -> Alignments:
    """The alignments that another aligner makes.

    Args:
        name: `eflomal` or `simalign`.
        pairs: Words of source and target, by row.
        model: Hub name or folder of the model whose embeddings simalign compares.
        heuristic: Makes one alignment of the two directions that eflomal aligns.

    Raises:
        InputError: If the aligner is unknown, not installed, or fails.
    """
    if name not in _ALIGNERS:
        raise InputError(f"{KEY}=[{name}]: unknown aligner; expected some of {', '.join(_ALIGNERS)}")
    try:
        library = importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"{KEY}=[{name}]: it is not installed; pip install 'normscope[aligners]'") from error
    try:
        found = _ALIGNERS[name](library, list(pairs.values()), model, heuristic)
    except Exception as error:  # whatever another's program raises
        raise InputError(f"{KEY}=[{name}]: it failed: {one_line(error)}") from error
    return dict(zip(pairs, found, strict=True))


def _eflomal(
    library: Any, pairs: Sequence[tuple[Words, Words]], _model: str, heuristic: Heuristic
) -> list[frozenset[Link]]:
    """Both directions, trained on the pairs themselves, symmetrised."""
    with tempfile.TemporaryDirectory() as folder:
        forward, backward = Path(folder, "forward"), Path(folder, "backward")
        # Words of two languages that are separated by spaces must not have any inside.
        sides = [[" ".join(word.replace(" ", "_") for word in pair[side]) for pair in pairs] for side in (0, 1)]
        library.Aligner().align(*sides, links_filename_fwd=str(forward), links_filename_rev=str(backward))
        directions = [[parsed(line) for line in path.read_text().splitlines()] for path in (forward, backward)]
    return [symmetrised(first, second, heuristic) for first, second in zip(*directions, strict=True)]


def _simalign(
    library: Any, pairs: Sequence[tuple[Words, Words]], model: str, _heuristic: Heuristic
) -> list[frozenset[Link]]:
    aligner = library.SentenceAligner(model=model, token_type="bpe", matching_methods="i")
    found = (aligner.get_word_aligns(list(source), list(target))["itermax"] for source, target in pairs)
    return [frozenset((int(source), int(target)) for source, target in links) for links in found]


_ALIGNERS: dict[str, Callable[[Any, Sequence[tuple[Words, Words]], str, Heuristic], list[frozenset[Link]]]] = {
    "eflomal": _eflomal,
    "simalign": _simalign,
}
