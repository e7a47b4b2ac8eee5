"""Rows for trainers whose env runs elsewhere: the whole task in one column, and the tools that the prompt shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from toolgym.envs.served.environments.catalog import load_env
from toolgym.envs.tasks.row_fields import TASK_COLUMN
from toolgym.envs.tasks.task import Task
from toolgym.tools.concurrency.event_loop_thread import EventLoopThread
from toolgym.tools.schema import ToolSchema


def tools_of(env: str, env_kwargs: Mapping[str, Any] | None) -> list[ToolSchema]:
    """The tools of an env, which is made for that and closed.

    Raises:
        ConfigError: the env cannot be made.
    """
    bridge = EventLoopThread(name="toolgym-tools-of")
    try:
        return bridge.run(load_env(env, dict(env_kwargs or {}), answer_tool=None, endless=1)).tools
    finally:
        bridge.close()


def task_column(task: Task) -> dict[str, str]:
    """The column `toolgym_task` of a task's row: all of it as JSON, which keeps rows of different shapes apart."""
    return {TASK_COLUMN: json.dumps(task.to_row())}
