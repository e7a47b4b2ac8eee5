"""Odd traits of other projects' chat templates, each in a small template of our own.

What is right is the whole conversation as transformers renders and encodes it.
"""

from __future__ import annotations

import json
import shutil

import pytest

from tests.trl_templates import FOLDER
from toolgym.envs import ToolEnv
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import StopReason
from toolgym.rollout import RunConfig, Runner, SamplingParams
from toolgym.rollout.engines.base import FinishReason
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.models.tokenizer import end_token_ids, load_tokenizer
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.tokens.template_check import Status, byte_tokenizer, check_template
from toolgym.tools import tool as as_tool
from toolgym.tools.errors import ConfigError, TemplateError
from toolgym.tools.message import assistant, system, tool, user
from toolgym.tools.schema import ToolSchema

INSTALLED = sorted(path.stem for path in FOLDER.glob("*.jinja") if "tool_calls" in path.read_text())
MARK = "xyzzy"
TOOLS = [ToolSchema(f"tool_{at}", "Does it.", {"type": "object", "properties": {}}) for at in range(40)]

HEAD = "{{ bos_token }}{% set ns = namespace(n=0) %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
CALLS = "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments | tojson }}</tool_call>{% endfor %}"
TAIL = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CONTENT = "{{ m.content }}" + CALLS

OPENS_ALWAYS = (
    "{{ bos_token }}{% for m in messages %}<|START|><|{{ m.role }}|>"
    + CONTENT
    + "<|CLOSE|><|STOP|>{% endfor %}<|START|><|assistant|>"
)
"""Writes the next turn's beginning whether it is asked to or not, as Command R7B's does."""

NUMBERED = HEAD + "{% if m.role == 'tool' %}{{ ns.n }}: {% set ns.n = ns.n + 1 %}{% endif %}" + CONTENT + TAIL
"""Numbers the conversation's results, as Command R7B's does."""

BY_INDEX = (
    "{% set rest = messages[1:] if messages[0].role == 'system' else messages %}"
    + HEAD.replace("in messages", "in rest")
    + "{% if m.role == 'tool' and messages[loop.index0 - 1].role != 'tool' %}first {% endif %}"
    + CONTENT
    + TAIL
)
"""Looks one message too far back behind a system prompt, as Bielik's does."""

BY_CONTENT = (
    HEAD + "{% set ns.n = ns.n + m.content | length %}{% if m.role == 'tool' %}{{ ns.n }}{% endif %}" + CONTENT + TAIL
)
NEEDS_TOOLS = HEAD + "{% if loop.first %}{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}" + CONTENT + TAIL
"""Fails where `tools` is None, as Hermes 2 Pro's does."""

NO_LAST_END = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'user' %}{% if not loop.first %}<|assistant_end|>{% endif %}<|user|>{{ m.content }}<|user_end|>"
    "{% elif m.role == 'tool' %}[{{ m.content }}]"
    "{% else %}{% if messages[loop.index0 - 1].role != 'tool' %}<|assistant_start|>{% endif %}{{ m.content }}"
    "{% if m.tool_calls %}<|tools_prefix|>{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}"
    "<|tools_suffix|>{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant_start|>{% endif %}"
)
"""Ends an answer only once something follows; results follow a call as plain text. Apertus does both."""

OPENS_RESPONSE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'tool' %}<|tool_response>{{ m.content }}<tool_response|>"
    "{% else %}<|turn>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<|tool_call>{{ c.function.arguments | tojson }}<tool_call|>{% endfor %}"
    "{% if not m.tool_calls %}<turn|>\n{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt and messages[-1].role != 'tool' %}<|turn>assistant\n{% endif %}"
)
"""Nothing ends a turn of calls but the response that follows, in Gemma 4's form for vLLM."""

