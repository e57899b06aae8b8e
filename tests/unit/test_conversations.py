"""Conversations in chat templates: which part of a conversation each token belongs to, and what templates may not do."""

import json
import shutil

import pandas as pd
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from normscope.config.schema import DatasetKind, DatasetOptions
from normscope.config.validation import _check_dataset
from normscope.data.conversations import REFUSED, REWRITTEN, Message, conversation, messages_of, tokens_of
from normscope.data.corpora import open_corpus
from normscope.errors import InputError
from tests.end_to_end.shell import run_here

TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] | trim }}<end>\n{% endfor %}<assistant>"
)
MESSAGES = (Message("system", "be brief."), Message("user", " user<end> "), Message("assistant", "no"))


@pytest.fixture(scope="module")
def bytes_tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: number for number, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=120, chat_template=TEMPLATE)


def test_every_character_belongs_to_its_part(bytes_tokenizer):
    """Although a message repeats the template's own words."""
    written = conversation(bytes_tokenizer, MESSAGES)
    assert not isinstance(written, str)
    assert written.text == "<system>be brief.<end>\n<user>user<end><end>\n<assistant>no<end>\n<assistant>"
    _, parts = tokens_of(bytes_tokenizer, written)
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


def test_a_token_that_reaches_into_a_message_belongs_to_it(bytes_tokenizer):
    written = conversation(bytes_tokenizer, MESSAGES)
    assert not isinstance(written, str)
    start = written.text.index("be")
    assert written.parts_of([(start - 1, start), (start - 1, start + 1), (start, start + 1), (0, 0)]) == [
        *("template", "system", "system", "template"),
    ]


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ messages[0]['content'] | upper }}", REWRITTEN),
        ("{{ raise_exception('roles must alternate') }}", REFUSED),
        ("{{ messages.__class__.__mro__[1].__subclasses__() }}", REFUSED),
        ("{{ messages[0].__init__.__globals__ }}", REFUSED),
        ("{% for i in range(10**9) %}{% endfor %}", REFUSED),
    ],
)
def test_what_a_template_may_not_do(template, reason, bytes_tokenizer):
    given = bytes_tokenizer.chat_template
    bytes_tokenizer.chat_template = template
    try:
        assert conversation(bytes_tokenizer, MESSAGES) == reason
    finally:
        bytes_tokenizer.chat_template = given


def test_the_date_of_a_template_is_always_the_same(bytes_tokenizer):
    """Otherwise a run could not be repeated, or resumed after midnight."""
    given = bytes_tokenizer.chat_template
    macro = "{% macro day() %}{{ strftime_now('%d %b %Y') }}{% endmacro %}"  # as in templates with macros of their own
    bytes_tokenizer.chat_template = macro + "{% if strftime_now is defined %}{{ day() }}{% endif %}" + TEMPLATE
    try:
        written = conversation(bytes_tokenizer, MESSAGES)
    finally:
        bytes_tokenizer.chat_template = given
    assert not isinstance(written, str)
    assert written.text.startswith("26 Jul 2024<system>")


def test_messages_in_rows():
    row = [{"role": "developer", "content": "x"}, {"role": "tool", "content": "y", "name": "search"}]
    assert messages_of(row, "row 1") == (Message("developer", "x"), Message("tool", "y"))
    assert [message.part for message in messages_of(row, "row 1")] == ["system", "user"]
    assert messages_of([], "row 1") == messages_of([{"role": "user", "content": " "}], "row 1") == "empty"
    assert messages_of([{"role": "user", "content": [{"type": "image"}]}], "row 1") == "not text"
    for cell in ("text", [{"role": "judge", "content": "x"}], [{"content": "x"}], [["user", "x"]]):
        with pytest.raises(InputError, match="row 7: expected a list of messages with a role of system"):
            messages_of(cell, "row 7")


@pytest.mark.parametrize(
    "changes",
    [{"kind": DatasetKind.hub}, {"wikitext": True}, {"pair_column": "b"}, {"categories": "upos"}],
)
def test_what_conversations_cannot_be_combined_with(changes):
    options = DatasetOptions(**{"kind": DatasetKind.text, "path": "chats.jsonl", "chat_template": True} | changes)
    with pytest.raises(InputError, match=r"dataset\.chat_template=true"):
        _check_dataset(options)


def test_conversations_without_the_option_are_recognised(tmp_path):
    path = chats(tmp_path / "chats.jsonl", MESSAGES)
    corpus = open_corpus(DatasetOptions(kind=DatasetKind.text, path=str(path)))
    with pytest.raises(
        InputError, match=r"expected one of messages; for conversations, set dataset\.chat_template=true$"
    ):
        list(corpus.examples())


def chats(path, *conversations):
    rows = ({"messages": [message._asdict() for message in messages]} for messages in conversations)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


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
    counts = json.loads((tmp_path / "run/results.json").read_text())["provenance"]["tokens_by_category"]
    # "user<end>" is user < end >, "be brief." two words and a period.
    assert (counts["system"], counts["user"], counts["assistant"], counts["punctuation"]) == (2, 4 + 4 + 2, 2, 1)
