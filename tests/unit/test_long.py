"""Very long sequences are looked at by parts; what comes out is the same."""

import pytest
import torch

from normscope.models import block as blocks
from normscope.models.observer import Observer
from tests.tiny import FAMILY_CONFIGS, tiny_model, token_batch


@pytest.mark.parametrize("family", ["bert", "llama", "modernbert", "gpt2"])
def test_parts_and_whole_agree(monkeypatch, family):
    from normscope.models.families import layout_of

    model = tiny_model(FAMILY_CONFIGS[family], torch.float64)
    inputs = token_batch(model, (9, 4))
    found = {}
    for limit in (2**26, 0):
        monkeypatch.setattr(blocks, "LONG", limit)
        monkeypatch.setattr("normscope.maths.attention.QUERY_CHUNK", 4)
        seen = []

        def visit(block, seen=seen):
            assert block.is_long == (blocks.LONG == 0)
            pairs = [torch.tensor(axis) for axis in ([0, 1, 2], [3, 2, 3], [1, 0, 3])]
            chosen = torch.tensor([1, 3])
            whole = blocks.attention_maths.attention_weights(block.query, block.key, block.mask, block.scale)
            torch.testing.assert_close(block.weights_of(chosen), whole[:, :, chosen], rtol=1e-9, atol=1e-12)
            seen.append((block.received, block.weights_at(1, *pairs)))

        with Observer(model, layout_of(model.config.model_type)) as observer:
            observer.run(inputs, visit)
        found[limit] = seen
    for whole, parts in zip(found[2**26], found[0], strict=True):
        for one, other in zip(whole, parts, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def test_norms_of_long_sequences_are_those_of_short_ones_and_say_what_was_sampled(
    capsys, monkeypatch, tmp_path, saved_model
):
    import json

    from normscope.analyses import norms
    from tests.end_to_end.shell import run_here

    monkeypatch.setattr(norms, "SAMPLED_QUERIES", 6)
    given = [
        f"model.name={saved_model}",
        "analysis=norms",
        "dataset.limit=6",
        "tracking=disabled",
        "report.enabled=false",
    ]
    metrics = {}
    for limit in (2**26, 0):
        monkeypatch.setattr(blocks, "LONG", limit)
        outcome = run_here(capsys, monkeypatch, *given, f"output_dir={tmp_path / str(limit)}")
        assert outcome.status == 0, outcome.err
        assert ("rank correlations are of" in outcome.err) == (limit == 0)
        metrics[limit] = json.loads((tmp_path / str(limit) / "results.json").read_text())["metrics"]
    for name, value in metrics[2**26].items():
        if "spearman" not in name:
            assert metrics[0][name] == pytest.approx(value, rel=1e-5), name
