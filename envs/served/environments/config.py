"""The env server's settings, from a YAML file and from flags, checked before anything starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import pydantic
from pydantic import Field

from toolgym.tools.serving.config import ServerSpec, ServingConfig, flag


class EnvServerConfig(ServingConfig):
    """Settings of `toolgym serve openenv`: those of every server (`ServingConfig`), and its own.

    Attributes:
        port: TCP port; 0: any free one.
        workers: processes that share the port: one, since a session lives in the process that opened it.
        max_concurrency: resets and steps that run at once.
        queue_timeout: most seconds that a call waits: for a slot, for the calls before it in its session, and for
            permits of tools.
        body_limit_mb: MiB of one request's body and of one message of a WebSocket.
        envs: the envs by id, or `module:Id`, each with the arguments that it is made with. The first is the default.
        max_sessions: sessions that are open at once; more are refused (429, `CAPACITY_REACHED` over a WebSocket). Each
            has an env of its own.
        session_idle_timeout: seconds without a call or a ping after which a session is closed, and a WebSocket too.
        reset_timeout: wall seconds for an env's `reset`; waiting for permits does not count.
        step_timeout: wall seconds for an env's `step`; waiting for permits does not count. The env's own deadlines for
            its tools are shorter; this one holds when they fail to.
        answer_tool: name of a tool that says a text as a turn without tool calls, which is how most episodes are
            answered. For clients that can only call tools; null: there is none.
        task_fields: columns of a task's row, or of its `extra_info`, that clients see besides its id and source,
            `difficulty` for example. Whatever is named here leaves the server, a ground truth too.
        rewards: what a call's reward is in the Open Reward Standard: `episode`: null, and with the last step the
            episode's; `step`: the step's own.
        num_tasks: tasks that are offered of each split of an env that generates them without end.
    """

    spec = ServerSpec(
        command="openenv",
        name="env server",
        worker="toolgym.envs.served.environments.app",
    )

    port: int = flag(8000, ge=0, le=65535)
    workers: int = Field(1, ge=1, le=1)
    max_concurrency: int = Field(1024, ge=1)
    queue_timeout: pydantic.FiniteFloat = Field(600.0, gt=0)
    body_limit_mb: pydantic.FiniteFloat = Field(16.0, gt=0)
    envs: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    max_sessions: int = flag(1024, ge=1)
    session_idle_timeout: pydantic.FiniteFloat = flag(1800.0, gt=0)
    reset_timeout: pydantic.FiniteFloat = flag(600.0, gt=0)
    step_timeout: pydantic.FiniteFloat = flag(600.0, gt=0)
    answer_tool: str | None = "submit_answer"
    task_fields: tuple[str, ...] = ()
    rewards: Literal["episode", "step"] = "episode"
    num_tasks: int = flag(1000, ge=1)

    @pydantic.field_validator("answer_tool")
    @classmethod
    def _identifier(cls, name: str | None) -> str | None:
        if name is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", name):
            raise ValueError("a tool's name has letters, digits and underscores; null for no such tool")
        return name
