"""`check_env`: whether an env keeps its contract, frees what it takes, and gives rewards that mean what they say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict, Unpack, cast

from toolgym.envs.base import Action, BaseEnv
from toolgym.envs.registry import make as make_env
from toolgym.testing import env_checks
from toolgym.testing.env_checks import EnvSubject
from toolgym.testing.env_forks import check_fork_state
from toolgym.testing.env_verdict import check_attacks, check_scores, check_secrets
from toolgym.testing.errors import ConformanceError
from toolgym.testing.mutants.check import check_mutants
from toolgym.tools.errors import ConfigError, error_text

Check: TypeAlias = Callable[[EnvSubject], Awaitable[str | None]]
"""Raises a `ConformanceError`, or returns None, or why the env could not be checked."""

CHECK_SECONDS = 300.0
"""Wall seconds for one check."""


async def _check_fork(subject: EnvSubject) -> str | None:
    """A fork goes on from the same state and shares none with its origin; an env that cannot be forked says so."""
    if await env_checks.can_fork(subject):
        return await _check_forks(subject)
    await env_checks.check_no_fork(subject)
    return "the env cannot be forked, and says so"


async def _check_forks(subject: EnvSubject) -> str | None:
    """A fork is a separate env that goes on from the same state, and shares none with its origin."""
    await env_checks.check_fork(subject)
    return await check_fork_state(subject)


CHECKS: dict[str, Check] = {
    "order": env_checks.check_order,
    "tools": env_checks.check_tools,
    "reset": env_checks.check_reset,
    "step": env_checks.check_step,
    "forms of an action": env_checks.check_forms,
    "seeds": env_checks.check_seeds,
    "group": env_checks.check_group,
    "task": env_checks.check_task,
    "fork": _check_fork,
    "cancellation": env_checks.check_cancellation,
    "scores": check_scores,
    "mutants": check_mutants,
    "attacks": check_attacks,
    "secrets": check_secrets,
    "leaks": env_checks.check_leaks,
    "close": env_checks.check_close,
}
"""Each check by its name, in order."""


FORK_CHECKS: dict[bool | None, Check] = {
    True: _check_forks,
    False: env_checks.check_no_fork,
    None: _check_fork,
}
"""The check of forks, where it is known whether the env can be forked, and where it is not."""


@dataclass(frozen=True)
class CheckResult:
    """The result of one check; `passed` is None if the check could not be made, and `detail` then says why."""

    name: str
    description: str
    passed: bool | None
    detail: str = ""


class PlayOptions(TypedDict, total=False):
    """The way that an env is played, and what its rewards should be: see `EnvSubject`, also for the defaults."""

    repeatable: bool
    max_steps: int
    full_reward: float
    silent_reward: float
    hidden: Sequence[str]


async def check_env(
    env: BaseEnv | Callable[[], BaseEnv] | str,
    actions: Sequence[Action] | None = None,
    *,
    forks: bool | None = None,
    **options: Unpack[PlayOptions],
) -> list[CheckResult]:
    """Check that an env keeps the contract of `BaseEnv`, frees what it takes, and that its rewards can be trusted.

    await check_env("CodeInterpreter-v0", ["#### 42"])

    The reward of the known solution (`BaseEnv.gold_actions`) must be full, that of silence none, and that of attacks
    less than full: answers that claim success, and programs that tamper with tests, for tools with an argument `code`
    (Python) or `command` (a shell). If the known solution is a Python program in the last answer, wrong programs that
    differ from it in one place must not earn the full reward. Programs must not find long lines of the task's ground
    truth, or of the env's `hidden_texts`, either.

    Args:
        env: an id, or a function that makes the env anew; or an env, which is closed, and of which leaks are not
            looked for, since that takes several.
        actions: of one episode, see `EnvSubject`. None: the known solution of the first task, or one turn of text.
        forks: whether the env can be forked. None: either will do.
        options: see `PlayOptions`.

    Returns:
        What became of each check. None failed.

    Raises:
        ConformanceError: one failed; says what was expected and what was given.
    """
    done = []
    async with aclosing(run_checks(env, actions, forks=forks, **options)) as results:
        async for result in results:
            if result.passed is False:
                raise ConformanceError(result.detail)
            done.append(result)
    return done


async def run_checks(
    env: BaseEnv | Callable[[], BaseEnv] | str,
    actions: Sequence[Action] | None = None,
    *,
    forks: bool | None = None,
    **options: Unpack[PlayOptions],
) -> AsyncGenerator[CheckResult, None]:
    """Yield what became of each check as soon as it is known, those that failed among them. See `check_env`."""
    make = _factory(env)
    played = tuple(actions) if actions else await _own_actions(make, keep=isinstance(env, BaseEnv))
    async with AsyncExitStack() as opened:
        for name, check in CHECKS.items():
            check = FORK_CHECKS[forks] if name == "fork" else check
            checked = make()
            opened.push_async_callback(checked.close)
            subject = EnvSubject(checked, played, make=None if checked is env else make, **options)
            passed: bool | None = None
            detail = ""
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    reason = await check(subject)
                passed, detail = True if reason is None else None, reason or ""
            except Exception as error:  # noqa: BLE001  what an env raises is what the check found
                passed = False
                detail = str(error) if isinstance(error, ConformanceError) else f"{name}: {error_text(error)}"
            yield CheckResult(name, (check.__doc__ or "").partition("\n")[0], passed, detail)
            if checked is not env:
                await opened.aclose()


async def _own_actions(make: Callable[[], BaseEnv], keep: bool) -> tuple[Action, ...]:
    plain = ("I do not know.",)
    if keep:  # its first reset is the first check's
        return plain
    async with make() as env:
        await env.reset(seed=0)
        return tuple(env.gold_actions() or plain)


def _factory(env: Any) -> Callable[[], BaseEnv]:
    if isinstance(env, str):
        return lambda: make_env(env)
    if isinstance(env, BaseEnv):
        return lambda: env
    if callable(env):
        return cast(Callable[[], BaseEnv], env)
    raise ConfigError(f"give an env id, a function that makes an env, or an env; got {env!r}")
