"""`toolgym play`: a person's lines on standard input, real envs and the real template."""

from __future__ import annotations

import io
import json

import pytest

from toolgym.cli.app import main
from toolgym.rollout import read_trajectories
from toolgym.rollout.models.tiny import tiny_policy_path

MODULE = """
import toolgym
from toolgym.envs import Task, ToolEnv
from toolgym.tools import BaseTool, ToolResult, tool

@tool
def add(left: int, right: int = 1, label: str = "") -> str:
    \"\"\"Add two numbers.

    Args:
        left: the first.
    \"\"\"
    return f"{left + right}{label}"

class Once(BaseTool):
    async def execute(self, instance_id, parameters, **kwargs):
        return ToolResult("once")

def make(**kwargs):
    return ToolEnv([add], [Task([{"role": "user", "content": "Add 1 and 2."}], ground_truth="3")],
                   scorer=lambda sample: float("3" in sample.final_text), **kwargs)

def make_plain(**kwargs):
    schema = {"type": "function", "function": {"name": "once", "description": "", "parameters": {"type": "object"}}}
    return ToolEnv([Once({}, schema)], [Task([{"role": "user", "content": "Go."}])], **kwargs)

def broken(**kwargs):
    class Broken(ToolEnv):
        async def reset(self, **kwargs):
            raise OSError("the data is not mounted")
    return Broken([], [Task([{"role": "user", "content": "Go."}])], **kwargs)

for id, entry in {"Add-v0": "make", "Plain-v0": "make_plain", "Broken-v0": "broken"}.items():
    toolgym.register(id, f"played_env:{entry}")
"""


@pytest.fixture
def play(tmp_path, monkeypatch, capfd, registry):
    """Play lines; returns the exit status, what was shown, and what was told as an error."""
    (tmp_path / "played_env.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "played_env", raising=False)

    def run(*lines, env="played_env:Add-v0", options=()):
        monkeypatch.setattr("sys.argv", ["toolgym", "play", env, *options])
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code, *capfd.readouterr()

    return run


def test_a_person_calls_a_tool_answers_and_saves(play, tmp_path):
    code, shown, errors = play('/call add {"left": 1, "right": 2}', "It is 3.", "/save out.jsonl", "/quit")
    assert (code, errors) == (0, "")
    for part in ("add: Add two numbers.", "  left* {", "Add 1 and 2.", "→ add(left=1, right=2)", "tool\n3\n"):
        assert part in shown
    assert "over: reward 1, answered" in shown
    assert "ground truth: 3" in shown
    [saved] = read_trajectories(tmp_path / "out.jsonl")
    assert (saved.reward, saved.stop_reason, saved.env_id, saved.parent) == (1.0, "answered", "played_env:Add-v0", None)
    assert [call.arguments for call in saved.tool_calls] == [{"left": 1, "right": 2, "label": ""}]
    assert saved.problems == []
    assert {version for segment in saved.sequences[0].segments for version, _ in segment.version_runs} == {"person"}
    assert saved.response_text.startswith('<tool_call>\n{"name": "add", "arguments": {"left": 1, "right": 2}}')


def test_the_prompt_asks_for_each_argument_and_a_text_may_have_lines(play):
    code, shown, _ = play("/call add", "40", "", "<<", " apples", "and more", ".", "/text", "a", "b 3", ".")
    assert code == 0
    assert "left (integer; << for several lines): 40" in shown
    assert "41 apples\nand more" in shown
    assert "assistant\na\nb 3\nover: reward 1" in shown


def test_a_turn_is_read_by_the_parser(play):
    call = json.dumps({"name": "add", "arguments": {"left": "one"}})
    _, shown, _ = play(f"Let me see. <tool_call>{call}</tool_call>", "/quit")
    assert "Let me see." in shown
    assert "tool\nWrong arguments for tool 'add'" in shown


def test_a_turn_is_taken_back_with_the_state_that_it_made(play):
    cells = [
        f'/call code_interpreter {{"code": "{code}"}}' for code in ("x = 1; print(x)", "x = 2; print(x)", "print(x)")
    ]
    _, shown, _ = play(cells[0], cells[1], "/undo", cells[2], "/undo", "/undo", "/undo", env="CodeInterpreter-v0")
    results = [part.split("\n")[0] for part in shown.split("tool\n")[1:]]
    assert results == ["1", "2", "1", "1", "1"]  # two cells; the last message again; what x is then; and once more
    assert shown.count("taken back; the last message was:") == 3
    assert "error: there is no turn to undo" in shown


def test_an_env_that_cannot_be_forked_is_played_all_the_same(play):
    code, shown, _ = play("/call once {}", "/undo", "done", env="played_env:Plain-v0")
    assert code == 0
    assert "error: there is no turn to undo, or the env could not be forked before it" in shown
    assert "over: reward 0, answered" in shown


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/call ad {}", "no tool 'ad', did you mean 'add'?; there are: add"),
        ('/call add {"left', "the arguments are not JSON: "),
        ("/call add [1]", "the arguments must be a JSON object, got [1]"),
        ("/suggest", "no engine suggests turns"),
        ("/yes", "nothing is suggested, or no such command: '/yes'"),
        ("/undo", "there is no turn to undo"),
        ("/save {there}", "is there already: name another file"),
    ],
)
def test_a_wrong_line_is_told_and_the_episode_goes_on(play, tmp_path, line, message):
    (tmp_path / "there.jsonl").write_text("{}\n")
    code, shown, _ = play(line.replace("{there}", "there.jsonl"), "3")
    assert code == 0
    assert f"error: {message}" in shown.replace("'there.jsonl' ", "")
    assert "over: reward 1" in shown
    assert "error: the episode is over" in play("3", "4")[1]


