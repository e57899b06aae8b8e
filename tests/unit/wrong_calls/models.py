"""Damaged models: before they are wrapped, and after."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

import normscope
from normscope.models.load.loaded import LoadedModel
from tests.unit.wrong_calls.call import Call
from tests.unit.wrong_calls.stock import OTHER, TEXT, Stock, tiny

PARTS = (
    *(
        "embeddings",
        "embeddings.word_embeddings",
        "embeddings.LayerNorm",
        "encoder",
        "encoder.layer",
        "encoder.layer.1",
    ),
    *(f"encoder.layer.1.attention{part}" for part in ("", ".self", ".output", ".output.dense", ".output.LayerNorm")),
    *(f"encoder.layer.1.attention.self.{part}" for part in ("query", "key", "value")),
    *(f"encoder.layer.1.{part}" for part in ("intermediate", "intermediate.dense", "output.dense", "output.LayerNorm")),
)

MODULES: dict[str, Callable[[nn.Module], Any]] = {
    "Identity": lambda _module: nn.Identity(),
    "a Sequential around it": lambda module: nn.Sequential(module),
    "an empty Sequential": lambda _module: nn.Sequential(),
    "None": lambda _module: None,
    "Dropout": lambda _module: nn.Dropout(),
    "a smaller Linear": lambda _module: nn.Linear(3, 2),
    "Linear without bias": lambda _module: nn.Linear(24, 24, bias=False),
    "an RMSNorm": lambda _module: nn.RMSNorm(24),
    "a LayerNorm of another size": lambda _module: nn.LayerNorm(7),
    "a BatchNorm": lambda _module: nn.BatchNorm1d(24),
    "a DataParallel": lambda module: nn.DataParallel(module),
    "a ModuleList": lambda module: nn.ModuleList([module]),
}

CONFIG: dict[str, tuple[Any, ...]] = {
    "num_attention_heads": (0, 1, 3, 5, 8, -4, 2.0, "4", None, [4], 10**9),
    "hidden_size": (0, 12, None, "x"),
    "num_hidden_layers": (0, 1, None),
    "model_type": ("nonsense", "gpt2", "roberta", "t5", None, 3),
    "pad_token_id": (-1, 10**9, 2.5),
    "hidden_act": ("nonsense", None, "relu"),
    "layer_norm_eps": (None, "x", 1.0),
    "type_vocab_size": (None, 0, "x"),
    "vocab_size": (3, None),
    "max_position_embeddings": (1, None, "x"),
    "is_decoder": (True,),
    "add_cross_attention": (True,),
    "_attn_implementation": ("nonsense", None, "eager"),
    "id2label": (None, {}, {0: "a"}),
    "name_or_path": ("x" * 5000, None, "a\nb"),
}

TENSORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "NaN": lambda tensor: tensor * torch.nan,
    "infinity": lambda tensor: tensor / 0,
    "one NaN": lambda tensor: tensor.clone().index_fill_(0, torch.tensor([0]), torch.nan),
    "another shape": lambda tensor: tensor[:2],
    "no element": lambda tensor: tensor[:0],
    "half precision": lambda tensor: tensor.half(),
    "whole numbers": lambda tensor: tensor.to(torch.int8),
    "complex numbers": lambda tensor: tensor.to(torch.complex64),
    "no memory": lambda tensor: tensor.to("meta"),
    "1e38": lambda tensor: torch.full_like(tensor, 1e38),
}


def damaged_models(stock: Stock) -> Iterator[Call]:
    """A call of `wrap` with each damaged model, and of what needs whole layers if the damage is none to the blocks."""
    for what, damage in (*_exchanges(), *_configs(), *_tensors(), *_others(stock)):
        yield Call(f"wrap with {what}", lambda damage=damage: _use(stock, damage), surely=False)


def _use(stock: Stock, damage: Callable[[Any], Any]) -> None:
    model = stock.model()
    changed = damage(model)
    wrapped = normscope.wrap(model if changed is None else changed, stock.tokenizer)
    normscope.decompose(wrapped, TEXT)
    normscope.attribute(wrapped, TEXT, lambda hidden: hidden[0, 0])


def _exchanges() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    for part in PARTS:
        for name, make in MODULES.items():
            yield f"{name} for {part}", functools.partial(_exchange, part, make)
        yield f"without {part}", functools.partial(_remove, part)


def _exchange(part: str, make: Callable[[nn.Module], Any], model: Any) -> None:
    parent, _, last = f"base_model.{part}".rpartition(".")
    setattr(model.get_submodule("bert" + parent.removeprefix("base_model")), last, make(model.bert.get_submodule(part)))


def _remove(part: str, model: Any) -> None:
    parent, _, last = f"bert.{part}".rpartition(".")
    delattr(model.get_submodule(parent), last)


def _configs() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    for key, values in CONFIG.items():
        for value in values:
            yield f"{key}={value!r:.20}", functools.partial(_configure, key, value)


def _configure(key: str, value: object, model: Any) -> None:
    vars(model.config)[{"_attn_implementation": "_attn_implementation_internal"}.get(key, key)] = value


def _tensors() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    names = ("encoder.layer.1.attention.self.key.weight", "encoder.layer.1.attention.output.LayerNorm.bias")
    for name in (*names, "embeddings.word_embeddings.weight", "encoder.layer.2.output.dense.bias"):
        for kind, make in TENSORS.items():
            yield f"{kind} in {name}", functools.partial(_fill, name, make)


def _fill(name: str, make: Callable[[torch.Tensor], torch.Tensor], model: Any) -> None:
    parent, _, last = f"bert.{name}".rpartition(".")
    values = make(getattr(model.get_submodule(parent), last).detach())
    setattr(model.get_submodule(parent), last, nn.Parameter(values, requires_grad=False))


def _others(stock: Stock) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    def forward(model: Any) -> None:
        model.bert.forward = lambda **_given: None

    def hook(model: Any) -> None:
        model.bert.encoder.layer[0].register_forward_hook(lambda *_given: None)

    def heads(model: Any) -> None:
        model.bert.encoder.layer[1].attention.self.num_attention_heads = 3

    def head_size(model: Any) -> None:
        model.bert.encoder.layer[1].attention.self.attention_head_size = 3

    def no_layer(model: Any) -> None:
        model.bert.encoder.layer = nn.ModuleList()

    def uncopyable(model: Any) -> None:
        model.bert.generator = (number for number in range(3))

    yield "another forward", forward
    yield "a hook", hook
    yield "another number of heads in a layer", heads
    yield "another size of heads in a layer", head_size
    yield "no layer", no_layer
    yield "something that cannot be copied", uncopyable
    yield "a base model without its class", lambda model: model.bert.encoder
    yield "a layer", lambda model: model.bert.encoder.layer[0]
    yield "a compiled model", lambda model: torch.compile(model)
    yield "a DataParallel", lambda model: nn.DataParallel(model)
    yield "a config", lambda model: model.config
    yield "a class", type
    yield "a model on no device", lambda model: model.to("meta")
    yield "a model that is wrapped already", lambda _model: stock.wrapped


def changes_after_wrapping(stock: Stock) -> Iterator[Call]:
    """A call of each function with a model that was damaged after it was wrapped."""
    for what, damage, surely in _changes():
        for name, function in _CALLS.items():
            yield Call(
                f"{name} after {what}",
                lambda damage=damage, function=function: _damaged(stock, damage, function),
                surely=surely and not (name in ("run", "observe") and what.startswith("NaN in the classifier")),
            )


def _damaged(stock: Stock, damage: Callable[[Any], Any], function: Callable[[LoadedModel], object]) -> object:
    model = stock.model()
    wrapped = normscope.wrap(model, stock.tokenizer)
    damage(model)
    return function(wrapped)


_CALLS: dict[str, Callable[[LoadedModel], object]] = {
    "decompose": lambda model: normscope.decompose(model, TEXT),
    "decompose whole layers": lambda model: normscope.decompose(model, TEXT, feed_forward=True),
    "attribute": lambda model: normscope.attribute(model, TEXT, 0),
    "attribution_maps": lambda model: normscope.attribution_maps(model, TEXT),
    "similarity": lambda model: normscope.similarity(model, TEXT, OTHER, pooling="mean"),
    "run": lambda model: normscope.run("mixing", model=model, texts=TEXT),
}


def _changes() -> Iterator[tuple[str, Callable[[Any], Any], bool]]:
    def filled(name: str, value: float) -> Callable[[Any], None]:
        def fill(model: Any) -> None:
            model.get_parameter(name).data.fill_(value)

        return fill

    key = "bert.encoder.layer.1.attention.self.key.weight"
    for value in (torch.nan, torch.inf):
        yield f"{value} in a projection", filled(key, value), True
        yield f"{value} in the embeddings", filled("bert.embeddings.word_embeddings.weight", value), True
    yield "1e38 in a projection", filled(key, 1e38), False
    yield "it was cast", lambda model: model.double(), True
    yield (
        "a weight was replaced",
        lambda model: _fill("encoder.layer.1.attention.self.key.weight", torch.clone, model),
        True,
    )
    yield "its layers were removed", lambda model: setattr(model.bert.encoder, "layer", nn.ModuleList()), True
    yield "it was moved", lambda model: model.to("meta"), True
    yield "its embeddings were resized", lambda model: model.resize_token_embeddings(10, mean_resizing=False), True


def other_models(stock: Stock) -> Iterator[Call]:
    """Models that do not have what a function needs."""
    tokenizer = stock.tokenizer
    seq2seq = tiny(AutoModelForSeq2SeqLM, "t5", tokenizer)
    mixture = tiny(AutoModelForCausalLM, "gpt_oss", tokenizer)
    yield Call("wrap an encoder as a decoder", lambda: normscope.wrap(stock.classifier, tokenizer, stack="cross"))
    yield Call("wrap a stack of another name", lambda: normscope.wrap(seq2seq, tokenizer, stack="middle"))
    experts = normscope.wrap(mixture, tokenizer)
    cross = normscope.wrap(seq2seq, tokenizer, stack="cross")
    for name, function in _CALLS.items():
        yield Call(f"{name} of a mixture of experts", lambda function=function: function(experts), surely=False)
        yield Call(f"{name} of one text by cross-attention", lambda function=function: function(cross))
