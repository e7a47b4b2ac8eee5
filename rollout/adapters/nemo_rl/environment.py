"""`ToolgymEnvironment`: an env as NeMo-RL's environment, an actor of Ray (`nemo_rl/environments/interfaces.py`).

NeMo-RL owns the turns. It hands over the text of each, without special tokens, and tokenizes the text that comes back
as it is: so that text is what the chat template writes between the turn's end and the next turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from toolgym.envs.served.env_session import EnvSession
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import EpisodeFailedError
from toolgym.rollout.adapters.served_episodes import ServedEpisodes
from toolgym.rollout.adapters.versions import needs_sources
from toolgym.rollout.models.tokenizer import load_tokenizer
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.tools.errors import ConfigError
from toolgym.tools.keywords import named_fields
from toolgym.tools.message import Message, mapped, user
from toolgym.tools.parsers.base import ParsedTurn
from toolgym.tools.schema import ToolCall, ToolSchema

# The package of that name in the index is empty.
with needs_sources("NeMo-RL", "github.com/NVIDIA-NeMo/RL", "an environment for NeMo-RL"):
    import ray
    import torch
    from nemo_rl.environments.interfaces import EnvironmentInterface, EnvironmentReturn

log = logging.getLogger("toolgym.rollout.adapters.nemo_rl")

SESSION = "toolgym_session"
"""Key of the metadata that NeMo-RL keeps between the turns of an episode."""

NAME = "toolgym.rollout.adapters.nemo_rl.ToolgymEnvironment"

QUEUE_TIMEOUT = 3600.0
"""Seconds that a step waits for its turn and for permits."""

INVISIBLE = "\u200b"
"""Goes into what reads like a control token in an observation, so that it is none for NeMo-RL's tokenizer either."""


@named_fields
@dataclass(frozen=True, kw_only=True)
class NemoRlSettings:
    """NeMo-RL's `env` settings of this environment: an env id with its arguments, the model's tokenizer, and bounds.

    `template_kwargs` are those of the `TaskProcessor`. Without a `parser` calls are read as the chat template shows
    them. NeMo-RL cannot leave out an episode that something broke off: it has the `failure_reward`, or None stops the
    training. `max_sessions` episodes play at once, and `max_concurrent` steps. The timeouts are seconds; `idle_timeout`
    closes an episode without a next turn, since NeMo-RL does not tell when it has cut one.
    """

    env: str
    tokenizer: str
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    parser: str | None = None
    failure_reward: float | None = None
    max_sessions: int = 8192
    max_concurrent: int = 1024
    reset_timeout: float = 600.0
    step_timeout: float = 600.0
    idle_timeout: float = 3600.0


class _Turn(NamedTuple):
    observation: str
    session: str
    reward: float
    done: bool


