"""Makes the pictures of the README and of this documentation, and the outputs of the tour: `make figures`.

The pages decide what is made: each picture they show has the name of a figure from one of the runs below. The runs need no
network, and only the syntax figures need a treebank (`make figures ARGS="--treebank dev.conllu"`). On one machine with the same
packages, the figures have the same bytes each time; on another processor, the small models may train differently. Captions are
text, in a file beside each picture, which the pages show (`docs/hooks/captions.py`). All figures of the runs, shown or not, are
collected on `outputs/contact_sheet.png` for inspection.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import nbformat
import numpy as np
from nbclient import NotebookClient
from PIL import Image, ImageChops, ImageDraw, ImageFont
from transformers import PreTrainedTokenizerFast

import normscope
from benchmarks.commands import ANALYSES
from docs import live_pictures
from normscope.data.toy_corpus import ToyCorpus
from normscope.reporting.figure_text import caption_of
from normscope.results.pictures import Picture
from normscope.translation import toy
from normscope.translation.training import train
from tests.known_truth import CITIES, prompts, trained

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
TOUR = ROOT / "experiments" / "tour.ipynb"
BENCHMARKS = ROOT / "benchmarks" / "measured"
COMMANDS = "commands"
"""The picture of what commands cost, once that has been measured."""

CONTACT_SHEET = ROOT / "outputs" / "contact_sheet.png"
COLUMNS, COLUMN_WIDTH = 3, 720
"""Columns of the contact sheet, and the width of each in pixels."""

EXPLORER = "explorer"
SENTENCE = "The old bridge was closed, so we crossed the river in the next town."
"""What the explorer's picture shows."""
SIMILAR = ("A man plays the guitar.", "Someone is making music.")
"""The texts whose similarity is taken apart."""
QUERY = "How do I get a visa for Japan?"
DOCUMENTS = [
    "Tourists from many countries may enter Japan without a visa for up to 90 days.",
    "A visa is a stamp in a passport.",
    "The Japanese embassy accepts applications on weekdays from nine to noon.",
    "Visa and Mastercard are accepted in most shops.",
    "Japan has four large islands and many small ones.",
    "The recipe needs rice, seaweed and a little vinegar.",
]
"""What is ranked for a query."""
SIMILAR_EXAMPLES = 100
"""Number of examples of the sample corpus that are read for its pairs of texts, which are half of them."""
MEASURED_PAIRS = 100
"""Pairs on which the toy translation model is measured while it trains."""
SELECTION = "explore?layer=4&measure=attn_n&token=1"
"""The layer, the measure and the clicked token in the page's address."""

_BROWSER = "--headless --no-sandbox --disable-gpu --disable-background-networking --no-first-run --hide-scrollbars"
_SCALE = 2
_MARGIN = 16
_ONLY_THE_EXPLORER = """<style>
body { visibility: hidden }
#explorer { visibility: visible }
#explorer { position: absolute; inset: 0 auto auto 0; width: 1100px; margin: 0; padding: 16px; background: #fff }
#explorer > h2, #explorer > p { display: none }
</style>"""


def shown() -> set[str]:
    """The names of the pictures that the README and the pages show."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    measured = {COMMANDS} & {
        path.stem for path in BENCHMARKS.glob("*.png")
    }  # below its table (docs/hooks/measurements.py)
    return measured | {name for page in pages for name in re.findall(r"images/([\w-]+)\.png\)", page.read_text())}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the pictures need and write them to `docs/images`; run the tour and store its outputs."""
    parser = argparse.ArgumentParser(prog="python -m docs.figures", description=__doc__)
    parser.add_argument(
        "--treebank",
        type=Path,
        help="also draw the syntax figures, from this treebank; without it, they stay as they are",
    )
    parser.add_argument(
        "--run", type=Path, action="append", default=[], help="take the figures of this run instead (repeatable)"
    )
    parsed = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        runs = parsed.run or _runs(Path(folder), parsed.treebank)
        missing = []
        for name in sorted(shown() - {EXPLORER, *live_pictures.PICTURES}):
            sources = [path for path in _sources(name, runs) if path.exists()]
            if sources:
                _take(sources[0], name)
                print(f"docs/images/{name}.png")
            elif parsed.treebank is not None or not name.startswith("syntax_"):
                missing.append(name)
        contact_sheet([path for run in runs for path in sorted((run / "figures").glob("*.png"))], CONTACT_SHEET)
        print(CONTACT_SHEET.relative_to(ROOT))
        browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if browser is None:
            print("pictures of pages are left as they are: there is no chromium on this machine", file=sys.stderr)
        else:
            _explorer(browser, runs[0] / "report.html", IMAGES / f"{EXPLORER}.png")
            live_pictures.draw(browser, IMAGES)
    store_tour()
    if missing:
        print(f"no run has a figure of this name: {', '.join(missing)}", file=sys.stderr)
    return 1 if missing else 0


