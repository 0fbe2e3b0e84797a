"""A chat template, compiled by jinja2 in transformers' sandbox.

A template comes from the same unknown source as the tokenizer, so each render has limits of CPU time and of memory
(see `memory`). The size of its products and powers has one, too, since nothing can interrupt Python's own arithmetic.
"""

from __future__ import annotations

import datetime
import re
import signal
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

from jinja2 import TemplateError, nodes

from packer_cli.errors import TokenizerError
from packer_cli.tokens.templates.conversation import ASKED, Chat, TemplateRejectError, read_chat
from packer_cli.tokens.templates.memory import limited_memory

Result = TypeVar("Result")

CPU_SECONDS = 10.0
"""CPU time that jinja2 may spend on a conversation. Real templates take 30 us a message."""
_TICK_SECONDS = 0.1
MOST_REPEATED = 1 << 26
"""Most chars or items that `*` may make, and most bits of a number that `*` or `**` may make."""


class TemplateLimitError(TemplateRejectError):
    """The template needs more time or memory than a conversation may take."""


def limited(function: Callable[[], Result]) -> Result:
    """Call a function within the limit of CPU time, which holds in the main thread only. Price: 1 us.

    Raises:
        TemplateLimitError: it took too much time, or memory. Other errors of the function pass through.
    """
    is_main = threading.get_ident() == threading.main_thread().ident
    if is_main:
        signal.signal(signal.SIGPROF, _stop_render)
        # Raise again at each tick: in places, such as the test `is iterable`, jinja2 swallows any exception.
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS, _TICK_SECONDS)
    try:
        return function()
    except MemoryError:
        raise TemplateLimitError(
            "the chat template needs too much memory to render this conversation; split it, or give another template "
            "with --chat-template FILE"
        ) from None
    finally:
        if is_main:
            signal.setitimer(signal.ITIMER_PROF, 0)


def _stop_render(*_: Any) -> None:
    raise TemplateLimitError(
        "the chat template takes too long to render this conversation; split it, or give another template with "
        "--chat-template FILE"
    )


@lru_cache(maxsize=1)
def sandbox() -> Any:
    """Make transformers' environment, in which `*` and `**` have limits.

    transformers makes one for each template, so none has this one.

    Operators that can make much from little are not computed when a template is compiled.
    """
    from transformers.utils.chat_template_utils import _compile_jinja_template

    environment: Any = _compile_jinja_template("{# sandbox #}").environment
    environment.intercepted_binops = frozenset(("*", "**", "%"))
    environment.binop_table = {**environment.binop_table, "*": _times, "**": _power}
    return environment


def _times(left: Any, right: Any) -> Any:
    if isinstance(left, int):
        left, right = right, left
    if isinstance(right, int):
        _check_size(left.bit_length() + right.bit_length() if isinstance(left, int) else _length(left) * right, "*")
    return left * right


def _power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        _check_size(left.bit_length() * abs(right), "**")
    return left**right


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (str, list, tuple)) else 0


def _check_size(size: int, sign: str) -> None:
    if size > MOST_REPEATED:
        raise TemplateLimitError(
            f"the chat template makes more than {MOST_REPEATED:,} items with {sign}; split the conversation, or give "
            "another template with --chat-template FILE"
        )


class CompiledTemplate:
    """A compiled template.

    Args:
        source: Jinja.
        variables: values that transformers passes to every template (`special_tokens_map`).
        date: that it writes; None: today's.

    Raises:
        TokenizerError: the template is not valid Jinja, or takes too long to compile.
    """

    def __init__(self, source: str, variables: dict[str, str], date: str | None = None):
        self.source = source
        self.variables = variables
        self.environment = sandbox()
        self.functions = {} if date is None else {"strftime_now": datetime.date.fromisoformat(date).strftime}
        """Functions in place of those of transformers' environment."""
        try:
            with limited_memory():  # jinja2 computes constants here, and leaves those that fail to the render.
                self._template: Any = limited(lambda: self.compile(source))
        except (TemplateError, RecursionError, SyntaxError) as error:
            raise TokenizerError(
                f"the chat template is not valid Jinja ({_one_line(error)}); give another with --chat-template FILE"
            ) from None
        except TemplateLimitError:
            raise TokenizerError(
                "the chat template takes too long to compile; give another with --chat-template FILE"
            ) from None
        tree = self.environment.parse(source)
        self.num_generation_tags = sum(map(is_generation, tree.find_all(nodes.CallBlock)))

    def compile(self, source: Any) -> Any:
        """Compile the jinja2.Template of a source, or of a syntax tree."""
        return self.environment.from_string(source, globals=self.functions)

    def context(self, chat: Chat, *, prompt: bool = False) -> dict[str, Any]:
        """Return the template's variables for a conversation, perhaps with a generation prompt."""
        own = {"messages": chat.messages, "tools": chat.tools, "documents": None, "add_generation_prompt": prompt}
        return {**own, **self.variables}

    def text(self, chat: Chat, *, prompt: bool = False) -> str:
        """Render the text of a conversation.

        Raises:
            TemplateRejectError: the template raised.
        """
        return render(self._template, self.context(chat, prompt=prompt))

    def text_by_transformers(self, chat: Chat, *, prompt: bool) -> str:
        """Render the text by transformers' own function. Raises whatever that function raises."""
        from transformers.utils import chat_template_utils

        compiles = chat_template_utils._compile_jinja_template
        # Its environments have no limits of memory, not even when they compile.
        chat_template_utils._compile_jinja_template = lambda source: self._template
        try:
            (text,), _ = limited(
                lambda: chat_template_utils.render_jinja_template(
                    [chat.messages],
                    tools=chat.tools,
                    chat_template=self.source,
                    add_generation_prompt=prompt,
                    **self.variables,
                )
            )
        finally:
            chat_template_utils._compile_jinja_template = compiles
        return str(text)

    def generation_prompt(self) -> str:
        """Return the text that `add_generation_prompt=True` adds after a user message; may be empty."""
        for messages in (ASKED[:1], ASKED):
            try:
                plain, prompted = (self.text(read_chat(messages), prompt=prompt) for prompt in (False, True))
            except TemplateRejectError:
                continue
            # Some templates end a conversation with EOS unless an answer is to follow.
            for so_far in (plain, plain.removesuffix(self.variables.get("eos_token", ""))):
                if prompted.startswith(so_far):
                    return prompted[len(so_far) :]
        return ""


def render(template: Any, context: dict[str, Any]) -> str:
    """Render the text of a jinja2.Template.

    Raises:
        TemplateRejectError: the template raised.
    """
    try:
        write, join = template.root_render_func, template.environment.concat
        text: str = limited(lambda: join(write(template.new_context(context))))
        return text
    except TemplateRejectError:
        raise
    except Exception as error:
        raise TemplateRejectError(f"the chat template cannot render this conversation: {_one_line(error)}") from None


def _one_line(error: Exception) -> str:
    """Write the error's message on one line of at most 300 chars, or its type's name if it has none."""
    text = re.sub(r"\s+", " ", str(error)).strip() or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


def is_generation(node: Any) -> bool:
    """Whether a call block comes from a `{% generation %}` tag."""
    return getattr(node.call.node, "name", "") == "_generation_support"
