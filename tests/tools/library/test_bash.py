"""`BashTool`: what is kept from call to call, what the model reads, and how it ends."""

from __future__ import annotations

import asyncio
import re
from types import MappingProxyType

import pytest
import pytest_asyncio

from tests.parameters import first
from toolgym.testing import ToolSuite
from toolgym.tools import BashTool, CodeInterpreterTool, from_config
from toolgym.tools.errors import ConfigError, SandboxUnsupportedError
from toolgym.tools.sandbox import ExecutionStatus, LocalSandbox, ProcessSandbox
from toolgym.tools.sandbox.base import ExecResult, Sandbox, Session
from toolgym.tools.sandbox.local import probe

AS_BEFORE = "Folder and variables are as before it]"
AS_LEFT = "Folder and variables are as it left them]"
FORKS = "namespaces" in probe()["levels"]


class TestBash(ToolSuite):
    arguments = MappingProxyType({"command": "echo hello"})
    forks = FORKS

    @pytest.fixture
    def tool(self):
        return BashTool()


@pytest_asyncio.fixture
async def bash():
    """Runs a command in one episode; returns what the model reads."""
    tool = BashTool({"timeout": 60, "max_output_chars": 200})
    instance = await tool.create()

    async def run(command="", **rest):
        kwargs = rest.pop("kwargs", {})
        return await tool.execute(instance, {"command": command, **rest}, **kwargs)

    yield run
    await tool.release(instance)
    await tool.close()


async def texts(bash, *commands):
    return [(await bash(command)).text for command in commands]


async def test_folder_variables_and_functions_are_kept(bash):
    commands = [
        "mkdir 'a b'; cd 'a b'; one='x\ny'; export TWO=2; list=(1 '2 3'); declare -A map=([k]=v)",
        'f() { echo "f $1"; }',
        "alias hi='echo alias'; umask 077; shopt -s nullglob; set -u",
        'basename "$PWD"; echo "$one" "${list[1]}" "${map[k]}"; env | grep TWO; f 3; hi; umask; echo *.none; echo $-',
        'cd ..; cd - >/dev/null; basename "$PWD"; echo $nothing',
    ]
    *first, third, fourth = await texts(bash, *commands)
    assert first == ["[No output]"] * 3
    assert third.startswith("a b\nx\ny 2 3 v\nTWO=2\nf 3\nalias\n0077\n\n")
    assert "u" in third.rsplit("\n", 1)[1]
    assert fourth.startswith("a b\n")
    assert "nothing: unbound variable" in fourth


async def test_output_and_errors_come_in_their_order_with_the_exit_code(bash):
    assert await texts(bash, "echo 1; echo 2 >&2; echo 3; exit 4", "nosuch", "if then", "cat; read x") == [
        "1\n2\n3\n[Exit code 4]",
        "bash: line 1: nosuch: command not found\n[Exit code 127]",
        "bash: eval: line 1: syntax error near unexpected token `then'\nbash: eval: line 1: `if then'\n[Exit code 2]",
        "[Exit code 1]",
    ]
    result = await bash("exit 4")
    assert (result.metrics["status"], result.metrics["return_code"]) == ("error", 4)


async def test_a_command_that_ends_the_shell_keeps_the_state(bash):
    reply = await texts(bash, "x=1; cd /; exit 0", "pwd; echo $x", "set -e; y=2; false; echo no", "false; echo $x $y")
    assert reply == ["[No output]", "/\n1", "[Exit code 1]", "1 2"]


async def test_a_command_that_hangs_is_stopped_and_the_shell_goes_on(bash):
    await bash("cd /; x=1")
    result = await bash("x=2; cd /usr; echo begun; sleep 60 & sleep 60", kwargs={"timeout": 1})
    assert result.text == f"begun\n[Timed out: the command was stopped after 1 seconds. {AS_LEFT}"
    assert result.metrics["status"] == "timeout"
    assert (await bash("pwd; echo $x")).text == "/usr\n2"
    counts = "count() { ps -e 2>/dev/null | grep -c sleep; }"  # what was killed is collected a little later
    assert (await bash(f"{counts}; until [ $(count) = 0 ]; do sleep 0.02; done; echo gone")).text == "gone"


HANGS = (
    "while :; do :; done",
    "mkfifo ~/pipe; read y < ~/pipe",
    "sleep 60 & wait",
    "trap '' INT; sleep 60",
    "f() { local x=7; while :; do sleep 0.1; done; }; f",
    "sleep 60 | cat",
    "y=$(sleep 60)",
    "set -m; sleep 60",
    "set -ex; sleep 60",
    "while :; do sleep 1; done < /etc/passwd > ~/file 2>&1",
)


