"""normscope: measures what the attention blocks of a Transformer do.

```python
import normscope

model = normscope.load("google-bert/bert-base-uncased")
normscope.decompose(model, "Attention is not only a weight.").table
normscope.attribute(model, "A lovely film.", target=lambda hidden: hidden[0, 3]).table
for block in normscope.observe(model, ["one sentence", ("and", "a pair")]):
    print(block.layer, block.mixing_ratios)
```
"""

import sys
import warnings
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":  # files are locked, and processes limited, as POSIX does
    raise ImportError("normscope runs on Linux and macOS; on Windows, run it in WSL")

from normscope.distribution import VERSION as __version__

if TYPE_CHECKING:
    from normscope.api import (
        Answer,
        Callback,
        Label,
        MaskedToken,
        NextToken,
        SimilarityTo,
        attention,
        attribute,
        attribution_maps,
        decompose,
        load,
        observe,
        run,
        similarity,
        wrap,
    )
    from normscope.live.notebook import LivePage, explore
    from normscope.reporting.viewing import compare, page
    from normscope.results.result import Result

    read = Result.read

__all__ = [
    "Answer",
    "Callback",
    "Label",
    "LivePage",
    "MaskedToken",
    "NextToken",
    "Result",
    "SimilarityTo",
    "__version__",
    "attention",
    "attribute",
    "attribution_maps",
    "compare",
    "decompose",
    "explore",
    "load",
    "observe",
    "page",
    "read",
    "run",
    "similarity",
    "wrap",
]

_LIVE = ("LivePage", "explore")


def __dir__() -> list[str]:  # what has not been imported yet is completed as well
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name in ("Result", "read"):  # it needs no torch
        from normscope.results.result import Result

        return Result if name == "Result" else Result.read
    if name in ("compare", "page"):  # nor do they
        from normscope.reporting import viewing

        return getattr(viewing, name)
    # Importing torch and transformers takes seconds, which `--help` should not.
    if name in __all__:
        # Where ipywidgets is missing, tqdm warns about it once, when a library first asks for its bars. Ours are text.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "IProgress not found")
            import tqdm.auto  # noqa: F401

        if name in _LIVE:  # it needs the rest of the interface
            from normscope.live import notebook

            return getattr(notebook, name)
        from normscope import api

        return getattr(api, name)
    raise AttributeError(f"module 'normscope' has no attribute {name!r}")
