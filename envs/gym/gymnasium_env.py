"""`GymnasiumEnv`: any async env as a standard synchronous Gymnasium env.

It does not stand on `DrivenEpisode`, nor does the vector env: Gymnasium's users get the env's own errors, and a
truncated step from an env that ends with a failure.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Sequence
from typing import Any, cast

import gymnasium

from toolgym.envs.base import BaseEnv, StepResult
from toolgym.envs.failure import finite_reward
from toolgym.envs.gym.spaces import ChatSpace, TextSpace
from toolgym.envs.registry import make
from toolgym.tools.concurrency.event_loop_thread import EventLoopThread
from toolgym.tools.errors import ConfigError, UnknownNameError, nearest
from toolgym.tools.message import Message
from toolgym.tools.views.conversation import conversation_text
from toolgym.tools.views.env import rendered
from toolgym.tools.views.html import View

RENDER_MODES = ("ansi", "html", "human")


class GymnasiumEnv(gymnasium.Env[tuple[Message, ...], str]):
    """A synchronous env over an async one. `gymnasium.make` returns one for every id of `toolgym.register`; its
    `wrappers` are those of `toolgym.make`, around the async env.

    An action is the text of one turn of the policy. An observation is the tuple of the *new* messages: all of them at
    `reset`, results of tools at `step`, and none when the episode ends. Infos are those of the async env; if one has
    `context`, the policy's context begins anew with those messages. The env also works inside a running event loop (as
    in a notebook), and may be called from any thread, one call at a time.

    Example:
        >>> import gymnasium, toolgym
        >>> env = gymnasium.make("CodeInterpreter-v0")
        >>> obs, info = env.reset(seed=0)
        >>> [message["role"] for message in obs]
        ['system', 'user']
        >>> obs, reward, terminated, truncated, info = env.step("#### 1")
        >>> obs, terminated, str(info["stop_reason"])
        ((), True, 'answered')
        >>> env.close()
    """

    # A frame rate says nothing about a conversation, but Gymnasium's checks want one where there is a render mode.
    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 1}  # noqa: RUF012  as in the base

    def __init__(self, env: BaseEnv, *, render_mode: str | None = None) -> None:
        check_render_mode(render_mode)
        self.base_env = env
        self.render_mode = render_mode
        self.action_space = TextSpace()
        self.observation_space = ChatSpace()
        self._conversation: list[Message] = []
        self._bridge = EventLoopThread(name="toolgym-env", on_close=env.close)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[Message, ...], dict[str, Any]]:
        super().reset(seed=seed)
        messages, info = self._bridge.run(self.base_env.reset(seed=seed, options=options))
        if self.render_mode is not None:
            self._conversation = []
            self._add(copy.deepcopy(messages))
        return observation(messages), cast(dict[str, Any], info)

    def step(self, action: str) -> tuple[tuple[Message, ...], float, bool, bool, dict[str, Any]]:
        """Take one turn of the policy: its text as generated, without its end-of-turn token.

        Without an episode under way it is an `EpisodeError`, and with a reward that is not finite an
        `EpisodeFailedError`.
        """
        check_action(action)
        result = self._bridge.run(self.base_env.step(action))
        if self.render_mode is not None:
            self._add(turn(action, result))
        obs, info = observation(result.obs), cast(dict[str, Any], result.info)
        return obs, float(finite_reward(result.reward)), result.terminated, result.truncated, info

    def _add(self, messages: list[Message]) -> None:
        self._conversation += messages
        if self.render_mode == "human":
            sys.stdout.write(f"{conversation_text(messages)}\n\n")
            sys.stdout.flush()

    def render(self) -> str | None:
        """Return the conversation so far: as text with `render_mode="ansi"`, as HTML with "html"; a notebook shows both
        richly. With "human" it is printed as it goes on. Otherwise warn, as Gymnasium's envs do."""
        if self.render_mode is None:
            gymnasium.logger.warn(
                'this env was made without a render_mode; make it with render_mode="ansi" to render it'
            )
        if self.render_mode in (None, "human"):
            return None
        view = rendered(self.base_env, self._conversation)
        return View(view.html, view.html) if self.render_mode == "html" else view

    def _repr_html_(self) -> str:
        return self.base_env._repr_html_()

    def close(self) -> None:
        self._bridge.close()


class _Maker:
    """The type of the `entry_point` of every id: Gymnasium reads its metadata, then calls it."""

    metadata = GymnasiumEnv.metadata

    def __call__(
        self, *, env_id: str, render_mode: str | None = None, env_wrappers: object = (), **kwargs: Any
    ) -> GymnasiumEnv:
        check_render_mode(render_mode)  # before the env takes anything that would have to be freed
        if env_wrappers:  # as `make_vec` has them, whose mode "sync" comes here
            kwargs["wrappers"] = env_wrappers
        return GymnasiumEnv(make(env_id, **kwargs), render_mode=render_mode)


make_gymnasium_env = _Maker()


def check_render_mode(render_mode: object, modes: Sequence[str] = RENDER_MODES) -> None:
    if render_mode is not None and render_mode not in modes:
        raise UnknownNameError(
            f"there is no render_mode {render_mode!r}{nearest(str(render_mode), modes) or ';'} "
            f"expected None or one of: {', '.join(modes)}"
        )


def check_action(action: object) -> None:
    if not isinstance(action, str):
        raise ConfigError(
            f"an action is the text of one turn (str), got {type(action).__name__}: {action!r}; "
            "only async envs (toolgym.make) take messages"
        )


def observation(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Return messages as an observation that shares nothing with the env."""
    return tuple(  # `copy.deepcopy` takes ten times as long
        message.copy() if all(type(value) is str for value in message.values()) else copy.deepcopy(message)
        for message in messages
    )


def turn(action: str, result: StepResult) -> list[Message]:
    """The messages that a step added to the conversation."""
    message: Message = result.info.get("message") or {"role": "assistant", "content": action}
    return copy.deepcopy([message, *result.obs])
