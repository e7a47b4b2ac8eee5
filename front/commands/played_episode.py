"""`PlayedEpisode`: an episode whose turns come from a person, with the exact tokens of a model's template."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolgym.envs import StopReason, Task
from toolgym.rollout import RunConfig, Trajectory
from toolgym.rollout.engines import CallableEngine, Engine, FinishReason, Generation, GenerationRequest
from toolgym.rollout.episode.env_lifecycle import close_env
from toolgym.rollout.episode.episode import Episode
from toolgym.rollout.episode.observer import EpisodeObserver, Phase
from toolgym.rollout.job import EpisodeKey, Job
from toolgym.rollout.runner.envs.env_factory import EnvFactory
from toolgym.rollout.runner.run_episode import policy_renderer
from toolgym.rollout.tokens import ChatRenderer
from toolgym.rollout.trajectory import TrajectoryWriter
from toolgym.tools import Message, ToolSchema
from toolgym.tools.concurrency.deadline import with_deadline
from toolgym.tools.errors import ConfigError, ToolgymError
from toolgym.tools.message import assistant, tool_call, user

CONTEXT = 1_000_000
"""Tokens of an episode, if no engine bounds them."""


class PlayedEpisode(EpisodeObserver):
    """An episode that stands still before each turn, until `send` gives the turn. `close` it.

    A person's tokens have the weight version `person` and the log-probability 0; those of turns that the `engine`
    suggests have the engine's.
    """

    def __init__(
        self, factory: EnvFactory, task: Task, index: int, tokenizer: Any, config: RunConfig, engine: Engine | None
    ) -> None:
        self._config, self._tokenizer, self._engine = config, tokenizer, engine
        self._context = CONTEXT if engine is None else engine.context_length
        size = None if engine is None else engine.vocab_size
        person = CallableEngine(self._answer, tokenizer=tokenizer, context_length=self._context, vocab_size=size)
        rules = replace(config, sampling=replace(config.sampling, max_new_tokens=self._context))
        job, make = Job(task, EpisodeKey(index, 0), uuid.uuid4().hex, config.seed), self._make_renderer
        factory = factory.member(task)
        self._episode = Episode(job, rules, factory(), person, make, env_id=factory.env_id, observers=[self])
        self._past: list[Episode | None] = []  # for each turn a fork that stands before it, where there could be one
        self._next: Generation
        self.renderer: ChatRenderer
        self.trajectory: Trajectory | None = None

    def waits(self, job: Job, phase: Phase, what: str = "") -> None:
        if phase is Phase.RESET:
            self._episode.suspend(grace=self._config.limits.episode_timeout)

    async def begin(self) -> None:
        self.trajectory = await self._episode.run()

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(self._episode.conversation.messages) if self.trajectory is None else self.trajectory.messages

    @property
    def tools(self) -> dict[str, ToolSchema]:
        return {schema.name: schema for schema in self._episode.env.tool_schemas}

    def text(self, text: str) -> Generation:
        """Return a turn with that text. Raises `ConfigError` if the context has no room for it."""
        ids = [*self._tokenizer.encode(text, add_special_tokens=False), self.renderer.end_of_turn_id]
        if len(ids) > self._room:
            raise ConfigError(f"the turn has {len(ids)} tokens, and the context has room for {self._room}")
        return Generation(tuple(ids), (0.0,) * len(ids), FinishReason.STOP, ("person",) * len(ids))

    def call(self, name: str, arguments: dict[str, Any]) -> Generation:
        """Return a turn that calls a tool as the template writes it. Raises `ConfigError` if it cannot."""
        message = assistant("", [tool_call(name, arguments)])
        head = self.renderer.render([user("x")], tools=False)
        text = self.renderer.render([user("x"), message], generation_prompt=False, tools=False)
        text = text.removeprefix(head).partition(self.renderer.end_of_turn)[0]
        if [(call.name, call.arguments) for call in self.renderer.parse_text(text).calls] != [(name, arguments)]:
            raise ConfigError("the model's chat template writes no call that its parser reads: type it as text")
        return self.text(text)

    async def suggest(self) -> Generation:
        """Have the engine generate the next turn. Raises `ConfigError` without an engine, and what that raises."""
        if self._engine is None:
            raise ConfigError("no engine suggests turns: begin with --engine tiny, for example")
        sampling, ids = self._config.sampling, self._episode.conversation.context
        most = min(sampling.max_new_tokens, self._room)
        params = replace(sampling, max_new_tokens=most, stop_token_ids=self.renderer.stop_token_ids)
        call = self._engine.generate(ids, params, request_id=f"play-{uuid.uuid4().hex}")
        return await with_deadline(call, self._config.limits.engine_timeout)

    async def send(self, turn: Generation) -> None:
        """Play a turn, and stop before the next one or at the episode's end."""
        try:
            self._past.append(await self._episode.fork(self._episode.job))
        except ToolgymError:  # the env cannot be forked, or its sandbox cannot
            self._past.append(None)
        self._next = turn
        self.trajectory = await self._episode.run(between_turns=self._stand_still)

    async def undo(self) -> None:
        """Go back to before the last turn. Raises `ConfigError` if that is not possible."""
        before = self._past.pop() if self._past else None
        if before is None:
            raise ConfigError("there is no turn to undo, or the env could not be forked before it")
        await close_env(self._episode.env)
        self._episode, self.trajectory = before, None

    async def save(self, path: Path) -> Trajectory:
        """Write the trajectory to a file. An episode that goes on is over then, with the stop reason `aborted`."""
        if self.trajectory is None:
            self._episode.cut()
            ended = await self._episode.run()
            assert ended is not None
            self.trajectory = replace(ended, stop_reason=StopReason.ABORTED)
        with TrajectoryWriter(path) as writer:
            writer.write(replace(self.trajectory, parent=None, branch_turn=None))
        return self.trajectory

    async def close(self) -> None:
        for episode in filter(None, (self._episode, *self._past)):
            await close_env(episode.env)

    async def _stand_still(self, episode: Episode) -> None:
        episode.suspend()

    async def _answer(self, request: GenerationRequest) -> Generation:
        return self._next

    def _make_renderer(self, tools: Any) -> ChatRenderer:
        self.renderer = policy_renderer(self._tokenizer, self._config, tools)
        return self.renderer

    @property
    def _room(self) -> int:
        return self._context - len(self._episode.conversation.context)
