"""Turns that look alike stay apart: each call keeps the id that its result answers."""

from __future__ import annotations

import pytest

from toolgym.envs import ToolEnv
from toolgym.envs.base import StopReason
from toolgym.envs.tasks.task import Task
from toolgym.rollout import RunConfig, SamplingParams, rollout
from toolgym.rollout.engines.base import FinishReason
from toolgym.rollout.tokens import ContextPolicy, KeepToolResults
from toolgym.rollout.tokens.template_check import byte_tokenizer
from toolgym.tools import tool

TASK = Task(({"role": "user", "content": "q"},), id="q")
CALL = '<tool_call>\n{"name": "count", "arguments": {}}\n</tool_call>'

# Writes the ids, and refuses a result whose id the assistant's message before it did not ask for.
STRICT = """{%- set state = namespace(asked=[]) -%}
{%- for m in messages -%}
{%- if m.role == 'tool' and m.tool_call_id not in state.asked -%}
{{- raise_exception('nothing asked for ' ~ m.tool_call_id) -}}
{%- endif -%}
{{- '<|im_start|>' ~ m.role ~ '\n' -}}
{%- if m.role == 'tool' -%}{{- m.tool_call_id ~ '=' -}}{%- endif -%}
{{- m.content -}}
{%- if m.role == 'assistant' -%}
{%- set state.asked = [] -%}
{%- for call in m.tool_calls or [] -%}
{%- set state.asked = state.asked + [call.id] -%}
{{- '<tool_call>\n{"name": "' ~ call.function.name ~ '", "arguments": ' ~ call.function.arguments|tojson -}}
{{- '}\n</tool_call>' -}}
{%- if not loop.last -%}{{- '\n' -}}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"""


@tool
def count() -> str:
    """Count."""
    return "1"


class KeepFirst(ContextPolicy):
    """Drops all turns and results but the first and the last ones."""

    async def revise(self, messages, state):
        return [*messages[:3], *messages[-2:]] if len(messages) > 5 else messages


class KeepLast(ContextPolicy):
    """Drops all turns and results but the last ones."""

    async def revise(self, messages, state):
        return [messages[0], *messages[-2:]]


@pytest.mark.parametrize(
    ("policy", "shown"),
    [
        (KeepToolResults(1), ["call_0", "call_1", "call_2"]),
        (KeepFirst(), ["call_0", "call_2"]),
        (KeepLast(), ["call_2"]),
    ],
)
async def test_turns_of_the_same_text_keep_their_own_call_ids(scripted_engine, exact, policy, shown):
    tokenizer = byte_tokenizer(STRICT)
    spaced = f"{CALL}\n"  # the template would write it otherwise, so each turn is kept as its text
    ids = [*tokenizer.encode(spaced, add_special_tokens=False), tokenizer.convert_tokens_to_ids("<|im_end|>")]

    def script(prompt, request_id):
        return (ids, FinishReason.STOP) if request_id.split("-")[1] in "012" else "done"

    engine = scripted_engine(tokenizer, script)
    config = RunConfig(context=policy, sampling=SamplingParams(max_new_tokens=200))
    [one] = await rollout(lambda: ToolEnv([count], [TASK]), engine, [TASK], tokenizer=tokenizer, config=config)
    assert one.error is None
    assert one.stop_reason is StopReason.ANSWERED
    exact(engine, one)
    assert [message["content"] for message in one.messages if message["role"] == "assistant"][:3] == [spaced] * 3
    last = tokenizer.decode(one.sequences[-1].prompt_ids)
    assert [part.partition("=")[0] for part in last.split("<|im_start|>tool\n")[1:]] == shown
