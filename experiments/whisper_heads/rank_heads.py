"""Which heads of Whisper's cross-attention find words: the ranks of those that OpenAI aligns words by, by weights and by norms.

python experiments/real_weights/fetch.py whisper-tiny.en whisper-base
python experiments/whisper_heads/rank_heads.py

espeak-ng, which has to be installed, speaks sentences word by word with silence between, so that times of words are certain.
The recordings are left beside the models, with their words.jsonl, and the table is written into the README.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import normscope

sys.path.insert(0, str(Path(__file__).parents[2]))  # when it is run as a script

from docs.hooks.markdown import table
from experiments.real_weights.tables import EXPERIMENTS, fill
from normscope.rounding import duration, numbered, percentage

WEIGHTS = Path("outputs/real_weights")
MODELS = ("whisper-tiny.en", "whisper-base")
SENTENCES = """\
a stray dog followed the postman home
the museum closes early on winter evenings
three fishermen repaired their nets beside the water
my uncle sold his farm last autumn
nobody heard the telephone ringing upstairs
fresh snow covered every roof in town
the pilot announced a short delay
she borrowed two novels from the library
workers painted the iron gate dark green
a young violinist played without any mistakes
the baker opens his shop before sunrise
our neighbours grow tomatoes and purple beans
the ferry crossed the channel in thick fog
he forgot his umbrella under the table
several tourists asked about the ancient tower
the judge read the verdict slowly""".splitlines()
SILENCE = 0.12
"""Seconds between words."""
LOUD = 0.01
"""Part of full scale above which a word begins and ends."""
ROWS = {"awo": "row that predicts a word", "awi": "row that reads it"}
METHODS = {"attn_w": "weights", "attn_n": "norms"}


def main() -> int:
    """Write the recordings, and fill the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help=f"folder of the models' folders ({WEIGHTS})")
    weights = parser.parse_args().weights
    missing = [name for name in MODELS if not (weights / name).is_dir()]
    if missing:
        fetch = f"python experiments/real_weights/fetch.py {' '.join(missing)}"
        print(f"{weights / missing[0]}: no such folder: {fetch}", file=sys.stderr)
        return 2
    if shutil.which("espeak-ng") is None:
        print(
            "espeak-ng: not found; install it with the system's packages, for example apt install espeak-ng",
            file=sys.stderr,
        )
        return 2
    start = time.monotonic()
    recordings = spoken(weights / "words")
    rows = [row for name in MODELS for row in ranks(name, heads_of(weights / name, recordings))]
    seconds = sum(recording["times"][-1][1] for recording in recordings)
    spoke = f"{len(recordings)} recordings, {sum(len(each['times']) for each in recordings)} words, {seconds:.0f} s of speech"
    header = ["model", "row", "by", "ranks of the published heads", "words they find", "others", "best"]
    took = duration(time.monotonic() - start)
    fill(EXPERIMENTS / "whisper_heads/README.md", "heads", f"{table(header, rows)}\n{spoke}; {took}.")
    return 0


def spoken(folder: Path) -> list[dict[str, Any]]:
    """Recordings of the sentences in a folder, as `dataset=audio` reads them from its words.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    words = {word: said(word) for sentence in SENTENCES for word in sentence.split()}
    _, rate = next(iter(words.values()))
    silence = np.zeros(round(SILENCE * rate), np.int16)
    rows = []
    for number, sentence in enumerate(SENTENCES):
        parts, times = [silence], []
        for word in sentence.split():
            start = sum(map(len, parts))
            parts += [words[word][0], silence]
            times.append([round(start / rate, 3), round((start + len(words[word][0])) / rate, 3)])
        path = folder / f"{number:02}.wav"
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, rate, 0, "NONE", "not compressed"))
            file.writeframes(np.concatenate(parts).astype("<i2").tobytes())
        rows.append({"audio": path.name, "text": sentence, "times": times})
    (folder / "words.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return [row | {"audio": str(folder / row["audio"])} for row in rows]


def said(word: str) -> tuple[np.ndarray, int]:
    """A word without the silence around it, in 16-bit samples, and their rate."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "word.wav"
        subprocess.run(["espeak-ng", "-v", "en-us", "-s", "140", "-w", str(path), word], check=True)
        with wave.open(str(path)) as file:
            samples, rate = np.frombuffer(file.readframes(file.getnframes()), "<i2"), file.getframerate()
    loud = np.flatnonzero(np.abs(samples.astype(int)) > LOUD * np.iinfo(np.int16).max)
    return samples[loud[0] : loud[-1] + 1], rate


def heads_of(model: Path, recordings: list[dict[str, Any]]) -> pd.DataFrame:
    """The table `alignment_heads`: how many words each head of the cross-attention finds, and whether it is published."""
    many = json.loads((model / "generation_config.json").read_text())["is_multilingual"]
    loaded = normscope.load(str(model), stack="cross", target_language="en" if many else None)
    return normscope.run("alignment", model=loaded, texts=recordings).tables["alignment_heads"]


def ranks(name: str, heads: pd.DataFrame) -> list[list[str]]:
    """The lines of one model: a line for each row of the attention and each measure."""
    lines = []
    for setting, row in ROWS.items():
        for method, measure in METHODS.items():
            own = heads[(heads["setting"] == setting) & (heads["method"] == method)]
            shares = own.groupby("published")["right"].mean()
            best = own.loc[own["right"].idxmax()]
            known = numbered(sorted(own.loc[own["published"], "rank"].tolist()))
            of = f"{percentage(best['right'])}, head {best['head']} of layer {best['layer']}"
            lines.append(
                [name, row, measure, f"{known} of {len(own)}", *map(percentage, (shares[True], shares[False])), of]
            )
    return lines


if __name__ == "__main__":
    sys.exit(main())
