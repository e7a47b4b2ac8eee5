"""An environment for Harbor: each trial runs in a session of a toolgym sandbox.

    harbor run -p tasks/hello -a oracle -e toolgym.tools.integrations.harbor:ToolgymEnvironment
        --ek public_network=loopback --ek 'url=["http://sandbox:8080"]'

With `images`, a folder, a trial runs in the task's `docker_image`, or in the image that its Dockerfile begins with.
Without, programs see the machine's own system, read-only, and write to /tmp and to the folders of
`HarborSettings.folders`, at their absolute names. Of a Dockerfile the session takes ENV, WORKDIR and COPY, see
`toolgym.tools.integrations.dockerfile`; a task whose image would have more is refused, unless `without_image` says that
programs find it anyway. They run as the session's only user, root's commands included, which therefore install nothing.
A session reaches no network but its own, or the machine's if `public_network` is `host`.

Source: `harbor.environments.base.BaseEnvironment` and `harbor.trial`, of Harbor 0.25.0.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import pydantic
import tenacity

from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.errors import (
    ConfigError,
    SandboxBusyError,
    SandboxError,
    SandboxUnsupportedError,
    UnknownNameError,
    nearest,
)
from toolgym.tools.integrations.dockerfile import Dockerfile, read_dockerfile
from toolgym.tools.integrations.session_settings import SessionSettings
from toolgym.tools.lazy import missing_extra
from toolgym.tools.sandbox import base
from toolgym.tools.sandbox.base import ExecutionStatus, Session
from toolgym.tools.sandbox.local.images.by_name import image_file
from toolgym.tools.sandbox.options import Network

try:
    from harbor.environments.base import BaseEnvironment, ExecResult
    from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
    from harbor.environments.definition import (
        COMPOSE_FILE_NAME,
        DOCKERFILE_NAME,
        require_agent_environment_definition,
    )
    from harbor.models.trial.config import ResourceMode
    from harbor.models.trial.paths import EnvironmentPaths
except ImportError as error:
    raise missing_extra("harbor", "The environment for Harbor", error) from error

OWN_USERS = (None, "user", 1000, "1000", "root", 0, "0")
"""The commands of these run as the session's only user. Harbor itself makes folders as root."""

FOLDERS = ("/app", "/workspace", "/testbed", "/logs", "/tests", "/solution", "/installed-agent", "/runtime")
OUTPUT_BYTES = 10 << 20


class HarborSettings(SessionSettings, frozen=True):
    """Settings of `--ek name=value`, or of `environment.kwargs` of a job; a session is one trial's.

    `memory_mb` and `disk_mb` are for a task that says nothing.

    Attributes:
        public_network: what a task reaches that asks for a public network: the machine's (`host`, which a server's
            owner must have allowed), or only its own (`loopback`). None: such tasks are refused.
        images: a folder with images, in which each is looked for by its name; see `docs/task_images.md`.
        without_image: tasks run whose image would have more than the machine itself.
        folders: folders that programs can write to, beside those that the task names.
        command_timeout: seconds that a command may take for which Harbor gives no time; servers allow 3600 by default.
    """

    public_network: Literal["loopback", "host"] | None = None
    images: str | None = None
    without_image: bool = False
    folders: tuple[str, ...] = FOLDERS
    command_timeout: float = pydantic.Field(3600.0, gt=0, allow_inf_nan=False)


