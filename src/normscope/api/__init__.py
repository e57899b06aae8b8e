"""The Python interface: load a model, observe its blocks, decompose a text, attribute outputs to tokens."""

from normscope.api.attributed_maps import AttributionMap, attribution_maps
from normscope.api.attributed_scores import Attribution, attribute
from normscope.api.decomposition import Decomposition, decompose
from normscope.api.embedding_similarity import Similarity, similarity
from normscope.api.models import DEFAULT_MODEL, load
from normscope.api.observation import observe
from normscope.api.picture import Picture
from normscope.api.targets import Label, MaskedToken, NextToken, SimilarityTo

__all__ = [
    "DEFAULT_MODEL",
    "Attribution",
    "AttributionMap",
    "Decomposition",
    "Label",
    "MaskedToken",
    "NextToken",
    "Picture",
    "Similarity",
    "SimilarityTo",
    "attribute",
    "attribution_maps",
    "decompose",
    "load",
    "observe",
    "similarity",
]
