"""Exact tokens on the chat templates of real models, as they come with trl.

What is right is worked out here without the code under test: the tokenizer's own `apply_chat_template` renders the
whole conversation, and what stands after the known end of the turn is the delta.
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import processors

from tests.parameters import first
from tests.trl_templates import FOLDER
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.tokens.template_check import Status, byte_tokenizer, check_template
from toolgym.tools.errors import TemplateError
from toolgym.tools.library.code_interpreter import CodeInterpreterTool
from toolgym.tools.message import assistant, system, tool, user
from toolgym.tools.schema import ToolSchema

TOOL = CodeInterpreterTool.default_schema
MARK = "xyzzy"
TODAY = datetime(2026, 3, 14)

CHATML = "<|im_end|>", "<|im_end|>", "\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
QWEN_RESULT = "<tool_response>\n42\n</tool_response>"
NEMOTRON = CHATML[0], CHATML[1], CHATML[2] + "<think>\n", f"{QWEN_RESULT}\n"
GEMMA = (
    "<turn|>",
    "<|tool_response>",
    "\n<|turn>user\n{}<turn|>\n<|turn>model\n",
    'response:code_interpreter{value:<|"|>42<|"|>}<tool_response|>',
)
LLAMA_NEXT = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
LLAMA = (
    "<|eot_id|>",
    "<|eot_id|>",
    "<|start_header_id|>user<|end_header_id|>\n\n{}" + LLAMA_NEXT,
    '<|start_header_id|>ipython<|end_header_id|>\n\n"42"' + LLAMA_NEXT,
)
LFM = "\n<|im_start|>tool\n{}<|im_end|>\n<|im_start|>assistant\n"
# How an answer ends, how a call ends, what follows for a user, what for a result (or what a user's frame then holds).
WAYS = {
    "deepseekv3": (
        "<｜end▁of▁sentence｜>",
        "<｜end▁of▁sentence｜>",
        "<｜User｜>{}<｜Assistant｜><think>\n",
        "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>42<｜tool▁output▁end｜><｜tool▁outputs▁end｜>",
    ),
    **dict.fromkeys(["gemma4", "diffusion_gemma", "gemma4_v3", "gemma4_v4", "gemma4_v5"], GEMMA),
    "gemma4_v2": ("<turn|>", "<turn|>", GEMMA[2], "\n<|turn>tool\n42<turn|>\n<|turn>model\n"),
    "glm4moe": ("<|user|>", "<|observation|>", "\n{}<|assistant|>", f"\n{QWEN_RESULT}<|assistant|>"),
    "gptoss": (
        "<|return|>",
        "<|call|>",
        "<|start|>user<|message|>{}<|end|><|start|>assistant",
        '<|start|>functions.code_interpreter to=assistant<|channel|>commentary<|message|>"42"<|end|><|start|>assistant',
    ),
    **dict.fromkeys(["lfm2_2_5", "lfm2_2_5_v2", "lfm2_2_5_vl"], (*CHATML, LFM.format("42"))),
    "lfm2_v2": (*CHATML, LFM.format("<|tool_response_start|>42<|tool_response_end|>")),
    "llama3_1": LLAMA,
    "llama3_2": LLAMA,
    "muse_glimmer": (
        "<|eot|>",
        "<|eot|>",
        "<|start|>user<|message|>{}<|eot|><|start|>assistant",
        '<|start|>tool code_interpreter<|message|><tool_output name="code_interpreter">\n42\n</tool_output><|eot|>'
        "<|start|>assistant",
    ),
    **dict.fromkeys(["nemotron_3_5_lightning", "nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra"], NEMOTRON),
    **dict.fromkeys(["qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_vl"], (*CHATML, QWEN_RESULT)),
    **dict.fromkeys(["qwen3_5_think", "qwen3_6", "qwen3_8"], (*CHATML[:2], CHATML[2] + "<think>\n", QWEN_RESULT)),
    "qwen3_5_nothink": (*CHATML[:2], CHATML[2] + "<think>\n\n</think>\n\n", QWEN_RESULT),
}
NO_SYSTEM_LATER = {"deepseekv3", "gptoss", "qwen3_5_nothink", "qwen3_5_think", "qwen3_6", "qwen3_8", "qwen3_vl"}
ONE_CALL = {"llama3_1", "llama3_2", "gptoss"}
ALIKE = {(ways, name in NO_SYSTEM_LATER, name in ONE_CALL): name for name, ways in reversed(WAYS.items())}
"""The first of the templates that write everything the same way. The others of its family are marked `long`."""
every = pytest.mark.parametrize(
    "name", [name if name in ALIKE.values() else pytest.param(name, marks=pytest.mark.long) for name in WAYS]
)


@cache
def renderer_of(name, **variables):
    tokenizer = byte_tokenizer((FOLDER / f"{name}.jinja").read_text())
    return ChatRenderer(tokenizer, [TOOL], variables, now=TODAY)


def rendered(renderer, messages, *, generation_prompt=True, tools=True):
    """By transformers itself; arguments as text where nothing else will do."""

    def take(as_json):
        shown = json.loads(json.dumps(messages))
        for call in (call for one in shown for call in one.get("tool_calls", ()) if as_json):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
        return renderer.tokenizer.apply_chat_template(
            shown, tools=renderer.tools if tools else None, add_generation_prompt=generation_prompt, tokenize=False
        )

    before = datetime.now()
    text = take(renderer.facts.json_arguments)
    for day in (before, datetime.now()):  # midnight may be between them
        for form in ("%d %b %Y", "%Y-%m-%d"):
            text = text.replace(day.strftime(form), TODAY.strftime(form))
    return text


def call(*codes, content=""):
    calls = [
        {"id": f"call_{at}", "type": "function", "function": {"name": TOOL.name, "arguments": {"code": code}}}
        for at, code in enumerate(codes)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def results(*contents):
    return [tool(text, tool_call_id=f"call_{at}", name=TOOL.name) for at, text in enumerate(contents)]


def delta(name, head, turn, new):
    """What stands after the end of the turn, which has the mark as its last word, in the whole conversation."""
    renderer = renderer_of(name)
    whole = rendered(renderer, [*head, turn, *new])
    tail = whole[whole.rindex(MARK) :]
    ends = ["<|end|>", WAYS[name][0]] if name == "gptoss" else [WAYS[name][0]]
    if "tool_calls" in turn:
        ends = [WAYS[name][1]]
    elif name == "glm4moe" and new[0]["role"] == "system":
        return tail.removeprefix(MARK)  # a marker that no policy samples
    at = min(tail.index(end) + len(end) for end in ends if end in tail)
    return tail[at:]


def check(name, head, turn, new):
    renderer = renderer_of(name)
    truth = delta(name, head, turn, new)
    given_ = renderer.extend(new, earlier=head)
    assert renderer.decode(given_) == truth
    assert given_ == renderer.tokenizer.encode(truth, add_special_tokens=False)


HEADS = {
    "user": [user("What is 6 * 7?")],
    "system": [system("Be brief."), user("What is 6 * 7?")],
    "history": [system("Be brief."), user("Hello."), assistant("Hello!"), user("What is 6 * 7?")],
}


def test_all_tool_capable_templates_are_here():
    assert len(WAYS) == 28
    assert all((FOLDER / f"{name}.jinja").is_file() for name in WAYS)


@every
def test_the_delta_of_a_result_is_the_known_one(name):
    answer_end, call_end, asked, result = WAYS[name]
    renderer = renderer_of(name)
    expected = asked.format(result) if result.startswith("<tool_response>") else result
    assert renderer.decode(renderer.extend(results("42"), earlier=[user("x")])) == expected
    assert renderer.decode(renderer.extend([user("Hi")])) == asked.format("Hi")
    assert renderer.facts.ends_of_turn == tuple(dict.fromkeys([answer_end, call_end]))
    for end in (answer_end, call_end):
        assert renderer.ends_turn([1, renderer.tokenizer.convert_tokens_to_ids(end)])


@every
@pytest.mark.parametrize("head", HEADS)
def test_every_kind_of_delta_is_the_templates_own(name, head):
    head = HEADS[head]
    for content in ("42", "", "two\nlines\n", "  naïve ☃ 🦊 日本 ", '{"a": "<b>"}', "\n"):
        check(name, head, call(MARK), results(content))
        check(name, head, assistant(f"It is {MARK}"), [user(content)])
    check(name, head, call(MARK), [*results("42"), user("Go on.")])
    if name not in ONE_CALL:
        check(name, head, call("1", MARK), results("1", "2"))
        check(name, head, call("1", "2", MARK), results("", "2\n", "3"))
    if name not in NO_SYSTEM_LATER:
        check(name, head, assistant(MARK), [system("Now in French.")])
        check(name, head, assistant(MARK), [system("Now in French."), user("Go on.")])


@every
def test_a_prompt_is_the_templates_own(name):
    renderer = renderer_of(name)
    for head in HEADS.values():
        assert renderer.decode(renderer.prompt(head)) == rendered(renderer, head)
        assert renderer.prompt(head) == renderer.tokenizer.encode(rendered(renderer, head), add_special_tokens=False)


@every
def test_what_a_template_cannot_do_is_said(name):
    renderer = renderer_of(name)
    if name in NO_SYSTEM_LATER:
        with pytest.raises(TemplateError, match="new system message|must be at the beginning"):
            renderer.extend([system("Now in French.")])
    with pytest.raises(TemplateError, match="got one of the role 'assistant'"):
        renderer.extend([assistant("me")])


@every
def test_the_delta_does_not_depend_on_the_tools(name):
    tokenizer = renderer_of(name).tokenizer
    tools = [ToolSchema(f"tool_{at}", "Does it.", {"type": "object", "properties": {}}) for at in range(40)]
    many, none = ChatRenderer(tokenizer, [TOOL, *tools], now=TODAY), ChatRenderer(tokenizer, now=TODAY)
    for new in (results("42"), results("1", "2"), [user("Hi")]):
        made = [renderer.extend(new, earlier=[user("x")]) for renderer in (many, renderer_of(name), none)]
        assert made[0] == made[1] == made[2]
    # Muse Glimmer repeats the tools in each system message.
    assert not any(plan.tools for kind, plan in many.facts.plans.items() if "system" not in kind)


@every
def test_a_turn_that_was_cut_is_closed(name):
    renderer, (answer_end, _, asked, _) = renderer_of(name), WAYS[name]
    said = "</think>It is 4" if renderer.opens_thinking else "It is 4"
    cut = renderer.tokenizer.encode(said, add_special_tokens=False)
    written = "<|end|>" if name == "gptoss" else answer_end
    closing = [renderer.tokenizer.convert_tokens_to_ids(written)]
    assert renderer.close_turn(cut) == renderer.close_turn([], starts_open=False) == closing
    assert not renderer.ends_turn(cut)
    assert not renderer.ends_turn([])
    new = [user("Go on.")]
    whole = renderer.decode(renderer.extend(new, cut))
    assert whole == written + asked.format("Go on.")
    assert renderer.extend(new, [*cut, *closing]) == renderer.extend(new) == renderer.extend(new, cut)[1:]
    for end in renderer.facts.ends_of_turn:
        ended = [*cut, renderer.tokenizer.convert_tokens_to_ids(end)]
        assert renderer.close_turn(ended) == []
        assert renderer.text(ended) == said
    empty = [renderer.tokenizer.convert_tokens_to_ids(answer_end)]
    assert renderer.text(empty) == renderer.text([]) == ""
    assert renderer.extend(new, empty) == renderer.extend(new)


@pytest.mark.parametrize("name", ["gemma4", "gptoss", "glm4moe"])
def test_a_call_that_ended_like_an_answer_gets_its_own_end(name):
    """Before a result, these templates have another token than after an answer."""
    renderer, (answer_end, call_end, _, _) = renderer_of(name), WAYS[name]
    to_id = renderer.tokenizer.convert_tokens_to_ids
    expected = renderer.extend(results("42"))
    assert renderer.extend(results("42"), [1, to_id(call_end)]) == expected
    assert renderer.extend(results("42"), [1, to_id(answer_end)]) == [to_id(call_end), *expected]
    assert renderer.extend(results("42"), [1]) == [to_id(call_end), *expected]
    asked = renderer.extend([user("Hi")])
    assert renderer.extend([user("Hi")], [1, to_id(answer_end)]) == asked
    if name != "gptoss":  # whose end in the history is a third one
        assert renderer.extend([user("Hi")], [1, to_id(call_end)]) == [to_id(answer_end), *asked]


@every
def test_another_end_of_sequence_ends_a_turn_too(name):
    renderer = renderer_of(name)
    eos = renderer.tokenizer.eos_token_id
    assert eos in renderer.stop_token_ids
    assert renderer.ends_turn([1, eos])
    closing = renderer.close_turn([1], starts_open=False)
    assert renderer.close_turn([1, eos]) == closing  # but it is not what the template writes there
    assert renderer.extend([user("Hi")], [1, eos]) == [*closing, *renderer.extend([user("Hi")])]


def test_an_end_of_several_tokens():
    renderer = renderer_of("cohere2")
    to_ids = renderer.tokenizer.convert_tokens_to_ids
    closing = to_ids(["<|END_RESPONSE|>", "<|END_OF_TURN_TOKEN|>"])
    assert renderer.stop_token_ids[0] == closing[1]
    assert renderer.close_turn([1]) == closing
    assert renderer.close_turn([1, closing[0]]) == closing[1:]
    assert renderer.close_turn([1, *closing]) == []
    new = [user("Hi")]
    assert renderer.extend(new, [1]) == closing + renderer.extend(new)


def test_the_end_that_eats_what_follows():
    """Phi-3's end of turn swallows the line break after it, in a delta as in the whole conversation."""
    tokenizer = byte_tokenizer((FOLDER / "phi3.jinja").read_text())
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    for token in state["added_tokens"]:
        token["rstrip"] = token["content"].startswith("<|")
    tokenizer = type(tokenizer)(
        tokenizer_object=type(tokenizer.backend_tokenizer).from_str(json.dumps(state)), eos_token="<eos>"
    )
    tokenizer.chat_template = (FOLDER / "phi3.jinja").read_text()
    renderer = ChatRenderer(tokenizer)
    whole = tokenizer.apply_chat_template(
        [user("a"), assistant("b"), user("c")], tokenize=False, add_generation_prompt=True
    )
    ids = tokenizer.encode(whole, add_special_tokens=False)
    turn = [*tokenizer.encode("b", add_special_tokens=False), renderer.end_of_turn_id]
    assert renderer.prompt([user("a")]) + turn + renderer.extend([user("c")], turn) == ids
    assert renderer.decode(renderer.extend([user("c")])) == "<|user|>c<|end|><|assistant|>"


