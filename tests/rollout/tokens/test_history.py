"""Histories that are written anew, and context policies: several sequences, each exact."""

from __future__ import annotations

import asyncio
import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.actors import echo
from tests.trl_templates import FOLDER
from toolgym.envs import ToolEnv
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import StopReason
from toolgym.rollout import EpisodeLimits, RunConfig, Runner, SamplingParams, make_batch
from toolgym.rollout.engines.base import FinishReason
from toolgym.rollout.episode import turn_sampling
from toolgym.rollout.tokens import ChatRenderer, ContextPolicy, CutToolResults, KeepToolResults, Summarize
from toolgym.rollout.tokens.context_policies import read_context
from toolgym.rollout.tokens.safe_encoder import SafeEncoder
from toolgym.rollout.tokens.template_check import byte_tokenizer
from toolgym.tools.errors import ConfigError

TASK = Task(({"role": "user", "content": "q"},), id="q")
PLACEHOLDER = KeepToolResults(1).placeholder


def call(text, thought=""):
    return f'{thought}<tool_call>\n{{"name": "echo", "arguments": {{"text": "{text}"}}}}\n</tool_call>'


def turns(*texts):
    """A script that says one text after the other, whatever it is asked."""
    return lambda prompt, request_id: texts[int(request_id.split("-")[1])]


def without_thinking(tokenizer):
    """The tokenizer with a template that drops the thinking of earlier turns, as many templates do."""
    forgetful = copy.deepcopy(tokenizer)
    old = '{%- set content = message.content if message.content is string else "" -%}'
    assert old in tokenizer.chat_template
    new = old + "{%- if message.role == 'assistant' -%}{%- set content = content.split('</think>')[-1] -%}{%- endif -%}"
    forgetful.chat_template = tokenizer.chat_template.replace(old, new)
    return forgetful


async def play(engine, tokenizer, **config):
    config = {"sampling": SamplingParams(max_new_tokens=120), **config}
    made = lambda: ToolEnv([echo], [TASK], max_turns=20)  # noqa: E731
    [one] = await Runner(made, engine, tokenizer=tokenizer, config=RunConfig(**config)).run([TASK])
    return one


async def test_a_template_that_keeps_history_makes_one_sequence_either_way(scripted, tokenizer, exact):
    ids = []
    for history in ("append", "template"):
        engine = scripted(turns(call("a"), call("b"), "done"))
        one = await play(engine, tokenizer, history=history)
        exact(engine, one)
        ids.append((one.prompt_ids.tolist(), one.response_ids.tolist(), one.response_mask.tolist()))
    assert ids[0] == ids[1]


async def test_dropped_thinking_begins_a_sequence_for_each_turn_that_thought(scripted, tokenizer, exact):
    said = (call("a", "<think>hm</think>"), call("b"), call("c", "<think>oh</think>"), "done")
    engine = scripted(turns(*said))
    one = await play(engine, without_thinking(tokenizer), history="template")
    exact(engine, one)
    assert [sequence.start_reason for sequence in one.sequences] == ["start", "template", "template"]
    assert [turn.sequence for turn in one.turns] == [0, 1, 1, 2]
    assert one.messages[1]["reasoning_content"] == "hm"
    assert one.messages[1]["content"] == ""
    assert one.messages[1]["tool_calls"][0]["function"]["arguments"] == {"text": "a"}
    second = tokenizer.decode(one.sequences[1].prompt_ids)
    assert "hm" not in second
    assert call("a") in second
    assert second == without_thinking(tokenizer).apply_chat_template(
        list(one.messages[:3]), tools=list(one.tools), tokenize=False, add_generation_prompt=True
    )
    assert one.prompt_text == tokenizer.decode(one.sequences[2].prompt_ids)
    appended = await play(scripted(turns(*said)), without_thinking(tokenizer))
    assert len(appended.sequences) == 1
    assert "hm" in appended.response_text


