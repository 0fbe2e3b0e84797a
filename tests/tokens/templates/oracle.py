"""Judges what of a conversation carries a loss, by the words in it and by what transformers alone renders.

Texts are handled as bytes, one char each (latin-1), because tokens may end inside a char.

An answer may carry a loss from where the conversation before it, with a generation prompt, ends, to where the
conversation up to it ends, or one token later if no special token ends it. These ends are looked for in the text
between an answer's own words and the words of its neighbours.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from tests.tokens.templates.conversations import TOOLS, UNLEARNED, Conversation, Marked, Message
from tests.tokens.templates.plain import Plain, TemplateError

OTHERS, HEADER, LOST, NO_LOSS, OPEN = "others in the loss", "header in the loss", "lost", "no loss", "open turn"
TEXT = "other text"
_THINKING = re.compile(
    r"(?:\s*(?:</?think>|\[/?THINK\]|</?seed:think>|<\|channel>thought|<channel\|>|"
    r"<\|(?:START|END)_THINKING\|>))+\s*$"
)
"""Of a generation prompt, what an answer may begin with."""
_QUESTION: list[Message] = [{"role": "user", "content": "Zxzzo Zxzze"}]
_TOOLS = [{"type": "function", "function": {"name": "find", "description": "Find.", "parameters": {}}}]
_ASKED = Marked("Zxzzo", "Zxzze", "content", "user", 0)


class Fault(NamedTuple):
    """What is wrong with a sample."""

    kind: str
    what: str


class Token(NamedTuple):
    """A token, by its place in the text."""

    start: int
    stop: int
    is_special: bool
    has_loss: bool


class Sample(NamedTuple):
    """Encoded text."""

    text: str
    tokens: list[Token]


class Place(NamedTuple):
    """Where a text of the conversation stands."""

    start: int
    stop: int
    whose: Marked
    is_own: bool
    """Whether it is there for its message; further places repeat it."""


class Bytes:
    """The bytes of each token of a byte-level tokenizer."""

    def __init__(self, folder: Path):
        config = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        usual = [*range(33, 127), *range(161, 173), *range(174, 256)]
        rest = [each for each in range(256) if each not in usual]
        of_char = {chr(each): each for each in usual} | {chr(256 + k): each for k, each in enumerate(rest)}
        self._of = {
            number: bytes(of_char[char] for char in token)
            for token, number in config["model"]["vocab"].items()
            if all(char in of_char for char in token)
        }
        self._of |= {token["id"]: token["content"].encode() for token in config["added_tokens"]}
        self._special = {token["id"] for token in config["added_tokens"] if token["special"]}

    def sample(self, ids: Sequence[int], mask: Sequence[Any]) -> Sample:
        """The text of ids."""
        pieces = self.pieces(ids)
        tokens, at = [], 0
        for number, piece, has_loss in zip(ids, pieces, mask, strict=True):
            tokens.append(Token(at, at + len(piece), number in self._special, bool(has_loss)))
            at += len(piece)
        return Sample("".join(pieces), tokens)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each id."""
        return [self._of[number].decode("latin-1") for number in ids]


