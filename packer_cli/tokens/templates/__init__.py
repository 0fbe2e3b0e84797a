r"""Chat templates: a conversation's text, and the char ranges that the assistant would have generated.

::

    messages -> conversation.py   normalizes them as transformers does
                    |
                shape.py          what decides how a template writes them, but their words; other forms of messages
                    |
                rehearsal.py      once a shape: a made-up conversation -> what is written, by which way the assistant's
                    |             text is found, what stands before and after it
    template -> template.py       text, in transformers' sandbox, with limits of time and memory (memory.py)
                    |
                outline.py        of plain messages, text and ranges without rendering them
                    |
                rounds.py ------> text and rounds: the text of each assistant message; rounds -> ranges
                    |             from header to end of turn
                written.py        compares the text with the messages
                    |
                parts.py          ranges -> reasoning, answer and tool calls, for `--loss-on`

    assistant_ranges.py   ChatRenderer: all of this for one template, and the ranges of the assistant
    jinja/        templates that `--chat-template` knows by name

The text is that of `tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)`, of messages in the form
that the template writes.

There are three ways to find the assistant's text; the first that a rehearsal proves is taken for a shape:

tags      the template marks it with `{% generation %}`; the ranges are transformers' own
loops     the loop over the messages is marked (see `rounds`); one render gives everything
prefixes  `messages[:i]` is rendered for each assistant message; quadratic

With `loops` and `prefixes`, a range begins where the text before the message, with a generation prompt, ends, and ends
after the end-of-turn token; whitespace after that token is not the model's.

Outlines are a short way, so hbpack guards them as it guards gigatoken: it compares each part's first chats, and some
of the others, with transformers.
Price: 9 us for a plain chat of eight messages; 35 to 180 us with jinja2; several times that with `prefixes`; and 10 ms
for each shape.
"""
