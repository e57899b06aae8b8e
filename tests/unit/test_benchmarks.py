"""The benchmark of large language models on CUDA, tried without one."""

import dataclasses

import pytest

from benchmarks.measuring import measured
from benchmarks.scenarios import BARE, SHAPES, SUITES, dry_run, large_language_model, layers_that_fit

GIBIBYTE = 2**30


def test_a_dry_run_tries_every_alternative():
    scenario = dry_run(large_language_model())
    rows = measured(scenario, repeats=1)
    assert [row["way"] for row in rows] == [BARE, "mixing", "norms", "sinks", "mixing+norms+sinks", "feedforward"]
    assert {(row["device"], row["layers"], row["memory_ratio"]) for row in rows} == {("cpu", 2, 1.0)}
    assert all(row["seconds"] > 0 for row in rows)


def test_the_shape_is_llamas_and_the_batch_that_of_the_target():
    scenario = large_language_model(20)
    assert (scenario.sequences, scenario.length, scenario.dtype, scenario.layers) == (4, 4096, "bfloat16", 20)
    config = SHAPES[scenario.shape]
    head_dim = config.hidden_size // config.num_attention_heads
    attention = config.hidden_size * head_dim * (2 * config.num_attention_heads + 2 * config.num_key_value_heads)
    layer = attention + 3 * config.hidden_size * config.intermediate_size + 2 * config.hidden_size
    total = config.num_hidden_layers * layer + 2 * config.vocab_size * config.hidden_size + config.hidden_size
    assert total == 8_030_261_248  # the parameters of Llama-3.1-8B, with its head


@pytest.mark.parametrize(("free", "layers"), [(141, 32), (0, 1)])
def test_fewer_layers_are_measured_if_memory_lacks(free, layers):
    assert layers_that_fit(SHAPES["Llama-3.1-8B"], free * GIBIBYTE) == layers


def test_more_memory_takes_more_layers():
    fitting = [layers_that_fit(SHAPES["Llama-3.1-8B"], free * GIBIBYTE) for free in (16, 24, 40, 80)]
    assert fitting == sorted(fitting)
    assert 1 <= fitting[0] < fitting[2] <= 32


def test_without_cuda_its_suite_is_empty(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert not list(SUITES["cuda"]())
    assert dataclasses.replace(large_language_model(), memory=False).packed()
