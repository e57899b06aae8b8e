"""What papers and models decide differently, and options therefore let users choose. Imports no torch, as options do not."""

import enum


class ValueBias(enum.StrEnum):
    """Where `decompx` and scores put the value biases."""

    token = "token"
    """With the bias, a token of its own, in every layer."""
    decompx = "decompx"
    """Those of the first layer with the tokens whose values they belong to, as in the official code of DecompX."""


class AttentionRule(enum.StrEnum):
    """What scores do with attention weights."""

    held = "held"
    """Hold them at their values, so that only values carry anything."""
    through = "through"
    """Follow them as well, to the queries and keys that they are made of."""


class AnswerMeasure(enum.StrEnum):
    """What is added up over the tokens of an answer."""

    logit = "logit"
    """Their logits."""
    log_probability = "log_probability"
    """The logarithms of their probabilities."""


class Removed(enum.StrEnum):
    """Which sources of an answer are removed from the prompt."""

    top = "top"
    """Those that add most, and as many others at random."""
    all = "all"
    """Each of them."""
    none = "none"
    """None of them."""


class PairMeasure(enum.StrEnum):
    """What is measured between a query and a key, for each head."""

    weight = enum.auto()
    """α."""
    norm = enum.auto()
    """‖αf(x)‖."""
    share = enum.auto()
    """The signed share of αf(x) in the query's attention output. All heads and keys add up to 1 minus the share of b_O."""
    score = enum.auto()
    """The input of the softmax: scale · q·k, with any cap and positional bias."""


class HeadReduction(enum.StrEnum):
    """How the values of several heads are reduced."""

    mean = "mean"
    max = "max"


class ReadoutTarget(enum.StrEnum):
    """What a checkpoint computes from a text, which is attributed to the text's tokens."""

    label = "label"
    """The class that a classifier predicts."""
    next = "next"
    """The token that a causal language model predicts after the text."""
    answer = "answer"
    """The answer that follows the text, as a causal language model predicts it."""
    loss = "loss"
    """The loss of a causal language model on the text's own tokens."""
    embedding = "embedding"
    """The text's embedding."""


class Pooling(enum.StrEnum):
    """The last hidden vectors that an embedding is made of."""

    mean = "mean"
    """The mean over all tokens."""
    cls = "cls"
    """The first token's."""
    last = "last"
    """The last token's."""
    mean_sqrt = "mean_sqrt"
    """The sum over all tokens, divided by the root of their number."""
    weighted_mean = "weighted_mean"
    """The mean over all tokens, weighted by their positions from 1."""
    max = "max"
    """The largest entry of each dimension; which token it is, is held."""


class SimilarityFunction(enum.StrEnum):
    """What two embeddings are compared by."""

    cosine = "cosine"
    """Their cosine."""
    dot = "dot"
    """Their product."""
    maxsim = "maxsim"
    """Late interaction: the sum over the first text's vectors of the largest product with a vector of the second text."""
    mean_maxsim = "meanmaxsim"
    """The same, divided by the number of the first text's vectors."""
