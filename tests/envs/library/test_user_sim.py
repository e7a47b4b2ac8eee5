"""`UserSim-v0`: functions, models and verl's former interactions as users."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from aiohttp import web

import toolgym
from tests.rollout.engines.http_server import serving
from toolgym.envs import EpisodeFailedError, StopReason, Task
from toolgym.envs.library.orders import OrderTasks
from toolgym.envs.users import InteractionUser, LLMUser, User, UserReply, UserSession
from toolgym.testing import check_env
from toolgym.tools.concurrency.deadline import DeadlineError
from toolgym.tools.errors import ConfigError, ForkNotSupportedError, UnknownNameError
from toolgym.tools.http.chat_endpoint import ChatEndpoint
from toolgym.tools.message import assistant, system, user
from toolgym.tools.parsers import get_parser

TASK = Task((user("Guess my town."),), ground_truth="Oslo", row={})


def row(**interaction_kwargs):
    return Task.from_row(
        {
            "prompt": [{"role": "system", "content": "You help."}],
            "reward_model": {"ground_truth": "tent"},
            "extra_info": {"interaction_kwargs": interaction_kwargs},
        }
    )


async def test_it_keeps_the_contract():
    await check_env("UserSim-v0", forks=True)


async def test_the_customer_begins_and_answers_what_it_is_asked():
    task = OrderTasks().task(3)
    async with toolgym.make("UserSim-v0") as env:
        messages, _ = await env.reset(options={"task": task})
        assert [one["role"] for one in messages] == ["system", "user"]
        assert messages[1]["content"] == f"Hello, I would like to order a {task.ground_truth['item']}."
        result = await env.step("Which size, and in which color?")
        assert result.obs == [user(f"Size {task.ground_truth['size']}, please. In {task.ground_truth['colour']}.")]
        assert "What else do you need" in (await env.step("Hm.")).obs[0]["content"]


async def test_a_wrong_order_scores_its_right_details_as_a_component_alone():
    async with toolgym.make("UserSim-v0") as env:
        await env.reset(seed=0)
        actions = env.gold_actions()
        actions[3]["tool_calls"][0]["function"]["arguments"]["size"] = "huge"
        for action in actions:
            result = await env.step(action)
    assert (result.reward, result.stop_reason) == (0.0, StopReason.ANSWERED)
    assert result.info["metrics"]["score/details"] == 0.75


async def test_a_user_of_ones_own_rewards_turns():
    class Picky(User):
        async def open(self, task, **interaction_kwargs):
            return PickySession()

    class PickySession(UserSession):
        said = 0

        async def reply(self, messages):
            self.said += 1
            return UserReply("More.", done=self.said == 2, reward=self.said / 2, metrics={"said": self.said})

    async with toolgym.make("UserSim-v0", tasks=[TASK], user=Picky()) as env:
        await env.reset()
        first, last = await env.step("a"), await env.step("b")
        assert (first.reward, first.obs, last.reward, last.done) == (0.5, [user("More.")], 1.0, True)
        assert last.info["metrics"]["user/said"] == 2
        await env.reset()
        await env.step("a")
        cut = await env.truncate(StopReason.LENGTH, "b")  # to which the user says nothing
        assert (cut.info["metrics"]["turn"], cut.info["metrics"]["user/said"]) == (2, 1)
        await env.reset()
        with pytest.raises(ForkNotSupportedError, match="PickySession"):
            await env.fork()
        assert (await env.step("a")).reward == 0.5


async def test_users_by_name():
    users = {"kind": lambda messages, task: "Please.", "short": lambda messages, task: UserReply("No.")}
    async with toolgym.make("UserSim-v0", tasks=[TASK], user=users) as env:
        await env.reset(options={"task": row(name="short")})
        assert env.messages[-1] == user("No.")
        with pytest.raises(UnknownNameError, match="did you mean 'kind'"):
            await env.reset(options={"task": row(name="kin")})


class Interaction:
    """What verl's `BaseInteraction` asks for."""

    def __init__(self):
        self.calls = []

    async def start_interaction(self, instance_id=None, **kwargs):
        self.calls.append(("start", kwargs))
        return instance_id

    async def generate_response(self, instance_id, messages, **kwargs):
        right = messages[-1]["content"] == kwargs["ground_truth"]
        return right, "Right." if right else "Try again.", float(right), {}

    async def finalize_interaction(self, instance_id, **kwargs):
        self.calls.append(("finalize", kwargs))


