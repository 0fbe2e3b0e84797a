"""Finds out once for each shape of conversation how a template writes it, and where the assistant's text is.

A made-up conversation of the shape, each text of which is a word of its own, is rendered by each way to find the
assistant's text, the fastest first. A way is taken if no word of anybody else lies in a range, each word of the
assistant that is written lies in one, and each range begins and ends where shorter conversations say: it begins where
the text before the turn, with a generation prompt, ends. If no way is right, conversations of this shape are rejected.

Price: about 5 ms a shape; a corpus has tens of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Literal, NamedTuple

from packer_cli.tokens.templates.conversation import Chat, Span, TemplateRejectError, read_chat
from packer_cli.tokens.templates.rounds import TurnEdges
from packer_cli.tokens.templates.shape import (
    FORMS,
    OBJECTS,
    SPEAKERS,
    Rehearsal,
    Shape,
    Turn,
    as_turn,
    convert,
    short_shape,
)
from packer_cli.tokens.templates.template import CompiledTemplate, TemplateLimitError
from packer_cli.tokens.templates.written import EARLIER_REASONING, NOT_WRITTEN

Rounds = tuple[str, list[Span]]
Finder = Callable[[Chat], Rounds]
"""Finds the text and the assistant's rounds. Raises TemplateRejectError if it cannot."""

Way = Literal["tags", "loops"] | None
"""Way to find the assistant's text: by marks at these, or, for None, from the texts of shorter conversations."""
_UNRENDERED = 1 << 30
_MOST_TURNS = 16
"""Longer shapes are read piece by piece: those of agents hardly repeat."""


class Reading(NamedTuple):
    """Reading of conversations of one shape: how they are rendered."""

    way: Way = None
    headers: tuple[str, ...] = ()
    """Texts before the assistant's, the longest first."""
    tails: tuple[str, ...] = ()
    """Texts after the end of its turns that are in the same round."""
    extras: frozenset[str] = frozenset()
    """Texts besides the messages' own in turns without calls, as they are and without white space."""
    forms: tuple[str, ...] = ()
    """Forms to which messages are changed, see `FORMS`."""
    unwritten: frozenset[tuple[Turn, frozenset[str]]] = frozenset()
    """Kinds of the texts of each turn that the template does not write, see `Rehearsal.words`."""
    notes: tuple[str, ...] = ()
    """Things that records of this shape have and that are not written, for people."""
    refusal: str = ""
    """Why records of this shape are rejected."""

    def lost(self, turn: str | Turn) -> frozenset[str]:
        """Return the kinds of texts of such a turn that the template does not always write."""
        return frozenset().union(*self._kinds(turn))

    def dropped(self, turn: str | Turn) -> frozenset[str]:
        """Return the kinds of texts of such a turn that the template never writes."""
        return frozenset.intersection(*self._kinds(turn) or [frozenset()])

    def _kinds(self, turn: str | Turn) -> list[frozenset[str]]:
        return [kinds for each, kinds in self.unwritten if each == as_turn(turn)]


def _joined(readings: Sequence[Reading]) -> Reading:
    """Join the readings of all short pieces of a long conversation to that of the whole."""
    readings = [each for each in readings if each.refusal != _UNKNOWN] or readings[:1]
    refusals = [each.refusal for each in readings if each.refusal]
    return readings[0]._replace(
        headers=_longest_first(header for each in readings for header in each.headers),
        tails=_longest_first(tail for each in readings for tail in each.tails),
        extras=frozenset().union(*(each.extras for each in readings)),
        forms=tuple(form for form in FORMS if any(form in each.forms for each in readings)),
        unwritten=frozenset().union(*(each.unwritten for each in readings)),
        notes=tuple(dict.fromkeys(note for each in readings for note in each.notes)),
        refusal=refusals[0] if refusals else "" if len({each.way for each in readings}) == 1 else _UNLIKE,
    )


class _Case(NamedTuple):
    """A made-up conversation."""

    tools: str
    turns: tuple[Turn, ...]
    forms: tuple[str, ...] = ()


