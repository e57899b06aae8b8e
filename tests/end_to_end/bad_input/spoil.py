"""Values and bytes made wrong."""

import gzip
import json
import random
from collections.abc import Sequence
from typing import Any

HUGE = "@huge@"
DEEP = "@deep@"
JUNK: list[Any] = [
    *(None, True, -1, 0, 1, 7, 3.5, 1e308, float("nan"), float("inf"), 2**31, 2**64, -(2**63), HUGE, DEEP),
    *("", " ", "foo", "\x00", "a\nb", "\x1b[31m", "../..", "é" * 5000),
    *([], [[]], {}, {"a": 1}, [1, "a", None], ["foo"]),
]


def as_json(value: Any) -> bytes:
    """JSON, with an integer of 5,000 digits and a list 5,000 deep where their marks stand."""
    text = json.dumps(value, ensure_ascii=False)
    return (
        text.replace(f'"{HUGE}"', "9" * 5000).replace(f'"{DEEP}"', "[" * 5000 + "]" * 5000).encode("utf-8", "replace")
    )


def spoiled(draw: random.Random, value: Any, keep: Sequence[str] = ()) -> tuple[Any, str]:
    """A copy of nested data with one value replaced or removed, and which; keys in `keep` are not touched."""
    value = json.loads(json.dumps(value))
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key, below in list(node.items() if isinstance(node, dict) else enumerate(node)):
            if key not in keep:
                places.append((node, key))
                if isinstance(below, dict | list):
                    walk(below)

    if isinstance(value, dict | list):
        walk(value)
    if not places or draw.random() < 0.08:
        junk = draw.choice(JUNK)
        return junk, f"whole={junk!r:.40}"
    node, key = draw.choice(places)
    if draw.random() < 0.15:
        del node[key]
        return value, f"without {key}"
    node[key] = draw.choice(JUNK)
    return value, f"{key}={node[key]!r:.40}"


def spoiled_bytes(draw: random.Random, content: bytes) -> bytes:
    """Bytes that are cut, flipped, shuffled or replaced."""
    noise = draw.randbytes(draw.randint(1, 300))
    place = draw.randrange(len(content) + 1)
    flipped = bytearray(content or b"\0")
    for _ in range(draw.choice([1, 3, 50])):
        flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
    return draw.choice(
        [
            *(b"", content[:place], content[place:], noise, content[:place] + noise + content[place:], bytes(flipped)),
            *(
                content[: min(place, 12)],
                b"\0" * 4096,
                content.decode("latin-1").encode("utf-16"),
                b"\xff\xfe" + content,
            ),
            *(b"[" * 100_000, b"9" * 5000, b"null", b"[]", b"{}", b"\n" * 50, gzip.compress(content), content[::-1]),
        ]
    )
