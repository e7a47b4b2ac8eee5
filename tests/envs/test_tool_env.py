"""`ToolEnv`: the lifecycle of tools, order and concurrency of calls, and failures as observations."""

from __future__ import annotations

import asyncio
import random
import re

import pytest

from tests.actors import call, until
from toolgym.envs.bad_calls import BadCallPolicy
from toolgym.envs.library.code_interpreter import CodeInterpreterEnv
from toolgym.envs.result_text import cut
from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.envs.types import StopReason
from toolgym.tools import BaseTool, ToolResult, ToolSchema, tool
from toolgym.tools.concurrency.deadline import DeadlineError, SelfCancelledError, shielded, with_deadline
from toolgym.tools.errors import ConfigError, EpisodeError, ForkNotSupportedError
from toolgym.tools.parsers import ParsedTurn
from toolgym.tools.schema import ToolCall


@tool
def shout(text: str) -> str:
    """Shout."""
    return text.upper()


class Recorder(BaseTool):
    """Writes down what happens to it; `wait` sleeps, `fail` raises, `hang` never returns, `deaf` ignores its end.

    `most` is how many slept at once.
    """

    default_schema = ToolSchema(
        "record",
        "",
        {
            "type": "object",
            "properties": {
                "what": {"enum": ["say", "wait", "fail", "exit", "hang", "deaf", "broken"]},
                "text": {"type": "string", "default": ""},
                "seconds": {"type": "number", "default": 0},
            },
            "required": ["what"],
        },
    )

    def __init__(self, config=None, tool_schema=None):
        super().__init__(config, tool_schema)
        self.events = []
        self.now = self.most = 0

    async def create(self, instance_id=None, **kwargs):
        self.events.append(("create", kwargs))
        if self.config.get("fail_create"):
            raise RuntimeError("no room")
        return "instance"

    async def execute(self, instance_id, parameters, **kwargs):
        self.events.append(("execute", parameters["text"], kwargs))
        what = parameters["what"]
        if what == "fail":
            raise ValueError("it broke")
        if what == "exit":
            raise SystemExit(3)
        if what == "hang":
            await asyncio.Event().wait()
        if what == "broken":
            return 42
        while what == "deaf":
            try:
                await asyncio.sleep(1)
                what = ""
            except asyncio.CancelledError:
                self.events.append(("ignored",))
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(parameters["seconds"])
        self.now -= 1
        return ToolResult(f"said {parameters['text']}", 0.25, {"n": 1})

    async def calc_reward(self, instance_id, **kwargs):
        self.events.append(("calc_reward", kwargs))
        return 0.5

    async def release(self, instance_id, **kwargs):
        await asyncio.sleep(0)
        self.events.append(("release", kwargs))
        if self.config.get("fail_release"):
            raise RuntimeError("stuck")

    def count(self, kind):
        return sum(event[0] == kind for event in self.events)


TASK = Task(({"role": "user", "content": "go"},), ground_truth="1", id="t")


@pytest.fixture
def recorder():
    return Recorder()


def make(recorder, **kwargs):
    return ToolEnv([recorder], [TASK], **{"tool_timeout": 60.0, **kwargs})


async def test_the_lifecycle_create_once_release_once_calc_reward_called(recorder):
    env = make(recorder, scorer=lambda text, task: 1.0 if text == "done" else 0.0)
    obs, info = await env.reset()
    assert obs == [{"role": "user", "content": "go"}]
    assert info["tools"][0]["function"]["name"] == "record"
    first = await env.step(call("record", what="say", text="a"))
    second = await env.step(call("record", what="say", text="b"))
    assert (first.reward, second.reward) == (0.25, 0.25)
    last = await env.step("done")
    assert last.done
    assert last.terminated
    assert not last.truncated
    assert last.reward == 1.5
    assert last.info["stop_reason"] is StopReason.ANSWERED
    assert last.info["metrics"]["score"] == 1.0
    await env.close()
    await env.close()
    kinds = [event[0] for event in recorder.events]
    assert kinds == ["create", "execute", "execute", "calc_reward", "release"]


