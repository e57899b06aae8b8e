"""Whether the Hub can be reached, found out quickly: without a network each file would cost half a minute to fail."""

import os
import socket
from urllib.parse import urlsplit

from huggingface_hub import constants

_CONNECT_SECONDS = 1.5


def hub_reachable() -> bool:
    """Whether a download is worth trying."""
    if constants.HF_HUB_OFFLINE:
        return False
    if any(os.environ.get(variable) for variable in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    endpoint = urlsplit(constants.ENDPOINT)
    port = endpoint.port or (443 if endpoint.scheme == "https" else 80)
    try:
        socket.create_connection((endpoint.hostname or "", port), timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
