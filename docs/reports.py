"""Makes the live reports and the figures of the gallery: `make docs` calls it.

Three runs, without a network: five analyses of the default model, word alignment by the toy translation model (which is
trained once, in two minutes, and cached), and a comparison of untrained models over seeds. Their pages and figures go to
`docs/reports`, which is not under version control, and stay there until they are deleted or the version changes. The gallery
(`docs/hooks/gallery.py`) shows what is there.
"""

import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from transformers import BertConfig

from normscope.distribution import VERSION

ROOT = Path(__file__).parents[1]
REPORTS = ROOT / "docs" / "reports"

TEXT = "The old bridge was closed, so we crossed the river in the next town."
TINY = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
SIZES_OF_WEIGHTS = (0.02, 0.2)


@dataclasses.dataclass(frozen=True)
class LiveReport:
    """A run whose page the documentation shows."""

    title: str
    about: str
    arguments: tuple[str, ...]
    """Keys of the run; MODELS stands for the folder of untrained models."""
    page: str = "report.html"


LIVE = {
    "minilm": LiveReport(
        "Five analyses of one model",
        "MiniLM on 24 sequences of the sample corpus: findings, an explorer of token maps, figures and tables.",
        (
            "analysis=[mixing,norms,frequency,outliers,sinks]",
            "analysis.sinks.inputs=[text]",
            "dataset.limit=24",
            f"report.text='{TEXT}'",
        ),
    ),
    "alignment": LiveReport(
        "Word alignment",
        "A small translation model, trained on generated sentences whose alignments are known.",
        ("experiment=alignment_toy",),
    ),
    "seeds": LiveReport(
        "A comparison over seeds",
        "Untrained models, with two sizes of their initial weights and three seeds of each: the verdict is tested over seeds.",
        (
            "-m",
            "model.name=" + ",".join(f"MODELS/initial-{size}" for size in SIZES_OF_WEIGHTS),
            "model.random_init=true",
            "model.tokenizer=sentence-transformers/all-MiniLM-L6-v2",
            "model.seed=0,1,2",
            "analysis=[mixing,norms]",
            "dataset.limit=16",
            "report.examples=1",
        ),
        "comparison.html",
    ),
}


def main() -> int:
    """Make what is missing, or was made by another version."""
    for name, live in LIVE.items():
        folder, stamp = REPORTS / name, REPORTS / name / ".version"
        if stamp.is_file() and stamp.read_text() == VERSION:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            run, models = Path(temporary) / "run", Path(temporary) / "models"
            for size in SIZES_OF_WEIGHTS:
                BertConfig(**TINY, initializer_range=size).save_pretrained(models / f"initial-{size}")
            arguments = [argument.replace("MODELS", str(models)) for argument in live.arguments]
            keys = (
                "tracking=disabled",
                "figures.format=[png]",
                "figures.caption=false",
                f"output_dir={run}",
                "--quiet",
            )
            environment = os.environ | {"HF_HUB_OFFLINE": "1"}
            print(f"docs/reports/{name}", flush=True)
            subprocess.run([sys.executable, "run.py", *arguments, *keys], cwd=ROOT, env=environment, check=True)
            shutil.rmtree(folder, ignore_errors=True)
            for kind in ("*.html", "figures/*.png", "figures/*.txt"):
                for path in run.rglob(kind):
                    target = folder / path.relative_to(run)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, target)
        stamp.write_text(VERSION)
    return 0


if __name__ == "__main__":
    sys.exit(main())
