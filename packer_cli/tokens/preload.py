"""Everything that workers need, loaded once, by the server that forks them: imports, and the run's tokenizer."""

# ruff: noqa: E402 - settings for the imports come first
import gc
import os

from packer_cli.startup import few_collections, postpone_package

few_collections()
postpone_package()
os.environ.setdefault("USE_TORCH", "0")  # For some tokenizers, transformers would import it.

import gigatoken  # noqa: F401
import jinja2  # noqa: F401
import orjson  # noqa: F401
import tokenizers  # noqa: F401
import transformers.tokenization_utils_tokenizers
import transformers.utils.chat_template_utils  # noqa: F401

import packer_cli.corpus.readers.columns
import packer_cli.corpus.records.token_rows
import packer_cli.tokens.encode.encoder
import packer_cli.tokens.templates.assistant_ranges
import packer_cli.tokens.tokenizer.loading  # noqa: F401
from packer_cli.tokens.ahead import named_tokenizer
from packer_cli.tokens.part import load_ahead

_named = named_tokenizer()
if _named is not None:
    load_ahead(_named)

gc.freeze()  # These objects stay. Looking at them would give each worker a copy of their pages.
