"""`CodeInterpreterTool`: the model writes a program, and reads what it printed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pydantic

from toolgym.tools.base import BaseTool, ToolResult
from toolgym.tools.errors import ConfigError, nearest
from toolgym.tools.rate_limit import LocalRateLimiter, RateLimiter, global_limiter
from toolgym.tools.sandbox.base import ExecutionResult, ExecutionStatus, Sandbox
from toolgym.tools.sandbox.fusion import FusionSandbox
from toolgym.tools.sandbox.process import ProcessSandbox
from toolgym.tools.schema import ToolSchema

GLOBAL_LIMIT_NAME = "code_interpreter"
"""Name under which all code interpreters of a process share their rate limit."""

ERROR_LINES = 12
"""How many of the last lines of standard error the model sees."""


class CodeInterpreterConfig(pydantic.BaseModel):
    """Options of `CodeInterpreterTool`. The names are those of verl's sandbox tool."""

    model_config = pydantic.ConfigDict(extra="forbid")

    num_workers: int = pydantic.Field(default=10, ge=1)
    """Executions that this tool object runs at once."""
    rate_limit: int = pydantic.Field(default=10, ge=1)
    """Executions that all code interpreters of the process run at once, first come, first served."""
    enable_global_rate_limit: bool = True
    """Whether `rate_limit` applies."""
    default_timeout: float = pydantic.Field(default=30.0, gt=0)
    """Wall seconds for one execution; time spent waiting for a free place does not count."""
    default_language: str = "python"
    """Language of the code."""
    sandbox_fusion_url: str | None = None
    """Run on this server, which speaks SandboxFusion's `/run_code`, instead of on this machine."""
    memory_limit_mb: int = -1
    """Memory limit in MiB that a server is asked to set; -1 leaves it to the server. Needs `sandbox_fusion_url`."""
    max_output_chars: int = pydantic.Field(default=4096, ge=64)
    """Characters of output that the model sees of one execution; the middle of a longer one is cut."""
    type: str = "native"
    """Kept so that verl's tool files load; only "native" exists."""


class CodeInterpreterTool(BaseTool):
    """Runs the `code` that the model sends and answers with what it printed, and with what went wrong.

    Args:
        config: see `CodeInterpreterConfig`.
        tool_schema: another name or description for the model; it must keep the argument `code`.
        sandbox: run on this sandbox instead; it stays the caller's to close.

    Raises:
        ConfigError: an option is unknown or out of range, or the local sandbox lacks the language; names it.
    """

    default_schema = ToolSchema(
        name="code_interpreter",
        description="Run a Python program and return what it prints.",
        parameters={
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The program to run."}},
            "required": ["code"],
        },
    )

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        tool_schema: ToolSchema | Mapping[str, Any] | None = None,
        *,
        sandbox: Sandbox | None = None,
    ) -> None:
        super().__init__(config, tool_schema)
        self.options = _options(self.config)
        if "code" not in self.tool_schema.parameters.get("properties", {}):
            raise ConfigError(f"the schema of {type(self).__name__} must have the argument 'code'")
        if self.options.memory_limit_mb != -1 and self.options.sandbox_fusion_url is None:
            raise ConfigError("memory_limit_mb is only understood by a server; set sandbox_fusion_url, or leave it out")
        self._owns_sandbox = sandbox is None
        self.sandbox = sandbox if sandbox is not None else _sandbox(self.options)
        self._workers: RateLimiter = LocalRateLimiter(self.options.num_workers)
        self._limiter: RateLimiter | None = (
            global_limiter(GLOBAL_LIMIT_NAME, self.options.rate_limit)
            if self.options.enable_global_rate_limit
            else None
        )

    async def execute(self, instance_id: str, parameters: dict[str, Any], **execute_kwargs: Any) -> ToolResult:
        """Run `parameters["code"]`.

        Args:
            instance_id: the episode.
            parameters: `{"code": str}`.
            execute_kwargs: `timeout` (seconds) overrides `default_timeout` for this task; `stdin` (str) is what the
                program can read.

        Returns:
            Text for the model, reward 0, and the metrics `status`, `return_code`, `run_seconds`, `queue_seconds`
            and, when the sandbox failed, `infra_failure`.
        """
        timeout = float(execute_kwargs.get("timeout", self.options.default_timeout))
        stdin = str(execute_kwargs.get("stdin", ""))
        asked = time.monotonic()
        async with self._workers.permit():
            if self._limiter is None:
                queued, result = await self._run(parameters["code"], timeout, stdin, asked)
            else:
                async with self._limiter.permit():
                    queued, result = await self._run(parameters["code"], timeout, stdin, asked)
        metrics: dict[str, Any] = {
            "status": result.status.value,
            "return_code": result.return_code,
            "run_seconds": result.duration,
            "queue_seconds": queued,
        }
        if result.status is ExecutionStatus.SANDBOX_ERROR:
            metrics["infra_failure"] = True
        return ToolResult(render_result(result, timeout, self.options.max_output_chars), 0.0, metrics)

    async def close(self) -> None:
        if self._owns_sandbox:
            await self.sandbox.close()

    async def _run(self, code: str, timeout: float, stdin: str, asked: float) -> tuple[float, ExecutionResult]:
        queued = time.monotonic() - asked
        language = self.options.default_language
        return queued, await self.sandbox.run(code, timeout=timeout, language=language, stdin=stdin)


