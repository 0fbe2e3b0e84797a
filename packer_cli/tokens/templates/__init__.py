r"""Chat templates: a conversation's text, and the char ranges that the assistant would have generated.

::

    messages -> conversation.py   normalizes them as transformers does
                    |
                shape.py          what decides how a template writes them, but their words
                    |
                rehearsal.py      once a shape: a made-up conversation -> what is written, by which way the assistant's
                    |             text is found, what stands before and after it; forms.py: other forms of messages
    template -> template.py       text, in transformers' sandbox, with limits of time and memory (memory.py)
                    |
                rounds.py ------> text and rounds: the text of each assistant message; rounds -> ranges
                    |   \         from header to end of turn
                    |    minijinja.py   the same with minijinja, faster; translate.py, rules.py
                written.py        compares the text with the messages
                    |
                parts.py          ranges -> reasoning, answer and tool calls, for `--loss-on`

    renderer.py   ChatRenderer: all of this for one template
    jinja/        templates that `--chat-template` knows by name

The text is that of `tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)`, of messages in the form
that the template writes.

There are three ways to find the assistant's text; the first that a rehearsal proves is taken for a shape:

generation   the template marks it with `{% generation %}`; the ranges are transformers' own
marks        the loop over the messages is marked (see `rounds`); one render gives everything
prefixes     `messages[:i]` is rendered for each assistant message; quadratic

With `marks` and `prefixes`, a range begins where the text before the message, with a generation prompt, ends, and ends
after the end-of-turn token; whitespace after that token is not the model's.

minijinja is a different engine, so hbpack guards it as it guards gigatoken: it compares each part's first chats, and
some of the others, with jinja2 and transformers. A template or chat that minijinja cannot render, or may render
differently, goes to jinja2.
Price: 30 to 55 us for a chat of eight messages; 60 to 300 us with jinja2; several times that with `prefixes`; and 5 ms
for each shape.
"""
