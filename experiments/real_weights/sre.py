"""sre-embedding-model: all-MiniLM-L6-v2 tuned on 636 pairs; already a folder of sentence-transformers."""

from pathlib import Path

from sentence_transformers import SentenceTransformer

from experiments.real_weights.packages import Converted, require

_TEXTS = (
    "self-healing",
    "system detects and recovers from failures automatically",
    "runtime error prevented container from starting",
)
_CARD = {(0, 1): 0.9505, (0, 2): 0.6978, (1, 2): 0.6172}
"""The similarities of these texts, as the package's model card has them."""


def convert(package: Path) -> Converted:
    """The encoder, as it is."""
    model = SentenceTransformer(str(package / "sre_embedding_model/model_weights"), device="cpu")
    embeddings = model.encode(list(_TEXTS), convert_to_tensor=True)
    for (one, other), stated in _CARD.items():
        found = float(embeddings[one] @ embeddings[other])
        require(
            abs(found - stated) < 1e-3, f"texts {one} and {other} have a similarity of {found:.4f}, stated is {stated}"
        )
    return Converted({"": (model, None)}, "the three similarities of the model card, to 0.001")