async def test_tools_kwargs_reach_every_call(recorder):
    kwargs = {f"{k}_kwargs": {k: 1} for k in ("create", "execute", "calc_reward", "release")}
    env = make(recorder)
    await env.reset(options={"task": Task(TASK.messages, tools_kwargs={"record": kwargs})})
    await env.step(call("record", what="say"))
    await env.step("done")
    assert recorder.events == [
        ("create", {"create": 1}),
        ("execute", "", {"execute": 1}),
        ("calc_reward", {"calc_reward": 1}),
        ("release", {"release": 1}),
    ]


@pytest.mark.parametrize("how", ["close", "reset", "step cancelled"])
async def test_release_happens_once_however_the_episode_ends(recorder, how):
    env = make(recorder)
    await env.reset()
    if how == "reset":
        await env.reset()
        assert recorder.count("release") == 1
    if how == "step cancelled":
        step = asyncio.create_task(env.step(call("record", what="hang")))
        await until(lambda: recorder.count("execute"))
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
    await env.close()
    assert recorder.count("release") == recorder.count("create")


async def test_release_is_finished_even_when_the_close_is_cancelled():
    begun, slow, go_on = [], [], asyncio.Event()

    class Slow(Recorder):
        async def release(self, instance_id, **kwargs):
            begun.append(self)
            await go_on.wait()
            slow.append(self)

    env = ToolEnv([Slow(), Slow(tool_schema=ToolSchema("second", "", Recorder.default_schema.parameters))], [TASK])
    await env.reset()
    close = asyncio.create_task(env.close())
    await until(lambda: begun)
    close.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await close
    assert len(slow) == 2


async def test_a_create_that_fails_releases_what_was_created():
    good, bad = (
        Recorder(),
        Recorder({"fail_create": True}, ToolSchema("second", "", Recorder.default_schema.parameters)),
    )
    env = ToolEnv([good, bad], [TASK])
    with pytest.raises(RuntimeError, match="no room"):
        await env.reset()
    assert (good.count("release"), bad.count("release")) == (1, 0)
    with pytest.raises(EpisodeError):
        await env.step("x")


async def test_a_release_that_fails_costs_nothing(caplog):
    recorder = Recorder({"fail_release": True})
    env = make(recorder)
    await env.reset()
    assert (await env.step("done")).done
    assert "stuck" in caplog.text
    await env.reset()
    await env.close()


async def test_parallel_calls_overlap_and_are_answered_in_order(recorder):
    env = make(recorder)
    await env.reset()
    turn = "".join(call("record", what="say", text=str(n), seconds=0.2 - 0.05 * n) for n in range(4))
    result = await env.step(turn)
    assert recorder.most == 4
    assert [m["content"] for m in result.obs] == [f"said {n}" for n in range(4)]
    assert [m["tool_call_id"] for m in result.obs] == [f"call_{n}" for n in range(4)]
    ids = [c["id"] for c in result.info["message"]["tool_calls"]]
    assert ids == ["call_0", "call_1", "call_2", "call_3"]
    again = await env.step(call("record", what="say"))
    assert again.obs[0]["tool_call_id"] == "call_4"
    await env.close()


async def test_mistakes_keep_their_place_among_good_calls(recorder):
    env = make(recorder)
    await env.reset()
    turn = "".join(
        [
            call("record", what="say", text="a"),
            "<tool_call>{oops}</tool_call>",
            call("recrod", what="say"),
            call("record", what="sing"),
            call("record", what="say", text="b"),
        ]
    )
    result = await env.step(turn)
    records = result.info["tool_calls"]
    assert [r.status for r in records] == ["ok", "malformed_json", "unknown_tool", "wrong_arguments", "ok"]
    assert [m["tool_call_id"] for m in result.obs] == [f"call_{n}" for n in range(5)]
    assert "did you mean 'record'" in result.obs[2]["content"]
    assert 'must be one of "say"' in result.obs[3]["content"]
    assert result.info["message"] == {"role": "assistant", "content": turn}  # kept as written
    assert recorder.count("execute") == 2
    await env.close()