class Oracle:
    """Judges samples that come from one template."""

    def __init__(self, plain: Plain):
        self._plain = plain
        for tools in (None, _TOOLS):
            asked, prompted = (self._render(_QUESTION, tools, prompted=prompted) or "" for prompted in (False, True))
            if prompted:
                break
        self._header = _THINKING.sub("", prompted[len(asked) :]).strip() if prompted.startswith(asked) else ""
        self._turnover = _THINKING.sub("", _tail(prompted, [_ASKED]) or "")
        self._render = lru_cache(None)(self._render)  # type: ignore[method-assign]

    def judge(self, chat: Conversation, sample: Sample, counted: Sequence[str]) -> Iterator[Fault]:
        """The faults of a sample.

        Args:
            counted: what the run says of the record.
        """
        written = self.written(chat, sample)
        if written is None:
            yield Fault(TEXT, "transformers writes it in no form of the record")
        chat = written or chat
        places = _places(sample.text, chat.texts, self._times(chat))
        found = {place.whose for place in places if place.is_own}
        for text in chat.texts:
            if text not in found and not _is_excused(text, counted):
                yield Fault(LOST, f"{text.kind} of {text.role} (message {text.message + 1})")
        for place in places:
            tokens = _tokens(sample, place.start, place.stop)
            is_learned = [token.has_loss for token in tokens]
            if place.is_own and place.whose.role == "assistant":
                if not all(is_learned):
                    yield Fault(NO_LOSS, f"{place.whose.kind} (message {place.whose.message + 1})")
            elif any(is_learned):
                again = "" if place.is_own else ", repeated"
                yield Fault(OTHERS, f"{place.whose.kind} of {place.whose.role}{again}: {_shown(sample, tokens)}")
        yield from self._judge_rest(chat, sample, places, counted)

    def written(self, chat: Conversation, sample: Sample) -> Conversation | None:
        """The conversation in the form whose text this is; None if it is that of no form."""
        for messages in forms(chat.messages):
            text = self._render(json.dumps(messages), json.dumps(chat.tools), prompted=False)
            if text is not None and sample.text.startswith(text):
                return replace(chat, messages=messages)
        return None

    def _times(self, chat: Conversation) -> dict[Marked, int]:
        """How often the template writes each name and key for its own message."""
        words = [text for text in chat.texts if text.kind in ("name", "key")]
        found = {text: self._prefix(chat, text.message + 1) for text in words}
        return {text: whole.count(text.opening) for text, whole in found.items() if whole is not None}

    def _judge_rest(
        self, chat: Conversation, sample: Sample, places: list[Place], counted: Sequence[str]
    ) -> Iterator[Fault]:
        """What is between the words."""
        allowed = [(place.start, place.stop) for place in places]  # Those of others are judged above.
        for run in _runs(places):
            number = places[run.start].whose.message
            first, last = places[run.start].start, places[run.stop - 1].stop
            before = places[run.start - 1].stop if run.start else 0
            after = places[run.stop].start if run.stop < len(places) else len(sample.text)
            allowed.append((before + self._lead(chat, number, sample, before, first), last))
            is_last_run = not any(place.is_own and place.whose.message == number for place in places[run.stop :])
            stop = self._close(chat, number, sample, last, after, is_whole=is_last_run)
            allowed.append((last, stop))
            learned = [each for each in _tokens(sample, last, after) if each.has_loss and not _is_blank(sample, each)]
            learned = [each for each in learned if each.start + len(_text(sample, each).rstrip()) <= stop]
            is_counted = any(re.search(r"\bends?\b|\bopen\b", line) for line in counted)
            if is_last_run and not (learned and learned[-1].is_special) and not is_counted:
                yield Fault(OPEN, f"message {number + 1}, then {_show(sample.text[last : last + 40])}")
        allowed += self._without_words(chat, sample, places)
        wrong: list[Token] = []
        for token in sample.tokens:
            if token.has_loss and not _is_blank(sample, token) and not _is_allowed(sample, token, allowed):
                wrong.append(token)
        for group in _groups(wrong, sample.tokens):
            start = group[0].start
            yield Fault(HEADER, f"{_show(sample.text[max(0, start - 20) : start])}>>{_shown(sample, group)}<<")

    def _without_words(self, chat: Conversation, sample: Sample, places: list[Place]) -> Iterator[tuple[int, int]]:
        """The ranges of answers that have no words of their own in the text."""
        present = {place.whose.message for place in places if place.is_own}
        for number, message in enumerate(chat.messages):
            if message["role"] != "assistant" or number in present:
                continue
            at = max((place.stop for place in places if place.whose.message < number), default=0)
            stop = min((place.start for place in places if place.start >= at), default=len(sample.text))
            lead = self._lead(chat, number, sample, at, stop)
            yield at + lead, self._close(chat, number, sample, at, stop, least=lead)

    def _lead(self, chat: Conversation, number: int, sample: Sample, before: int, first: int) -> int:
        """How much of the text before an answer's words is not of the answer."""
        gap = sample.text[before:first]
        text = self._prefix(chat, number, prompted=True)
        tail = None if text is None else _tail(text, chat.texts)
        prompt = _THINKING.sub("", tail if tail is not None else self._turnover).rstrip()
        if gap.startswith(prompt) and prompt:
            return len(prompt)
        shared = _shared(gap, prompt)
        whole = [token.stop - before for token in sample.tokens if before < token.stop <= before + shared]
        shared = whole[-1] if whole else 0
        header = self._header or self._turnover.strip()
        return max(shared, gap.rindex(header) + len(header)) if header and header in gap else shared

    def _close(
        self,
        chat: Conversation,
        number: int,
        sample: Sample,
        last: int,
        after: int,
        *,
        least: int = 0,
        is_whole: bool = True,
    ) -> int:
        """Where an answer whose words end at `last` ends at the latest; if not whole, some follow those of others."""
        text = self._prefix(chat, number + 1, with_content=is_whole)
        tail = (None if text is None else _tail(text, chat.texts)) or ""
        tail = tail.rstrip()
        repeated = _shared(tail[::-1], self._turnover.rstrip()[::-1])
        starts = {token.start - last for token in sample.tokens}
        whole = next((at for at in range(len(tail) - repeated, len(tail)) if at in starts), len(tail))
        is_cut = bool(re.search(r"\w", tail[whole:]))
        tail = tail[:whole] if is_cut else tail
        gap = sample.text[last:after]
        shared = _shared(gap, tail)
        if shared < len(tail):  # The end is written in another way where more follows.
            shared = max(shared, _shared(gap, self._until_question(chat, number + 1)))
        stop = last + max(shared, least)
        tokens = _tokens(sample, last, after)
        inside = [token for token in tokens if token.start + len(_text(sample, token).rstrip()) <= stop]
        stop = inside[-1].stop if inside else last + least
        has_end = any(token.is_special and token.start >= last + least for token in inside)
        if has_end and not is_cut:
            return stop
        following = [token for token in tokens if token.start >= stop and not _is_blank(sample, token)]
        return following[0].stop if following and (following[0].is_special or is_cut) else stop

    def _until_question(self, chat: Conversation, number: int) -> str:
        """What is between the last of these messages and a question that follows them."""
        asked = Conversation(chat.name, [*chat.messages[:number], *_QUESTION], chat.tools)
        text = self._prefix(asked, number + 1)
        places = _places(text or "", [*chat.texts, _ASKED])
        at = next((k for k, place in enumerate(places) if place.whose == _ASKED), 0)
        return (text or "")[places[at - 1].stop : places[at].start] if at else ""

    def _prefix(
        self, chat: Conversation, number: int, *, prompted: bool = False, with_content: bool = True
    ) -> str | None:
        messages = chat.messages[:number]
        if not with_content:
            messages = [*messages[:-1], {**messages[-1], "content": ""}]
        return self._render(json.dumps(messages), json.dumps(chat.tools), prompted=prompted)

    def _render(self, messages: Any, tools: Any = None, *, prompted: bool) -> str | None:
        given = [json.loads(each) if isinstance(each, str) else each for each in (messages, tools)]
        try:
            return _narrow(self._plain.render(*given, prompted=prompted))
        except TemplateError:
            return None


