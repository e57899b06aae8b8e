"""Conversations in chat templates: which part of a conversation each token belongs to, and what templates may not do."""

import copy
import json
import shutil

import pandas as pd
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from normscope.data.conversations import (
    PART_OF_ROLE,
    REJECTED,
    REWRITTEN,
    Message,
    conversation,
    messages_of,
    template_of,
    tokens_of,
)
from normscope.data.corpora import open_corpus
from normscope.data.encoding import Encoder
from normscope.data.examples import AS_GIVEN, CorpusCounts, Example
from normscope.data.options import DatasetKind, DatasetOptions, check_dataset
from normscope.data.tokenization import owners_of
from normscope.errors import InputError
from normscope.results.run_files import lost
from tests.end_to_end.shell import run_here
from tests.unit.test_data import Reader

TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] | trim }}<end>\n{% endfor %}<assistant>"
)
MESSAGES = (Message("system", "be brief."), Message("user", " user<end> "), Message("assistant", "no"))


class BytesReader(Reader):
    vocabulary = 258
    max_length = 200
    takes_segments = False
    rule = AS_GIVEN


@pytest.fixture(scope="module")
def bytes_tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: number for number, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=120, chat_template=TEMPLATE)


def with_template(tokenizer, template):
    """The tokenizer with another template."""
    changed = copy.deepcopy(tokenizer)
    changed.chat_template = template
    return changed


def written_by(tokenizer, messages=MESSAGES):
    """Messages in the template of a tokenizer."""
    return conversation(template_of(tokenizer, "tiny"), messages)


def as_row(message):
    return {"role": message.role, "content": message.content}


def test_every_character_belongs_to_its_part(bytes_tokenizer):
    """Although a message repeats the template's own words."""
    written = written_by(bytes_tokenizer)
    assert not isinstance(written, str)
    assert written.text == "<system>be brief.<end>\n<user>user<end><end>\n<assistant>no<end>\n<assistant>"
    tokens = tokens_of(bytes_tokenizer, written)
    parts = [written.part_of(message) for message in tokens.messages]
    expected = [
        *["template"] * len("<system>"),
        *["system"] * len("be brief."),
        *["template"] * len("<end>\n<user>"),
        *["user"] * len("user<end>"),
        *["template"] * len("<end>\n<assistant>"),
        *["assistant"] * len("no"),
        *["template"] * len("<end>\n<assistant>"),
    ]
    assert parts == expected


def test_a_token_half_of_which_is_in_a_message_belongs_to_it(bytes_tokenizer):
    written = written_by(bytes_tokenizer)
    assert not isinstance(written, str)
    start = written.text.index("be")
    spans = [(start - 1, start), (start - 1, start + 1), (start - 2, start + 1), (start, start + 1), (0, 0)]
    assert [written.part_of(message) for message in owners_of(spans, written.messages)] == [
        *("template", "system", "template", "system", "template"),
    ]


def test_the_text_is_that_of_transformers(bytes_tokenizer):
    tokenizer = copy.deepcopy(bytes_tokenizer)
    tokenizer.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>"})
    tokenizer.chat_template = (
        "{{ bos_token }}{%- for m in messages %}{% if loop.last %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}"
        "{% endif %}\n  {{ m | tojson }}\n{% endfor %}{{ eos_token }}{{ tools is none }}{{ add_generation_prompt }}"
    )
    given = [as_row(message) for message in MESSAGES]
    written = written_by(tokenizer)
    assert written.text == tokenizer.apply_chat_template(given, tokenize=False)
    assert written.parts.count("assistant") == 1


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ messages[0]['content'] | upper }}", REWRITTEN),
        ("{{ raise_exception('roles must alternate') }}", REJECTED.format(reason="roles must alternate")),
        ("{{ raise_exception('not ' + messages[0]['content']) }}", REJECTED.format(reason="TemplateError")),
        ("{{ messages.__class__.__mro__[1].__subclasses__() }}", REJECTED.format(reason="SecurityError")),
        ("{{ messages[0].__init__.__globals__ }}", REJECTED.format(reason="SecurityError")),
        ("{% for i in range(10**9) %}{% endfor %}", REJECTED.format(reason="OverflowError")),
        ("{{ nothing.more }}", REJECTED.format(reason="UndefinedError")),
        ("{{ 1 / 0 }}", REJECTED.format(reason="ZeroDivisionError")),
        ("{{ 'x' * (10**6 + 50) }}", REJECTED.format(reason="it adds more than 1,000,000 characters")),
    ],
)
def test_what_a_template_may_not_do(template, reason, bytes_tokenizer):
    assert written_by(with_template(bytes_tokenizer, template)) == reason


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for %}", "the chat template of tiny cannot be read: Expected"),
        ({"a": "x", "b": "y"}, "the tokenizer of tiny: This model has multiple chat templates with no default"),
        (None, "the tokenizer of tiny has no chat template"),
    ],
)
def test_what_is_no_template(template, said, bytes_tokenizer):
    with pytest.raises(InputError, match=said):
        written_by(with_template(bytes_tokenizer, template))


