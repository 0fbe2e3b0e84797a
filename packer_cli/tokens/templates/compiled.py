"""A chat template, compiled by jinja2: a conversation's text, and the ranges inside `{% generation %}` tags.

A faster sandbox for chat templates that gives the same text. Chat templates come from the Hub and so run in jinja's
sandbox. Most of the time of a render goes into the sandbox's checks of attributes of plain dicts and strings, whose
outcome is known in advance:

- an attribute that no `dict` has is looked up as a key (as jinja does in the end);
- a variable of a `namespace` that holds plain data is as safe as a variable of the template;
- methods of `str` that neither format nor touch anything but the string are safe to read and call.

Everything else goes through jinja's own checks. About 2.5 times as fast as the plain sandbox on ChatML.
"""

from __future__ import annotations

from functools import lru_cache
from types import BuiltinMethodType
from typing import Any, cast

from packer_cli.errors import TokenizerError
from packer_cli.tokens.templates.conversation import PROBES, Chat, read_chat
from packer_cli.tokens.templates.limits import TemplateLimitError, check_operator, limited
from packer_cli.tokens.templates.types import Rendered, Span, TemplateRejectError, cannot_render, one_line


class CompiledTemplate:
    """A compiled template.

    Args:
        source: Jinja.
        variables: values that transformers passes to every template (`special_tokens_map`).
        fast: use the shortcuts of this file; otherwise transformers' own sandbox.

    Raises:
        TokenizerError: the template is not valid Jinja, or takes too long to compile.
    """

    def __init__(self, source: str, variables: dict[str, str], *, fast: bool):
        from jinja2 import TemplateError, nodes

        self.source = source
        self.variables = variables
        try:
            self.environment = make_environment(fast=fast)
            tree = self.environment.parse(source)
            self._template = limited(lambda: self.environment.from_string(source))
        except (TemplateError, RecursionError, SyntaxError) as error:
            raise TokenizerError(
                f"the chat template is not valid Jinja ({one_line(error)}); give another with --chat-template FILE"
            ) from None
        except TemplateLimitError:
            raise TokenizerError(
                "the chat template takes too long to compile; give another with --chat-template FILE"
            ) from None
        self._names = {node.name for node in tree.find_all(nodes.Name) if node.ctx == "load"}
        self.has_generation_tags = any(is_generation(node) for node in tree.find_all(nodes.CallBlock))

    def reads(self, name: str) -> bool:
        """Whether the source reads a variable of this name."""
        return name in self._names

    def context(self, chat: Chat | None = None) -> dict[str, Any]:
        """The template's variables for a conversation; without one, those that never change."""
        own = {} if chat is None else {"messages": chat.messages, "tools": chat.tools}
        return {
            **own,
            "documents": None,
            "add_generation_prompt": False,
            **self.variables,
        }

    def text(self, context: dict[str, Any], **changes: Any) -> str:
        """The text for a context from `context`, with some variables changed.

        Raises:
            TemplateRejectError: the template raised.
        """
        template = self._template
        try:
            return limited(lambda: "".join(template.root_render_func(template.new_context({**context, **changes}))))
        except Exception as error:
            raise cannot_render(error) from None

    def text_and_generation(self, context: dict[str, Any]) -> Rendered:
        """The text and the ranges inside `{% generation %}` tags. Quadratic in the number of tags.

        Raises:
            TemplateRejectError: the template raised.
        """
        template = self._template
        blocks: list[str] = []
        spans: list[Span] = []

        def render() -> None:
            with self.environment.activate_tracker(blocks, spans):
                for block in template.root_render_func(template.new_context(context)):
                    blocks.append(block)

        try:
            limited(render)
        except Exception as error:
            raise cannot_render(error) from None
        # Drop empty blocks: transformers would mark the token at their position.
        return Rendered("".join(blocks), sorted(span for span in spans if span[1] > span[0]))

    def generation_prompt(self) -> str:
        """The text that `add_generation_prompt=True` adds after a user message; may be empty."""
        for messages in (PROBES[0][:1], PROBES[0]):
            try:
                context = self.context(read_chat(messages))
                plain, prompted = self.text(context), self.text(context, add_generation_prompt=True)
            except TemplateRejectError:
                continue
            # Some templates end a conversation with EOS unless an answer is to follow.
            for so_far in (plain, plain.removesuffix(self.variables.get("eos_token", ""))):
                if prompted.startswith(so_far):
                    return prompted[len(so_far) :]
        return ""


def is_generation(node: Any) -> bool:
    """Whether a call block comes from a `{% generation %}` tag."""
    return getattr(node.call.node, "name", "") == "_generation_support"


_DICT_ATTRIBUTES = frozenset(dir(dict))

_STR_METHODS = """
capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit islower isnumeric
isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex
rpartition rsplit rstrip split splitlines startswith strip swapcase title upper
"""
_SAFE_STR_METHODS = frozenset(_STR_METHODS.split())
"""Without `format` and `format_map`, which the sandbox wraps, and without `encode`, `translate` and the like."""

_LOOP_ATTRIBUTES = frozenset(("index", "index0", "first", "last", "length", "revindex", "revindex0", "depth"))

_SYNTAX = ("trim_blocks", "lstrip_blocks", "keep_trailing_newline", "newline_sequence", "undefined", "autoescape")
"""Options of an environment that change how it parses and renders a template."""

