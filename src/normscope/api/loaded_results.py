"""Reading saved results."""

import dataclasses
from pathlib import Path

from normscope.api.attributed_maps import AttributionMap
from normscope.api.attribution import Attribution
from normscope.api.calls import checked
from normscope.api.saved import read_result
from normscope.data.options import Level


@checked
def load_attribution(path: str | Path) -> Attribution | AttributionMap:
    """Read what `Attribution.save` or `AttributionMap.save` has written.

    Args:
        path: The file.

    Examples:
        >>> import normscope
        >>> result = normscope.attribute(normscope.load(), "A film.", lambda hidden: hidden[0, 3])
        >>> result.save("result.safetensors")
        >>> normscope.load_attribution("result.safetensors").tokens
        ('[CLS]', 'a', 'film', '.', '[SEP]')

    Raises:
        InputError: If it cannot be read, or is another file.
    """
    found: Attribution | AttributionMap = read_result(
        path, {each.__name__: each for each in (Attribution, AttributionMap)}
    )
    # JSON has no enumerations.
    return dataclasses.replace(found, level=Level(found.level)) if isinstance(found, AttributionMap) else found
