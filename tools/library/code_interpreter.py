"""`CodeInterpreterTool`: the model writes a program, and reads what it printed.

Where the programs run is configuration alone:

```yaml
config: {}                                                # this machine
config: {sandbox_url: "http://10.0.0.7:8080"}             # a server: ours, or one with SandboxFusion's API
config: {sandbox_urls: ["http://a:8080", "http://b:8080"], sandbox_token: "..."}
config: {sandbox_fusion_url: "http://c:8080/run_code"}    # SandboxFusion's /run_code and nothing else
```
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pydantic

from toolgym.tools.base import ToolResult
from toolgym.tools.concurrency.rate_limit import LocalRateLimiter, RateLimiter
from toolgym.tools.concurrency.run_limits import LimitScope, hold_permits, named_limiter
from toolgym.tools.errors import ConfigError, SandboxError, SandboxUnsupportedError
from toolgym.tools.library.code_input import clean_code
from toolgym.tools.library.description import describe_limits, describe_packages, join_sentences
from toolgym.tools.library.outcome import ENDINGS, render_cell, render_result
from toolgym.tools.library.sandbox_tool import SandboxTool, SandboxToolSession, begun_session
from toolgym.tools.message import ImagePart, image_part
from toolgym.tools.sandbox.base import CellResult, ExecutionStatus, Sandbox, Session
from toolgym.tools.sandbox.facts import SandboxFacts
from toolgym.tools.sandbox.open import SandboxOptions
from toolgym.tools.sandbox.remote.sandbox import RemoteSandbox
from toolgym.tools.sandbox.shared import SharedSandbox
from toolgym.tools.schema import ToolSchema
from toolgym.tools.sessions.episode_session import EpisodeSession
from toolgym.tools.sessions.session_setup import SETUP_KWARGS, SessionSetup
from toolgym.tools.stateful import ToolSession

_log = logging.getLogger("toolgym.tools")

GLOBAL_LIMIT_NAME = "code_interpreter"

SANDBOX_FAILED = ENDINGS[ExecutionStatus.SANDBOX_ERROR].format(noun="program")
"""The reason, with its hosts and paths, is in the call's metrics."""

IMAGE_TYPES = ("image/png", "image/jpeg")


class CodeInterpreterConfig(SandboxOptions):
    """Options of `CodeInterpreterTool`. The names are those of verl's sandbox tool."""

    rate_limit: int | None = pydantic.Field(default=None, ge=1)
    """Executions that all code interpreters of the process run at once, first come, first served. Default: likewise."""
    enable_global_rate_limit: bool = True
    """Whether `rate_limit` applies, if it is given."""
    rate_limit_scope: LimitScope = "process"
    """`rate_limit` counts the executions of the `process`, or, with `cluster`, of all processes of the job on the Ray
    cluster that the process is connected to."""
    default_timeout: float = pydantic.Field(default=30.0, gt=0)
    """Wall seconds for one execution; time spent waiting for a free place does not count."""
    stateful: bool | None = None
    """Whether variables, imports and files stay from call to call of an episode. Default: if the sandbox has sessions
    and the language is Python; the log says once that a server has none. With true, one that has none is refused."""
    max_output_chars: int = pydantic.Field(default=4096, ge=64)
    """Characters of output and errors that the model sees of one execution; of a longer one, the parts that help the
    least are cut."""
    images: bool = False
    """Whether the model sees the images that a cell shows, such as plots, beside its output. It must be able to: the
    renderer of one that takes no images refuses them. Only a session shows any."""
    describe: bool = True
    """Whether the description that the model reads states what holds: what is kept, packages, limits and network. With
    false it is that of `default_schema`, for policies that were trained with it."""
    type: str = "native"
    """Kept so that verl's tool files load; only "native" exists."""


