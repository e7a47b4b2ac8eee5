"""`RemoteSessionTool`: a session server's sessions as a tool.

```yaml
- class_name: toolgym.envs.served.sessions.RemoteSessionTool
  config: {base_url: ["http://10.0.0.7:5000", "http://10.0.0.8:5000"]}
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolgym.envs.served.sessions.client import OpenSession, SessionClient
from toolgym.tools.base import ToolResult
from toolgym.tools.errors import ConfigError, RemoteSessionError
from toolgym.tools.keywords import check_keywords
from toolgym.tools.schema import ToolSchema
from toolgym.tools.stateful import StatefulTool, ToolSession

SERVER_FAILED = "[The session server failed; your call is not to blame]"


class RemoteSessionTool(StatefulTool):
    """Sends `content` to a session of a session server, and returns its answer.

    A task's `create_kwargs` must have `instance_hash`. The tool's reward is that of `/compute_reward`, asked when the
    episode ends. The metrics of a call are `status` (`ok` or `session_failed`), `sids` (the session's id as a number)
    and, if the server failed, `infra_failure` and `error`.

    Args:
        config: arguments of `SessionClient`; `type` is ignored.
        tool_schema: another name or description for the model; it must keep the argument `content`.

    Raises:
        ConfigError: an option is unknown or out of range.
    """

    stays_on_loop = True
    default_schema = ToolSchema(
        name="process_action",
        description="Carry out an action in the environment, and read what comes of it.",
        parameters={
            "type": "object",
            "properties": {
                "content": {
                    "type": "string",
                    "description": "The action, such as commands in a ```bash block, or a unified diff.",
                }
            },
            "required": ["content"],
        },
    )

    def __init__(
        self, config: Mapping[str, Any] | None = None, tool_schema: ToolSchema | Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(config, tool_schema)
        options = {name: value for name, value in self.config.items() if name != "type"}  # of verl's tool files
        check_keywords(SessionClient, options)
        if "content" not in self.tool_schema.parameters.get("properties", {}):
            raise ConfigError(f"the schema of {type(self).__name__} must have the argument 'content'")
        self.client = SessionClient(options.pop("base_url", ()), **options)

    async def open(self, **create_kwargs: Any) -> ToolSession:
        if create_kwargs.keys() != {"instance_hash"}:
            raise ConfigError(
                f"the tool {self.name!r} needs create_kwargs with only 'instance_hash', got {sorted(create_kwargs)}"
            )
        return _Session(await self.client.start(create_kwargs["instance_hash"]))

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            await self.client.close()


class _Session(ToolSession):
    def __init__(self, remote: OpenSession) -> None:
        self._remote = remote
        self._ended = False

    async def execute(self, parameters: dict[str, Any], **execute_kwargs: Any) -> ToolResult:
        metrics: dict[str, Any] = {"status": "ok", "sids": int(self._remote.sid)}
        try:
            reply = await self._remote.act(parameters["content"])
        except RemoteSessionError as error:
            metrics |= {"status": "session_failed", "infra_failure": True, "error": str(error)}
            return ToolResult(SERVER_FAILED, 0.0, metrics)
        return ToolResult(reply.content, 0.0, metrics)

    async def reward(self, **calc_reward_kwargs: Any) -> float:
        await self._remote.postprocess()
        self._ended = True
        return (await self._remote.reward()).value

    async def close(self) -> None:
        if not self._ended:
            await self._remote.abandon()