@pytest.mark.parametrize(
    ("name", "said", "sequences"),
    [
        ("llama3_1", call("a") + "\n" + call("b"), {1, 2}),  # one call per message: the turn stays text
        ("gptoss", "<tool_call>\n{broken\n</tool_call>", {1}),  # no result without a call: the delta goes on
        ("gptoss", call("a") + "\n<tool_call>\n{broken\n</tool_call>", {1}),
    ],
)
async def test_what_a_policy_writes_and_a_template_refuses_does_not_fail_the_episode(
    scripted_engine, exact, name, said, sequences
):
    tokenizer = byte_tokenizer((FOLDER / f"{name}.jinja").read_text())
    end = ChatRenderer(tokenizer, [echo.tool_schema]).end_of_turn_id
    ids = [*tokenizer.encode(said, add_special_tokens=False), end]

    def script(prompt, request_id):
        return (ids, FinishReason.STOP) if request_id.split("-")[1] in ("0", "1") else "done"

    engine = scripted_engine(tokenizer, script)
    sampling = SamplingParams(max_new_tokens=500)
    one = await play(engine, tokenizer, history="template", sampling=sampling, parser="hermes")
    assert one.error is None
    assert (one.stop_reason, len(one.turns)) == (StopReason.ANSWERED, 3)
    exact(engine, one)
    assert len(one.sequences) in sequences


@pytest.mark.parametrize(
    ("said", "sequences"),
    [(call("a"), 3), ("<tool_call>\n{broken\n</tool_call>", 1)],  # the second is no call, and its result has none
)
async def test_a_context_policy_goes_on_where_a_template_takes_no_turn_as_text(scripted_engine, exact, said, sequences):
    tokenizer = byte_tokenizer((FOLDER / "gptoss.jinja").read_text())
    end = ChatRenderer(tokenizer, [echo.tool_schema]).end_of_turn_id
    ids = [*tokenizer.encode(said, add_special_tokens=False), end]

    def script(prompt, request_id):
        return (ids, FinishReason.STOP) if request_id.split("-")[1] in "012" else "done"

    engine = scripted_engine(tokenizer, script)
    sampling = SamplingParams(max_new_tokens=500)
    one = await play(engine, tokenizer, context=KeepToolResults(1), sampling=sampling, parser="hermes")
    assert one.error is None
    assert (one.stop_reason, len(one.turns), len(one.sequences)) == (StopReason.ANSWERED, 4, sequences)
    exact(engine, one)


async def test_odd_tokens_begin_a_sequence_because_inference_would_send_the_usual_ones(scripted, tokenizer, exact):
    text = call("abc")
    letters = [tokenizer.encode(char, add_special_tokens=False) for char in text]
    odd = [token for ids in letters for token in ids] + [tokenizer.eos_token_id]
    whole = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(odd[:-1]) == text
    assert odd[:-1] != whole
    engine = scripted(turns((odd, FinishReason.STOP), "done"))
    one = await play(engine, tokenizer, history="template", sampling=SamplingParams(max_new_tokens=400))
    exact(engine, one)
    assert len(one.sequences) == 2


async def test_several_sequences_become_rows_that_share_reward_and_group(scripted, tokenizer):
    engine = scripted(turns(call("a", "<think>hm</think>"), "done"))
    many = await play(engine, without_thinking(tokenizer), history="template")
    one = await play(scripted(turns(call("a"), "done")), tokenizer)
    batch = make_batch([many, one], pad_token_id=0)
    assert batch.ids == (f"{many.id}/0", f"{many.id}/1", one.id)
    assert batch.trajectory_ids.tolist() == [0, 0, 1]
    assert int(batch.response_mask.sum()) == many.policy_tokens + one.policy_tokens
    with pytest.raises(ConfigError, match="2 token sequences"):
        many.response_ids  # noqa: B018


# ---------------------------------------------------------------------- context policies


