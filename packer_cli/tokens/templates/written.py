"""Compares the text of a conversation with its messages: each text must stand where its speaker's turn is.

A rehearsal (`rehearsal`) shows what a template writes of a conversation of this shape; this shows that it wrote the
words of this one, too.
Price: 0.3 us a message of an `Outline`, 2 us for others.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import Any, NamedTuple

from packer_cli.tokens.templates.conversation import REASONING_FIELDS, Chat, Rendered, TemplateRejectError
from packer_cli.tokens.templates.parts import calls_in, function_of, names_called
from packer_cli.tokens.templates.rounds import MARK
from packer_cli.tokens.templates.shape import TAG, Turn, as_turn, kind_of_piece

_ENOUGH = 24
"""Chars at either end of a text."""
_MOST_RESTS = 64
CHANGED = "a text that the chat template writes in part, or changed"
NOT_WRITTEN = ", which the chat template does not write"
EARLIER_REASONING = (
    "reasoning in earlier turns, which the chat template leaves out there; of chats, --turns branch trains on every "
    "turn as the model writes it"
)
_KINDS = {"content": "content", "calls": "tool calls"}


class Outline(NamedTuple):
    """The text of plain conversations of one shape, without their contents."""

    marked: tuple[str, ...]
    """Before, between and behind the contents; with the marks of `{% generation %}` tags."""
    parts: tuple[str, ...]
    """The same without marks."""
    ranges: tuple[tuple[int, int, int], ...]
    """Ranges of the assistant: twice the index of the message, and the chars before and behind its content."""
    notes: Sequence[str]
    """See `Rendered`."""

    @classmethod
    def of(cls, chat: Chat, marked: str, rendered: Rendered, notes: Sequence[str]) -> Outline | None:
        """Take the contents, each a word of its own, out of a conversation; None if not all are written in order, or a
        range ends with one, where there may be white space.

        Args:
            marked: its text with marks.
        """
        pieces = re.split(f"({'|'.join(chat.contents)})", marked)
        between, pieces[::2] = tuple(pieces[::2]), [re.sub(f"{MARK}..", "", piece) for piece in pieces[::2]]
        ends = list(accumulate(map(len, pieces)))
        answers = [2 * index for index, turn in enumerate(chat.shape[1:]) if turn == "assistant"]
        are_all = pieces[1::2] == chat.contents and "".join(pieces) == rendered.text
        if not are_all or len(rendered.spans) not in (0, len(answers)):
            return None
        said = zip(answers, rendered.spans, strict=False)
        ranges = tuple((at, ends[at] - start, stop - ends[at + 1]) for at, (start, stop) in said)
        return cls(between, tuple(pieces[::2]), ranges, notes) if all(behind for _, _, behind in ranges) else None

    def fill(self, marked: str, contents: Sequence[str]) -> Rendered | None:
        """Put contents in, and find their ranges; None if the text is something else than this with them, or with them
        stripped.

        Args:
            marked: the text of the conversation with these contents, with marks.
        """
        pieces = [""] * (2 * len(contents) + 1)
        pieces[::2] = self.marked
        for each in (contents, map(str.strip, contents)):
            pieces[1::2] = each
            if "".join(pieces) == marked:
                pieces[::2] = self.parts
                ends = list(accumulate(map(len, pieces)))
                spans = [(ends[at] - before, ends[at + 1] + behind) for at, before, behind in self.ranges]
                return Rendered("".join(pieces), spans, self.notes)
        return None


def check_extras(chat: Chat, rendered: Rendered, extras: frozenset[str]) -> None:
    """Compare what is in the assistant's turns besides its own texts with what other conversations have there.

    Args:
        extras: see `Reading`.

    Raises:
        TemplateRejectError: a turn without calls has something else.
    """
    text, spans, _ = rendered
    said = [pair for pair in zip(chat.messages, chat.shape[1:], strict=True) if pair[0].get("role") == "assistant"]
    if len(said) != len(spans):
        return
    for (message, short), (start, stop) in zip(said, spans, strict=True):
        turn, rest = as_turn(short), text[start:stop]
        rests = [] if turn.calls else _without(rest, [piece for _, piece in _texts(message, turn) if piece])
        # What is changed is counted.
        if rests and not any("".join(each.split()) in extras for each in rests):
            raise TemplateRejectError(
                f"the chat template writes {' '.join(rests[0].split())[:100]!r} besides the message's own text in a "
                "turn of the assistant, and not in other conversations; it is not certain whose that is"
            )


def _without(text: str, pieces: list[str]) -> list[str]:
    """Remove each of these pieces once; there are several results where the template writes the same words."""
    rests = [text]
    for piece in pieces:
        found = (rest[:at] + rest[at + len(piece) :] for rest in rests for at in _places(rest, piece))
        rests = list(islice(found, _MOST_RESTS))
    return rests


def _places(text: str, piece: str) -> Iterator[int]:
    at = text.find(piece)
    while at >= 0:
        yield at
        at = text.find(piece, at + 1)


def find_unwritten(
    chat: Chat,
    rendered: Rendered,
    lost: Mapping[Turn, frozenset[str]],
    trained: Callable[[int], set[str]],
) -> Iterator[str]:
    """Find which of a conversation's own words are not written, see `ChatRenderer.review`.

    Args:
        lost: kinds of texts of turns that the template does not write, see `Rehearsal.words`.
        trained: see `LossParts.kinds_of`.
    """
    text, spans, _ = rendered
    turns = chat.shape[1:]
    said = sum(message.get("role") == "assistant" for message in chat.messages)
    is_aligned = said == len(spans)
    found: set[str] = set()
    low, left = 0, [(len(text), 0), *reversed(spans)]
    doubtful: list[tuple[int, set[str]]] = []
    others: Counter[str] = Counter()
    for number, (message, short) in enumerate(zip(chat.messages, turns, strict=True)):
        is_answer = message.get("role") == "assistant"
        high = len(text)
        if is_aligned:
            low, high = left.pop() if is_answer else (low, left[-1][0])
        turn = as_turn(short)
        usual = lost.get(turn, frozenset())
        absent = {
            kind: piece
            for kind, piece in _texts(message, turn)
            if text.find(piece, low, high) < 0
            and not _is_elsewhere(rendered, piece, low, high, None if is_answer else others[piece])
        }
        others.update(piece for _, piece in (() if is_answer else _texts(message, turn)))
        missing = absent.keys() & _KINDS.keys() & (usual | {"calls"})
        if "content" in absent and (not is_aligned or _is_gone(text[low:high], absent["content"])):
            missing.add("content")
        names = Counter(names_called(message))
        if any(text.count(name, low, high) < number for name, number in names.items() if name and number > 1):
            missing.add("calls")
        if missing:
            if "calls" in absent and "calls" not in usual and "calls" in trained(number):
                raise TemplateRejectError(
                    f"the chat template does not write the name of a function that message {number + 1} calls; it "
                    "may write the id of the call instead, which then must hold the name, as functions.NAME:0"
                )
            _refuse(message, number, missing, trained(number))
            found.update(f"{_KINDS[kind]} in turns without a loss on it" + NOT_WRITTEN for kind in missing)
        elif usual & _KINDS.keys():
            doubtful.append((number, {*usual}))
        if absent.keys() - missing - usual:
            found.add(CHANGED)
        if is_answer and is_aligned:
            low = high
    if doubtful and not found:  # Something of them is lost, and the same is written elsewhere.
        number, missing = doubtful[-1]
        _refuse(chat.messages[number], number, missing, trained(number))
    yield from sorted(found)


def _is_elsewhere(rendered: Rendered, piece: str, low: int, high: int, before: int | None) -> bool:
    """Whether a text is written as JSON, or, if it is not the assistant's, outside of its place and of the assistant's
    turns: system prompts may move.

    Args:
        before: how many messages of others before have the same text; None: it is the assistant's.
    """
    text, spans, _ = rendered
    escaped = json.dumps(piece, ensure_ascii=False)[1:-1]
    if before is None or text.find(escaped, low, high) >= 0:
        return text.find(escaped, low, high) >= 0
    places = re.finditer(f"{re.escape(piece)}|{re.escape(escaped)}", text)
    return sum(not any(start <= place.start() < stop for start, stop in spans) for place in places) > before


def _is_gone(text: str, piece: str) -> bool:
    """Whether neither the beginning nor the end of a piece is in a text."""
    size = min(_ENOUGH, (len(piece) + 1) // 2)
    return not any(part in text for part in (piece[:size], piece[-size:]))


def _texts(message: dict[str, Any], turn: Turn) -> Iterator[tuple[str, str]]:
    """Yield the texts of a message, each with its kind, see `Rehearsal.words`."""
    content = message.get("content")
    if turn.content is not None and isinstance(content, list):  # It was a string.
        content = "".join(part["text"] for part in content)
    if isinstance(content, str) and turn.content is None:
        yield "content", content.strip()
    elif isinstance(content, str) and turn.content is not None:
        for i, piece in enumerate(TAG.split(content)[: len(turn.content)]):
            if not i % 2:
                yield kind_of_piece(turn, i), piece.strip()
    elif isinstance(content, list):
        yield from (("content", part["text"].strip()) for part in content if isinstance(part, dict) and "text" in part)
    thought = next((message[name] for name in REASONING_FIELDS if isinstance(message.get(name), str)), "")
    yield "reasoning", thought.strip()
    for name in names_called(message):
        yield "calls", name
    for call in calls_in(message):
        arguments = function_of(call).get("arguments")
        if isinstance(arguments, dict):
            for key, value in arguments.items():
                yield "arguments", key
                yield "arguments", value.strip() if isinstance(value, str) else _number_text(value)


def _number_text(value: Any) -> str:
    """Write a number as Python and JSON do; empty for other values, which templates write in several ways."""
    return str(value) if type(value) in (int, float) else ""


def _refuse(message: dict[str, Any], number: int, missing: set[str], trained: set[str]) -> None:
    """Raise TemplateRejectError where a text that is missing makes training wrong."""
    role = message.get("role")
    if isinstance(message.get("content"), list) and "content" in missing:
        raise TemplateRejectError(
            f"the chat template does not write the content of message {number + 1}, an array of parts; write it as a "
            "string"
        )
    if role != "assistant":
        raise TemplateRejectError(
            f"the chat template does not write message {number + 1}, of role {role}, in such a conversation; remove "
            "it, give it another role, or choose a template that writes it"
        )
    for kind in sorted(missing & trained):
        raise TemplateRejectError(
            f"the chat template does not write the {_KINDS[kind]} of message {number + 1}, which should carry a loss; "
            "remove it, give the message a weight of 0, or choose a template that writes it"
        )
