"""Writes docs/reference/architectures.csv: what can be observed in every text architecture of the installed transformers.

`python -m docs.architectures` reads what each is from its default config, with a model without weights. This takes
minutes, so the site reads the file, and a slow test compares some of its rows.
"""

import contextlib
import csv
import functools
import re
import signal
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

import transformers
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    MODEL_MAPPING_NAMES,
)

from normscope.errors import InputError
from normscope.models.facts import ModelFacts, StackName
from normscope.models.observe.reading import facts_of_config

PAGE = Path(__file__).parent / "reference" / "architectures.csv"
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
    return "part" if facts.without_attention else "yes"


def _limits(facts: ModelFacts) -> Iterator[str]:
    """What cannot be observed in a stack, or not in the usual form."""
    if facts.without_attention:
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
    """The rows of the file."""
    with PAGE.open(newline="") as file:
        return [Row(**row) for row in csv.DictReader(file)]


def main() -> None:
    """Write the file; with arguments, infer the named architectures again and keep the other rows."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    names = sys.argv[1:] or architectures()
    found: list[Row] = []
    for name in names:
        signal.signal(signal.SIGALRM, functools.partial(_too_long, name))
        signal.alarm(_SECONDS)
        try:
            found.extend(rows(name))
        except _TooLongError:
            found.append(
                Row(name, "", "", "", "no", "", f"a forward pass over two texts takes more than {_SECONDS} seconds")
            )
        finally:
            signal.alarm(0)
        print(*found[-1], sep=" | ", flush=True)
    written = {row.model_type: [each for each in found if each.model_type == row.model_type] for row in found}
    known = {row.model_type: [each for each in stored() if each.model_type == row.model_type] for row in stored()}
    with PAGE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        for name in architectures():
            writer.writerows(written.get(name, known.get(name, [])))


class _TooLongError(BaseException):
    """An architecture takes too long. Inference takes any `Exception` for a failure of the model."""


def _too_long(name: str, *_: object) -> None:
    raise _TooLongError(name)


if __name__ == "__main__":
    main()
