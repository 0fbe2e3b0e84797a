"""The message with which opening a set fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from packer_cli.loader import PackedDataset

REMEDY = "run hbpack write, which writes it again"


def message(kind: type[Exception], path: Path, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(kind) as error:
        PackedDataset(path, *(args or (0, 2)), **kwargs)
    assert error.type is kind
    return str(error.value)
