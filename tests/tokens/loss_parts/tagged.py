"""Templates with `{% generation %}` around each part of a turn, as their authors would tag them."""

from tests.tokens.published_templates import LLAMA31, MISTRAL, QWEN3


def tagged(template, *changes):
    for old, new in changes:
        assert old in template
        template = template.replace(old, new)
    return template


TURN = (
    "{{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + "
    "content.lstrip('\\n') }}"
)
HEAD = "{{- '<|im_start|>' + message.role + '\\n' }}"
THINK = "{{- '<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>' }}"
REST = "{{- '\\n\\n' + content.lstrip('\\n') }}"
PLAIN = "{{- '<|im_start|>' + message.role + '\\n' + content }}\n            {%- endif %}"
BARE = "{{- '<|im_start|>' + message.role + '\\n' + content }}\n        {%- endif %}"
CALL_LOOP = "{%- for tool_call in message.tool_calls %}"
LOOP = CALL_LOOP + "\n                {%- if (loop.first and content) or (not loop.first) %}"
LOOP_END = "'}\\n</tool_call>' }}\n            {%- endfor %}"
END = "        {{- '<|im_end|>\\n' }}\n    {%- elif message.role == \"tool\" %}"


def wrapped(text):
    return "{% generation %}" + text + "{% endgeneration %}"


def answers_tagged(text, end):
    return text.replace("content }}\n", "'' }}" + wrapped("{{- content }}") + "\n").removesuffix(end) + end


QWEN3_TAGGED = {
    "reasoning": tagged(QWEN3, (TURN, HEAD + wrapped(THINK) + REST)),
    "no-reasoning": tagged(
        QWEN3,
        (TURN, HEAD + THINK + wrapped(REST)),
        (PLAIN, answers_tagged(PLAIN, "{%- endif %}")),
        (BARE, answers_tagged(BARE, "{%- endif %}")),
        (LOOP, "{% generation %}" + LOOP),
        (LOOP_END, LOOP_END + "{% endgeneration %}"),
        (END, wrapped("{{- '<|im_end|>' }}") + END.replace("<|im_end|>", "")),
    ),
    "tool-calls": tagged(
        QWEN3,
        (
            LOOP,
            "{%- if content %}{{- '\\n' }}{%- endif %}{% generation %}"
            + LOOP.replace("(loop.first and content) or ", ""),
        ),
        (LOOP_END, LOOP_END + "{% endgeneration %}"),
    ),
}
LLAMA = LLAMA31.replace("<|eot_id|>", "<|im_end|>")
"""Ends turns with a special token of the tests' tokenizers."""
LLAMA_TURN = (
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ "
    "message['content'] | trim + '<|im_end|>' }}"
)
LLAMA_HEAD = "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}"
LLAMA_REST = "{{- message['content'] | trim + '<|im_end|>' }}"
LLAMA_CALL = '{{- \'{"name": "\' + tool_call.name'
LLAMA_CALL_END = '{{- "}" }}\n        {%- endif %}'
MISTRAL_CALLS = '{{- "[TOOL_CALLS] [" }}'
MISTRAL_CALLS_END = '{{- "}]" + eos_token }}'
MISTRAL_ANSWER = '{{- " " + message["content"]|trim + eos_token}}'
AFTER_CALLS = '{%- endfor %}\n    {%- elif message["role"] == "assistant"'
TAGGED = {
    "qwen3": QWEN3_TAGGED,
    "llama3.1": {
        "reasoning": None,
        "no-reasoning": tagged(
            LLAMA,
            (
                LLAMA_TURN,
                "{%- if message.role == 'assistant' %}" + LLAMA_HEAD + wrapped(LLAMA_REST)
                + "{%- else %}" + LLAMA_HEAD + LLAMA_REST + "{%- endif %}",
            ),
            (LLAMA_CALL, "{%- generation %}" + LLAMA_CALL),
            (LLAMA_CALL_END, '{{- "}<|im_end|>" }}{%- endgeneration %}\n        {%- endif %}'),
            ('        {{- "<|im_end|>" }}\n    {%- else %}', "    {%- else %}"),
        ),
        "tool-calls": tagged(
            LLAMA,
            (LLAMA_CALL, "{%- generation %}" + LLAMA_CALL),
            (LLAMA_CALL_END, '{{- "}" }}{%- endgeneration %}\n        {%- endif %}'),
        ),
    },
    "mistral": {
        "reasoning": None,
        "no-reasoning": tagged(
            MISTRAL,
            (MISTRAL_CALLS, "{%- generation %}" + MISTRAL_CALLS),
            (AFTER_CALLS, AFTER_CALLS.replace("endfor %}", "endfor %}{%- endgeneration %}")),
            (MISTRAL_ANSWER, wrapped(MISTRAL_ANSWER)),
        ),
        "tool-calls": tagged(
            MISTRAL,
            (MISTRAL_CALLS, "{%- generation %}" + MISTRAL_CALLS),
            (MISTRAL_CALLS_END, '{{- "}]" }}'),
            (AFTER_CALLS, AFTER_CALLS.replace("endfor %}", "endfor %}{%- endgeneration %}{{- eos_token }}")),
        ),
    },
}  # fmt: skip
"""Of each template, one for each part; None: it has no such part."""
