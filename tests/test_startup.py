"""What makes commands start sooner: transformers without the work of its package, in processes of their own."""

from __future__ import annotations

import subprocess
import sys

LEAN = (
    "import sys\n"
    "from packer_cli.startup import postpone_package\n"
    "postpone_package()\n"
    "import transformers.utils.chat_template_utils\n"
    "from transformers.tokenization_utils_tokenizers import TokenizersBackend\n"
)


def run(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_submodules_load_without_the_package() -> None:
    """Its own code, which reads the models' files, has not run: it would have put another module in its place."""
    code = LEAN + "print(type(sys.modules['transformers']).__name__, 'transformers.models' in sys.modules)\n"
    assert run(code) == ["_Package False"]


def test_names_of_the_package_are_those_of_the_package() -> None:
    code = LEAN + (
        "import importlib.metadata, transformers\n"
        "print(transformers.__version__ == importlib.metadata.version('transformers'))\n"
        "from transformers import LlamaTokenizer, TokenizersBackend as again\n"
        "from transformers.models.llama.tokenization_llama import LlamaTokenizer as same\n"
        "print(LlamaTokenizer is same, again is TokenizersBackend, transformers.LlamaTokenizer is same)\n"
        "import transformers as now\n"
        "print(type(now).__name__, hasattr(transformers, 'no_such_name'))\n"
    )
    assert run(code) == ["True", "True True True", "_LazyModule False"]


def test_a_package_that_is_loaded_stays() -> None:
    code = (
        "import transformers\n"
        "from packer_cli.startup import postpone_package\n"
        "postpone_package()\n"
        "import sys\n"
        "print(sys.modules['transformers'] is transformers)\n"
    )
    assert run(code) == ["True"]