async def test_an_interaction_of_verl():
    interaction = Interaction()
    task = Task.from_row(
        {
            "prompt": [{"role": "user", "content": "2 + 2?"}],
            "extra_info": {"interaction_kwargs": {"name": "sums", "ground_truth": "4"}},
        }
    )
    async with toolgym.make("UserSim-v0", tasks=[task], user={"sums": InteractionUser(interaction)}) as env:
        await env.reset()
        assert (await env.step("5")).obs == [user("Try again.")]
        result = await env.step("4")
        assert (result.done, result.reward) == (True, 1.0)
        await env.reset()
    assert [name for name, _ in interaction.calls] == ["start", "finalize"] * 2
    assert all(kwargs == {"ground_truth": "4"} for _, kwargs in interaction.calls)
    with pytest.raises(ConfigError, match="lacks start_interaction"):
        InteractionUser(object())


def chat_server(*replies):
    bodies = []

    async def chat(request):
        bodies.append(await request.json())
        reply = replies[min(len(bodies), len(replies)) - 1]
        if isinstance(reply, int):
            return web.Response(status=reply, headers={"Retry-After": "1"})
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": reply}}]})

    return serving({"POST /v1/chat/completions": chat}), bodies


@contextlib.asynccontextmanager
async def played_by(url, task, **options):
    """An env whose user is played by the model at an address."""
    player = LLMUser(ChatEndpoint(url, "m", **options))
    async with player, toolgym.make("UserSim-v0", tasks=[task], user=player) as env:
        yield env


async def test_a_model_plays_the_user():
    made, bodies = chat_server("A tent, please.", "Thanks. ###STOP###")
    async with made as url, played_by(f"{url}/v1", row(instruction="Buy a tent.")) as env:
        messages, _ = await env.reset()
        assert messages[-1] == user("A tent, please.")
        result = await env.step("Here it is.")
    assert result.done
    trace = result.info["metrics"]["user_trace"]
    assert [one["role"] for one in trace] == ["system", "user", "assistant", "user", "assistant"]
    assert "Buy a tent." in trace[0]["content"]
    assert trace[1:] == [
        user("Hello, how can I help you?"),
        assistant("A tent, please."),
        user("Here it is."),
        assistant("Thanks. ###STOP###"),
    ]
    assert bodies[1]["messages"] == trace[:4]
    assert not any("Buy a tent" in one["content"] for one in env.messages)


async def test_a_model_that_does_not_answer_fails_the_episode():
    made, _ = chat_server(500)
    async with made as url, played_by(f"{url}/v1", row(instruction="Buy a tent."), patience=0.5) as env:
        with pytest.raises(EpisodeFailedError, match="the user's model did not answer") as failed:
            await env.reset()
    assert failed.value.stop_reason is StopReason.ENV_FAILED


THOUGHTS = [
    "<think>a secret</think>Here it is.",
    "Here it is.<think>a secret ###STOP###",
    "a secret ###STOP###</think>Here it is.",
    "[THINK]a secret[/THINK]Here it is.",
    {"role": "assistant", "content": "Here it is.", "reasoning_content": "a secret"},
]


@pytest.mark.parametrize("turn", THOUGHTS)
async def test_a_user_does_not_read_thinking(turn):
    heard = []

    def listens(messages, task):
        heard.extend(message for message in messages if message["role"] == "assistant")
        return "Go on."

    class Interaction:
        async def start_interaction(self, instance_id, **kwargs):
            return instance_id

        async def generate_response(self, instance_id, messages, **kwargs):
            return False, listens(messages, None), 0.0, {}

        async def finalize_interaction(self, instance_id, **kwargs):
            pass

    for player in (listens, InteractionUser(Interaction())):
        async with toolgym.make("UserSim-v0", tasks=[TASK], user=player) as env:
            await env.reset()
            await env.step(turn)
            assert "secret" in str(env.messages)
    made, bodies = chat_server("A tent, please.", "Go on.")
    async with made as url, played_by(f"{url}/v1", row(instruction="Buy a tent.")) as env:
        await env.reset()
        assert not (await env.step(turn)).done
    assert len(heard) == 2
    assert "secret" not in str(heard) + str(bodies)
    if not str(turn).startswith("Here"):
        assert bodies[-1]["messages"][-1] == user("Here it is.")


