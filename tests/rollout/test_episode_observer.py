"""What an observer hears of an episode, and in which order."""

from __future__ import annotations

import pytest

from toolgym.envs import ArithmeticTasks
from toolgym.rollout import RunConfig, Runner, rollout
from toolgym.rollout.episode.observer import EpisodeObserver
from toolgym.tools.errors import ConfigError


class Listener(EpisodeObserver):
    def __init__(self):
        self.heard = []

    def run_began(self):
        self.heard.append("run began")

    def run_ended(self):
        self.heard.append("run ended")

    def asked(self, job, prompt_ids, params):
        self.heard.append(f"asked {params.seed is not None}")

    def generated(self, job, generation):
        self.heard.append(f"generated {generation.finish_reason}")

    def began(self, job):
        self.heard.append(f"began {job.key}")

    def waits(self, job, phase, what=""):
        self.heard.append(f"{phase} {what}".strip())

    def turned(self, job, turn, conversation):
        self.heard.append(f"turned {turn.generated_tokens == len(conversation.sequences[0].segments[0])}")

    def ended(self, job, trajectory):
        self.heard.append(f"ended {trajectory.stop_reason}")


CALL = '<tool_call>\n{"name": "code_interpreter", "arguments": {"code": "print(1)"}}\n</tool_call>'


async def test_an_observer_hears_of_each_phase_in_order(scripted):
    engine = scripted(lambda prompt, request_id: "#### 1" if "tool_response" in prompt else CALL)
    listener = Listener()
    runner = Runner("CodeInterpreter-v0", engine, observers=[listener], config=RunConfig(seed=0))
    await runner.run(ArithmeticTasks().take(1))
    assert listener.heard == [
        "run began",
        "began task 0, sample 0",
        "reset",
        "engine",
        "asked True",
        "generated stop",
        "env code_interpreter",
        "context",
        "turned True",
        "engine",
        "asked True",
        "generated stop",
        "env",
        "ended answered",
        "run ended",
    ]


@pytest.mark.parametrize("progress", [False, True])
async def test_observers_of_a_rollout_hear_of_it_with_and_without_a_progress_line(scripted, progress):
    listener = Listener()
    engine = scripted(lambda prompt, request_id: "#### 1")
    await rollout("CodeInterpreter-v0", engine, num_tasks=2, progress=progress, observers=[listener])
    assert listener.heard.count("ended answered") == 2
    with pytest.raises(ConfigError, match="observer"):
        await rollout("CodeInterpreter-v0", engine, num_tasks=2, observers=[print])


@pytest.mark.parametrize("method", ["began", "waits", "asked", "generated", "turned", "ended"])
async def test_what_an_observer_raises_ends_the_run_and_no_episode(scripted, method):
    def broken(*_):
        raise OSError("the disk is full")

    observer, listener, written = EpisodeObserver(), Listener(), []
    setattr(observer, method, broken)
    sink = type("Sink", (), {"write": staticmethod(written.append)})()
    runner = Runner(
        "CodeInterpreter-v0",
        scripted(lambda prompt, request_id: "#### 1" if "tool_response" in prompt else CALL),
        sinks=[sink],
        observers=[observer, listener],
        config=RunConfig(seed=0, max_concurrent=2),
    )
    with pytest.raises(OSError, match="the disk is full") as caught:
        await runner.run(ArithmeticTasks().take(50))
    assert caught.value.trajectories == written
    assert 1 <= len(written) <= 4  # those that had begun, to their end
    assert not any(one.failed for one in written)
    assert sum(heard.startswith("ended") for heard in listener.heard) == len(written)


@pytest.mark.parametrize("method", ["run_began", "run_ended"])
async def test_what_it_raises_about_the_run_itself_is_the_runs_error(scripted, method):
    observer, listener = EpisodeObserver(), Listener()
    setattr(observer, method, lambda: 1 / 0)
    runner = Runner(
        "CodeInterpreter-v0",
        scripted(lambda *_: "#### 1"),
        observers=[listener, observer],
        config=RunConfig(seed=0),
    )
    with pytest.raises(ZeroDivisionError):
        await runner.run(ArithmeticTasks().take(2))
    assert listener.heard[-1] == "run ended"
    assert sum("ended answered" in one for one in listener.heard) == (2 if method == "run_ended" else 0)
