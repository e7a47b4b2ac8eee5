"""The renderer reads turns as its model writes them, so a runner needs no parser by name."""

from __future__ import annotations

import pytest

from tests.trl_templates import FOLDER
from toolgym.envs import BaseEnv, StepResult, ToolEnv
from toolgym.envs.base import StopReason
from toolgym.envs.tasks.task import Task
from toolgym.rollout import RunConfig, Runner, SamplingParams, rollout
from toolgym.rollout.engines.base import FinishReason
from toolgym.rollout.tokens import ChatRenderer
from toolgym.rollout.tokens.template_check import byte_tokenizer
from toolgym.tools import tool
from toolgym.tools.errors import TemplateError, UnknownNameError
from toolgym.tools.message import user
from toolgym.tools.parsers import ParsedTurn, get_parser, parse_hermes
from toolgym.tools.schema import ToolSchema
from toolgym.wrappers import Wrapper

TASK = Task(({"role": "user", "content": "q"},), id="q")

# The shape of Mistral's own template: ids of nine letters or digits, and of Llama 4's: calls as Python writes them.
MISTRAL = """{{- bos_token }}
{%- for m in messages -%}
{%- if m.role == 'tool' and m.tool_call_id|length != 9 -%}
{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') -}}
{%- endif -%}
{%- if m.role == 'user' -%}
{%- if tools and loop.last -%}{{- '[AVAILABLE_TOOLS]' ~ tools|tojson ~ '[/AVAILABLE_TOOLS]' -}}{%- endif -%}
{{- '[INST]' ~ m.content ~ '[/INST]' -}}
{%- elif m.role == 'tool' -%}
{{- '[TOOL_RESULTS]{"content": ' ~ m.content ~ ', "call_id": "' ~ m.tool_call_id ~ '"}[/TOOL_RESULTS]' -}}
{%- elif m.tool_calls -%}
{{- '[TOOL_CALLS][' -}}
{%- for call in m.tool_calls -%}
{{- '{"name": "' ~ call.function.name ~ '", "arguments": ' ~ call.function.arguments|tojson ~ ', "id": "' -}}
{{- call.id ~ '"}' -}}
{%- if not loop.last -%}{{- ', ' -}}{%- endif -%}
{%- endfor -%}
{{- ']' ~ eos_token -}}
{%- else -%}
{{- m.content ~ eos_token -}}
{%- endif -%}
{%- endfor -%}"""
PYTHONIC = """{%- if tools -%}
{{- '<|header_start|>system<|header_end|>\\n\\nUse the format [func_name1(param1=value1), func_name2()].' -}}
{{- tools|tojson ~ '<|eot|>' -}}
{%- endif -%}
{%- for m in messages -%}
{{- '<|header_start|>' ~ ('ipython' if m.role == 'tool' else m.role) ~ '<|header_end|>\\n\\n' ~ m.content -}}
{%- if m.tool_calls -%}
{{- '[' -}}
{%- for call in m.tool_calls -%}
{{- call.function.name ~ '(' -}}
{%- for name, value in call.function.arguments.items() -%}
{{- name ~ '=' ~ value|tojson -}}{%- if not loop.last -%}{{- ', ' -}}{%- endif -%}
{%- endfor -%}
{{- ')' -}}{%- if not loop.last -%}{{- ', ' -}}{%- endif -%}
{%- endfor -%}
{{- ']' -}}
{%- endif -%}
{{- '<|eot|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|header_start|>assistant<|header_end|>\\n\\n' -}}{%- endif -%}"""
PLAIN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
THINKING = PLAIN + (
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if messages[-1].role == 'user' %}<think>\n{% endif %}"
    '{% endif %}{# <tool_call> "arguments" #}'
)


@tool
def double(number: int) -> str:
    """Double a number.

    Args:
        number: what to double
    """
    return str(2 * number)


