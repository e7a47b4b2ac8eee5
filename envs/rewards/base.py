"""The contract of a scorer, from the `Outcome` of an episode to a `Score`; and `weighted`: several scorers as one."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from toolgym.envs.tasks.task import Task
from toolgym.envs.types import StopReason, ToolCallRecord
from toolgym.tools.concurrency.blocking import function_name
from toolgym.tools.concurrency.deadline import together
from toolgym.tools.concurrency.execution_pool import call_function, is_inline
from toolgym.tools.errors import ConfigError, require_number
from toolgym.tools.message import Message, text_of


@dataclass(frozen=True)
class Outcome:
    """An episode that has ended, as a scorer sees it.

    Attributes:
        task: the task.
        messages: the whole conversation, the task's messages and the last turn included, also one that a limit cut.
        turns: turns that the policy took, with one that was cut.
        tool_calls: the records of all tool calls, in order.
        final_text: the text of the last turn. Empty if the policy called a tool in it, if a limit cut it, or if it
            ended inside of its thinking, because such a turn does not hold an answer. `messages` has its text.
        stop_reason: why the episode ended.
        sessions: what the tools keep for the episode, by the tool's name; `session` is the way to it.
    """

    task: Task
    messages: tuple[Message, ...]
    turns: int
    tool_calls: tuple[ToolCallRecord, ...]
    final_text: str
    stop_reason: StopReason
    sessions: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def turn_texts(self) -> list[str]:
        """The texts of the policy's turns, without calls; thinking stands before each as `<think>...</think>`."""
        return [
            f"<think>{message['reasoning_content']}</think>{text_of(message['content'])}"
            if "reasoning_content" in message
            else text_of(message["content"])
            for message in self._turns
        ]

    @property
    def written(self) -> list[str]:
        """The text of each of the policy's turns with its calls as JSON behind it."""
        calls = ([call["function"] for call in message.get("tool_calls", ())] for message in self._turns)
        return [
            text + "".join(json.dumps(call, ensure_ascii=False) for call in of_turn)
            for text, of_turn in zip(self.turn_texts, calls, strict=True)
        ]

    @property
    def _turns(self) -> list[Message]:
        return [message for message in self.messages[len(self.task.messages) :] if message["role"] == "assistant"]

    def session(self, tool: str) -> Any:
        """Return the `ToolSession` of a `StatefulTool`, open until all scorers are done; `ConfigError` if it has none.

        That of a tool that runs programs has `clean_copy`, a new sandbox session with the episode's files, in which no
        program of the policy runs; and `sandbox_session`, where the policy's programs may still run.
        """
        if tool not in self.sessions:
            names = ", ".join(self.sessions) or "none"
            raise ConfigError(f"the scorer asked for the session of the tool {tool!r}; tools that have one: {names}")
        return self.sessions[tool]


@dataclass(frozen=True)
class Score:
    """The worth of an episode.

    Attributes:
        value: the reward in all.
        components: parts of it or remarks on it, by name; kept as metrics, not added to `value`.
    """

    value: float
    components: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, value: Any, who: str = "a scorer") -> Score:
        """Return what a scorer returned as a score.

        Args:
            value: a `Score` or a number.
            who: what returned the value, for the error.

        Raises:
            ConfigError: the value, or a component of it, is not a finite number.
        """
        if not isinstance(value, cls):
            return cls(require_number(f"{who} must return a Score or", value))
        number = require_number(f"{who} must return a Score whose value is", value.value)
        for name, part in value.components.items():
            require_number(f"{who} must return a Score whose component {name!r} is", part)
        return value if type(value.value) is float else cls(number, value.components)


Scorer: TypeAlias = (
    Callable[[Outcome], Score | float | Awaitable[Score | float]] | Callable[[str, Task], float | Awaitable[float]]
)
"""From an `Outcome` to a `Score` or a number, asked once at every end of an episode. A function of two arguments gets
the text of the answer and the task instead, and is called for answers only. Either kind may be async; a plain function
is called in a thread, unless `toolgym.tools.runs_inline` marks it."""

OutcomeScorer: TypeAlias = Callable[[Outcome], Any]


