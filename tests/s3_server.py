"""A real S3 server in this process, which fails as often as a test wants."""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


@dataclass
class S3Server:
    """Where it listens, and how it fails."""

    url: str = ""
    slow_down: float = 0.0
    """Share of requests that are answered 503 SlowDown, before anything is done."""
    cut: float = 0.0
    """Share of requests that are carried out, and whose answer is cut off: before it begins, or in its middle."""
    requests: list[str] = field(default_factory=list)
    """METHOD and path of each."""
    sent: Counter[str] = field(default_factory=Counter)
    """Bytes of the objects that were read, by path."""
    faults: int = 0
    random: random.Random = field(default_factory=lambda: random.Random(1))

    @property
    def environment(self) -> dict[str, str]:
        """What makes a process use it."""
        return {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_ENDPOINT_URL": self.url,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",  # So that hbpack itself retries, and soon.
        }

    @contextmanager
    def failing(self, *, slow_down: float = 0.0, cut: float = 0.0) -> Iterator[None]:
        """Fail while the block runs."""
        self.random.seed(1)
        self.slow_down, self.cut = slow_down, cut
        try:
            yield
        finally:
            self.slow_down = self.cut = 0.0


class _CutError(ConnectionError):
    """Ends a connection: the server takes it for one that its client has closed."""


def _with_faults(app: Any, server: S3Server) -> Callable[..., Iterable[bytes]]:
    lock = threading.Lock()

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with lock:
            draw, half = server.random.random(), server.random.random() < 0.5
            server.requests.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}")
            is_slow = draw < server.slow_down
            is_cut = not is_slow and draw < server.slow_down + server.cut
            server.faults += is_slow or is_cut
        if is_slow:
            size = int(environ.get("CONTENT_LENGTH") or 0)
            environ["wsgi.input"].read(size)
            start_response("503 Slow Down", [("Content-Type", "application/xml"), ("Connection", "close")])
            return [SLOW_DOWN]
        if not is_cut:
            body = app(environ, start_response)
            if environ["REQUEST_METHOD"] == "GET":
                body = [*body]
                with lock:
                    server.sent[environ["PATH_INFO"]] += sum(map(len, body))
            return body
        body = b"".join(app(environ, start_response if half else lambda *_: None))
        if half:
            return _cut_off(body)
        raise _CutError

    return answer


def _cut_off(body: bytes) -> Iterator[bytes]:
    yield body[: len(body) // 2]
    raise _CutError


def forget_buckets() -> None:
    """Empty all servers of this process, which share their buckets."""
    from moto.s3.models import s3_backends

    for account in s3_backends.values():
        account.reset()


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """A server on a free port of this machine."""
    from moto.server import create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Handler(WSGIRequestHandler):
        def connection_dropped(self, error: BaseException, environ: Any = None) -> None:
            self.close_connection = True  # Otherwise it waits for the next request.

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = S3Server()
    app = _with_faults(create_backend_app("s3"), server)
    listening = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Handler)
    server.url = f"http://127.0.0.1:{listening.server_port}"
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listening.shutdown()
        thread.join()