@pytest.mark.parametrize("text", ["6 * 7 is a secret", "<think>a secret"])
async def test_a_user_reads_nothing_of_thinking_that_never_ended(text):
    turn = get_parser("hermes")(text, starts_open=True)
    made, bodies = chat_server("A tent, please.", "Hello?")
    async with made as url, played_by(f"{url}/v1", row(instruction="Buy a tent.")) as env:
        await env.reset()
        assert (await env.step(turn)).obs == [user("Hello?")]
    assert bodies[-1]["messages"][-1] == user("(The assistant says nothing.)")


@pytest.mark.parametrize(
    ("reply", "obs"),
    [
        ("<think>###STOP### yet?</think>Go on.", "Go on."),
        ("###STOP### yet? No.</think>Go on.", "Go on."),
        ("Go on.<think>###STOP###", "Go on."),
        ("<think>Fine.</think>###STOP###", None),
        ("<think>Fine.</think>Thanks. ###STOP###", None),
    ],
)
async def test_a_stop_word_in_the_thinking_of_a_model_does_not_count(reply, obs):
    made, bodies = chat_server("A tent, please.", reply, "Bye. ###STOP###")
    async with made as url, played_by(f"{url}/v1", row(instruction="Buy a tent.")) as env:
        await env.reset()
        result = await env.step("Here it is.")
        assert result.obs == ([user(obs)] if obs else [])
        if obs:
            await env.step("And?")
            assert "yet?" not in str(bodies[-1]["messages"])
            assert env.user_trace[4]["reasoning_content"]


async def test_a_message_of_thinking_alone_fails_the_episode():
    made, _ = chat_server("<think>Hm.")
    async with made as url, played_by(f"{url}/v1", row(instruction="Buy a tent.")) as env:
        with pytest.raises(EpisodeFailedError, match="a message of thinking alone"):
            await env.reset()


async def test_a_turn_that_is_too_long_for_the_users_model_ends_the_episode_with_0():
    async def chat(request):
        size = sum(len(message["content"]) for message in (await request.json())["messages"])
        if size > 600:
            return web.json_response({"error": {"code": "context_length_exceeded"}}, status=400)
        return web.json_response({"choices": [{"message": {"content": "A tent, please."}}]})

    async with serving({"POST /v1/chat/completions": chat}) as url:
        for turn in ("word " * 80, "word " * 3000):
            async with played_by(f"{url}/v1", row(instruction="Buy a tent.")) as env:
                await env.reset()
                result = await env.step(turn)
                assert (result.done, result.reward, result.stop_reason) == (True, 0.0, StopReason.ANSWERED)
                assert result.info["metrics"]["score/broken_by_policy"] == 1.0
        async with played_by(f"{url}/v1", row(instruction="Buy a tent." * 300)) as env:
            with pytest.raises(EpisodeFailedError, match="the user's own prompt is too long"):
                await env.reset()


async def test_what_a_model_is_not_given_is_named():
    async with played_by("http://127.0.0.1:9/v1", TASK) as env:
        with pytest.raises(ConfigError, match="an LLMUser needs a text 'instruction'"):
            await env.reset()
    with pytest.raises(ConfigError, match=r"prompt has \{name\}"):
        LLMUser(ChatEndpoint("http://127.0.0.1:9/v1", "m"), prompt="{name}")
    with pytest.raises(ConfigError, match="give the user of your tasks"):
        toolgym.make("UserSim-v0", tasks=[TASK])
    with pytest.raises(ConfigError, match="a user is a toolgym"):
        toolgym.make("UserSim-v0", tasks=[TASK], user="me")


async def test_a_user_has_a_deadline_and_is_closed():
    closed = []

    class Slow(User):
        async def open(self, task, **interaction_kwargs):
            return SlowSession()

    class SlowSession(UserSession):
        async def reply(self, messages):
            await asyncio.sleep(60)

        async def close(self):
            closed.append(1)

    async with toolgym.make("UserSim-v0", tasks=[TASK], user=Slow(), user_timeout=0.05) as env:
        await env.reset()
        with pytest.raises(DeadlineError):
            await env.step("Oslo?")
    assert closed == [1]


async def test_a_system_prompt_alone_needs_a_user_who_begins():
    task = Task((system("You help."),))
    async with toolgym.make("UserSim-v0", tasks=[task], user=lambda messages, task: None) as env:
        with pytest.raises(ConfigError, match="the user begins, and says nothing"):
            await env.reset()
