"""One way from text to tokens and back, against transformers' own call and sentence-transformers, through every door."""

import ast
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.models import Pooling
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import nn
from transformers import (
    AutoModelForSequenceClassification,
    BatchEncoding,
    BertConfig,
    BertForMaskedLM,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

import normscope
from normscope.cli.command_line import asked_of, text_of
from normscope.data.corpora import open_corpus
from normscope.data.encoding import Encoder
from normscope.data.examples import Example
from normscope.data.options import DatasetKind, DatasetOptions
from normscope.data.token_texts import TokenTexts
from normscope.data.tokenization import continuation
from normscope.data.words import token_words
from normscope.errors import InputError
from normscope.live.predictions import prediction_of
from normscope.models.load.predictor import token_number
from normscope.models.load.text_batches import batch_from_texts, places_of_tokens, say_once
from tests.one_text import attention, attribute, decompose, similarity
from tests.source import parsed
from tests.tiny import saved_with_head

WORDS = ("the", "capital", "of", "is", "island", "Paris", "yes", "no")


def merged(words, known):
    """The tokens and merges of BPE with which these words are single tokens."""
    tokens, merges = list(known), []
    for word in words:
        for end in range(2, len(word) + 1):
            if word[:end] not in tokens:
                tokens.append(word[:end])
                merges.append((word[: end - 1], word[end - 1]))
    return {token: number for number, token in enumerate(dict.fromkeys(tokens))}, merges


def sentencepiece():
    """As Llama 2's: a space before every text, bytes for what is unknown, and a beginning."""
    letters = dict.fromkeys("".join(WORDS) + "▁\n,.?!abcéT")
    known = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    vocabulary, merges = merged([f"▁{word}" for word in WORDS], known)
    model = models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A $B", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", unk_token="<unk>")


def byte_level(words=WORDS):
    """As GPT-2's."""
    vocabulary, merges = merged([*(f"Ġ{word}" for word in words), *words], sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=400)


def llama(tokenizer):
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=200, bos_token_id=1, **sizes)
    model = LlamaForCausalLM(config).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


@pytest.fixture(scope="module", params=[sentencepiece, byte_level], ids=["sentencepiece", "bytes"])
def causal(request):
    tokenizer = request.param()
    whole = llama(tokenizer)
    return whole, tokenizer, normscope.wrap(whole, tokenizer)


def log_probability(whole, tokenizer, text, answer):
    """That of the tokens which a text and its answer have behind the text's, in transformers' own call."""
    together, alone = (tokenizer(each, return_tensors="pt")["input_ids"] for each in (text + answer, text))
    assert together[0, : alone.shape[1]].tolist() == alone[0].tolist()
    with torch.inference_mode():
        logits = whole(together).logits[0].log_softmax(dim=-1)
    places = range(alone.shape[1] - 1, together.shape[1] - 1)
    return sum(float(logits[place, together[0, place + 1]]) for place in places)


@pytest.mark.spread(4)
@pytest.mark.parametrize("answer", [" Paris", " the island", ", yes", "\nParis", "\n"])
def test_an_answer_is_read_together_with_its_text(causal, answer):
    whole, tokenizer, model = causal
    text = "the capital is"
    found = attribute(model, text, normscope.Answer(answer, measure="log_probability"))
    assert found.target == pytest.approx(
        log_probability(whole, tokenizer, text, answer), rel=1e-6
    )  # norms are in float32
    # Behind token ids, whose text is not known, the answer has the same tokens.
    ids = tokenizer(text)["input_ids"]
    behind = attribute(model, ids, normscope.Answer(answer, measure="log_probability"))
    assert behind.target == pytest.approx(found.target)
    against = attribute(model, text, normscope.Answer(answer), against=" no")
    alone = [attribute(model, text, normscope.Answer(each)).target for each in (answer, " no")]
    assert against.target == pytest.approx(alone[0] - alone[1])


