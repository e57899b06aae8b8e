"""Running the model again: the loss of the checkpoint's head, and replacements at chosen tokens."""

import dataclasses

import pytest
import torch

from normscope.models.load.interventions import Ablation, InterventionRunner
from normscope.models.observe.check import PartsCheck
from tests.oracles import specimens
from tests.oracles.specimens import Specimen


@pytest.fixture(scope="module")
def qwen2() -> Specimen:
    return specimens.qwen2()


def runner_of(specimen: Specimen) -> InterventionRunner:
    return InterventionRunner(specimen.loaded, specimen.encoder, [1, 2, 3], 45)


def test_without_a_head_there_is_no_loss(qwen2):
    headless = dataclasses.replace(qwen2.loaded, load_head=lambda _head: None)
    runner = InterventionRunner(headless, qwen2.encoder, [1], 45)
    assert runner.predictor is None
    assert runner.without_loss == "the checkpoint has no language-modelling head"
    assert runner_of(qwen2).without_loss is None
    unchanged = runner.unchanged(qwen2.batches[0], lambda _block: None)
    assert unchanged.loss is None
    assert runner.ablated(unchanged, lambda _block: None, Ablation([2], {2: torch.zeros(1)})) is None


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", ["bert", "qwen2"])
def test_losses_under_ablation_are_those_of_a_whole_pass(name, monkeypatch):
    """The layers before the ablation do not run again, neither for the texts nor for the texts with masked tokens."""
    specimen = getattr(specimens, name)()
    runner = runner_of(specimen)
    model = specimen.loaded.model
    layers = model.encoder.layer if hasattr(model, "encoder") else model.layers
    for batch in specimen.batches:
        unchanged = runner.unchanged(batch, lambda _block: None, (1, 2, 3))
        assert all(output is not None for output in unchanged.texts.outputs.values())
        for start in (1, 2, 3):
            values = {layer: torch.tensor([7.0, -8.0]).double() for layer in range(start, 4)}
            handles = [module.register_forward_pre_hook(_replace) for module in layers[start - 1 :]]
            with monkeypatch.context() as patched:
                patched.setattr(PartsCheck, "begin", lambda *_: None)  # which notices the hooks
                expected = runner.unchanged(batch, lambda _block: None).loss
            for handle in handles:
                handle.remove()
            loss = runner.ablated(unchanged, lambda _block: None, Ablation([2, 5], values))
            assert loss == expected
            kept_nothing = runner.unchanged(batch, lambda _block: None)
            assert loss == runner.ablated(kept_nothing, lambda _block: None, Ablation([2, 5], values))
            assert loss != unchanged.loss


def _replace(_module, args):
    vectors = args[0].clone()
    vectors[..., [2, 5]] = torch.tensor([7.0, -8.0]).double()
    return (vectors, *args[1:])
