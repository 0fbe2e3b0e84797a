"""A WSGI application on a free port of this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def serving(app: Any, handler: Any) -> Iterator[str]:
    """The URL of an application while the block runs.

    Args:
        handler: werkzeug's class for requests, or one derived from it.
    """
    from werkzeug.serving import make_server

    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
