"""Segment ids are read by models with a table of segments, whatever their config and their tokenizer say."""

from typing import Any

import pytest
import torch
from tokenizers import processors
from transformers import AutoConfig, AutoModelForCausalLM, BertTokenizer, XLMConfig, XLMModel

import normscope
from normscope.data.batching import collate
from normscope.data.encoding import Encoder
from normscope.data.examples import CorpusCounts, Example
from normscope.data.options import DatasetKind, DatasetOptions, Segments
from normscope.errors import InputError
from normscope.models.load.loaded import tables_of_token_types
from normscope.models.load.text_batches import batch_from_texts, say_once
from tests.one_text import decompose
from tests.tiny import FAMILY_CONFIGS, tiny_model

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"the old bridge was closed for repairs nobody crossed it".split(),
]
PAIR = ("the old bridge was closed", "nobody crossed it")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> BertTokenizer:
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(WORDS))
    return BertTokenizer(vocab=str(path))


def silent(tokenizer: BertTokenizer) -> BertTokenizer:
    """The same, but naming no segment ids: as ALBERT's and RoBERTa's of transformers 5."""
    copied = type(tokenizer)(vocab=dict(tokenizer.get_vocab()))
    copied.model_input_names = ["input_ids", "attention_mask"]
    assert "token_type_ids" not in copied(*PAIR)
    return copied


def tiny(family: str, **changes: Any):
    settings = FAMILY_CONFIGS[family] | {"vocab_size": len(WORDS), "pad_token_id": 0, "model_type": family}
    return tiny_model(settings | changes, torch.float64)


@pytest.mark.spread(1)
@pytest.mark.parametrize("family", ["gpt2", "openai-gpt", "ctrl"])
def test_ids_of_a_tokenizer_that_are_embedded_as_tokens_are_read_as_transformers_reads_them(family, tokenizer, caplog):
    """GPT-2 adds the embedding of token 0 everywhere, and so does the call that its users write."""
    settings = {"vocab_size": len(WORDS), "n_embd": 24, "n_layer": 2, "n_head": 2, "n_positions": 32, "dff": 32}
    torch.manual_seed(0)
    whole = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **settings)).double().eval()
    encoding = tokenizer(PAIR[0], return_tensors="pt")
    assert "token_type_ids" in encoding
    called = whole(**encoding, labels=encoding["input_ids"]).loss
    model = normscope.wrap(whole, tokenizer)
    say_once.cache_clear()
    batch = batch_from_texts(model, PAIR[0])
    loss = model.next_token_head(**batch.model_inputs(), labels=batch.input_ids).loss
    torch.testing.assert_close(loss, called)
    without = whole(encoding["input_ids"], attention_mask=encoding["attention_mask"], labels=encoding["input_ids"]).loss
    assert abs((without - called).item()) > 1e-4
    assert [record.message for record in caplog.records if "token_type_ids" in record.message] == [model.segments_note]
    result = normscope.run("mixing", texts=[PAIR[0]], model=model)
    assert model.segments_note in result.notes
    # A tokenizer that gives none, and ids alone, stand for a call without them.
    batch = batch_from_texts(normscope.wrap(whole, silent(tokenizer)), PAIR[0])
    assert batch.token_type_ids is None
    assert batch_from_texts(model, encoding["input_ids"]).token_type_ids is None


def test_ids_that_were_given_are_never_dropped(tokenizer):
    """A BatchEncoding stands for what the model makes of it, even if its ids are embedded as tokens."""
    whole = tiny("gpt2")
    encoding = tokenizer(PAIR[0], return_tensors="pt")
    encoding["token_type_ids"] = torch.full_like(encoding["input_ids"], 7)
    model = normscope.wrap(whole, tokenizer)
    found = decompose(model, encoding)
    expected = whole(**encoding, output_hidden_states=True).hidden_states
    plain = whole(encoding["input_ids"], output_hidden_states=True).hidden_states
    batch = batch_from_texts(model, encoding)
    assert batch.token_type_ids is not None
    got = model.model(**batch.model_inputs(), output_hidden_states=True).hidden_states
    torch.testing.assert_close(got[-1], expected[-1])
    assert not torch.allclose(expected[1], plain[1])
    assert found.maps["attn_n"].shape[0] == len(got) - 1
    encoding["token_type_ids"] = torch.full_like(encoding["input_ids"], len(WORDS))
    with pytest.raises(InputError, match=f"token_type_ids: expected 0 to {len(WORDS) - 1}, got {len(WORDS)} to"):
        decompose(model, encoding)


@pytest.mark.spread(1)
@pytest.mark.parametrize("family", ["albert", "bert", "electra"])
def test_a_table_of_segments_is_read_though_the_tokenizer_names_none(family, tokenizer):
    whole = tiny(family)
    model = normscope.wrap(whole, silent(tokenizer))
    assert model.takes_segments
    batch = batch_from_texts(model, PAIR)
    expected = tokenizer(*PAIR, return_tensors="pt")
    assert batch.token_type_ids.tolist() == expected["token_type_ids"].tolist()
    torch.testing.assert_close(
        whole(**batch.model_inputs()).last_hidden_state, whole(**expected).last_hidden_state, rtol=1e-12, atol=1e-12
    )


def test_albert_tells_pairs_from_zeros(tokenizer):
    model = normscope.wrap(tiny("albert"), silent(tokenizer))
    found = {}
    for segments in Segments:
        options = DatasetOptions(kind=DatasetKind.text, seed=0, segments=segments)
        encoder = Encoder(model, options)
        batch = collate(encoder.encode([Example(*PAIR)], CorpusCounts()), encoder)
        found[segments] = batch.token_type_ids[0].tolist(), model.model(**batch.model_inputs()).last_hidden_state
    assert found[Segments.zero][0] == [0] * 11
    assert found[Segments.pair][0] == [0] * 7 + [1] * 4
    assert not torch.allclose(found[Segments.zero][1], found[Segments.pair][1])


@pytest.mark.spread(2)
@pytest.mark.parametrize(("number", "takes"), [(0, False), (1, False), (2, True), (3, True)])
def test_the_size_of_the_table_decides(number, takes, tokenizer):
    family = "deberta" if number == 0 else "roberta"
    model = normscope.wrap(tiny(family, type_vocab_size=number), tokenizer)
    assert model.takes_segments == takes
    assert (batch_from_texts(model, PAIR).token_type_ids is not None) == takes


def test_the_tokenizer_says_which_text_is_which(tokenizer):
    """RoBERTa's gives zeros for both texts, also for the rare models with a table of two."""
    own = silent(tokenizer)
    own.backend_tokenizer.post_processor = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))
    model = normscope.wrap(tiny("roberta", type_vocab_size=2), own)
    assert model.takes_segments
    assert batch_from_texts(model, PAIR).token_type_ids.sum() == 0


def test_xlm_embeds_them_as_tokens():
    whole = XLMModel(XLMConfig(vocab_size=len(WORDS), emb_dim=24, n_layers=2, n_heads=2, pad_index=0, n_langs=1)).eval()
    ids = torch.tensor([[2, 5]])
    (table,) = tables_of_token_types(whole, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    assert table is whole.embeddings.weight


def test_a_model_that_takes_other_ids_is_not_fed():
    """TAPAS takes seven ids for each token."""

    class Seven(torch.nn.Module):
        def forward(self, input_ids, token_type_ids):
            return input_ids + token_type_ids[:, :, 6]

    assert tables_of_token_types(Seven(), {"input_ids": torch.tensor([[2, 5]])}) is None