def test_an_answer_that_would_change_the_texts_last_token_is_read_behind_it(causal, caplog):
    _, tokenizer, model = causal
    say_once.cache_clear()
    found = attribute(model, "the capital is ", normscope.Answer("Paris", matrix=True))
    prompt = tokenizer("the capital is ")["input_ids"]
    assert [*tokenizer.convert_tokens_to_ids(list(found.tokens[: len(prompt)]))] == prompt
    assert "the text before it ends with none" in caplog.text
    assert "▁P" not in found.matrix.index[0]


def test_a_token_is_the_text_that_was_asked_for(causal):
    _, tokenizer, _ = causal
    assert tokenizer.convert_ids_to_tokens(continuation(tokenizer, " Paris"))[0].lstrip("▁Ġ") == "Paris"
    assert token_number(tokenizer, " Paris") == tokenizer(" the Paris")["input_ids"][-1]
    assert (
        token_number(tokenizer, "\n") == tokenizer("the\nno")["input_ids"][-3 if "▁n" in tokenizer.get_vocab() else -2]
    )
    with pytest.raises(InputError, match="expected a single token, got 2"):
        token_number(tokenizer, "ü")


def dropping_line_breaks():
    """As T5's and Marian's: white space separates words, and is nothing else."""
    pieces = [
        ("<unk>", 0.0),
        *((piece, -1.0) for piece in ("▁the", "▁Haus", "Haus", "▁")),
        *((x, -9.0) for x in "aehstuH."),
    ]
    tokenizer = Tokenizer(models.Unigram(pieces, 0, False))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def test_a_word_begins_a_word_where_line_breaks_are_dropped():
    tokenizer = dropping_line_breaks()
    assert tokenizer("the\nHaus")["input_ids"] == tokenizer("the Haus")["input_ids"]
    for text in ("Haus", " Haus", "\nHaus"):
        assert tokenizer.convert_ids_to_tokens(token_number(tokenizer, text)) == "▁Haus"
    assert tokenizer.convert_ids_to_tokens(token_number(tokenizer, "▁Haus")) == "▁Haus"


def test_an_analysis_joins_an_answer_as_answer_does(causal):
    _, _, model = causal
    encoder = Encoder(model, DatasetOptions(kind=DatasetKind.text, seed=0))
    sequence, count = encoder.answered(Example("the capital", "is Paris"))
    found = attribute(model, "the capital", normscope.Answer(" is Paris"))
    assert found.sides["answer"] + 1 == count
    assert found.tokens == tuple(TokenTexts(model.tokenizer).of(sequence.input_ids[:-1]))


def test_a_letter_is_not_the_byte_that_bears_its_name():
    tokenizer = byte_level([*WORDS, "Ã¼", "Â£", "Ã±"])
    for letter in ("ü", "£", "ñ"):
        assert letter in tokenizer.get_vocab(), "which is a byte"
        assert [token_number(tokenizer, letter)] == tokenizer(letter)["input_ids"]
    for name in ("ĠParis", "⟨FC⟩"):
        assert token_number(tokenizer, name) is not None
    assert tokenizer.convert_ids_to_tokens(token_number(tokenizer, "⟨FC⟩")) == "ü"


def test_a_choice_of_the_page_is_the_token_that_it_names(causal):
    """`Paris` may be the name of one token, and the text of another."""
    _, tokenizer, model = causal
    found = prediction_of(model, "the capital is", count=40)
    for name, _ in found.choices:
        aimed = found.aimed_at(name)
        assert tokenizer.convert_ids_to_tokens(aimed.token) == tokenizer.convert_ids_to_tokens(found.numbers[name])


TEXT = "a\nb  c island"


def weights_and_places(model, text):
    """The attention to every token of a text, with the characters that each stands for."""
    every = attention(model, text, queries="last", reduce="mean")
    return every.values[:, 0], places_of_tokens(model, text, model.tokenizer(text)["input_ids"])


