"""Imports that every tokenizing worker needs; the worker server does them once."""

import gigatoken  # noqa: F401
import jinja2  # noqa: F401
import numpy  # noqa: F401
import orjson  # noqa: F401
import pyarrow  # noqa: F401
import tokenizers  # noqa: F401

import packer_cli.tokens.store  # noqa: F401