@pytest.mark.long
@every
def test_a_beginning_of_sequence_is_never_doubled(name):
    tokenizer = byte_tokenizer((FOLDER / f"{name}.jinja").read_text())
    bos = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", bos)]
    )
    renderer = ChatRenderer(tokenizer, [TOOL], now=TODAY)
    assert tokenizer.encode("a")[0] == bos
    assert renderer.prompt(HEADS["user"]).count(bos) == rendered(renderer, HEADS["user"]).count("<bos>") <= 1
    assert bos not in renderer.extend(results("42"), earlier=[user("x")])


@pytest.mark.parametrize("name", ["llama3_2", "gptoss", "muse_glimmer"])
def test_the_date_stays_that_of_the_start(name):
    renderer = renderer_of(name)
    assert renderer.facts.uses_date
    text = renderer.decode(renderer.prompt(HEADS["user"]))
    assert "14 Mar 2026" in text or "2026-03-14" in text
    present = ChatRenderer(renderer.tokenizer, [TOOL])
    assert present.decode(present.prompt(HEADS["user"])) == renderer.tokenizer.apply_chat_template(
        HEADS["user"], tools=renderer.tools, add_generation_prompt=True, tokenize=False
    )
    assert not renderer_of("qwen3").facts.uses_date


@cache
def cases_of(name):
    report = check_template(byte_tokenizer((FOLDER / f"{name}.jinja").read_text()))
    return {case.name: case for case in report.cases}


