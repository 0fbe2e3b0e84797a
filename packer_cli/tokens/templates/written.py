"""Compares the text of a conversation with its messages: each text must stand where its speaker's turn is.

A rehearsal (`rehearsal`) shows what a template writes of a conversation of this shape; this shows that it wrote the
words of this one, too.
Price: 2 us a message; nothing for those of an `Outline`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from packer_cli.tokens.templates.conversation import REASONING_FIELDS, Chat, Rendered, TemplateRejectError
from packer_cli.tokens.templates.parts import calls_in, function_of, names_called
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
            more = " ".join(rests[0].split())
            shown = repr(more) if len(more) <= 100 else "something"
            raise TemplateRejectError(
                f"the chat template writes {shown} besides the message's own text "
                "in a turn of the assistant, and not in other conversations; it is not certain whose that is"
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
    lost: Callable[[str | Turn], frozenset[str]],
    trained: Callable[[int], set[str]],
) -> Iterator[str]:
    """Find which of a conversation's own words are not written, see `ChatRenderer.review`.

    Args:
        lost: see `Reading`.
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
        usual = lost(turn)
        texts = [*_texts(message, turn)]
        absent = {
            kind: piece
            for kind, piece in texts
            if text.find(piece, low, high) < 0
            and not _is_elsewhere(rendered, piece, low, high, None if is_answer else others[piece])
        }
        if not is_answer:
            others.update(piece for _, piece in texts)
        missing = absent.keys() & _KINDS.keys() & (usual | {"calls"})
        if "content" in absent and (not is_aligned or _is_gone(text[low:high], absent["content"])):
            missing.add("content")
        names = Counter(names_called(message)) if turn.calls else {}
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
    if not turn.calls:
        return
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
