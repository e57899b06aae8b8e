"""Measures what the attention blocks of a Transformer do.

```python
import normscope

model = normscope.load("google-bert/bert-base-uncased")
normscope.decompose(model, "Attention is not only a weight.").table
normscope.attribute(model, "A lovely film.", target=lambda hidden: hidden[0, 3]).table
for block in normscope.observe(model, ["one sentence", ("and", "a pair")]):
    print(block.layer, block.mixing_ratios)
```

`help(normscope.decompose)`, for example, explains one of these names in full:

    load              Load a model and verify that it can be observed exactly.
    wrap              Prepare a model that is already in memory, and verify that it can be observed exactly.
    observe           Iterate over the attention blocks of one forward pass, layer by layer.
    decompose         Decompose a text: how much does each token receive from every other, layer by layer?
    attention         Measure how much tokens or regions of a text receive from others through attention, at any length.
    attribute         Attribute a number that a model computes from a text to the text's tokens.
    sources           Find which passages of a prompt an answer comes from, and confirm it by removing them.
    attribution_maps  Map how much of each output vector of a model comes from each token of a text, through all layers.
    similarity        Split the similarity of two texts into what each pair of tokens adds to it.
    run               Run one analysis or several over texts in memory.
    Callback          Runs analyses on a few texts at regular intervals during training.
    explore           Open the live page of a model: type a text, change a word, and see what changes.
    LivePage          A page that is served until it is closed; see `explore`.

    Result            The results of a run, or of one of its analyses.
    read              Read the folder of a finished run: its tables, metrics, figures, token maps, config and facts.
    page              Make an HTML page: the report of one run, or the comparison of several.
    compare           Compare results: which differences are detectable, and how large they are.

    Label             The logit of a class from a text classifier, or the value of a regression model.
    NextToken         The logit of a token as the next one after the text, from a causal or a translation model.
    MaskedToken       The logit of a token in place of a mask in the text, from a masked language model.
    Answer            An answer that follows the text, from a causal language model: the sum over its tokens.
    SimilarityTo      The cosine similarity of the text's embedding with that of another.
"""

import sys
import warnings
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":  # files are locked, and processes limited, as POSIX does
    raise ImportError("normscope runs on Linux and macOS; on Windows, run it in WSL")

from normscope.distribution import VERSION

__version__ = VERSION

if TYPE_CHECKING:  # names that are exported, as type checkers want them
    from normscope.api import Answer as Answer
    from normscope.api import Callback as Callback
    from normscope.api import Label as Label
    from normscope.api import MaskedToken as MaskedToken
    from normscope.api import NextToken as NextToken
    from normscope.api import SimilarityTo as SimilarityTo
    from normscope.api import attention as attention
    from normscope.api import attribute as attribute
    from normscope.api import attribution_maps as attribution_maps
    from normscope.api import decompose as decompose
    from normscope.api import load as load
    from normscope.api import observe as observe
    from normscope.api import run as run
    from normscope.api import similarity as similarity
    from normscope.api import sources as sources
    from normscope.api import wrap as wrap
    from normscope.live.notebook import LivePage as LivePage
    from normscope.live.notebook import explore as explore
    from normscope.reporting.viewing import compare as compare
    from normscope.reporting.viewing import page as page
    from normscope.results.result import Result as Result

    read = Result.read

_API = (
    *("Answer", "Callback", "Label", "MaskedToken", "NextToken", "SimilarityTo"),
    *("attention", "attribute", "attribution_maps", "decompose", "load", "observe", "run", "similarity", "sources"),
    "wrap",
)
_LIVE = ("LivePage", "explore")
_VIEWS = ("compare", "page")
_RESULTS = ("Result", "read")


# There is no `__all__`: with one, `help(normscope)` has all that `help` has of each name, a thousand lines.
def __dir__() -> list[str]:  # what has not been imported yet is completed as well
    return sorted((*_API, *_LIVE, *_VIEWS, *_RESULTS, "__version__"))


def __getattr__(name: str) -> Any:
    if name in _RESULTS:  # it needs no torch
        from normscope.results.result import Result

        return Result if name == "Result" else Result.read
    if name in _VIEWS:  # nor do they
        from normscope.reporting import viewing

        return getattr(viewing, name)
    # Importing torch and transformers takes seconds, which `--help` should not.
    if name in (*_API, *_LIVE):
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
