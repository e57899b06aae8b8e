"""What is on screen as code: Python that computes the same numbers, and a command."""

import dataclasses
import re
from collections.abc import Sequence

from normscope.api.targets import Label, MaskedToken, NextToken
from normscope.data.options import Level
from normscope.live.answers import THROUGH, Aimed
from normscope.live.state import Side, State
from normscope.live.texts import Read
from normscope.maths.choices import Pooling
from normscope.maths.embedder import Embedder
from normscope.models.embedder_modules import UnitLength
from normscope.models.loaded import LoadedModel
from normscope.models.options import DeviceOptions, ModelOptions
from normscope.results.maps import HEAD_MEASURES, MEASURES
from normscope.shell import shell_word

_PLAIN = re.compile(r"(?!(?:null|true|false|nan|inf)$)(?:\.{0,2}/)?[A-Za-z_][A-Za-z0-9_./-]*", re.IGNORECASE)
"""Values that Hydra's grammar reads as the same text without quotes."""
_LOADED = (
    "revision",
    "tokenizer",
    "stack",
    "random_init",
    "source_language",
    "target_language",
    "allow_pickle",
    "trust_remote_code",
)
"""Keys of a model that are arguments of `normscope.load` too."""
_ALONE = ("factory", "toy")
"""Keys of a model that `normscope.load` does not take."""


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a model of the page comes from, as code."""

    layers: tuple[int, ...]
    """The layers that its maps have, from 1."""
    python: str = ""
    """An expression that loads it; empty if it was in memory."""
    keys: tuple[str, ...] = ()
    """The same as keys of a command."""


def source_of(loaded: LoadedModel, model: ModelOptions, device: DeviceOptions) -> Source:
    """The code that loads a model."""
    layers = tuple(loaded.layout.attends)
    defaults, own = ModelOptions(), vars(model)
    changed = {name: own[name] for name in _LOADED if own[name] != getattr(defaults, name)}
    is_default = model.name == model.pin.name
    arguments = [] if is_default and not changed.get("random_init") else [repr(str(model.name))]
    arguments += [f"{name}={_written(value)}" for name, value in changed.items()]
    keys = [] if is_default else [_key("model.name", model.name)]
    keys += [_key(f"model.{name}", value) for name, value in changed.items()]
    if model.random_init and isinstance(model.seed, int):
        arguments.append(f"seed={model.seed}")
        keys.append(f"model.seed={model.seed}")
    for argument, key, value, default in (
        ("device", "device.name", device.name, "auto"),
        ("dtype", "device.dtype", str(device.dtype), "float32"),
    ):
        if value != default:
            arguments.append(f"{argument}={value!r}")
            keys.append(_key(key, value))
    if any(own[name] for name in _ALONE):
        return Source(layers)
    return Source(layers, f"normscope.load({', '.join(arguments)})", tuple(keys))


def python(sources: Sequence[Source], state: State, shown: Sequence[Aimed]) -> str:
    """A script that computes what is on screen: `maps` of the text (and `before`), `shown`, and `found`, what tokens add.

    Args:
        sources: Where the models come from.
        state: What is on screen.
        shown: The text of each side, and what is attributed to its tokens.
    """
    sides = state.sides
    lines = ["import normscope", ""]
    for number in dict.fromkeys(side.model for side in sides):
        lines.append(f"{_model(number)} = {sources[number - 1].python or '...  # the model that is served'}")
    if state.view.get("minus", "").startswith("measure:"):
        lines[0] = "import normscope\nimport numpy"
        lines += ["", *_OF_ROW.splitlines(), ""]
    if state.view.get("words"):
        lines += ["", "# The page adds up the columns of a word's tokens and averages over their rows."]
    for name, side, (typed, aim, against, _) in zip(_NAMES, sides, shown, strict=False):
        layers = sources[side.model - 1].layers
        lines += ["", f"{name.text} = {typed.given!r}", *_measured(name, side, layers, state, aim, against)]
    first = shown[0]
    if len(sides) > 1 and _are_similar(state, first.aim):
        pooling = f', pooling="{first.aim.pooling}"' if first.guessed and isinstance(first.aim, Embedder) else ""
        lines += ["", f"pairs = normscope.similarity({_model(sides[0].model)}, text, text_before{pooling}).matrix"]
    return "\n".join(lines) + "\n"


def command(sources: Sequence[Source], state: State, typed: Read, program: str = "normscope") -> str:
    """A command that shows the text's most likely prediction, its tokens' scores and its maps; empty if there is none."""
    source = sources[state.model - 1]
    chat = ["dataset=text", "dataset.chat_template=true"] if typed.chat else []
    words = [typed.text, *chat, *source.keys]
    if not source.python or "\0" in "".join(words):  # which no argument holds
        return ""
    return " ".join([program, "explain", "--", *map(shell_word, words)])


@dataclasses.dataclass(frozen=True)
class _Names:
    """The variables of a side."""

    text: str
    maps: str
    shown: str
    found: str


_NAMES = (
    _Names("text", "maps", "shown", "found"),
    _Names("text_before", "maps_before", "shown_before", "found_before"),
)


def _measured(name: _Names, side: Side, layers: Sequence[int], state: State, aim: object, other: str) -> list[str]:
    model, level = _model(side.model), "" if state.level is Level.token else f', level="{state.level}"'
    lines = [
        f"{name.maps} = normscope.decompose({model}, {name.text}, heads=True{level})",
        f"{name.shown} = {_shown(name, model, layers, state, level)}",
    ]
    if (target := _target(aim)) is not None:
        against = f", against={other!r}" if other else ""
        lines.append(f"{name.found} = normscope.attribute({model}, {name.text}, {target}{against}{level})")
    return lines


def _shown(name: _Names, model: str, layers: Sequence[int], state: State, level: str) -> str:
    """The map on screen, as an expression."""
    view = state.view
    layer, head = _number(view.get("layer"), layers[-1]), _number(view.get("head"), 0)
    measure = view.get("measure", "attn_n")

    def of(measure: str, layer: int) -> str:
        at = f"[{layers.index(layer) if layer in layers else -1}]"
        if measure in THROUGH:
            maps = f'normscope.attribution_maps({model}, {name.text}, ["{measure}"]{level})["{measure}"].cumulative'
            return f"{maps}{at}[:, : len({name.maps}.key_tokens)]"
        if head > 0 and measure in HEAD_MEASURES:
            return f"{name.maps}.{'head_weights' if measure == 'attn_w' else 'head_vectors'}{at}[{head - 1}]"
        known = measure if measure in MEASURES else "attn_n"
        return f"{name.maps}.shares{at}" if known == "share" else f'{name.maps}.maps["{known}"]{at}'

    kind, _, other = view.get("minus", "").partition(":")
    shown = of(measure, layer)
    if kind == "layer":
        return f"{shown} - {of(measure, _number(other, layer))}"
    if kind == "measure":
        return f"of_row({shown}) - of_row({of(other, layer)})"
    return shown


_OF_ROW = """
def of_row(values):
    values = numpy.asarray(values)
    sums = values.sum(-1, keepdims=True)
    return values / numpy.where(sums == 0, 1, sums)
