"""How families store the angles by which they rotate queries and keys."""

from typing import Any, Literal

import torch
from torch import Tensor

from normscope.maths.keys import KeyMap

Rotation = Literal["halves", "angles", "adjacent", "adjacent_halves", "table"]
"""What an attention module receives, and which dimensions of a head form the planes that turn.

- `halves`: each angle twice, in two halves; dimension d turns with d + half (Llama).
- `angles`: each angle once; the same planes (gpt-oss).
- `adjacent`: each angle twice, side by side; dimension 2d turns with 2d + 1 (Cohere).
- `adjacent_halves`: each angle twice, in two halves; the planes of `adjacent` (GLM-4).
- `table`: positions, with which the module looks its angles up; the planes of `adjacent` (GPT-J).
"""


def rotation_of(kind: Rotation, attention: Any, kwargs: dict[str, Any]) -> KeyMap:
    """The rotation of one call of an attention module, as a map of its keys.

    Args:
        kind: How the family stores its angles.
        attention: The module.
        kwargs: The keyword arguments of the call.

    Raises:
        ValueError: If it gets no rotation of this kind.
    """
    try:
        if kind == "table":
            sine, cosine = attention.embed_positions[kwargs["position_ids"]].chunk(2, dim=-1)
        else:
            cosine, sine = kwargs["position_embeddings"]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{type(attention).__name__} does not rotate queries and keys as its family does") from error
    match kind:
        case "halves" | "adjacent":
            pass
        case "angles":
            cosine, sine = (torch.cat([angles, angles], dim=-1) for angles in (cosine, sine))
        case "adjacent_halves":
            cosine, sine = (_side_by_side(angles.chunk(2, dim=-1)[0]) for angles in (cosine, sine))
        case "table":
            cosine, sine = _side_by_side(cosine), _side_by_side(sine)
    return KeyMap(cosine, sine, adjacent=kind not in ("halves", "angles"))


def _side_by_side(angles: Tensor) -> Tensor:
    return angles.repeat_interleave(2, dim=-1)
