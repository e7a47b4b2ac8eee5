"""Trees of episodes: where a run branches, into how many, and what a trainer gets."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections import Counter

import pytest
import torch

from toolgym.envs import BaseEnv, CodeInterpreterEnv, Task, ToolEnv
from toolgym.rollout import GroupPlan, RunConfig, Runner, SamplingParams, group_advantages, make_batch
from toolgym.rollout.batch import pack, pack_tree
from toolgym.rollout.episode import turn_sampling
from toolgym.rollout.recording import recorded
from toolgym.rollout.runner import Branching, at_turns, by_chance, where_unsure
from toolgym.rollout.runner import branching as branching_room
from toolgym.tools import StatefulTool, ToolSchema, ToolSession
from toolgym.tools.concurrency.log_throttle import LogThrottle
from toolgym.tools.errors import ConfigError

TASKS = [Task(({"role": "user", "content": f"q{n}"},), id=str(n)) for n in range(4)]


class Counting(ToolSession):
    open_now = 0

    def __init__(self, seen=()):
        self.seen = list(seen)
        Counting.open_now += 1

    async def execute(self, parameters, **execute_kwargs):
        await asyncio.sleep(parameters["by"] / 5000)  # so that episodes overtake each other
        self.seen.append(parameters["by"])
        return f"sum {sum(self.seen)}"

    async def reward(self, **calc_reward_kwargs):
        return float(sum(self.seen))

    async def fork(self):
        return Counting(self.seen)

    async def close(self):
        Counting.open_now -= 1


class AddTool(StatefulTool):
    def __init__(self):
        parameters = {"type": "object", "properties": {"by": {"type": "integer"}}, "required": ["by"]}
        super().__init__({}, ToolSchema("add", "", parameters))

    async def open(self, **create_kwargs):
        return Counting()


def call(by):
    return f"<tool_call>\n{json.dumps({'name': 'add', 'arguments': {'by': by}})}\n</tool_call>"


@pytest.fixture
def play(scripted, tokenizer):
    """Plays tasks whose policy adds what its seed says, three times, and then answers."""

    def script(prompt, request_id):
        seed = engine.seen[request_id][1].seed
        return call(seed % 97) if prompt.count("<tool_response>") < 3 else "done"

    engine = scripted(script)

    async def play(tasks=TASKS[:2], make=lambda: ToolEnv([AddTool()], TASKS), **config):
        config = {"seed": 3, "sampling": SamplingParams(max_new_tokens=100), **config}
        runner = Runner(make, engine, tokenizer=tokenizer, config=RunConfig(**config))
        done = await runner.run(tasks)
        assert Counting.open_now == 0
        return done

    play.engine = engine
    return play


async def test_an_episode_branches_at_the_turns_that_were_asked_for(play):
    done = await play(branching=Branching(at_turns(1, 2, continuations=3), max_branches=8), group_size=2)
    by_id = {one.id: one for one in done}
    assert Counter((one.task_index, one.parent is None) for one in done) == {
        (0, True): 2, (0, False): 16, (1, True): 2, (1, False): 16,
    }  # fmt: skip
    assert [[one.sample_index for one in done if one.task_index == task] for task in (0, 1)] == [list(range(18))] * 2
    for one in done:
        if one.parent is None:
            assert one.branch_turn is None
            continue
        parent = by_id[one.parent]
        assert (one.group_id, one.branch_turn in (1, 2)) == (parent.group_id, True)
        assert one.turns[: one.branch_turn] == parent.turns[: one.branch_turn]
        assert one.turns[one.branch_turn] != parent.turns[one.branch_turn]
        assert one.prompt_ids.tolist() == parent.prompt_ids.tolist()
    seeds = [turn.seed for one in done for turn in one.turns[one.branch_turn or 0 :]]
    assert len(seeds) == len(set(seeds))


async def test_branches_are_bounded_and_shared_out_in_equal_parts(play):
    done = await play(TASKS[:1], branching=Branching(at_turns(1, 2, 3), max_branches=4))
    [root] = [one for one in done if one.parent is None]
    assert len(done) == 5
    # Of the 3 that are left after the first branch, 1 goes to it and 2 stay with the root.
    assert sorted((one.branch_turn, one.parent == root.id) for one in done if one.parent) == [
        (1, True), (2, False), (2, True), (3, True),
    ]  # fmt: skip


def shown(done):
    """What trajectories are, without what may differ: ids, numbers in the group, and times."""
    by_id = {one.id: one for one in done}

    def path(one):
        return [] if one is None else [*path(by_id.get(one.parent)), [one.branch_turn, [t.seed for t in one.turns]]]

    return sorted(
        json.dumps([one.task_index, path(one), one.response_ids.tolist(), one.logprobs.tolist(), one.reward])
        for one in done
    )


async def test_the_same_seeds_give_the_same_trees_whatever_runs_at_the_same_time(play):
    branching = Branching(by_chance(0.6, continuations=3), max_branches=6)
    runs = [await play(TASKS[:3], branching=branching, max_concurrent=most) for most in (1, 3, 64)]
    assert len(runs[0]) > 6
    assert shown(runs[0]) == shown(runs[1]) == shown(runs[2])
    other = await play(TASKS[:3], branching=branching, seed=4)
    assert shown(other) != shown(runs[0])


async def test_branches_obey_the_admission(play):
    most, now = 0, set()

    class Watched(ToolEnv):
        async def step(self, action):
            nonlocal most
            now.add(self)
            most = max(most, len(now))
            await asyncio.sleep(0)
            try:
                return await super().step(action)
            finally:
                now.discard(self)

    branching = Branching(at_turns(1, 2, continuations=4), max_branches=12)
    done = await play(TASKS[:2], lambda: Watched([AddTool()], TASKS), branching=branching, max_concurrent=3)
    assert (len(done), most) == (2 * 13, 3)


async def test_an_env_that_cannot_be_forked_plays_alone_and_the_log_says_why(play, caplog, monkeypatch):
    monkeypatch.setattr(branching_room, "_warnings", LogThrottle(60))

    class Rigid(ToolEnv):
        fork = BaseEnv.fork

    with caplog.at_level(logging.WARNING, "toolgym.rollout"):
        done = await play(TASKS, lambda: Rigid([AddTool()], TASKS), branching=Branching(at_turns(1, 2)))
    assert [one.parent for one in done] == [None] * 4
    assert [one.failed for one in done] == [False] * 4
    [line] = [one.message for one in caplog.records if "could not branch" in one.message]
    assert "ForkNotSupportedError: Rigid cannot be forked" in line


async def test_a_run_that_is_cancelled_frees_the_branches_that_wait(scripted, tokenizer, play):
    held = asyncio.Event()

    def wait(prompt, request_id):
        if "tool_response" in prompt and "sum" in prompt:
            held.set()
            return 60
        return call(1)

    play.engine.script = wait
    running = asyncio.create_task(play(TASKS, branching=Branching(at_turns(1, continuations=5)), max_concurrent=1))
    async with asyncio.timeout(50):
        await held.wait()
        assert Counting.open_now == 5
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert Counting.open_now == 0


@pytest.mark.long
async def test_a_run_that_is_cancelled_at_any_moment_leaves_no_env_behind(play):
    branching = Branching(at_turns(1, 2, continuations=3), max_branches=6)
    for ticks in itertools.count(0, 23):
        running = asyncio.create_task(play(TASKS[:2], branching=branching, max_concurrent=3))
        for _ in range(ticks):
            await asyncio.sleep(0)
        if running.done():
            break
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert Counting.open_now == 0
    assert len(await running) == 14
    assert ticks > 100


async def test_a_sink_that_breaks_ends_the_run_and_frees_the_branches_that_wait(play):
    class Broken:
        def write(self, trajectory):
            raise OSError("the disk is full")

    runner = Runner(
        lambda: ToolEnv([AddTool()], TASKS),
        play.engine,
        sinks=[Broken()],
        config=RunConfig(
            seed=3,
            sampling=SamplingParams(max_new_tokens=100),
            branching=Branching(at_turns(1, continuations=8)),
            max_concurrent=1,
        ),
    )
    async with asyncio.timeout(50):
        with pytest.raises(OSError, match="the disk is full") as caught:
            await runner.run(TASKS)
    assert len(caught.value.trajectories) < 3
    assert Counting.open_now == 0


async def test_where_the_policy_was_unsure(play):
    """The stand-in gives its tokens -0.25 and a thousandth less for each that follows."""
    assert len(await play(TASKS[:1], branching=Branching(where_unsure(-0.25), max_branches=3))) == 4
    assert len(await play(TASKS[:1], branching=Branching(where_unsure(-0.3), max_branches=3))) == 1


@pytest.mark.long
async def test_the_code_interpreters_variables_branch_with_the_episode(scripted, tokenizer):
    def script(prompt, request_id):
        number = engine.seen[request_id][1].seed
        cells = ["x = []", f"x.append({number}); print(x)", "print(x)"]
        at = prompt.count("<tool_response>")
        if at == 3:
            return "done"
        asked = json.dumps({"name": "code_interpreter", "arguments": {"code": cells[at]}})
        return f"<tool_call>\n{asked}\n</tool_call>"

    engine = scripted(script)
    config = RunConfig(
        seed=3, sampling=SamplingParams(max_new_tokens=200), branching=Branching(at_turns(1, continuations=3))
    )
    runner = Runner(lambda: CodeInterpreterEnv(TASKS), engine, tokenizer=tokenizer, config=config)
    done = await runner.run(TASKS[:1])
    lists = [one.tool_calls[2].text for one in done]
    assert lists == [one.tool_calls[1].text for one in done] == [f"[{one.turns[1].seed}]" for one in done]
    assert len(set(lists)) == 3


async def test_a_tree_packs_its_shared_prefix_once_and_loses_nothing(play):
    done = await play(TASKS[:1], branching=Branching(at_turns(1, 2, continuations=2), max_branches=3))
    batch = make_batch(done, pad_token_id=0)
    advantages = batch.per_row(done, group_advantages(done))
    tree, rows = pack_tree(batch, advantages), pack(batch, advantages)
    # Each token stands once for each different past: a set of prefixes counts them by another way.
    prefixes = {tuple(ids[:end]) for ids in whole(done) for end in range(1, len(ids) + 1)}
    assert len(tree) == len(prefixes) < len(rows.input_ids) / 2
    assert torch.equal(tree.input_ids[tree.nodes], rows.input_ids)
    assert torch.equal(tree.position_ids[tree.nodes], rows.position_ids)

    # A model whose logits depend on the whole path down to a token: the sum of what was there.
    table = torch.randn(512, 512, generator=torch.Generator().manual_seed(0), requires_grad=True)
    hidden = tree.attention_mask.float() @ table[tree.input_ids]
    shared = loss(tree.token_log_probs(hidden), rows)
    [gradient] = torch.autograd.grad(shared, table)
    plain = torch.cat([table[ids].cumsum(0) for ids in rows.input_ids.split(rows.cu_seqlens.diff().tolist())])
    alone = loss(rows.token_log_probs(plain), rows)
    [expected] = torch.autograd.grad(alone, table)
    torch.testing.assert_close(shared, alone)
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-3)


def whole(done):
    return [[*one.prompt_ids.tolist(), *one.response_ids.tolist()] for one in done]


def loss(log_probs, rows):
    return -(log_probs * rows.advantages).sum() / rows.response_mask.sum()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda turn, point: 1 / 0, "continuations raised ZeroDivisionError"),
        (lambda turn, point: None, "must give a whole number, got None"),
    ],
)
async def test_a_function_of_the_user_that_breaks_ends_the_run_with_its_error(play, wrong, said):
    with pytest.raises(ConfigError, match=said):
        await play(branching=Branching(wrong))
    assert Counting.open_now == 0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RunConfig(branching=at_turns(1)), "branching must be a Branching"),
        (lambda: Branching(2), "continuations must be a function"),
        (lambda: Branching(at_turns(1), max_branches=0), "max_branches"),
        (lambda: at_turns(), "at least one turn"),
        (lambda: at_turns(0), "a turn to branch at"),
        (lambda: at_turns(1, continuations=1), "continuations"),
        (lambda: by_chance(1.5), "from 0 to 1"),
        (lambda: where_unsure(0.5), "less than 0"),
    ],
)
def test_mistakes_are_named(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_a_run_that_branches_is_not_recorded(play, tokenizer, tmp_path):
    runner = Runner(
        lambda: ToolEnv([AddTool()], TASKS),
        play.engine,
        tokenizer=tokenizer,
        config=RunConfig(branching=Branching(at_turns(1))),
    )
    with pytest.raises(ConfigError, match="branch cannot be recorded"), recorded(runner, TASKS, tmp_path / "run.jsonl"):
        pass
    assert not (tmp_path / "run.jsonl").exists()


@pytest.mark.parametrize("stragglers", ["drop", "keep", "carry"])
async def test_branches_that_are_stragglers(scripted, tokenizer, monkeypatch, stragglers):
    monkeypatch.setattr(turn_sampling, "ABORT_GRACE", 0.01)
    slow, waiting = True, []

    class Engine(type(scripted(None))):
        async def _generate(self, request):
            prompt = tokenizer.decode(request.prompt_ids)
            while "tool_response" in prompt and "q0" not in prompt and len(waiting) < 3:
                await asyncio.sleep(0.001)
            return await super()._generate(request)

    def script(prompt, request_id):
        if "tool_response" not in prompt:
            return call(5)
        if "q0" not in prompt or not slow:
            return "done"
        waiting.append(request_id)
        return 3600

    config = RunConfig(
        seed=3, sampling=SamplingParams(max_new_tokens=100), branching=Branching(at_turns(1, continuations=3))
    )
    make = lambda: ToolEnv([AddTool()], TASKS)  # noqa: E731
    engine = Engine(tokenizer, script)
    async with Runner(make, engine, tokenizer=tokenizer, config=config) as runner, asyncio.timeout(50):
        plan = GroupPlan(groups=1, spare_groups=1, stragglers=stragglers)
        done = await runner.run(TASKS[:2], plan=plan)
        late = [one for one in done if one.task_id == "0"]
        assert [one.stop_reason for one in done if one.task_id == "1"] == ["answered"] * 3
        assert len(waiting) == 3
        assert [one.stop_reason for one in late] == (["straggler"] * 3 if stragglers == "keep" else [])
        if stragglers == "carry":
            assert Counting.open_now == 3
            slow = False
            late = await runner.run([])
            assert [one.stop_reason for one in late] == ["answered"] * 3
        if late:
            root, *branches = late
            assert [(one.parent, one.branch_turn) for one in branches] == [(root.id, 1)] * 2
            assert [one.reward for one in late] == [5.0 if stragglers == "carry" else 0.0] * 3
    assert Counting.open_now == 0


async def test_an_episode_that_is_lost_is_played_again_and_its_branches_stay(play):
    failed = []

    def script(prompt, request_id):
        if "tool_response" not in prompt:
            return call(5)
        if not failed:
            failed.append(request_id)
            return OSError("gone")
        return "done"

    play.engine.script = script
    branching = Branching(at_turns(1, continuations=2), max_branches=1)
    done = await play(TASKS[:1], branching=branching, refills=1, max_concurrent=1)
    assert [one.stop_reason for one in done] == ["answered"] * len(done)
    lost = failed[0][:32]
    assert lost not in [one.id for one in done]
    assert sorted(one.parent is None for one in done) == [False, False, True]
    assert lost in [one.parent for one in done]
