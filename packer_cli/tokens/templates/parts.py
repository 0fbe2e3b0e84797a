"""Divides an assistant's turn into its reasoning, its answer and its tool calls.

::

    <think> ... </think>   the answer   <tool_call> ... </tool_call>   <|im_end|>
    reasoning            | answer     | tool calls                   | answer: the end of the turn

The text that the template wrote is divided, so what it leaves out is in no part: thinking of earlier turns, or the
content beside tool calls. Reasoning is what stands between the tags of `TAGS` at the beginning of a turn,
whether it comes from a field or from the content. Tool calls are what follows the message's content, as only messages
with `tool_calls` have any. Both are compared with the fields of the message; a conversation is rejected where they
disagree, or where the text could be read in two ways.

Price: 2 us a turn, and only for `--loss-on` with parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from packer_cli.tokens.templates.conversation import REASONING_FIELDS, Rendered, Span, TemplateRejectError


class _Tags(NamedTuple):
    opening: str
    closing: str
    ends_turns: bool = False
    """Whether the closing tag also ends turns, so that it means nothing without the other."""


TAGS = (
    _Tags("<think>", "</think>"),
    _Tags("[THINK]", "[/THINK]"),
    _Tags("<seed:think>", "</seed:think>"),
    _Tags("<|channel|>analysis<|message|>", "<|end|>", ends_turns=True),
)
"""Tags around the reasoning: of Qwen3, DeepSeek and most others; Magistral; Seed-OSS; gpt-oss."""
_LOOK_BACK = 64
"""Chars before a turn in which an opening tag may end that belongs to the generation prompt."""


class LossParts(NamedTuple):
    """Parts of conversations that carry a loss: of all turns of the assistant, or of the last one."""

    only_last: bool = False
    reasoning: bool = True
    answer: bool = True
    """The content, and the end of the turn."""
    tool_calls: bool = True

    @classmethod
    def of(cls, loss_on: str) -> LossParts:
        """Return the parts of a value of `--loss-on` other than `all`."""
        names = set(loss_on.split("+"))
        only_last = "last-turn" in names
        parts = names - {"last-turn", "completion"}
        if not parts:
            return cls(only_last)
        if "no-reasoning" in parts:
            return cls(only_last, reasoning=False)
        return cls(only_last, "reasoning" in parts, answer=False, tool_calls="tool-calls" in parts)

    @property
    def are_whole_turns(self) -> bool:
        """Whether a turn need not be divided."""
        return self.reasoning and self.answer and self.tool_calls

    def kinds_of(self, messages: list[dict[str, Any]], weights: Sequence[float] | None) -> Callable[[int], set[str]]:
        """Return a function that gives, by an assistant message's place, the kinds of its texts with a loss."""
        kinds = {"content"} if self.answer else set()
        kinds |= {"calls"} if self.tool_calls else set()

        def of_message(place: int) -> set[str]:
            is_left = self.only_last and any(each.get("role") == "assistant" for each in messages[place + 1 :])
            return set() if is_left or (weights is not None and not weights[place]) else kinds

        return of_message

    def select(
        self,
        rendered: Rendered,
        messages: list[dict[str, Any]],
        endings: tuple[str, ...],
        weights: Sequence[float] | None = None,
        *,
        dropped: Callable[[int], frozenset[str]],
    ) -> tuple[list[Span], list[float] | None]:
        """Select char ranges that carry a loss, in order and disjoint, and the weight of each; None: all are 1.

        Args:
            rendered: the text of the conversation, with the ranges of the assistant's turns.
            messages: of the conversation.
            endings: special tokens, which may end a turn.
            weights: of each message; ranges of weight 0 are left out.
            dropped: gives for the number of a message, from 1, which kinds of its texts the template never writes,
                see `Rehearsal.words`.

        Raises:
            TemplateRejectError: it is not certain where a part begins or ends.
        """
        if self.are_whole_turns and not self.only_last and weights is None:
            return rendered.spans, None
        turns = _with_messages(rendered.spans, messages)
        if turns and turns[-1][2] == 0 and (self.only_last or weights is not None):
            raise TemplateRejectError(
                "the chat template does not write one text for each message of the assistant, so it is not certain "
                f"which text {'carries which loss' if weights is not None else 'is the last turn'}"
            )
        found: list[tuple[Span, float]] = []
        for turn, message, number in turns[-1:] if self.only_last else turns:
            ranges = [turn]
            if not self.are_whole_turns:
                ranges = self.of_turn(
                    rendered.text,
                    turn,
                    message if "content" not in dropped(number) else {**message, "content": ""},
                    number,
                    endings,
                    writes_reasoning="reasoning" not in dropped(number),
                )
            found += [(each, weights[number - 1] if weights is not None else 1.0) for each in ranges]
        if weights is None:
            return [part for part, _ in found], None
        found = [(part, weight) for part, weight in found if weight]
        return [part for part, _ in found], weights_or_none([weight for _, weight in found])

    def of_completion(self, text: str, start: int) -> list[Span]:
        """Return the ranges of a completion, which is the text from `start` on.

        Raises:
            TemplateRejectError: it is not certain where a part begins or ends.
        """
        if self.tool_calls and not self.answer:
            raise TemplateRejectError(
                "a completion that is a string does not say which part of it is a tool call; give messages with "
                '"tool_calls"'
            )
        last = (start, len(text))
        return [last] if self.are_whole_turns else self.of_turn(text, last, {}, 0)

    def of_turn(
        self,
        text: str,
        span: Span,
        message: dict[str, Any],
        number: int,
        endings: tuple[str, ...] = (),
        *,
        writes_reasoning: bool = True,
    ) -> list[Span]:
        """Return the ranges of one turn.

        Args:
            message: that of the turn; empty if it is not known. Its content is what the text has of it.
            number: of the message, counted from 1, for errors; 0: there is none.
            endings: as for `select`.
            writes_reasoning: whether the template writes the reasoning of the message.

        Raises:
            TemplateRejectError: as for `select`.
        """
        start, stop = span
        end = _turn_end(text, start, stop, endings)
        thought, reasoning = find_reasoning(text, start, end, message, number, is_written=writes_reasoning)
        calls, past = end, end
        if self.answer != self.tool_calls:  # They are told apart.
            content = content_of(message)
            if content == reasoning and not text.startswith(content, after_space(text, thought, end)):
                content = ""  # As of gpt-oss: what is said beside calls is reasoning.
            calls, past = find_calls(text, thought, end, content, names_called(message), number)
        cuts = [
            (start, thought, self.reasoning),
            (thought, calls, self.answer),
            (calls, past, self.tool_calls),
            (past, stop, self.answer),
        ]
        spans: list[Span] = []
        for low, high, is_wanted in cuts:
            if is_wanted and high > low:
                if spans and spans[-1][1] == low:
                    low = spans.pop()[0]
                spans.append((low, high))
        return spans


