"""Counts the tokens of a corpus and ranks them by frequency, in the format of the authors' `rank_count_ids.txt`:
`python experiments/kobayashi2020/rank_count_ids.py corpus.txt rank_count_ids.txt --tokenizer google-bert/bert-base-uncased`.

Each line is `rank count token_id`, the most frequent token first. A token's rank is one more than the number of tokens that are
more frequent, so equally frequent ones share it; tokens that do not occur have no line. Special tokens count as often as the
tokenizer adds them. The authors' own file has [SEP] twice as often as [CLS]: BERT's training data are pairs of texts.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

from transformers import AutoTokenizer

from normscope.data.examples import Example
from normscope.data.text_files import TextFile
from normscope.errors import InputError


def token_counts(corpus: Path, tokenizer: str) -> Counter[int]:
    """How often each token occurs in a file of texts or pairs of texts (.txt, .jsonl, .csv, .parquet).

    Args:
        tokenizer: A folder, or a name on the Hub.
    """
    texts = TextFile(corpus, key="CORPUS")
    encode = AutoTokenizer.from_pretrained(tokenizer)
    counts: Counter[int] = Counter()
    for example in texts.examples():
        if isinstance(example, Example):
            counts.update(encode(example.text, example.text_pair, verbose=False)["input_ids"])
    return counts


def ranked(counts: Counter[int]) -> list[tuple[int, int, int]]:
    """Rank, count and id of each token."""
    rows: list[tuple[int, int, int]] = []
    for place, (token, count) in enumerate(sorted(counts.items(), key=lambda item: (-item[1], item[0])), start=1):
        rank = rows[-1][0] if rows and rows[-1][1] == count else place
        rows.append((rank, count, token))
    return rows


def main() -> None:
    """Write the file that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="texts, such as one on each line")
    parser.add_argument("output", type=Path, help="the file to write")
    parser.add_argument("--tokenizer", default="google-bert/bert-base-uncased", help="a folder, or a name on the Hub")
    arguments = parser.parse_args()
    rows = ranked(token_counts(arguments.corpus, arguments.tokenizer))
    if not rows:
        raise InputError(f"{arguments.corpus}: expected texts, got none")
    arguments.output.write_text("".join(f"{rank} {count} {token}\n" for rank, count, token in rows))
    print(f"{len(rows):,} of the tokenizer's tokens occur; their ranks are in {arguments.output}")


if __name__ == "__main__":
    try:
        main()
    except (InputError, OSError) as error:
        print(f"rank_count_ids.py: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