def trl_template(name):
    return (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")


def coder(number):
    return f"<tool_call>\n<function=double>\n<parameter=number>\n{number}\n</parameter>\n</function>\n</tool_call>"


def hermes(number):
    return f'<tool_call>\n{{"name": "double", "arguments": {{"number": {number}}}}}\n</tool_call>'


FORMATS = {
    "llama3": (
        trl_template("llama3_1"),
        '{"name": "double", "parameters": {"number": 1}}; {"name": "double", "parameters": {"number": 2}}',
        '{"name": "double", "parameters": {"number": 3}}',
    ),
    "mistral": (
        MISTRAL,
        '[TOOL_CALLS][{"name": "double", "arguments": {"number": 1}}, {"name": "double", "arguments": {"number": 2}}]',
        '[TOOL_CALLS]double[ARGS]{"number": 3}',
    ),
    "qwen3_coder": (trl_template("nemotron_3_nano"), f"</think>{coder(1)}\n{coder(2)}", f"</think>{coder(3)}"),
    "pythonic": (PYTHONIC, "[double(number=1), double(number=2)]", "[double(number=3)]"),
}


def saying(tokenizer, *turns):
    """A script whose turns end with the token that the template ends them with."""
    end = ChatRenderer(tokenizer).end_of_turn_id
    ids = [[*tokenizer.encode(text, add_special_tokens=False), end] for text in turns]
    return lambda prompt, request_id: (ids[int(request_id.split("-")[1])], FinishReason.STOP)


@pytest.mark.parametrize("history", ["append", "template"])
@pytest.mark.parametrize("name", FORMATS)
async def test_the_tool_runs_for_every_kind_of_model_with_no_parser_named(scripted_engine, exact, name, history):
    template, both, third = FORMATS[name]
    tokenizer = byte_tokenizer(template)
    engine = scripted_engine(tokenizer, saying(tokenizer, both, third, "6 in the end."), context_length=20_000)
    config = RunConfig(sampling=SamplingParams(max_new_tokens=1000), history=history)
    [one] = await rollout(lambda: ToolEnv([double], [TASK]), engine, [TASK], tokenizer=tokenizer, config=config)
    assert one.error is None
    assert (one.stop_reason, len(one.turns)) == (StopReason.ANSWERED, 3)
    exact(engine, one)
    records = [record for turn in one.turns for record in turn.tool_calls]
    assert [(record.status, record.arguments, record.text) for record in records] == [
        ("ok", {"number": 1}, "2"),
        ("ok", {"number": 2}, "4"),
        ("ok", {"number": 3}, "6"),
    ]
    answers = [message for message in one.messages if message["role"] == "tool"]
    assert [message["content"] for message in answers] == ["2", "4", "6"]
    ids = [message["tool_call_id"] for message in answers]
    wanted = "call0000{}" if name == "mistral" else "call_{}"
    assert ids == [record.id for record in records] == [wanted.format(number) for number in range(3)]


async def test_a_parser_given_by_hand_overrides_the_templates(scripted_engine):
    template, both, _ = FORMATS["llama3"]
    tokenizer = byte_tokenizer(template)
    for parser, calls in ((None, 2), ("llama3", 2), ("hermes", 0), (get_parser("llama3"), 2), (parse_hermes, 0)):
        engine = scripted_engine(tokenizer, saying(tokenizer, both, "done"), context_length=20_000)
        config = RunConfig(sampling=SamplingParams(max_new_tokens=1000), parser=parser)
        [one] = await rollout(lambda: ToolEnv([double], [TASK]), engine, [TASK], tokenizer=tokenizer, config=config)
        assert len(one.tool_calls) == calls
    with pytest.raises(UnknownNameError, match="did you mean 'hermes'"):
        RunConfig(parser="hermse")


async def test_a_template_that_shows_no_format_needs_a_parser_where_there_are_tools(scripted_engine):
    tokenizer = byte_tokenizer(PLAIN)

    def run(tools, **config):
        engine = scripted_engine(tokenizer, saying(tokenizer, hermes(4), "done"))
        config = RunConfig(sampling=SamplingParams(max_new_tokens=200), **config)
        runner = Runner(lambda: ToolEnv(tools, [TASK]), engine, tokenizer=tokenizer, config=config)
        return engine, runner.run([TASK])

    engine, played = run([double])
    with pytest.raises(TemplateError, match=r"calls of the tools \(double\) .* RunConfig\(parser=.*known: hermes, "):
        await played
    assert engine.seen == {}  # before the first episode
    [named] = await run([double], parser="hermes")[1]
    assert [record.text for record in named.tool_calls] == ["8"]
    [toolless] = await run([])[1]
    assert (toolless.stop_reason, toolless.turns[0].text) == (StopReason.ANSWERED, hermes(4))


def test_what_a_renderer_knows_of_its_template():
    schemas = [double.tool_schema]
    plain, thinking = (ChatRenderer(byte_tokenizer(template), schemas) for template in (PLAIN, THINKING))
    assert (plain.parser, plain.opens_thinking) == (None, False)
    assert (thinking.parser, thinking.opens_thinking) == (parse_hermes, True)
    named = ChatRenderer(byte_tokenizer(THINKING), schemas, parser="glm45")
    assert (named.parser, named.opens_thinking) == (get_parser("glm45"), True)
    with pytest.raises(TemplateError, match="known tool-call format"):
        plain.parse([])


def test_generated_ids_are_read_into_a_turn():
    tokenizer = byte_tokenizer(PLAIN + '{# <tool_call> "arguments" #}')
    renderer = ChatRenderer(tokenizer, [double.tool_schema])
    text = f"I double. {hermes(5)}"
    ids = tokenizer.encode(text, add_special_tokens=False)
    turn = renderer.parse([*ids, renderer.end_of_turn_id], first_id=7)
    assert turn == renderer.parse(ids, first_id=7) == renderer.parse_text(text, first_id=7)
    assert isinstance(turn, ParsedTurn)
    assert (turn.text, turn.content, turn.errors) == (text, "I double. ", [])
    assert [(call.id, call.arguments) for call in turn.requests] == [("call_7", {"number": 5})]
    assert turn.message == {
        "role": "assistant",
        "content": "I double.",
        "tool_calls": [
            {"id": "call_7", "type": "function", "function": {"name": "double", "arguments": {"number": 5}}}
        ],
    }
    broken = renderer.parse_text(text + "<tool_call>{</tool_call>")
    assert broken.message == {"role": "assistant", "content": broken.text}
    assert [one.index for one in broken.requests] == [0, 1]


async def test_thinking_is_open_where_the_prompt_of_that_very_turn_opens_it(scripted_engine, exact):
    """The template opens thinking for a user's message and not for a result, as DeepSeek's do."""
    tokenizer = byte_tokenizer(THINKING)
    renderer = ChatRenderer(tokenizer, [double.tool_schema])
    prompt = renderer.prompt([user("q")])
    assert renderer.leaves_thinking_open(prompt)
    assert not renderer.leaves_thinking_open(prompt[:-8])
    assert [one.problem for one in renderer.parse_text(hermes(1)).errors] == ["open_thinking"]
    script = saying(tokenizer, f"hm {hermes(1)}", f"oh</think>{hermes(2)}", hermes(3), "done")
    engine = scripted_engine(tokenizer, script)
    config = RunConfig(sampling=SamplingParams(max_new_tokens=300))
    [one] = await rollout(lambda: ToolEnv([double], [TASK]), engine, [TASK], tokenizer=tokenizer, config=config)
    exact(engine, one)
    assert [record.status for record in one.tool_calls] == ["open_thinking", "ok", "ok"]
    assert one.stop_reason is StopReason.ANSWERED


class Echo(BaseEnv):
    """An env that is no `ToolEnv`: it answers with the action's text until it is asked for nothing."""

    def __init__(self):
        self.actions = []

    async def reset(self, *, seed=None, options=None):
        return [{"role": "user", "content": "q"}], {}

    async def step(self, action):
        self.actions.append(action)
        results = [
            {"role": "tool", "content": action.text, "tool_call_id": call.id, "name": call.name}
            for call in action.calls
        ]
        return StepResult(results, 0.0, not results, {})

    async def close(self):
        pass

    @property
    def tool_schemas(self):
        return [double.tool_schema]


@pytest.mark.parametrize("wrapped", [False, True])
async def test_an_env_of_ones_own_gets_the_parsed_turn(scripted, tokenizer, exact, wrapped):
    made = []

    def make():
        made.append(Echo())
        return Wrapper(made[-1]) if wrapped else made[-1]

    turns = [hermes(1), hermes(2), "done"]
    engine = scripted(lambda prompt, request_id: turns[int(request_id.split("-")[1])])
    config = RunConfig(sampling=SamplingParams(max_new_tokens=200))
    [one] = await rollout(make, engine, [TASK], tokenizer=tokenizer, config=config)
    assert one.error is None
    exact(engine, one)
    [env] = made
    assert all(isinstance(action, ParsedTurn) for action in env.actions)
    assert [action.text for action in env.actions] == [turn.text for turn in one.turns] == turns
    assert [call.id for action in env.actions for call in action.calls] == ["call_0", "call_1"]
    assert one.messages[1]["tool_calls"][0]["id"] == one.messages[2]["tool_call_id"] == "call_0"


LOOKING = ToolSchema("look", "Look it up.", {"type": "object", "properties": {}})
ANALYSIS, NEXT = "<|channel|>analysis<|message|>", "<|end|><|start|>assistant"


@pytest.mark.parametrize(
    ("text", "content", "arguments", "is_open"),
    [
        (f"{ANALYSIS}Hm.{NEXT}<|channel|>final<|message|>A fox.", "A fox.", [], False),
        (f"{ANALYSIS}Hm.{NEXT} to=functions.look<|channel|>commentary json<|message|>{{}}", "", [{}], False),
        (f"{ANALYSIS}Hm.{NEXT}<|channel|>commentary<|message|>I look.", "I look.", [], False),
        (f"{ANALYSIS}Hm.", "", [], True),
    ],
)
def test_a_parser_that_takes_the_thinking_out_itself_is_shown_the_turn_as_it_is(text, content, arguments, is_open):
    renderer = ChatRenderer(byte_tokenizer((FOLDER / "gptoss.jinja").read_text()), [LOOKING])
    assert renderer.parser_proof.name == "gpt_oss"
    turn = renderer.parse_text(text)
    assert (turn.content, [call.arguments for call in turn.calls]) == (content, arguments)
    assert (turn.reasoning, turn.open_thinking, turn.errors) == ("Hm.", is_open, [])