class Rehearsals:
    """Reads the shapes of conversations with one template.

    Args:
        edges: how turns begin and end.
        ways: the ways to find the assistant's text, the best first; none: the ranges are not wanted.
    """

    def __init__(self, template: CompiledTemplate, edges: TurnEdges, ways: Mapping[Way, Finder]):
        self._template = template
        self._edges = edges
        self._ways = ways
        self._edge = lru_cache(maxsize=10_000)(self._find_edge)
        self._text = lru_cache(maxsize=10_000)(self._render)
        self._read = lru_cache(maxsize=10_000)(self._rehearse)

    def read(self, shape: Shape) -> Reading:
        """Read how conversations of this shape are rendered."""
        tools, turns = short_shape(shape)
        try:
            if len(turns) <= _MOST_TURNS:
                return self._read(tools, turns)
            pieces = dict.fromkeys(_window(turns, i)[0] for i in range(len(turns)))
            return _joined([self._read(tools, piece) for piece in pieces])
        except TemplateLimitError as error:
            return Reading(refusal=str(error))

    def _rehearse(self, tools: str, turns: tuple[Turn, ...]) -> Reading:
        case, lost = self._choose_forms(_Case(tools, turns))
        reading = Reading(forms=case.forms)
        text = self._text(case)
        if text is None:
            return reading._replace(refusal=_UNKNOWN if self._ways else "")
        if any(turn.parts for turn in turns) and any(each.format("qzx") in text for each in _AS_VALUE):
            return reading._replace(refusal=_PARTS)
        reading = reading._replace(
            unwritten=frozenset((turn, frozenset(own.values())) for turn, own in zip(turns, lost, strict=True)),
            notes=tuple(self._notes(case, text, lost)),
        )
        doubts: dict[str, Way] = {}
        for way in self._ways:
            try:
                return self._judge(way, case, reading)
            except TemplateLimitError:
                raise
            except TemplateRejectError as doubt:
                doubts.setdefault(str(doubt).removesuffix(_MARK_IT), way)
        readings = "; ".join(f"{_NAMES[way]}, {doubt}" for doubt, way in doubts.items())
        return reading._replace(refusal=_UNCERTAIN + readings + _MARK_IT if doubts else "")

    # What is written

    def _choose_forms(self, case: _Case) -> tuple[_Case, list[dict[str, str]]]:
        """Choose the forms in which the template leaves out the least, and find the words left out of each message.

        Arguments that are written in two ways are given as objects: their text would be put into what is there for an
        object.
        """
        least, lost = self._missing(case)
        messages, plain = Rehearsal(case.tools, case.turns).messages, self._text(case)
        for form in FORMS:
            with suppress(TemplateRejectError):
                if convert(messages, (form,)) == messages:
                    continue
            other = case._replace(forms=(*case.forms, form))
            missing, words = self._missing(other)
            is_other = form == OBJECTS and self._text(other) != plain
            if missing < least or (is_other and missing == least):
                case, least, lost = other, missing, words
        return case, lost

    def _missing(self, case: _Case) -> tuple[int, list[dict[str, str]]]:
        """Count words that are left out, or written as part of a Python or JSON value; return also those left out."""
        text = self._text(case)
        words = Rehearsal(case.tools, case.turns).words
        if text is None:
            return _UNRENDERED, [{} for _ in words]
        lost = [{word: kind for word, kind in own.items() if word not in text} for own in words]
        count = sum(map(len, lost))
        for own in words:
            count += sum(any(each.format(word) in text for each in _QUOTED) for word in own)
        return count, lost

    def _notes(self, case: _Case, text: str, lost: Sequence[Mapping[str, str]]) -> Iterator[str]:
        made_up = Rehearsal(case.tools, case.turns)
        if made_up.tools and made_up.tool not in text:
            yield '"tools"' + NOT_WRITTEN
        if any("arguments" in own.values() for own in lost):
            yield "arguments of tool calls" + NOT_WRITTEN
        thoughts = [(i, word) for i, own in enumerate(lost) for word, kind in own.items() if kind == "reasoning"]
        if thoughts:
            as_last = ((self._text(_until(case, i)) or "", word) for i, word in thoughts)
            yield EARLIER_REASONING if all(word in text for text, word in as_last) else "reasoning" + NOT_WRITTEN
        if any(each.format(word) in text for own in made_up.words for word in own for each in _QUOTED[:1]):
            yield "arguments of tool calls as JSON text, which the chat template writes as a quoted string"
        others = {each for turn in case.turns for each in turn.others if _is_text(turn.role, each[0])}
        for key, kind in sorted(others):
            if (f"qzkey{key}vj" not in text) if kind == "str" else (key not in self._template.source):
                yield f'messages with "{key}"' + NOT_WRITTEN

    def _chat(self, case: _Case) -> tuple[Chat, Rehearsal]:
        made_up = Rehearsal(case.tools, case.turns)
        return read_chat(convert(made_up.messages, case.forms), made_up.tools), made_up

    def _render(self, case: _Case, *, prompt: bool = False) -> str | None:
        """Render the made-up conversation; None if the template raises."""
        try:
            return self._template.text(self._chat(case)[0], prompt=prompt)
        except TemplateLimitError:
            raise
        except TemplateRejectError:
            return None

    # Where the assistant's text is

    def _judge(self, way: Way, case: _Case, reading: Reading) -> Reading:
        """Return the reading with this way, and what stands before, after and in the assistant's turns.

        Raises:
            TemplateRejectError: the way is not right.
        """
        find, turns = self._ways[way], case.turns
        chat, made_up = self._chat(case)
        text, rounds = find(chat)
        answers = [i for i, turn in enumerate(turns) if turn.role == "assistant"]
        headers: tuple[str, ...] = ()
        tails: tuple[str, ...] = ()
        spans = rounds
        if way != "tags":
            short = [(case._replace(turns=some), number) for some, number in (_window(turns, i) for i in answers)]
            short += [(_until(some, number), number) for some, number in short]  # As the last turn, too.
            edges = {self._edge(way, *each) for each in short}
            headers, tails = (_longest_first(edge[side] for edge in edges if edge) for side in (0, 1))
            if None in edges or not all(made_up.words[i] for i in answers):  # Of a turn that has no text.
                headers = _longest_first((*headers, *filter(str.strip, self._edges.prompts())))
            spans = self._edges.trim(text, rounds, headers, tails)
            if len(spans) > len(answers) or any(self._goes_on(text[slice(*span)]) for span in spans):
                raise TemplateRejectError(MORE_TURNS)
        self._check_words(text, spans, turns, made_up.words)
        inner = spans[:-1] if spans and not text[spans[-1][1] :].strip() else spans
        extras = set()
        for start, stop in spans:
            said = text[start:stop]
            for word in (word for i in answers if not turns[i].calls for word in made_up.words[i]):
                said = said.replace(word, "")
            extras |= {said, "".join(said.split())}
        are_open = any(not text.endswith(self._edges.endings or ("",), *span) for span in inner)
        return reading._replace(
            way=way,
            headers=headers,
            tails=tails,
            extras=frozenset(extras),
            notes=(*reading.notes, *([OPEN_TURNS] if are_open else [])),
        )

    def _goes_on(self, said: str) -> bool:
        """Whether there are words behind a token at which the model stops."""
        ends = (said.find(closer) for closer in self._edges.closers if closer in self._edges.endings)
        return any("qzx" in said[end:] for end in ends if end >= 0)

    def _check_words(
        self, text: str, spans: list[Span], turns: Sequence[Turn], words: Sequence[Mapping[str, str]]
    ) -> None:
        inside = "\0".join(text[start:stop] for start, stop in spans)
        for number, (turn, own) in enumerate(zip(turns, words, strict=True), 1):
            for word in own:
                if turn.role != "assistant" and word in inside:
                    raise TemplateRejectError(f"the text of message {number}, of role {turn.role}, would carry a loss")
                if turn.role == "assistant" and word in text and word not in inside:
                    raise TemplateRejectError(f"text of message {number}, of the assistant, would carry no loss")

    def _find_edge(self, way: Way, case: _Case, number: int) -> tuple[str, str] | None:
        """Find the texts before and after the numbered message's, in its round; None if it has none.

        Raises:
            TemplateRejectError: the way does not find where it begins, or ends.
        """
        text = self._text(case)
        if text is None:  # The beginning of a conversation may be none.
            return None
        chat, made_up = self._chat(case)
        _, rounds = self._ways[way](chat)
        own = [word for word in made_up.words[number] if word in text]
        plain = (*case.turns[:number], as_turn("assistant"), *case.turns[number + 1 :])
        if case.turns != plain and not (own and self._edges.prompt.strip()):
            return self._edge(way, case._replace(turns=plain), number)  # It begins as one with text.
        if not own:
            return None
        for start, stop in rounds:
            at = [place for word in own if (place := text.find(word, start, stop)) >= 0]
            if at:
                break
        else:
            raise TemplateRejectError("text of the assistant is outside of its turn")
        prompt = self._text(_until(case, number - 1), prompt=True) if number else None
        # Some templates end a conversation with EOS unless an answer follows.
        so_far = [prompt or "", *((prompt or "").removesuffix(closer) for closer in self._edges.closers)]
        prompt = next(filter(text.startswith, so_far), prompt)
        if prompt and text.startswith(prompt):
            if len(prompt) < start and text[len(prompt) : start].strip():
                raise TemplateRejectError(f"the assistant's text would begin after {text[len(prompt) : start]!r}")
            header = text[start : len(prompt)]
        else:
            found = self._edges.header(text, start, min(at), prompt or "")
            if (
                found is None and len(case.turns) > number + 1
            ):  # The last turn may be written in another way, and say more.
                return None
            if found is None:
                raise TemplateRejectError(f"the assistant's text would begin with {text[start : min(at)]!r}")
            header = found
        (span,) = self._edges.trim(text, [(start, stop)], (header,)) or [(start, stop)]
        past = max(text.rfind(word, start, stop) + len(word) for word in own)
        found_ends = ((text.find(each, past, span[1]), len(each)) for each in self._edges.closers)
        ends = [place + length for place, length in found_ends if place >= 0]
        tail = text[min(ends) : stop] if ends and text[min(ends) : span[1]].strip() else ""
        ended = self._text(_until(case, number))
        if ended is not None and text.startswith(ended) and text != ended:
            low, high = sorted((stop - len(tail) if tail else span[1], len(ended)))
            gap = text[low:high].strip()
            if gap and not gap.startswith(self._edges.closers or ("\0",)):
                raise TemplateRejectError(f"the assistant's text would end with {text[max(low - 20, 0) : high]!r}")
        return header, tail