@pytest.mark.parametrize("error", [StopIteration("x"), SystemExit(3), KeyboardInterrupt()])
async def test_what_a_blocking_tool_raises_is_told_by_its_name_and_without_an_address(error):
    @tool
    def stops(what: str) -> str:
        """Stop."""
        raise error

    async with ToolEnv([stops], [Task(({"role": "user", "content": "go"},))]) as env:
        await env.reset()
        read = (await env.step(call("stops", what="now"))).obs[0]["content"]
    assert "stops raised " + type(error).__name__ in read
    assert "0x" not in read


async def test_a_tool_that_raises_is_an_observation(recorder):
    env = make(recorder)
    await env.reset()
    result = await env.step(call("record", what="fail") + call("record", what="exit") + call("record", what="broken"))
    assert [r.status for r in result.info["tool_calls"]] == ["error"] * 3
    assert result.obs[0]["content"] == "[The tool 'record' failed: ValueError: it broke]"
    assert "SystemExit" in result.obs[1]["content"]
    assert "must return" in result.obs[2]["content"]
    assert not result.done
    await env.close()


@pytest.mark.parametrize("what", ["hang", "deaf"])
async def test_a_tool_that_overruns_its_deadline_is_an_observation(recorder, what, monkeypatch):
    monkeypatch.setattr("toolgym.tools.concurrency.deadline.CANCEL_GRACE", 0.2)
    env = make(recorder, tool_timeout=0.3)
    await env.reset()
    result = await env.step(call("record", what="say", text="x") + call("record", what=what))
    assert [r.status for r in result.info["tool_calls"]] == ["ok", "timeout"]
    assert result.obs[1]["content"] == "[The tool 'record' did not finish within 0.3 seconds and was stopped]"
    assert result.info["tool_calls"][1].seconds < 30
    await env.close()
    if what == "deaf":
        assert recorder.count("ignored") >= 1


async def test_limits_on_turns_calls_and_mistakes(recorder):
    env = make(recorder, max_turns=2, max_parallel_calls=1, bad_calls=BadCallPolicy(stop_after=2))
    await env.reset()
    result = await env.step(call("record", what="say", text="a") + call("record", what="say", text="b"))
    assert [r.status for r in result.info["tool_calls"]] == ["ok", "too_many_calls"]
    assert "at most 1 tool calls" in result.obs[1]["content"]
    last = await env.step(call("record", what="say"))
    assert (last.done, last.truncated, last.info["stop_reason"]) == (True, True, StopReason.MAX_TURNS)
    assert recorder.count("execute") == 1
    assert last.reward == 0.5  # calc_reward counts, the score does not
    await env.reset()
    result = await env.step("<tool_call>" * 3)
    assert (result.terminated, result.info["stop_reason"]) == (True, StopReason.TOO_MANY_BAD_CALLS)


async def test_an_answer_in_the_last_turn_is_scored(recorder):
    env = make(recorder, max_turns=1, scorer=lambda text, task: 1.0)
    await env.reset()
    assert (await env.step("done")).info["stop_reason"] is StopReason.ANSWERED


async def test_actions_may_be_messages(recorder):
    env = make(recorder)
    await env.reset()
    message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "abc", "type": "function", "function": {"name": "record", "arguments": {"what": "say"}}}],
    }
    result = await env.step(message)
    assert result.obs[0]["tool_call_id"] == "abc"
    result = await env.step({"role": "assistant", "content": call("record", what="say")})
    assert result.obs[0]["tool_call_id"] == "call_1"
    with pytest.raises(ConfigError, match="assistant message"):
        await env.step({"role": "user", "content": "x"})
    await env.close()


async def test_calls_of_a_message_without_ids_get_those_of_their_results(recorder):
    env = make(recorder)
    await env.reset()
    one = {"type": "function", "function": {"name": "record", "arguments": {"what": "say"}}}
    result = await env.step({"role": "assistant", "content": "", "tool_calls": [one, one]})
    ids = [call["id"] for call in result.info["message"]["tool_calls"]]
    assert ids == [message["tool_call_id"] for message in result.obs] == ["call_0", "call_1"]
    await env.close()