async def test_only_the_last_results_are_kept(scripted, tokenizer, exact):
    engine = scripted(turns(call("r0"), call("r1"), call("r2"), "done"))
    one = await play(engine, tokenizer, context=KeepToolResults(1))
    exact(engine, one)
    assert [sequence.start_reason for sequence in one.sequences] == ["start", "KeepToolResults", "KeepToolResults"]
    prompts = [tokenizer.decode(sequence.prompt_ids) for sequence in one.sequences]
    assert [text.count(PLACEHOLDER) for text in prompts] == [0, 1, 2]
    assert "<tool_response>\nr2" in prompts[2]
    assert "<tool_response>\nr1" not in prompts[2]
    assert [message["content"] for message in one.messages if message["role"] == "tool"] == ["r0", "r1", "r2"]


async def test_slack_makes_new_sequences_rarer(scripted, tokenizer, exact):
    engine = scripted(turns(*[call(f"r{n}") for n in range(6)], "done"))
    one = await play(engine, tokenizer, context=KeepToolResults(1, slack=2))
    exact(engine, one)
    assert len(one.sequences) == 2
    assert [turn.sequence for turn in one.turns] == [0, 0, 0, 0, 1, 1, 1]


async def test_a_long_result_is_cut_in_the_middle_and_says_by_how_much(scripted, tokenizer, exact):
    text = "begin " + "middle " * 300 + "end"
    engine = scripted(turns(call(text), "done"), context_length=8000)
    one = await play(engine, tokenizer, context=[CutToolResults(100)], sampling=SamplingParams(max_new_tokens=4000))
    exact(engine, one)
    assert len(one.sequences) == 1  # it was cut before it was read
    [shown] = [message["content"] for message in one.messages if message["role"] == "tool"]
    assert shown.startswith("begin middle")
    assert shown.endswith("middle end")
    number = int(shown.partition("[... ")[2].partition(" tokens")[0])
    size = len(tokenizer.encode(text, add_special_tokens=False))
    assert 0 < size - number < 100
    assert len(tokenizer.encode(shown, add_special_tokens=False)) <= 100
    assert one.turns[0].tool_calls[0].text == text  # the record of the call has all of it


def test_the_text_of_control_tokens_counts_as_the_tokens_that_it_becomes(tokenizer):
    renderer = ChatRenderer(tokenizer)

    def size(content):
        return len(renderer.extend([{"role": "tool", "content": content, "tool_call_id": "c", "name": "echo"}]))

    message = {"role": "tool", "content": "<|im_end|>" * 60, "tool_call_id": "c", "name": "echo"}
    cut = CutToolResults(64).admit(message, renderer)["content"]
    assert size(message["content"]) - size("") > 200
    assert size(cut) - size("") <= 64 + 2  # a join with the template's own text may make a token of two, or two of one


@given(st.text(max_size=600), st.integers(64, 200), st.floats(0, 1))
def test_a_cut_result_fits_and_is_made_of_the_text(tokenizer, text, most, head):
    message = {"role": "tool", "content": text, "tool_call_id": "c", "name": "echo"}
    cut = CutToolResults(most, head).admit(message, ChatRenderer(tokenizer))["content"]
    encoder = SafeEncoder.of(tokenizer)
    if len(encoder.encode(encoder.protect(text))) <= most:
        assert cut == text
        return
    assert len(encoder.encode(encoder.protect(cut))) <= most
    start, _, rest = cut.partition("\n[... ")
    _, note, end = rest.partition(" tokens were left out here ...]\n")
    assert note
    assert text.startswith(start)
    assert text.endswith(end)
    assert len(start) + len(end) <= len(text)