@pytest.mark.parametrize(("start", "end"), [(0, 1), (2, 3), (5, 6), (0, 3), (7, 13), (1, 2), (3, 5)])
def test_a_span_is_the_tokens_whose_characters_lie_in_it(causal, start, end):
    model = causal[-1]
    weights, places = weights_and_places(model, TEXT)
    visible = [None if place is None else TEXT[place[1] : place[2]] for place in places]
    assert "\n" in visible
    assert " " in (each and each[:1] for each in visible)
    inside = [place is not None and start <= place[1] < place[2] <= end for place in places]
    found = attention(model, TEXT, queries="last", keys={"span": (start, end)}, reduce="mean")
    np.testing.assert_allclose(found.values[:, 0, 0], weights[:, inside].sum(axis=1), rtol=1e-6)
    one = attribute(model, TEXT, normscope.NextToken(5), spans={"span": (start, end)})
    assert one.spans["span"] == pytest.approx(one.scores[inside].sum())


def test_white_space_is_part_of_no_word(causal):
    model = causal[-1]
    weights, places = weights_and_places(model, TEXT)
    words = attention(model, TEXT, queries="last", keys="words", reduce="mean")
    for word, (start, end) in {"a": (0, 1), "b": (2, 3), "c": (5, 6), "island": (7, 13)}.items():
        inside = [place is not None and start <= place[1] < place[2] <= end for place in places]
        np.testing.assert_allclose(
            words.values[:, 0, words.keys.index(word)], weights[:, inside].sum(axis=1), rtol=1e-6
        )
    assert words.values.sum(axis=-1) == pytest.approx(1)
    by_word = attribute(model, TEXT, normscope.NextToken(5), level="word")
    by_token = attribute(model, TEXT, normscope.NextToken(5))
    inside = [place is not None and 2 <= place[1] < place[2] <= 3 for place in places]
    assert by_word.scores[by_word.tokens.index("b")] == pytest.approx(by_token.scores[inside].sum())


def test_nothing_that_the_user_wrote_is_stripped(tmp_path):
    texts = [" the capital ", "is\t", "  no"]
    (tmp_path / "a.txt").write_text("\n".join(texts) + "\r\n")
    rows = [{"text": text, "text_pair": f" {text}"} for text in texts]
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "c.jsonl").write_text(json.dumps({"query": texts[0], "documents": [texts[1], {"text": texts[2]}]}))

    def read(name):
        return list(open_corpus(DatasetOptions(kind=DatasetKind.text, path=str(tmp_path / name), seed=0)).examples())

    assert read("a.txt") == [Example(text) for text in texts]
    assert read("b.jsonl") == [Example(text, f" {text}") for text in texts]
    assert [(each.text, each.text_pair) for each in read("c.jsonl")] == [(texts[0], texts[1]), (texts[0], texts[2])]
    # A list of words is joined by spaces, and its labels lie where the words are.
    (tmp_path / "d.jsonl").write_text(json.dumps({"words": ["no", " yes"], "tags": ["A", "B"]}))
    [example] = read("d.jsonl")
    assert [example.text[slice(*span)].strip() for span in example.annotation.spans] == ["no", "yes"]


TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}{{ ending | default('') }}"
)


@pytest.fixture(scope="module")
def folder_of_reranker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reranker")
    tokenizer = byte_level()
    tokenizer.add_special_tokens({"eos_token": "<|end|>", "pad_token": "<|pad|>"})
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=600, num_key_value_heads=2, max_position_embeddings=400, **sizes))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


RERANKERS = {
    "asks": ({"add_generation_prompt": True}, {}),
    "plain": ({}, {}),
    "variables": ({"ending": "no?"}, {}),
    "prompt": ({"add_generation_prompt": True}, {"prompts": {"q": "Judge."}, "default_prompt_name": "q"}),
}
PAIR = ("the capital", "is Paris.")


def reranker(folder, chat, settings):
    transformer = Transformer(
        str(folder), transformer_task="text-generation", processing_kwargs={"chat_template": chat}
    )
    ids = transformer.tokenizer.convert_tokens_to_ids(["yes", "no"])
    return CrossEncoder(modules=[transformer, LogitScore(*ids)], device="cpu", **settings)


