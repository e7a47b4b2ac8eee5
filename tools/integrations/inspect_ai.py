"""A sandbox provider for Inspect AI: `sandbox="toolgym"` in a task runs each sample in a session of its own.

    Task(dataset, sandbox="toolgym")
    Task(dataset, sandbox=("toolgym", InspectConfig(disk_mb=2048, network="loopback")))
    Task(dataset, sandbox=("toolgym", "settings.yaml"))    # the fields of InspectConfig

Inspect finds it by the entry point `toolgym` in the group `inspect_ai`. Programs run as the session's only user, so
there is no `user="root"`. Inspect's own tools in the sandbox (`exec_remote`) need a `/var/tmp` that programs can write
to, which a session does not have.

Source: `inspect_ai.util.SandboxEnvironment` and its `self_check` suite, of Inspect AI 0.3.285.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic

from toolgym.tools.errors import ConfigError, SandboxError, SandboxFileError
from toolgym.tools.integrations.session_settings import SessionSettings
from toolgym.tools.lazy import missing_extra
from toolgym.tools.sandbox.base import ExecResult, ExecutionStatus, Sandbox, Session
from toolgym.tools.sandbox.options import Network
from toolgym.tools.yaml_file import read_yaml

try:
    from inspect_ai.util import ExecResult as InspectResult
    from inspect_ai.util import (
        OutputLimitExceededError,
        SandboxEnvironment,
        SandboxEnvironmentLimits,
        SandboxUnavailableError,
        SandboxUserUnsupportedError,
        sandboxenv,
    )
except ImportError as error:
    raise missing_extra("inspect", "The provider for Inspect AI", error) from error

LONGEST = 3600.0

OWN_USERS = ("user", "1000")


class InspectConfig(SessionSettings, frozen=True):
    """Settings of the sandboxes of a task; a session is one sample's.

    Attributes:
        require: weakest isolation level that is acceptable, on this machine.
        network: what programs reach. `host` must have been allowed by a server's owner.
        env: environment variables of each sample's programs.
        file_mb: size of one file, in MiB.
    """

    require: str | None = None
    network: Network = "off"
    env: Mapping[str, str] = pydantic.Field(default_factory=dict)
    file_mb: int = 128

    @classmethod
    def of(cls, config: object) -> InspectConfig:
        """Return the settings that a task gives: such an object, the name of a YAML file with its fields, or None."""
        if config is None or isinstance(config, cls):
            return config or cls()
        if not isinstance(config, str):
            raise ConfigError(f"the toolgym sandbox is configured by an InspectConfig or a YAML file, got {config!r}")
        try:
            return cls.model_validate(read_yaml("file of settings", Path(config)) or {})
        except pydantic.ValidationError as error:
            raise ConfigError(f"{config}: {error}") from None

    def sandbox(self) -> Sandbox:
        most = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        return self.open(require=self.require, output_bytes=most, may_use_host=self.network == "host")


@sandboxenv(name="toolgym")
class ToolgymSandboxEnvironment(SandboxEnvironment):
    """A session of a toolgym sandbox, as Inspect's tools use it; the sandbox is closed with it. Made by Inspect."""

    def __init__(self, sandbox: Sandbox, session: Session) -> None:
        super().__init__()
        self._sandbox, self.session = sandbox, session

    @classmethod
    def config_files(cls) -> list[str]:
        return ["toolgym-sandbox.yaml"]

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> pydantic.BaseModel:
        return InspectConfig(**config)

    @classmethod
    async def task_init(cls, task_name: str, config: Any) -> None:
        """Find out now whether such a sandbox can be had here; each sample opens its own."""
        async with InspectConfig.of(config).sandbox():
            pass

    @classmethod
    async def sample_init(cls, task_name: str, config: Any, metadata: dict[str, str]) -> dict[str, SandboxEnvironment]:
        settings = InspectConfig.of(config)
        sandbox = settings.sandbox()
        try:
            session = await sandbox.session(
                env=settings.env,
                memory_mb=settings.memory_mb,
                file_mb=settings.file_mb,
                disk_mb=settings.disk_mb,
                inodes=settings.inodes,
                network=settings.network,
            )
        except BaseException:
            await sandbox.close()
            raise
        return {"default": cls(sandbox, session)}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Any, environments: dict[str, SandboxEnvironment], interrupted: bool
    ) -> None:
        for environment in environments.values():
            await environment.as_type(cls).close()

    async def close(self) -> None:
        try:
            await self.session.close()
        finally:
            await self._sandbox.close()

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> InspectResult[str]:
        """See `SandboxEnvironment.exec`. A command that takes too long is not run again."""
        if user is not None and user not in OWN_USERS:
            raise SandboxUserUnsupportedError(f"programs of a session run as its only user, 'user', not as {user!r}")
        seconds = LONGEST if timeout is None else float(timeout)
        try:
            done = await self.session.exec(cmd, stdin=input or b"", cwd=cwd, env=env, timeout=seconds)
        except SandboxError as error:
            raise SandboxUnavailableError(str(error)) from error
        return _result(cmd, done, seconds)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        await self.session.write_file(file, contents.encode() if isinstance(contents, str) else contents)

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        too_large = OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        try:
            data = await self.session.read_file(file)
        except SandboxFileError:
            raise
        except SandboxError as error:  # larger than the session's own limit, perhaps
            if (await self.session.stat(file)).size > SandboxEnvironmentLimits.MAX_READ_FILE_SIZE:
                raise too_large from error
            raise
        if len(data) > SandboxEnvironmentLimits.MAX_READ_FILE_SIZE:
            raise too_large
        return data.decode() if text else data


def _result(cmd: list[str], done: ExecResult, seconds: float) -> InspectResult[str]:
    if done.status is ExecutionStatus.TIMEOUT:
        raise TimeoutError(f"the command took longer than {seconds:g} s: {' '.join(cmd)[:200]}")
    if done.status is ExecutionStatus.SANDBOX_ERROR:
        raise SandboxUnavailableError(done.message)
    if done.status is ExecutionStatus.OUTPUT_LIMIT or done.stdout_truncated or done.stderr_truncated:
        longest = max(done.stdout, done.stderr, key=len)
        raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, longest)
    if done.return_code == 126 and "Permission denied" in done.stderr:
        raise PermissionError(done.stderr.strip())
    return InspectResult(done.ok, done.shell_code, done.stdout, done.stderr or done.message)
