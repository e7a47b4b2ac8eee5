"""`check_mutants`: the check of `check_env` that an env's verdict tells the known solution from its mutants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolgym.envs.base import Action
from toolgym.testing.env_checks import SEEDS, EnvSubject, check_result
from toolgym.testing.errors import ConformanceError
from toolgym.testing.mutants import Survivor, comparison, mutants_of
from toolgym.tools.errors import ConfigError
from toolgym.tools.judge import extract_program, read_tests
from toolgym.tools.judge.cases import Test
from toolgym.tools.message import described
from toolgym.tools.parsers import ParsedTurn
from toolgym.tools.sandbox import SharedSandbox

MOST = 16
"""Mutants of one known solution that an env is tried with."""

SHOWN = 5
"""Mutants that are shown."""


@dataclass(frozen=True)
class _Solution:
    """A known solution that is a program.

    Attributes:
        actions: the known solution, whose last action holds the program in a fence.
        program: the program.
        tests: the task's tests; none if its ground truth does not hold tests.
    """

    actions: Sequence[Action]
    program: str
    tests: Sequence[Test]

    def with_program(self, program: str) -> list[Action]:
        return [_replaced(action, self.program, program) for action in self.actions]


async def check_mutants(subject: EnvSubject) -> str | None:
    """Programs that differ from the known solution in one place, and give wrong results, do not earn all."""
    survivors: list[str] = []
    tried = unsure = 0
    async with SharedSandbox(preload=()) as sandbox:
        for seed in SEEDS:
            solution = await _solution(subject, seed)
            if solution is None:
                continue
            paid = []
            for mutant in mutants_of(solution.program, most=MOST, seed=seed):
                tried += 1
                if await _is_paid(subject, seed, solution.with_program(mutant.source)):
                    paid.append(mutant)
            if not paid:
                continue
            compare = await comparison(solution.program, solution.tests, sandbox, seed=seed)
            wrong = [survivor for mutant in paid if (survivor := await compare(mutant)) is not None]
            unsure += 0 if solution.tests else len(paid)
            survivors += [_report(seed, survivor) for survivor in wrong]
    if survivors:
        more = f"\n\n[{len(survivors) - SHOWN} more]" if len(survivors) > SHOWN else ""
        raise ConformanceError(
            f"wrong programs earn the full reward: {len(survivors)} of {tried} mutants of the known solution. Add "
            "tests on which they fail; toolgym.testing.mutants tries all mutants of a task\n\n"
            + "\n\n".join(survivors[:SHOWN])
            + more
        )
    if not tried:
        return "the known solution is not a Python program in the last answer, or the env knows none"
    if unsure:
        return (
            f"{unsure} of {tried} mutants earn the full reward, and whether they are wrong is not known: the task's "
            "ground truth does not hold tests"
        )
    return None


def _report(seed: int, survivor: Survivor) -> str:
    return f"seed {seed}, line {survivor.mutant.line}:\n{survivor.report()}"


async def _solution(subject: EnvSubject, seed: int) -> _Solution | None:
    await subject.env.reset(seed=seed)
    actions = subject.env.gold_actions()
    if not actions:
        return None
    extracted = extract_program(_text(actions[-1]), bare=False)
    if extracted.kind != "fenced" or isinstance(actions[-1], ParsedTurn):
        return None
    try:
        if not mutants_of(extracted.code, most=1):
            return None
    except SyntaxError:
        return None
    return _Solution(actions, extracted.code, _tests(subject))


def _tests(subject: EnvSubject) -> Sequence[Test]:
    task = subject.env.task
    if task is None:
        return ()
    try:
        return read_tests(task.ground_truth)
    except ConfigError:
        return ()


async def _is_paid(subject: EnvSubject, seed: int, actions: Sequence[Action]) -> bool:
    """Whether these actions earn the full reward. An episode that fails is not paid."""
    env = subject.env
    await env.reset(seed=seed)
    total = 0.0
    for at in range(subject.max_steps):
        result = await env.step(actions[min(at, len(actions) - 1)])
        check_result(result)
        total += result.reward
        if result.done:
            break
    return math.isclose(total, subject.full_reward, abs_tol=1e-6) or total > subject.full_reward


def _text(action: Action) -> str:
    if isinstance(action, str):
        return action
    content = action.content if isinstance(action, ParsedTurn) else action.get("content")
    return described(content) if content else ""


def _replaced(value: Any, program: str, mutant: str) -> Any:
    """Return an action with another program in its texts and in the arguments of its calls."""
    if isinstance(value, str):
        return value.replace(program, mutant)
    if isinstance(value, list):
        return [_replaced(item, program, mutant) for item in value]
    if isinstance(value, dict):
        return {key: _replaced(item, program, mutant) for key, item in value.items()}
    return value
