"""A real S3 server in this process, which fails as often as a test wants."""

from __future__ import annotations

import io
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.servers import serving

SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


@dataclass
class S3Server:
    """Where it listens, and how it fails."""

    url: str = ""
    slow_down: float = 0.0
    """Share of requests that are answered 503 SlowDown, before anything is done."""
    cut: float = 0.0
    """Share of requests that are carried out, and whose answer is cut off: before it begins, or in its middle."""
    latency: float = 0.0
    """Seconds that pass before a request is looked at."""
    late: float = 0.0
    """Share of requests that wait for another half second."""
    requests: list[str] = field(default_factory=list)
    """METHOD and path of each."""
    at_once: int = 0
    """Most requests that have waited at the same time."""
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


def _handler(server: S3Server) -> Any:
    """Answers with what the application says, or with a fault. Connections stay open, as those of S3 do."""
    from werkzeug.serving import WSGIRequestHandler
    from werkzeug.test import run_wsgi_app

    lock = threading.Lock()
    waiting = 0

    class Handler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def run_wsgi(self) -> None:
            environ = self.make_environ()
            size = -1 if "wsgi.input_terminated" in environ else int(self.headers.get("Content-Length", 0))
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(size))  # The next request comes after it.
            nonlocal waiting
            with lock:
                waiting += 1
                server.at_once = max(server.at_once, waiting)
            is_late = server.late > 0 and server.random.random() < server.late
            time.sleep(server.latency + 0.5 * is_late)
            with lock:
                waiting -= 1
                draw, half = server.random.random(), server.random.random() < 0.5
                server.requests.append(f"{self.command} {environ['PATH_INFO']}")
                is_slow = draw < server.slow_down
                is_cut = not is_slow and draw < server.slow_down + server.cut
                server.faults += is_slow or is_cut
            self.close_connection |= is_slow or is_cut
            if is_slow:
                self.answer(503, {"Content-Type": "application/xml", "Connection": "close"}, SLOW_DOWN)
                return
            blocks, status, headers = run_wsgi_app(self.server.app, environ)
            body = b"".join(blocks)
            stop = len(body) if not is_cut else len(body) // 2 if half else 0
            with lock:
                server.sent[environ["PATH_INFO"]] += stop if self.command == "GET" else 0
            if half or not is_cut:
                self.answer(int(status[:3]), headers, body, stop=stop)

        def answer(self, code: int, headers: Any, body: bytes, stop: int | None = None) -> None:
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name, value)
            if "Content-Length" not in headers and code != 204:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:stop])

        def log_request(self, *_: object) -> None:
            """Nobody reads it."""

    return Handler


def forget_buckets() -> None:
    """Empty all servers of this process, which share their buckets."""
    from moto.s3.models import s3_backends

    for account in s3_backends.values():
        account.reset()


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """A server on a free port of this machine."""
    from moto.server import create_backend_app

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = S3Server()
    with serving(create_backend_app("s3"), _handler(server)) as server.url:
        yield server