def store_tour() -> None:
    """Run `experiments/tour.ipynb` and keep its outputs in it, so that it can be read where it cannot be run."""
    tour = nbformat.read(TOUR, as_version=4)
    # Times would differ after each run.
    NotebookClient(tour, record_timing=False, resources={"metadata": {"path": str(TOUR.parent)}}).execute()
    tour.metadata.pop("language_info", None)  # the version of Python would, too
    nbformat.write(tour, TOUR)
    print(TOUR.relative_to(ROOT))


def contact_sheet(pictures: Sequence[Path], target: Path) -> None:
    """Write all pictures, each below its name, on one sheet: in columns, each picture where the sheet is shortest."""
    name_height, gap = 28, 24
    ends = [gap] * COLUMNS
    places: list[tuple[Path, Image.Image, int, int]] = []
    for path in pictures:
        picture = Image.open(path).convert("RGB")
        picture = picture.resize((COLUMN_WIDTH, round(picture.height * COLUMN_WIDTH / picture.width)))
        column = ends.index(min(ends))
        places.append((path, picture, gap + column * (COLUMN_WIDTH + gap), ends[column]))
        ends[column] += name_height + picture.height + gap
    sheet = Image.new("RGB", (gap + COLUMNS * (COLUMN_WIDTH + gap), max(ends)), (255, 255, 255))
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(18)
    for path, picture, left, top in places:
        draw.text((left, top), path.stem, fill=(90, 95, 102), font=font)
        sheet.paste(picture, (left, top + name_height))
    target.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(target)


def _runs(folder: Path, treebank: Path | None) -> list[Path]:
    """Run the default model on the sample corpus and on its pairs of texts, the toy translation model, Python and training."""
    return [
        _run(
            folder / "sample",
            f"analysis=[{','.join(ANALYSES)}]",
            f"report.text='{SENTENCE}'",
        ),
        # On fewer pairs than in the run above: the vector of every token is carried through all layers.
        _run(folder / "pairs", "analysis=similarity", f"dataset.limit={SIMILAR_EXAMPLES}"),
        _run(folder / "toy", "experiment=alignment_toy"),
        _from_python(folder / "python"),
        _from_retrieval(folder / "retrieval"),
        _from_training(folder / "training"),
        *([] if treebank is None else [_syntax(folder / "treebank", treebank)]),
    ]


def _from_python(folder: Path) -> Path:
    """Figures that the Python interface makes."""
    figures = folder / "figures"
    figures.mkdir(parents=True)
    model = normscope.load()
    decompx = normscope.attribution_maps(model, SENTENCE, "decompx")
    _save(decompx.figure(), figures / "attribution_decompx.png")
    _save(normscope.similarity(model, *SIMILAR).figure(), figures / "similarity.png")
    _save(normscope.similarity(model, QUERY, DOCUMENTS).figure(), figures / "ranking.png")
    return folder


def _from_retrieval(folder: Path) -> Path:
    """Figures of a small model that looks its answers up in the prompt; see `tests/known_truth.py`."""
    figures = folder / "figures"
    figures.mkdir(parents=True)
    model = trained().model
    prompt, answer, _ = next(prompts(np.random.default_rng(7)))
    other = next(word for word in reversed(prompt.split()) if word in CITIES and word != answer)
    target = normscope.NextToken(answer)
    _save(normscope.attribute(model, prompt, target).figure(), figures / "answer_tokens.png")
    _save(normscope.attribute(model, prompt, target, against=other).figure(), figures / "answer_contrast.png")
    _save(normscope.attribute(model, prompt, target, by=["layer", "head"]).figure(), figures / "answer_heads.png")
    return folder