async def test_a_parsed_turn_is_taken_as_it_was_read(recorder):
    def broken(text, **kwargs):
        raise AssertionError("the env's own parser is for text")

    env = make(recorder, parser=broken)
    await env.reset()
    calls = [
        ToolCall("b", "record", {"what": "say", "text": "2"}, 1),
        ToolCall("a", "record", {"what": "say", "text": "1"}, 0),
    ]
    turn = ParsedTurn("as generated", "content", calls, [], "thought")
    result = await env.step(turn)
    assert [message["tool_call_id"] for message in result.obs] == ["a", "b"]
    assert result.info["message"] == turn.message
    assert turn.message["reasoning_content"] == "thought"
    with pytest.raises(AssertionError, match="for text"):
        await env.step("text")
    await env.close()


async def test_use_out_of_order_is_the_users_error(recorder):
    env = make(recorder)
    with pytest.raises(EpisodeError, match="before reset"):
        await env.step("x")
    with pytest.raises(EpisodeError, match="under way"):
        await env.fork()
    await env.reset()
    with pytest.raises(ForkNotSupportedError, match="'record'"):
        await env.fork()
    await env.step("done")
    with pytest.raises(EpisodeError, match="after the episode ended"):
        await env.step("x")
    with pytest.raises(EpisodeError, match="under way"):
        await env.fork()
    with pytest.raises(ConfigError, match="must be a toolgym Task"):
        await env.reset(options={"task": {"prompt": []}})
    with pytest.raises(ConfigError, match="tools_kwargs for 'other'"):
        await env.reset(options={"task": Task(TASK.messages, tools_kwargs={"other": {}})})


def test_wrong_arguments_of_the_env_are_named(recorder):
    for kwargs in (
        {"max_turns": 0},
        {"max_parallel_calls": 0},
        {"tool_timeout": 0},
        {"queue_timeout": 0},
        {"bad_calls": 3},
    ):
        with pytest.raises(ConfigError, match=next(iter(kwargs))):
            make(recorder, **kwargs)
    with pytest.raises(ConfigError, match=r"unique names, got two called 'record': tools 0 \(Recorder\) and 1"):
        ToolEnv([recorder, recorder], [TASK])


async def test_seeds_decide_the_tasks_and_global_random_state_is_left_alone():
    env = CodeInterpreterEnv()
    random.seed(1)
    before = random.getstate()
    first = [(await env.reset(seed=5))[0], (await env.reset())[0], (await env.reset())[0]]
    second = [(await env.reset(seed=5))[0], (await env.reset())[0], (await env.reset())[0]]
    other, _ = await env.reset(seed=6)
    assert first == second
    assert first[0] != first[1]
    assert other != first[0]
    assert random.getstate() == before
    await env.close()


async def test_the_code_interpreter_end_to_end():
    async with CodeInterpreterEnv() as env:
        _, info = await env.reset(seed=0)
        truth = info["task"].ground_truth
        result = await env.step("I compute.\n" + call("code_interpreter", code=f"print({truth})"))
        assert result.obs == [{"role": "tool", "content": truth, "tool_call_id": "call_0", "name": "code_interpreter"}]
        assert result.info["message"]["content"] == "I compute."
        assert (await env.step(f"#### {truth}")).reward == 1.0
        await env.reset(seed=0)
        assert (await env.step("#### -1")).reward == 0.0


async def test_tools_stand_beside_the_interpreter():
    closed = []

    class Shouting(BaseTool):
        default_schema = shout.tool_schema

        async def execute(self, instance_id, parameters, **kwargs):
            return await shout.tool.execute(instance_id, parameters)

        async def close(self):
            closed.append(self)

    for made in (shout, Shouting()):
        env = CodeInterpreterEnv([TASK], tools=[made])
        env.tools["code_interpreter"].close = lambda: asyncio.sleep(0, closed.append("interpreter"))
        _, info = await env.reset()
        assert [one["function"]["name"] for one in info["tools"]] == ["code_interpreter", "shout"]
        result = await env.step(call("shout", text="hi") + call("code_interpreter", code="print(6 * 7)"))
        assert [one["content"] for one in result.obs] == ["HI", "42"]
        await env.close()
    assert closed == ["interpreter"] * 2  # the tools of the caller stay open


