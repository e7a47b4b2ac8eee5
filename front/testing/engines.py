"""The suite of engines.

    import pytest_asyncio
    from toolgym.testing import EngineSubject, EngineSuite

    class TestMyEngine(EngineSuite):
        @pytest_asyncio.fixture
        async def subject(self):
            async with MyEngine() as engine:
                yield EngineSubject(engine, make=MyEngine, logits=my_model, pauses=(), seeds=False)

The engine's model should be a small random one whose next tokens are far from certain: the tests sample some thousands
of tokens, and two equal requests are to differ.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from toolgym.rollout.engines.base import Engine, FinishReason, Generation, PauseMode, SamplingParams
from toolgym.testing.suite import Suite, need
from toolgym.tools.errors import ConfigError, EngineError

import pytest  # isort: skip  after `suite`, which says what to install where it is absent

LONG = SamplingParams(max_new_tokens=450)
SHORT = SamplingParams(max_new_tokens=24)
ATTEMPTS = 5
"""How often a test begins long requests anew where one ended before the call that was to meet it in flight."""

IDLE = 10.0
"""Seconds within which a server is idle when its request was cancelled."""


@dataclass(frozen=True)
class EngineSubject:
    """An engine to test, and what it can do. Tests of what it cannot do are skipped.

    Attributes:
        engine: a started engine with a vocabulary of at least 250 ids and a context of at least 500 tokens.
        make: makes another one, not started, for the tests that close one.
        logits: a plain forward pass of the engine's model, from token ids to logits of shape `[len(ids), vocab]`.
            Without it the log-probabilities are only known to be no more than 0.
        tolerance: how far a log-probability may be from that of `logits`.
        new_version: gives the weights another version, whose text is its argument, and changes nothing else.
        pauses: the modes of `pause` that the engine has.
        aborts: whether it has `abort`.
        seeds: whether a request with a seed gives the same tokens in any company.
        min_p: whether it has `SamplingParams.min_p`.
        keeps_retracted: whether requests that were retracted give back what they have when a pause then aborts them.
        eos: the model's own end-of-sequence id. An engine must not stop at it unasked.
        idle: whether nothing runs on the engine's server. Tests wait for it after a request was cancelled.
    """

    engine: Engine
    make: Callable[[], Engine] | None = None
    logits: Callable[[Sequence[int]], Any] | None = None
    tolerance: float = 1e-4
    new_version: Callable[[str], Awaitable[None]] | None = None
    pauses: Collection[PauseMode] = tuple(PauseMode)
    aborts: bool = True
    seeds: bool = True
    min_p: bool = True
    keeps_retracted: bool = True
    eos: int | None = None
    idle: Callable[[], bool] | None = None

    async def generate(
        self, ids: Sequence[int], params: SamplingParams = SHORT, request_id: str = "a", affinity: str | None = None
    ) -> Generation:
        return await self.engine.generate(ids, params, request_id=request_id, affinity=affinity)


def prompt(seed: int, length: int) -> list[int]:
    """Return a random prompt, the same for the same seed."""
    source = random.Random(seed)
    return [source.randrange(250) for _ in range(length)]


def logprob_gap(subject: EngineSubject, prompt_ids: Sequence[int], generation: Generation, temperature: float) -> float:
    """Return how far the log-probabilities are at most from those of a plain forward pass; 0 where there is none."""
    assert max(generation.logprobs) <= 1e-6, "a log-probability is above 0"
    if subject.logits is None:
        return 0.0
    logits = np.asarray(subject.logits([*prompt_ids, *generation.token_ids]), dtype=np.float64)
    places = np.arange(len(prompt_ids) - 1, len(prompt_ids) - 1 + len(generation.token_ids))
    scaled = logits[places] / (temperature or 1.0)
    scaled -= scaled.max(axis=-1, keepdims=True)
    of_all = scaled - np.log(np.exp(scaled).sum(axis=-1, keepdims=True))
    expected = of_all[np.arange(len(places)), np.array(generation.token_ids)]
    return float(np.abs(expected - np.array(generation.logprobs)).max())


async def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


async def begun(engine: Engine, *affinities: str) -> None:
    """Wait until requests with these affinities, sent before, have begun: later ones are served after them."""
    await asyncio.sleep(0.05)
    few = SamplingParams(max_new_tokens=24)  # more than a server sends at once
    await asyncio.gather(
        *(engine.generate([1, 2, 3], few, request_id=f"begun {name}", affinity=name) for name in affinities)
    )


def long_requests(engine: Engine) -> list[asyncio.Task[Generation]]:
    """Three long requests under way, with the ids and affinities "0", "1" and "2"."""
    return [
        asyncio.create_task(engine.generate(prompt(n, 5), LONG, request_id=str(n), affinity=str(n))) for n in range(3)
    ]


def _need_pause(subject: EngineSubject, *modes: PauseMode) -> None:
    for mode in modes:
        need(mode in subject.pauses, f"this engine has no pause {mode.value!r}")


class EngineSuite(Suite):
    """The contract of `Engine`. Needs the fixture `subject`, an `EngineSubject`."""

    @pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 1.7])
    async def test_logprobs_are_those_of_a_plain_forward_pass(self, subject: EngineSubject, temperature: float) -> None:
        need(subject.logits, "this engine has no forward pass to compare with")
        prompts = [prompt(seed, length) for seed, length in enumerate((1, 3, 17, 64, 5))]
        params = SamplingParams(max_new_tokens=20, temperature=temperature)
        generations = await asyncio.gather(
            *(subject.generate(ids, params, request_id=f"r{n}") for n, ids in enumerate(prompts))
        )
        for ids, generation in zip(prompts, generations, strict=True):
            assert len(generation.token_ids) == 20
            assert logprob_gap(subject, ids, generation, temperature) < subject.tolerance

    @pytest.mark.parametrize("narrowing", [{"top_k": 1}, {"top_k": 5}, {"top_p": 0.4}, {"min_p": 0.2}])
    async def test_logprobs_are_those_before_truncation(
        self, subject: EngineSubject, narrowing: dict[str, Any]
    ) -> None:
        need(subject.logits, "this engine has no forward pass to compare with")
        need("min_p" not in narrowing or subject.min_p, "this engine cannot do min_p")
        params = SamplingParams(max_new_tokens=20, temperature=0.7, **narrowing)
        ids = prompt(1, 9)
        generation = await subject.generate(ids, params)
        assert logprob_gap(subject, ids, generation, 0.7) < subject.tolerance

    async def test_each_request_has_its_own_temperature(self, subject: EngineSubject) -> None:
        need(subject.logits, "this engine has no forward pass to compare with")
        temperatures = [0.0, 0.3, 1.0, 1.5] * 3
        generations = await asyncio.gather(
            *(
                subject.generate(
                    prompt(n, 8), SamplingParams(max_new_tokens=12, temperature=temperature), request_id=str(n)
                )
                for n, temperature in enumerate(temperatures)
            )
        )
        for n, (temperature, generation) in enumerate(zip(temperatures, generations, strict=True)):
            assert logprob_gap(subject, prompt(n, 8), generation, temperature) < subject.tolerance

    async def test_length_ends_a_generation(self, subject: EngineSubject) -> None:
        generation = await subject.generate(prompt(2, 4), SamplingParams(max_new_tokens=7))
        assert generation.finish_reason is FinishReason.LENGTH
        assert len(generation.token_ids) == len(generation.logprobs) == len(generation.weight_versions) == 7

    async def test_a_stop_token_ends_a_generation_and_is_part_of_it(self, subject: EngineSubject) -> None:
        greedy = SamplingParams(max_new_tokens=12, temperature=0)
        free = await subject.generate(prompt(3, 6), greedy)
        stop = free.token_ids[5]
        end = free.token_ids.index(stop) + 1
        stopping = dataclasses.replace(greedy, stop_token_ids=(stop, 319))
        stopped = await subject.generate(prompt(3, 6), stopping)
        assert stopped.finish_reason is FinishReason.STOP
        assert stopped.token_ids == free.token_ids[:end]

    async def test_a_stop_text_ends_a_generation_after_the_token_that_completes_it(
        self, subject: EngineSubject
    ) -> None:
        need(subject.engine.stops_at_texts, "this engine does not know its tokenizer")
        tokenizer = need(subject.engine.tokenizer, "this engine does not know its tokenizer")

        def decode(ids: Sequence[int]) -> str:
            return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

        greedy = SamplingParams(max_new_tokens=12, temperature=0)
        free = await subject.generate(prompt(3, 6), greedy)
        text = decode(free.token_ids)
        at = len(text) // 2
        stop = text[at : at + 3]
        stopped = await subject.generate(prompt(3, 6), dataclasses.replace(greedy, stop=("\0 never", stop)))
        count = next(count for count in range(1, 13) if stop in decode(free.token_ids[:count]))
        assert stopped.token_ids == free.token_ids[:count]
        assert stopped.finish_reason is FinishReason.STOP
        assert len(stopped.logprobs) == len(stopped.weight_versions) == count
        unstopped = await subject.generate(prompt(3, 6), dataclasses.replace(greedy, stop=("\0 never",)))
        assert unstopped.token_ids == free.token_ids

    async def test_the_models_end_of_sequence_does_not_stop_unasked(self, subject: EngineSubject) -> None:
        need(subject.eos is not None, "the end of sequence of this engine's model is not known")
        hot = SamplingParams(max_new_tokens=400, temperature=50.0)  # near uniform: every id comes about once
        for round_number in range(10):
            generations = await asyncio.gather(
                *(subject.generate(prompt(n, 4), hot, request_id=f"{round_number} {n}") for n in range(4))
            )
            assert all(len(generation.token_ids) == 400 for generation in generations)
            if any(subject.eos in generation.token_ids for generation in generations):
                return
        pytest.fail("in 16000 nearly uniform tokens the end of sequence did not come up")

    async def test_greedy_is_the_most_probable_and_repeatable(self, subject: EngineSubject) -> None:
        greedy = SamplingParams(max_new_tokens=16, temperature=0)
        alone = await subject.generate(prompt(4, 10), greedy)
        again, *_ = await asyncio.gather(
            subject.generate(prompt(4, 10), greedy),
            *(subject.generate(prompt(n, n + 1), request_id=str(n)) for n in range(10)),
        )
        assert again.token_ids == alone.token_ids

    async def test_a_seed_gives_the_same_tokens_in_any_company(self, subject: EngineSubject) -> None:
        need(subject.seeds, "this engine does not honour seeds")
        seeded = SamplingParams(max_new_tokens=24, seed=7)
        alone = await subject.generate(prompt(5, 10), seeded)
        again, other, *_ = await asyncio.gather(
            subject.generate(prompt(5, 10), seeded),
            subject.generate(prompt(5, 10), dataclasses.replace(seeded, seed=8), request_id="b"),
            *(subject.generate(prompt(n, n + 1), request_id=str(n)) for n in range(20)),
        )
        assert again.token_ids == alone.token_ids
        assert other.token_ids != alone.token_ids

    async def test_without_a_seed_equal_requests_differ(self, subject: EngineSubject) -> None:
        first, second = await asyncio.gather(*(subject.generate(prompt(6, 5), request_id=name) for name in "ab"))
        assert first.token_ids != second.token_ids

    async def test_aborting_a_running_request_keeps_what_it_has(self, subject: EngineSubject) -> None:
        need(subject.aborts, "this engine has no abort")
        for _ in range(ATTEMPTS):
            task = asyncio.create_task(subject.generate(prompt(7, 5), LONG, affinity="a"))
            await begun(subject.engine, "a")
            await subject.engine.abort("a")
            generation = await asyncio.wait_for(task, 120)
            if generation.finish_reason is FinishReason.ABORT:
                break
        assert generation.finish_reason is FinishReason.ABORT
        assert 0 < len(generation.token_ids) < LONG.max_new_tokens
        assert logprob_gap(subject, prompt(7, 5), generation, 1.0) < subject.tolerance

    async def test_aborting_at_once_ends_the_request(self, subject: EngineSubject) -> None:
        need(subject.aborts, "this engine has no abort")
        task = asyncio.create_task(subject.generate(prompt(7, 5), LONG))
        await asyncio.sleep(0)
        await subject.engine.abort("a")
        generation = await asyncio.wait_for(task, 120)
        assert generation.finish_reason is FinishReason.ABORT

    async def test_aborting_a_queued_request_gives_nothing(self, subject: EngineSubject) -> None:
        need(subject.aborts, "this engine has no abort")
        need(subject.pauses, "this engine has no pause")
        await subject.engine.pause()
        task = asyncio.create_task(subject.generate(prompt(8, 5)))
        await asyncio.sleep(0.05)
        await subject.engine.abort("a")
        generation = await asyncio.wait_for(task, 120)
        assert generation == Generation((), (), FinishReason.ABORT, ())
        await subject.engine.resume()
        assert (await subject.generate(prompt(8, 5))).token_ids

    async def test_aborting_an_unknown_request_is_fine(self, subject: EngineSubject) -> None:
        need(subject.aborts, "this engine has no abort")
        await subject.engine.abort("never seen")

    async def test_a_pause_stops_sampling_and_loses_nothing(self, subject: EngineSubject) -> None:
        need(subject.pauses, "this engine has no pause")
        for _ in range(ATTEMPTS):
            task = asyncio.create_task(subject.generate(prompt(9, 5), LONG))
            await asyncio.sleep(0.1)
            await subject.engine.pause()
            if not task.done():
                break
            await subject.engine.resume()
        late = asyncio.create_task(subject.generate(prompt(9, 6), request_id="b"))
        await asyncio.sleep(2.0)  # far longer than the rest would take
        assert not task.done()
        assert not late.done()
        await subject.engine.resume()
        generation, second = await asyncio.wait_for(asyncio.gather(task, late), 120)
        assert generation.finish_reason is second.finish_reason is FinishReason.LENGTH
        assert logprob_gap(subject, prompt(9, 5), generation, 1.0) < subject.tolerance

    @pytest.mark.parametrize("mode", [PauseMode.IN_PLACE, PauseMode.RETRACT])
    async def test_a_request_goes_on_across_a_version_change(self, subject: EngineSubject, mode: PauseMode) -> None:
        new_version = need(subject.new_version, "the weights of this engine keep their version")
        _need_pause(subject, mode)
        before = subject.engine.weight_version
        for _ in range(ATTEMPTS):
            tasks = long_requests(subject.engine)
            await begun(subject.engine, "0", "1", "2")
            await subject.engine.pause(mode)
            late = asyncio.create_task(subject.generate(prompt(9, 6), request_id="late"))
            await new_version("next")
            try:
                assert subject.engine.weight_version == "next"
                await subject.engine.resume()
                generations = await asyncio.wait_for(asyncio.gather(*tasks), 120)
                assert (await asyncio.wait_for(late, 120)).weight_versions == ("next",) * 24
            finally:
                await new_version(before)
            if all("next" in generation.weight_versions for generation in generations):
                break
        for n, generation in enumerate(generations):
            change = generation.weight_versions.index("next")
            assert 0 < change < 450
            assert generation.weight_versions == (before,) * change + ("next",) * (450 - change)
            assert generation.finish_reason is FinishReason.LENGTH
            assert logprob_gap(subject, prompt(n, 5), generation, 1.0) < subject.tolerance

    @pytest.mark.parametrize("first", [None, PauseMode.IN_PLACE, PauseMode.RETRACT])
    async def test_a_pause_that_aborts_gives_back_what_there_is(
        self, subject: EngineSubject, first: PauseMode | None
    ) -> None:
        _need_pause(subject, PauseMode.ABORT, *([] if first is None else [first]))
        for _ in range(ATTEMPTS):
            tasks = long_requests(subject.engine)
            await begun(subject.engine, "0", "1", "2")
            if first is not None:
                await subject.engine.pause(first)
            await subject.engine.pause(PauseMode.ABORT)
            partials = await asyncio.wait_for(asyncio.gather(*tasks), 120)
            late = asyncio.create_task(subject.generate(prompt(9, 6), request_id="late"))
            await asyncio.sleep(0.2)
            assert not late.done()
            await subject.engine.resume()
            assert (await asyncio.wait_for(late, 120)).finish_reason is FinishReason.LENGTH
            if all(partial.finish_reason is FinishReason.ABORT for partial in partials):
                break
        for n, partial in enumerate(partials):
            assert partial.finish_reason is FinishReason.ABORT
            kept = first is not PauseMode.RETRACT or subject.keeps_retracted
            assert kept <= len(partial.token_ids) < 450
            if not partial.token_ids:
                continue
            whole = [*prompt(n, 5), *partial.token_ids]
            rest = await subject.generate(whole, request_id=str(n), affinity=str(n))
            assert logprob_gap(subject, prompt(n, 5), partial, 1.0) < subject.tolerance
            assert logprob_gap(subject, whole, rest, 1.0) < subject.tolerance

    async def test_a_pause_mode_that_is_none_is_refused(self, subject: EngineSubject) -> None:
        need(subject.pauses, "this engine has no pause")
        wrong: Any = "gently"
        with pytest.raises(ConfigError, match="'retract'"):
            await subject.engine.pause(wrong)
        assert (await subject.generate(prompt(9, 6))).token_ids

    async def test_ids_that_are_parts_of_characters_stay_ids(self, subject: EngineSubject) -> None:
        ids = [*"数学 naïve 🧮 \u202e".encode(), 0xF0, 0x9F, 0x80, 0]
        generation = await subject.generate(
            ids, SamplingParams(max_new_tokens=64, temperature=50.0), request_id="ünï-🧮"
        )
        assert len(generation.token_ids) == 64
        assert logprob_gap(subject, ids, generation, 50.0) < subject.tolerance

    async def test_cancelling_the_caller_aborts_the_request(self, subject: EngineSubject) -> None:
        task = asyncio.create_task(subject.generate(prompt(10, 5), LONG))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 120)
        if subject.idle is not None:
            await until(subject.idle, IDLE)

        async def again() -> Generation:
            while True:  # the embedded engine frees the id between two steps
                try:
                    return await subject.generate(prompt(10, 5))
                except ConfigError:
                    await asyncio.sleep(0.01)

        assert (await asyncio.wait_for(again(), 120)).token_ids

    async def test_aborting_and_cancelling_during_a_pause_do_not_wait_for_its_end(self, subject: EngineSubject) -> None:
        need(subject.aborts, "this engine has no abort")
        need(subject.pauses, "this engine has no pause")
        aborted, cancelled = (
            asyncio.create_task(subject.generate(prompt(10, 5), LONG, request_id=name)) for name in "ab"
        )
        await asyncio.sleep(0.1)
        await subject.engine.pause()
        async with asyncio.timeout(120):
            await subject.engine.abort("a")
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
        await subject.engine.resume()
        assert (await asyncio.wait_for(aborted, 120)).finish_reason is FinishReason.ABORT

    async def test_a_deadline_of_the_caller_aborts_the_request(self, subject: EngineSubject) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await subject.generate(prompt(10, 5), LONG)
        if subject.idle is not None:
            await until(subject.idle, IDLE)

    async def test_64_requests_at_once(self, subject: EngineSubject) -> None:
        lengths = [1 + n % 40 for n in range(64)]
        generations = await asyncio.gather(
            *(
                subject.generate(prompt(n, n + 1), SamplingParams(max_new_tokens=length), request_id=str(n))
                for n, length in enumerate(lengths)
            )
        )
        assert [len(generation.token_ids) for generation in generations] == lengths
        for n in (0, 31, 63):
            assert logprob_gap(subject, prompt(n, n + 1), generations[n], 1.0) < subject.tolerance

    async def test_the_whole_context_can_be_used(self, subject: EngineSubject) -> None:
        size = subject.engine.context_length
        ids = prompt(11, size - 3)
        generation = await subject.generate(ids, SamplingParams(max_new_tokens=3))
        assert generation.finish_reason is FinishReason.LENGTH
        new = min(size - 2, 600)  # a longer one takes a real server many seconds
        full = await subject.generate(
            prompt(12, size - new), SamplingParams(max_new_tokens=new, temperature=50.0), request_id="a"
        )
        assert len(full.token_ids) == new

    async def test_a_request_that_does_not_fit_is_refused(self, subject: EngineSubject) -> None:
        size = subject.engine.context_length
        with pytest.raises(ConfigError, match="context"):
            await subject.generate(prompt(12, size), SamplingParams(max_new_tokens=1))
        with pytest.raises(ConfigError, match="context"):
            await subject.generate([1], SamplingParams(max_new_tokens=size))

    @pytest.mark.parametrize("ids", [[-1], [1, -5, 2], ["first beyond"], [1, 10**9], []])
    async def test_ids_that_are_none_are_refused(self, subject: EngineSubject, ids: list[Any]) -> None:
        size = subject.engine.vocab_size
        ids = [size if id == "first beyond" else id for id in ids]
        with pytest.raises(ConfigError, match=r"vocabulary|at least one"):
            await subject.generate(ids)
        assert (await subject.generate([0, size - 1])).token_ids

    async def test_two_running_requests_cannot_share_an_id(self, subject: EngineSubject) -> None:
        task = asyncio.create_task(subject.generate(prompt(13, 5), LONG))
        await asyncio.sleep(0.05)
        with pytest.raises(ConfigError, match="already running"):
            await subject.generate(prompt(13, 5))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 120)

    async def test_every_token_has_the_engines_weight_version(self, subject: EngineSubject) -> None:
        generation = await subject.generate(prompt(14, 5))
        assert generation.weight_versions == (subject.engine.weight_version,) * 24

    async def test_given_tokens_are_scored_as_they_were_sampled(self, subject: EngineSubject) -> None:
        need(subject.engine.scores_tokens, "this engine cannot score given tokens")
        ids = prompt(15, 7)
        generation = await subject.generate(ids)
        scores = await subject.engine.score_tokens([*ids, *generation.token_ids], start=len(ids), request_id="scored")
        assert np.abs(np.array(scores.logprobs) - np.array(generation.logprobs)).max() < subject.tolerance
        assert scores.weight_version == subject.engine.weight_version

    async def test_closing_ends_what_runs(self, subject: EngineSubject) -> None:
        engine = need(subject.make, "no way to make another engine")()
        await engine.start()
        task = asyncio.create_task(engine.generate(prompt(15, 5), LONG, request_id="a"))
        await asyncio.sleep(0.1)
        await asyncio.wait_for(engine.close(), 120)
        generation = await asyncio.wait_for(task, 120)
        assert generation.finish_reason is FinishReason.ABORT
        assert len(generation.token_ids) < LONG.max_new_tokens
        await engine.close()
        with pytest.raises(EngineError, match="closed"):
            await engine.generate(prompt(15, 5), SHORT, request_id="b")
        with pytest.raises(EngineError, match="closed"):
            await engine.start()

    async def test_an_engine_that_was_not_started_says_so(self, subject: EngineSubject) -> None:
        engine = need(subject.make, "no way to make another engine")()
        with pytest.raises(EngineError, match="start"):
            await engine.generate(prompt(16, 5), SHORT, request_id="a")
        await engine.close()
