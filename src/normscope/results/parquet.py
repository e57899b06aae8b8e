"""Tables as Parquet."""

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import pandas as pd


def write_parquet(stream: BinaryIO, table: pd.DataFrame, about: Mapping[str, str]) -> None:
    """Write a table as Parquet, with keys and values in the metadata of the file."""
    import pyarrow as pa
    from pyarrow import parquet

    rows = pa.Table.from_pandas(table, preserve_index=False)
    # Exponents of measured numbers are alike, their last digits are not: apart, they take a third less than in snappy.
    measured = [field.name for field in rows.schema if pa.types.is_floating(field.type)]
    others = [name for name in rows.column_names if name not in measured]
    encoding = dict.fromkeys(measured, "BYTE_STREAM_SPLIT")
    with parquet.ParquetWriter(
        stream, rows.schema, compression="zstd", use_dictionary=others, column_encoding=encoding
    ) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata(dict(about))  # in the schema, Arrow would repeat it in base64


def parquet_metadata(path: Path) -> dict[str, str]:
    """The keys and values in the metadata of a file that has been read as a table already.

    Raises:
        ValueError: If one is no text.
    """
    from pyarrow import parquet

    found = parquet.read_metadata(path).metadata or {}
    return {key.decode(): value.decode() for key, value in found.items()}