def _narrow(text: str) -> str:
    return text.encode("utf-8", "replace").decode("latin-1")


def _show(text: str) -> str:
    return repr(text.encode("latin-1").decode("utf-8", "replace"))[1:-1]


def _shown(sample: Sample, tokens: list[Token]) -> str:
    """The text of tokens, shortened."""
    text = _show(sample.text[tokens[0].start : tokens[-1].stop])
    return text if len(text) <= 120 else f"{text[:80]}...{text[-35:]}"


def forms(messages: list[Message]) -> Iterator[list[Message]]:
    """The messages as they are, and in other forms that say the same: arguments as objects or JSON text, `developer`
    as `system`, parts as a string, strings as parts."""
    seen: list[list[Message]] = []
    for arguments, system, content in product(
        ("", "objects", "text"), (False, True), ("", "string", "lines", "parts")
    ):
        changed: list[Message] = json.loads(json.dumps(messages))
        for message in changed:
            for call in message.get("tool_calls") or ():
                function = call["function"]
                if arguments == "objects" and isinstance(function["arguments"], str):
                    function["arguments"] = json.loads(function["arguments"])
                elif arguments == "text" and not isinstance(function["arguments"], str):
                    function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
            if system and message["role"] == "developer":
                message["role"] = "system"
            given = message.get("content")
            if content in ("string", "lines") and isinstance(given, list):
                message["content"] = ("\n" if content == "lines" else "").join(part["text"] for part in given)
            elif content == "parts" and isinstance(given, str):
                message["content"] = [{"type": "text", "text": given}]
        if changed not in seen:
            seen.append(changed)
            yield changed


