"""The environment for Harbor does what Harbor's trials ask of one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat

import pytest

pytest.importorskip("harbor", reason="needs harbor, which is not a dependency, and Python 3.12")

from harbor.environments.factory import EnvironmentFactory
from harbor.models.task.config import EnvironmentConfig, NetworkPolicy
from harbor.models.trial.config import AgentConfig, TaskConfig, TrialConfig
from harbor.models.trial.config import EnvironmentConfig as TrialEnvironmentConfig
from harbor.models.trial.paths import TrialPaths
from harbor.trial.trial import Trial

from tests.tools.sandbox.image_maker import docker_save, shell_layer
from tests.tools.sandbox.served import serving
from toolgym.tools.errors import ConfigError, SandboxBusyError, SandboxError, SandboxUnsupportedError, UnknownNameError
from toolgym.tools.sandbox.local import LocalSandbox, probe
from toolgym.tools.sandbox.local.host import sandbox as local_sandbox
from toolgym.tools.sandbox.local.images import cache

pytestmark = pytest.mark.skipif("namespaces" not in probe()["levels"], reason="needs the level namespaces")

IMPORT_PATH = "toolgym.tools.integrations.harbor:ToolgymEnvironment"
DOCKERFILE = "FROM debian:12\nENV WORD=seven\nWORKDIR /srv/work\nCOPY data data\nCOPY run.sh /app/\n"
TASK = """schema_version = "1.3"
[task]
name = "toolgym/sum"
[agent]
timeout_sec = {seconds}
[environment]
network_mode = "no-network"
storage_mb = 64
"""
SOLUTION = "#!/bin/sh\nawk '{s += $1} END {print s}' data/numbers > sum\n"
TEST = '#!/bin/sh\n[ "$(cat /srv/work/sum)" = 28 ]\necho $((! $?)) > /logs/verifier/reward.txt\n'


@pytest.fixture
def task(tmp_path):
    """A task folder. Its test wants the sum of the numbers in a file."""
    root = tmp_path / "task"
    files = {
        "task.toml": TASK.format(seconds=200),
        "instruction.md": "Write the sum of data/numbers to sum.",
        "environment/Dockerfile": DOCKERFILE,
        "environment/data/numbers": "".join(f"{n}\n" for n in range(1, 8)),
        "environment/run.sh": "#!/bin/sh\necho ran\n",
        "solution/solve.sh": SOLUTION,
        "tests/test.sh": TEST,
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "environment/run.sh").chmod(0o755)
    return root


def make(task, network="no-network", kwargs=None, config=None, **rest):
    """Return an environment, made as Harbor does it."""
    paths = TrialPaths(trial_dir=task.parent / "trial")
    paths.mkdir()
    return EnvironmentFactory.create_environment_from_config(
        TrialEnvironmentConfig(import_path=IMPORT_PATH, kwargs=kwargs or {}),
        environment_dir=task / "environment",
        environment_name="sum",
        session_id="sum__1__env",
        trial_paths=paths,
        task_env_config=EnvironmentConfig(**{"storage_mb": 64, **(config or {})}),
        network_policy=NetworkPolicy(network_mode=network),
        **rest,
    )


@contextlib.asynccontextmanager
async def started(task, **options):
    made = make(task, **options)
    try:
        await made.start(force_build=False)
        yield made
    finally:
        await made.stop(delete=True)


async def run_trial(task, **kwargs):
    """Return the result of a trial in which the task's own solution is the agent."""
    config = TrialConfig(
        task=TaskConfig(path=task),
        trials_dir=task.parent / "trials",
        agent=AgentConfig(name="oracle"),
        environment=TrialEnvironmentConfig(import_path=IMPORT_PATH, kwargs=kwargs),
    )
    return await (await Trial.create(config)).run()


# ------------------------------------------------------------------ trials


async def test_a_right_and_a_wrong_solution(task):
    done = await run_trial(task)
    assert (done.exception_info, done.verifier_result.rewards) == (None, {"reward": 1})
    (task / "solution/solve.sh").write_text("#!/bin/sh\necho 27 > sum\n")
    done = await run_trial(task)
    assert (done.exception_info, done.verifier_result.rewards) == (None, {"reward": 0})


async def test_a_solution_that_hangs_runs_out_of_time_and_is_verified(task):
    (task / "task.toml").write_text(TASK.format(seconds=5))
    (task / "solution/solve.sh").write_text(f"{SOLUTION}\nsleep 1000\n")
    done = await run_trial(task)
    assert done.exception_info.exception_type == "AgentTimeoutError"
    assert done.verifier_result.rewards == {"reward": 1}


async def test_a_trial_on_a_server(task):
    async with LocalSandbox(preload=()) as local, serving(local) as service:
        done = await run_trial(task, url=service.url)
    assert (done.exception_info, done.verifier_result.rewards) == (None, {"reward": 1})


async def test_a_server_without_namespaces_is_refused(task):
    async with LocalSandbox(level="landlock", preload=()) as local, serving(local) as service:
        with pytest.raises(SandboxUnsupportedError, match="'namespaces'"):
            async with started(task, kwargs={"url": service.url}):
                pass


