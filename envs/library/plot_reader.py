"""`PlotReaderEnv`: read a number off a plot, which a tool draws in the sandbox."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from toolgym.envs.base import Action
from toolgym.envs.rewards.answer import final_answer_score
from toolgym.envs.tasks.sources import TaskList, TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.tools.base import ToolResult
from toolgym.tools.errors import UnknownNameError, nearest
from toolgym.tools.lazy import missing_package
from toolgym.tools.library.code_interpreter import CodeInterpreterTool
from toolgym.tools.message import assistant, system, tool_call, user
from toolgym.tools.schema import ToolSchema

SYSTEM_PROMPT = "Look at the plot with the tool. Then end with `#### <answer>`, a number."
TASKS = {"train": 256, "test": 64}
STEP = 5
"""Values are multiples of it, as the lines of the plot's grid are."""

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug")

PROGRAM = """
import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
figure, axes = plt.subplots(figsize=(4, 3), dpi=80)
axes.{kind}({names!r}, {values!r}, **{style!r})
axes.set_yticks(range(0, {top}, {step}))
axes.set_axisbelow(True)
axes.grid(axis="y")
axes.set_ylabel("orders")
plt.show()
"""


class PlotTool(CodeInterpreterTool):
    """Draws the values of a task in the sandbox and shows the plot. A task's `execute_kwargs` have them: `names`, and
    as many numbers, `values`."""

    task_kwargs: Mapping[str, Collection[str]] = {
        **CodeInterpreterTool.task_kwargs,
        "execute_kwargs": ("names", "values", "timeout"),
    }
    default_schema = ToolSchema(
        name="show_plot",
        description="Show the plot that the question is about.",
        parameters={
            "type": "object",
            "properties": {
                "kind": {"type": "string", "enum": ["bars", "line"], "default": "bars", "description": "How to draw."}
            },
        },
    )

    def __init__(self, config: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        if importlib.util.find_spec("matplotlib") is None:
            cause = ImportError("it is not installed")
            raise missing_package("matplotlib", "Drawing the plots of PlotReader-v0", cause)
        super().__init__({**(config or {}), "images": True}, **kwargs)

    async def execute(self, instance_id: str, parameters: dict[str, Any], **execute_kwargs: Any) -> ToolResult:
        names, values = list(execute_kwargs.pop("names")), list(execute_kwargs.pop("values"))
        kind, style = ("bar", {}) if parameters["kind"] == "bars" else ("plot", {"marker": "o"})
        top = max(values) + 2 * STEP
        code = PROGRAM.format(kind=kind, names=names, values=values, style=style, top=top, step=STEP)
        result = await super().execute(instance_id, {"code": code}, **execute_kwargs)
        text = "" if result.images else result.text  # a cell without prints says so
        return ToolResult(text, result.reward, result.metrics, images=result.images)


class PlotReaderEnv(ToolEnv):
    """An env whose policy must see: a question about a plot, which `show_plot` shows. A final answer equal to the
    task's ground truth has the reward 1, else 0. A renderer without images refuses the plot by name.

    Args:
        tasks: where tasks come from. None: those of `plot_tasks`.
        split: `train` (256 tasks) or `test` (64), of the latter.
        tool_config: options of the sandbox, see `toolgym.tools.CodeInterpreterConfig`.
        env_kwargs: the other arguments of `ToolEnv`.

    Raises MissingExtraError if matplotlib, which draws, is not installed; a sandbox elsewhere needs it too.
    """

    def __init__(
        self,
        tasks: TaskSource | Sequence[Task] | None = None,
        *,
        split: Literal["train", "test"] = "train",
        tool_config: Mapping[str, Any] | None = None,
        **env_kwargs: Any,
    ) -> None:
        env_kwargs.setdefault("scorer", final_answer_score)
        drawn = TaskList(plot_tasks(split)) if tasks is None else tasks
        super().__init__([PlotTool(tool_config)], drawn, owns_tools=True, **env_kwargs)

    def gold_actions(self) -> list[Action] | None:
        if self.task is None:
            return None
        return [assistant("", [tool_call("show_plot", {"kind": "bars"})]), f"#### {self.task.ground_truth}"]


def plot_tasks(split: Literal["train", "test"] = "train") -> list[Task]:
    """Return the tasks of a split, the same each time; no plot is in both."""
    if split not in TASKS:
        raise UnknownNameError(f"expected the split 'train' or 'test', got {split!r}{nearest(str(split), TASKS)}")
    rng = random.Random(0)
    drawn: dict[tuple[int, ...], Task] = {}
    while len(drawn) < sum(TASKS.values()):
        values = tuple(STEP * number for number in rng.sample(range(1, 14), rng.randint(4, len(MONTHS))))
        drawn.setdefault(values, _task(values, len(drawn), rng))
    tasks = list(drawn.values())
    return tasks[: TASKS["train"]] if split == "train" else tasks[TASKS["train"] :]


def _task(values: tuple[int, ...], number: int, rng: random.Random) -> Task:
    names = MONTHS[: len(values)]
    low, high = sorted(rng.sample(range(len(values)), 2), key=lambda place: values[place])
    limit = STEP * rng.randint(2, 11) + 2
    question, answer = rng.choice(
        [
            (f"How many orders came in {names[high]}?", values[high]),
            (f"How many more orders came in {names[high]} than in {names[low]}?", values[high] - values[low]),
            (f"In how many months were there more than {limit} orders?", sum(value > limit for value in values)),
            ("How many orders came in the best month?", max(values)),
        ]
    )
    return Task(
        messages=(system(SYSTEM_PROMPT), user(question)),
        ground_truth=str(answer),
        tools_kwargs={"show_plot": {"execute_kwargs": {"names": [*names], "values": [*values]}}},
        source="toolgym/plot_reader",
        id=f"plot-{number}",
    )