@pytest.mark.spread(2)
@pytest.mark.parametrize("kind", RERANKERS)
def test_a_reranker_reads_its_own_template(kind, folder_of_reranker, tmp_path):
    encoder = reranker(folder_of_reranker, *RERANKERS[kind])
    score = float(encoder.predict([PAIR], activation_fn=nn.Identity())[0])
    encoder.save_pretrained(str(tmp_path))
    for model in (normscope.wrap(encoder), normscope.load(str(tmp_path), device="cpu")):
        found = attribute(model, PAIR, normscope.NextToken("yes"), against="no")
        assert found.target == pytest.approx(score, rel=1e-4)
        expected = encoder.preprocess([PAIR], prompt=model.rule.prompt or None)["input_ids"]
        places = places_of_tokens(model, PAIR, expected[0].tolist())
        for side, name in enumerate(("first text", "second text")):
            inside = [place is not None and place[0] == side for place in places]
            assert found.spans[name] == pytest.approx(found.scores[inside].sum(), abs=1e-7)
            said = "".join(
                PAIR[side][place[1] : place[2]] for place in places if place is not None and place[0] == side
            )
            assert said.replace(" ", "") == PAIR[side].replace(" ", "")
        assert batch_from_texts(model, PAIR).input_ids.tolist() == expected.tolist()
        result = normscope.run("mixing", texts=[PAIR], model=model)
        assert result.facts["tokens"] == expected.shape[1]


def test_a_prompt_stands_before_the_first_text_of_a_pair(tokenizer, tmp_path):
    folder = saved_with_head(AutoModelForSequenceClassification, "bert", tokenizer, tmp_path)
    encoder = CrossEncoder(str(folder), device="cpu", prompts={"q": "Judge it: "}, default_prompt_name="q")
    encoder.eval()
    model = normscope.wrap(encoder)
    logits = encoder.predict([PAIR], activation_fn=nn.Identity())[0]
    found = attribute(model, PAIR, normscope.Label(0))
    assert found.target == pytest.approx(float(np.ravel(logits)[0]), rel=1e-4)
    first = [at for at, token in enumerate(found.tokens) if token in ("the", "capital")]
    assert found.spans["first text"] == pytest.approx(found.scores[first].sum(), abs=1e-7)
    encoder.default_prompt_name = None
    with pytest.raises(InputError, match="settings or those of its tokenizer changed; wrap it again"):
        attribute(model, PAIR, normscope.Label(0))


def test_a_rule_that_is_not_known_is_refused(folder_of_reranker):
    class Louder(Transformer):
        def preprocess(self, inputs, *args, **kwargs):
            return super().preprocess([(a + "!", b) for a, b in inputs], *args, **kwargs)

    transformer = Louder(str(folder_of_reranker), transformer_task="text-generation")
    encoder = CrossEncoder(modules=[transformer, LogitScore(1, 2)], device="cpu")
    with pytest.raises(InputError, match="makes other tokens of a pair than its settings say"):
        normscope.wrap(encoder)
    odd = reranker(folder_of_reranker, {}, {})
    odd[0].processing_kwargs = {"text": {"add_special_tokens": False}}
    with pytest.raises(InputError, match="add_special_tokens in processing_kwargs, expected one that reads texts"):
        normscope.wrap(odd)


@pytest.mark.parametrize("mask", [[1, 1, 0, 1], [0, 1, 0, 1], [1, 1, 2, 2], [1, 1, -1, 1]])
def test_a_mask_that_moves_tokens_is_refused(causal, mask):
    *_, model = causal
    with pytest.raises(InputError, match="attention_mask to be 0 at padding, before or behind a text, and 1 at its"):
        decompose(model, BatchEncoding({"input_ids": [[5, 6, 7, 8]], "attention_mask": [mask]}))
    for fine in ([0, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1]):
        decompose(model, BatchEncoding({"input_ids": [[5, 6, 7, 8]], "attention_mask": [fine]}))


def test_a_changed_limit_of_the_tokenizer_is_seen():
    tokenizer = byte_level()
    model = normscope.wrap(llama(tokenizer), tokenizer)
    decompose(model, "the capital")
    tokenizer.model_max_length = 3
    with pytest.raises(InputError, match="wrap it again"):
        decompose(model, "the capital is Paris")


