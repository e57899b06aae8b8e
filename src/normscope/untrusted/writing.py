"""Files written into folders that anyone may have filled: through a new file beside the old one, and never through a link."""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from normscope.errors import InputError, one_line

UNFINISHED = ".unfinished-"
"""What the names of files begin with that are being written. A process that is killed leaves them."""

_NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def new_file(folder: Path, name: str) -> Iterator[BinaryIO]:
    """A file to write. It takes its place once it is complete, so that readers see all of it or none.

    A link in its place could lead what is written anywhere, to a shell's start-up file for example, and a pipe could wait for
    ever: both are refused. The file has the permissions that the user's umask leaves.

    Args:
        folder: A folder that the user has named, which may be a link.
        name: The file's name in it, with slashes between its parts. All but the last are folders that exist.

    Raises:
        InputError: If something other than a file is in its place, or something other than a folder above it.
        OSError: If it cannot be written.
    """
    *above, last = name.split("/")
    with _opened_folder(folder, above) as place:
        _refuse_all_but_files(folder / name, last, place)
        unfinished = f"{UNFINISHED}{secrets.token_hex(8)}"
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o666, dir_fd=place)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(unfinished, last, src_dir_fd=place, dst_dir_fd=place)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(unfinished, dir_fd=place)
            raise


def write_file(folder: Path, name: str, content: bytes) -> Path:
    """Write a file as `new_file` does; return its path.

    Raises:
        InputError: If something other than a file is in its place, or something other than a folder above it.
        OSError: If it cannot be written.
    """
    with new_file(folder, name) as stream:
        stream.write(content)
    return folder / name


def write_named(path: str | Path, content: bytes) -> None:
    """Write a file whose name the user has typed. If it is a link, the file that it leads to is written.

    Raises:
        InputError: If it cannot be written.
    """
    try:
        file = Path(os.path.realpath(path))
        write_file(file.parent, file.name, content)
    except (OSError, ValueError) as error:  # ValueError: an invalid name
        raise InputError(f"{path}: cannot be written: {one_line(error)}") from error


def append_line(folder: Path, name: str, line: str) -> None:
    """Append a line to a file in one write, so that several processes may do so at once.

    Raises:
        InputError: If something other than a file is in its place.
        OSError: If it cannot be written.
    """
    with _opened_folder(folder, ()) as place:
        _refuse_all_but_files(folder / name, name, place)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | _NO_LINK
        with os.fdopen(os.open(name, flags, 0o666, dir_fd=place), "ab", buffering=0) as stream:
            stream.write(f"{line}\n".encode(errors="replace"))


def refuse_links(folder: Path, names: Iterable[str], *, within: bool = True) -> None:
    """Check that what a folder holds under some names are files, and folders of files: no links, devices or pipes.

    Libraries write into some of these folders by themselves, and files in them may be sent elsewhere.

    Args:
        folder: The folder.
        names: What it may hold; there need not be anything.
        within: Whether folders in a folder of such a name are looked into.

    Raises:
        InputError: If there is one; the message names it.
        OSError: If a folder cannot be read.
    """
    named = {folder / name for name in names if os.path.lexists(folder / name)}
    paths = [*named]
    while paths:
        path = paths.pop()
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            paths += path.iterdir() if within or path in named else ()
        elif not stat.S_ISREG(mode):
            raise _refused(path, mode, "a file or a folder")


@contextlib.contextmanager
def _opened_folder(folder: Path, parts: Iterable[str]) -> Iterator[int]:
    """The descriptor of a folder in a folder, reached through no link."""
    descriptor, path = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), folder
    try:
        for part in parts:
            path /= part
            try:
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | _NO_LINK, dir_fd=descriptor)
            except OSError as error:
                if error.errno in (errno.ENOTDIR, errno.ELOOP):
                    raise _refused(path, path.lstat().st_mode, "a folder") from error
                raise
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _refuse_all_but_files(path: Path, name: str, place: int) -> None:
    try:
        mode = os.stat(name, dir_fd=place, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise _refused(path, mode, "a file, or nothing")


def _refused(path: Path, mode: int, expected: str) -> InputError:
    kinds = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder", stat.S_IFREG: "a file"}
    advice = "" if stat.S_ISDIR(mode) else "; remove it"
    return InputError(f"{path}: expected {expected}, got {kinds.get(stat.S_IFMT(mode), 'a device or pipe')}{advice}")
