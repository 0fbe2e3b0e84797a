"""Chat templates: a conversation's text, and the char ranges that the assistant would have generated.

::

    messages -> conversation.py   as transformers hands them to a template; chats to try a template on
                    |
    template -> compiled.py ----> text; sandbox.py: jinja's sandbox, faster; limits.py: time and memory
                    |
                marks.py ---------------> text and rounds: what each assistant message wrote
                    |   \\
                    |    minijinja/   the same by minijinja, several times as fast
                    |    specialize.py   leaves out what plain chats skip
                prefixes.py   the same from shorter renders
                    |
                turns.py      rounds -> ranges: without the header, up to the end of the turn
                    |
                renderer.py   ChatRenderer: picks the way, gives `Rendered`; mismatch.py: compares it with slower ways

The text is that of `tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)`.

Where the assistant's text lies is found in one of three ways (`ChatRenderer.way`):

generation   the template marks it with `{% generation %}`; the ranges are transformers' own
marks        the loop over the messages is marked (see `marks`); one render gives everything
prefixes     `messages[:i]` is rendered for each assistant message; quadratic, for templates without such a loop

For `marks` and `prefixes` a range begins after the part of the generation prompt that the assistant's
text begins with, and ends after the end-of-turn token; whitespace after that token is not the model's.

minijinja is another engine, so it is used as gigatoken is: each part's first chats and a spread of the others are
compared with jinja2 and transformers, and a template or a chat that it cannot do, or may take differently, goes to
jinja2.
Price: about 22 us for a chat of eight messages; 55 us by jinja2; 0.4 ms with `prefixes`.
"""

from packer_cli.tokens.templates.conversation import read_chat
from packer_cli.tokens.templates.renderer import ChatRenderer
from packer_cli.tokens.templates.types import TemplateRejectError

__all__ = ["ChatRenderer", "TemplateRejectError", "read_chat"]
