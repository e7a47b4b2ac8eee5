"""Runs to look at: the demo, and lines of it with what a page must stand."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from toolgym.viewer.page.write import write_page
from toolgym.viewer.run_index import RunIndex

DEMO = Path(__file__).parents[4] / "front/viewer/demo"
LINES = [json.loads(line) for step in (0, 1) for line in (DEMO / f"{step}.jsonl").read_text().splitlines()]
FAILED = [line["id"] for line in LINES if line["error"]]
BRANCH = next(line for line in LINES if line["parent"])

HOSTILE = (
    "</script><script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'><!-- <script> "
    "\x1b[31mred\x1b[0m \u202egnp.exe \ud800 &amp; <iframe srcdoc='<script>parent.pwned = 1</script>'></iframe>"
)


def changed(line: int = 0, **changes: Any) -> dict[str, Any]:
    """A line of the demo with other values."""
    return copy.deepcopy(LINES[line]) | changes


def hostile() -> dict[str, Any]:
    """A line whose texts are hostile, in every place that has one."""
    value = changed(1, task_id=HOSTILE, env_id=HOSTILE, id=HOSTILE, role=HOSTILE, source=HOSTILE, gts=HOSTILE)
    value |= {"metrics": {HOSTILE: HOSTILE}, "settings": {HOSTILE: HOSTILE}, "group_id": HOSTILE}
    value |= {"error": {"message": HOSTILE, "turn": 1}, "stop_reason": "env_failed"}
    for message in value["messages"]:
        message["content"] = HOSTILE
        message["reasoning_content"] = HOSTILE
        for call in message.get("tool_calls", ()):
            call["function"] = {"name": HOSTILE, "arguments": json.dumps({HOSTILE: HOSTILE})}
    for turn in value["turns"]:
        turn["text"] = HOSTILE
        for call in turn["tool_calls"]:
            call |= {"name": HOSTILE, "text": HOSTILE, "status": HOSTILE, "metrics": json.dumps({"x": HOSTILE})}
        for segment in value["sequences"][0]["segments"]:
            for run in segment["version_runs"]:
                run["version"] = HOSTILE
    return value


def write_run(folder: Path, *values: dict[str, Any] | str, name: str = "1.jsonl") -> Path:
    """Write values as the lines of a run beside the demo's `run.json`; a str is a line as it stands."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [value if isinstance(value, str) else json.dumps(value) for value in values]
    (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", errors="surrogatepass")
    (folder / "run.json").write_bytes((DEMO / "run.json").read_bytes())
    return folder


def address_of(folder: Path, *lines: dict[str, Any] | str) -> str:
    """The address of a page of these lines."""
    write_page(RunIndex(write_run(folder, *lines)), folder / "run.html")
    return (folder / "run.html").as_uri()


def odd_run(folder: Path) -> Path:
    """The demo, lines of verl, lines that are no trajectories, and texts in which upper and lower case differ."""
    verl = {"input": "user\nWhat is 6 × 7?", "output": "It is 42.</think>", "gts": "42", "score": 0.25, "step": 7}
    spoken = changed(3, id="said", score=0.75, group_id="other")
    spoken["messages"][-1]["content"] = 'He said "Ökonomie",\nand C:\\temp – </think> 1/2'
    broken = ['{"score": 1, "input', "<!-- </script> no json at all", "[1, 2]"]
    return write_run(folder, *LINES, verl, verl | {"output": "43"}, spoken, *broken)