def test_an_answer_says_what_it_does_not_obey(caplog):
    tokenizer = byte_level()
    whole = llama(tokenizer)
    model = normscope.wrap(whole, tokenizer)
    say_once.cache_clear()
    attribute(model, "the capital", normscope.Answer(tokens=2))
    assert "generation config" not in caplog.text
    config = model.next_token_head.generation_config
    config.do_sample, config.temperature, config.repetition_penalty, config.top_p = True, 0.6, 1.3, 1.0
    attribute(model, "the capital", normscope.Answer(tokens=2))
    assert (
        "without do_sample=True, temperature=0.6, top_p=1.0, repetition_penalty=1.3 of LlamaForCausalLM's"
        in caplog.text
    )


def test_a_masked_token_needs_a_mask_token(causal):
    _, tokenizer, _ = causal
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = normscope.wrap(BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **sizes)).eval(), tokenizer)
    with pytest.raises(InputError, match="MaskedToken: the tokenizer of .* has no mask token"):
        attribute(model, "the capital", normscope.MaskedToken())
    assert prediction_of(model, "the capital").what == "embedding"


def test_a_mask_may_have_the_number_0():
    vocabulary = {token: number for number, token in enumerate(["[MASK]", "[UNK]", "the", "capital"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, mask_token="[MASK]", unk_token="[UNK]")
    assert made.mask_token_id == 0
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
    whole = BertForMaskedLM(BertConfig(vocab_size=4, pad_token_id=None, **sizes)).eval()
    found = prediction_of(normscope.wrap(whole, made), "the [MASK]")
    assert found.what == "masked token"
    with torch.inference_mode():
        logits = whole(torch.tensor([[2, 0]])).logits[0, 1].softmax(dim=-1)
    assert found.choices[0][1] == pytest.approx(float(logits.max()))


def test_segments_of_annotated_texts_are_the_tokenizers():
    """Funnel gives its first token a segment of its own, wherever the text comes from."""
    tokenizer = byte_level()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        "Ġ:2 $A:0", special_tokens=[("Ġ", tokenizer.convert_tokens_to_ids("Ġ"))]
    )
    expected = tokenizer("the capital", return_token_type_ids=True)["token_type_ids"]
    assert expected[0] == 2
    assert token_words(tokenizer, "the capital", [(0, 3), (4, 11)], segments=True).segments == expected


CHANGES = {
    "length": lambda encoder: setattr(encoder, "max_seq_length", 3),
    "default prompt": lambda encoder: setattr(encoder, "default_prompt_name", "q"),
    "prompts": lambda encoder: encoder.prompts.update(q="Other: "),
    "pooling": lambda encoder: setattr(encoder[1], "pooling_mode", ("cls",)),
    "similarity": lambda encoder: setattr(encoder, "similarity_fn_name", "dot"),
    "size": lambda encoder: setattr(encoder, "truncate_dim", 5),
}


@pytest.mark.spread(2)
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_setting_of_an_encoder_is_seen(change, tokenizer, tmp_path):
    folder = saved_with_head(AutoModelForSequenceClassification, "bert", tokenizer, tmp_path)
    modules = [Transformer(str(folder)), Pooling(24)]
    encoder = SentenceTransformer(modules=modules, device="cpu", prompts={"q": "Judge: "})
    model = normscope.wrap(encoder)
    similarity(model, *PAIR)
    CHANGES[change](encoder)
    with pytest.raises(InputError, match="wrap it again"):
        similarity(model, *PAIR)
    similarity(normscope.wrap(encoder), "a", "b")


def test_a_file_of_one_text_ends_in_a_line_break_that_is_no_part_of_it(tmp_path):
    path = tmp_path / "letter.txt"
    for written, read in (("  the capital\n", "  the capital"), ("a\n\n", "a\n"), ("a \r\n", "a ")):
        path.write_bytes(written.encode())
        asked, _ = asked_of(["explain", str(path)])
        assert text_of(asked, lambda _: False) == read


def test_one_function_calls_tokenizers():
    """A second door would read a text in a way of its own one day."""
    source = Path(normscope.__file__).parent
    calls = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        for node in ast.walk(parsed(path.read_text()))
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", getattr(node.func, "id", ""))
        in ("tokenizer", "encode_plus", "batch_encode_plus", "tokenize")
    }
    assert calls == {"data/tokenization.py"}


