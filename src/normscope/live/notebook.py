"""The live page of a model in memory, served by a thread and shown in a notebook."""

import asyncio
import atexit
import functools
import html
import os
import sys
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

from normscope.api.decomposition import decompose
from normscope.api.types import Model
from normscope.config.calls import checked
from normscope.errors import InputError
from normscope.live import require_extra
from normscope.live.session import Session
from normscope.live.texts import Limit, as_given, opening, typed
from normscope.models.load.loaded import LoadedModel
from normscope.results.pictures import Explorer

_HOST = "127.0.0.1"
_HEIGHT = 900
"""Pixels of the frame; the reader can make it taller."""


@checked
def explore(model: Model, text: Any = None, *, port: int = 0, tokens: int = 64) -> "LivePage":
    """Open the live page of a model: type a text, change a word, and see what changes. Notebooks show it in a frame.

    A background thread serves the page until you close it or Python exits: only to this machine, and only to those who have the
    token in its address. One call at a time uses the model: while the page computes, your own call is refused, and
    while yours runs, the page says that the model is in use.

    If the browser runs on another machine (JupyterHub, Colab), the notebook shows the maps of the text instead, which need no
    server.

    Args:
        model: See `load` and `wrap`.
        text: What the page shows first: a text, a pair (tuple) of texts, or a conversation (messages with `role` and
            `content`). By default, an example that suits the model: for an encoder, two texts that are similar.
        port: The port to listen on; 0 takes any free one.
        tokens: The maximum length of a text, in tokens; longer texts are cut.

    Examples:
        >>> import normscope
        >>> page = normscope.explore(normscope.load(), "The film was not good.")  # a notebook shows it
        >>> page.url.startswith("http://127.0.0.1:")  # the same in a browser
        True
        >>> page.close()  # or use the page in a `with` statement

    Raises:
        InputError: If the extra `live` is not installed, the port is in use, or an argument is invalid.
    """
    require_extra("explore")
    if not 0 <= port <= 65535:
        raise InputError(f"port={port}: expected a port from 0 to 65535")
    if tokens < 2:
        raise InputError(f"tokens={tokens}: expected at least 2")
    model.require_current()
    return LivePage(model, text, port, Limit(tokens, "tokens"))


class LivePage:
    """A page that is served until it is closed; see `explore`."""

    def __init__(self, model: LoadedModel, text: Any, port: int, limit: Limit) -> None:
        shown = opening(model) if text is None else _shown(text)
        from normscope.live.server import Access, Server, address, bound  # which need what may not be installed

        self._listening = listening = bound(_HOST, port, key="port")
        access = Access(framed=True)
        self._session: Session | None = Session([model], limit)
        self._name, self._text = model.name, as_given(model, shown["text"]) if text is None else text
        self._server = Server(self._session, access)
        self._address = address(listening, _HOST, access.token)
        self._fragment = urlencode(shown)
        self._process = os.getpid()
        serve = functools.partial(self._server.serve, sockets=[listening])
        # Not one of those that Python waits for when it ends.
        self._thread = threading.Thread(target=lambda: asyncio.run(serve()), name="normscope-page", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @property
    def url(self) -> str:
        """The address of the page, with its token. Only this machine can reach it."""
        return f"{self._address}#{self._fragment}"

    def close(self) -> None:
        """Stop serving the page, and release the model; nothing in a child that was forked, which has no thread that serves."""
        if os.getpid() != self._process:
            return
        session, self._session = self._session, None
        if session is None:
            return
        self._server.stop()
        self._thread.join(5)
        self._listening.close()  # a server that is stopped while it starts leaves it open
        session.engine.close(5)
        del self._server
        atexit.unregister(self.close)

    def __enter__(self) -> "LivePage":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LivePage({self._name}, {self.url if self._session else 'closed'})"

    def _repr_html_(self) -> str:
        if self._session is None:
            return f"<p>{html.escape(repr(self))}</p>"
        address = html.escape(self.url)
        if _is_elsewhere():
            return f"{self._static()._repr_html_()}<p>Live page, once you forward its port: <code>{address}</code></p>"
        style = f"width: 100%; height: {_HEIGHT}px; border: 0; resize: vertical; overflow: auto"
        return (
            f'<iframe src="{address}" title="normscope live" style="{style}"></iframe>'
            f'<p><a href="{address}" target="_blank" rel="noopener">Open in a tab</a></p>'
        )

    def _static(self) -> Explorer:
        assert self._session is not None
        (model,) = self._session.models
        return decompose(model, self._text).explorer()


def _shown(text: Any) -> Mapping[str, str]:
    """The values of the address that show a text."""
    written, chat = typed(text)
    return {"text": written} | ({"chat": "1"} if chat else {})


def _is_elsewhere() -> bool:
    """Whether a notebook's reader is not on this machine."""
    return "JUPYTERHUB_SERVICE_PREFIX" in os.environ or "google.colab" in sys.modules
