"""Who may ask a live page's server: whoever has its token, from a page of its own.

Other users of a machine reach its ports too, so every server has a token. The address that is printed holds it; opening that
address once sets a cookie, and from then on the browser opens links without it.
"""

import dataclasses
import hmac
import ipaddress
import re
import secrets
import socket
from typing import TYPE_CHECKING

from normscope.errors import printable
from normscope.live.options import LOCAL

if TYPE_CHECKING:  # it may not be installed
    from starlette.requests import Request

TOKEN_HEADER = "x-normscope-token"

_HOST = re.compile(r"(\[[0-9a-f:]+\]|[a-z0-9.-]+)(?::([0-9]{1,5}))?")


class Refusal(Exception):
    """A request that is not answered, with its status."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status


@dataclasses.dataclass(frozen=True)
class Access:
    """What a request must show."""

    token: str = dataclasses.field(default_factory=lambda: secrets.token_urlsafe(16))
    hosts: frozenset[str] | None = frozenset(LOCAL)
    """Names under which the server is asked; None for any."""
    framed: bool = False
    """Whether other pages, such as a notebook, may show this one in a frame. Browsers keep no cookies there, so the page itself
    then shows the token of its address."""

    @classmethod
    def of(cls, listening: socket.socket, host: str) -> "Access":
        """The access to a server that listens, as `host` asks; only this machine reaches a loopback address."""
        local = ipaddress.ip_address(listening.getsockname()[0].partition("%")[0]).is_loopback
        return cls(hosts=frozenset((*LOCAL, host.lower())) if local else None)

    def check_page(self, request: "Request") -> None:
        """Check that a request comes from a page of this server, or from none.

        Another site's page may send requests here, or point a name of its own to this machine: browsers then tell by `Origin`
        and `Host`.

        Raises:
            Refusal: If it does not.
        """
        host = request.headers.get("host", "")
        name = _HOST.fullmatch(host.lower())
        if name is None or (self.hosts is not None and name[1].strip("[]") not in self.hosts):
            expected = "the name of a host" if self.hosts is None else " or ".join(sorted(self.hosts))
            raise Refusal(421, f"Host {printable(repr(host), 80)}: expected {expected}")
        origin = request.headers.get("origin")
        if origin is not None and origin != f"{request.scope['scheme']}://{host}":
            raise Refusal(403, f"Origin {printable(repr(origin), 80)}: expected a page of this server")

    def check_token(self, request: "Request") -> None:
        """Check that a request shows the token, in a header or a cookie.

        Raises:
            Refusal: If it does not.
        """
        shown = (request.headers.get(TOKEN_HEADER), request.cookies.get(cookie(request)))
        if not any(map(self._is_token, shown)):
            raise Refusal(403, "expected the token: open the address that normscope printed")

    def has_login(self, request: "Request") -> bool:
        """Whether the address of a request holds the token."""
        return self._is_token(request.query_params.get("token"))

    def _is_token(self, shown: str | None) -> bool:
        return hmac.compare_digest((shown or "").encode("utf-8", "surrogatepass"), self.token.encode())


def cookie(request: "Request") -> str:
    """The name of the cookie that holds the token: browsers send those of one port to all ports of a host."""
    name = _HOST.fullmatch(request.headers.get("host", "").lower())
    return f"normscope-{name[2] or 80}" if name else ""