@pytest.mark.slow
@pytest.mark.spread(1)
@pytest.mark.parametrize("pooled", [True, False])
def test_the_default_prompt_of_an_encoder_is_read_through_every_door(pooled, tokenizer, tmp_path):
    folder = saved_with_head(AutoModelForSequenceClassification, "bert", tokenizer, tmp_path / "bert")
    modules = [Transformer(str(folder)), Pooling(24, include_prompt=pooled)]
    encoder = SentenceTransformer(modules=modules, device="cpu", prompts={"q": "Judge: "}, default_prompt_name="q")
    encoder.save(str(tmp_path / "saved"))
    first, second = encoder.encode(list(PAIR), normalize_embeddings=True)
    expected = tokenizer.convert_ids_to_tokens(encoder.preprocess([f"Judge: {PAIR[0]}"])["input_ids"][0].tolist())
    for model in (normscope.wrap(encoder), normscope.load(tmp_path / "saved", device="cpu")):
        found = attribute(model, PAIR[0], normscope.SimilarityTo(PAIR[1]))
        assert found.target == pytest.approx(float(first @ second), rel=1e-4)
        assert similarity(model, *PAIR).value == pytest.approx(found.target, rel=1e-4)
        assert list(found.tokens) == list(decompose(model, PAIR[0]).tokens) == expected
        assert list(attention(model, PAIR[0]).keys) == expected
        result = normscope.run("mixing", model=model, texts=list(PAIR))
        assert result.facts["tokens"] == sum(map(len, tokenizer([f"Judge: {text}" for text in PAIR])["input_ids"]))
        # Tokens are read as they are given, with the prompt or without it.
        for prompt in ("Judge: ", ""):
            given = tokenizer(prompt + PAIR[0], return_tensors="pt")
            one = attribute(model, given, normscope.SimilarityTo(PAIR[1]))
            vector = encoder.encode(PAIR[0], prompt=prompt, normalize_embeddings=True)
            assert one.target == pytest.approx(float(vector @ second), rel=1e-4)


@pytest.mark.spread(2)
@pytest.mark.parametrize("setting", [{"forced_eos_token_id": 2}, {"repetition_penalty": 1.5}, {"bad_words_ids": [[5]]}])
def test_every_setting_that_changes_an_answer_is_named(causal, setting, caplog, monkeypatch):
    whole, tokenizer, _ = causal
    monkeypatch.setattr(whole, "generation_config", GenerationConfig(eos_token_id=2, **setting))
    say_once.cache_clear()
    attribute(normscope.wrap(whole, tokenizer), "the capital", normscope.Answer(tokens=2))
    assert f"without {next(iter(setting))}=" in caplog.text


@pytest.mark.spread(2)
@pytest.mark.parametrize("samples", [True, False])
def test_what_only_sampling_reads_is_named_if_the_model_samples(causal, samples, caplog, monkeypatch):
    whole, tokenizer, _ = causal
    settings = {"temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "epsilon_cutoff": 0.01}
    monkeypatch.setattr(whole, "generation_config", GenerationConfig(eos_token_id=2, do_sample=samples, **settings))
    say_once.cache_clear()
    attribute(normscope.wrap(whole, tokenizer), "the capital", normscope.Answer(tokens=2))
    assert [f"{name}=" in caplog.text for name in settings] == [samples] * len(settings)


def test_tokens_that_were_added_to_a_tokenizer_are_seen():
    tokenizer = byte_level()
    model = normscope.wrap(llama(tokenizer), tokenizer)
    tokenizer.add_tokens(["capital of"])
    with pytest.raises(InputError, match="wrap it again"):
        decompose(model, "the capital of the island")
