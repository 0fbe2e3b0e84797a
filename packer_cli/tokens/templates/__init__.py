r"""Chat templates: a conversation's text, and the char ranges that the assistant would have generated.

::

    messages -> conversation.py   normalizes them as transformers does; chats to try a template on
                    |
    template -> template.py ---> text, in transformers' sandbox, with a limit of time
                    |
                rounds.py ------> text and rounds: the text of each assistant message;
                    |   \           rounds -> ranges from header to end of turn
                    |    minijinja.py   the same with minijinja, faster; translate.py, rules.py
                parts.py      ranges -> reasoning, answer and tool calls, for `--loss-on`
                    |
                renderer.py   ChatRenderer: chooses the way, returns `Rendered`; compares slower ways
    jinja/      templates that `--chat-template` knows by name

The text is that of `tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)`.

There are three ways to find the assistant's text (`ChatRenderer.way`):

generation   the template marks it with `{% generation %}`; the ranges are transformers' own
marks        the loop over the messages is marked (see `rounds`); one render gives everything
prefixes     `messages[:i]` is rendered for each assistant message; quadratic, for templates without such a loop

With `marks` and `prefixes`, a range begins after the part of the generation prompt that the assistant's
text begins with, and ends after the end-of-turn token; whitespace after that token is not the model's.

minijinja is a different engine, so hbpack guards it as it guards gigatoken: it compares each part's first chats, and
some of the others, with jinja2 and transformers. A template or chat that minijinja cannot render, or may render
differently, goes to jinja2.
Price: 25 to 50 us for a chat of eight messages; 60 to 300 us with jinja2; several times that with `prefixes`.
"""
