"""The backends: repositories, envs, SandboxFusion; and how a turn is read."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest
from aiohttp import web

from tests.envs.served.sessions.counting import serving
from toolgym.envs.families.swe.task import load_repository_tasks
from toolgym.envs.registry import register
from toolgym.envs.served.sessions.backends.actions import NO_ACTION, read_actions
from toolgym.envs.served.sessions.backends.base import number_of
from toolgym.envs.served.sessions.backends.episodes import EnvBackend
from toolgym.envs.served.sessions.backends.repository import RepositoryBackend
from toolgym.envs.served.sessions.backends.sandbox_fusion import SandboxFusionBackend
from toolgym.envs.served.sessions.client import SessionClient
from toolgym.envs.served.sessions.config import SessionServerConfig, make_backend
from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.envs.types import End
from toolgym.tools.errors import ConfigError, RemoteSessionError, UnknownNameError
from toolgym.tools.message import user

DIFF = "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("Look.\n```bash\nls\n```\nThen:\n```sh\npwd\n```", [("shell", "ls\n"), ("shell", "pwd\n")]),
        ("```python\nprint(1)\n```", [("python", "print(1)\n")]),
        (f"```diff\n{DIFF}```", [("patch", DIFF)]),
        (f"Here it is:\n{DIFF}", [("patch", DIFF)]),
        (f"{DIFF}<|im_end|>\n", [("patch", DIFF)]),
        ('<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>', [("bash", "bash")]),
        (
            '<tool_call>{"name": "editor", "arguments": {"command": "view", "path": "."}}</tool_call>',
            [("editor", "editor")],
        ),
        ('<tool_call>{"name": "apply_patch", "arguments": {"patch": "x"}}</tool_call>', [("patch", "x")]),
        ("~~~bash\necho '```'\n~~~", [("shell", "echo '```'\n")]),
        ("<think>```bash\nrm x\n```</think>Done.", []),
        ("```bash\nrm x\n```</think>```bash\nls\n```", [("shell", "ls\n")]),
        ("It was opened in the prompt:\n```bash\nrm x\n```\n</think>\n```bash\nls\n```", [("shell", "ls\n")]),
        ("```json\n{}\n```", []),
        ("def solve():\n    pass", [("python", "def solve():\n    pass\n")]),
        ("print(1)<|im_end|>\n", [("python", "print(1)\n")]),
        ("<think>hm</think>x = 1\nprint(x)", [("python", "x = 1\nprint(x)\n")]),
        ("```\ndef solve():\n    pass\n```", [("python", "def solve():\n    pass\n")]),
        (f"So:\n```\n{DIFF}```", [("patch", DIFF)]),
        ("```\nls -la | wc\n```", [("shell", "ls -la | wc\n")]),
        ("```bash\nls\n```\nIt printed:\n```\nx\n```", [("shell", "ls\n")]),
        *(
            (prose, [])
            for prose in ("Done", "Done.", "not yet", "yes, no", "Answer: 42", "I call f(x) now", "None", "42")
        ),
        ("```bash\nnever closed", []),
        ("", []),
    ],
)
async def test_how_a_turn_is_read(content, expected):
    assert [(action.kind, action.text) for action in await read_actions(content)] == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('<tool_call>{"name": "rm", "arguments": {}}</tool_call>', "Unknown tool 'rm'"),
        ('<tool_call>{"name": "editor", "arguments": {}}</tool_call>', "Wrong arguments"),
        ('<tool_call>{"name": "bash"', "closing </tool_call> is missing"),
    ],
)
async def test_what_is_wrong_with_a_call_is_said(content, expected):
    [action] = await read_actions(content)
    assert action.kind == "wrong"
    assert expected in action.text


async def test_reading_a_long_turn_takes_linear_time():
    for text in ("```bash\n" * 20_000, "<think>" * 50_000, "--- a\n" * 50_000, "`" * 200_000):
        await read_actions(text)


@pytest.mark.long
async def test_an_episode_in_a_repository(database):
    task = load_repository_tasks()[0]
    backend = RepositoryBackend(command_timeout=60)
    async with serving(database, backend) as service, SessionClient(service.url) as client:
        repaired, left, wrong = await asyncio.gather(
            *(client.start(hash) for hash in (number_of(task.instance_id), task.instance_id, task.instance_id))
        )
        assert task.problem_statement.strip() in repaired.greeting
        assert "was applied" in (await repaired.act(f"```diff\n{task.gold_patch}```")).content
        assert await repaired.act("Done.") == (NO_ACTION, True)
        assert "was not applied" in (await wrong.act(f"```diff\n{DIFF}```")).content
        # One session sees nothing of another one, nor the hidden tests.
        first = next(iter(task.test_files))
        seen = (await left.act(f"```bash\ngit status --short; cat {first}; ls -a / ..\n```")).content
        assert repaired.sid not in seen
        assert "M " not in seen
        assert "No such file" in seen or first in task.files
        rewards = [await session.reward() for session in (repaired, left)]
        assert [reward.value for reward in rewards] == [1.0, 0.0]
        assert rewards[0].answer["f2p_count"] == rewards[1].answer["f2p_total"] == len(task.fail_to_pass)
        with pytest.raises(UnknownNameError, match=f"did you mean '{task.instance_id}'"):
            await client.start(task.instance_id[:-1])


class Adding(ToolEnv):
    """Adds the numbers that it is sent. The shared list makes it forget that it is played again."""

    log: ClassVar[list[str]] = []

    def __init__(self, honest: bool = True):
        tasks = [Task((user(f"Begin at {n}."),), ground_truth=n, id=f"from-{n}") for n in range(3)]
        super().__init__([], tasks, scorer=lambda outcome: float(self.total))
        self.honest = honest

    async def reset(self, **kwargs):
        found = await super().reset(**kwargs)
        self.total = self.task.ground_truth
        return found

    def respond(self, turn):
        if turn.text == "end":
            return End()
        self.log.append(turn.text)
        self.total += int(turn.text)
        return [user(str(self.total if self.honest else len(self.log)))]


register("tests/Adding-v0", Adding)
register("tests/Fickle-v0", Adding, kwargs={"honest": False})


async def test_the_documents_own_action_is_run(database):
    task = load_repository_tasks()[0]
    async with serving(database, RepositoryBackend()) as service, SessionClient(service.url) as client:
        session = await client.start(task.instance_id)
        assert await session.act("def solve():\n    pass") == ("[The program printed nothing]", False)
        assert await session.act("import os\nprint(os.path.exists('.git'))") == ("True", False)
        assert "ZeroDivisionError" in (await session.act("x = 1 / 0")).content
        assert await session.act("I have solved it.") == (NO_ACTION, True)


async def test_any_env_is_a_backend(database):
    for restarts in range(2):
        backend = EnvBackend(["tests/Adding-v0", "tests/Fickle-v0"])
        async with serving(database, backend) as service, SessionClient(service.url) as client:
            if not restarts:
                session = await client.start("tests/Adding-v0:from-2")
                assert session.greeting == "Begin at 2."
                assert await session.act("3") == ("5", False)
                assert [(await client.reward(session.sid)).value for _ in range(2)] == [5.0, 5.0]  # and it goes on
                seeded = await client.start("tests/Adding-v0:7")
                assert seeded.greeting.startswith("Begin at ")
                fickle = await client.start("tests/Fickle-v0:from-0")
                await fickle.act("1")
                for unknown in ("tests/Adding-v0:from-9", "CodeInterpreter-v0:1", "Adding-v0", ":", ""):
                    with pytest.raises(ConfigError):
                        await client.start(unknown)
                left = await client.start("tests/Adding-v0:from-1")
                assert await left.act("1") == ("2", False)
                await left.postprocess()  # a client that a limit on tokens ended
                assert (await left.reward()).answer == {"reward": 2.0, "done": False, "stop_reason": None}
                sid = session.sid, fickle.sid
            else:
                answers = [
                    await _post(service.url, "/process_action", sid=sid[0], content=text)
                    for text in ("4", "end", "more")
                ]
                assert answers == [
                    {"content": "9", "done": False},
                    {"content": "", "done": True},
                    {"content": "[The episode is over: answered]", "done": True},
                ]
                assert (await client.reward(sid[0])).value == 9.0
                # What cannot be played again the same is an error, and not another episode.
                with pytest.raises(RemoteSessionError, match="backend_failed"):
                    await client.reward(sid[1])


async def _post(url, path, **body):
    import aiohttp

    async with aiohttp.ClientSession() as client, client.post(url + path, json=body) as response:
        return await response.json()


class Fusion:
    """A server with SandboxFusion's `/run_code` and `/submit`, as far as the backend needs them."""

    def __init__(self):
        self.submitted = []

    async def handle(self, request):
        if request.path == "/run_code":
            body = await request.json()
            ran = {"status": "Finished", "execution_time": 0.1, "return_code": int("raise" in body["code"])}
            ran |= {"stdout": f"{body['language']}: {body['code']}", "stderr": ""}
            status = "Failed" if ran["return_code"] else "Success"
            return web.json_response({"status": status, "message": "", "run_result": ran, "files": {}})
        if request.path == "/submit":
            self.submitted.append(await request.json())
            right = "right" in self.submitted[-1]["completion"]
            tests = [{"passed": True}, {"passed": right}]
            return web.json_response({"id": 1, "accepted": right, "tests": tests})
        return web.json_response("pong")


