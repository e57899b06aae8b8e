"""How translation models are trained: the recipes, and batches of so many tokens."""

import dataclasses
from collections import Counter

import numpy as np
import pytest

from normscope.config.schema import read_values
from normscope.errors import InputError
from normscope.translation.training import RECIPES, Recipe, Schedule, TokenBatches

LENGTHS = np.random.default_rng(0).integers(1, 40, size=300).tolist()


def test_the_papers_recipe_is_its_table_5():
    """Kobayashi et al. 2020, Table 5."""
    recipe = RECIPES["kobayashi2020"]
    assert (recipe.encoder_layers, recipe.decoder_layers, recipe.model, recipe.heads) == (6, 6, 512, 8)
    assert (recipe.schedule, recipe.warmup_steps, recipe.learning_rate) == (Schedule.inverse_sqrt, 4000, 1e-4)
    assert (recipe.batch_tokens, recipe.label_smoothing, recipe.dropout, recipe.epochs) == (32768, 0.1, 0.3, 40)


@pytest.mark.parametrize("tokens", [45, 100, 10_000])
def test_every_pair_is_in_one_batch_and_no_batch_has_more_tokens(tokens):
    batches = list(TokenBatches(LENGTHS, tokens, 1, 1))
    assert Counter(pair for batch in batches for pair in batch) == Counter(range(len(LENGTHS)))
    sizes = [len(batch) * max(LENGTHS[pair] for pair in batch) for batch in batches]
    assert max(sizes) <= tokens
    assert np.mean(sizes) > 0.7 * min(tokens, sum(LENGTHS)), "batches are full"


def test_a_pair_longer_than_a_batch_is_a_batch_of_its_own():
    assert sorted(TokenBatches([3, 50, 2, 60], 10, 1, 1)) == [[1], [2, 0], [3]]


def test_epochs_have_the_same_batches_in_other_orders():
    batches = TokenBatches(LENGTHS, 100, 1, 1)
    first, again = list(batches), list(batches)
    batches.set_epoch(1)
    second = list(batches)
    assert first == again != second
    assert sorted(first) == sorted(second)
    assert first != list(TokenBatches(LENGTHS, 100, 2, 1)), "the seed decides"


@pytest.mark.parametrize("processes", [2, 3, 7, 400])
def test_processes_get_equally_many_batches(processes):
    alone, batches = list(TokenBatches(LENGTHS, 100, 1, 1)), TokenBatches(LENGTHS, 100, 1, processes)
    shared = list(batches)
    assert len(shared) == len(batches)
    assert len(shared) % processes == 0
    assert len(shared) - len(alone) < processes
    assert shared[: len(alone)] == alone
    assert all(batch in alone for batch in shared)


@pytest.mark.parametrize(
    ("name", "value"),
    [("epochs", 0), ("dropout", 1.0), ("schedule", "cosine"), ("model", "wide"), ("bfloat16", "maybe")],
)
def test_wrong_values_of_a_recipe_are_named(name, value):
    with pytest.raises(InputError, match=f"^{name}={value}: expected "):
        read_values(Recipe, dataclasses.asdict(Recipe()) | {name: value}, "recipe")