@first("hang", HANGS, short=1)
async def test_no_hang_costs_the_shell_its_variables(bash, hang):
    text = (await bash(f"x=2; cd /usr; {hang}", kwargs={"timeout": 0.5})).text
    assert text.endswith(f"[Timed out: the command was stopped after 0.5 seconds. {AS_LEFT}"), text
    assert "POSIXLY" not in text
    assert (await bash("{ set +x; } 2>/dev/null; trap - INT; echo $x $PWD")).text.endswith("2 /usr")


@pytest.mark.long
async def test_a_shell_that_ignores_interrupts_is_killed_and_keeps_the_state_before(bash):
    await bash("x=1")
    text = (await bash("x=2; trap '' INT; while :; do sleep 1; done", kwargs={"timeout": 0.5})).text
    assert text.endswith(AS_BEFORE), text
    assert (await bash("echo $x")).text == "1"


@pytest.mark.long
async def test_a_command_that_prints_too_much_keeps_the_state(bash):
    text = (await bash("x=2; yes")).text
    assert text.startswith("y\n... [repeated ")
    assert text.endswith(f"[Stopped: the command printed too much. {AS_LEFT}")
    assert (await bash("echo $x")).text == "2"


async def test_exit_in_a_function_keeps_global_variables(bash):
    reply = await texts(bash, "A=1; L=(1 2); declare -n ref=A; die() { local A=7 L M=5; echo \"$1\" >&2; exit 3; }",
                        "f() { local A=2 Q=1; die oops; }; B=2; f", "echo $A ${L[1]} $B $ref; declare -p M Q",
                        "while read y; do exit 4; done < /etc/passwd > file", "{ B=3; exit 4; } 2> file",
                        ". /dev/stdin <<< 'B=4; exit 5'", "echo $B")  # fmt: skip
    assert reply == [
        "[No output]",
        "oops\n[Exit code 3]",
        "1 2 2 1\nbash: line 1: declare: M: not found\nbash: line 1: declare: Q: not found\n[Exit code 1]",
        "[Exit code 4]",
        "[Exit code 4]",
        "[Exit code 5]",
        "4",
    ]


async def test_a_signal_to_the_shell_keeps_the_state(bash):
    reply = await texts(bash, "x=2; kill $$", "echo $x; set -x", "x=3; kill -USR1 $$", "set +x; echo $x")
    assert reply[0] == f"[The shell was killed by SIGTERM (signal 15). {AS_LEFT}"
    assert reply[1] == "2"
    assert reply[2].endswith(f"[The shell was killed by SIGUSR1 (signal 10). {AS_LEFT}")
    assert "POSIXLY" not in reply[2]
    assert reply[3].endswith("3")


async def test_limits_of_ulimit_are_kept(bash):
    await bash("ulimit -n 100; ulimit -Sf 5000")
    assert (await bash("ulimit -n; ulimit -Hn; ulimit -f")).text == "100\n100\n5000"
    assert (await bash("[ $(ulimit -Hf) = 5000 ] || ulimit -Sf hard; ulimit -Sn 50")).text == "[No output]"
    assert (await bash("ulimit -n; ulimit -Hn; [ $(ulimit -f) = 5000 ] || echo raised")).text == "50\n100\nraised"


async def test_jobs_in_the_background_are_named(bash):
    text = (await bash("sleep 60 & (sleep 60; true) & false")).text
    assert re.fullmatch(
        r"\[Exit code 1\]\n\[In the background: process \d+ \(sleep 60 &\)\]\n"
        r"\[In the background: process \d+ \(\( sleep 60; true \) &\)\]",
        text,
    )
    number = re.search(r"process (\d+)", text)[1]
    assert (await bash(f"kill {number} && jobs")).text == "[No output]"
    many = (await bash("for i in 1 2 3 4 5 6 7; do sleep 60 & done; true & wait $!")).text
    assert many.count("\n") == 5
    assert many.endswith("[In the background: 2 more jobs]")


async def test_programs_in_the_background_go_on(bash):
    await bash('mkfifo pipe; (read line < pipe; echo "got $line" > done) > /dev/null 2>&1 &')
    await bash("echo hello > pipe")
    assert (await bash("until [ -s done ]; do sleep 0.02; done; cat done")).text == "got hello"


async def test_long_output_keeps_its_head_and_tail(bash):
    text = (await bash("seq 1000")).text
    assert text.startswith("1\n2\n")
    assert text.endswith("\n999\n1000")
    assert "characters cut" in text
    assert len(text) < 260


async def test_restart_begins_afresh(bash):
    await bash("cd /; x=1")
    assert (await bash(restart=True)).text == "The shell was restarted."
    assert (await bash("echo $x; [ $PWD = / ] || echo home")).text == "\nhome"
    await bash("x=1")
    assert (await bash("echo .$x", restart=True)).text == "."
    assert (await bash(restart=True)).text == "The shell was restarted."
    assert "Give the argument" in (await bash("  ")).text