# ------------------------------------------------------------------ the calls of an environment


async def test_what_the_task_says_is_there(task):
    config = {"env": {"GIVEN": "1"}, "skills_dir": "/skills/own"}
    async with started(task, config=config, persistent_env={"TRIAL": "2"}) as made:
        said = await made.exec(
            "pwd; echo $WORD $GIVEN $TRIAL $MORE; tail -1 data/numbers; /app/run.sh", env={"MORE": "3"}
        )
        assert (said.stdout, said.stderr, said.return_code) == ("/srv/work\nseven 1 2 3\n7\nran\n", "", 0)
        assert await made.is_dir("/logs/verifier")
        assert await made.is_file("/app/run.sh")
        done = await made.exec("touch /app/a /tests/a /solution/a /skills/own/a /tmp/a; touch /usr/a")
        assert (done.return_code, done.stderr) == (1, "touch: cannot touch '/usr/a': Read-only file system\n")
        assert (await made.exec("head -c 100m /dev/zero > big")).return_code != 0  # beyond storage_mb


async def test_commands(task):
    async with started(task) as made:
        assert (await made.exec("pwd", cwd="data")).stdout == "/srv/work/data\n"
        assert (await made.exec("exit 3")).return_code == 3
        assert (await made.exec("kill -9 $$")).return_code == 137
        assert (await made.exec("no-such-program")).return_code == 127
        for user in ("root", 0, "user", 1000):
            assert (await made.exec("id -un", user=user)).stdout == "user\n"
        with pytest.raises(SandboxUnsupportedError, match="'agent'"):
            await made.exec("true", user="agent")
        with made.with_default_user("agent"), pytest.raises(SandboxUnsupportedError, match="'agent'"):
            await made.exec("true")
        with made.scoped_exec_env({"A": "scoped"}):
            assert (await made.exec("echo $A", env={"A": "own"})).stdout == "scoped\n"


async def test_a_command_that_hangs_is_killed_with_all_that_it_started(task):
    async with started(task) as made:
        with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
            await made.exec("sleep 1001 & sleep 1001", timeout_sec=1)
        running = asyncio.ensure_future(made.exec("sleep 1001 & touch here; sleep 1001"))
        while not await made.session.exists("/srv/work/here"):
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait({running})
        left = "for n in /proc/[0-9]*; do tr '\\0' ' ' < $n/cmdline; done 2>/dev/null | grep -c '^sleep'"
        for _ in range(3000):
            if (await made.exec(left)).stdout == "0\n":
                break
            await asyncio.sleep(0.01)
        else:
            pytest.fail("the programs live on")


async def test_files_go_there_and_back(task, tmp_path):
    here, back = tmp_path / "here", tmp_path / "back"
    (here / "sub").mkdir(parents=True)
    (here / "sub/data").write_bytes(bytes(range(256)))
    (here / "tool.sh").write_text("#!/bin/sh\necho tool\n")
    (here / "tool.sh").chmod(0o755)
    (here / "link").symlink_to("sub/data")
    async with started(task) as made:
        await made.upload_dir(here, "/workspace/new")
        await made.upload_file(here / "tool.sh", "relative/tool.sh")
        done = await made.exec("../../workspace/new/tool.sh && relative/tool.sh")
        assert (done.stdout, done.stderr) == ("tool\ntool\n", "")
        await made.download_dir("/workspace/new", back)
        await made.download_file("relative/tool.sh", back / "deep/tool.sh")
        assert (back / "sub/data").read_bytes() == bytes(range(256))
        assert os.readlink(back / "link") == "sub/data"
        assert stat.S_IMODE((back / "tool.sh").stat().st_mode) == 0o755
        assert (back / "deep/tool.sh").read_text() == (here / "tool.sh").read_text()
        await made.download_dir_with_exclusions(source_dir="/workspace/new", target_dir=tmp_path / "a", exclude=["sub"])
        assert sorted(os.listdir(tmp_path / "a")) == ["link", "tool.sh"]
        await made.download_dir_filtered(source_dir="/workspace/new", target_dir=tmp_path / "b", include=["*data"])
        assert os.listdir(tmp_path / "b") == ["sub"]
        await made.empty_dirs(["/workspace", "/tests"])
        assert (await made.exec("ls -A /workspace /tests")).stdout == "/tests:\n\n/workspace:\n"
        with pytest.raises(FileNotFoundError):
            await made.download_dir("/app/none", tmp_path / "c")


async def test_environments_are_apart_and_end(task):
    async with started(task) as one, started(task) as other:
        await one.exec("echo 1 > /app/x")
        assert (await other.exec("ls /app")).stdout == "run.sh\n"
    with pytest.raises(SandboxError, match="stopped"):
        await one.exec("true")
    await one.stop(delete=True)