async def test_another_tool_in_place_of_the_interpreter():
    async with CodeInterpreterEnv([TASK], tools=[shout], own_tools=False) as env:
        _, info = await env.reset()
        assert [one["function"]["name"] for one in info["tools"]] == ["shout"]
        assert (await env.step(call("shout", text="hi"))).obs[0]["content"] == "HI"
    with pytest.raises(ConfigError, match="give tool_config, or own_tools=False"):
        CodeInterpreterEnv(own_tools=False, tool_config={})


def test_a_further_tool_cannot_hide_the_interpreter():
    other = tool(name="code_interpreter")(shout.tool.function)
    with pytest.raises(ConfigError, match="a tool called 'code_interpreter' of its own; give own_tools=False"):
        CodeInterpreterEnv(tools=[other])
    with pytest.raises(ConfigError, match="tools must be a list of tools, got <function shout"):
        CodeInterpreterEnv(tools=shout)


async def test_an_env_closes_the_tools_that_it_owns():
    class Closing(Recorder):
        async def close(self):
            self.events.append("close")

        async def fork(self, instance_id):
            return "twin"

    own = Closing()
    other = Closing(tool_schema=ToolSchema("other", "", Recorder.default_schema.parameters))
    async with ToolEnv([own, other], [TASK], owns_tools=[own]) as env:
        await env.reset()
        twin = await env.fork()
    assert "close" not in own.events
    await twin.close()
    assert own.events.count("close") == 1
    assert "close" not in other.events


async def test_shielded_work_ends_before_its_cancellation_is_seen():
    begun, done, go_on = [], [], asyncio.Event()

    async def work():
        begun.append(1)
        await go_on.wait()
        done.append(1)

    task = asyncio.create_task(shielded(work()))
    await until(lambda: begun)
    task.cancel()
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == [1]


async def test_a_deadline_passes_results_and_errors_through():
    async def give(value):
        return value

    async def fail():
        raise KeyError("x")

    assert await with_deadline(give(3), 60) == 3
    with pytest.raises(KeyError):
        await with_deadline(fail(), 60)
    with pytest.raises(DeadlineError, match="within 0.01 seconds"):
        await with_deadline(asyncio.sleep(60), 0.01)


async def test_code_that_was_cancelled_from_within_is_an_error_not_a_cancellation():
    async def awaits_something_cancelled():
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    with pytest.raises(SelfCancelledError):
        await with_deadline(awaits_something_cancelled(), 60)


async def test_a_tool_that_was_cancelled_from_within_is_an_observation():
    @tool
    async def broken() -> str:
        """Break."""
        raise asyncio.CancelledError

    async with CodeInterpreterEnv([TASK], tools=[broken]) as env:
        await env.reset()
        result = await env.step(call("broken"))
        assert result.info["tool_calls"][0].status == "error"
        assert "failed" in result.obs[0]["content"]


async def test_a_reset_that_fails_leaves_no_episode_to_step(recorder):
    env = make(recorder)
    await env.reset()
    with pytest.raises(ConfigError):
        await env.reset(options={"task": Task(TASK.messages, tools_kwargs={"other": {}})})
    with pytest.raises(EpisodeError):
        await env.step(call("record", what="say"))
    assert recorder.count("release") == recorder.count("create") == 1


async def test_a_create_that_ends_although_cancelled_is_released():
    class Deaf(Recorder):
        begun = False

        async def create(self, instance_id=None, **kwargs):
            self.begun = True
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await super().create()
                return "late"

    deaf = Deaf()
    env = make(deaf)
    reset = asyncio.create_task(env.reset())
    await until(lambda: deaf.begun)
    reset.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reset
    await env.close()
    assert (deaf.count("create"), deaf.count("release")) == (1, 1)


async def test_text_that_no_tokenizer_takes_does_not_reach_the_observations(recorder):
    env = make(recorder)
    await env.reset()
    turn = '<tool_call>{"name": "rec\\ud800rd", "arguments": {"what": "\\udfff"}}</tool_call>'
    result = await env.step(turn + turn.replace("\\ud800", "o") + call("record", what="say", text="\ud800"))
    assert len(result.obs) == 3
    for message in result.obs:
        message["content"].encode()
        message["name"].encode()


