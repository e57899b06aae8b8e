"""Files of another kind than a key expects, text with odd characters, and corpora of two files."""

import gzip
import io
import json
import os
import pickle
import random
import zipfile
from pathlib import Path

import torch
from safetensors.torch import save

from tests.end_to_end.bad_input.case import EITHER, Case
from tests.end_to_end.bad_input.corpora import good_file
from tests.end_to_end.bad_input.spoil import spoiled_bytes, write
from tests.end_to_end.bad_input.stock import TEXT, Stock


def _zip(files: dict[str, str]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


def _saved(value: object) -> bytes:
    content = io.BytesIO()
    torch.save(value, content)
    return content.getvalue()


FILES: dict[str, bytes] = {
    "picture": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0\x1f\x15\xc4\x89",
    "zip": _zip({"a.txt": TEXT}),
    "parquet": good_file(".parquet"),
    "csv": good_file(".csv"),
    "jsonl": good_file(".jsonl"),
    "json": json.dumps({"a": [1, {"b": None}]}).encode(),
    "yaml": b"a: &x [1]\nb: *x\n",
    "bomb": b"a: &a [x,x,x,x,x,x,x,x,x]\n"
    + b"".join(b"%c: &%c [%b]\n" % (98 + n, 98 + n, b",".join([b"*%c" % (97 + n)] * 9)) for n in range(9)),
    "pickle": pickle.dumps([{"tokens": ["[CLS]", "cat", "[SEP]"]}]),
    "safetensors": save({"a": torch.ones(2)}),
    "torch": _saved({"a": torch.ones(2)}),
    "gzip": gzip.compress(TEXT.encode(), mtime=0),
    "zeros in gzip": gzip.compress(b"\0" * 30_000_000, mtime=0),
    "gzip in gzip": gzip.compress(gzip.compress(TEXT.encode(), mtime=0), mtime=0),
    "elf": b"\x7fELF\x02\x01\x01" + b"\0" * 64,
    "text": TEXT.encode(),
    "one long line": b"a " * 2_000_000,
    "one long word": b"a" * 4_000_000,
    "links": b"0-0 1-1\n0-0\n0-0\n",
}
_ENDINGS = ["", ".txt", ".csv", ".tsv", ".jsonl", ".parquet", ".pkl", ".gz", ".txt.gz", ".json", ".bin", ".safetensors"]
_KEYS = {
    "dataset.path": ["dataset=text"],
    "analysis.frequency.path": ["analysis=frequency"],
    "analysis.frequency.source": ["analysis=frequency"],
    "model.name": [],
    "model.tokenizer": [],
    "resume": [],
    "reproduce": [],
    "+dataset.categories.x": [],
    "report.text": ["report.enabled=true", "report.examples=0"],
}
_ALIGNMENT_KEYS = (
    *("dataset.path", "dataset.pair_path", "analysis.alignment.gold.path"),
    "+analysis.alignment.baselines.x",
)


def wrong_file(draw: random.Random, stock: Stock) -> Case:
    """A file of another kind than the key expects, under an ending that may lie."""
    kind, name = draw.choice(sorted(FILES)), f"other{draw.choice(_ENDINGS)}"
    if draw.random() < 0.4:
        key = draw.choice(_ALIGNMENT_KEYS)
        arguments = stock.aligning()
    else:
        key = draw.choice(sorted(_KEYS))
        arguments = [*stock.common(), *_KEYS[key]]
    value = f"'file:{name}'" if "categories" in key else name
    return Case(
        f"{key} is a {kind} called {name}",
        [*arguments, f"{key}={value}"],
        [name, key.rpartition(".")[2], "dataset"],
        lambda folder: write(folder / name, FILES[kind]),
        statuses=EITHER,
    )


_CHARACTERS = (
    *(
        "\0",
        "\x1b[31mred",
        "\r",
        "\x0b",
        "\x0c",
        "\x85",
        "\u2028",
        "\u202e",
        "\u200b",
        "\ufeff",
        "\ufffe",
        "\U0010ffff",
    ),
    *(
        "\ud800",
        "e\u0301" * 500,
        "👩‍👩‍👧‍👦" * 200,
        "ﷺ" * 300,
        "𝔘" * 300,
        "[SEP]",
        "[CLS] [MASK]",
        "[PAD]",
        "[UNK]",
        "##s",
    ),
    *("<s>", "</s>", "$x$", "\\frac{", "<script>alert(1)</script>", "{{ 7 * 7 }}", "%s %d", "\x7f" * 50, "." * 3000),
    *(" " * 3000, "= = =", "= A =\n", '"', "'", "a" * 30_000, "\t\t", "1-1", "0\n0"),
)


def odd_characters(draw: random.Random, stock: Stock) -> Case:
    """Text that is text, but with characters that break what prints, splits or draws it."""
    texts = ["A small cat.", *("".join(draw.choices(_CHARACTERS, k=draw.randint(1, 3))) for _ in range(3))]
    form = draw.choice(["jsonl", "txt", "report", "categories"])
    options = draw.choice(
        [[], ["dataset.segmentation=sentence"], ["dataset.segmentation=window"], ["dataset.wikitext=true"]]
    )
    if draw.random() < 0.3:
        options.append("analysis=[mixing,norms,frequency,outliers,score]")
    arguments = [*stock.common(), "dataset=text", "dataset.path=odd", *options]
    if form == "report":
        path = "odd.txt"
        safe = texts[1].encode("utf-8", "replace").decode().replace("\\", "\\\\").replace('"', '\\"').replace("\0", "")
        arguments += ["report.enabled=true", "report.examples=2", f'report.text="{safe}"']
    elif form == "categories":
        path = "odd.txt"
        arguments.append("+dataset.categories.x=file:odd.txt")
    else:
        path = f"odd.{form}"
    arguments[arguments.index("dataset.path=odd")] = f"dataset.path={path}"

    def prepare(folder: Path) -> None:
        rows = [json.dumps({"text": text}) if form == "jsonl" else text for text in texts]
        content = "\n".join(rows)
        write(folder / path, content.encode("utf-8", "replace"))

    return Case(f"characters in {form} {texts[1][:20]!r}", arguments, [path, "report.text", "categories", "dataset"],
                prepare, statuses=EITHER)  # fmt: skip


def category(draw: random.Random, stock: Stock) -> Case:
    """A category of the user's that cannot be one."""
    name = draw.choice(["x", "x", "x", "cls", "all", "1x", "é", "punctuation", "a b", "x" * 500, "first"])
    value = draw.choice(
        [
            *("'re:('", "'re:a{99999999999}'", "'re:(?P<a>.)(?P<a>.)'", "'re:(a*)*b'", "'re:'", "'re:\\x00'", "re:[z-a]"),
            *("'file:'", "'file:.'", "'file:/dev/null'", "'file:nope'", "'file:~nobody-of-that-name/x'", "'file:pipe'"),
            *("'file:/proc/self/mem'", "'file:bad'", "'file:empty'", f"'file:{'x' * 5000}'", "null", "3", "1.5", "true"),
            *("[[a]]", "[null]", "[]", "{a: 1}", "['']", "[the,The]", "nan", "'[CLS]'", "['\\ud800']", f"'{'a' * 9999}'"),
            *("'re:.*'", "'re:(?#'", f"'re:{'(' * 3000}{')' * 3000}'", "'file:zero'", "'re:(?<=a+)b'"),
        ]
    )  # fmt: skip

    def prepare(folder: Path) -> None:
        os.mkfifo(folder / "pipe")
        (folder / "bad").write_bytes(b"\xff\xfe\xfd")
        (folder / "empty").write_bytes(b"")
        (folder / "zero").symlink_to("/dev/zero")

    arguments = [*stock.common(), f"+dataset.categories.{name}={value}"]
    return Case(f"category {name:.10}={value:.40}", arguments, ["categories", name], prepare, statuses=EITHER)


def two_files(draw: random.Random, stock: Stock) -> Case:
    """A corpus of two files that do not fit, or of one whose lines hold no pair."""
    contents = [TEXT.encode(), TEXT.encode() * 2, b"", b"\n\n\n", b"a\n", b"\xff\n" * 3]
    one, other = (draw.choice([*contents, spoiled_bytes(draw, TEXT.encode())]) for _ in range(2))
    names = draw.choice([("a.txt", "b.txt"), ("a.txt.gz", "b.txt"), ("a.jsonl", "b.txt"), ("a.txt", "a.txt")])
    options = draw.choice(
        [[], [], ["dataset.separator='|||'", "dataset.pair_path=null"], ["dataset.separator=' '"], ["dataset.limit=1"]]
    )

    def prepare(folder: Path) -> None:
        write(folder / names[0], one)
        write(folder / names[1], other)

    arguments = [*stock.aligning(), f"dataset.path={names[0]}", f"dataset.pair_path={names[1]}", *options]
    return Case(
        f"two files {one[:10]!r} {other[:10]!r} {names} {options}",
        arguments,
        [*names, "dataset", "gold.txt"],
        prepare,
        statuses=EITHER,
    )
