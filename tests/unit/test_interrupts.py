"""An interrupt at any point leaves a model as it was; a second call on a model that is in use is refused."""

import contextlib
import dis
import functools
import itertools
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

import normscope
from normscope.api.training import _own_forward
from normscope.attribution.passes import held_translation
from normscope.errors import InputError
from tests.one_text import attribute, attribution_maps, decompose
from tests.tiny import INPUTS, STACK_CONFIGS, tiny_model
from tests.unit.test_wrapping import PAIR, STACKS, TEXT, in_memory, same

OURS = Path(normscope.__file__).parent
CHANGING = (
    *("api/arguments.py", "attribution/passes.py", "linear/blocks.py", "linear/layer_calls.py", "linear/rules.py"),
    *("models/observe/exclusive.py", "models/load/loaded.py", "models/observe/observer.py"),
)
FILES = {str(OURS / name) for name in CHANGING}
"""Where models are changed, and left as they were."""


class Interrupt(BaseException):
    """Like KeyboardInterrupt, which would end the tests."""


def state(*models):
    """What an observation changes about models."""
    modules = [module for model in models for module in model.modules()]
    return {
        "hooks": [[*module._forward_hooks.values(), *module._forward_pre_hooks.values()] for module in modules],
        "global hooks": [*module_hooks._global_forward_hooks.values()],
        "forward": [vars(module).get("forward") for module in modules],
        "methods": [sorted(name for name, value in vars(module).items() if callable(value)) for module in modules],
        "attention": [module.config._attn_implementation for module in modules if hasattr(module, "config")],
        "gradients": [tensor.requires_grad for model in models for tensor in (*model.parameters(), *model.buffers())],
    }


@contextlib.contextmanager
def interrupted(monkeypatch, number):
    """Interrupts before the registration of a hook, by its number from 0; yields how many came before."""
    count = itertools.count()
    with monkeypatch.context() as patch:
        for name in ("register_forward_hook", "register_forward_pre_hook"):
            register = getattr(nn.Module, name)

            def counted(*args, register=register, **kwargs):
                if next(count) == number:
                    raise Interrupt
                return register(*args, **kwargs)

            patch.setattr(nn.Module, name, counted)
        yield


@pytest.mark.parametrize("family", ["bart", "umt5"])
@pytest.mark.slow
def test_an_interrupt_while_a_translation_is_followed(family, monkeypatch):
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(tiny_model(STACK_CONFIGS[family], torch.float64).config).double().eval()
    inputs = INPUTS | {f"decoder_{name}": tensor for name, tensor in INPUTS.items()}
    before = state(model)
    for number in itertools.count():
        with interrupted(monkeypatch, number):
            try:
                held_translation(model, inputs)
            except Interrupt:
                assert state(model) == before, number
            else:
                break
    assert number >= 2


def test_a_trainers_own_forward_comes_back():
    model = nn.Linear(2, 2)
    model.forward, model._original_forward = len, abs
    with contextlib.suppress(Interrupt), _own_forward(model):
        assert not {"forward", "_original_forward"} & vars(model).keys()
        raise Interrupt
    assert (model.forward, model._original_forward) == (len, abs)


_FIRST, _RAISED = -1, -2
"""Instead of the instruction before."""

# After these, CPython looks for signals.
_LOOKS = ("CALL", "RESUME", "JUMP_BACKWARD")


@functools.cache
def handler(code, offset):
    """Where an exception at an instruction is handled."""
    entries = dis.Bytecode(code).exception_entries
    return next((entry.target for entry in entries if entry.start <= offset < entry.end), None)


@functools.cache
def may_come_between(code, before, after):
    """Whether an interrupt that CPython finds at the end of one instruction can be raised before the next one instead."""
    looks = dis.opname[code.co_code[before]].startswith(_LOOKS)
    return looks and handler(code, before) == handler(code, after)