def outcome_scorer(scorer: Scorer) -> OutcomeScorer:
    """Return a scorer of either kind as a function of an `Outcome`; `ask_scorer` calls it.

    For a function of a text and a task, the returned function returns None if the episode has no answer.
    """
    problem = f"a scorer takes an Outcome, or a text and a Task; got {scorer!r}"
    if not callable(scorer):
        raise ConfigError(f"{problem}, which cannot be called")
    try:
        signature = inspect.signature(scorer)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{problem}, which does not say what it takes: {error}") from error
    if _takes(signature, 1):
        return scorer  # type: ignore[return-value]  # its signature says that it takes one argument
    if not _takes(signature, 2):
        raise ConfigError(f"{problem}, which takes {signature}")

    def answers_alone(outcome: Outcome) -> Any:
        if outcome.stop_reason is not StopReason.ANSWERED:
            return None
        return scorer(outcome.final_text, outcome.task)  # type: ignore[call-arg, arg-type]

    answers_alone.of_answers = scorer  # type: ignore[attr-defined]
    return answers_alone


async def ask_scorer(scorer: OutcomeScorer, outcome: Outcome) -> Score | None:
    """Call a scorer as `begin_score` does, and wait for its score."""
    score = begin_score(scorer, outcome)
    return await score if inspect.isawaitable(score) else score


def begin_score(scorer: OutcomeScorer, outcome: Outcome) -> Score | Coroutine[Any, Any, Score] | None:
    """Call what `outcome_scorer` returned.

    Returns:
        The score, if `runs_inline` marks the function. Otherwise a coroutine for the score: an async function is
        awaited, and a plain function is called in a thread. None if the function takes a text and a task, and the
        episode has no answer.

    Raises:
        ConfigError: the scorer returned something else than a `Score` or a finite number. The error names the scorer.
    """
    of_answers: Callable[..., Any] | None = getattr(scorer, "of_answers", None)
    if of_answers is None:
        return _begin(scorer, outcome)
    if outcome.stop_reason is not StopReason.ANSWERED:
        return None
    return _begin(of_answers, outcome.final_text, outcome.task)


def _begin(function: Callable[..., Any], *args: Any) -> Score | Coroutine[Any, Any, Score]:
    who = f"the scorer {function_name(function)!r}"
    if not is_inline(function):
        return _awaited_score(call_function(function, *args), who)
    value = function(*args)
    return _awaited_score(value, who) if inspect.isawaitable(value) else Score.of(value, who)


async def _awaited_score(value: Awaitable[Any], who: str) -> Score:
    return Score.of(await value, who)


def _takes(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def weighted(parts: Mapping[str, tuple[float, Scorer]]) -> OutcomeScorer:
    """Return a scorer that adds up others, given as `{name: (weight, scorer)}`; a weight of 0 only reports.

    Each part is a component of the score under its name, without its weight; the components of a part `judge` are
    `judge/NAME`. Parts run at the same time, plain functions in threads; if one raises, so does the whole. A function
    of a text and a task counts 0 if there is no answer. A part or score that is not usable is a `ConfigError`, which
    names it.

    Example:
        >>> from toolgym.envs.rewards import called, exact, weighted
        >>> scorer = weighted({"answer": (1.0, exact()), "tool": (0.1, called())})
    """
    if not isinstance(parts, Mapping) or not parts:
        raise ConfigError(f"weighted takes {{'name': (weight, scorer)}} with at least one part, got {parts!r}")
    scorers = {name: _checked(name, part) for name, part in parts.items()}

    async def score(outcome: Outcome) -> Score:
        parts = await together(_score(name, scorer, outcome) for name, (_, scorer) in scorers.items())
        scores = dict(zip(scorers, parts, strict=True))
        total = math.fsum(scorers[name][0] * part.value for name, part in scores.items())
        components: dict[str, float] = {}
        for name, part in scores.items():
            components[name] = part.value
            components |= {f"{name}/{inner}": value for inner, value in part.components.items()}
        return Score(total, components)

    return score


def _checked(name: Any, part: Any) -> tuple[float, OutcomeScorer]:
    if not isinstance(name, str) or not name:
        raise ConfigError(f"a part of weighted needs a name, got {name!r}")
    if not isinstance(part, tuple | list) or len(part) != 2:
        raise ConfigError(f"the part {name!r} of weighted must be (weight, scorer), got {part!r}")
    weight, scorer = part
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise ConfigError(f"the weight of {name!r} must be a finite number, got {weight!r}")
    try:
        return float(weight), outcome_scorer(scorer)
    except ConfigError as error:
        raise ConfigError(f"the part {name!r} of weighted: {error}") from error


async def _score(name: str, scorer: OutcomeScorer, outcome: Outcome) -> Score:
    try:
        score = await ask_scorer(scorer, outcome)
    except ConfigError as error:
        raise ConfigError(f"the part {name!r} of weighted: {error}") from error
    return Score(0.0) if score is None else score
