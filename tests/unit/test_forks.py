"""Processes forked while other threads use a model: they can use it as well, and find it as it was."""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import urllib.request

import pytest
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForMaskedLM

import normscope
from normscope.errors import InputError
from tests.one_text import attribute, attribution_maps, decompose
from tests.tiny import saved_with_head

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]

TEXT = "The old [MASK] was closed, so we crossed the river."
_SECONDS = 20


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory):
    return str(saved_with_head(AutoModelForMaskedLM, "bert", tokenizer, tmp_path_factory.mktemp("bert")))


@pytest.fixture
def model(folder):
    return normscope.load(folder, device="cpu")


def in_child(function):
    """What a function returns, or the error that it raises, in a forked process; `hangs` if it does not end."""
    ours, its = multiprocessing.Pipe(duplex=False)
    process = os.fork()
    if not process:
        with contextlib.suppress(BaseException):
            torch.set_num_threads(1)  # OpenMP's threads are lost too: what DataLoader does
            try:
                result = function()
            except Exception as error:
                result = f"{type(error).__name__}: {error}"
            its.send(result)
        os._exit(0)
    its.close()
    try:
        return ours.recv() if ours.poll(_SECONDS) else "hangs"
    except EOFError:
        return "dies"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        ours.close()


@contextlib.contextmanager
def in_thread(call):
    """A thread that makes a call again and again."""
    stopping, begun = threading.Event(), threading.Event()

    def work():
        while not stopping.is_set():
            call()
            begun.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(_SECONDS)
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def ratios(model):
    return decompose(model, TEXT).ratios.tolist()


class Decomposed(torch.utils.data.Dataset):
    def __init__(self, model):
        self.model = model

    def __len__(self):
        return 4

    def __getitem__(self, at):
        return torch.tensor(ratios(self.model))


@pytest.mark.slow
def test_workers_of_a_loader_decompose_while_another_thread_does(model):
    expected = torch.tensor(ratios(model))
    with in_thread(lambda: ratios(model)):
        for batch in DataLoader(Decomposed(model), num_workers=2, multiprocessing_context="fork", timeout=_SECONDS):
            assert torch.equal(batch[0], expected)


CALLS = {
    "decompose": ratios,
    "attribute": lambda model: attribute(model, TEXT, normscope.MaskedToken("bridge")).scores.tolist(),
    "maps": lambda model: attribution_maps(model, TEXT, ["alti"])["alti"].cumulative.tolist(),
}


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_a_fork_in_the_middle_of_a_call_finds_the_model_as_it_was(model, call):
    expected = {name: function(model) for name, function in CALLS.items()}
    whole = model.masked_language_head
    inputs = model.tokenizer(TEXT, return_tensors="pt")

    def all_of_them():
        hooks = sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in whole.modules())
        plain = whole(**inputs).logits.sum().item()
        return (
            hooks,
            plain,
            whole.config._attn_implementation,
            {name: function(model) for name, function in CALLS.items()},
        )

    before = all_of_them()
    with in_thread(lambda: CALLS[call](model)):
        for number in range(2):
            time.sleep(0.003 * number)
            assert in_child(all_of_them) == before
    assert before[3] == expected


@pytest.mark.slow
def test_a_fork_while_another_thread_computes_a_property(folder, monkeypatch):
    """Of a model that nobody has used yet, whose proof is made by its first call."""
    model, other = normscope.load(folder, device="cpu"), normscope.load(folder, device="cpu")
    inside, leave = threading.Event(), threading.Event()

    def slow(*_arguments, **_keywords):
        inside.set()
        assert leave.wait(_SECONDS)
        raise InputError("stopped")

    def use():
        with contextlib.suppress(InputError):
            _ = model.causal

    thread = threading.Thread(target=use)
    with monkeypatch.context() as patched:
        patched.setattr("normscope.models.load.loaded.Observer", slow)
        thread.start()
        assert inside.wait(_SECONDS)
    try:
        assert in_child(lambda: (model.causal, other.causal)) == (False, False)
    finally:
        leave.set()
        thread.join()


@pytest.mark.slow
def test_a_fork_inside_a_loop_over_blocks(model):
    expected = ratios(model)
    blocks = normscope.observe(model, TEXT)
    next(blocks)

    def go_on():
        try:
            next(blocks)
        except InputError as error:
            return str(error), ratios(model)

    message, found = in_child(go_on)
    assert message == "blocks: this process was forked inside a loop over blocks; begin the loop again in it"
    assert found == expected
    assert next(blocks).layer == 2
    blocks.close()


@pytest.mark.slow
def test_a_fork_in_a_loop_over_blocks_finds_the_model_free(model):
    expected = ratios(model)
    for _ in normscope.observe(model, TEXT):
        assert in_child(lambda: ratios(model)) == expected
    assert ratios(model) == expected


@pytest.mark.slow
def test_a_fork_inside_a_call_of_ones_own_goes_on_with_it(model):
    """The child is in the middle of the same call."""
    alone = attribute(model, TEXT, lambda hidden: hidden[0, 0]).scores.tolist()
    ours, its = multiprocessing.Pipe(duplex=False)
    parent = os.getpid()

    def forking(hidden):
        if os.getpid() == parent and not os.fork():
            torch.set_num_threads(1)
        return hidden[0, 0]

    try:
        found = attribute(model, TEXT, forking).scores.tolist()
        if os.getpid() != parent:
            its.send(found)
    finally:
        if os.getpid() != parent:
            os._exit(0)
    its.close()
    assert found == alone
    assert ours.poll(_SECONDS), "hangs"
    assert ours.recv() == alone
    os.wait()


def test_a_child_leaves_the_live_page_of_its_parent_alone(model):
    """At its exit it would wait for threads that it does not have, and for a lock that nobody gives back."""
    pytest.importorskip("uvicorn")
    with normscope.explore(model, TEXT) as page:
        inside, leave = threading.Event(), threading.Event()

        def compute():
            with page._session.engine._lock:
                inside.set()
                leave.wait(2 * _SECONDS)

        thread = threading.Thread(target=compute)
        thread.start()
        assert inside.wait(_SECONDS)
        try:
            assert in_child(lambda: page.close() or repr(page)) == repr(page)
        finally:
            leave.set()
            thread.join()
        with urllib.request.urlopen(page.url.partition("#")[0]) as answer:
            assert answer.status == 200
    assert repr(page).endswith("closed)")
