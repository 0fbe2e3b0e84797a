"""Conversations in which each text begins and ends with a word of its own, so that any text shows whose it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Message = dict[str, Any]
TOOLS = -1
"""Stands for the number of a message: the text is of the tools."""
UNLEARNED = "assistant of weight 0"
"""Stands for the role of texts that the record keeps from being learned."""
_LETTERS = "bcdfghjklmnpqrstvwxz"
_SAID = "naïve words — 你好, fine"


class Marked(NamedTuple):
    """A text of a conversation."""

    opening: str
    closing: str
    """The same as `opening` for a name or a key, which is one word."""
    kind: str
    """content, reasoning, name, key, value; or tool, of a definition."""
    role: str
    message: int
    """Index, or `TOOLS`."""


@dataclass
class Conversation:
    """A record, and what is in it."""

    name: str
    messages: list[Message] = field(default_factory=list)
    tools: list[Any] | None = None
    texts: list[Marked] = field(default_factory=list)
    _words: int = 0

    @property
    def record(self) -> Message:
        """As a line of a file; a copy."""
        record = {"messages": self.messages} | ({} if self.tools is None else {"tools": self.tools})
        return json.loads(json.dumps(record))

    @property
    def shape(self) -> tuple[Any, ...]:
        """What templates may treat alike: roles, keys and tools."""
        return (self.tools is None, *((message["role"], *sorted(message)) for message in self.messages))

    def _word(self) -> str:
        first, second = divmod(self._words, len(_LETTERS))
        self._words += 1
        return f"Zx{_LETTERS[first]}{_LETTERS[second]}"

    def text(self, kind: str = "content", role: str = "user", words: str = "some words", at: int | None = None) -> str:
        """Make a text of the next message, or of the one at an index."""
        word = self._word()
        self.texts.append(Marked(f"{word}o", f"{word}e", kind, role, len(self.messages) if at is None else at))
        return f"{word}o {words} {word}e"

    def word(self, kind: str, role: str = "assistant", at: int | None = None) -> str:
        """Make a text of one word."""
        word = f"{self._word()}q"
        self.texts.append(Marked(word, word, kind, role, len(self.messages) if at is None else at))
        return word

    def add(self, role: str, content: Any = ..., **keys: Any) -> Conversation:
        """Add a message; a text is made for it where no content is given."""
        content = self.text(role=role) if content is ... else content
        self.messages.append({"role": role, "content": content, **keys})
        return self

    def ask(self) -> Conversation:
        """Add a question."""
        return self.add("user")

    def answer(self, content: Any = ..., **keys: Any) -> Conversation:
        """Add an answer."""
        return self.add("assistant", content, **keys)

    def turns(self, number: int) -> Conversation:
        """Add questions and answers."""
        for _ in range(number):
            self.ask().answer()
        return self

    def thought(self) -> str:
        """Reasoning of the next message."""
        return self.text("reasoning", "assistant", "I think\n\nso")

    def tagged(self) -> str:
        """An answer with its reasoning in tags before it."""
        return f"<think>\n{self.thought()}\n</think>\n\n{self.text(role='assistant')}"

    def call(self, arguments: Any = ..., number: int = 0) -> Message:
        """A call that the next message makes."""
        name = self.word("name")
        if arguments is ...:
            arguments = {self.word("key"): self.text("value", "assistant")}
        return {"id": f"call0000{number}", "type": "function", "function": {"name": name, "arguments": arguments}}

    def calls(self, *calls: Message, content: Any = "", **keys: Any) -> Conversation:
        """Add an answer that calls tools."""
        return self.add("assistant", content, tool_calls=list(calls), **keys)

    def result(self, call: Message, role: str = "tool") -> Conversation:
        """Add what a tool gave."""
        return self.add(role, tool_call_id=call["id"], name=call["function"]["name"])

    def with_tools(self, number: int = 1) -> Conversation:
        """Define tools."""
        self.tools = []
        for _ in range(number):
            name, key = (self.word("tool", "tools", TOOLS) for _ in range(2))
            about, of_key = (self.text("tool", "tools", at=TOOLS) for _ in range(2))
            parameters = {"type": "object", "properties": {key: {"type": "string", "description": of_key}}}
            function = {"name": name, "description": about, "parameters": {**parameters, "required": [key]}}
            self.tools.append({"type": "function", "function": function})
        return self


def _called(chat: Conversation, arguments: Any = ..., **keys: Any) -> Conversation:
    """Add a question, a call, its result and an answer."""
    chat.ask()
    call = chat.call(arguments)
    return chat.calls(call, **keys).result(call).answer()


def _typed(chat: Conversation) -> Message:
    """Arguments of all types."""
    key, value = (lambda: chat.word("key")), (lambda: chat.text("value", "assistant"))
    inner = {key(): [1, 2.5, -3, True, False, value()], key(): {key(): value()}}
    return {key(): inner, key(): 7, key(): True, key(): 0.25, key(): [{key(): value()}, {}], key(): value()}


def _single(chat: Conversation) -> None:
    chat.turns(1)


def _turns(chat: Conversation) -> None:
    chat.turns(3)


def _system(chat: Conversation) -> None:
    chat.add("system").turns(2)


def _system_later(chat: Conversation) -> None:
    chat.add("system").turns(1).add("system").turns(1)


def _system_in_the_middle(chat: Conversation) -> None:
    chat.turns(1).add("system").turns(1)


def _two_systems(chat: Conversation) -> None:
    chat.add("system").add("system").turns(1)


def _developer(chat: Conversation) -> None:
    chat.add("developer").turns(2)


def _system_and_developer(chat: Conversation) -> None:
    chat.add("system").add("developer").turns(1)


def _assistant_first(chat: Conversation) -> None:
    chat.answer().turns(1)


def _system_then_assistant(chat: Conversation) -> None:
    chat.add("system").answer().turns(1)


def _assistant_twice_at_the_end(chat: Conversation) -> None:
    chat.turns(1).answer()


def _assistant_twice(chat: Conversation) -> None:
    chat.turns(1).answer().turns(1)


def _two_users(chat: Conversation) -> None:
    chat.ask().ask().answer()


def _call(chat: Conversation) -> None:
    _called(chat)


def _as_text(chat: Conversation) -> None:
    """Write arguments as JSON text."""
    for message in chat.messages:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])


def _call_as_text(chat: Conversation) -> None:
    _called(chat)
    _as_text(chat)


def _call_typed(chat: Conversation) -> None:
    chat.ask()
    call = chat.call(_typed(chat))
    chat.calls(call).result(call).answer()


def _call_typed_as_text(chat: Conversation) -> None:
    _call_typed(chat)
    _as_text(chat)


def _call_without_arguments(chat: Conversation) -> None:
    _called(chat, {})


def _calls_in_parallel(chat: Conversation) -> None:
    chat.ask()
    one, two = chat.call(), chat.call(number=1)
    chat.calls(one, two).result(one).result(two).answer()


def _call_beside_content(chat: Conversation) -> None:
    chat.ask()
    said, call = chat.text(role="assistant"), chat.call()
    chat.calls(call, content=said).result(call).answer()


def _call_beside_null(chat: Conversation) -> None:
    _called(chat, content=None)


def _call_without_content(chat: Conversation) -> None:
    _called(chat)
    del chat.messages[1]["content"]


def _rounds_of_calls(chat: Conversation) -> None:
    chat.ask()
    for _ in range(3):
        call = chat.call()
        chat.calls(call).result(call)
    chat.answer()
    _called(chat)


def _call_at_the_end(chat: Conversation) -> None:
    chat.ask().calls(chat.call())


def _result_at_the_end(chat: Conversation) -> None:
    chat.ask()
    call = chat.call()
    chat.calls(call).result(call)


def _tools(chat: Conversation) -> None:
    _called(chat.with_tools(2))


def _tools_and_system(chat: Conversation) -> None:
    _called(chat.with_tools().add("system"))
    chat.turns(1)


def _tools_and_no_call(chat: Conversation) -> None:
    chat.with_tools().add("system").turns(2)


def _function(chat: Conversation) -> None:
    chat.ask()
    call = chat.call()
    chat.calls(call).result(call, "function").answer()


def _ipython(chat: Conversation) -> None:
    chat.ask()
    call = chat.call()
    chat.calls(call).result(call, "ipython").answer()


def _reasoning(chat: Conversation) -> None:
    chat.turns(1).ask().answer(reasoning_content=chat.thought())


def _reasoning_every_turn(chat: Conversation) -> None:
    for _ in range(3):
        chat.ask().answer(reasoning_content=chat.thought())


def _reasoning_beside_calls(chat: Conversation) -> None:
    chat.ask()
    thought, call = chat.thought(), chat.call()
    chat.calls(call, reasoning_content=thought).result(call).answer(reasoning_content=chat.thought())


def _reasoning_content_and_call(chat: Conversation) -> None:
    chat.ask()
    thought, said, call = chat.thought(), chat.text(role="assistant"), chat.call()
    chat.calls(call, content=said, reasoning_content=thought).result(call).answer()


def _think_tags(chat: Conversation) -> None:
    chat.turns(1).ask().answer(chat.tagged())


def _think_tags_every_turn(chat: Conversation) -> None:
    for _ in range(3):
        chat.ask().answer(chat.tagged())


def _think_tags_beside_call(chat: Conversation) -> None:
    chat.ask()
    said, call = chat.tagged(), chat.call()
    chat.calls(call, content=said).result(call).answer(chat.tagged())


def _parts(number: int) -> Callable[[Conversation], None]:
    def make(chat: Conversation) -> None:
        for role in ("user", "assistant") * 2:
            chat.add(role, [{"type": "text", "text": chat.text(role=role)} for _ in range(number)])

    return make


def _empty_answer(chat: Conversation) -> None:
    chat.turns(1).ask().answer("").turns(1)


def _user_last(chat: Conversation) -> None:
    chat.turns(1).ask()


def _white_space(chat: Conversation) -> None:
    for role in ("system", "user", "assistant", "user", "assistant"):
        chat.add(role, f"  \n{chat.text(role=role)} \n\n")


def _unicode(chat: Conversation) -> None:
    for role in ("user", "assistant") * 2:
        chat.add(role, chat.text(role=role, words=_SAID))


def _quotes(chat: Conversation) -> None:
    chat.ask()
    asked = chat.messages[0]["content"]
    chat.answer(chat.text(role="assistant", words=f"You said: {asked}"))
    said = chat.messages[1]["content"]
    chat.add("user", chat.text(words=f"You wrote {said}")).answer(chat.text(role="assistant", words=said))


def _weights(chat: Conversation) -> None:
    for weight in (0, 1, 0):
        chat.ask().answer(chat.text(role="assistant" if weight else UNLEARNED), weight=weight)


def _long(chat: Conversation) -> None:
    chat.turns(10)


_MAKERS: dict[str, Callable[[Conversation], None]] = {
    "single turn": _single,
    "three turns": _turns,
    "system": _system,
    "system, and another later": _system_later,
    "system in the middle": _system_in_the_middle,
    "two systems": _two_systems,
    "developer": _developer,
    "system and developer": _system_and_developer,
    "assistant first": _assistant_first,
    "system, then assistant": _system_then_assistant,
    "assistant twice at the end": _assistant_twice_at_the_end,
    "assistant twice": _assistant_twice,
    "two users in a row": _two_users,
    "call": _call,
    "call, arguments as text": _call_as_text,
    "call, typed arguments": _call_typed,
    "call, typed arguments as text": _call_typed_as_text,
    "call without arguments": _call_without_arguments,
    "parallel calls": _calls_in_parallel,
    "call beside content": _call_beside_content,
    "call beside null": _call_beside_null,
    "call without content": _call_without_content,
    "rounds of calls": _rounds_of_calls,
    "call at the end": _call_at_the_end,
    "result at the end": _result_at_the_end,
    "tools": _tools,
    "tools and system": _tools_and_system,
    "tools and no call": _tools_and_no_call,
    "function": _function,
    "ipython": _ipython,
    "reasoning": _reasoning,
    "reasoning in every turn": _reasoning_every_turn,
    "reasoning beside calls": _reasoning_beside_calls,
    "reasoning, content and call": _reasoning_content_and_call,
    "think tags": _think_tags,
    "think tags in every turn": _think_tags_every_turn,
    "think tags beside call": _think_tags_beside_call,
    "one part": _parts(1),
    "several parts": _parts(3),
    "empty answer": _empty_answer,
    "user last": _user_last,
    "white space": _white_space,
    "unicode": _unicode,
    "quotes": _quotes,
    "weights": _weights,
    "twenty messages": _long,
}


def _make(name: str) -> Conversation:
    chat = Conversation(name)
    _MAKERS[name](chat)
    return chat


EQUAL = {"call, arguments as text": "call", "call, typed arguments as text": "call, typed arguments"}
"""Conversations that say the same as others."""
CONVERSATIONS = {name: _make(name) for name in _MAKERS}
