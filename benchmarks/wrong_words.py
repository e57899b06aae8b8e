"""Translations of the toy grammar in which some nouns are wrong, with labels, for `analysis=attribution model.stack=cross`.

python -m benchmarks.wrong_words pairs.jsonl
normscope analysis=attribution model=alignment-toy model.stack=cross dataset=text dataset.path=pairs.jsonl \
  dataset.hallucinated_column=hallucinated dataset.omitted_column=omitted analysis.attribution.sequences=200
"""

import json
import random
import sys
from pathlib import Path

from normscope.data.toy_corpus import _NOUNS, PAIRS, ToyCorpus

_ENGLISH = [english for _, _, english in _NOUNS if " " not in english]


def wrong_words(seed: int = 1) -> list[dict[str, object]]:
    """Rows of a corpus: in about half of the translations, one noun is replaced by another."""
    draw = random.Random(seed)
    rows: list[dict[str, object]] = []
    for pair in ToyCorpus(PAIRS, 0).examples():
        assert pair.text_pair is not None
        assert pair.links is not None
        source, target, links = pair.text.split(), pair.text_pair.split(), pair.links
        single = [
            (s, t)
            for s, t in sorted(links.sure)
            if target[t] in _ENGLISH and sum(s == other or t == one for other, one in links.possible) == 1
        ]
        hallucinated, omitted = [0] * len(target), [0] * len(source)
        if single and draw.random() < 0.5:
            s, t = draw.choice(single)
            target[t] = draw.choice([noun for noun in _ENGLISH if noun != target[t]])
            hallucinated[t] = omitted[s] = 1
        rows.append(
            {
                "text": " ".join(source),
                "text_pair": " ".join(target),
                "hallucinated": hallucinated,
                "omitted": omitted,
            }
        )
    return rows


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(
        "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in wrong_words()), encoding="utf-8"
    )
