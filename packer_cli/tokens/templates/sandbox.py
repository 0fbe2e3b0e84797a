"""A faster sandbox for chat templates that gives the same text.

Chat templates come from the Hub and so run in jinja's sandbox. Most of the time of a render goes into
the sandbox's checks of attributes of plain dicts and strings, whose outcome is known in advance:

- an attribute that no `dict` has is looked up as a key (as jinja does in the end);
- a variable of a `namespace` that holds plain data is as safe as a variable of the template;
- methods of `str` that neither format nor touch anything but the string are safe to read and call.

Everything else goes through jinja's own checks. About 2.5 times as fast as the plain sandbox on ChatML.
"""

from __future__ import annotations

from functools import lru_cache
from types import BuiltinMethodType
from typing import Any, cast

from packer_cli.tokens.templates.limits import check_operator

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
