"""`custom_extract_logic`: Python of the client's that finds the program in a model's text. It runs in the sandbox."""

from __future__ import annotations

import json
import secrets

from toolgym.tools.sandbox.base import Sandbox
from toolgym.tools.serving.json_bodies import problem

TIMEOUT = 10.0
"""Seconds that the logic may take."""

_DRIVER = """
import dataclasses, json, re, sys
@dataclasses.dataclass
class CodeBlock:
    priority: int
    code: str
    language: str = ""
completion = sys.stdin.read()
_blocks = []
def submit_code_blocks(blocks):
    _blocks.extend([int(one.priority), str(one.code), str(one.language)] for one in blocks)
def extract_fenced_code(text):
    found = re.findall(r"```([^\\n]*)\\n(.*?)\\n\\s*```", text, re.S)
    return [CodeBlock(30, code, tag.strip().lower()) for tag, code in found]
exec(compile(LOGIC, "<custom_extract_logic>", "exec"))
print("\\n" + WORD + json.dumps(_blocks))
"""
"""What the logic can use is SandboxFusion's: `CodeBlock`, `completion`, `submit_code_blocks`, `extract_fenced_code`."""


async def custom_program(sandbox: Sandbox, logic: str, completion: str, language: str) -> str | None:
    """Return the program that a client's logic finds: of the blocks with the highest priority the first one in the
    language, or else the first one; None where it submits none.

    Raises:
        InvalidRequestError: the logic fails, or takes too long.
    """
    word = secrets.token_hex(16)
    code = f"LOGIC = {logic!r}\nWORD = {word!r}\n{_DRIVER}"
    run = await sandbox.run(code, stdin=completion, timeout=TIMEOUT)
    lines = [line for line in run.stdout.split("\n") if line.startswith(word)]
    if not lines:
        problem_text = run.stderr.strip().split("\n")[-1] or run.message or run.status.value
        raise problem(("config", "custom_extract_logic"), f"it did not end well: {problem_text[:300]}")
    blocks = json.loads(lines[-1].removeprefix(word))
    best = [block for block in blocks if block[0] == max(other[0] for other in blocks)]
    chosen = [block for block in best if block[2] == language] or best
    return str(chosen[0][1]) if chosen else None