@pytest.fixture
async def fusion():
    made = Fusion()
    runner = web.ServerRunner(web.Server(made.handle), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


async def test_sessions_on_a_sandboxfusion_server(database, fusion):
    sids = []
    for restarts in range(2):
        backend = SandboxFusionBackend(fusion.url, config={"language": "python"})
        async with serving(database, backend) as service, SessionClient(service.url) as client:
            if restarts:
                assert [(await client.reward(sid)).answer for sid in sids] == [
                    {"reward": 1.0, "f2p_count": 2, "f2p_total": 2},
                    {"reward": 0.0, "f2p_count": 1, "f2p_total": 2},
                    {"reward": 0.0},
                ]
                continue
            right, wrong, free = [await client.start(hash) for hash in ("mbpp:11", "mbpp:12", "free")]
            assert "python: right" in (await right.act("First\n```js\nx\n```\n```python\nright\n```")).content
            await wrong.act("```py\nwrong\n```")
            assert (await free.act("```bash\nls\n```")).content.startswith("bash: ls")
            assert (await free.reward()).value == 1.0
            await free.act("```python\nraise\n```")
            assert (await free.act("No program.")).done
            assert "was not run" in (await free.act("```klingon\nx\n```")).content
            sids += [session.sid for session in (right, wrong, free)]
    assert [request["id"] for request in fusion.submitted] == ["11", "12"]
    assert fusion.submitted[0]["config"] == {"language": "python"}


@pytest.mark.long
async def test_a_judge_that_is_away_gives_no_reward_at_all(database):
    backend = SandboxFusionBackend("http://127.0.0.1:9", patience=0.2, submit_timeout=0.1)
    async with serving(database, backend) as service, SessionClient(service.url) as client:
        session = await client.start("mbpp:11")
        with pytest.raises(RemoteSessionError, match="backend_failed"):
            await session.act("```python\nx\n```")
        await session.postprocess()
        assert (await session.reward()).value == 0.0  # nothing was submitted


def test_the_settings(tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean 'repository'"):
        make_backend("repositry", {})
    with pytest.raises(UnknownNameError, match="did you mean 'tasks'"):
        make_backend("repository", {"task": 1})
    with pytest.raises(ConfigError, match="must give a SessionBackend"):
        make_backend("builtins:dict", {})
    with pytest.raises(UnknownNameError, match="there is no module 'nowhere'"):
        make_backend("nowhere:Backend", {})
    clients = tmp_path / "clients.yaml"
    for text in ("[]", "a: 1", "a: same\nb: same"):
        clients.write_text(text)
        with pytest.raises(ConfigError):
            SessionServerConfig.load(None, {"token": "x", "clients_file": clients})
    clients.write_text("a: one")
    with pytest.raises(ConfigError, match="set a token too"):
        SessionServerConfig.load(None, {"clients_file": clients})
