"""Scores of tokens by every method and for every family: a padded batch gives what each text gives alone."""

import pytest
import torch

from normscope.attribution.baselines import Baseline
from normscope.attribution.methods import MapMethod, MapStage, defined_methods
from normscope.attribution.model_maps import model_maps
from normscope.attribution.readouts import EmbeddingReadout
from normscope.attribution.token_scores import token_scores
from normscope.maths.choices import Pooling
from normscope.maths.embedder import Embedder
from tests.tiny import FAMILY_CONFIGS, facts_for, tiny_model, token_batch

LENGTHS = (7, 4)


@pytest.mark.spread(1)
@pytest.mark.networks
@pytest.mark.kinds("bert", "gpt2", "olmo2", "qwen2")
def test_a_padded_batch_gives_what_each_text_gives_alone(family, family_model):
    facts = facts_for(family)
    readout = EmbeddingReadout(family_model, Embedder(Pooling.mean))
    inputs = token_batch(family_model, LENGTHS)

    def scored(inputs):
        maps = defined_methods(facts, None, MapStage.LAYER)
        assert MapMethod.DECOMPX in maps
        found = model_maps(family_model, facts, inputs, maps)
        return token_scores(family_model, facts, inputs, readout, [*maps, *Baseline], found, steps=3)

    together = scored(inputs)
    for row, length in enumerate(LENGTHS):
        alone = scored({name: tensor[row : row + 1, :length] for name, tensor in inputs.items()})
        assert together.keys() == alone.keys()
        for method, scores in together.items():
            assert (scores[row, length:] == 0).all(), method
            scale = alone[method].abs().max()
            assert scale > 0, method
            torch.testing.assert_close(
                scores[row, :length] / scale, alone[method][0] / scale, rtol=1e-6, atol=1e-6, msg=str(method)
            )


@pytest.mark.spread(1)
@pytest.mark.parametrize("model_type", ["bert", "gpt2"])
def test_integrated_gradients_add_up_to_the_difference_from_zero_embeddings(model_type):
    """With enough steps: no frozen model, no approximation but the integral's."""
    model = tiny_model(FAMILY_CONFIGS[model_type], torch.float64)
    readout = EmbeddingReadout(model, Embedder(Pooling.mean))
    inputs = token_batch(model, (5,))
    facts, module = facts_for(model_type), model.get_input_embeddings()
    scores = token_scores(model, facts, inputs, readout, [Baseline.INTEGRATED_GRADIENTS], {}, steps=300)
    with torch.inference_mode():
        whole = readout.answers(model(**inputs), inputs)
        zero = module.register_forward_hook(lambda _module, _args, output: torch.zeros_like(output))
        none = readout.answers(model(**inputs), inputs)
        zero.remove()
    difference = readout.scalars(whole, whole) - readout.scalars(none, whole)
    torch.testing.assert_close(scores[Baseline.INTEGRATED_GRADIENTS].sum(dim=1), difference, rtol=1e-4, atol=1e-4)