class _Interpreter(SandboxToolSession):
    def __init__(self, tool: CodeInterpreterTool, session: EpisodeSession) -> None:
        super().__init__(session)
        self._tool = tool

    async def execute(self, parameters: dict[str, Any], **execute_kwargs: Any) -> ToolResult:
        options, sandbox = self._tool.options, self._tool.sandbox
        timeout = float(execute_kwargs.get("timeout", options.default_timeout))
        stdin = str(execute_kwargs.get("stdin", ""))
        code = clean_code(parameters["code"], options.default_language)
        facts = self._tool.facts
        most = options.max_output_chars
        return_code: int | None = None
        failure = ""
        images: list[ImagePart] = []
        async with hold_permits(self._tool.limiters) as queued:
            try:
                if await self._tool.has_sessions() and not stdin:
                    session, lost = await self._session.get()
                    cell = await session.run_cell(code, timeout=timeout)
                    status, seconds, return_code = cell.status, cell.duration, cell.return_code
                    text = render_cell(cell, timeout, most, code=code, facts=facts)
                    failure = cell.message
                    images = shown_images(cell) if options.images else []
                    if lost:
                        text = f"[The session was lost before; variables and files of earlier calls are gone]\n{text}"
                else:
                    run = await sandbox.run(
                        code,
                        language=options.default_language,
                        timeout=timeout,
                        memory_mb=options.memory_limit_mb if options.memory_limit_mb > 0 else None,
                        stdin=stdin,
                        files=self._session.setup.files,
                        env=self._session.setup.env,
                    )
                    status, seconds = run.status, run.duration
                    text = render_result(run, timeout, most, code=code, facts=facts)
                    return_code, failure = run.return_code, run.message
            except SandboxError as error:
                status, seconds, text = ExecutionStatus.SANDBOX_ERROR, 0.0, SANDBOX_FAILED
                failure = f"{type(error).__name__}: {error}"
        metrics: dict[str, Any] = {
            "status": status.value,
            "return_code": return_code,
            "run_seconds": seconds,
            "queue_seconds": queued(),
        }
        if status is ExecutionStatus.SANDBOX_ERROR:
            metrics |= {"infra_failure": True, "error": failure}
        return ToolResult(text, 0.0, metrics, images=images)

    async def sandbox_session(self) -> Session:
        if not await self._tool.has_sessions():
            raise SandboxUnsupportedError("each program ran by itself; a session needs a stateful code interpreter")
        return await super().sandbox_session()

    async def fork(self) -> ToolSession:
        return _Interpreter(self._tool, await self._session.fork())


