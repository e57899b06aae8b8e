"""Which tokens of the source the probability of each target token depends on, by gradients of noisy copies of the source."""

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from normscope.maths.tensors import wide
from normscope.models.blocks.block import full_precision
from normscope.models.probes import embeddings_of

# A head returns a logit for every token of the vocabulary: with 250,000 of them, 1,024 tokens need a gigabyte.
_TOKENS_AT_ONCE = 1024


def smooth_gradients(
    head: PreTrainedModel, inputs: Mapping[str, Tensor], samples: int, noise: float, random: np.random.Generator
) -> Float[Tensor, "target source"]:
    """How much the probability of every target token that follows the first depends on each source token, in float64.

    With x_i the embedding of source token i and p_t the probability of target token t + 1, given those before it,

        Ψ_ti = mean over samples of max(0, ⟨x_i, ∂p_t/∂x_i⟩), the gradient taken at x + ε:

    the derivative by a factor of x_i, at 1, if it is positive. As in the authors' code (shuoyangd/meerkat), negative ones
    count as zero sample by sample, x_i is the embedding without noise, and ε is normal; its standard deviation is `noise` times
    the range of the values of the sentence's embeddings.

    Args:
        head: An encoder–decoder with its head, in evaluation mode.
        inputs: `input_ids` and `decoder_input_ids` of a single translation without padding.
        samples: Number of noisy copies of the source.
        noise: Standard deviation of the noise, as a share of that range.
        random: Draws the noise.

    Returns:
        A row for each target token but the first: row t is about the token at t + 1, which is predicted where t is read.

    Source: Ding et al. 2019 (arXiv:1906.10282), word saliency with SmoothGrad (Smilkov et al. 2017), which Kobayashi et al.
    2020 compare with in Table 3.
    """
    source, target = inputs["input_ids"], inputs["decoder_input_ids"]
    encoder, following = head.get_encoder(), target[0, 1:]
    embeddings = embeddings_of(encoder)
    with torch.inference_mode(False), torch.enable_grad():
        source, target, following = source.clone(), target.clone(), following.clone()
        vectors = embeddings(source).detach()
        drawn = torch.from_numpy(random.standard_normal((samples, *vectors.shape[1:]))).to(vectors)
        scaled = noise * (vectors.max() - vectors.min()) * drawn
        total = torch.zeros(len(following), source.shape[1], dtype=torch.float64)
        for part in scaled.split(max(1, _TOKENS_AT_ONCE // target.shape[1])):
            factors = torch.ones(len(part), source.shape[1], 1).to(vectors).requires_grad_()
            noisy = vectors * factors + part
            replaced = embeddings.register_forward_hook(lambda *_, noisy=noisy: noisy)
            try:
                encoded = encoder(input_ids=source.expand(len(part), -1), return_dict=True)
            finally:
                replaced.remove()
            logits = head(
                encoder_outputs=encoded, decoder_input_ids=target.expand(len(part), -1), use_cache=False
            ).logits
            chosen = following.expand(len(part), -1)[..., None]
            probabilities = full_precision(logits[:, :-1]).softmax(dim=-1).gather(-1, chosen)[..., 0].sum(dim=0)
            for row, probability in enumerate(probabilities):
                gradient = torch.autograd.grad(probability, factors, retain_graph=row + 1 < len(probabilities))[0]
                total[row] += wide(gradient[..., 0].clamp(min=0)).sum(dim=0).cpu()
    return total / samples
