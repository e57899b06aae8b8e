"""Scores of a text's tokens for what the model reads out of the text, by any method.

`decompx` and the baselines attribute the readout's scalar. Methods that end in a map (query, key) have no scalar: the score of
a token is what the outputs take from it, weighted by the norm of the scalar's gradient at each output. For a classifier that
reads [CLS] this is the row of [CLS]; for an embedding that is a mean, the mean of the rows.
"""

from collections.abc import Collection, Mapping

import torch
from jaxtyping import Float
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from normscope.attribution.baselines import Baseline, baseline_scores
from normscope.attribution.methods import MapMethod
from normscope.attribution.model_maps import ModelMaps
from normscope.attribution.passes import held_pass
from normscope.attribution.readouts import Readout
from normscope.attribution.scalars import attribute_scalars
from normscope.maths.choices import ValueBias
from normscope.maths.tensors import wide
from normscope.models.facts import ModelFacts


def token_scores(
    model: PreTrainedModel,
    facts: ModelFacts,
    inputs: Mapping[str, Tensor],
    readout: Readout,
    methods: Collection[MapMethod | Baseline],
    maps: Mapping[MapMethod, ModelMaps],
    *,
    bias: ValueBias = ValueBias.token,
    steps: int = 50,
) -> dict[MapMethod | Baseline, Float[Tensor, "batch token"]]:
    """The score of each token by each method, in float64; 0 at padding.

    Args:
        model: A base model in evaluation mode.
        readout: What is attributed.
        maps: The maps of these inputs, by the methods that have maps.
        bias: Where `decompx` puts the value biases of the first layer.
        steps: Number of steps of integrated gradients.

    Raises:
        InputError: If attribution cannot follow the model.
        ImportError: If integrated gradients are asked for and Captum is not installed.
    """
    passed = held_pass(model, facts, inputs, readout.head)
    mask = passed.token_mask
    with torch.inference_mode(False), torch.enable_grad():
        answers = readout.answers(passed.output, inputs)
        scalars = readout.scalars(answers, answers.detach())
        gradient = passed.at_hidden(scalars.sum())
        sizes = torch.linalg.vector_norm(wide(gradient), dim=-1) * wide(mask)
        parts = attribute_scalars(passed, scalars, bias) if MapMethod.DECOMPX in methods else None
    weights = sizes / sizes.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(sizes.dtype).tiny)
    tokens = mask.shape[1]
    scores: dict[MapMethod | Baseline, Tensor] = {}
    for method in methods:
        if method is Baseline.THROUGH_ATTENTION:
            scores[method] = _through_attention(model, facts, inputs, readout)
        elif isinstance(method, Baseline):
            scores[method] = baseline_scores(method, model, inputs, readout, steps)
        elif method is MapMethod.DECOMPX:
            assert parts is not None
            scores[method] = parts.scores
        else:
            total = maps[method].total[..., :tokens]
            scores[method] = torch.einsum("bq,bqk->bk", weights.to(total.device), total) * wide(mask)
    return scores


def _through_attention(
    model: PreTrainedModel, facts: ModelFacts, inputs: Mapping[str, Tensor], readout: Readout
) -> Float[Tensor, "batch token"]:
    """Scores that follow attention weights to queries and keys as well."""
    passed = held_pass(model, facts, inputs, readout.head, through=True)
    with torch.inference_mode(False), torch.enable_grad():
        answers = readout.answers(passed.output, inputs)
        scalars = readout.scalars(answers, answers.detach())
    return attribute_scalars(passed, scalars).scores