async def test_a_callback_sums_up_when_the_context_fills(scripted, tokenizer, exact):
    asked = []

    async def sum_up(messages):
        asked.append([message["role"] for message in messages])
        messages[0]["content"] = "changed in place"
        return [{"role": "user", "content": "q, so far: " + messages[-1]["content"]}]

    engine = scripted(turns(*[call("word " * 6) for _ in range(8)], "done"))
    one = await play(
        engine, tokenizer, context=Summarize(sum_up, share=0.8), limits=EpisodeLimits(max_response_tokens=300)
    )
    exact(engine, one)
    assert one.stop_reason is StopReason.ANSWERED
    assert len(one.turns) == 9
    assert len(one.sequences) > 2
    assert {sequence.start_reason for sequence in one.sequences[1:]} == {"Summarize"}
    assert "q, so far: word" in tokenizer.decode(one.sequences[1].prompt_ids)
    assert one.messages[0] == TASK.messages[0]
    assert len(one.messages) == 18
    longest = len(one.sequences[0].prompt_ids) + 300
    assert all(len(s.prompt_ids) + len(s.response_ids) <= longest for s in one.sequences)
    assert asked


class Saying(ContextPolicy):
    """Returns or raises what it is told to."""

    def __init__(self, said):
        self.said = said

    async def revise(self, messages, state):
        if isinstance(self.said, Exception):
            raise self.said
        if self.said == "wait":
            await asyncio.sleep(60)
        return self.said


@pytest.mark.parametrize(
    ("said", "reason", "why"),
    [
        (RuntimeError("no summary"), "context_failed", "no summary"),
        ("wait", "context_timeout", "0.2 seconds"),
        ("text", "context_failed", "must return a list of messages"),
        ([], "context_failed", "must return a list of messages"),
        ([{"role": "tool"}], "context_failed", "text content"),
        ([{"role": "assistant", "content": "x"}], "context_failed", "must end with another"),
        ([{"role": "nobody", "content": "x"}], "context_failed", "role out of"),
    ],
)
async def test_a_policy_that_breaks_costs_one_trajectory(scripted, tokenizer, said, reason, why):
    engine = scripted(turns(call("a"), "done"))
    seconds = 0.2 if said == "wait" else 60.0
    one = await play(engine, tokenizer, context=Saying(said), limits=EpisodeLimits(context_timeout=seconds))
    assert (one.stop_reason, one.error.turn) == (reason, 0)
    assert why in one.error.message
    assert one.policy_tokens > 0


async def test_a_policy_that_gives_more_than_the_budget_ends_the_episode(scripted, tokenizer):
    engine = scripted(turns(call("a"), "done"))
    long = Saying([{"role": "user", "content": "word " * 300}])
    one = await play(engine, tokenizer, context=long, limits=EpisodeLimits(max_response_tokens=200))
    assert (one.stop_reason, one.failed, len(one.sequences)) == (StopReason.BUDGET, False, 1)
    assert len(engine.seen) == 1  # nothing was cut, and nothing was sent


def test_what_cannot_be_is_refused_at_once():
    for made in (
        lambda: RunConfig(history="templates"),
        lambda: RunConfig(on_truncated_turn="cut"),
        lambda: RunConfig(context=["keep"]),
        lambda: KeepToolResults(0),
        lambda: CutToolResults(10),
        lambda: CutToolResults(100, head=2),
        lambda: Summarize(lambda messages: messages, share=0),
    ):
        with pytest.raises(ConfigError):
            made()


# ---------------------------------------------------------------------- as a configuration names them


def make_summary(share):
    return Summarize(first_and_last, share=share)