def _from_training(folder: Path) -> Path:
    """Figures of the toy translation model while it trains."""
    figures = folder / "figures"
    figures.mkdir(parents=True)
    examples = ToyCorpus(MEASURED_PAIRS, seed=9).examples()
    pairs = [(example.text, example.text_pair or "") for example in examples]
    callbacks: list[normscope.Callback] = []

    def measure(tokenizer: PreTrainedTokenizerFast) -> list[normscope.Callback]:
        sources = [source for source, _ in pairs]
        callbacks.append(normscope.Callback("mixing", texts=sources, tokenizer=tokenizer, every=25))
        return callbacks

    training = ToyCorpus(toy.PAIRS, seed=1).examples()
    train(
        [(example.text, example.text_pair or "") for example in training], toy.RECIPE, folder / "m", callbacks=measure
    )
    label = "mixing ratio of the encoder (attention block, AttnResLn-N)"
    _save(callbacks[0].figure("mixing/attnresln_n/mean", label), figures / "training_mixing.png")
    return folder


def _save(picture: Picture, path: Path) -> None:
    """Save a picture, and its caption as a text beside it, as runs do."""
    picture.save(path, caption=False)
    path.with_suffix(".txt").write_text(f"{caption_of(picture.description)}\n")


def _syntax(folder: Path, treebank: Path) -> Path:
    return _run(folder, "analysis=syntax", "dataset=conllu", f"dataset.path={treebank.resolve()}")


def _run(folder: Path, *overrides: str) -> Path:
    command = [
        sys.executable,
        "run.py",
        *overrides,
        "tracking=disabled",
        "figures.caption=false",
        f"output_dir={folder}",
    ]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"HF_HUB_OFFLINE": "1"}, check=True)
    return folder


def _sources(name: str, runs: Sequence[Path]) -> list[Path]:
    return [*(run / "figures" / f"{name}.png" for run in runs), BENCHMARKS / f"{name}.png"]


def _take(picture: Path, name: str) -> None:
    """Copy a picture and its caption to `docs/images`."""
    shutil.copyfile(picture, IMAGES / f"{name}.png")
    written = picture.with_suffix(".txt")
    if written.exists():
        shutil.copyfile(written, IMAGES / f"{name}.txt")
    else:  # drawn with its caption, or by a benchmark
        (IMAGES / f"{name}.txt").unlink(missing_ok=True)


def _explorer(browser: str, report: Path, target: Path) -> None:
    """The explorer of a report as a browser shows it."""
    with tempfile.TemporaryDirectory() as folder:
        page, picture = Path(folder) / "report.html", Path(folder) / "explorer.png"
        page.write_text(report.read_text().replace("</head>", f"{_ONLY_THE_EXPLORER}</head>", 1))
        subprocess.run(
            [
                browser,
                *_BROWSER.split(),
                f"--user-data-dir={folder}/profile",
                "--window-size=1140,1400",
                f"--force-device-scale-factor={_SCALE}",
                "--virtual-time-budget=4000",
                f"--screenshot={picture}",
                f"{page.as_uri()}#{SELECTION}",
            ],
            check=True,
            capture_output=True,
        )
        _trimmed(Image.open(picture).convert("RGB")).save(target, optimize=True)
    print(target.relative_to(ROOT))


def _trimmed(image: Image.Image) -> Image.Image:
    """The image without its empty borders but for a margin."""
    white = Image.new("RGB", image.size, (255, 255, 255))
    box = ImageChops.difference(image, white).getbbox()
    assert box is not None, "the browser's picture is empty"
    margin = _MARGIN * _SCALE
    return image.crop((0, 0, min(box[2] + margin, image.width), min(box[3] + margin, image.height)))


if __name__ == "__main__":
    sys.exit(main())
