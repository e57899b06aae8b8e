"""normscope: what the attention blocks of a Transformer really do.

```python
import normscope

model = normscope.load("google-bert/bert-base-uncased")
normscope.decompose(model, "Attention is not only a weight.").table
for block in normscope.observe(model, ["one sentence", ("and", "a pair")]):
    print(block.layer, block.mixing_ratios)
```
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normscope.api import Decomposition, decompose, load, observe

__all__ = ["Decomposition", "decompose", "load", "observe"]


def __getattr__(name: str) -> Any:
    # torch and transformers take seconds to import: `--help` must not wait for them.
    if name in __all__:
        from normscope import api as decomposition

        return getattr(decomposition, name)
    raise AttributeError(f"module 'normscope' has no attribute {name!r}")
