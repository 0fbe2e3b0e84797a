"""What means the same in jinja2 and minijinja, and what must run in Python."""

from __future__ import annotations

MOST_REPEATED = 1000
"""Most chars of an expression to write more than once; without a limit, nested ones would grow exponentially."""

FUNCTIONS = frozenset(("namespace", "raise_exception", "strftime_now"))
"""Without `range`: minijinja cannot be interrupted, so its loops must be no longer than the data."""
OTHER_GLOBALS = frozenset(
    ("self", "super", "caller", "varargs", "kwargs", "lipsum", "cycler", "joiner", "dict", "debug")
)
"""Names that are built into one of the engines."""
LOOP_ATTRIBUTES = frozenset(
    ("index", "index0", "first", "last", "length", "revindex", "revindex0", "previtem", "nextitem")
)
DICT_ATTRIBUTES = frozenset(dir(dict))
PYTHON_ATTRIBUTES = DICT_ATTRIBUTES | frozenset(dir(list)) | frozenset(dir(str))
"""Names that may stand for a method."""

METHODS = {
    "strip": 1, "lstrip": 1, "rstrip": 1, "startswith": 1, "endswith": 1, "replace": 2, "split": 2,
    "items": 0, "keys": 0, "values": 0, "get": 2,
}  # fmt: skip
"""Methods that are the same in both engines if their arguments are strings, and the most arguments of each."""
PYTHON_METHODS = frozenset((
    "upper", "lower", "title", "capitalize", "removeprefix", "removesuffix", "rsplit", "partition", "rpartition",
    "count", "find", "rfind",
))  # fmt: skip
"""Methods of strings to call in Python, because Unicode tables and corner cases differ."""
LISTING_METHODS = frozenset(("split", "rsplit", "partition", "rpartition", "items", "keys", "values"))
"""Methods that return lists."""

FILTERS = {"trim": 1, "length": 0, "count": 0, "list": 0, "first": 0, "last": 0, "replace": 2, "items": 0, "join": 1}
"""Filters, and the most arguments of each."""
PYTHON_FILTERS = frozenset(("upper", "lower", "title", "capitalize", "indent"))
LAZY_FILTERS = frozenset(("map", "select", "reject", "selectattr", "rejectattr", "reverse"))
"""Generators in jinja2 and lists in minijinja: alike only if they are consumed at once."""
LAZY_TESTS = frozenset(("defined", "undefined", "equalto", "eq", "==", "ne", "!=", "in", "none", "string"))
LISTING_FILTERS = LAZY_FILTERS | {"list", "items"}
"""Filters that return lists."""

TESTS = {
    "string": 0, "defined": 0, "undefined": 0, "none": 0, "mapping": 0, "number": 0, "integer": 0, "float": 0,
    "boolean": 0, "true": 0, "false": 0, "eq": 1, "equalto": 1, "==": 1, "ne": 1, "!=": 1,
}  # fmt: skip
"""Tests, and the number of arguments of each."""
OTHER_TESTS = {
    "iterable": "({0} is string or {0} is undefined or {0} is iterable and {0} is not none)",
    "sequence": "({0} is string or {0} is mapping or {0} is undefined or {0} is sequence)",
    "odd": "({0} % 2 == 1)",
    "even": "({0} % 2 == 0)",
}
"""Tests that differ between the engines, and their meaning in jinja2."""

OPERATORS = {"Add": "+", "Sub": "-", "FloorDiv": "//", "Mod": "%", "And": "and", "Or": "or"}
"""Without those that return floats: minijinja passes whole floats to Python as integers."""
EQUALITY = {"eq": "==", "ne": "!="}
ORDER = {"gt": ">", "gteq": ">=", "lt": "<", "lteq": "<="}


class NotTranslatableError(Exception):
    """The template uses something that minijinja lacks or treats differently; the message says what."""
