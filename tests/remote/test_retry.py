"""How long requests are repeated: a wrong address is told soon, a storage that has answered gets all tries."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from packer_cli.errors import RemoteError
from packer_cli.remote.path import RemotePath
from packer_cli.remote.retries import TRIES, retry
from tests.s3_server import S3Server


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The retries' own clock, which only sleeping moves; how long each sleep was."""
    sleeps: list[float] = []
    clock = SimpleNamespace(sleep=sleeps.append, monotonic=lambda: sum(sleeps))
    monkeypatch.setattr("packer_cli.remote.retries.FIRST_DELAY", 0.5)
    monkeypatch.setattr("packer_cli.remote.retries.time", clock)
    return sleeps


class Requests:
    """Counts requests, which all fail in the same way."""

    def __init__(self, reason: Exception) -> None:
        self.reason = reason
        self.number = 0

    def __call__(self) -> None:
        self.number += 1
        raise OSError("Cannot connect to host a:80") from self.reason


@pytest.mark.parametrize("reason", [ConnectionRefusedError(), socket.gaierror()])
def test_an_address_where_nobody_has_answered_is_given_up_soon(reason: Exception, slept: list[float]) -> None:
    request = Requests(reason)
    with pytest.raises(RemoteError) as error:
        retry("s3://a/b", request, has_answered=False)
    assert str(error.value) == (
        "'s3://a/b' could not be read: no server answers (Cannot connect to host a:80); check the address and the "
        "network"
    )
    assert 1 < request.number < TRIES
    assert sum(slept) < 8


@pytest.mark.parametrize(
    ("reason", "has_answered"), [(ConnectionRefusedError(), True), (socket.gaierror(), True), (TimeoutError(), False)]
)
def test_other_failures_get_all_tries(reason: Exception, has_answered: bool, slept: list[float]) -> None:
    request = Requests(reason)
    with pytest.raises(RemoteError, match=f"could not be read in {TRIES} tries"):
        retry("s3://a/b", request, has_answered=has_answered)
    assert request.number == TRIES
    assert sum(slept) > 15


def test_a_wrong_endpoint_is_named(s3: S3Server, slept: list[float]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        path = RemotePath("s3://bucket/x", {"endpoint_url": url})
        with pytest.raises(RemoteError) as error:
            path.exists()
    assert str(error.value) == (
        f"'s3://bucket/x' could not be read: no server answers (Could not connect to the endpoint URL: "
        f'"{url}/bucket/x"); check the address and the network'
    )


def test_a_server_that_has_answered_may_restart(s3: S3Server, bucket: RemotePath, slept: list[float]) -> None:
    (bucket / "x").write_bytes(b"x")
    before = len(s3.requests)
    with s3.failing(slow_down=1.0), pytest.raises(RemoteError, match=f"in {TRIES} tries"):
        (bucket / "x").read_bytes()
    assert len(s3.requests) > before + TRIES - 1


def test_what_may_not_be_read_is_not_asked_for_again(slept: list[float]) -> None:
    def request() -> None:
        raise PermissionError("Forbidden")

    with pytest.raises(RemoteError) as error:
        retry("s3://a/b", request, has_answered=True)
    assert str(error.value) == "'s3://a/b' may not be read (Forbidden); check the credentials"
    assert slept == []