SURVEY = {
    "qwen3": (False, False, True, False, True),
    "qwen3_5_think": (True, False, True, False, True),
    "deepseekv3": (True, True, True, True, True),
    "gptoss": (True, False, True, False, False),
    "llama3_1": (True, True, True, True, False),
    "glm4moe": (True, True, True, False, False),
    "nemotron_3_nano": (True, True, True, False, True),
    "gemma4": (True, True, True, False, False),
    "muse_glimmer": (True, True, True, True, False),
    "qwen2_5": (True, True, True, True, True),
    "qwen3_8": (True, True, True, True, True),
    "qwen3_instruct_2507": (True, True, True, True, True),
}
"""What a template keeps: a tool cycle; a user turn; the same two with thinking. And whether it merges results. The
first rows differ from each other."""


@first("name", SURVEY, short=5)
def test_a_template_keeps_what_the_survey_says(name):
    facts, cases = renderer_of(name).facts, cases_of(name)
    kept = [
        case.status is Status.APPEND_ONLY or "begin with its generation prompt" in case.why
        for case in map(cases.get, ("single call", "new user turn", "thinking", "thinking, then the user"))
    ]
    assert (*kept, facts.merged_results) == SURVEY[name]


def test_facts_are_those_of_the_survey():
    assert cases_of("deepseekv3")["second tool cycle"].status is Status.EXACT
    assert "begin with its generation prompt" in cases_of("deepseekv3")["single call"].why
    assert renderer_of("deepseekv3").facts.json_arguments
    assert renderer_of("qwen3_5_think").facts.generation_prompt == "<|im_start|>assistant\n<think>\n"
    assert renderer_of("gptoss").facts.end_of_turn_in_history == "<|end|>"
    assert not renderer_of("llama3_1").facts.parallel_calls
    assert renderer_of("glm4moe").facts.end_of_turn_is_marker
    assert renderer_of("lfm2").facts.tool_calls_rendered is False
    assert renderer_of("llama3").facts.tools_rendered is False


