"""`ToolgymEnvironment`: an env as NeMo-RL's environment, an actor of Ray that plays many episodes at once.

NeMo-RL owns the turns. It hands over the text of each, without special tokens, and tokenizes the text that comes back
as it is: so that text is what the chat template writes between the turn's end and the next turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from toolgym.envs.served.environments.catalog import ServedEnv, TaskPlace, load_env
from toolgym.envs.served.environments.session import EnvSession, EnvSessions, Timeouts
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import EpisodeFailedError
from toolgym.rollout.models.tokenizer import load_tokenizer
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.tools.errors import ConfigError, MissingExtraError, named_fields, shorten
from toolgym.tools.message import Message, user
from toolgym.tools.parsers.base import ParsedTurn
from toolgym.tools.schema import ToolCall
from toolgym.tools.serving.admission import Gate

try:
    import ray
    import torch
    from nemo_rl.environments.interfaces import EnvironmentInterface, EnvironmentReturn
except ImportError as error:
    raise MissingExtraError(  # the package of that name in the index is empty
        f"an environment for NeMo-RL needs NeMo-RL itself (github.com/NVIDIA-NeMo/RL); it cannot be imported: {error}"
    ) from error

if TYPE_CHECKING:
    from toolgym.tools.schema import ToolSchema

log = logging.getLogger("toolgym.rollout.adapters.nemo_rl")
"""Gets one warning for each episode that failed and is counted all the same."""

SESSION = "toolgym_session"
"""Key of the metadata that NeMo-RL keeps between the turns of an episode."""

NAME = "toolgym.rollout.adapters.nemo_rl.ToolgymEnvironment"
"""Where NeMo-RL finds the actor."""

QUEUE_TIMEOUT = 3600.0
"""Seconds that a step waits for its turn and for permits."""

INVISIBLE = "\u200b"
"""Goes into what reads like a control token in an observation, so that it is none for NeMo-RL's tokenizer either."""


