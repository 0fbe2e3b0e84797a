"""Answers of storage that were errors, after which the request was sent again: counted, and said at the first.

Worker processes say nothing. They hand their counts over with their results.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

_LOGGER = logging.getLogger("hbpack")
_lock = threading.Lock()
_failures: Counter[str] = Counter()
"""Failures since `take_failures`, by place and answer."""

Failures = dict[str, int]


def note_failures(found: Failures) -> None:
    """Count failures, such as `{"host answers 503": 2}`."""
    with _lock:
        is_first = not _failures and found
        _failures.update(found)
    if is_first:
        _LOGGER.info("%s; trying again", next(iter(found)))


def take_failures() -> Failures:
    """Return the counts, and begin again."""
    with _lock:
        found = dict(_failures)
        _failures.clear()
    return found


def num_failures() -> int:
    """Count the failures since `take_failures`."""
    with _lock:
        return _failures.total()


def watch_s3(system: Any) -> None:
    """Count the failures after which s3fs and its libraries send a request again by themselves."""
    events = getattr(getattr(getattr(system, "s3", None), "meta", None), "events", None)
    if events is not None:
        events.register_first("needs-retry.s3", _note_answer, unique_id="hbpack")


def _note_answer(response: Any, caught_exception: Exception | None, request_dict: Any, **_: Any) -> None:
    status = 0 if response is None else response[0].status_code
    if caught_exception is not None or status >= 500 or status == 429:
        what = f"answers {status}" if status else f"does not answer ({type(caught_exception).__name__})"
        note_failures({f"{urlsplit(request_dict['url']).netloc} {what}": 1})
