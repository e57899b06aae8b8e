"""A quick check whether the Hub can be reached: without a network, each download would take half a minute to fail."""

import os
import socket
from urllib.parse import urlsplit

from huggingface_hub import constants

_CONNECT_SECONDS = 1.5


def hub_reachable() -> bool:
    """Whether downloads are likely to work."""
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
