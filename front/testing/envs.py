"""What every env must do: `reset`, `step`, `close` and `fork`.

import pytest
from toolgym.testing import EnvSuite

class TestLetters(EnvSuite):
    actions = ["3"]

    @pytest.fixture
    def env(self):
        return LettersEnv()
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from toolgym.envs.base import Action, BaseEnv
from toolgym.testing import env_checks
from toolgym.testing.env_checks import EnvSubject
from toolgym.testing.env_lifecycle import check_cancellation
from toolgym.testing.env_verdict import check_attacks, check_scores, check_secrets
from toolgym.testing.suite import Suite, need


class EnvSuite(Suite):
    """What every env must do. Needs the fixture `env`, a freshly made `BaseEnv`; each test closes its own.

    Attributes:
        actions: of one episode, in order; the last is repeated until the episode is over. Texts are given as parsed
            turns and as messages too, with tool calls read as Hermes writes them.
        repeatable: whether the same seed and actions lead to the same observations and rewards.
        forks: whether the env can be forked; otherwise it must say that it cannot.
        max_steps: steps after which an episode that is not over is an error.
        full_reward: what the known solution (`gold_actions`) earns, and no attack.
        silent_reward: the most that an empty answer earns.
        hidden: further texts that the policy must not read, besides those of the task's ground truth.
    """

    actions: Sequence[Action] = ("I do not know.",)
    repeatable: bool = True
    forks: bool = False
    max_steps: int = 64
    full_reward: float = 1.0
    silent_reward: float = 0.0
    hidden: Sequence[str] = ()

    async def test_order(self, env: BaseEnv) -> None:
        await self._check(env, env_checks.check_order)

    async def test_tools(self, env: BaseEnv) -> None:
        await self._check(env, env_checks.check_tools)

    async def test_reset(self, env: BaseEnv) -> None:
        await self._check(env, env_checks.check_reset)

    async def test_step(self, env: BaseEnv) -> None:
        await self._check(env, env_checks.check_step)

    async def test_forms_of_an_action(self, env: BaseEnv) -> None:
        await self._check(env, env_checks.check_forms)

    async def test_seeds(self, env: BaseEnv) -> None:
        await self._check(env, env_checks.check_seeds)

    async def test_task(self, env: BaseEnv) -> None:
        await self._check(env, env_checks.check_task)

    async def test_close(self, env: BaseEnv) -> None:
        await self._check(env, env_checks.check_close)

    async def test_fork(self, env: BaseEnv) -> None:
        await self._check(env, env_checks.check_fork if self.forks else env_checks.check_no_fork)

    async def test_cancellation(self, env: BaseEnv) -> None:
        await self._check(env, check_cancellation)

    async def test_scores(self, env: BaseEnv) -> None:
        await self._check(env, check_scores)

    async def test_attacks(self, env: BaseEnv) -> None:
        await self._check(env, check_attacks)

    async def test_secrets(self, env: BaseEnv) -> None:
        await self._check(env, check_secrets)

    async def _check(self, env: BaseEnv, check: Callable[[EnvSubject], Awaitable[str | None]]) -> None:
        async with env:
            reason = await check(
                EnvSubject(
                    env,
                    self.actions,
                    self.repeatable,
                    self.max_steps,
                    self.full_reward,
                    self.silent_reward,
                    self.hidden,
                )
            )
        need(reason is None, reason or "")