def _places(text: str, texts: Sequence[Marked], times: Mapping[Marked, int] = MappingProxyType({})) -> list[Place]:
    """Where texts stand, in order; not those inside others, which quote them.

    Args:
        times: how often they are there for their own message, if not once.
    """
    found = []
    for each in texts:
        at = text.find(each.opening)
        while at >= 0:
            end = text.find(each.closing, at)
            if end >= 0:
                found.append((at, -end - len(each.closing), each))
            at = text.find(each.opening, at + 1)
    places: list[Place] = []
    seen: Counter[Marked] = Counter()
    for start, negative, whose in sorted(found):
        if not places or start >= places[-1].stop:
            places.append(Place(start, -negative, whose, seen[whose] < times.get(whose, 1)))
            seen[whose] += 1
    return places


def _runs(places: list[Place]) -> Iterator[range]:
    """The texts of one answer that follow each other."""
    start = 0
    for at in range(1, len(places) + 1):
        is_same = at < len(places) and _answer(places[at]) == _answer(places[start])
        if not is_same:
            if _answer(places[start]) is not None:
                yield range(start, at)
            start = at


def _answer(place: Place) -> int | None:
    return place.whose.message if place.is_own and place.whose.role == "assistant" else None


def _tail(text: str, texts: Sequence[Marked]) -> str | None:
    """What follows the last text of a conversation; all of it if there is none."""
    places = _places(text, texts)
    return text[places[-1].stop :] if places else text


def _shared(left: str, right: str) -> int:
    """How many chars both begin with."""
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count


def _tokens(sample: Sample, start: int, stop: int) -> list[Token]:
    """Those of which some char lies in a range."""
    return [token for token in sample.tokens if token.start < stop and token.stop > start]


def _text(sample: Sample, token: Token) -> str:
    return sample.text[token.start : token.stop]


def _is_blank(sample: Sample, token: Token) -> bool:
    return not _text(sample, token).strip()


def _is_allowed(sample: Sample, token: Token, allowed: list[tuple[int, int]]) -> bool:
    """Whether each char of a token but white space lies in a range."""
    text = _text(sample, token)
    start, stop = token.start + len(text) - len(text.lstrip()), token.stop - len(text) + len(text.rstrip())
    at = start
    for low, high in sorted(allowed):
        if low <= at < high:
            at = high
    return at >= stop


def _groups(tokens: list[Token], among: list[Token]) -> Iterator[list[Token]]:
    """Tokens that follow each other, perhaps with one between them."""
    number = {token.start: k for k, token in enumerate(among) if token.stop > token.start}
    group: list[Token] = []
    for token in tokens:
        if group and number[token.start] - number[group[-1].start] > 2:
            yield group
            group = []
        group.append(token)
    if group:
        yield group


def _is_excused(text: Marked, counted: Sequence[str]) -> bool:
    """Whether the run says that such a text is not written."""
    if text.message == TOOLS:
        words = r"tools"
    elif text.kind == "reasoning":
        words = r"reason|think|thought"
    elif text.kind in ("name", "key", "value"):
        words = r"call|argument"
    elif text.role in ("assistant", UNLEARNED):
        words = r"content"
    else:
        words = rf"{text.role}\b|tool result|role"
    return any(re.search(rf"{words}|\ba text\b", line) for line in counted)