def interrupts(call, at_most):
    """Interrupt a call where CPython looks for signals in these files, or at some of these places; yields after each."""

    def traced(wanted):
        places, last = itertools.count(), {}
        where = None

        def trace(frame, event, _argument):
            nonlocal where
            if frame.f_code.co_filename not in FILES:
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            if event == "opcode":
                before, last[frame] = last.get(frame, _FIRST), frame.f_lasti
                possible = before == _FIRST or (
                    before != _RAISED and may_come_between(frame.f_code, before, frame.f_lasti)
                )
                if possible and next(places) == wanted:
                    where = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
                    raise Interrupt
            elif event == "exception":  # a call that raises ends without a look
                last[frame] = _RAISED
            return trace

        previous = sys.gettrace()
        sys.settrace(trace)
        try:
            with contextlib.suppress(Interrupt):
                call()
        finally:
            sys.settrace(previous)
        return where, next(places)

    _, total = traced(-1)
    for number in range(0, total, -(-total // at_most)):
        where, _ = traced(number)
        assert not torch.is_inference_mode_enabled()
        if where is not None:  # what the first call read once is not read again
            yield where


def left_by(wrapped, *models):
    """What an interrupted call has left, once its thread, which may still be about to end, has freed the model."""
    end = time.monotonic() + 10
    while True:
        try:
            return wrapped.exclusively(lambda: state(*models))
        except InputError:
            assert time.monotonic() < end, "the model stays in use"
            time.sleep(0.001)


def first_block(model):
    blocks = normscope.observe(model, TEXT)
    next(blocks)
    blocks.close()


CALLS = {
    "decompose": lambda model: decompose(model, TEXT, feed_forward=True),
    "observe": lambda model: [block.layer for block in normscope.observe(model, TEXT)],
    "leave": lambda model: first_block(model),
    "attribute": lambda model: attribute(model, TEXT, 0),
    "maps": lambda model: attribution_maps(model, TEXT, ["alti"]),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("at_most", [8, pytest.param(150, marks=pytest.mark.slow)])
@pytest.mark.spread(2)
def test_a_call_that_is_interrupted_anywhere_can_be_made_again(name, at_most, tokenizer):
    wrapped = normscope.wrap(in_memory(AutoModelForSequenceClassification, "bert", tokenizer), tokenizer)
    call = CALLS[name]
    expected = decompose(wrapped, TEXT)
    call(wrapped)
    before = state(wrapped.model, wrapped.classifier)
    for where in interrupts(lambda: call(wrapped), at_most):
        assert left_by(wrapped, wrapped.model, wrapped.classifier) == before, where
    same(expected, decompose(wrapped, TEXT))


# Threads.


USE = "model: another call, or a loop over its blocks, is using it; let that end first, or load or wrap the model a second"


@contextlib.contextmanager
def in_another_thread(call):
    """A call that another thread is in the middle of; `call` gets a function that it stays in. Yields what it returns later."""
    inside, leave, results = threading.Event(), threading.Event(), []

    def stay():
        inside.set()
        assert leave.wait(60)

    thread = threading.Thread(target=lambda: results.append(call(stay)), daemon=True)
    thread.start()
    assert inside.wait(60)
    try:
        yield results
    finally:
        leave.set()
        thread.join(60)
        assert not thread.is_alive(), "a thread waits for ever"


@pytest.mark.spread(1)
@pytest.mark.parametrize("stack", [None, "cross"])
def test_a_call_on_a_model_that_another_thread_uses_is_refused(stack, tokenizer):
    """The numbers of the other call are those that it gets alone."""
    if stack is None:
        model, text = in_memory(AutoModel, "bert", tokenizer), TEXT
    else:
        model, text = in_memory(AutoModelForSeq2SeqLM, "bart", tokenizer), PAIR
    wrapped, second = (normscope.wrap(model, tokenizer, stack=stack) for _ in range(2))
    expected = decompose(wrapped, text, heads=True)
    refused = {
        "decompose": lambda: decompose(wrapped, text),
        "observe": lambda: next(normscope.observe(wrapped, text)),
        "maps": lambda: attribution_maps(wrapped, text, "alti"),
        "run": lambda: normscope.run("norms", model=wrapped, texts=[text]),
    }

    def use(stay):
        return wrapped.exclusively(lambda: stay() or wrapped.name)

    with in_another_thread(use) as used:
        for call in refused.values():
            with pytest.raises(InputError, match=USE):
                call()
        same(decompose(second, text, heads=True), expected)  # wrapped a second time
    assert used == [wrapped.name]
    same(decompose(wrapped, text, heads=True), expected)


@pytest.mark.slow
def test_of_calls_at_the_same_time_one_is_answered(tokenizer):
    """The others are refused or come after it; whoever is answered gets the numbers that it gets alone."""
    wrapped = normscope.wrap(in_memory(AutoModel, "bert", tokenizer), tokenizer)
    expected = decompose(wrapped, TEXT, heads=True)
    barrier, answered, refused = threading.Barrier(4, timeout=60), [], []

    def decomposing():
        for _ in range(10):
            barrier.wait()
            try:
                answered.append(decompose(wrapped, TEXT, heads=True))
            except InputError as error:
                refused.append(str(error))

    threads = [threading.Thread(target=decomposing, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread waits for ever"
    assert len(answered) >= 10
    assert len(answered) + len(refused) == 40
    assert refused
    for each in answered:
        same(each, expected)
    assert all(USE in each for each in refused)


@pytest.mark.slow
def test_a_call_inside_another_one_is_refused(tokenizer):
    wrapped = normscope.wrap(in_memory(AutoModel, "bert", tokenizer), tokenizer)
    for block in normscope.observe(wrapped, TEXT):
        with pytest.raises(InputError, match=USE):
            decompose(wrapped, TEXT)
        with pytest.raises(InputError, match=USE):
            next(normscope.observe(wrapped, TEXT))
        last = block.layer
    assert last == wrapped.layers
    with pytest.raises(InputError, match=USE):
        attribute(wrapped, TEXT, lambda hidden: decompose(wrapped, TEXT) or hidden[0, 0])
    blocks = normscope.observe(wrapped, TEXT)
    next(blocks)
    blocks.close()
    decompose(wrapped, TEXT)
    blocks = normscope.observe(wrapped, TEXT)
    next(blocks)
    del blocks
    decompose(wrapped, TEXT)


@pytest.mark.parametrize(("family", "stack"), STACKS[:3])
@pytest.mark.slow
def test_an_interrupted_pass_of_a_stack_leaves_nothing(family, stack, tokenizer):
    wrapped = normscope.wrap(in_memory(AutoModelForSeq2SeqLM, family, tokenizer), tokenizer, stack=stack)
    text = TEXT if stack == "encoder" else PAIR
    before = state(wrapped.model)
    for where in interrupts(lambda: decompose(wrapped, text), 20):
        assert left_by(wrapped, wrapped.model) == before, where