def test_variables_reach_the_template_and_its_proof():
    silent = renderer_of("qwen3_5_think", enable_thinking=False)
    assert silent.decode(silent.extend([user("Hi")])).endswith("<think>\n\n</think>\n\n")
    assert silent.facts.generation_prompt != renderer_of("qwen3_5_think").facts.generation_prompt


def test_a_template_is_examined_once():
    tokenizer = byte_tokenizer((FOLDER / "qwen3.jinja").read_text())
    first = ChatRenderer(tokenizer, [TOOL])
    assert ChatRenderer(tokenizer, [TOOL]).facts is first.facts
    assert ChatRenderer(first.tokenizer).facts is not first.facts


def test_calls_are_stored_as_calls_where_the_template_gives_them_back():
    renderer = renderer_of("deepseekv3")
    text = (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>code_interpreter\n```json\n"
        '{"code": "6 * 7"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    )
    opened = ChatRenderer(
        byte_tokenizer(
            (FOLDER / "deepseekv3.jinja").read_text().replace("<｜Assistant｜><think>\\n", "<｜Assistant｜>")
        ),
        [TOOL],
    )
    assert opened.exact_message(text, call("6 * 7")) == call("6 * 7")
    assert opened.exact_message(text + " ", call("6 * 7")) == assistant(text + " ")
    # The real one opens <think>, which a rendered turn does not begin with.
    assert renderer.exact_message(text, call("6 * 7")) == assistant(text)
    thinking = renderer_of("qwen3_5_think")
    spoken = "Let me see.\n</think>\n\nIt is 42."
    assert thinking.exact_message(spoken, assistant(spoken)) == assistant(spoken)
    parted = {"role": "assistant", "content": "It is 42.", "reasoning_content": "Let me see."}
    assert thinking.exact_message(spoken, parted) == parted


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([{"type": "text", "text": "a"}, {"type": "image"}], "got a list with parts of type image, text in a user"),
        (
            [{"type": "image_url", "image_url": {"url": "https://x.org/a.png"}}],
            r"\(a data URL\); got a list",
        ),
        ([], "parts of type none"),
        (None, "got NoneType in a user message"),
        (7, "got int in a user message"),
    ],
)
def test_content_that_is_no_text_is_told(content, said):
    renderer = renderer_of("qwen3_vl")
    for use in (renderer.prompt, renderer.extend):
        with pytest.raises(TemplateError, match=said):
            use([{"role": "user", "content": content}])


def test_an_unknown_role_is_named():
    with pytest.raises(TemplateError, match="got 'im_end'"):
        renderer_of("phi3").prompt([{"role": "im_end", "content": "a"}])


def test_calls_without_content_are_as_calls_with_none():
    renderer = renderer_of("qwen3")
    bare = {**call("1"), "content": None}
    assert renderer.prompt([user("a"), bare, *results("b")]) == renderer.prompt([user("a"), call("1"), *results("b")])


def test_one_of_several_named_templates_is_chosen_by_the_tools():
    tokenizer = byte_tokenizer((FOLDER / "qwen3.jinja").read_text())
    plain = (FOLDER / "llama3.jinja").read_text()
    tokenizer = byte_tokenizer(tokenizer.chat_template + "{#" + plain.replace("#}", "") + "#}")
    tokenizer.chat_template = {"tool_use": (FOLDER / "qwen3.jinja").read_text(), "default": plain}
    assert ChatRenderer(tokenizer, [TOOL]).end_of_turn == "<|im_end|>"
    assert ChatRenderer(tokenizer).end_of_turn == "<|eot_id|>"


def test_a_template_that_takes_parts_alone_gets_them():
    assert all(renderer_of(name).facts.content_parts for name in ("idefics3", "llava_next"))
    assert not renderer_of("qwen3").facts.content_parts


# ---------------------------------------------------------------------- any conversation

words = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="<>|"), max_size=12)
lines = st.lists(words, max_size=3).map("\n".join)


@st.composite
def conversations(draw):
    """What is there at first, and then turns: what the policy says, and what it is told."""
    head = [system(draw(lines))] if draw(st.booleans()) else []
    head.append(user(draw(lines) or "x"))
    turns = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["results", "user", "both"]))
        if kind == "user":
            turns.append((assistant(draw(words).strip() or "y"), [user(draw(lines))]))
            continue
        count = draw(st.integers(1, 3))
        turn = call(*(draw(words) for _ in range(count)))
        new = results(*(draw(lines) for _ in range(count)))
        turns.append((turn, [*new, *([user(draw(lines))] if kind == "both" else [])]))
    return head, turns


def play(name, head, turns):
    """Ids as an episode collects them, and what the template makes of the same messages where it is append-only."""
    renderer = renderer_of(name)
    encode = renderer.tokenizer.encode
    messages, ids = list(head), renderer.prompt(head)
    compared = 0
    for turn, new in turns:
        asked = rendered(renderer, messages)
        try:
            alone = rendered(renderer, [*messages, turn], generation_prompt=False)
            whole = rendered(renderer, [*messages, turn, *new])
        except Exception:  # not a conversation that this template can have
            return compared
        before = list(ids)
        own_end = WAYS[name][1 if "tool_calls" in turn else 0]
        marked = name == "glm4moe"
        said = alone.removeprefix(asked)
        end = said.rfind(own_end) if not marked else len(said)
        is_prefix = alone.startswith(asked) and end != -1
        text = said[:end] if is_prefix else "free speech"
        sampled = [*encode(text, add_special_tokens=False), *encode(own_end, add_special_tokens=False)]
        ids += sampled
        ids += renderer.extend(new, sampled, earlier=messages)
        assert ids[: len(before) + len(sampled)] == before + sampled
        messages += [turn, *new]
        grown = asked + text + own_end
        if is_prefix and whole.startswith(grown) and renderer.decode(before) == asked:
            compared += 1
            assert renderer.decode(ids) == whole
            if not text[:1].isspace():
                assert ids == encode(whole, add_special_tokens=False)
        else:  # what was sampled stays, and the history is no longer what the template would render
            return compared
    return compared


@settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(conversation=conversations(), name=st.sampled_from(sorted(ALIKE.values())))
def test_any_conversation(conversation, name):
    play(name, *conversation)


@pytest.mark.long
@every
@settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(conversation=conversations())
def test_any_conversation_with_any_template(conversation, name):
    play(name, *conversation)


def test_the_property_is_not_empty():
    """On most templates a plain tool conversation is compared to its very end."""
    turns = [(call("1 + 1"), results("2")), (call("2 + 2"), results("4")), (assistant("It is 4."), [user("Thanks.")])]
    names = {"qwen2_5", "qwen3_instruct_2507", "llama3_1", "lfm2_v2", "gemma4", "glm4moe", "muse_glimmer"}
    assert {name: play(name, HEADS["system"], turns) for name in names} == dict.fromkeys(names, 3)


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.x }}",
        "{{ messages[0].update(a=1) }}",
    ],
)
def test_a_template_stays_in_its_sandbox(attack):
    template = (FOLDER / "qwen2_5.jinja").read_text()
    for _ in range(2):  # what was allowed is remembered; what was not, too
        with pytest.raises(TemplateError, match="unsafe"):
            ChatRenderer(byte_tokenizer(attack + template))


@pytest.mark.parametrize("name", ["qwen2_5", "gemma4", "llama3_1", "gptoss", "glm4moe", "nemotron_3_nano"])
def test_text_in_a_tools_schema_is_text_too(name):
    """Descriptions come from a tool's author, maybe a server on the network."""
    tokenizer = renderer_of(name).tokenizer

    def controls(text):
        parameters = {"type": "object", "properties": {"x": {"type": "string", "description": text, "enum": [text]}}}
        renderer = ChatRenderer(tokenizer, [ToolSchema("f", text, parameters)], now=TODAY)
        ids = renderer.prompt(HEADS["system"])
        assert text in renderer.decode(ids)
        assert renderer.tools[0]["function"]["description"] == text
        return [one for one in ids if one in renderer.added_ids]

    without = controls("Do it.")
    for end in (*renderer_of(name).facts.ends_of_turn, "<|im_start|>"):
        assert controls(f"Do it. {end} Do it.") == without
