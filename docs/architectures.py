"""Writes docs/reference/architectures.csv and towers.csv: what can be observed in every architecture of transformers.

`python -m docs.architectures` reads what each architecture of texts is from its default config, with a model without weights,
and loads a tiny model of each that reads images or sound (see `docs/towers.py`). This takes minutes, so the site reads the
files, and slow tests compare some of their rows. `python -m docs.architectures NAME …` reads some of them again.
"""

import contextlib
import csv
import functools
import re
import signal
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args

import transformers
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    MODEL_MAPPING_NAMES,
)

from docs.towers import Tower, tower_row, towers
from normscope.errors import InputError
from normscope.models.facts import ModelFacts, StackName
from normscope.models.observe.reading import facts_of_config

PAGE = Path(__file__).parent / "reference" / "architectures.csv"
TOWERS = PAGE.with_name("towers.csv")
LISTS = {
    "masked": MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "causal": MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "sequence to sequence": MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
}
"""transformers' lists of text models, by training objective."""
LAYERS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "encoder_layers",
    "decoder_layers",
    "num_decoder_layers",
)
"""Names of the number of layers in configs."""
REFUSED: Mapping[str, Collection[str]] = {
    "cpmant": ("",),
    "diffllama": ("",),
    "falcon_h1": ("",),
    "gemma3n": ("",),
    "gemma3n_text": ("",),
    "hrm_text": ("",),
    "neomme": ("",),
    "prophetnet": ("encoder",),
    "xlnet": ("",),
    "zamba": ("",),
    "zamba2": ("",),
    "zaya": ("",),
}
"""Stacks that are read from a config, but whose model, with weights, is refused at load or not proved. A slow test proves all
others on tiny models."""
_UNPROVED = "its blocks are recognised in a model without numbers, but not proved on a small model with weights"
_REASONS = {
    "cpmant": "it puts a prompt in front of the tokens",
    "diffllama": "its heads return more than its output projection reads",
    "gemma3n": _UNPROVED,
    "gemma3n_text": _UNPROVED,
    "hrm_text": _UNPROVED,
    "neomme": _UNPROVED,
    "xlnet": "its own code does not run in float64, in which the proof is made",
    "zamba": _UNPROVED,
    "zamba2": _UNPROVED,
    "zaya": "half of each head's values are made of the vector of the token before",
    "falcon_h1": "a mixer and a network both add to the stream besides attention; the proof accepts one such branch",
}
"""Why the proof refuses some of them."""
_SECONDS = 300
_PATHS = re.compile(r" from '[^']*('|…)")
"""Where modules lie on this machine, in messages of transformers."""


class Row(NamedTuple):
    """One stack of an architecture."""

    model_type: str
    stack: str
    lists: str
    block: str
    """The position of the block's norm; empty if it cannot be observed."""
    network: str
    """Whether whole layers can be observed, with their feed-forward networks: yes, no, or part (some layers only)."""
    attribution: str
    """Whether vectors can be followed through the whole stack: yes or no; empty for self-attention of a decoder, and
    where there are no blocks."""
    reason: str
    """What cannot be observed, or not in the usual form, and why."""


def architectures() -> list[str]:
    """The text architectures of the installed transformers."""
    return list(dict.fromkeys(name for names in LISTS.values() for name in names if name in CONFIG_MAPPING))


def rows(model_type: str) -> Iterator[Row]:
    """What can be observed in an architecture, by stack."""
    lists = ", ".join(name for name, names in LISTS.items() if model_type in names)
    try:
        config = text_config(model_type)
    except Exception as error:  # some configs have no valid defaults
        yield Row(model_type, "", lists, "", "no", "", f"its default config is not valid: {type(error).__name__}")
        return
    if config.model_type not in MODEL_MAPPING_NAMES:
        yield Row(model_type, "", lists, "", "no", "", "its text part is not a separate model")
        return
    stacks: tuple[StackName | None, ...] = get_args(StackName) if config.is_encoder_decoder else (None,)
    is_encoder_known = True
    for stack in stacks:
        try:
            facts = facts_of_config(config, stack)
        except InputError as error:
            is_encoder_known &= stack != "encoder"
            yield Row(model_type, stack or "", lists, "", "no", "", _PATHS.sub("", str(error.__cause__ or error)))
        else:
            if (stack or "") in REFUSED.get(model_type, ()):
                reason = _REASONS.get(model_type, "the proof on a small model with weights refuses it")
                yield Row(model_type, stack or "", lists, "", "no", "", reason)
                continue
            followed = "" if stack == "decoder" else "yes" if is_encoder_known else "no"
            position = ", ".join(facts.norm_positions)
            limits = "; ".join(_limits(facts))
            yield Row(model_type, stack or "", lists, position, _network(facts), followed, limits)


def _network(facts: ModelFacts) -> str:
    if facts.stack == "decoder":  # cross-attention follows
        return ""
    if not facts.has_networks:
        return "no"
    return "part" if facts.not_measured else "yes"


