"""Files of tensors with a header and a checksum: checkpoints, and what processes send each other.

The format is safetensors: reading executes nothing from a file. The checksum detects damage, not forgery.
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

from normscope.untrusted.plain_data import parsed_json


def packed(content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """A header and tensors, as the content of a safetensors file with a checksum."""
    text = json.dumps(content)
    return safetensors.torch.save(dict(tensors), metadata={"normscope": text, "sha256": checksum(text, tensors)})


DAMAGE = (OSError, KeyError, ValueError, TypeError, RuntimeError, MemoryError, safetensors.SafetensorError)
"""The errors of reading a file that `packed` did not write, or that has changed since."""


def unpacked(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and tensors that `packed` was given.

    Raises:
        DAMAGE: If the file cannot be read or the checksum does not match.
    """
    with _opened(path) as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    if checksum(metadata["normscope"], tensors) != metadata["sha256"]:
        raise ValueError("the checksum does not match, so the file is damaged")
    return _content(metadata), tensors


def received(content: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and tensors from bytes that another process of the same run has packed."""
    length = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + length])["__metadata__"]
    return _content(metadata), safetensors.torch.load(content)


def header(path: Path) -> dict[str, Any]:
    """The header that `packed` was given; the tensors are not read.

    Raises:
        DAMAGE: If the file cannot be read.
    """
    with _opened(path) as file:
        return _content(file.metadata())


def _opened(path: Path) -> Any:
    """Open a file of tensors. Not a pipe, which could block for ever, nor a file larger than the free memory."""
    if not path.is_file():
        raise ValueError("it is not a file")
    size, memory = path.stat().st_size, psutil.virtual_memory().available
    if size > memory:
        raise ValueError(f"it has {size:,} bytes, and {memory:,} bytes of memory are free")
    return safetensors.safe_open(path, framework="pt")


def _content(metadata: Mapping[str, str]) -> dict[str, Any]:
    return parsed_json(metadata["normscope"], finite=False)


def checksum(header: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over a header and the names, types, shapes and bytes of tensors, as hexadecimal digits."""
    digest = hashlib.sha256(header.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        if tensor.numel():  # without values, an array of NumPy has strides of 0, and no view of its bytes
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
