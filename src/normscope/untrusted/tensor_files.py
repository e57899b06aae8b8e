"""Plain data and tensors in one safetensors file, with a checksum: reading executes nothing from it.

The checksum detects damage, not forgery.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from normscope.untrusted.plain_data import opened, parsed_json

DAMAGE = (OSError, KeyError, ValueError, TypeError, RuntimeError, MemoryError, safetensors.SafetensorError)
"""Errors of reading a file that `packed` did not write, or that has changed since, besides InputError."""


def packed(content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """Plain data and tensors on the CPU, as the content of a file."""
    header = json.dumps(content)
    return safetensors.torch.save(dict(tensors), metadata={"normscope": header, "sha256": checksum(header, tensors)})


def unpacked(path: Path, *, finite: bool) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The plain data and the tensors that `packed` was given.

    Args:
        path: The file.
        finite: Whether every number of the plain data must be finite.

    Raises:
        DAMAGE: If the file cannot be read, was not written by `packed`, or the checksum does not match.
        InputError: If it is not a regular file, or its header is not plain data.
    """
    with opened(path):  # refuses a pipe, which would never end
        size, memory = path.stat().st_size, psutil.virtual_memory().available
    if size > memory:
        raise ValueError(f"it has {size:,} bytes, but only {memory:,} bytes of memory are free")
    with safetensors.safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    if "normscope" not in metadata:
        raise ValueError("it was not written by normscope")
    if checksum(metadata["normscope"], tensors) != metadata.get("sha256"):
        raise ValueError("the checksum does not match, so the file is damaged")
    return parsed_json(metadata["normscope"], finite=finite), tensors


def checksum(header: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over a header and the names, types, shapes and bytes of tensors, as hexadecimal digits."""
    digest = hashlib.sha256(header.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        if tensor.numel():  # without values, an array of NumPy has strides of 0, and no view of its bytes
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
