"""Sink rates of the parts of conversations, a second time: from the templates' own text and transformers' own weights."""

import itertools
import json

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from normscope.data.token_sequence import fingerprint
from tests.end_to_end.shell import run_here

LENGTH, SEED, EPSILON = 40, 3, 0.1
SPECIAL = ["<s>", "<end>", "<pad>"]
PARTS = ("system", "user", "assistant", "template")
TEMPLATE = "{% for message in messages %}({{ message['role'] }}){{ message['content'] }}<end>{% endfor %}(assistant)"
# The first is cut in its user's message, the last is too short.
CHATS = [
    [("system", "be brief."), ("user", "where, where does the river flow to?"), ("assistant", "to the sea.")],
    [("user", ",the river"), ("assistant", "it flows"), ("user", "where, please?")],
    [("user", "no")],
]


@pytest.fixture(scope="module")
def chat_tokenizer() -> PreTrainedTokenizerFast:
    """A token for every byte and special token; it knows a beginning of sequences."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: number for number, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = {"bos_token": "<s>", "eos_token": "<end>", "pad_token": "<pad>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=200, **names)


def written(chat: list[tuple[str, str]], start: str) -> tuple[list[str], list[str]]:
    """The tokens of a conversation and the part of each, by hand."""
    runs = [([start] if start else [], "template")]
    for role, content in chat:
        runs += [([*f"({role})"], "template"), ([*content], role), (["<end>"], "template")]
    runs.append(([*"(assistant)"], "template"))
    return [token for tokens, _ in runs for token in tokens], [part for tokens, part in runs for _ in tokens]


def expected(model, tokenizer, start: str) -> pd.DataFrame:
    """The rows of `sinks_by_head`."""
    ordinary = range(len(tokenizer) - len(SPECIAL))
    numbers: dict[tuple, list[float]] = {}
    for chat, (number, inputs), bos in itertools.product(CHATS, enumerate(["text", "random", "repeat"]), (True, False)):
        tokens, parts = written(chat, start)
        if start:
            tokens, parts = tokens[1:], parts[1:]
        if len(tokens) < LENGTH - bos:
            continue
        tokens, parts = tokens[: LENGTH - bos], parts[: LENGTH - bos]
        if bos:
            tokens, parts = ["<s>", *tokens], ["template", *parts]
        ids = np.array([tokenizer.vocab["Ġ" if token == " " else token] for token in tokens])
        generator = np.random.default_rng([SEED, fingerprint(ids), number])
        places = [place for place, token in enumerate(tokens) if token not in SPECIAL]
        if inputs != "text":
            ids[places] = generator.choice(ordinary, size=len(places) if inputs == "random" else None)
        alpha = torch.stack(model(input_ids=torch.from_numpy(ids)[None], output_attentions=True).attentions)[:, 0]
        received = (alpha.sum(dim=-2) / torch.arange(LENGTH, 0, -1)).numpy()  # layer head key
        for key, (token, part) in enumerate(zip(tokenizer.convert_ids_to_tokens(ids.tolist()), parts, strict=True)):
            position = "first" if key == 0 else "punctuation" if token in ",." else part
            for layer, head in np.ndindex(*received.shape[:2]):
                numbers.setdefault((layer + 1, head + 1, inputs, bos, position), []).append(received[layer, head, key])
    names = ["layer", "head", "inputs", "bos", "position"]
    rows = [
        dict(zip(names, place, strict=True))
        | {"received": np.mean(values), "sink_rate": np.mean(np.array(values) > EPSILON), "count": len(values)}
        for place, values in numbers.items()
    ]
    return pd.DataFrame(rows).set_index(names).sort_index()


@pytest.mark.parametrize("start", ["", "<s>"])
@pytest.mark.spread(1)
def test_parts_of_conversations_keep_their_places(capsys, monkeypatch, tmp_path, chat_tokenizer, start):
    """Whether or not the template writes the token that begins a sequence; on text, random tokens and one repeated."""
    chat_tokenizer.chat_template = start + TEMPLATE
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = AutoConfig.for_model("llama", vocab_size=len(chat_tokenizer), **sizes, use_cache=False)
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).double().eval().requires_grad_(False)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    for each in (model, chat_tokenizer):
        each.save_pretrained(tmp_path / "model")
    chats = tmp_path / "chats.jsonl"
    rows = ({"messages": [{"role": role, "content": content} for role, content in chat]} for chat in CHATS)
    chats.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = [
        "dataset=text",
        f"dataset.path={chats}",
        "dataset.chat_template=true",
        "device=cpu",
        "device.dtype=float64",
    ]
    given += ["analysis=sinks", f"analysis.sinks.length={LENGTH}", f"analysis.sinks.epsilon={EPSILON}", f"seed={SEED}"]
    folder = tmp_path / "run"
    given += [f"model.name={tmp_path / 'model'}", "tracking=disabled", f"output_dir={folder}"]
    outcome = run_here(capsys, monkeypatch, *given)
    assert outcome.status == 0, outcome.err
    model.set_attn_implementation("eager")
    wanted = expected(model, chat_tokenizer, start)
    assert set(wanted.index.get_level_values("position")) == {"first", "punctuation", *PARTS}
    by_head = pd.read_parquet(folder / "tables/sinks_by_head.parquet").set_index(wanted.index.names).sort_index()
    pd.testing.assert_frame_equal(by_head[wanted.columns], wanted, check_dtype=False, rtol=1e-9)
    rates = wanted["sink_rate"].groupby(["inputs", "bos", "position"]).mean()
    assert rates[rates > 0].size > 10
    metrics = json.loads((folder / "results.json").read_text())["metrics"]
    for (inputs, bos, position), rate in rates.items():
        assert metrics[f"sinks/{inputs}/{'with' if bos else 'without'}_bos/sink_rate/{position}"] == pytest.approx(rate)
