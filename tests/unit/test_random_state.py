"""The random numbers of the caller are the same whatever is wrapped, loaded or run beside them, in one thread or several."""

import os
import threading

import numpy as np
import pytest
import torch
from torch import nn

import normscope
from normscope.models.stored.random_state import drawing, generators_restored
from tests.one_text import decompose
from tests.unit.test_forks import in_child

TEXT = "The old bridge was closed, so we crossed the river."


class Drawing(nn.Module):
    """Builds a layer in its forward, as modules with lazily made parts do, which draws its initial weights."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)

    def forward(self, ids):
        nn.Linear(3, 3)
        return self.layers(self.embedding(ids))


def threads(function, count=4):
    failed = []

    def call():
        try:
            function()
        except Exception as error:
            failed.append(error)

    all_of_them = [threading.Thread(target=call) for _ in range(count)]
    for thread in all_of_them:
        thread.start()
    for thread in all_of_them:
        thread.join()
    if failed:
        raise failed[0]


@pytest.fixture
def unchanged():
    torch.manual_seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    yield
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()


@pytest.mark.slow
@pytest.mark.usefixtures("unchanged")
def test_threads_that_wrap_one_module():
    with torch.random.fork_rng():
        module = Drawing().eval()
    threads(lambda: normscope.wrap(module))


@pytest.mark.slow
@pytest.mark.usefixtures("unchanged")
def test_threads_that_load_and_decompose(saved_model):
    found = []

    def use():
        model = normscope.load(str(saved_model), random_init=True, seed=3)
        found.append(decompose(model, TEXT).ratios)

    threads(use)
    assert len(found) == 4
    assert all(torch.equal(each, found[0]) for each in found)  # the seed is each one's own


@pytest.mark.usefixtures("unchanged")
def test_threads_that_draw_get_the_numbers_of_their_seed():
    found = {}

    def draw(seed):
        for _ in range(50):
            with drawing(seed):
                found.setdefault(seed, []).append(torch.rand(3).tolist())

    seeds = [threading.Thread(target=draw, args=(seed,)) for seed in range(4)]
    for thread in seeds:
        thread.start()
    for thread in seeds:
        thread.join()
    for seed, values in found.items():
        assert values == 50 * [torch.rand(3, generator=torch.Generator().manual_seed(seed)).tolist()]


@pytest.mark.usefixtures("unchanged")
def test_the_last_of_several_threads_restores_the_generators():
    inside, leave = threading.Barrier(3), threading.Barrier(3)

    def hold():
        with generators_restored():
            inside.wait(10)
            torch.rand(5)
            leave.wait(10)

    holders = [threading.Thread(target=hold) for _ in range(2)]
    for holder in holders:
        holder.start()
    inside.wait(10)
    leave.wait(10)
    for holder in holders:
        holder.join()


@pytest.mark.slow
@pytest.mark.usefixtures("unchanged")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_while_another_thread_draws():
    expected = torch.rand(3, generator=torch.Generator().manual_seed(5)).tolist()
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with drawing(9):
            torch.rand(5)
            inside.set()
            leave.wait(20)

    def draw():
        with drawing(1):
            torch.rand(1)
        return torch.rand(3).tolist()

    holder = threading.Thread(target=hold)
    holder.start()
    assert inside.wait(10)
    try:
        assert in_child(draw) == expected
    finally:
        leave.set()
        holder.join()
