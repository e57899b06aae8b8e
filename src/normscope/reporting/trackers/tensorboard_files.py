"""TensorBoard: event files in the run folder's `tensorboard/`. The only module that imports tensorboard.

torch writes them, by TensorBoard's own library: the package that draws them also reads and writes them, so nothing else
(tensorboardX, say) has to follow its format.
"""

import contextlib
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from normscope.config.sections import flat
from normscope.reporting.background import started_in_background
from normscope.reporting.options import TrackingOptions
from normscope.reporting.run_description import parameters
from normscope.reporting.threads import contained_threads
from normscope.reporting.tracker import NoTracker, RunDescription, Tracker, as_markdown
from normscope.reporting.trackers.failures import Failures
from normscope.rounding import number

_TABLE_ROWS = 200
"""Rows of a table that TensorBoard shows; its tables are text, which it can neither sort nor search."""


@contextlib.contextmanager
def tensorboard_run(options: TrackingOptions, description: RunDescription, folder: Path) -> Iterator[Tracker]:
    """Event files in the run folder, for the duration of a run."""
    failures = Failures("TensorBoard")
    with (
        contained_threads("tensorboard", failures.note),
        started_in_background(_tracker(options, description, folder, failures)) as tracker,
    ):
        yield tracker


@contextlib.contextmanager
def _tracker(
    options: TrackingOptions, description: RunDescription, folder: Path, failures: Failures
) -> Iterator[Tracker]:
    writer = failures.attempt(lambda: _writer(folder / "tensorboard"))
    if writer is None:
        yield NoTracker()
        return
    try:
        yield _TensorBoard(writer, options, description, failures)
    finally:
        failures.attempt(writer.flush)
        with contextlib.suppress(Exception):  # a writer that has failed does so again
            writer.close()


def _writer(folder: Path) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(log_dir=str(folder))


class _TensorBoard(Tracker):
    """The event files of one run.

    Args:
        writer: Torch's `SummaryWriter`.
        failures: Receives every error.
    """

    def __init__(self, writer: Any, options: TrackingOptions, description: RunDescription, failures: Failures) -> None:
        self._writer, self._description, self._failures = writer, description, failures
        about = {
            "name": description.name,
            "job type": description.job_type,
            "group": options.group or "",
            "tags": ", ".join(description.tags),
            "notes": description.notes,
        }
        self._text("run", _markdown(["", "run"], list(about.items())))

    def progress(self, examples: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._scalar(f"progress/{name}", value, examples)

    def table(self, name: str, table: pd.DataFrame) -> None:
        if table.empty:
            return
        shown = table.head(_TABLE_ROWS)
        text = _markdown([str(column) for column in table], shown.itertuples(index=False, name=None))
        if len(table) > len(shown):
            text += f"\n\nThe first {len(shown):,} of {len(table):,} rows; tables/{name}.parquet has all."
        self._text(f"tables/{name}", text)

    def figure(self, name: str, path: Path, caption: str) -> None:
        self._failures.attempt(lambda: self._writer._get_file_writer().add_summary(_image(name, path, caption), 0))

    def page(self, name: str, path: Path) -> None:
        self._text(name, f"`{path.resolve()}`")

    def findings(self, sentences: Mapping[str, Sequence[str]]) -> None:
        self._text("findings", as_markdown(sentences))

    def curves(self, curves: "Mapping[str, pd.Series[float]]") -> None:
        for name, values in curves.items():
            for layer, value in values.items():
                self._scalar(f"by_layer/{name}", float(value), int(str(layer)))

    def summary(self, metrics: Mapping[str, float], provenance: Mapping[str, object]) -> None:
        for name, value in metrics.items():
            self._scalar(name, value, 0)
        self._text("provenance", _markdown(["fact", "value"], list(flat(provenance).items())))
        self._failures.attempt(lambda: self._log_parameters(list(metrics)))

    def run_folder(self, files: Mapping[str, Path], results: bytes) -> None:
        """Do nothing: the event files are in it."""

    def _log_parameters(self, metrics: Sequence[str]) -> None:
        """Parameters and metrics as a row of TensorBoard's HPARAMS table.

        `SummaryWriter.add_hparams` would write them to a folder of their own, as if they belonged to another run.
        """
        from torch.utils.tensorboard.summary import hparams

        values = {key: value for key, value in parameters(self._description.config).items() if value is not None}
        plain = {key: value if isinstance(value, bool | int | float) else str(value) for key, value in values.items()}
        for summary in hparams(plain, dict.fromkeys(map(_name, metrics), 0.0)):
            self._writer._get_file_writer().add_summary(summary)

    def _scalar(self, name: str, value: float, step: int) -> None:
        # Simple values, in single precision: other readers of event files, `EventAccumulator.Scalars` among them, do not find
        # the tensors that would keep every digit.
        self._failures.attempt(lambda: self._writer.add_scalar(_name(name), value, step))

    def _text(self, name: str, markdown: str) -> None:
        self._failures.attempt(lambda: self._writer.add_text(_name(name), markdown, 0))


def _image(name: str, path: Path, caption: str) -> Any:
    """A PNG file as it is, with its caption; `SummaryWriter.add_image` would decode and encode it again."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.plugins.image.metadata import create_summary_metadata

    content = path.read_bytes()
    size = [str(number).encode() for number in struct.unpack(">II", content[16:24])]  # PNG's first chunk
    image = TensorProto(
        dtype="DT_STRING",
        string_val=[*size, content],
        tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=3)]),
    )
    metadata = create_summary_metadata(display_name=name, description=caption, converted_to_tensor=True)
    return Summary(value=[Summary.Value(tag=_name(f"figures/{name}"), tensor=image, metadata=metadata)])


def _markdown(columns: Sequence[str], rows: Any) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(value: object) -> str:
    text = number(value) if isinstance(value, float) else str(value)
    return " ".join(text.replace("|", "\\|").split())


def _name(name: str) -> str:
    """A name with underscores for the characters that TensorBoard allows in none."""
    return re.sub(r"[^-/\w.]", "_", name)
