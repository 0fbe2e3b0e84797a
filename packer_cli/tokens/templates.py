"""Chat templates: a conversation's text, and the char ranges that the assistant would have generated.

The text is that of `tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)`.

Where the assistant's text lies is found in one of three ways (`ChatRenderer.way`):

generation   the template marks it with `{% generation %}`; the ranges are transformers' own
marks        the loop over the messages is marked (see `templates_marks`); one render gives everything
prefixes     `messages[:i]` is rendered for each assistant message; quadratic, for templates whose loop is
             in a macro and the like

For `marks` and `prefixes` a range begins after the part of the generation prompt that the assistant's
text begins with, and ends after the end-of-turn token; whitespace after that token is not the model's.
Price: about 55 us for a chat of eight messages with `marks`; 0.4 ms with `prefixes`.
"""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

from packer_cli.errors import TokenizerError

Span = tuple[int, int]

_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


class TemplateRejectError(ValueError):
    """The template cannot render this conversation; the text is a reason for people."""


class Rendered(NamedTuple):
    """One conversation as text."""

    text: str
    spans: list[Span]
    """Char ranges of `text` that the assistant generated, in order and apart; empty if not asked for."""


class ChatRenderer:
    """Renders conversations with one chat template.

    Args:
        chat_template: Jinja source.
        variables: what transformers hands to every template (`special_tokens_map`).
        special_tokens: strings that can end a turn.
        want_spans: False leaves out the ranges (`Rendered.spans` is empty).
        fast: the shortcuts of `templates_env`, and `marks`; without them transformers' own sandbox runs.
        way: force one way; by default the best that proves itself on made-up conversations.

    Raises: TokenizerError where the template is not valid Jinja.
    """

    def __init__(
        self,
        chat_template: str,
        *,
        variables: dict[str, str],
        special_tokens: tuple[str, ...] = (),
        want_spans: bool = True,
        fast: bool = True,
        way: Literal["generation", "marks", "prefixes"] | None = None,
    ):
        from jinja2 import TemplateError, nodes

        from packer_cli.tokens.templates_env import make_environment

        self.chat_template = chat_template
        self.variables = variables
        self._endings = tuple(sorted(special_tokens, key=len, reverse=True))
        self._want_spans = want_spans
        try:
            self._environment = make_environment(chat_template, fast=fast)
            tree = self._environment.parse(chat_template)
        except TemplateError as error:
            raise TokenizerError(
                f"the chat template is not valid Jinja ({_one_line(error)}); give another with --chat-template FILE"
            ) from None
        self._template = self._environment.from_string(chat_template)
        self._marked: Any = None
        self._codes: dict[int, tuple[str, int]] = {}
        self.depends_on_date = "strftime_now" in chat_template
        has_generation = any(
            getattr(node.call.node, "name", "") == "_generation_support" for node in tree.find_all(nodes.CallBlock)
        )
        if way is None:
            way = "generation" if has_generation else "marks" if fast else "prefixes"
        if way == "marks" and not self._use_marks(tree):
            way = "prefixes"
        self.way: Literal["generation", "marks", "prefixes"] = way
        self._prompt = self._generation_prompt() if way != "generation" and want_spans else ""
        if self.way == "marks" and want_spans and not self._marks_hold_on_probes():
            self.way = "prefixes"

    def render(self, messages: list[dict[str, Any]], tools: list[Any] | None = None) -> Rendered:
        """One conversation.

        Raises: TemplateRejectError (not a list of dicts, empty, a template that raises, or no way to tell
            the assistant's text from the rest).
        """
        context = self.context(messages, tools)
        if not self._want_spans:
            return Rendered(self._text(context), [])
        if self.way == "generation":
            return self._render_generation(context)
        if self.way == "marks":
            return self._render_marks(context)
        return self._render_prefixes(context)

    def context(self, messages: list[dict[str, Any]], tools: list[Any] | None = None) -> dict[str, Any]:
        """The template's variables for a conversation, normalized as transformers does."""
        if type(messages) is not list or not messages:
            raise TemplateRejectError("the conversation is empty; a chat needs at least one message")
        chat = messages
        for position, message in enumerate(messages):
            normal = _normal_message(message)
            if normal is not message:
                if chat is messages:
                    chat = messages.copy()
                chat[position] = normal
        if tools is not None:
            tools = _plain(tools)
            if not all(isinstance(tool, dict) for tool in tools):
                raise TemplateRejectError("a tool is not an object; tools are JSON schemas")
        return {
            "messages": chat,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": False,
            **self.variables,
        }

    def _text(self, context: dict[str, Any], **changes: Any) -> str:
        """Text for a context that `context` made, with some variables changed."""
        template = self._template
        try:
            return "".join(template.root_render_func(template.new_context({**context, **changes})))
        except Exception as error:
            raise _reject(error) from None

    def _render_generation(self, context: dict[str, Any]) -> Rendered:
        template = self._template
        blocks: list[str] = []
        spans: list[Span] = []
        try:
            with self._environment.activate_tracker(blocks, spans):
                for block in template.root_render_func(template.new_context(context)):
                    blocks.append(block)
        except Exception as error:
            raise _reject(error) from None
        # An empty block generates nothing; transformers would mark the token that its position falls into.
        return Rendered("".join(blocks), sorted(span for span in spans if span[1] > span[0]))

    def _render_marks(self, context: dict[str, Any]) -> Rendered:
        from packer_cli.tokens.templates_marks import split

        template = self._marked
        try:
            text, rounds = split(list(template.root_render_func(template.new_context(context))), self._codes)
        except Exception as error:
            raise _reject(error) from None
        return Rendered(text, self._trim(text, rounds))

    def _render_prefixes(self, context: dict[str, Any]) -> Rendered:
        text = self._text(context)
        messages = context["messages"]
        rounds: list[Span] = []
        for position, message in enumerate(messages):
            if message.get("role") != "assistant":
                continue
            start = self._prefix_end(text, context, position)
            stop = len(text) if position + 1 == len(messages) else self._prefix_end(text, context, position + 1)
            if stop > start:
                rounds.append((start, stop))
        return Rendered(text, self._trim(text, rounds))

    def _prefix_end(self, text: str, context: dict[str, Any], count: int) -> int:
        """Where the first `count` messages end in the text of the whole conversation."""
        try:
            prefix = self._text(context, messages=context["messages"][:count])
        except TemplateRejectError:
            if count == 0:
                prefix = "" if text else "?"
            else:
                raise
        if not text.startswith(prefix):
            # Only the end may differ, as in templates that close the last turn in another way.
            prefix = prefix.rstrip()
            if not prefix or not text.startswith(prefix):
                raise TemplateRejectError(
                    "the chat template writes earlier messages differently as the conversation goes on, so the "
                    "assistant's text cannot be told from the rest; mark it with {% generation %} in the template"
                )
        return len(prefix)

    def _trim(self, text: str, rounds: list[Span]) -> list[Span]:
        """Cut the headers off, and end each range after its end-of-turn token."""
        spans = []
        prompt = self._prompt
        for start, stop in rounds:
            begin = start + _header_length(text, start, stop, prompt)
            end = self._turn_end(text, begin, stop)
            if end > begin:
                spans.append((begin, end))
        return spans

    def _turn_end(self, text: str, begin: int, stop: int) -> int:
        end = stop
        while end > begin and text[end - 1].isspace():
            end -= 1
        # Template or content may end with whitespace that is part of the special token itself: rare, try both.
        for candidate in (end, stop):
            if text.endswith(self._endings, begin, candidate):
                return candidate
        # Some templates close the turn at the head of the next one, or after the loop.
        for ending in self._endings:
            if ending in self._closers and text.startswith(ending, stop):
                return stop + len(ending)
        return stop

    @property
    def _closers(self) -> tuple[str, ...]:
        eos = self.variables.get("eos_token")
        return (eos,) if eos and eos != self.variables.get("bos_token") else ()

    def _use_marks(self, tree: Any) -> bool:
        from jinja2 import Template

        from packer_cli.tokens.templates_marks import find_marks, instrument

        if not instrument(tree):
            return False
        environment = self._environment
        self._code = environment.compile(tree)
        self._codes = find_marks(self._code)
        self._marked = Template.from_code(environment, self._code, environment.make_globals(None))
        return True

    def _generation_prompt(self) -> str:
        """What `add_generation_prompt=True` adds after a user message; empty if nothing."""
        for messages in (_PROBES[0][:1], _PROBES[0]):
            try:
                context = self.context(messages)
                plain, prompted = self._text(context), self._text(context, add_generation_prompt=True)
            except TemplateRejectError:
                continue
            if prompted.startswith(plain):
                return prompted[len(plain) :]
        return ""

    def _marks_hold_on_probes(self) -> bool:
        for messages in _PROBES:
            try:
                context = self.context(messages)
                whole = self._text(context)
            except TemplateRejectError:
                continue
            rendered = self._render_marks(context)
            said = [message["content"] for message in messages if message["role"] == "assistant"]
            inside = [rendered.text[start:stop] for start, stop in rendered.spans]
            if rendered.text != whole or len(said) != len(inside):
                return False
            if not all(content in part for content, part in zip(said, inside, strict=True)):
                return False
            if self.disproof(messages) is not None:
                return False
        return True

    def disproof(self, messages: list[dict[str, Any]], tools: list[Any] | None = None) -> str | None:
        """None, or what a comparison of this conversation with slower ways shows to be wrong.

        Proved: the text equals the one without marks; and, for each assistant message i where the text so
        far with a generation prompt is a prefix of the whole text, that its range begins exactly where that
        prefix ends; and where the text of `messages[:i + 1]` is a prefix too, that only whitespace lies
        between the range's end and that prefix's end. Templates that write the last turn in a special way
        (leave the thinking of earlier turns out) have no such prefixes: there nothing is compared.
        """
        from transformers.utils.chat_template_utils import render_jinja_template

        context = self.context(messages, tools)
        rendered = self.render(messages, tools)
        try:
            whole: str = render_jinja_template(
                [context["messages"]], tools=context["tools"], chat_template=self.chat_template, **self.variables
            )[0][0]
        except Exception:
            return "transformers cannot render this conversation"
        if rendered.text != whole:
            return "the text is another than transformers gives"
        if not self._want_spans or self.way != "marks":
            return None
        for position, message in enumerate(context["messages"]):
            if message.get("role") != "assistant" or position == 0:
                continue
            before = context["messages"][:position]
            try:
                start = self._text(context, messages=before, add_generation_prompt=True)
                stop = self._text(context, messages=context["messages"][: position + 1])
            except TemplateRejectError:
                continue
            if not whole.startswith(start) or not whole.startswith(stop) or len(stop) <= len(start):
                continue
            at = len(start)
            span = next((span for span in rendered.spans if span[0] == at), None)
            if span is None:
                return f"message {position + 1}: the assistant's text should begin at char {at}"
            low, high = sorted((span[1], len(stop)))
            if whole[low:high].strip() and not whole[low:high].strip().startswith(self._closers or ("\0",)):
                return f"message {position + 1}: the assistant's text should end at char {len(stop)}"
        return None