def test_the_date_of_a_template_is_always_the_same(bytes_tokenizer):
    """Otherwise a run could not be repeated, or resumed after midnight."""
    macro = "{% macro day() %}{{ strftime_now('%d %b %Y') }}{% endmacro %}"  # as in templates with macros of their own
    dated = macro + "{% if strftime_now is defined %}{{ day() }}{% endif %}" + TEMPLATE
    written = written_by(with_template(bytes_tokenizer, dated))
    assert not isinstance(written, str)
    assert written.text.startswith("26 Jul 2024<system>")


def test_messages_in_rows():
    row = [{"role": "developer", "content": "x"}, {"role": "tool", "content": "y", "name": "search"}]
    assert messages_of(row, "row 1") == (
        Message("developer", "x"),
        Message("tool", "y", ("the field name",)),
    )
    assert [PART_OF_ROLE[message.role] for message in messages_of(row, "row 1")] == ["system", "user"]
    assert messages_of([], "row 1") == messages_of([{"role": "user", "content": " "}], "row 1") == "empty"
    for content in ([{"type": "image"}], [{"type": "text", "text": 5}], ["x"], None, 5):
        assert messages_of([{"role": "user", "content": content}], "row 1") in ("not text", "empty")
    assert messages_of([{"role": "user", "content": [{"type": "image"}]}], "row 1") == "not text"
    for cell in ("text", [{"role": "judge", "content": "x"}], [{"content": "x"}], [["user", "x"]]):
        with pytest.raises(InputError, match="row 7: expected a list of messages with a role of system"):
            messages_of(cell, "row 7")


def test_parts_of_messages_are_read_as_transformers_writes_them(bytes_tokenizer):
    """By templates that take a list of parts, the texts are written one after the other; others are named."""
    parts = [{"type": "text", "text": "What is "}, {"type": "image", "url": "x.png"}, {"type": "text", "text": "this?"}]
    answer = {
        "role": "assistant",
        "content": [{"type": "text", "text": "A cat."}],
        "tool_calls": [{"id": 1}],
        "name": None,
    }
    row = [{"role": "user", "content": parts}, answer]
    messages = messages_of(row, "row 1")
    assert messages == (
        Message("user", "What is this?", ("the parts of type image",), ("What is ", None, "this?")),
        Message("assistant", "A cat.", ("the field tool_calls",)),
    )
    lists = "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    lists += "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}"
    lists += "{% endif %}<end>{% endfor %}"
    tokenizer = with_template(bytes_tokenizer, lists)
    written = written_by(tokenizer, messages)
    expected = tokenizer.apply_chat_template(row, tokenize=True, return_dict=False)
    assert tokens_of(tokenizer, written).ids == expected
    options = DatasetOptions(kind=DatasetKind.text, chat_template=True, seed=0)
    counts = CorpusCounts()
    (sequence,) = Encoder(BytesReader(tokenizer), options).encode([Example("", messages=messages)], counts)
    assert sequence.input_ids.tolist() == expected
    assert set(lost(counts.facts())) == {
        f"1 example read without {part} of messages: only roles and texts are read (dataset.chat_template)"
        for part in ("the parts of type image", "the field tool_calls")
    }