def test_envs_share_one_list_of_tasks():
    tasks = [Task(({"role": "user", "content": str(n)},)) for n in range(1000)]
    assert {id(ToolEnv([], tasks).tasks.tasks) for _ in range(3)} == {id(tasks)}


# ---------------------------------------------------------------------- long results


class Loud(BaseTool):
    """Says as much as it is asked for, or raises with as much."""

    default_schema = ToolSchema("loud", "", {"type": "object", "properties": {"count": {"type": "integer"}}})

    async def execute(self, instance_id, parameters, **kwargs):
        text = "x1 " * parameters["count"]
        if kwargs:
            raise RuntimeError(text)
        return ToolResult(text)


def loud_env(execute_kwargs=None, **kwargs):
    task = Task(({"role": "user", "content": "go"},), tools_kwargs={"loud": {"execute_kwargs": execute_kwargs}})
    return ToolEnv([Loud()], [task], **kwargs)


@pytest.mark.parametrize("execute_kwargs", [None, {"fail": True}])
async def test_a_result_that_would_stall_every_episode_is_cut_and_says_so(execute_kwargs):
    async with loud_env(execute_kwargs) as env:
        await env.reset()
        result = await env.step(call("loud", count=700_000))
        text = result.obs[0]["content"]
        assert len(text) < 50_100
        head, tail = re.split(r" \[\.\.\. 20500\d\d characters left out \.\.\.\] ", text)
        assert "x1 x1" in head
        assert "x1 x1" in tail
        assert result.info["tool_calls"][0].text == text
        assert (await env.step(call("loud", count=10_000))).obs[0]["content"].count("x1") == 10_000


@pytest.mark.parametrize(
    ("side", "shortened"),
    [
        ("left", "x1 x1  [... 3 characters left out ...]"),
        ("right", "[... 3 characters left out ...] x1 x1 "),
        ("middle", "x1  [... 3 characters left out ...] x1 "),
    ],
)
def test_a_text_is_cut_on_either_side(side, shortened):
    assert cut("x1 x1 x1 ", 6, side) == shortened


async def test_the_length_of_a_result_is_the_users():
    async with loud_env(max_result_chars=6) as env:
        await env.reset()
        text = (await env.step(call("loud", count=3))).obs[0]["content"]
        assert text == "x1  [... 3 characters left out ...] x1 "
    async with loud_env(max_result_chars=None) as env:
        await env.reset()
        assert len((await env.step(call("loud", count=100_000))).obs[0]["content"]) == 300_000


@pytest.mark.parametrize("wrong", [0, "9"])
def test_a_length_that_is_none(wrong):
    with pytest.raises(ConfigError, match="max_result_chars must be a whole"):
        loud_env(max_result_chars=wrong)


async def test_what_a_tool_does_not_override_takes_no_task():
    plain = [tool(name=f"plain_{number}", description="")(_nothing) for number in range(10)]
    loop, made = asyncio.get_running_loop(), []

    def counted(loop, coroutine, **kwargs):
        made.append(coroutine.__qualname__)
        return asyncio.Task(coroutine, loop=loop, **kwargs)

    loop.set_task_factory(counted)
    try:
        async with ToolEnv([*plain, Recorder()], [Task([{"role": "user", "content": "q"}])]) as env:
            await env.reset()
            assert len(made) == 1  # to create the one that may take long
            result = await env.step("done")
            assert set(result.info["metrics"]) >= {"reward/plain_0", "reward/record"}
    finally:
        loop.set_task_factory(None)
    assert len(made) <= 5


async def _nothing() -> str:
    return ""


async def test_hooks_that_an_object_brings_along_are_called():
    one, events = tool(name="one", description="")(_nothing).tool, []

    async def create(instance_id=None, **kwargs):
        events.append("create")
        return "mine"

    async def release(instance_id, **kwargs):
        events.append(f"release {instance_id}")

    one.create, one.release = create, release
    async with ToolEnv([one], [Task([{"role": "user", "content": "q"}])]) as env:
        await env.reset()
    assert events == ["create", "release mine"]
