"""`normscope serve`: loads the models, prints the address of the page, and serves it until it is interrupted."""

import asyncio
import atexit
import contextlib
import dataclasses
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

from normscope.errors import InputError
from normscope.live import require_extra
from normscope.live.session import Session
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.loading import load
from normscope.models.options import ModelOptions
from normscope.running.options import RunOptions

if TYPE_CHECKING:  # it needs what may not be installed
    from normscope.live.server import Server

_GRACE = 0.3
"""Seconds that a running computation gets when the server stops."""


def serve(options: RunOptions) -> None:
    """Serve the live page until the process is interrupted.

    Args:
        options: The models, the device, `attention`, `live` and `report.tokens`; everything else is ignored.

    Raises:
        InputError: If the extra `live` is not installed, the port is in use, or a model cannot be observed.
    """
    require_extra("serve")
    from normscope.live.server import Access, Server, address, bound

    listening = bound(options.live.host, options.live.port)
    access = Access.of(listening, options.live.host)
    with contextlib.closing(listening):
        session = _session(options)
        where = address(listening, options.live.host, access.token)
        asyncio.run(_until_stopped(Server(session, access), listening, where))
        session.engine.close(_GRACE)
    _leave()


def _leave() -> None:
    """End the process at once: the interpreter takes seconds to take torch apart, and a computation may still be running."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


async def _until_stopped(server: "Server", listening: socket.socket, where: str) -> None:
    """Print the address, and serve until a signal asks to stop."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.stop)
    print(f"normscope live: {where}   (Ctrl-C stops)", flush=True)
    await server.serve(sockets=[listening])


def _session(options: RunOptions) -> Session:
    others = [
        dataclasses.replace(options.model, name=name, revision=None, sha256=None, tokenizer=None)
        for name in options.live.models
    ]
    models = [load(options.model, options.device), *(_loaded_beside(each, options) for each in others)]
    if len(models) > 1 and any(model.reader is not None for model in models):
        raise InputError("live.models: expected none with a model of images, which has a page of its own; leave it out")
    for model in models:
        _ = model.verification  # made here, so that a model that cannot be observed exactly is refused
        with contextlib.suppress(InputError):  # the page says so where a prediction is attributed
            _ = model.layers_verification
    return Session(models, options.report.tokens, keeps=True, attention=options.attention)


def _loaded_beside(model: ModelOptions, options: RunOptions) -> LoadedModel:
    """One of `live.models`, which errors name."""
    try:
        return load(model, options.device)
    except InputError as error:
        raise InputError(str(error).replace("model.name", "live.models")) from error.__cause__
