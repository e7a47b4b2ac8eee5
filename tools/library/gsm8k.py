"""`Gsm8kRewardTool`: the model finds out what its answer to a word problem is worth, and may try again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pydantic

from toolgym.tools.base import ToolResult
from toolgym.tools.config import read_options
from toolgym.tools.errors import ConfigError
from toolgym.tools.library.final_answer import final_answer, score_final_answer
from toolgym.tools.schema import ToolSchema
from toolgym.tools.stateful import StatefulTool, ToolSession


class Gsm8kRewardConfig(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    step_penalty: float = pydantic.Field(default=0.05, ge=0, allow_inf_nan=False)
    """The cost of a call whose answer is worth no more than the best one of the episode before; at first that is 0, so
    a wrong answer costs too."""
    type: str = "native"
    """Kept so that verl's tool files load; only "native" exists."""


class _Answers(ToolSession):
    def __init__(self, ground_truth: Any, step_penalty: float, best: float = 0.0) -> None:
        self._truth, self._penalty, self._best = ground_truth, step_penalty, best

    async def execute(self, parameters: dict[str, Any], **execute_kwargs: Any) -> ToolResult:
        answer: str = parameters["answer"]
        score = score_final_answer(f"#### {answer.rpartition('####')[2].strip()}", self._truth)
        reward = 0.0 if score > self._best else -self._penalty
        self._best = max(self._best, score)
        return ToolResult(f"The answer {answer!r} earns {score:g}.", reward, {"score": score})

    async def fork(self) -> ToolSession:
        return _Answers(self._truth, self._penalty, self._best)


class Gsm8kRewardTool(StatefulTool):
    """Says what an answer earns: 1 if it is right, else 0. One that is no better than those before costs.

    The tool and its name are those of verl's multi-turn GSM8K (`calc_gsm8k_reward`, until verl 0.8), whose state was
    lost after each call. A task's `create_kwargs` hold `ground_truth`: a number, or GSM8K's whole solution, which ends
    with `#### number`. The tool itself adds nothing to the reward at the end: that is the env's scorer.
    """

    task_kwargs: Mapping[str, Collection[str]] = {
        "create_kwargs": ("ground_truth",),
        "execute_kwargs": (),
        "calc_reward_kwargs": (),
    }
    default_schema: ToolSchema = ToolSchema(
        name="calc_gsm8k_reward",
        description="Find out whether an answer is right.",
        parameters={
            "type": "object",
            "properties": {"answer": {"type": "string", "description": "The answer: a number."}},
            "required": ["answer"],
        },
    )

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        tool_schema: ToolSchema | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(config, tool_schema)
        self.options = read_options(Gsm8kRewardConfig, self.config, "GSM8K reward")

    async def open(self, *, ground_truth: Any = None, **create_kwargs: Any) -> ToolSession:
        if ground_truth is None:
            raise ConfigError(
                f"the tool {self.name!r} needs the ground truth: give the task "
                f"tools_kwargs={{{self.name!r}: {{'create_kwargs': {{'ground_truth': ...}}}}}}"
            )
        truth = gsm8k_truth(ground_truth)
        score_final_answer("#### 0", truth)  # raises for a truth that cannot be compared
        return _Answers(truth, self.options.step_penalty)


def gsm8k_truth(ground_truth: Any) -> Any:
    """Return the number of a ground truth that is GSM8K's whole solution; any other one as it is."""
    if isinstance(ground_truth, str) and "####" in ground_truth:
        return final_answer(ground_truth)
    return ground_truth
