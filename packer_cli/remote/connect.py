"""Whether a server can be reached: the Hugging Face Hub's clients would retry for half a minute, or for several."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit


def can_connect(endpoint: str, *, timeout: float) -> bool:
    """Whether a TCP connection to the endpoint, or to its proxy, opens within the timeout (s)."""
    from urllib.request import getproxies, proxy_bypass

    target = urlsplit(endpoint)
    proxies = getproxies()
    proxy = proxies.get(target.scheme) or proxies.get("all")
    if proxy and not proxy_bypass(target.hostname or ""):
        target = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    try:
        host, port = target.hostname or "", target.port or (80 if target.scheme == "http" else 443)
    except ValueError:
        return False
    has_answered = threading.Event()

    def connect() -> None:
        with suppress(OSError), socket.create_connection((host, port), timeout=timeout):
            has_answered.set()

    # A name look-up ignores the timeout, so run it in a thread that may be left behind; it may take as long again.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(2 * timeout)
    return has_answered.is_set()