@named_fields
@dataclass(frozen=True, kw_only=True)
class Settings:
    """NeMo-RL's `env` settings of this environment.

    Attributes:
        env: an env id.
        tokenizer: the model's folder or hub name.
        env_kwargs: for `toolgym.make`.
        template_kwargs: further variables for the chat template; the same as those of the `TaskProcessor`.
        parser: how the model writes tool calls, by name; None: as the chat template shows it.
        failure_reward: the reward of an episode that something broke off. NeMo-RL has no way to leave one out; so None
            stops the training with the failure.
        max_sessions: most episodes at once.
        max_concurrent: most steps at once.
        reset_timeout: seconds for a reset.
        step_timeout: seconds for a step.
        idle_timeout: seconds after which an episode is closed whose next turn never came: NeMo-RL does not tell when it
            has cut one.
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
    """Plays the episodes of one env. Its steps run on one event loop, all of a batch at once.

    Args:
        cfg: see `Settings`.

    Raises:
        ConfigError: a setting is wrong, or the model writes its tool calls with special tokens, which NeMo-RL leaves
            out of the texts.
    """

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        self._settings = settings = Settings(**cfg)
        self._tokenizer = load_tokenizer(settings.tokenizer)
        timeouts = Timeouts(settings.reset_timeout, settings.step_timeout, QUEUE_TIMEOUT)
        gate = Gate(settings.max_concurrent, settings.max_sessions, QUEUE_TIMEOUT)
        self._sessions = EnvSessions(settings.max_sessions, settings.idle_timeout, timeouts, gate)
        self._opening = asyncio.Lock()
        self._served: ServedEnv | None = None
        self._renderers: dict[tuple[str, ...], ChatRenderer] = {}
        self._conversations: WeakKeyDictionary[EnvSession, list[Message]] = WeakKeyDictionary()

    async def step(
        self, message_log_batch: Sequence[list[dict[str, Any]]], metadata: Sequence[Mapping[str, Any]]
    ) -> EnvironmentReturn[Any]:
        """Take one turn in each episode. NeMo-RL calls it.

        Args:
            message_log_batch: conversations that end with the assistant's turn.
            metadata: what a `TaskProcessor` or the turn before gave.

        Raises:
            EpisodeFailedError: an episode failed, and there is no `failure_reward`.
            ConfigError: the metadata is of something else, or the env does not begin with the task's messages.
        """
        await self._open()
        pairs = zip(message_log_batch, metadata, strict=True)
        turns = await asyncio.gather(*(self._turn(*pair) for pair in pairs), return_exceptions=True)
        for one in turns:
            if isinstance(one, BaseException):
                raise one
        done: list[_Turn] = [one for one in turns if isinstance(one, _Turn)]
        return EnvironmentReturn(
            observations=[{"role": "environment", "content": one.observation} for one in done],
            metadata=[{SESSION: one.session} for one in done],
            next_stop_strings=[None] * len(done),
            rewards=torch.tensor([one.reward for one in done], dtype=torch.float32),
            terminateds=torch.tensor([one.done for one in done], dtype=torch.bool),
            answers=None,
        )

    def global_post_process_and_metrics(self, batch: Any) -> tuple[Any, dict[str, Any]]:
        """Return the batch as it is; the rewards are in NeMo-RL's statistics already."""
        return batch, {}

    async def shutdown(self) -> None:
        """Close all episodes."""
        await self._sessions.close()

    async def _open(self) -> None:
        async with self._opening:
            if self._served is None:
                given = self._settings
                self._served = await load_env(given.env, given.env_kwargs, answer_tool=None, endless=1)
                require_readable_calls(self._renderer(self._served.tools))
                self._sessions.start()

    async def _turn(self, conversation: list[dict[str, Any]], metadata: Mapping[str, Any]) -> _Turn:
        last = conversation[-1] if conversation else {}
        if last.get("role") != "assistant":
            raise ConfigError(f"a conversation must end with the assistant's turn, got {last!r}")
        name = metadata.get(SESSION)
        try:
            session = await self._begin(metadata) if name is None else self._sessions.find(name)
            return await self._played(session, last["content"])
        except EpisodeFailedError as error:
            if self._settings.failure_reward is None:
                raise
            log.warning("counted as %s: %s", self._settings.failure_reward, error)
            return _Turn(_over(error.stop_reason), "", self._settings.failure_reward, True)

    async def _begin(self, metadata: Mapping[str, Any]) -> EnvSession:
        task = Task.from_row(metadata)
        assert self._served is not None
        session = self._sessions.open(self._served)
        try:
            state = await session.reset(place=TaskPlace("train", 0, task))
            if state.messages != list(task.messages):
                raise ConfigError(
                    f"{self._served.id} begins with other messages than its task's, so the prompt was another one: "
                    f"{shorten(repr(state.messages))} instead of {shorten(repr(list(task.messages)))}"
                )
        except BaseException:  # cancelled too: the session is this call's to close
            await self._sessions.discard(session.name)
            raise
        self._conversations[session] = list(state.messages)
        return session

    async def _played(self, session: EnvSession, text: str) -> _Turn:
        """Step an episode, which is closed where that ends it."""
        assert session.episode is not None
        renderer, messages = self._renderer(session.episode.tools), self._conversations[session]
        turn = renderer.parse_text(text, first_id=session.episode.calls)
        done = True
        try:
            result = await session.step(turn, calls=len(turn.requests))
            if result.stop_reason is not None:
                return _Turn(_over(result.stop_reason), session.name, result.reward, True)
            messages.append(turn.message)
            obs = [_harmless(message, renderer) for message in result.obs]
            ids = renderer.extend(obs, earlier=messages)
            messages += obs
            done = False
            return _Turn(renderer.decode(ids), session.name, result.reward, False)
        finally:
            if done:
                await self._sessions.discard(session.name)

    def _renderer(self, tools: Sequence[ToolSchema]) -> ChatRenderer:
        key = tuple(sorted(repr(one.to_openai()) for one in tools))
        if key not in self._renderers:
            given = self._settings
            made = ChatRenderer(self._tokenizer, tools, given.template_kwargs, parser=given.parser)
            made.require_parser()
            self._renderers[key] = made
        return self._renderers[key]


ToolgymEnvironment = ray.remote(Environment)
"""The actor, for NeMo-RL's `create_env`."""


def register(name: str = "toolgym") -> None:
    """Make NeMo-RL find the environment by a name, in its settings' `env` and in its data's `task_name`.

    Raises:
        ValueError: the name is taken.
    """
    from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY
    from nemo_rl.distributed.virtual_cluster import PY_EXECUTABLES
    from nemo_rl.environments.utils import register_env

    register_env(name, NAME)
    ACTOR_ENVIRONMENT_REGISTRY[NAME] = PY_EXECUTABLES.SYSTEM


def require_readable_calls(renderer: ChatRenderer) -> None:
    """Check that tool calls can be read in texts without special tokens, which is what NeMo-RL hands over.

    Raises:
        ConfigError: they cannot.
    """
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
    """The last observation. It is not empty, since NeMo-RL makes floating-point ids of an empty text."""
    return f"[The episode is over: {reason.value}]"


def _harmless(message: Message, renderer: ChatRenderer) -> Message:
    """The message, with no control token in its text."""
    text = message["content"]
    for token in renderer.tokenizer.convert_ids_to_tokens(sorted(renderer.added_ids)):
        if len(token) > 1:
            text = text.replace(token, token[0] + INVISIBLE + token[1:])
    return message if text == message["content"] else {**message, "content": text}
