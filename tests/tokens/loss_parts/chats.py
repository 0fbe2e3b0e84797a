"""Chats with reasoning and tool calls, and their parts as Qwen3's template writes them."""

from packer_cli.tokens.templates.assistant_ranges import ChatRenderer
from packer_cli.tokens.templates.parts import LossParts


def call(name, **arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


CHAT = [
    {"role": "user", "content": "What is 12 x 7?"},
    {"role": "assistant", "content": "84.", "reasoning_content": "Ten times seven, and two times seven."},
    {"role": "user", "content": "And the weather in Oslo and Rome?"},
    {
        "role": "assistant",
        "content": "Let me look.",
        "reasoning_content": "I need a tool.\n\nTwo calls.",
        "tool_calls": [call("weather", city="Oslo"), call("weather", city="Rome")],
    },
    {"role": "tool", "content": "rain"},
    {"role": "tool", "content": "sun"},
    {"role": "assistant", "content": "Rain in Oslo, sun in Rome.", "reasoning_content": "Both are known."},
]
CALLS = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
)
THOUGHTS = [
    "<think>\nI need a tool.\n\nTwo calls.\n</think>",
    "<think>\nBoth are known.\n</think>",
]
"""Of the first answer the thinking is not in the text: Qwen3 leaves out what it thought before the last question."""
ANSWERS = ["84.<|im_end|>", f"\n\nLet me look.\n{CALLS}<|im_end|>", "\n\nRain in Oslo, sun in Rome.<|im_end|>"]
GOLDEN = {
    "completion": [ANSWERS[0], THOUGHTS[0] + ANSWERS[1], THOUGHTS[1] + ANSWERS[2]],
    "last-turn": [THOUGHTS[1] + ANSWERS[2]],
    "reasoning": THOUGHTS,
    "no-reasoning": ANSWERS,
    "tool-calls": [CALLS],
    "reasoning+tool-calls": [THOUGHTS[0], CALLS, THOUGHTS[1]],
    "last-turn+reasoning": THOUGHTS[1:],
    "last-turn+no-reasoning": ANSWERS[2:],
    "last-turn+tool-calls": [],
}


def renderer(template, eos="<|im_end|>", **options):
    specials = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end|>", "<|call|>", "</s>", eos)
    variables = {"bos_token": "<s>", "eos_token": eos}
    return ChatRenderer(template, variables=variables, special_tokens=specials, **options)


def selected(template, messages, loss_on, **options):
    """The texts with a loss."""
    ours = renderer(template, **options)
    chat = ours.read(messages)
    rendered = ours.render_chat(chat)
    return [rendered.text[a:b] for a, b in ours.loss_spans(chat, rendered, LossParts.of(loss_on))[0]]


def assistant(**message):
    return [{"role": "user", "content": "Hi"}, {"role": "assistant", **message}]