class ToolgymEnvironment(BaseEnvironment):
    """A session of a toolgym sandbox, as Harbor's trials use it; Harbor gives it the fields of `HarborSettings`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        values = {name: kwargs.pop(name) for name in HarborSettings.model_fields if name in kwargs}
        known = [*HarborSettings.model_fields, *inspect.signature(BaseEnvironment.__init__).parameters]
        for name in kwargs:
            if name not in known:
                settings = ", ".join(HarborSettings.model_fields)
                raise UnknownNameError(
                    f"the environment toolgym has no setting {name!r}{nearest(name, known) or '.'} Known: {settings}."
                )
        try:
            self.settings = HarborSettings(**values)
        except pydantic.ValidationError as error:
            raise ConfigError(f"the environment toolgym: {error}") from None
        self._session: Session | None = None
        self._resources = contextlib.AsyncExitStack()
        self._dockerfile, self._home = Dockerfile(), "/app"
        super().__init__(*args, **kwargs)
        self._network = self._session_network()
        if self._host_mounts:
            raise ConfigError("folders of this machine cannot be mounted into a session: leave out --mounts")

    @staticmethod
    def type() -> str:
        return "toolgym"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=True)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(memory_limit=True)

    @property
    def session(self) -> Session:
        if self._session is None:
            raise SandboxError("the environment has not been started, or was stopped")
        return self._session

    @property
    def workdir(self) -> str:
        return self.task_env_config.workdir or self._dockerfile.workdir or self._home

    @property
    def _image(self) -> str | None:
        """The `image` option of the session."""
        name = self.task_env_config.docker_image or self._dockerfile.image
        return image_file(self.settings.images, name) if self.settings.images and name not in ("", "scratch") else None

    def _validate_definition(self) -> None:
        if self.settings.images is not None and self.settings.url is not None:
            raise ConfigError("sessions on a server have no images: leave out --ek images or --ek url")
        image = self.task_env_config.docker_image
        require_agent_environment_definition(self.environment_dir, docker_image=image)
        if (self.environment_dir / COMPOSE_FILE_NAME).exists():
            raise ConfigError(f"{self.environment_dir / COMPOSE_FILE_NAME}: a session cannot be several containers")
        left_out = [f"docker_image = {image!r}"]
        if image and self._image is not None:  # it was built of the Dockerfile, which so has nothing to add
            return
        if (self.environment_dir / DOCKERFILE_NAME).exists():
            self._dockerfile = read_dockerfile(self.environment_dir / DOCKERFILE_NAME)
            left_out = self._dockerfile.left_out
        if left_out and not self.settings.without_image:
            raise ConfigError(
                f"the task needs an image, and sessions have none, or what its Dockerfile begins with, if --ek "
                f"images=FOLDER has that ({self.environment_dir}: {'; '.join(left_out[:3])}). "
                "Where programs find all that it would have on the machine itself, say --ek without_image=true"
            )

    def _session_network(self) -> Network:
        if not self._network_is_public:
            return "loopback"
        if self.settings.public_network is None:
            raise ConfigError(
                "the task asks for a public network, which for a session is the machine's own, its local services "
                "included: say --ek public_network=host to allow that, or --ek public_network=loopback to run the task "
                "without; or set network_mode = 'no-network' under [environment] in its task.toml"
            )
        return self.settings.public_network

    async def start(self, force_build: bool) -> None:
        """Open the session of the task; waits at most `build_timeout_sec` for other trials to make room."""
        image = self.task_env_config.docker_image or self._dockerfile.image
        if self._image is None:
            self.logger.info(f"Programs see the system of the sandbox's machine, and not the image {image!r}")
        try:
            await self._open()
            if self._image is not None:
                self._home = (await self.session.exec("pwd", timeout=60)).stdout.removesuffix("\n")
            paths = EnvironmentPaths.for_os(self.os)
            folders = (self.workdir, *map(str, (paths.agent_dir, paths.verifier_dir, paths.artifacts_dir)))
            for folder in (*folders, *self._mount_targets(writable_only=True)):
                await self.session.mkdir(folder, parents=True, exist_ok=True)
            for copy in self._dockerfile.copies:
                for source in copy.sources:
                    await self._copy(source, copy.target, copy.into)
            await self._upload_environment_dir_after_start()
        except BaseException:
            await self._close()
            raise

    async def _open(self) -> None:
        disk_mb = self._effective_storage_mb or self.settings.disk_mb
        may_use_host = self.settings.public_network == "host"
        folders = [] if self._image is not None else [*self.settings.folders, self.workdir]
        folders += self._mount_targets()
        folders += [copy.folder for copy in self._dockerfile.copies]
        if self.task_env_config.skills_dir:
            folders.append(self.task_env_config.skills_dir)
        handle = self.settings.open(require="namespaces", output_bytes=OUTPUT_BYTES, may_use_host=may_use_host)
        sandbox = await self._resources.enter_async_context(handle)
        waiting = tenacity.AsyncRetrying(  # until other trials end
            retry=tenacity.retry_if_exception_type(SandboxBusyError),
            wait=tenacity.wait_random_exponential(multiplier=0.5, max=10.0),
            stop=tenacity.stop_after_delay(self.task_env_config.build_timeout_sec),
            reraise=True,
        )
        self._session = await waiting(
            sandbox.session,
            env={**self._dockerfile.env, **self._startup_env()},
            memory_mb=self._resource_limit_value("memory", auto_mode=ResourceMode.LIMIT) or self.settings.memory_mb,
            file_mb=disk_mb,
            disk_mb=disk_mb,
            inodes=self.settings.inodes,
            network=self._network,
            folders=_outermost(folders),
            image=await in_thread(lambda: self._image),
            hint="",
        )
        self._resources.push_async_callback(self.session.close)

    async def _copy(self, source: Path, target: str, into: bool) -> None:
        if source.is_dir():
            await self.upload_dir(source, target)
            return
        if not into and await self.session.exists(target):
            into = (await self.session.stat(target)).kind == "folder"
        await self.upload_file(source, f"{target.rstrip('/')}/{source.name}" if into else target)

    async def stop(self, delete: bool) -> None:
        if not delete:
            self.logger.warning("A session ends with its trial: it cannot be kept (--no-delete)")
        await self._close()

    async def _close(self) -> None:
        self._session = None
        await self._resources.aclose()

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        source, target = Path(source_path), self._inside(target_path)
        await self.session.write_file(target, await in_thread(source.read_bytes))
        mode = source.stat().st_mode & 0o777
        if mode & 0o111:
            await self.session.exec(["chmod", f"{mode:o}", target])

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self.session.upload_folder(source_dir, self._inside(target_dir))

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        data = await self.session.read_file(self._inside(source_path))
        target = Path(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        await in_thread(target.write_bytes, data)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        most = (self._effective_storage_mb or self.settings.disk_mb) << 20
        await self.session.download_folder(self._inside(source_dir), target_dir, max_bytes=most)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """See `BaseEnvironment.exec`. A command that takes too long raises `RuntimeError`, as in Harbor's own."""
        user = self._resolve_user(user)
        if user not in OWN_USERS:
            raise SandboxUnsupportedError(f"programs of a session run as its only user, 'user'; there is no {user!r}")
        seconds = float(timeout_sec or self.settings.command_timeout)
        cwd = self._inside(cwd) if cwd else self.workdir
        done = await self.session.exec(command, cwd=cwd, env=self._merge_env(env), timeout=seconds)
        return _result(done, seconds)

    def _inside(self, path: str) -> str:
        return str(PurePosixPath(self.workdir) / path)


def _outermost(folders: Iterable[str]) -> list[str]:
    """Return the folders without those that lie in another one or where a session can write anyway, and without /."""
    kept = ["/tmp", "/dev/shm"]
    for folder in sorted({str(PurePosixPath(folder)) for folder in folders} - {"/"}):
        if not any(f"{folder}/".startswith(f"{other}/") for other in kept):
            kept.append(folder)
    return kept[2:]


def _result(done: base.ExecResult, seconds: float) -> ExecResult:
    if done.status is ExecutionStatus.TIMEOUT:
        raise RuntimeError(f"Command timed out after {seconds:g} seconds")
    if done.status is ExecutionStatus.SANDBOX_ERROR:
        raise SandboxError(done.message)
    stderr = "\n".join(text for text in (done.stderr, done.message) if text)
    return ExecResult(stdout=done.stdout, stderr=stderr, return_code=done.shell_code)
