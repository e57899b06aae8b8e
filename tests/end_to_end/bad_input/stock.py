"""Good input that cases spoil: models and runs."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.end_to_end.bad_input.case import Case
from tests.end_to_end.bad_input.process import finished, started
from tests.tiny import FAMILY_CONFIGS, STACK_CONFIGS, tiny_model

TEXT = "A small cat walks along the river.\nIt sleeps, and then it wakes.\nNobody knows why.\n"


@dataclasses.dataclass(frozen=True)
class Stock:
    """Good input that cases spoil."""

    folder: Path

    @property
    def model(self) -> Path:
        """A tiny BERT."""
        return self.folder / "model"

    @property
    def translator(self) -> Path:
        """A tiny Marian model."""
        return self.folder / "translator"

    @property
    def finished(self) -> Path:
        """A completed run."""
        return self.folder / "finished"

    @property
    def stopped(self) -> Path:
        """A run that failed half-way and has a checkpoint."""
        return self.folder / "stopped"

    def common(self, model: Path | None = None) -> list[str]:
        """Arguments of a small run."""
        return [
            *("tracking=disabled", "device=cpu", "report.enabled=false", "output_dir=out", "dataset.limit=4"),
            *("analysis.score.controls=1", f"model.name={model or self.model}"),
        ]

    @classmethod
    def made(cls, folder: Path, tokenizer: Any) -> "Stock":
        """Make models and runs in a folder."""
        stock = cls(folder)
        for path, config in ((stock.model, FAMILY_CONFIGS["bert"]), (stock.translator, STACK_CONFIGS["marian"])):
            settings = config | {"vocab_size": len(tokenizer), "max_position_embeddings": 160}
            tiny_model(settings, torch.float32).save_pretrained(path)
            tokenizer.save_pretrained(path)
        corpus = folder / "corpus.txt"
        corpus.write_bytes(TEXT.encode() * 1500 + b"\xff\n")
        run = [
            *stock.common(),
            "dataset=text",
            f"dataset.path={corpus}",
            "dataset.limit=null",
            "device.batch_tokens=512",
        ]
        succeed(folder, [*run, f"output_dir={stock.finished}", "dataset.limit=9"], 0)
        succeed(folder, [*run, f"output_dir={stock.stopped}", "checkpoint.every_seconds=0"], 2)
        corpus.write_bytes(TEXT.encode() * 1500)
        (folder / "source.txt").write_text(TEXT)
        (folder / "target.txt").write_text(TEXT)
        (folder / "gold.txt").write_text("0-0 1-1 2p2\n0-0\n0-0 1p1\n")
        return stock

    def aligning(self) -> list[str]:
        """Arguments of a small run of analysis=alignment."""
        return [
            *self.common(self.translator),
            *("analysis=alignment", "dataset=parallel", "dataset.limit=null"),
            *(f"dataset.path={self.folder}/source.txt", f"dataset.pair_path={self.folder}/target.txt"),
            f"analysis.alignment.gold.path={self.folder}/gold.txt",
        ]


def succeed(folder: Path, arguments: Sequence[str], status: int) -> None:
    _, outcome = finished([started(Case("stock", arguments, []), folder)])
    assert outcome.status == status, outcome.err
