"""Cutting and suspending an episode, whatever it does at that moment."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time

import pytest

from toolgym.envs import StopReason, Task, ToolEnv
from toolgym.rollout import EpisodeLimits, RunConfig, SamplingParams, make_batch, open_engine
from toolgym.rollout.engines.base import FinishReason, Generation
from toolgym.rollout.episode import turn_sampling
from toolgym.rollout.episode.env_lifecycle import episode_deadline
from toolgym.rollout.episode.episode import Episode
from toolgym.rollout.episode.observer import EpisodeObserver, Phase
from toolgym.rollout.job import EpisodeKey, Job
from toolgym.rollout.tokens.context_policies import ContextPolicy
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.tools import tool
from toolgym.tools.concurrency import deadline
from toolgym.tools.concurrency.deadline import queueing
from toolgym.tools.concurrency.rate_limit import LocalRateLimiter
from toolgym.tools.concurrency.run_limits import GENERATIONS
from toolgym.tools.errors import ConfigError, EngineError, EpisodeError

CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "it"}}\n</tool_call>'
TASK = Task(({"role": "user", "content": "q"},), id="q")


@pytest.fixture
def short_graces(monkeypatch):
    """For what uses them up."""
    monkeypatch.setattr(deadline, "CANCEL_GRACE", 0.2)
    monkeypatch.setattr(turn_sampling, "ABORT_GRACE", 0.2)


class Gates:
    """Where an episode is held until `open` or cancelled; `held` says where it is now."""

    def __init__(self, *names):
        self.closed, self.held, self.cancelled = set(names), asyncio.Event(), []
        self.opened = asyncio.Event()

    def open(self):
        self.closed.clear()
        self.opened.set()

    async def __call__(self, name):
        if name in self.closed:
            self.held.set()
            try:
                await self.opened.wait()
            except asyncio.CancelledError:
                self.cancelled.append(name)
                raise


class Env(ToolEnv):
    """Its tool, scorer and reset stop at the gates."""

    def __init__(self, gates):
        @tool
        async def look(at: str) -> str:
            """Look."""
            with queueing() if "queue" in gates.closed else contextlib.nullcontext():
                await gates("queue")
            await gates("tool")
            return f"seen {at}"

        async def score(outcome):
            await gates("scorer")
            return 1.0

        super().__init__([look], [TASK], scorer=score)
        self.gates = gates

    async def reset(self, *, seed=None, options=None):
        await self.gates("reset")
        return await super().reset(seed=seed, options=options)


class Patient(ContextPolicy):
    name = "patient"

    def __init__(self, gates):
        self.gates = gates

    async def revise(self, messages, state):
        await self.gates("context")
        return messages


@pytest.fixture(scope="module")
def renderers(tokenizer):
    """What makes renderers, one for all episodes with the same tools."""
    made = {}

    def renderer(schemas):
        key = tuple(schema.canonical_json for schema in schemas)
        if key not in made:
            made[key] = ChatRenderer(tokenizer, schemas, {}, parser=None)
        return made[key]

    return renderer


@pytest.fixture
def stand(scripted_engine, tokenizer, renderers):
    """Returns an episode of two turns, its engine and its gates."""

    class Held(scripted_engine):
        """Holds a request at the gate `engine`; aborted there, it gives back its first tokens."""

        partial, abort_error, hears = 3, None, True
        aborts = ()

        async def _generate(self, request):
            whole = await super()._generate(request)
            self.ended = {**getattr(self, "ended", {}), request.request_id: asyncio.Event()}
            waits = asyncio.ensure_future(self.gates("engine"))
            aborted = asyncio.ensure_future(self.ended[request.request_id].wait())
            try:
                await asyncio.wait({waits, aborted}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waits.cancel()
                aborted.cancel()
                del self.given[request.request_id]  # what is lost was never given
            if not self.ended[request.request_id].is_set():
                self.given[request.request_id] = whole
                return whole
            kept = [one[: self.partial] for one in (whole.token_ids, whole.logprobs, whole.weight_versions)]
            self.given[request.request_id] = part = Generation(kept[0], kept[1], FinishReason.ABORT, kept[2], 3)
            return part

        async def abort(self, request_id):
            self.aborts = (*self.aborts, request_id)
            if self.abort_error is not None:
                raise self.abort_error
            if self.hears and request_id in self.ended:
                self.ended[request_id].set()

    def make(*gates, observers=(), limits=None, script=None):
        gate = Gates(*gates)
        engine = Held(tokenizer, script or (lambda prompt, request: "done" if "seen it" in prompt else CALL))
        engine.gates = gate
        policies = Patient(gate) if "context" in gates else ()
        config = RunConfig(
            sampling=SamplingParams(max_new_tokens=100), limits=limits or EpisodeLimits(), context=policies
        )
        env = Env(gate)
        job = Job(TASK, EpisodeKey(0, 0), "group", 5)
        return Episode(job, config, env, engine, renderers, observers=observers), engine, gate

    return make


async def held(episode, gates):
    """Run an episode until a gate holds it."""
    running = asyncio.create_task(episode.run())
    async with asyncio.timeout(50):
        await gates.held.wait()
    return running


async def result(running):
    async with asyncio.timeout(50):
        return await running


# ---------------------------------------------------------------------- cut


async def test_a_cut_keeps_what_the_engine_had_sampled(stand, exact):
    episode, engine, gates = stand("engine")
    running = await held(episode, gates)
    episode.cut()
    episode.cut()
    one = await result(running)
    exact(engine, one)
    assert (one.stop_reason, one.failed, one.policy_tokens) == (StopReason.STRAGGLER, False, 3)
    assert (one.trainable, one.in_group_statistics, one.stop_reason.truncated) == (True, False, True)
    [turn] = one.turns
    assert (turn.finish_reason, turn.truncated, turn.reward, turn.resumes) == ("abort", True, None, 0)
    assert engine.aborts == (f"{one.id}-0",)
    assert make_batch([one], pad_token_id=0).response_mask.sum() == 3
    episode.cut()
    episode.suspend()
    with pytest.raises(EpisodeError, match="is over"):
        await episode.run()


@pytest.mark.usefixtures("short_graces")
@pytest.mark.parametrize("way", ["cannot", "does not hear", "hangs"])
async def test_a_request_that_cannot_be_aborted_is_cancelled_and_its_partial_lost(stand, exact, way, monkeypatch):
    episode, engine, gates = stand("engine")
    engine.hears = False
    if way == "cannot":
        engine.abort_error = EngineError("cannot")
    if way == "hangs":
        monkeypatch.setattr(engine, "abort", lambda request_id: asyncio.sleep(60))
    running = await held(episode, gates)
    episode.cut()
    one = await result(running)
    exact(engine, one)
    assert (one.stop_reason, one.policy_tokens, one.turns) == (StopReason.STRAGGLER, 0, ())
    assert gates.cancelled == ["engine"]


@pytest.mark.parametrize("where", ["reset", "tool", "queue", "context", "scorer"])
async def test_a_cut_cancels_what_the_env_does(stand, exact, where):
    episode, engine, gates = stand(where)
    running = await held(episode, gates)
    episode.cut()
    one = await result(running)
    exact(engine, one)
    assert gates.cancelled == [where]
    assert (one.stop_reason, one.error) == (StopReason.STRAGGLER, None)
    assert len(one.turns) == {"reset": 0, "scorer": 2}.get(where, 1)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.usefixtures("short_graces")
async def test_a_cut_does_not_wait_for_a_tool_that_ignores_it(stand):
    episode, _, gates = stand("tool")
    stubborn = asyncio.Event()

    async def ignores(name):
        if name == "tool":
            gates.held.set()
            while not stubborn.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await stubborn.wait()

    episode.env.gates = gates
    gates.closed = {"tool"}
    type(gates).__call__, kept = (lambda self, name: ignores(name)), type(gates).__call__
    try:
        running = await held(episode, gates)
        began = time.monotonic()
        episode.cut()
        one = await result(running)
        assert one.stop_reason is StopReason.STRAGGLER
        assert time.monotonic() - began < 45  # and the tool goes on for ever
    finally:
        type(gates).__call__ = kept
        stubborn.set()


@pytest.mark.parametrize("way", ["cut", "suspend"])
async def test_an_episode_that_waits_for_its_place_at_the_engine_is_stopped_at_once(stand, exact, way):
    episode, engine, _ = stand()
    limiter = LocalRateLimiter(1)
    place = await limiter.acquire()
    waits = asyncio.Event()

    class Listener(EpisodeObserver):
        def waits(self, job, phase, what=""):
            if phase is Phase.ENGINE:
                waits.set()

    episode._observers = (Listener(),)
    with GENERATIONS.set(limiter):
        running = asyncio.create_task(episode.run())
        async with asyncio.timeout(50):
            await waits.wait()
            await asyncio.sleep(0)
        getattr(episode, way)()
        one = await result(running)
        assert (engine.aborts, engine.seen) == ((), {})
        place.release()
        if way == "suspend":
            assert one is None
            one = await result(asyncio.create_task(episode.run()))
    exact(engine, one)
    reason, turns = (StopReason.STRAGGLER, 0) if way == "cut" else (StopReason.ANSWERED, 2)
    assert (one.stop_reason, len(one.turns)) == (reason, turns)
    assert all(turn.resumes == 0 for turn in one.turns)
    assert limiter.try_acquire() is not None


async def test_a_cut_before_the_beginning_and_after_the_end(stand):
    episode, engine, _ = stand()
    episode.cut()
    one = await episode.run()
    assert (one.stop_reason, one.sequences, one.turns, engine.seen) == (StopReason.STRAGGLER, (), (), {})
    episode, _, _ = stand()
    done = await episode.run()
    episode.cut()
    assert (done.stop_reason, done.reward) == (StopReason.ANSWERED, 1.0)


async def test_a_cut_while_a_turn_waits_to_be_resumed(stand, exact, monkeypatch):
    monkeypatch.setattr(turn_sampling, "RESUME_WAIT", (60.0, 60.0))
    aborted = asyncio.Event()

    def script(prompt, request_id):
        aborted.set()
        return "", FinishReason.ABORT

    episode, engine, _ = stand(script=script)
    running = asyncio.create_task(episode.run())
    async with asyncio.timeout(50):
        await aborted.wait()
        while episode._sampler._request_id is not None:
            await asyncio.sleep(0)
    episode.cut()
    one = await result(running)
    exact(engine, one)
    assert (one.stop_reason, one.turns) == (StopReason.STRAGGLER, ())


async def test_a_turn_that_ended_with_its_abort_is_whole(stand, exact):
    episode, engine, gates = stand("engine")
    engine.partial = 1000
    running = await held(episode, gates)
    episode.cut()
    one = await result(running)
    exact(engine, one)
    assert (one.stop_reason, one.turns[0].finish_reason, one.turns[0].truncated) == (
        StopReason.STRAGGLER,
        "stop",
        False,
    )


# ---------------------------------------------------------------------- suspend


async def test_a_suspended_episode_goes_on_in_the_middle_of_a_turn(stand, exact):
    heard = []

    class Listener(EpisodeObserver):
        def began(self, job):
            heard.append("began")

        def waits(self, job, phase, what=""):
            heard.append(str(phase))

        def ended(self, job, trajectory):
            heard.append("ended")

    episode, engine, gates = stand("engine", observers=[Listener()])

    def script(prompt, request_id):
        name = request_id.partition("-")[2]
        return {"0": CALL, "0-1": engine.tokenizer.decode(whole[3:-1]), "1": "done"}[name]

    whole = [*engine.tokenizer.encode(CALL, add_special_tokens=False), engine.tokenizer.eos_token_id]
    engine.script = script
    running = await held(episode, gates)
    episode.suspend()
    episode.suspend()
    assert await result(running) is None
    assert asyncio.all_tasks() == {asyncio.current_task()}
    gates.open()
    engine.version = "8"
    one = await episode.run()
    exact(engine, one)
    assert (one.stop_reason, one.reward, one.turns[0].text) == (StopReason.ANSWERED, 1.0, CALL)
    assert (one.turns[0].resumes, one.turns[0].finish_reason) == (1, "stop")
    assert [set(part.weight_versions) for part in one.segments if part.is_policy] == [{"7"}, {"8"}, {"8"}]
    assert heard == ["began", "reset", "engine", "suspended", "engine", "env", "context", "engine", "env", "ended"]


async def test_a_suspended_episode_of_an_engine_that_cannot_abort_samples_that_part_anew(stand, exact):
    episode, engine, gates = stand("engine")
    engine.abort_error = EngineError("cannot")
    running = await held(episode, gates)
    episode.suspend()
    assert await result(running) is None
    gates.open()
    one = await episode.run()
    exact(engine, one)
    assert (one.stop_reason, one.turns[0].resumes) == (StopReason.ANSWERED, 1)


@pytest.mark.parametrize("where", ["reset", "tool", "queue", "context"])
async def test_a_suspended_episode_finishes_what_the_env_does(stand, exact, where):
    episode, engine, gates = stand(where)
    running = await held(episode, gates)
    episode.suspend(grace=60)
    gates.open()
    assert await result(running) is None
    assert len(engine.seen) == (0 if where == "reset" else 1)
    one = await episode.run()
    exact(engine, one)
    assert (one.stop_reason, gates.cancelled, len(one.turns)) == (StopReason.ANSWERED, [], 2)


async def test_a_suspended_episode_that_is_being_scored_ends_by_itself(stand):
    episode, _, gates = stand("scorer")
    running = await held(episode, gates)
    episode.suspend(grace=60)
    gates.open()
    one = await result(running)
    assert (one.stop_reason, one.reward) == (StopReason.ANSWERED, 1.0)


@pytest.mark.parametrize("where", ["reset", "tool", "queue", "context", "scorer"])
async def test_a_suspended_episode_whose_env_takes_too_long_is_cut(stand, where):
    episode, _, gates = stand(where)
    running = await held(episode, gates)
    episode.suspend(grace=0.05)
    one = await result(running)
    assert (one.stop_reason, gates.cancelled) == (StopReason.STRAGGLER, [where])


async def test_an_episode_that_does_not_run_can_be_suspended_and_cut(stand, exact):
    episode, engine, gates = stand("engine")
    episode.suspend()
    assert await episode.run() is None
    assert engine.seen == {}
    running = await held(episode, gates)
    with pytest.raises(EpisodeError, match="runs already"):
        await episode.run()
    episode.suspend()
    assert await result(running) is None
    episode.suspend()
    episode.cut()
    one = await episode.run()
    exact(engine, one)
    assert (one.stop_reason, one.policy_tokens, len(one.turns)) == (StopReason.STRAGGLER, 3, 1)


async def test_a_cut_overrules_a_suspension(stand, exact):
    episode, engine, gates = stand("engine")
    running = await held(episode, gates)
    episode.suspend()
    episode.cut()
    one = await result(running)
    exact(engine, one)
    assert (one.stop_reason, one.policy_tokens) == (StopReason.STRAGGLER, 3)


async def test_the_time_that_an_episode_stands_still_does_not_count(stand):
    began = time.monotonic()
    episode, _, gates = stand("engine")
    running = await held(episode, gates)
    episode.suspend()
    assert await result(running) is None
    await asyncio.sleep(0.2)
    gates.open()
    one = await episode.run()
    assert 0 < one.seconds <= time.monotonic() - began - 0.2


async def test_the_time_that_an_episode_has_run_already_does():
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(50), episode_deadline(EpisodeLimits(episode_timeout=60), 59.99):
            await asyncio.Event().wait()


@pytest.mark.long
async def test_an_episode_of_a_real_engine_goes_on_after_a_suspension():
    async with open_engine("tiny") as engine:
        renderers = lambda schemas: ChatRenderer(engine.tokenizer, schemas, {}, parser=None)  # noqa: E731
        config = RunConfig(sampling=SamplingParams(max_new_tokens=8))
        job = Job(TASK, EpisodeKey(0, 0), "group", 5)
        asked = asyncio.Event()

        class Listener(EpisodeObserver):
            def waits(self, job, phase, what=""):
                if phase is Phase.ENGINE:
                    asked.set()

        await engine.pause()
        stopped = Episode(job, config, ToolEnv([], [TASK]), engine, renderers, observers=[Listener()])
        running = asyncio.create_task(stopped.run())
        async with asyncio.timeout(50):
            await asked.wait()
        stopped.suspend()
        assert await result(running) is None
        await engine.resume()
        one = await stopped.run()
        assert (one.failed, one.turns[0].resumes, one.policy_tokens > 0) == (False, 1, True)
        assert len(one.logprobs) == len(one.response_ids)


async def test_a_cancelled_episode_leaves_nothing_behind(stand):
    episode, engine, gates = stand("engine")
    engine.hears = False
    running = await held(episode, gates)
    episode.suspend()
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await result(running)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    with pytest.raises(EpisodeError, match="is over"):
        await episode.run()


@pytest.mark.parametrize("way", ["cut", "suspend"])
async def test_an_episode_may_be_stopped_at_any_turn_of_the_event_loop(stand, exact, way):
    whole = None
    for ticks in itertools.count():
        episode, engine, _ = stand(script=continued)
        running = asyncio.create_task(episode.run())
        for _ in range(ticks):
            await asyncio.sleep(0)
        over = running.done()
        episode.cut() if way == "cut" else episode.suspend(grace=60)
        one = await result(running)
        if one is None:
            one = await result(asyncio.create_task(episode.run()))
            assert one.stop_reason is StopReason.ANSWERED
        exact(engine, one)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert one.stop_reason in (StopReason.ANSWERED, StopReason.STRAGGLER)
        if one.stop_reason is StopReason.ANSWERED:
            texts = (one.reward, [turn.text for turn in one.turns], one.response_ids.tolist())
            assert texts == (whole := whole or texts)
        if over:
            break
    assert ticks > 10


def continued(prompt, request_id):
    """The turn, or the rest of it behind what the prompt has of it already."""
    turn = "done" if "seen it" in prompt else CALL
    return turn[len(prompt.rpartition("<|im_start|>assistant\n")[2]) :]


# ---------------------------------------------------------------------- the deadline of a turn


@pytest.mark.parametrize("where", ["engine", "tool", "context"])
async def test_a_turn_has_a_deadline(stand, exact, where):
    for seconds in (0.2, 10.0):  # a busy machine may need the first for the way to the gate
        episode, engine, gates = stand(where, limits=EpisodeLimits(turn_timeout=seconds))
        one = await episode.run()
        if gates.held.is_set():
            break
    exact(engine, one)
    assert (one.stop_reason, one.failed) == (StopReason.TURN_TIMEOUT, True)
    assert one.error.message.endswith(f"the turn did not finish within {seconds:g} seconds")


@pytest.mark.long
@pytest.mark.parametrize("where", ["queue", "scorer"])
async def test_neither_scoring_nor_waiting_for_permits_counts_towards_it(stand, where):
    episode, _, gates = stand(where, limits=EpisodeLimits(turn_timeout=1.5))
    running = await held(episode, gates)
    await asyncio.sleep(1.6)
    gates.open()
    one = await result(running)
    assert (one.stop_reason, one.reward) == (StopReason.ANSWERED, 1.0)


def test_the_deadline_of_a_turn_is_a_time():
    with pytest.raises(ConfigError, match="turn_timeout must be a positive number"):
        EpisodeLimits(turn_timeout=0)
