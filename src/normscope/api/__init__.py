"""The Python interface: load or wrap a model, observe its blocks, decompose texts, run analyses, attribute outputs."""

from normscope.api.analysing import run
from normscope.api.answer_sources import sources
from normscope.api.attention_values import attention
from normscope.api.attributed_maps import attribution_maps
from normscope.api.attributed_scores import attribute
from normscope.api.decomposition import decompose
from normscope.api.models import DEFAULT_MODEL, load, observe, wrap
from normscope.api.similarities import similarity
from normscope.api.targets import Answer, Label, MaskedToken, NextToken, SimilarityTo
from normscope.api.training import Callback

__all__ = [
    "DEFAULT_MODEL",
    "Answer",
    "Callback",
    "Label",
    "MaskedToken",
    "NextToken",
    "SimilarityTo",
    "attention",
    "attribute",
    "attribution_maps",
    "decompose",
    "load",
    "observe",
    "run",
    "similarity",
    "sources",
    "wrap",
]
