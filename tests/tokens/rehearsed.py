"""Templates and conversations whose shapes are rehearsed, with the loss marked."""

from packer_cli.tokens.templates.assistant_ranges import ChatRenderer

SPECIALS = ("<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>", "<|tool|>", "</s>")
USER = {"role": "user", "content": "How warm?"}
TOOL = {"role": "tool", "content": "ten"}
LAST = {"role": "assistant", "content": "Ten degrees."}


def calling(arguments, **others):
    function = {"name": "measure", "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}], **others}


def renderer(template, **options):
    return ChatRenderer(template, variables={"eos_token": "</s>"}, special_tokens=SPECIALS, **options)


def marked(template, messages, tools=None, **options):
    """The text with brackets around what carries a loss."""
    ours = renderer(template, **options)
    text, spans, _ = ours.render(messages, tools)
    for start, stop in reversed(spans):
        text = f"{text[:start]}[{text[start:stop]}]{text[stop:]}"
    return text


def notes(template, messages, parts=None, **options):
    ours = renderer(template, **options)
    chat = ours.read(messages)
    return list(ours.review(chat, ours.render_chat(chat), parts))


HEAD = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
SIMPLE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}" + HEAD
CALLS = "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ ARGUMENTS }}{% endfor %}"
OBJECTS = SIMPLE.replace("{{ m.content }}", "{{ m.content }}" + CALLS)
TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
