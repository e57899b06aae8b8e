"""How a sentence encoder makes one vector of its last hidden vectors."""

import json
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from normscope.errors import InputError, one_line
from normscope.maths.choices import Pooling


def pooling_weights(pooling: Pooling, token_mask: Float[Tensor, "batch token"]) -> Float[Tensor, "batch token"]:
    """The weight of each token's vector in an embedding; each row sums to one.

    Args:
        token_mask: 1 at tokens, 0 at padding, which is on the right.
    """
    if pooling is Pooling.mean:
        return token_mask / token_mask.sum(dim=-1, keepdim=True)
    position = 0 * token_mask.sum(dim=-1) if pooling is Pooling.cls else token_mask.sum(dim=-1) - 1
    weights = token_mask * 0
    weights[range(len(weights)), position.long()] = 1
    return weights


# The names that sentence-transformers gives them. Dividing the sum by the root of the length changes no cosine.
_MODES = {
    "mean": Pooling.mean,
    "mean_tokens": Pooling.mean,
    "mean_sqrt_len_tokens": Pooling.mean,
    "cls": Pooling.cls,
    "cls_token": Pooling.cls,
    "lasttoken": Pooling.last,
}


def pooling_of(folder: Path | None, name: str) -> Pooling:
    """The pooling that a sentence-transformers model's own files name.

    Args:
        folder: The model's files; None if it has none.
        name: The model's name, for messages.

    Raises:
        InputError: If the files name none, or one that is not linear in the hidden vectors.
    """
    modules = (
        None if folder is None or not (folder / "modules.json").is_file() else _read(folder / "modules.json", name)
    )
    if folder is None or modules is None:
        raise InputError(
            f"pooling: {name} has no modules.json that says how it pools; expected one of {', '.join(Pooling)}"
        )
    try:
        kinds = [(str(module["type"]).rpartition(".")[2], str(module["path"])) for module in modules]
    except (TypeError, KeyError) as error:
        raise InputError(f"pooling: the modules.json of {name} is not a list of modules; set pooling=") from error
    unknown = [kind for kind, _ in kinds if kind not in ("Transformer", "Pooling", "Normalize", "Dropout")]
    pools = [path for kind, path in kinds if kind == "Pooling"]
    if unknown or len(pools) != 1:
        fault = f"a {unknown[0]} module" if unknown else f"{len(pools)} Pooling modules"
        raise InputError(
            f"pooling: {name} has {fault}, expected a Transformer, one Pooling and at most a Normalize; to leave the rest out, "
            f"set pooling to one of {', '.join(Pooling)}"
        )
    config = _read(folder / pools[0] / "config.json", name)
    modes = _modes(config) if isinstance(config, dict) else []
    if len(modes) != 1 or modes[0] not in _MODES:
        raise InputError(
            f"pooling: {name} pools by {', '.join(modes) or 'nothing'}; expected one of {', '.join(Pooling)}, which are linear"
        )
    return _MODES[modes[0]]


def _modes(config: dict[str, Any]) -> list[str]:
    named = config.get("pooling_mode")
    if isinstance(named, str):
        return [named]
    return [
        key.removeprefix("pooling_mode_")
        for key, on in config.items()
        if key.startswith("pooling_mode_") and on is True
    ]


def _read(path: Path, name: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"pooling: {path.name} of {name} cannot be read: {one_line(error)}; set pooling=") from error