def weights_or_none(weights: list[float]) -> list[float] | None:
    """Return the weights of ranges, None if all are 1."""
    return weights if any(weight != 1 for weight in weights) else None


def _with_messages(spans: list[Span], messages: list[dict[str, Any]]) -> list[tuple[Span, dict[str, Any], int]]:
    """Pair each turn with its message and the message's number, from 1; with 0 if turns cannot be told apart."""
    said = [(message, number) for number, message in enumerate(messages, 1) if message.get("role") == "assistant"]
    if len(said) == len(spans):
        return [(span, message, number) for span, (message, number) in zip(spans, said, strict=True)]
    for message, number in said:  # Nothing to tell apart where none has reasoning or calls.
        if field_of(message, number) or names_called(message):
            raise TemplateRejectError(
                "the chat template does not write one text for each message of the assistant, so it is not certain "
                f"which text has the reasoning or the tool calls of message {number}"
            )
    return [(span, {}, 0) for span in spans]


def _turn_end(text: str, start: int, stop: int, endings: tuple[str, ...]) -> int:
    """Return the place where the token that ends the turn begins; the turn's end if there is none."""
    end = before_space(text, start, stop)
    longest = max((len(ending) for ending in endings if text.endswith(ending, start, end)), default=0)
    return end - longest if longest else stop


def find_calls(text: str, start: int, end: int, content: str, names: list[str], number: int) -> Span:
    """Find the calls of functions with these names in a turn; empty, at its end, if there are none.

    Args:
        content: which they follow; empty if the text has none.
        number: of the message, for errors.

    Raises:
        TemplateRejectError: it is not certain where they begin, or they are missing.
    """
    if not names:
        return end, end
    first = after_space(text, start, end)
    if content:
        if not text.startswith(content, first, end):
            raise TemplateRejectError(
                f"the chat template does not write the content of message {number} first, so where its tool calls "
                "begin is not certain"
            )
        first = after_space(text, first + len(content), end)
    at = first
    for name in names:
        at = text.find(name, at, end) if name else -1
        if at < 0:
            raise TemplateRejectError(f"the chat template does not write the tool calls of message {number}")
        at += len(name)
    return first, before_space(text, first, end)


