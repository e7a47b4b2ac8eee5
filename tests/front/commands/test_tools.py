"""`toolgym tools`: the list, the schemas, and one call."""

from __future__ import annotations

import json
import sys

import pytest

from toolgym.cli.app import main

MODULE = '''
from toolgym.tools import tool

@tool
def shout(text: str) -> str:
    """Say it loudly."""
    if text == "boom":
        raise RuntimeError("no voice")
    return text.upper()
'''


@pytest.fixture
def tools(tmp_path, monkeypatch, capsys):
    (tmp_path / "own_tools.py").write_text(MODULE)
    (tmp_path / "without.py").write_text("")
    (tmp_path / "tools.yaml").write_text("tools: [{class_name: toolgym.tools.BashTool, config: {timeout: 3}}]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("own_tools", "without"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["toolgym", "tools", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code, *capsys.readouterr()

    return run


def test_a_result_cannot_control_the_terminal(tools):
    assert tools("shout", "--from", "own_tools", "--call", '{"text": "\\u001b[31mred"}')[1].startswith("\\x1b[31MRED\n")


def test_the_librarys_tools_are_listed_with_their_arguments(tools):
    code, shown, _ = tools()
    assert code == 0
    assert [line.split(":")[0] for line in shown.splitlines() if not line.startswith(" ")] == [
        "bash",
        "code_interpreter",
        "editor",
        "open_page",
        "search",
    ]
    assert '  code* {"type": "string"' in shown
    schemas = json.loads(tools("--json")[1])
    names = [schema["function"]["name"] for schema in schemas]
    assert names == ["bash", "code_interpreter", "editor", "open_page", "search"]


@pytest.mark.parametrize(("source", "name"), [("own_tools", "shout"), ("tools.yaml", "bash")])
def test_those_of_a_module_and_a_file(tools, source, name):
    [schema] = json.loads(tools("--from", source, "--json")[1])
    assert schema["function"]["name"] == name
    assert tools(name, "--from", source)[1].startswith(f"{name}: ")


def test_a_call_runs_as_in_an_env(tools):
    assert tools("shout", "--from", "own_tools", "--call", '{"text": "hi"}')[1].startswith("HI\nok, ")
    code, shown, _ = tools("shout", "--from", "own_tools", "--call", '{"text": "hi"}', "--json")
    record = json.loads(shown)
    assert (code, record["status"], record["text"], record["arguments"]) == (0, "ok", "HI", {"text": "hi"})
    code, shown, _ = tools("shout", "--from", "own_tools", "--call", '{"text": "boom"}')
    assert (code, "RuntimeError: no voice" in shown, "\nerror, 0." in shown) == (1, True, True)
    code, shown, _ = tools("shout", "--from", "own_tools", "--call", '{"txt": "hi"}')
    assert (code, "Missing required argument 'text'" in shown) == (1, True)


def test_a_class_is_made_with_its_options(tools, tmp_path):
    (tmp_path / "passages.jsonl").write_text('{"id": "1", "contents": "Paris is the capital of France."}\n')
    options = json.dumps({"corpus": "passages.jsonl", "index": ":memory:"})
    code, shown, errors = tools("search", "--config", options, "--call", '{"query_list": ["capital"]}')
    assert (code, errors) == (0, "")
    assert "Paris is the capital of France." in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bsh"], "no tool is called 'bsh', did you mean 'bash'?; tools: bash"),
        (["--call", "{}"], "--call runs one tool: name it"),
        (["bash", "--call", "{"], "--call: not JSON: "),
        (["--from", "tool.yaml"], "did you mean 'tools.yaml'"),
        (["--from", "own_tool"], "did you mean 'own_tools'"),
        (["--from", "without"], "'without' has no tools: "),
        (["search", "--call", '{"query_list": ["x"]}'], "search: give one of the options"),
        (["bash", "--from", "tools.yaml", "--config", '{"a": 1}', "--call", "{}"], "--config is for a class of tools"),
    ],
)
def test_what_is_wrong_is_one_line(tools, arguments, message):
    code, _, errors = tools(*arguments)
    assert (code, errors.count("\n")) == (2, 1)
    assert errors.startswith("error: ")
    assert message in errors