def test_an_episode_that_goes_on_is_saved_as_aborted(play, tmp_path):
    play('/call add {"left": 1}', "/save")
    [saved] = read_trajectories(tmp_path / "played.jsonl")
    assert (saved.stop_reason, len(saved.turns), saved.usable) == ("aborted", 1, False)


def test_a_text_cannot_control_the_terminal(play):
    _, shown, _ = play("\x1b]0;title\x07 [bold]3", "/quit")
    assert "assistant\n\\x1b]0;title\\x07 [bold]3" in shown
    assert "\x1b" not in shown


def test_an_env_that_cannot_begin_says_why(play):
    code, shown, _ = play("/quit", env="played_env:Broken-v0")
    assert code == 0
    assert "over: reward 0, reset_failed: OSError: the data is not mounted" in shown


def test_an_engine_suggests_turns_with_its_own_tokens(play, tmp_path):
    code, shown, _ = play("/suggest", "/yes", "#### 3", "/save", options=("--engine", "tiny", "--temperature", "0"))
    assert code == 0
    assert "/yes plays it" in shown
    [saved] = read_trajectories(tmp_path / "played.jsonl")
    segments = [segment for segment in saved.sequences[0].segments if segment.is_policy]
    assert [segment.version_runs[0][0] for segment in segments] == ["0", "person"]
    assert min(segments[0].logprobs) < 0 == max(segments[1].logprobs)


def test_wrong_usage(play):
    assert play(options=("--task", "1"))[::2] == (2, "error: --task 1: the env has the tasks 0 to 0\n")
    assert "did you mean 'Add-v0'" in play(env="played_env:Ad-v0")[2]
    assert play(options=("--env-kwargs", "{"))[0] == 2


def test_a_turn_that_does_not_fit_the_engines_context_is_told(play):
    _, shown, _ = play("a " * 3000, "3", options=("--engine", str(tiny_policy_path())))
    assert "error: the turn has 3002 tokens, and the context has room for " in shown
    assert "over: reward 1" in shown