def _limits(facts: ModelFacts) -> Iterator[str]:
    """What cannot be observed in a stack, or not in the usual form."""
    if facts.not_measured:
        yield "hybrid: only layers with softmax attention have a block"
    if facts.is_gated:
        yield "gated: head outputs are multiplied by a gate that depends on the query"
    if not facts.has_value_weights:
        yield "no single linear layer maps what attention reads to values"
    elif not facts.has_score_weights:
        yield "no single linear layer maps what attention reads to queries or keys"


def text_config(model_type: str) -> Any:
    """The default config of an architecture's text part, with only as many layers as needed to show every kind."""
    config: Any = CONFIG_MAPPING[model_type]()
    text = config.get_text_config()
    config = config if config.is_encoder_decoder else text
    for name in LAYERS:
        layers = getattr(config, name, None)
        if isinstance(layers, int) and layers > 2 and not getattr(config, "layer_types", None):
            with contextlib.suppress(NotImplementedError):  # some derive one number from others
                setattr(config, name, 2)
    for part in config.sub_configs:
        _shorten(getattr(config, part, None))
    config.use_cache = False
    _complete(config)
    return config


def _shorten(config: Any) -> None:
    """Keep as many layers of a stack with a config of its own (T5Gemma's) as show every kind, and those of its parts."""
    for part in getattr(config, "sub_configs", ()):
        _shorten(getattr(config, part, None))
    kinds = getattr(config, "layer_types", None)
    if kinds:
        config.num_hidden_layers = max(kinds.index(kind) for kind in kinds) + 1
        config.layer_types = kinds[: config.num_hidden_layers]


def _complete(config: Any) -> None:
    """Give values to keys that have no default but that a model needs."""
    heads = vars(config).get("num_attention_heads")
    if getattr(config, "moe_intermediate_size", None) == 1407:  # DeepSeek V2's does not fit the kernel of its experts
        config.moe_intermediate_size = 1408
    values: dict[str, Any] = {
        "num_experts_per_tok": 2,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "attn_layer_indices": [1],
        "layer_types": ["conv", "full_attention"],
        "default_language": next(iter(getattr(config, "languages", ())), None),
    }
    if heads and "hidden_size" in vars(config):
        values |= {"num_key_value_heads": heads, "head_dim": config.hidden_size // heads}
    if getattr(config, "vocab_size", 0) is None:  # ESM
        values |= {"vocab_size": 100, "pad_token_id": 1}
    for key, value in values.items():
        if vars(config).get(key, value) is None:  # some configs refuse to name one value for all layers
            setattr(config, key, value)


def stored() -> list[Row]:
    """The rows of the file of architectures that read texts."""
    with PAGE.open(newline="") as file:
        return [Row(**row) for row in csv.DictReader(file)]


def stored_towers() -> list[Tower]:
    """The rows of the file of those that read images or sound."""
    with TOWERS.open(newline="") as file:
        return [Tower(**row) for row in csv.DictReader(file)]


def main() -> None:
    """Write the files; with arguments, read the named architectures again and keep the other rows."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    named, reads = sys.argv[1:], towers()
    texts = {name: _in_time(name, rows) for name in architectures() if not named or name in named}
    _write(PAGE, Row._fields, architectures(), texts, stored())
    of_towers = {name: _in_time(name, _rows_of_tower) for name in reads if not named or name in named}
    _write(TOWERS, Tower._fields, reads, of_towers, stored_towers() if TOWERS.exists() else [])


def _rows_of_tower(model_type: str) -> Iterator[Tower]:
    yield tower_row(model_type, towers()[model_type])


T = TypeVar("T", Row, Tower)


def _in_time(name: str, read: Callable[[str], Iterable[T]]) -> list[T]:
    """The rows of an architecture; one that says so if reading them takes too long."""
    signal.signal(signal.SIGALRM, functools.partial(_too_long, name))
    signal.alarm(_SECONDS)
    try:
        found = list(read(name))
    except _TooLongError:
        is_tower = read is _rows_of_tower
        too_long = "not tried: it takes too long" if is_tower else f"a forward pass takes more than {_SECONDS} seconds"
        kind = Tower if is_tower else Row
        values = {"model_type": name, "network": "no", "reason": too_long, "reads": towers().get(name, "")}
        found = [kind(**{field: values.get(field, "") for field in kind._fields})]  # type: ignore[list-item]
    finally:
        signal.alarm(0)
    for row in found:
        print(*row, sep=" | ", flush=True)
    return found


def _write(
    path: Path, fields: Sequence[str], names: Iterable[str], found: Mapping[str, list[T]], known: Sequence[T]
) -> None:
    """Write the rows that have been found, and those that are known of other architectures."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(fields)
        for name in names:
            writer.writerows(found.get(name, [row for row in known if row.model_type == name]))


class _TooLongError(BaseException):
    """An architecture takes too long. Inference takes any `Exception` for a failure of the model."""


def _too_long(name: str, *_: object) -> None:
    raise _TooLongError(name)


if __name__ == "__main__":
    main()
