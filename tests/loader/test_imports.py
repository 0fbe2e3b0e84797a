"""What the loader may load: torch, numpy and pyarrow, and nothing of the preparation side."""

from __future__ import annotations

import subprocess
import sys

FORBIDDEN = (
    "click",
    "numba",
    "pulp",
    "datasets",
    "transformers",
    "pydantic",
    "rich",
    "tokenizers",
    "pandas",
    "yaml",
)


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_the_loader_loads_nothing_of_the_preparation_side() -> None:
    done = run(
        "import sys, packer_cli.loader\n"
        f"print(sorted(set({FORBIDDEN!r}) & set(sys.modules)))\n"
        "print(sorted(n for n in sys.modules if n.startswith('packer_cli.') and n.count('.') == 1))"
    )
    assert done.stderr == ""
    modules = ["errors", "format", "lazy", "loader", "plugins", "remote", "version"]
    assert done.stdout.splitlines() == ["[]", str([f"packer_cli.{name}" for name in modules])]


def test_without_torch_the_message_says_what_to_install() -> None:
    blocker = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch':\n"
        "            raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"
        "sys.meta_path.insert(0, Block())\n"
        "import packer_cli\n"
    )
    assert run(blocker).returncode == 0
    done = run(blocker + "import packer_cli.loader")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ImportError: this needs torch: pip install 'hbpack[torch]'"