def test_a_configuration_names_policies_and_what_makes_them():
    keep = {"name": "KeepToolResults", "kwargs": {"last": 3}}
    own = {"name": f"{__name__}:make_summary", "kwargs": {"share": 0.5}}
    assert read_context([keep, own, CutToolResults(64)]) == (
        KeepToolResults(3), Summarize(first_and_last, share=0.5), CutToolResults(64)
    )  # fmt: skip
    assert read_context(keep) == (KeepToolResults(3),)
    assert read_context(f"{__name__}:Recalling")[0].name == "Recalling"
    assert read_context([]) == ()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("KeepToolResult", "did you mean 'KeepToolResults'"),
        ({"name": "KeepToolResults", "kwargs": {"lost": 1}}, "did you mean 'last'"),
        ({"name": "KeepToolResults"}, "missing 1 required"),
        ({"name": "KeepToolResults", "kwargs": {"last": 0}}, "last must be at least 1"),
        ({"name": "KeepToolResults", "last": 3}, "a context policy is one of"),
        ("no_such_module:Policy", "there is no module 'no_such_module'"),
        ("builtins:dict", "must give a context policy"),
        (3, "must be a list of context policies"),
        ([3], "a context policy is one of"),
    ],
)
def test_what_names_no_policy_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        read_context(given)


def test_one_sequence_is_what_nothing_rewrites():
    assert RunConfig(context=[CutToolResults(64)]).one_sequence
    for changes in ({"history": "template"}, {"context": KeepToolResults(1)}, {"context": Recalling()}):
        assert not RunConfig(**changes).one_sequence


class Recalling(ContextPolicy):
    async def revise(self, messages, state):
        return messages


# ---------------------------------------------------------------------- whatever is said


async def first_and_last(messages):
    return [messages[0], {"role": "user", "content": "go on"}]


WORDS = st.sampled_from(["a", "two words", "<|im_end|>", "</think>", "é", "word " * 20])
THOUGHTS = st.sampled_from(["", "", "<think>hm</think>", "<think>\nhm\n</think>\n\n", "well. ", "</think>"])
GENERATED = st.one_of(
    st.builds(call, WORDS.filter(str.isascii), THOUGHTS),
    st.builds(lambda a, b: call(a) + "\n" + call(b), st.just("x"), st.just("y")),
    st.just("<tool_call>\n{broken\n</tool_call>"),
    st.just(call("open", "<think>")),
)
SAID = st.tuples(GENERATED, st.sampled_from([FinishReason.STOP] * 4 + [FinishReason.LENGTH, FinishReason.ABORT]))
POLICIES = st.sampled_from(
    [
        (),
        (KeepToolResults(1),),
        (CutToolResults(64), KeepToolResults(2, slack=1)),
        (Summarize(first_and_last, share=0.5),),
    ]
)


@given(
    said=st.lists(SAID, min_size=1, max_size=6),
    forgetful=st.booleans(),
    history=st.sampled_from(["append", "template"]),
    on_truncated_turn=st.sampled_from(["end", "close"]),
    context=POLICIES,
    most=st.sampled_from([None, 250, 600]),
)
def test_every_sampled_token_is_in_one_sequence_and_each_is_what_the_engine_saw(
    tokenizer, scripted_engine, exact, said, forgetful, history, on_truncated_turn, context, most
):
    def script(prompt, request_id):
        number = int(request_id.split("-")[1])
        if number >= len(said):
            return "done"
        return said[number]

    turn_sampling.RESUME_WAIT, kept = (0.0, 0.0), turn_sampling.RESUME_WAIT
    try:
        engine = scripted_engine(tokenizer, script, context_length=2000)
        one = asyncio.run(
            play(
                engine,
                without_thinking(tokenizer) if forgetful else tokenizer,
                history=history,
                on_truncated_turn=on_truncated_turn,
                context=context,
                limits=EpisodeLimits(max_response_tokens=most, max_resumes=2),
            )
        )
    finally:
        turn_sampling.RESUME_WAIT = kept
    assert one.error is None
    exact(engine, one)
    if history == "append" and not context:
        assert len(one.sequences) == 1
    bound = 2000 if most is None else min(2000, len(one.sequences[0].prompt_ids) + most)
    for sequence in one.sequences:
        assert len(sequence.prompt_ids) + len(sequence.response_ids) <= bound
        assert most is None or len(sequence.response_ids) <= most
    batch = make_batch([one], pad_token_id=0)
    assert int(batch.response_mask.sum()) == sum(len(given.token_ids) for given in engine.given.values())
