"""`import hbpack`: the package under the name that users install."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hbpack
import packer_cli


def test_it_is_the_same_api():
    assert hbpack.__all__ == packer_cli.__all__
    assert dir(hbpack) == dir(packer_cli)
    for name in packer_cli.__all__:
        assert getattr(hbpack, name) is getattr(packer_cli, name)
    with pytest.raises(AttributeError, match="module 'hbpack' has no attribute 'packs'"):
        hbpack.packs  # noqa: B018


def test_importing_it_costs_nothing():
    code = "import sys, hbpack; print(*{'torch', 'numba', 'numpy', 'pyarrow', 'pydantic'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"
