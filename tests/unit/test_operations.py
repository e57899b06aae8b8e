"""What a pass asks of torch: as many operations whatever the batch, and nothing twice."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.commands import ANALYSES
from benchmarks.scenarios import analyses_of, analysing, random_batch
from normscope.analyses import hidden_moments
from normscope.maths.attention_weights import AttentionWeights
from normscope.models.blocks.block import AttentionBlock
from tests.tiny import FAMILY_CONFIGS, tiny_model

FAMILIES = ("bert", "llama")
# A sample that overflows is cut back to its size, at most once per layer and batch; `norms` has one for each category.
CUTS = {"norms": 4 * 20}


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operations(forward: Callable[[], object]) -> int:
    """The number of operations that a call dispatches to torch."""
    with _Counter() as counter:
        forward()
    return counter.count


def prepared(model_type, sequences, names):
    torch.manual_seed(0)
    model = tiny_model(FAMILY_CONFIGS[model_type], torch.float32)
    return analysing(model, random_batch((sequences, 6), model.config.vocab_size), analyses_of(model, names))


# Attribution makes passes of its own.
@pytest.mark.parametrize("name", [name for name in ANALYSES if name != "attribution"])
@pytest.mark.parametrize("model_type", FAMILIES)
@pytest.mark.spread(1)
def test_operations_do_not_grow_with_the_batch(model_type, name):
    few, many = (prepared(model_type, sequences, [name]) for sequences in (4, 64))
    few(), many()
    assert abs(operations(few) - operations(many)) <= CUTS.get(name, 0)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_block_builds_nothing_twice(monkeypatch, model_type):
    built: dict[str, int] = {}
    parts = ("received", "transformed_norms", "own", "composition", "mixing_ratios")
    for part in parts:
        property_ = (AttentionWeights if part in ("received", "own") else AttentionBlock).__dict__[part]

        def counted(block, part=part, build=property_.func):
            built[part] = built.get(part, 0) + 1
            return build(block)

        monkeypatch.setattr(property_, "func", counted)
    forward = prepared(model_type, 3, ["mixing", "norms", "frequency", "outliers", "score", "feedforward"])
    forward()
    layers = FAMILY_CONFIGS[model_type]["num_hidden_layers"]
    assert built.pop("received", 0) == 0  # the sum of α, which the rank correlation builds
    assert built == dict.fromkeys(parts[1:], layers)


def test_analyses_share_the_sums_of_hidden_vectors(monkeypatch):
    summed = []
    build = hidden_moments._sums
    monkeypatch.setattr(hidden_moments, "_sums", lambda *arguments: summed.append(1) or build(*arguments))
    prepared("bert", 3, ["outliers", "score"])()
    assert len(summed) == 1 + FAMILY_CONFIGS["bert"]["num_hidden_layers"]
