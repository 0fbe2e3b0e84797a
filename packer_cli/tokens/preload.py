"""What every worker needs, imported once by the server that workers are forked from."""

# ruff: noqa: E402 - how to import comes before what
import gc
import os

from packer_cli.tokens.tokenizer.lean_transformers import postpone_package

gc.disable()  # Until all is imported: hardly anything of it is garbage.
postpone_package()
os.environ.setdefault("USE_TORCH", "0")  # Some tokenizers would have transformers import it.

import gigatoken  # noqa: F401
import jinja2  # noqa: F401
import orjson  # noqa: F401
import tokenizers  # noqa: F401
import transformers.tokenization_utils_tokenizers
import transformers.utils.chat_template_utils  # noqa: F401

import packer_cli.corpus.read
import packer_cli.tokens.encode.encoder
import packer_cli.tokens.encode.masks
import packer_cli.tokens.tokenizer.loading
import packer_cli.tokens.writer  # noqa: F401

# What is here stays: the collector need not look at it again, nor as often at the many objects of records.
gc.freeze()
gc.enable()
gc.set_threshold(50_000)