_PROBES: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Ask one."}, {"role": "assistant", "content": "Say one."}],
    [
        {"role": "user", "content": "Ask one."},
        {"role": "assistant", "content": "Say one."},
        {"role": "user", "content": "Ask two."},
        {"role": "assistant", "content": "Say two."},
    ],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Ask one."},
        {"role": "assistant", "content": "Say one."},
    ],
]


def _header_length(text: str, start: int, stop: int, prompt: str) -> int:
    """Chars of `text[start:stop]` that the generation prompt had already written."""
    if not prompt:
        return 0
    if text.startswith(prompt, start, stop):
        return len(prompt)
    head = text[start : min(stop, start + len(prompt))]
    length = _shared_length(head, prompt)
    if length == 0:
        # The whitespace between two turns may be written by either of them.
        bare, gap = prompt.lstrip(), len(head) - len(head.lstrip())
        head = text[start + gap : min(stop, start + gap + len(bare))]
        shared = _shared_length(head, bare)
        length = gap + shared if shared else 0
    return length


def _shared_length(one: str, other: str) -> int:
    """Chars at the beginning that two texts share."""
    length = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        length += 1
    return length


def _normal_message(message: Any) -> dict[str, Any]:
    """As transformers sees it: no None values, plain JSON types, the reasoning under all its names."""
    if type(message) is not dict:
        raise TemplateRejectError(f"a message is not an object but {type(message).__name__}")
    for value in message.values():
        if type(value) is not str:
            message = {key: _plain(item) for key, item in message.items() if item is not None}
            break
    if not message.keys().isdisjoint(_REASONING_FIELDS):
        reasoning = next(message[key] for key in _REASONING_FIELDS if message.get(key) is not None)
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message


def _plain(value: Any) -> Any:
    from transformers.utils.chat_template_utils import _plain_template_data

    return _plain_template_data(value)


def _reject(error: Exception) -> TemplateRejectError:
    return TemplateRejectError(f"the chat template cannot render it: {_one_line(error)}")


def _one_line(error: Exception) -> str:
    text = re.sub(r"\s+", " ", str(error)).strip() or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."
