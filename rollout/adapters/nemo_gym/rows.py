"""`to_rows`: tasks as the rows of NeMo-Gym's data sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from toolgym.envs.tasks.task import Task
from toolgym.rollout.adapters.task_rows import task_column, tools_of
from toolgym.tools.errors import ConfigError
from toolgym.tools.keywords import named_keywords


@named_keywords
def to_rows(
    env: str, tasks: Iterable[Task | Mapping[str, Any]], *, env_kwargs: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return the rows of tasks: the messages and the env's tools in `responses_create_params`, and the whole task.

    The tasks may be rows in verl's shape; `env_kwargs` are the same as the server's. Raises ConfigError if the env
    cannot be made, something is no task, or a task begins in the middle of tool calls.
    """
    functions = [schema.to_openai()["function"] for schema in tools_of(env, env_kwargs)]
    tools = [{"type": "function", "strict": False, **function} for function in functions]
    rows = []
    for number, row in enumerate(tasks):
        task = row if isinstance(row, Task) else Task.from_row(row)
        if any(message["role"] == "tool" or "tool_calls" in message for message in task.messages):
            raise ConfigError(
                f"task {number} begins in the middle of tool calls, for which NeMo-Gym's rows have no place"
            )
        asked = [{"role": message["role"], "content": message["content"]} for message in task.messages]
        rows.append({"responses_create_params": {"input": asked, "tools": tools}, **task_column(task)})
    return rows
