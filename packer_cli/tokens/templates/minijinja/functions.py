"""Filters and globals in Python for templates in minijinja. If one raises, the conversation goes to jinja2."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any


def _tojson(
    value: Any,
    is_defined: bool,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """The same as transformers' filter."""
    if not is_defined:
        raise TypeError("undefined")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _text(value: Any, is_defined: bool) -> str:
    return str(value) if is_defined else ""


def _method(value: Any, name: str, *arguments: Any) -> Any:
    """Call a method of those listed in `rules`."""
    if type(value) is not (dict if name == "get" else str) or None in arguments:  # None may be undefined.
        raise TypeError("a method of another type, or undefined")
    return getattr(value, name)(*arguments)


def _item(value: Any, key: str) -> Any:
    """The value of a key that is also the name of a method."""
    if type(value) is not dict:
        raise TypeError("not a dict")
    return value[key]


def _slice(value: Any, start: Any, stop: Any, step: Any) -> Any:
    """minijinja also slices undefined and none, and panics when it reverses an empty list."""
    if type(value) not in (str, list):
        raise TypeError("not a string or list")
    return value[start:stop:step]


def _list_slice(value: Any, start: Any, stop: Any, step: Any) -> Any:
    """A slice to loop over: minijinja does not iterate over the chars of a string."""
    if type(value) is not list:
        raise TypeError("not a list")
    return value[start:stop:step]


def _contains(container: Any, item: Any) -> bool:
    """minijinja's own `in` also finds a number's digits in a string, and methods in a dict."""
    if item is None:
        raise TypeError("none or undefined")
    return item in container


def _filter(value: Any, name: str, *arguments: Any, **keywords: Any) -> Any:
    """One of jinja2's filters on strings."""
    from jinja2.filters import FILTERS

    if type(value) is not str:
        raise TypeError("not a string")
    return FILTERS[name](value, *arguments, **keywords)


def _raise(message: Any = None) -> Any:
    raise ValueError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


FILTERS: dict[str, Callable[..., Any]] = {
    "tojson": _tojson,
    "string": _text,
    "_method": _method,
    "_item": _item,
    "_slice": _slice,
    "_list_slice": _list_slice,
    "_contains": _contains,
    "_filter": _filter,
}
GLOBALS: dict[str, Callable[..., Any]] = {"raise_exception": _raise, "strftime_now": _now}