class Environment(EnvironmentInterface):  # type: ignore[misc]  # NeMo-RL has no types
    """Plays the episodes of one env with `NemoRlSettings`. Its steps run on one event loop, all of a batch at once."""

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        self._settings = settings = NemoRlSettings(**cfg)
        self._tokenizer = load_tokenizer(settings.tokenizer)
        self._episodes = ServedEpisodes(settings, queue_timeout=QUEUE_TIMEOUT)
        self._checked = False
        self._conversations: WeakKeyDictionary[EnvSession, tuple[ChatRenderer, list[Message]]] = WeakKeyDictionary()

    async def step(
        self, message_log_batch: Sequence[list[dict[str, Any]]], metadata: Sequence[Mapping[str, Any]]
    ) -> EnvironmentReturn[Any]:
        """Take one turn in each episode; the metadata is what a `TaskProcessor` or the turn before gave.

        Raises EpisodeFailedError if an episode failed without a `failure_reward`, and ConfigError if a setting or the
        metadata is wrong, or NeMo-RL cannot hand over this model's tool calls.
        """
        served = await self._episodes.served()
        if not self._checked:
            require_readable_calls(self._renderer(served.tools))
            self._checked = True
        pairs = zip(message_log_batch, metadata, strict=True)
        results = await asyncio.gather(*(self._turn(*pair) for pair in pairs), return_exceptions=True)
        for error in results:
            if isinstance(error, BaseException):
                raise error
        turns = [turn for turn in results if isinstance(turn, _Turn)]
        return EnvironmentReturn(
            observations=[{"role": "environment", "content": turn.observation} for turn in turns],
            metadata=[{SESSION: turn.session} for turn in turns],
            next_stop_strings=[None] * len(turns),
            rewards=torch.tensor([turn.reward for turn in turns], dtype=torch.float32),
            terminateds=torch.tensor([turn.done for turn in turns], dtype=torch.bool),
            answers=None,
        )

    def global_post_process_and_metrics(self, batch: Any) -> tuple[Any, dict[str, Any]]:
        return batch, {}

    async def shutdown(self) -> None:
        await self._episodes.sessions.close()

    async def _turn(self, conversation: list[dict[str, Any]], metadata: Mapping[str, Any]) -> _Turn:
        last = conversation[-1] if conversation else {}
        if last.get("role") != "assistant":
            raise ConfigError(f"a conversation must end with the assistant's turn, got {last!r}")
        name = metadata.get(SESSION)
        try:
            session = await self._begin(metadata) if name is None else self._episodes.sessions.find(name)
            return await self._played(session, last["content"])
        except EpisodeFailedError as error:
            if self._settings.failure_reward is None:
                raise
            log.warning("counted as %s: %s", self._settings.failure_reward, error)
            return _Turn(_over(error.stop_reason), "", self._settings.failure_reward, True)

    async def _begin(self, metadata: Mapping[str, Any]) -> EnvSession:
        task = Task.from_row(metadata)
        session = await self._episodes.begin(task)
        assert session.episode is not None
        self._conversations[session] = self._renderer(session.episode.tools), list(task.messages)
        return session

    async def _played(self, session: EnvSession, text: str) -> _Turn:
        assert session.episode is not None
        renderer, messages = self._conversations[session]
        turn = renderer.parse_text(text, first_id=session.episode.calls)
        done = True
        try:
            result = await session.step(turn, calls=len(turn.requests))
            if result.stop_reason is not None:
                return _Turn(_over(result.stop_reason), session.name, result.reward, True)
            messages.append(turn.message)
            obs = [_harmless(message, renderer) for message in result.obs]
            ids = renderer.extend(obs, earlier=messages[:-1])
            messages += obs
            done = False
            return _Turn(renderer.decode(ids), session.name, result.reward, False)
        finally:
            if done:
                await self._episodes.sessions.discard(session.name)

    def _renderer(self, tools: Sequence[ToolSchema]) -> ChatRenderer:
        settings = self._settings
        renderer = ChatRenderer(self._tokenizer, tools, settings.template_kwargs, parser=settings.parser)
        renderer.require_parser()
        return renderer


ToolgymEnvironment = ray.remote(Environment)


def register(name: str = "toolgym") -> None:
    """Make NeMo-RL find the environment by a name, in its settings' `env` and in its data's `task_name`."""
    from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY
    from nemo_rl.distributed.virtual_cluster import PY_EXECUTABLES
    from nemo_rl.environments.utils import register_env

    register_env(name, NAME)
    ACTOR_ENVIRONMENT_REGISTRY[NAME] = PY_EXECUTABLES.SYSTEM


def require_readable_calls(renderer: ChatRenderer) -> None:
    """Check that tool calls can be read in texts without special tokens, which NeMo-RL leaves out."""
    if not renderer.tools or not renderer.facts.tool_calls_rendered:
        return
    name = renderer.tools[0]["function"]["name"]
    asked = [user("x")]
    call = ParsedTurn("", "", [ToolCall("abcdefghi", name, {})], []).message
    text = renderer.render([*asked, call], generation_prompt=False)[
        len(renderer.render(asked, generation_prompt=False)) :
    ]
    ids = renderer.tokenizer.encode(text, add_special_tokens=False)
    seen = renderer.tokenizer.decode(ids, skip_special_tokens=True)
    if not renderer.parse_text(seen).calls:
        raise ConfigError(
            f"this model writes tool calls with special tokens, which NeMo-RL leaves out of the texts: of {text!r} the "
            f"env would read {seen!r}. Use NeMo-RL with NeMo-Gym instead"
        )


def _over(reason: Any) -> str:
    """Return the last observation. NeMo-RL would make floating-point ids of an empty text."""
    return f"[The episode is over: {reason.value}]"


def _harmless(message: Message, renderer: ChatRenderer) -> Message:
    return {**message, "content": mapped(message["content"], partial(_without_tokens, renderer=renderer))}


def _without_tokens(text: str, renderer: ChatRenderer) -> str:
    for token in renderer.tokenizer.convert_ids_to_tokens(sorted(renderer.added_ids)):
        if len(token) > 1:
            text = text.replace(token, token[0] + INVISIBLE + token[1:])
    return text