async def test_calls_of_one_turn_follow_each_other(bash):
    results = await asyncio.gather(*(bash(f"x=${{x}}{number}; echo $x") for number in range(4)))
    assert [result.text for result in results] == ["0", "01", "012", "0123"]


async def test_text_that_is_no_ascii_and_quotes_arrive_as_they_are(bash):
    assert (await bash("cat <<'E'\n\u00e9 \"q\" 'p' $x \\n\nE")).text == "\u00e9 \"q\" 'p' $x \\n"


async def test_a_session_that_was_killed_is_opened_again(bash):
    result = await bash("x=1; touch here; kill -9 -1; sleep 5")
    ended = result if result.metrics.get("session_ended") else await bash("true")
    assert "The session ended with it" in ended.text
    assert ended.metrics["session_ended"] is True
    after = await bash("ls; echo .$x")
    assert after.text == "[The session was lost before; files and variables of earlier calls are gone]\n."


@pytest.mark.skipif(not FORKS, reason="forks need namespaces")
async def test_a_fork_has_the_state_and_its_own_files():
    tool = BashTool()
    one = await tool.create()
    await tool.execute(one, {"command": "mkdir d; cd d; x=1; echo a > f"})
    two = await tool.fork(one)
    await tool.execute(two, {"command": "x=2; echo b >> f"})
    assert (await tool.execute(one, {"command": "basename $PWD; echo $x; cat f"})).text == "d\n1\na"
    assert (await tool.execute(two, {"command": "basename $PWD; echo $x; cat f"})).text == "d\n2\na\nb"
    await tool.close()


async def test_tools_of_a_yaml_file_share_an_episode():
    tools = from_config({"tools": [
        {"class_name": "toolgym.tools.BashTool", "config": {"folder": "work", "timeout": 5}},
        {"class_name": "toolgym.tools.EditorTool", "config": {"folder": "work"}},
    ]})  # fmt: skip
    assert tools[0].sandbox is tools[1].sandbox
    for tool in tools:
        await tool.close()
    with pytest.raises(ConfigError, match="unknown option 'timeouts', did you mean 'timeout'"):
        BashTool({"timeouts": 3})
    with pytest.raises(ConfigError, match="bash: give one of sandbox_url and sandbox_urls"):
        BashTool({"sandbox_url": "http://a:1", "sandbox_urls": ["http://b:1"]})


def test_a_sandbox_without_sessions_is_refused():
    with pytest.raises(SandboxUnsupportedError, match="ProcessSandbox has no sessions"):
        BashTool(sandbox=ProcessSandbox())


@pytest.mark.skipif("landlock" not in probe()["levels"], reason="needs landlock")
async def test_a_level_without_programs_says_so():
    async with LocalSandbox(level="landlock", preload=()) as sandbox:
        tool = BashTool(sandbox=sandbox)
        with pytest.raises(SandboxUnsupportedError, match="landlock"):
            await tool.execute(await tool.create(), {"command": "ls"})
        await tool.close()
        assert await CodeInterpreterTool(sandbox=sandbox).has_sessions()


class NoBash(Sandbox):
    """A sandbox whose sessions have no bash."""

    async def execute(self, request):
        raise NotImplementedError

    async def open_session(self, request):
        return NoBashSession.__new__(NoBashSession)


class NoBashSession(Session):
    id, alive, checkpoints = "1", True, ()
    run_cell = _start = write_file = read_file = _pack = _unpack = _fork = _checkpoint = _drop_checkpoint = None

    async def _act(self, action, name, rest):
        return []

    async def _exec(self, command, stdin, timeout):
        return ExecResult(ExecutionStatus.ERROR, stderr="no program 'bash'\n", return_code=127)

    async def close(self):
        pass


async def test_a_sandbox_without_bash_says_so():
    tool = BashTool(sandbox=NoBash())
    with pytest.raises(SandboxUnsupportedError, match="needs bash in the sandbox: no program 'bash'"):
        await tool.execute(await tool.create(), {"command": "ls"})


async def test_a_command_with_a_nul_is_not_run_in_part(bash):
    assert (await bash("touch half\0")).text == "[A command cannot hold a NUL character]"
    assert (await bash("ls")).text == "[No output]"


@pytest.mark.parametrize("trap", [
    "trap 'rm -f nothing' EXIT", "trap 'echo bye' 0", "trap cleanup EXIT; cleanup() { :; }",
    "trap 'echo bye; exit 0' EXIT INT TERM",
])  # fmt: skip
async def test_a_command_with_an_exit_trap_keeps_the_state(bash, trap):
    reply = await texts(bash, f"{trap}; cd /usr; export A=2; say() {{ echo said; }}", "echo $PWD $A $(say)")
    assert reply == ["[No output]", "/usr 2 said"]