@pytest.mark.parametrize("text", ["<s>hi", "hi</s>", "<s>hi</s>"])
def test_rendered_texts_with_special_tokens_of_their_own_are_named(bytes_tokenizer, text):
    tokenizer = copy.deepcopy(bytes_tokenizer)
    tokenizer.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>"})
    ends = [("<s>", tokenizer.bos_token_id), ("</s>", tokenizer.eos_token_id)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    counts = CorpusCounts()
    encoder = Encoder(BytesReader(tokenizer), DatasetOptions(kind=DatasetKind.text, seed=0))
    (sequence,) = encoder.encode([Example(text)], counts)
    assert sequence.input_ids.tolist() == tokenizer(text)["input_ids"]
    (said,) = lost(counts.facts())
    assert said.startswith(
        f"1 example with {'<s> twice at the beginning' if '<s>' in text else '</s> twice at the end'}: the"
    )
    # As messages, in a template that writes the same, there is one of each.
    tokenizer.chat_template = "<s>{{ messages[0].content }}</s>"
    chat = DatasetOptions(kind=DatasetKind.text, chat_template=True, seed=0)
    (sequence,) = Encoder(BytesReader(tokenizer), chat).encode([Example("", messages=(Message("user", "hi"),))], counts)
    given = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=True, return_dict=False)
    assert sequence.input_ids.tolist() == given
    assert given.count(tokenizer.bos_token_id) == given.count(tokenizer.eos_token_id) == 1
    assert len(lost(counts.facts())) == 1


@pytest.mark.parametrize(
    "changes",
    [{"kind": DatasetKind.hub}, {"wikitext": True}, {"pair_column": "b"}, {"categories": "upos"}],
)
def test_what_conversations_cannot_be_combined_with(changes):
    options = DatasetOptions(**{"kind": DatasetKind.text, "path": "chats.jsonl", "chat_template": True} | changes)
    with pytest.raises(InputError, match=r"dataset\.chat_template=true"):
        check_dataset(options)


def test_conversations_without_the_option_are_recognised(tmp_path):
    path = chats(tmp_path / "chats.jsonl", MESSAGES)
    corpus = open_corpus(DatasetOptions(kind=DatasetKind.text, path=str(path)))
    with pytest.raises(
        InputError, match=r"expected one of messages; for conversations, set dataset\.chat_template=true$"
    ):
        list(corpus.examples())


def chats(path, *conversations):
    rows = ({"messages": [as_row(message) for message in messages]} for messages in conversations)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.slow
def test_a_run_says_what_each_part_contributes(capsys, monkeypatch, tmp_path, saved_model):
    path = chats(tmp_path / "chats.jsonl", MESSAGES, MESSAGES[1:], [Message("user", "the river")])
    corpus = open_corpus(DatasetOptions(kind=DatasetKind.text, path=str(path), chat_template=True))
    assert [example.messages for example in corpus.examples()] == [
        MESSAGES, MESSAGES[1:], (Message("user", "the river"),)
    ]  # fmt: skip
    given = [f"model.name={saved_model}", "dataset=text", f"dataset.path={path}", "dataset.chat_template=true"]
    given += ["analysis=norms", "device=cpu", "tracking=disabled", f"output_dir={tmp_path / 'run'}"]
    outcome = run_here(capsys, monkeypatch, *given)
    assert outcome.status == 2
    assert "has no chat template" in outcome.err
    folder = tmp_path / "model"
    shutil.copytree(saved_model, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    outcome = run_here(capsys, monkeypatch, *given, f"model.name={folder}")
    assert outcome.status == 0, outcome.err
    norms = pd.read_parquet(tmp_path / "run/tables/norms_by_layer.parquet")
    assert {"system", "user", "assistant", "template", "punctuation", "all"} <= set(norms["category"])
    counts = json.loads((tmp_path / "run/results.json").read_text())["facts"]["tokens_by_category"]
    # "user<end>" is user < end >, "be brief." two words and a period.
    assert (counts["system"], counts["user"], counts["assistant"], counts["punctuation"]) == (2, 4 + 4 + 2, 2, 1)