async def test_a_trial_waits_until_there_is_room(task, monkeypatch):
    monkeypatch.setattr(local_sandbox, "MOST_POOLS", 1)
    kwargs = {"processes": 200}  # so that no other test's sandbox is used
    second = make(task, kwargs=kwargs, config={"storage_mb": 65})  # a kind of session for itself
    impatient = make(task, kwargs=kwargs, config={"storage_mb": 66, "build_timeout_sec": 0.1})
    async with started(task, kwargs=kwargs) as first:
        with pytest.raises(SandboxBusyError):
            await impatient.start(force_build=False)
        waiting = asyncio.ensure_future(second.start(force_build=False))
        assert not (await asyncio.wait({waiting}, timeout=0.2))[0]
        await first.stop(delete=True)
        await waiting
    assert (await second.exec("echo here")).stdout == "here\n"
    await second.stop(delete=True)


async def test_limits_of_the_task(task):
    async with started(task, config={"memory_mb": 128}) as made:
        filled = await made.exec("python3 -c 'x = bytes(300 << 20)'")
        assert "MemoryError" in filled.stderr


async def test_network(task):
    reach = "python3 -c \"import socket; s = socket.create_server(('127.0.0.1', 0)); "
    reach += 'socket.create_connection(s.getsockname(), 5)" && readlink /proc/self/ns/net'
    host = os.readlink("/proc/self/ns/net")
    for network, wanted in (("no-network", "loopback"), ("public", "loopback"), ("public", "host")):
        async with started(task, network=network, kwargs={"public_network": wanted}) as made:
            done = await made.exec(reach)
            assert done.return_code == 0, done.stderr
            assert (done.stdout == f"{host}\n") is (wanted == "host")


async def test_a_task_runs_in_its_image(task, tmp_path, monkeypatch):
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(tmp_path / "cache"))
    docker_save(tmp_path / "swe_1.tar", [shell_layer()])
    options = {"config": {"docker_image": "swe:1"}, "kwargs": {"images": str(tmp_path)}}
    async with started(task, **options) as made:
        done = await made.exec("cat /etc/marker; pwd; echo $GREETING; echo x > /usr/bin/new && cat /usr/bin/new")
        assert done.stdout == "from the image\n/project\nhello\nx\n", done.stderr
        await made.upload_file(task / "instruction.md", "/tests/deep/instruction.md")
    (task / "environment/Dockerfile").write_text("FROM swe:1\nENV WORD=seven\nCOPY run.sh /opt/\n")
    async with started(task, kwargs={"images": str(tmp_path)}) as made:
        assert (
            await made.exec("cat /etc/marker; bash /opt/run.sh; echo $WORD")
        ).stdout == "from the image\nran\nseven\n"
    with pytest.raises(ConfigError, match=r"docker save other:2 -o .*/other_2\.tar"):
        make(task, config={"docker_image": "other:2"}, kwargs={"images": str(tmp_path)})


# ------------------------------------------------------------------ what is refused


async def test_an_image_is_refused_unless_the_machine_is_said_to_have_all(task):
    (task / "environment/Dockerfile").write_text(f"{DOCKERFILE}RUN apt-get install -y jq\n")
    with pytest.raises(ConfigError, match=r"line 6: RUN apt-get install -y jq.*without_image=true"):
        make(task)
    async with started(task, kwargs={"without_image": True}) as made:
        assert (await made.exec("ls")).stdout == "data\n"
    (task / "environment/Dockerfile").unlink()
    with pytest.raises(ConfigError, match="docker_image = 'swe:1'"):
        make(task, config={"docker_image": "swe:1"})
    async with started(task, config={"docker_image": "swe:1"}, kwargs={"without_image": True}) as made:
        assert (await made.exec("pwd; ls")).stdout == "/app\ndata\nrun.sh\n"  # as Harbor does it without a Dockerfile
    with pytest.raises(FileNotFoundError):
        make(task)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"network": "public"}, ConfigError, "public_network=host"),
        ({"network": "allowlist"}, ValueError, "allowlist"),
        ({"kwargs": {"publicnetwork": "host"}}, UnknownNameError, "'publicnetwork', did you mean 'public_network'"),
        ({"kwargs": {"public_network": "all"}}, ConfigError, "public_network"),
        ({"kwargs": {"disk_mb": 0}}, ConfigError, "disk_mb"),
        ({"mounts": [{"type": "bind", "source": "/etc", "target": "/x"}]}, ConfigError, "--mounts"),
        ({"config": {"gpus": 1}}, RuntimeError, "GPU"),
        ({"config": {"os": "windows"}}, RuntimeError, "[wW]indows"),
        ({"cpu_enforcement_policy": "limit", "config": {"cpus": 1}}, ValueError, "CPU"),
    ],
)
def test_what_a_session_has_not(task, options, error, said):
    with pytest.raises(error, match=said):
        make(task, **options)


def test_several_containers_are_refused(task):
    (task / "environment/docker-compose.yaml").write_text("services: {main: {}}\n")
    with pytest.raises(ConfigError, match="several containers"):
        make(task)


async def test_a_folder_of_the_machine_is_refused_and_nothing_is_left(task):
    made = make(task, config={"workdir": "/usr/src/app"})
    with pytest.raises(ConfigError, match="'/usr/src/app'.*'/usr' is part of its world"):
        await made.start(force_build=False)
    with pytest.raises(SandboxError, match="not been started"):
        _ = made.session