async def test_exit_runs_the_trap_of_an_earlier_command_once(bash):
    reply = await texts(bash, "trap 'echo bye' EXIT; A=1", "trap -p", "A=2; exit 3", "echo $A; exit 4")
    assert reply == ["[No output]", "trap -- 'echo bye' EXIT", "bye\n[Exit code 3]", "2\n[Exit code 4]"]


async def test_traces_and_listings_show_nothing_of_the_tool(bash):
    reply = await texts(bash, "set -x", "echo hi; false", "set +x; trap -p; declare -F; ls -A; echo $# $0; jobs")
    assert reply == ["[No output]", "++ echo hi\nhi\n++ false\n[Exit code 1]", "++ set +x\n0 bash"]
    names = (await bash("set; env; cat /proc/$$/environ /dev/null | tr '\\0' '\\n'")).text
    assert "shell state" not in names
    assert "POSIXLY" not in names


async def test_functions_and_aliases_with_names_of_builtins_are_kept(bash):
    names = ("declare", "trap", "eval", "set", "printf", "exit", "unset", "alias", "shopt", "read", "export", "exec")
    fakes = "; ".join(f"{name}() {{ echo fake {name}; }}" for name in names)
    await bash(f"alias echo='echo A'; alias pwd='echo B'; {fakes}")
    assert (await bash("pwd; eval; printf")).text == "A B\nfake eval\nfake printf"
    await bash("\\unset -f x; x=5; cd /")
    assert (await bash("\\pwd; builtin echo $x")).text == "/\n5"


async def test_readonly_variables_arguments_folders_and_traps_are_kept(bash):
    await bash("readonly R=4; set -- a 'b c'; pushd /usr; pushd /etc; unset HOME; trap 'echo oops' ERR; IFS=:")
    reply = (await bash('echo "$R $# $2 [$HOME] $IFS"; dirs; popd; false; R=5; echo no')).text
    assert reply == ("4 2 b c [] :\n/etc /usr /tmp\n/usr /tmp\noops\nbash: line 1: R: readonly variable\n[Exit code 1]")


async def test_an_end_of_the_shell_that_loses_the_state_says_so(bash):
    await bash("x=1")
    assert (await bash("x=2; exec echo replaced")).text.startswith("replaced\n[The command ended the shell itself")
    assert (await bash("x=2; kill -9 $$")).text == f"[The shell was killed by SIGKILL (signal 9). {AS_BEFORE}"
    reply = (await bash("x=2; trap 'echo bye' EXIT; exit 3")).text
    assert reply == f"bye\n[Exit code 3]\n[The command ended the shell itself, as `exec` does. {AS_BEFORE}"
    large = (await bash("x=$(head -c 2000000 /dev/zero | tr '\\0' x); echo ${#x}")).text
    assert large == f"2000000\n[The shell's variables and functions are too large to be kept. {AS_BEFORE}"
    assert (await bash("builtin() { :; }")).text == "[A function called builtin is not kept]"
    assert (await bash("echo $x")).text == "1"


async def test_a_folder_that_was_removed_is_named(bash):
    reply = await texts(bash, "mkdir -p a/b; cd a/b; rm -r ../b", "basename $PWD", "pwd | tail -c 3")
    assert reply[1].startswith("a\n[The working folder /")
    assert reply[1].endswith("a/b does not exist any more: the command ran above it]")
    assert reply[2] == "/a"


async def test_output_is_what_a_terminal_shows_and_signals_have_names(bash):
    reply = await texts(bash, r"printf '10%%\r20%%\r100%%\n\e[31mred\e[0m\n'", "sh -c 'kill -SEGV $$'")
    assert reply[0] == "100%\nred"
    assert reply[1].endswith("[Exit code 139: killed by SIGSEGV (signal 11)]")


async def test_heredocs_syntax_errors_and_return_leave_the_shell_usable(bash):
    reply = await texts(bash, "cat <<E\nfoo", 'echo "open', "return 3", "echo $((1 + 1)) # end")
    assert reply[0].endswith("foo")
    assert "unexpected EOF" in reply[1]
    assert "can only `return'" in reply[2]
    assert reply[3] == "2"


async def test_a_refused_connection_and_a_full_limit_are_explained(bash):
    reply = await texts(bash, "exec 3<>/dev/tcp/127.0.0.1/9", "head -c 70M /dev/zero > f || echo $?")
    assert reply[0].endswith("[There is no network here]"), reply
    assert "[Limit: 64 MiB for one file]" in reply[1], reply


def test_the_description_says_what_holds():
    tool = BashTool({"timeout": 7})
    assert "Limits: 7 s per call, 1024 MiB of memory. No network." in tool.tool_schema.description
