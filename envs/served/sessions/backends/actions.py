"""Reading of a turn's text as actions in a repository: commands, programs and patches, in the order of the turn.

`docs/sessions.md` has the list, from tool calls in the Hermes format down to a turn that is a program itself.
"""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

from toolgym.envs.actions import without_end_token
from toolgym.tools.confined.costly_checks import is_python_program
from toolgym.tools.library.bash import BashTool
from toolgym.tools.library.editor import EditorTool
from toolgym.tools.message import visible_text
from toolgym.tools.parsers.hermes import parse_hermes
from toolgym.tools.schema import ToolCall, ToolCallError, ToolSchema, check_call

_SHELL = ("bash", "sh", "shell")
_PATCH = ("diff", "patch")

_FENCE = re.compile(r" {0,3}(?P<fence>`{3,}|~{3,})[ \t]*(?P<kind>[^\s`]*)[^`]*")
_DIFF = re.compile(r"^(?:diff --git .*|--- \S.*\n\+\+\+ \S.*\n@@ .*)", re.M)

HOW_TO_ACT = (
    "To run commands, write a block that begins with ```bash and ends with ```; they run in that folder. To change "
    "files, write a unified diff in a ```diff block. You read what came of it, and may go on. A turn without a block "
    "ends your work."
)

NO_ACTION = (
    "No action was found in your turn, so nothing was done. To run a command, write a block that begins with ```bash "
    "and ends with ```; to change files, a unified diff in a ```diff block."
)


class RepositoryAction(NamedTuple):
    """One thing to do: `bash` and `editor` are calls of these tools, `wrong` holds an error for the policy."""

    kind: Literal["shell", "python", "patch", "bash", "editor", "wrong"]
    text: str
    arguments: dict[str, Any] = {}  # noqa: RUF012  never changed


TOOLS = [BashTool.default_schema, EditorTool.default_schema]

_PATCH_SCHEMA = ToolSchema(
    "apply_patch",
    "Change files of the repository.",
    {"type": "object", "properties": {"patch": {"type": "string"}}, "required": ["patch"]},
)
_SCHEMAS = {schema.name: schema for schema in (*TOOLS, _PATCH_SCHEMA)}


async def read_actions(content: str) -> list[RepositoryAction]:
    """Return the actions of a turn, in its order; an empty list if there are none. No text makes this raise."""
    requests = parse_hermes(content).requests
    if requests:
        return [_of_call(request) for request in requests]
    text = visible_text(content)
    blocks = [_of_block(kind, block) for kind, block in fenced_blocks(text)]
    actions = [block for block in blocks if block is not None]
    if actions:
        return actions
    plain = [block for kind, block in fenced_blocks(text) if not kind and block.strip()]
    if plain:
        return [await _of_text(block) or RepositoryAction("shell", block) for block in plain]
    action = await _of_text(without_end_token(text))
    return [action] if action is not None else []


async def bare_program(text: str) -> str | None:
    """Return a turn that is a program of Python as a whole, without a fence; None if it is something else, as prose is.

    Python's parser reads the text in another process.
    """
    program = without_end_token(text).rstrip() + "\n"
    return program if await is_python_program(program) else None


async def _of_text(text: str) -> RepositoryAction | None:
    patch = _DIFF.search(text)
    if patch is not None:
        return RepositoryAction("patch", text[patch.start() :])
    program = await bare_program(text)
    return None if program is None else RepositoryAction("python", program)


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """Return the kind (in lower case) and the text of each fenced block of Markdown that is closed."""
    blocks = []
    fence, kind = "", ""
    block: list[str] = []
    for line in text.splitlines(keepends=True):
        bare = line.strip()
        if not fence:
            opened = _FENCE.fullmatch(line)
            if opened is not None:
                fence, kind, block = opened["fence"], opened["kind"].lower(), []
        elif len(bare) >= len(fence) and set(bare) == {fence[0]}:
            blocks.append((kind, "".join(block)))
            fence = ""
        else:
            block.append(line)
    return blocks


def _of_call(request: ToolCall | ToolCallError) -> RepositoryAction:
    checked = check_call(request, _SCHEMAS) if isinstance(request, ToolCall) else request
    if isinstance(checked, ToolCallError):
        return RepositoryAction("wrong", checked.message)
    if checked.name == "apply_patch":
        return RepositoryAction("patch", str(checked.arguments["patch"]))
    return RepositoryAction("bash" if checked.name == "bash" else "editor", checked.name, checked.arguments)


def _of_block(kind: str, text: str) -> RepositoryAction | None:
    if kind in _SHELL:
        return RepositoryAction("shell", text)
    if kind in ("python", "py", "python3"):
        return RepositoryAction("python", text)
    return RepositoryAction("patch", text) if kind in _PATCH else None