MISTRAL = (
    "{{ bos_token }}{% set users = messages | selectattr('role', 'equalto', 'user') | list %}"
    "{% set rest = messages[1:] if messages[0].role == 'system' else messages %}"
    "{% for m in rest %}"
    "{% for c in m.tool_calls or [] if c.id | length != 9 %}{{ raise_exception('nine') }}{% endfor %}"
    "{% if m.role == 'user' %}"
    "{% if tools and m == users[-1] %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "[INST]{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}"
    "{{ m.content }}[/INST]"
    "{% elif m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('nine') }}{% endif %}"
    "[TOOL_RESULTS]{{ {'content': m.content, 'call_id': m.tool_call_id} | tojson }}[/TOOL_RESULTS]"
    "{% elif m.tool_calls %}[TOOL_CALLS][{% for c in m.tool_calls %}"
    "{{ {'name': c.function.name, 'arguments': c.function.arguments, 'id': c.id} | tojson }}"
    "{% if not loop.last %}, {% endif %}{% endfor %}]{{ eos_token }}"
    "{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
"""Ids of nine letters; the tools and the system prompt stand before the last user's message, as in Mistral Nemo's."""


def renderer_of(template, tools=TOOLS[:1]):
    return ChatRenderer(byte_tokenizer(template), tools)


def call(argument, *ids):
    calls = [
        {"id": one, "type": "function", "function": {"name": "tool_0", "arguments": {"x": argument}}} for one in ids
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def result(content, call_id):
    return tool(content, tool_call_id=call_id, name="tool_0")


CYCLE = [call("a", "before001"), result("one", "before001")]
BRIEF = [system("Be brief."), user("What?")]


def check(renderer, head, turn, new, end):
    """Prompt, turn and extension are the ids of the whole conversation from the turn's last word on."""
    tokenizer = renderer.tokenizer
    whole = tokenizer.apply_chat_template(
        [*head, turn, *new], tools=renderer.tools or None, add_generation_prompt=True, tokenize=False
    )
    tail = whole[whole.rindex(MARK) :]
    at = tail.index(end) + len(end)
    ids = tokenizer.encode(tail[:at], add_special_tokens=False)
    assert ids[-1] in renderer.stop_token_ids
    given = ids + renderer.extend(new, ids, earlier=head)
    assert renderer.decode(given) == tail
    assert given == tokenizer.encode(tail, add_special_tokens=False)


@pytest.mark.parametrize(
    ("template", "ends", "call_end"),
    [
        (OPENS_ALWAYS, ("<|STOP|>",), "<|STOP|>"),
        (NUMBERED, ("<|im_end|>",), "<|im_end|>"),
        (BY_INDEX, ("<|im_end|>",), "<|im_end|>"),
        (NEEDS_TOOLS, ("<|im_end|>",), "<|im_end|>"),
        (NO_LAST_END, ("<|assistant_end|>", "<|tools_suffix|>"), "<|tools_suffix|>"),
        (OPENS_RESPONSE, ("<turn|>", "<|tool_response>"), "<|tool_response>"),
        (MISTRAL, ("<eos>",), "<eos>"),
    ],
    ids=["opens_always", "numbered", "by_index", "needs_tools", "no_last_end", "opens_response", "mistral"],
)
def test_a_template_with_this_trait_is_exact(template, ends, call_end):
    renderer = renderer_of(template)
    assert renderer.facts.ends_of_turn == ends
    for head in ([user("What?")], BRIEF, [*BRIEF, *CYCLE], [*BRIEF, *CYCLE, assistant("Yes."), user("Again?")]):
        if template == NO_LAST_END and head[0]["role"] == "system":
            head = head[1:]
        check(renderer, head, call(MARK, "call00000"), [result("two", "call00000")], call_end)
        check(renderer, head, assistant(MARK), [user("And?")], ends[0])
    assert check_template(renderer.tokenizer, TOOLS[:1]).exact


def test_a_delta_that_shows_the_tools_shows_all_of_them():
    renderer = renderer_of(MISTRAL, TOOLS)
    assert renderer.facts.plans["user"].tools
    check(renderer, BRIEF, assistant(MARK), [user("And?")], "<eos>")


def test_a_delta_that_depends_on_the_conversation_needs_it():
    renderer, new = renderer_of(NUMBERED), [result("two", "call00000")]
    assert renderer.facts.plans["one result"].earlier
    with pytest.raises(TemplateError, match=r"depends on the earlier conversation: give it with extend\(..., earlier="):
        renderer.extend(new)
    first, second = (renderer.decode(renderer.extend(new, earlier=head)) for head in (BRIEF, [*BRIEF, *CYCLE]))
    assert ("0: two" in first, "1: two" in second) == (True, True)
    assert not renderer.facts.plans["user"].earlier


def test_what_depends_on_the_contents_is_refused_by_name():
    renderer = renderer_of(BY_CONTENT)
    with pytest.raises(TemplateError, match=r"new messages \(one result\) depends on the earlier conversation"):
        renderer.extend([result("two", "call00000")], earlier=BRIEF)
    report = check_template(renderer.tokenizer, TOOLS[:1])
    assert not report.exact
    assert {case.name: case.status for case in report.cases}["second tool cycle"] is Status.NOT_SUPPORTED
    assert Status.WRONG not in [case.status for case in report.cases]


def test_a_template_that_fails_without_tools_does_not_pay_for_all_of_them():
    renderer = renderer_of(NEEDS_TOOLS, TOOLS)
    assert not any(plan.tools for plan in renderer.facts.plans.values())
    assert renderer.extend([user("And?")]) == renderer.extend([user("And?")])
    with pytest.raises(TemplateError, match="not iterable"):  # as in transformers
        renderer_of(NEEDS_TOOLS, [])


@pytest.mark.parametrize(
    ("new", "order"),
    [
        ([user("a"), result("b", "call00000")], "user, tool"),
        ([user("a"), system("b")], "user, system"),
        ([system("a"), system("b")], "system, system"),
    ],
)
def test_an_order_that_was_not_proven_is_refused(new, order):
    with pytest.raises(TemplateError, match=f"got the order {order}"):
        renderer_of(HEAD + CONTENT + TAIL).extend(new)


def test_a_system_message_behind_a_result_has_a_proof_of_its_own():
    """Here it is written only where no result stands before it."""
    template = (
        HEAD
        + "{% if m.role != 'system' or loop.first or messages[loop.index0 - 1].role != 'tool' %}"
        + CONTENT
        + "{% endif %}"
        + TAIL
    )
    renderer = renderer_of(template)
    assert renderer.extend([system("Go."), user("a")])
    with pytest.raises(TemplateError, match=r"new system message \(results and system\)"):
        renderer.extend([result("two", "call00000"), system("Go.")])


@pytest.mark.parametrize("end", ["<seed:eos>", "<sep>", "[|endofturn|]", "</s>"])
def test_a_template_without_a_tokenizer_has_its_end_of_turn(end):
    renderer = renderer_of((HEAD + CONTENT + TAIL).replace("<|im_end|>", end))
    assert renderer.end_of_turn == end


# ---------------------------------------------------------------------- ends of a turn


def folder_with(tmp_path, ends):
    folder = shutil.copytree(tiny_policy_path(), tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return folder


def test_the_generation_config_names_further_ends(tmp_path):
    tokenizer = load_tokenizer(folder_with(tmp_path, [505, 503, 10**6]))
    second = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    assert end_token_ids(tokenizer) == (tokenizer.eos_token_id, second)
    renderer = ChatRenderer(tokenizer)
    assert renderer.stop_token_ids == (tokenizer.eos_token_id, second)
    turn = [*tokenizer.encode("hi", add_special_tokens=False), second]
    assert renderer.text(turn) == "hi"
    assert renderer.extend([user("a")], turn) == [renderer.end_of_turn_id, *renderer.extend([user("a")])]


@pytest.mark.parametrize("ends", ["505", [505, "503"], [True]])
def test_a_generation_config_that_is_wrong_is_told(tmp_path, ends):
    with pytest.raises(ConfigError, match="expected an id or a list of ids as eos_token_id"):
        end_token_ids(load_tokenizer(folder_with(tmp_path, ends)))


def test_an_end_that_the_tokenizer_names_is_preferred():
    """Two tokens stand behind every turn, and the model samples the first."""
    template = (HEAD + CONTENT + TAIL).replace("<|im_end|>", "{{ eos_token }}<|separator|>")
    assert renderer_of(template).end_of_turn == "<eos>"


@pytest.mark.parametrize(
    ("name", "said", "missing"),
    [
        ("qwen3", "<think>\nIt is", "\n</think>\n\n<|im_end|>"),
        ("qwen3_6", "It is", "\n</think>\n\n<|im_end|>"),
        ("qwen3_6", "It is</think>so", "<|im_end|>"),
        ("qwen3", "So, <think> is a tag", "<|im_end|>"),
        ("nemotron_3_nano", "It is", "\n</think><|im_end|>"),
    ],
)
def test_a_turn_that_was_cut_in_its_thinking_is_closed(name, said, missing):
    renderer = renderer_of((FOLDER / f"{name}.jinja").read_text())
    cut = renderer.tokenizer.encode(said, add_special_tokens=False)
    assert renderer.decode(renderer.close_turn(cut)) == missing
    assert renderer.extend([user("a")], cut) == renderer.close_turn(cut) + renderer.extend([user("a")])
    assert renderer.close_turn([*cut, renderer.end_of_turn_id]) == []
    assert renderer.decode(renderer.close_turn([], starts_open=False)) == "<|im_end|>"


# ---------------------------------------------------------------------- whole episodes


@as_tool
def echo(text: str) -> str:
    """Say it again."""
    return text


async def play(scripted_engine, tokenizer, *said, **config):
    engine = scripted_engine(tokenizer, lambda prompt, request_id: said[int(request_id.split("-")[1])])
    config = RunConfig(sampling=SamplingParams(max_new_tokens=200), **config)
    task = Task(({"role": "system", "content": "Be brief."}, {"role": "user", "content": "q"}), id="q")
    [one] = await Runner(lambda: ToolEnv([echo], [task]), engine, tokenizer=tokenizer, config=config).run([task])
    return engine, one


HERMES = NEEDS_TOOLS.replace(
    "{{ c.function.arguments | tojson }}",
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}',
).replace("<|im_end|>", "{{ eos_token }}")
HERMES_CALL = '<tool_call>\n{"name": "echo", "arguments": {"text": "a"}}\n</tool_call>'
MISTRAL_CALL = '[TOOL_CALLS][{"name": "echo", "arguments": {"text": "a"}, "id": "abcdefghi"}]'


HERMES_TAIL = "<|im_start|>tool\nb<eos>\n<|im_start|>assistant\ndone<eos>"
MISTRAL_TAIL = '[TOOL_RESULTS]{"content": "b", "call_id": "abcdefxyz"}[/TOOL_RESULTS]done<eos>'


@pytest.mark.parametrize(
    ("template", "said", "tail"), [(HERMES, HERMES_CALL, HERMES_TAIL), (MISTRAL, MISTRAL_CALL, MISTRAL_TAIL)]
)
async def test_mistral_and_hermes_work_without_naming_a_parser(scripted_engine, exact, template, said, tail):
    tokenizer = byte_tokenizer(template)
    engine, one = await play(scripted_engine, tokenizer, said, said.replace('"a"', '"b"').replace("ghi", "xyz"), "done")
    assert one.error is None
    assert (one.stop_reason, len(one.turns)) == (StopReason.ANSWERED, 3)
    assert [call.text for turn in one.turns for call in turn.tool_calls] == ["a", "b"]
    exact(engine, one)
    [sequence] = one.sequences
    ids = [*sequence.prompt_ids, *(token for segment in sequence.segments for token in segment.token_ids)]
    assert tokenizer.decode(ids).endswith(tail)


@pytest.mark.parametrize("history", ["append", "template"])
async def test_a_template_that_leaves_results_out_is_refused(scripted_engine, history):
    tokenizer = byte_tokenizer((FOLDER / "phi3.jinja").read_text())
    end = tokenizer.encode(HERMES_CALL + "<|end|>", add_special_tokens=False)
    _, one = await play(scripted_engine, tokenizer, (end, FinishReason.STOP), "done", parser="hermes", history=history)
    assert one.stop_reason is StopReason.PROMPT_REFUSED
    assert "leaves it out" in one.error.message
    with pytest.raises(TemplateError, match="leaves out tool results"):
        ChatRenderer(tokenizer, TOOLS[:1]).prompt([*BRIEF, *CYCLE])


# ---------------------------------------------------------------------- what is installed


@pytest.mark.parametrize("name", ["qwen3", "deepseekv3", "glm4moe", "gptoss"])
def test_an_installed_template_is_exact(name):
    report = check_template(byte_tokenizer((FOLDER / f"{name}.jinja").read_text()), TOOLS[:1])
    assert report.exact, report.cases


@pytest.mark.long
@pytest.mark.parametrize("count", [0, 1, 10])
@pytest.mark.parametrize("name", INSTALLED)
def test_every_installed_template_is_exact(name, count):
    report = check_template(byte_tokenizer((FOLDER / f"{name}.jinja").read_text()), TOOLS[:count])
    assert report.exact, report.cases