def render_result(result: ExecutionResult, timeout: float, max_chars: int = 4096) -> str:
    """Say what came of an execution, for a model to read.

    Standard output first; then the last lines of standard error where the program failed (all of it, within the
    same limit, where it only warned); then, in brackets, how it ended when it did not end well.

    Args:
        result: the execution.
        timeout: the deadline in seconds that the text names.
        max_chars: longer output is cut in the middle, and says so.
    """
    if result.status is ExecutionStatus.SANDBOX_ERROR:
        return f"[The sandbox failed; your program is not to blame: {result.message}]"
    parts = []
    if result.stdout:
        parts.append(_cut(result.stdout.removesuffix("\n"), max_chars))
    if result.stderr.strip():
        lines = result.stderr.rstrip().split("\n")
        hidden = len(lines) - ERROR_LINES
        if hidden > 0:
            lines = [f"... [{hidden} lines of stderr cut] ...", *lines[-ERROR_LINES:]]
        parts.append(_cut("\n".join(lines), max_chars))
    ending = {
        ExecutionStatus.TIMEOUT: f"[Timed out: the program was stopped after {timeout:g} seconds]",
        ExecutionStatus.OUTPUT_LIMIT: "[Stopped: the program printed too much]",
        ExecutionStatus.KILLED: f"[The program was killed by signal {-(result.return_code or 0)}]",
        ExecutionStatus.ERROR: f"[The program ended with exit code {result.return_code}]",
    }.get(result.status)
    if ending:
        parts.append(ending)
    return "\n".join(parts) if parts else "[The program printed nothing]"


def _cut(text: str, max_chars: int) -> str:
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]}\n... [{len(text) - 2 * half} characters cut] ...\n{text[-half:]}"


def _options(config: Mapping[str, Any]) -> CodeInterpreterConfig:
    known = CodeInterpreterConfig.model_fields
    for key in config:
        if key not in known:
            raise ConfigError(
                f"code interpreter: unknown option {key!r}{nearest(key, known) or '.'} Known: {', '.join(known)}."
            )
    try:
        return CodeInterpreterConfig.model_validate(dict(config))
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(f"code interpreter: option {place!r}: {first['msg']} (got {first['input']!r})") from error


def _sandbox(options: CodeInterpreterConfig) -> Sandbox:
    if options.sandbox_fusion_url:
        return FusionSandbox(options.sandbox_fusion_url, memory_limit_mb=options.memory_limit_mb)
    ProcessSandbox.check_language(options.default_language)
    return ProcessSandbox()