"""


def _number(text: str | None, missing: int) -> int:
    return int(text) if text and re.fullmatch(r"-?[0-9]{1,4}", text) else missing


def _target(aim: object) -> str | None:
    match aim:
        case Label(label=name):
            return f"normscope.Label({name!r})"
        case NextToken(token=name):
            return f"normscope.NextToken({name!r})"
        case MaskedToken(token=name):
            return f"normscope.MaskedToken({name!r})"
        case Embedder():
            return _length(aim)
        case _:
            return None


_POOLED = {Pooling.mean: "hidden.mean(dim=0)", Pooling.cls: "hidden[0]", Pooling.last: "hidden[-1]"}
"""Pooled vectors that are one expression of the hidden vectors."""


def _length(embedder: Embedder) -> str | None:
    """The length of an embedding, along its own direction; None if it takes more than an expression."""
    if embedder.pooling not in _POOLED or not all(isinstance(module, UnitLength) for module in embedder.modules):
        return None
    length = f"{_POOLED[embedder.pooling]}.norm()"
    # A norm after pooling divides by the length, which is held fixed.
    return f"lambda hidden: {length}" + (f" / {length}.detach()" if embedder.modules else "")


def _are_similar(state: State, aim: object) -> bool:
    now, before = state.sides
    return isinstance(aim, Embedder) and now.model == before.model and now.text != before.text


def _model(number: int) -> str:
    return "model" if number == 1 else f"model_{number}"


def _written(value: object) -> str:
    return repr(value if isinstance(value, bool) else str(value))


def _key(name: str, value: object) -> str:
    """A key and its value as Hydra reads them. The value is a literal: nothing in it is replaced by an environment variable."""
    if isinstance(value, bool):
        return f"{name}={str(value).lower()}"
    text = str(value)
    if _PLAIN.fullmatch(text):
        return f"{name}={text}"
    # A backslash is one, unless what it stands before is written with another.
    text = re.sub(r"(\\*)\$\{", lambda found: rf"{2 * found[1]}\${{", text)
    text = re.sub(r'(\\*)("|\Z)', lambda found: 2 * found[1] + found[2].replace('"', r"\""), text)
    return f'{name}="{text}"'
