"""Imports that every tokenizing worker needs; the worker server does them once."""

import gigatoken  # noqa: F401
import jinja2  # noqa: F401
import orjson  # noqa: F401
import tokenizers  # noqa: F401
import transformers.tokenization_utils_tokenizers
import transformers.utils.chat_template_utils  # noqa: F401

import packer_cli.corpus.read
import packer_cli.tokens.encoder
import packer_cli.tokens.masks
import packer_cli.tokens.store
import packer_cli.tokens.tokenizer  # noqa: F401
