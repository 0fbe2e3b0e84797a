"""A URL where only a local path will do is refused: as a path it would be a folder named `s3:`."""

from __future__ import annotations

import pytest

URL = "s3://bucket/out"
WRITES = "this must be a local file or folder; name a local path"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["profile", "--model", "m", "--output", URL], WRITES),
        (["profile", "--model", URL, "--output", "p.json"], "hbpack reads local files; download it first"),
    ],
)
def test_a_url_is_refused_and_nothing_written(hbpack, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert hbpack(*arguments) == (2, "", f"error: {URL}: {message}\n")
    assert list(tmp_path.iterdir()) == []