_PLAIN_TYPES = frozenset((str, int, float, bool, type(None), list, dict))


@lru_cache(maxsize=1)
def _fast_sandbox() -> type:
    from jinja2 import nodes
    from jinja2.compiler import CodeGenerator
    from jinja2.runtime import LoopContext
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import missing

    slow_getattr = ImmutableSandboxedEnvironment.getattr
    slow_call = ImmutableSandboxedEnvironment.call

    class FastCode(CodeGenerator):
        """Writes look-ups in plain dicts, loop counters and safe calls on strings into the code itself."""

        def visit_Getattr(self, node: Any, frame: Any) -> None:  # noqa: N802 - jinja's name
            # Only for names: any other expression would be evaluated three times.
            if not isinstance(node.node, nodes.Name) or node.attr in _DICT_ATTRIBUTES:
                super().visit_Getattr(node, frame)
                return
            if node.node.name == "loop" and node.attr in _LOOP_ATTRIBUTES:
                self._choose(f"{{}}.{node.attr}", "type({}) is LoopContext", node.node, frame)
                super().visit_Getattr(node, frame)
                self.write(")")
                return
            self._choose(f"{{}}[{node.attr!r}]", f"type({{}}) is dict and {node.attr!r} in {{}}", node.node, frame)
            super().visit_Getattr(node, frame)
            self.write(")")

        def visit_Call(self, node: Any, frame: Any, forward_caller: bool = False) -> None:  # noqa: N802
            called = node.node
            is_method = isinstance(called, nodes.Getattr) and called.attr in _SAFE_STR_METHODS
            plain = not (forward_caller or node.kwargs or node.dyn_args or node.dyn_kwargs)
            if not (is_method and plain and isinstance(called.node, nodes.Name)):
                super().visit_Call(node, frame, forward_caller=forward_caller)
                return
            self._choose(f"{{}}.{called.attr}(", None, called.node, frame)
            for argument in node.args:
                self.visit(argument, frame)
                self.write(", ")
            self._choose(")", "type({}) is str", called.node, frame, opens=False)
            super().visit_Call(node, frame, forward_caller=forward_caller)
            self.write(")")

        def _choose(self, value: str, condition: str | None, name: Any, frame: Any, *, opens: bool = True) -> None:
            """Write `(value if condition else `; `{}` in both stands for the code of a name."""
            self.write("(" * opens)
            self._fill(value, name, frame)
            if condition is not None:
                self.write(" if ")
                self._fill(condition, name, frame)
                self.write(" else ")

        def _fill(self, code: str, name: Any, frame: Any) -> None:
            first, *rest = code.split("{}")
            self.write(first)
            for part in rest:
                self.visit(name, frame)
                self.write(part)

    class FastSandbox(ImmutableSandboxedEnvironment):
        """`ImmutableSandboxedEnvironment` with the shortcuts that the module's docstring lists."""

        code_generator_class = FastCode
        intercepted_binops = frozenset(("*", "**"))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            check_operator(operator, left, right)
            return super().call_binop(context, operator, left, right)

        def getattr(self, obj: Any, attribute: str) -> Any:
            kind = type(obj)
            if kind is dict:
                if attribute not in _DICT_ATTRIBUTES:
                    # It is usually missing: the compiled template has already looked.
                    value = obj.get(attribute, missing)
                    return self.undefined(obj=obj, name=attribute) if value is missing else value
            elif kind is str:
                if attribute in _SAFE_STR_METHODS:
                    return getattr(obj, attribute)
            elif kind is LoopContext:
                if attribute in _LOOP_ATTRIBUTES:
                    return getattr(obj, attribute)
            elif kind is self.globals["namespace"] and attribute[:1] != "_":
                try:
                    value = getattr(obj, attribute)
                except AttributeError:
                    return self.undefined(obj=obj, name=attribute)
                if type(value) in _PLAIN_TYPES:
                    return value
            return slow_getattr(self, obj, attribute)

        # jinja passes the template's keyword arguments, which must not collide with the first three.
        def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
            if (
                type(__obj) is BuiltinMethodType
                and type(__obj.__self__) is str
                and __obj.__name__ in _SAFE_STR_METHODS
            ):
                if not kwargs:
                    return __obj(*args)
                kwargs.pop("_loop_vars", None)
                kwargs.pop("_block_vars", None)
                return __obj(*args, **kwargs)
            return slow_call(__self, __context, __obj, *args, **kwargs)

    return FastSandbox


def make_environment(*, fast: bool = True) -> Any:
    """A new environment with transformers' filters, globals and `{% generation %}` tag.

    Args:
        fast: use the shortcuts of this module; otherwise transformers' own class.
    """
    from transformers.utils.chat_template_utils import _cached_compile_jinja_template

    # Not the memoized `_compile_jinja_template`: its environment is shared with transformers' own renders.
    theirs = cast("Any", _cached_compile_jinja_template("")).environment
    if not fast:
        return theirs
    environment = _fast_sandbox()(
        **{name: getattr(theirs, name) for name in _SYNTAX},
        extensions=[type(extension) for extension in theirs.extensions.values()],
    )
    for names in ("filters", "tests", "globals", "policies"):
        getattr(environment, names).update(getattr(theirs, names))
    return environment