class CodeInterpreterTool(SandboxTool[CodeInterpreterConfig]):
    """Runs the `code` that the model sends and answers with what it printed, and with what went wrong.

    A task's `execute_kwargs` may have `timeout` (seconds; overrides `default_timeout`) and `stdin` (str; what the
    program can read, in a run of its own). The metrics of a call are `status`, `return_code`, `run_seconds`,
    `queue_seconds` and, if the sandbox failed, `infra_failure` and `error`. A fork has the same variables and files.
    Options are those of `CodeInterpreterConfig`; see `SandboxTool`.

    Attributes:
        limiters: each execution needs a permit of them, in this order, before the sandbox admits it.
    """

    label = "code interpreter"
    task_kwargs: Mapping[str, Collection[str]] = {
        "create_kwargs": SETUP_KWARGS,
        "execute_kwargs": ("timeout", "stdin"),
        "calc_reward_kwargs": (),
    }
    options_type = CodeInterpreterConfig
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
        super().__init__(config, tool_schema, sandbox=sandbox)
        has_sessions = self.sandbox.sessions_known  # None: its servers must be asked
        if self.options.stateful and has_sessions is False:
            raise ConfigError(f"{type(self.sandbox).__name__} has no sessions; set stateful to false, or leave it out")
        wanted = self.options.stateful is not False and self.options.default_language == "python"
        self.stateful: bool | None = has_sessions if wanted else False
        workers = self.options.num_workers
        shared = self.options.rate_limit if self.options.enable_global_rate_limit else None
        self.limiters: list[RateLimiter] = []
        scope = self.options.rate_limit_scope
        # A limit of this process that is not above the workers says it all.
        if workers is not None and (shared is None or scope != "process" or workers < shared):
            self.limiters.append(LocalRateLimiter(workers))
        if shared is not None:
            self.limiters.append(named_limiter(GLOBAL_LIMIT_NAME, shared, scope))
        if self.options.describe:
            self._set_description()

    @property
    def facts(self) -> SandboxFacts:
        """Facts about the sandbox, with the tool's own memory limit."""
        facts, memory = self.sandbox.facts, self.options.memory_limit_mb
        if facts.limits is None or memory <= 0:
            return facts
        return replace(facts, limits=replace(facts.limits, memory_mb=memory))

    def describe(self) -> str:
        """Describe what holds. Facts of a server that was not asked yet are left out, and so is whether it has
        sessions, unless `stateful` is set: the description does not change later."""
        options, facts = self.options, self.sandbox.facts
        memory = options.memory_limit_mb if options.memory_limit_mb > 0 else None
        limits = describe_limits(facts, options.default_timeout, memory_mb=memory)
        if options.default_language != "python":
            return join_sentences(
                f"Run a program in the language {options.default_language} and return what it prints.",
                "Each call starts from scratch.",
                limits,
            )
        if self.stateful or options.stateful:
            return join_sentences(
                "Run Python code and return what it prints and the value of its last line.",
                "Variables, imports and files are kept from call to call.",
                describe_packages(facts),
                limits,
            )
        return join_sentences(
            "Run a Python program and return what it prints.",
            "Each call starts from scratch." if self.stateful is False else "",
            describe_packages(facts),
            limits,
        )

    async def open(self, **create_kwargs: Any) -> ToolSession:
        """Begin an episode. Raises `ConfigError` if the configured address leads to no sandbox server, the server does
        not let us in, or it has no sessions and `stateful` is true. (One that cannot be reached now is an
        infrastructure failure of the calls that need it.)"""
        try:
            await self.has_sessions()
        except SandboxError as error:
            _log.warning("%s", error)
        if isinstance(self.sandbox, SharedSandbox):
            self.sandbox.warm()  # while the model writes its first turn
        setup = SessionSetup.of(create_kwargs, f"the tool {self.name!r}")
        if self.stateful is False:
            _check_without_session(self.name, setup)
            return _Interpreter(self, EpisodeSession(self.sandbox, setup=setup))
        return _Interpreter(self, await begun_session(EpisodeSession(self.sandbox, setup=setup)))

    async def close(self) -> None:
        self.limiters = []  # another tool may set another limit of the process now
        await super().close()

    def _check_options(self) -> None:
        if self.options.stateful and self.options.default_language != "python":
            raise ConfigError("only Python has sessions; set stateful to false, or default_language to python")
        if self.options.images and (self.options.stateful is False or self.options.default_language != "python"):
            raise ConfigError(
                "images needs sessions of Python: set stateful to true or leave it out, or images to false"
            )

    async def has_sessions(self) -> bool:
        """A server is asked until it answers once."""
        if self.stateful is None:
            has_sessions = await self.sandbox.has_sessions()
            where = ", ".join(self.sandbox.urls) if isinstance(self.sandbox, RemoteSandbox) else repr(self.sandbox)
            if not has_sessions and self.options.stateful:
                raise ConfigError(
                    f"{where}: SandboxFusion's API has no sessions; set stateful to false, or leave it out, or use "
                    "`toolgym serve sandbox`"
                )
            if not has_sessions and self.stateful is None:
                _log.info("%s: SandboxFusion's API has no sessions, so every call is a clean start", where)
            self.stateful = has_sessions
        return self.stateful


def _check_without_session(name: str, setup: SessionSetup) -> None:
    """Raise `ConfigError` if a setup has what only a session can have: each program runs separately."""
    lost = sorted({*setup.model_fields_set} - {"files", "env"})
    if lost:
        raise ConfigError(
            f"create_kwargs of the tool {name!r} have {lost[0]!r}, which needs a session, and each program runs "
            "separately: use a stateful code interpreter, or leave it out"
        )


def shown_images(result: CellResult) -> list[ImagePart]:
    """Return the images that a cell showed, in order; of a value that has several forms, one. The data is the
    program's own: whether it can be read is for the env's `ImageLimits` to say."""
    images = []
    for form in result.display:
        kind = next((kind for kind in IMAGE_TYPES if isinstance(form.get(kind), str)), None)
        if kind is not None:
            images.append(image_part(f"data:{kind};base64,{''.join(form[kind].split())}"))
    return images