def _is_text(role: str, key: str) -> bool:
    """Whether a key of a message is there for the template alone."""
    return key not in _KNOWN_KEYS or (key == "name" and role in SPEAKERS)


def _until(case: _Case, number: int) -> _Case:
    """Cut the case off behind the message with this number."""
    return case._replace(turns=case.turns[: number + 1])


def _window(turns: tuple[Turn, ...], number: int) -> tuple[tuple[Turn, ...], int]:
    """Cut a short conversation in which a turn stands as in these, and find the turn's number there: with the turns
    before from the assistant's last one on, the last question, a system's message at the start, and the next turn."""
    start = number
    while start and turns[start - 1].role != "assistant":
        start -= 1
    start = max(start - 1, 0)
    before = turns[:start]
    head = before[:1] if before and before[0].role in ("system", "developer") else ()
    is_asked = any(turn.role == "user" for turn in turns[start:number])
    asked = () if is_asked else tuple(turn for turn in before if turn.role == "user")[-1:]
    short = (*head, *asked, *turns[start : number + 2])
    return short, number - start + len(head) + len(asked)


def _longest_first(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(texts), key=lambda text: (-len(text), text)))


MORE_TURNS = "the chat template writes more turns of the assistant than there are messages"
OPEN_TURNS = "assistant turns that end without a token that ends a turn: the model does not learn to stop there"
_KNOWN_KEYS = frozenset(("name", "tool_call_id", "id", "type"))
_AS_VALUE = ("'text': '{}", '"text": "{}')
"""A word in a part that is written as a Python or JSON value."""
_QUOTED = ('\\"{}', "{{'{}'", *_AS_VALUE)
"""A word inside JSON in a string, in a Python dict, or in such a part."""
_PARTS = "the chat template does not write content that is an array of several parts; write it as a string"
_NAMES: dict[Way, str] = {
    "tags": "by its tags {% generation %}",
    "loops": "by its loops",
    None: "by the texts of shorter conversations",
}
_UNLIKE = (
    "it is not certain which text of such a conversation is the assistant's: the chat template writes its beginning "
    "in another way than its end; split it"
)
_UNCERTAIN = "it is not certain which text of such a conversation is the assistant's: of the chat template, "
_UNKNOWN = (
    "it is not certain which text of such a conversation is the assistant's: the chat template raises for one of its "
    "shape in which each text is a word"
)
_MARK_IT = "; mark it with {% generation %} in the template"
