"""Writes the texts of the pickle released by Clark et al. 2019, which Kobayashi et al. used, to a file of pairs:
`python clark_to_jsonl.py unlabeled_attn.pkl clark.jsonl`, for `dataset=clark`."""

import argparse
import json
import pickle
import sys
from pathlib import Path


class _Skipped:
    """Stands in for an array, whose values are not needed."""

    def __init__(self, *_: object) -> None: ...

    def __setstate__(self, _: object) -> None: ...


class _TokensOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        """Nothing is imported. Protocol 2 stores the bytes of an array with `_codecs.encode`."""
        if module.partition(".")[0] != "numpy" and (module, name) != ("_codecs", "encode"):
            raise pickle.UnpicklingError(f"refused: it refers to {module}.{name}, which an array does not need")
        return _Skipped


def convert(source: Path, target: Path) -> None:
    """Join the word pieces between special tokens, and write a line of JSON for each sequence."""
    with source.open("rb") as file:
        rows = _TokensOnly(file, encoding="latin1").load()
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "tokens" in row for row in rows):
        raise pickle.UnpicklingError("expected a list of sequences with `tokens`, as in unlabeled_attn.pkl")
    with target.open("w", encoding="utf-8") as file:
        for row in rows:
            parts = " ".join(row["tokens"]).replace(" ##", "").removeprefix("[CLS]").split("[SEP]")
            texts = [part.strip() for part in parts if part.strip()]
            file.write(json.dumps(dict(zip(("text", "text_pair"), texts, strict=False)), ensure_ascii=False) + "\n")


def main() -> None:
    """Convert the file that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="unlabeled_attn.pkl")
    parser.add_argument("target", type=Path, help="the file to write, with a name that ends in .jsonl")
    arguments = parser.parse_args()
    convert(arguments.source, arguments.target)


if __name__ == "__main__":
    try:
        main()
    except (OSError, EOFError, pickle.UnpicklingError) as error:
        print(f"clark_to_jsonl.py: {error}", file=sys.stderr)
        sys.exit(2)