def calls_in(message: dict[str, Any]) -> list[Any]:
    """List the calls of a message."""
    calls = message.get("tool_calls") or message.get("function_call") or []
    return calls if isinstance(calls, list) else [calls]


def function_of(call: Any) -> dict[str, Any]:
    """Get the function of a call; empty if it is none."""
    inner = (call.get("function") or call) if isinstance(call, dict) else {}
    return inner if isinstance(inner, dict) else {}


def names_called(message: dict[str, Any]) -> list[str]:
    """Name the functions that the message calls."""
    names = (function_of(call).get("name") for call in calls_in(message) if call)
    return [name if isinstance(name, str) else "" for name in names]


def find_reasoning(
    text: str, start: int, end: int, message: dict[str, Any], number: int, *, is_written: bool
) -> tuple[int, str]:
    """Find the end of a turn's reasoning, with its closing tag, and its text; `start` if there is none.

    Args:
        message: that of the turn; empty if it is not known.
        number: of the message, for errors; 0: there is none.
        is_written: whether the template writes the reasoning of such a message.

    Raises:
        TemplateRejectError: it is not certain where it ends.
    """
    field = field_of(message, number)
    where = f"message {number}" if number else "the text"
    for opening, closing, ends_turns in TAGS:
        first = after_space(text, start, end)
        begins_inside = text[max(0, start - _LOOK_BACK) : start].rstrip().endswith(opening)
        is_opened = text.startswith(opening, first, end)
        if not (begins_inside or is_opened or (not ends_turns and text.startswith(closing, first, end))):
            for tag in (opening,) if ends_turns else (opening, closing):
                if text.find(tag, start, end) >= 0:
                    raise TemplateRejectError(f"{where} has {tag} in the middle, so what is reasoning is not certain")
            continue
        inner = first + len(opening) if is_opened else first
        past = text.find(closing, inner, end)
        if past < 0:
            raise TemplateRejectError(f"{where} has {opening} without {closing}, so what is reasoning is not certain")
        thought = text[inner:past].strip()
        past += len(closing)
        for tag in (opening, closing):
            if tag in thought or text.find(tag, past, end) >= 0:
                raise TemplateRejectError(f"{where} has {tag} more than once, so what is reasoning is not certain")
        # An empty block stands for reasoning that is left out, unless that is written elsewhere. A tag of the content
        # may seem to end in the arguments of a tool call.
        other = (
            field and field != thought and (thought or text.count(field, past, end) > content_of(message).count(field))
        )
        if other or (message and not any(thought in text for text in _texts(message))):
            raise TemplateRejectError(
                f"the chat template writes something between {opening} and {closing} that is not the reasoning of "
                f"{where}"
            )
        return past, thought
    if field and text.count(field, start, end) > content_of(message).count(field) and is_written:
        known = ", ".join(f"{tags.opening} and {tags.closing}" for tags in TAGS)
        raise TemplateRejectError(
            f"the chat template writes the reasoning of {where} without tags that hbpack knows, which are {known}"
        )
    return start, ""


def field_of(message: dict[str, Any], number: int) -> str:
    """Return the reasoning that the message has as a field, without white space around it."""
    value = next((message[name] for name in REASONING_FIELDS if message.get(name) is not None), None)
    if value is not None and not isinstance(value, str):
        raise TemplateRejectError(f"the reasoning of message {number} is not a string")
    return (value or "").strip()


def content_of(message: dict[str, Any]) -> str:
    """Return the content without reasoning in it, and without white space around it."""
    content = _joined(message.get("content"))
    for tags in TAGS:
        if not tags.ends_turns:
            content = content.rpartition(tags.closing)[2]
    return content.strip()


def _texts(message: dict[str, Any]) -> list[str]:
    """Return the content and the other texts of a message."""
    return [_joined(message.get("content")), *(value for value in message.values() if isinstance(value, str))]


def _joined(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part, dict) and "text" in part)
    return content if isinstance(content, str) else ""


def after_space(text: str, start: int, stop: int) -> int:
    """Find the first place from `start` on that is not white space; `stop` if there is none."""
    while start < stop and text[start].isspace():
        start += 1
    return start


def before_space(text: str, start: int, stop: int) -> int:
    """Find the end of the text before `stop` without white space; `start` if there is none."""
    while stop > start and text[stop - 1].isspace():
        stop -= 1
    return stop
