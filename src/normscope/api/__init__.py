"""The Python interface: load a model, observe its blocks, decompose a text."""

from normscope.api.decomposition import Decomposition, decompose
from normscope.api.models import DEFAULT_MODEL, load
from normscope.api.observation import observe
from normscope.api.picture import Picture

__all__ = ["DEFAULT_MODEL", "Decomposition", "Picture", "decompose", "load", "observe"]
