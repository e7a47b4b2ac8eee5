"""What NeMo-Gym runs on and its servers do not use here: Ray, wandb; and a model server that a test writes."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import types
from pathlib import Path


def install(monkeypatch):
    """Let NeMo-Gym be imported without Ray and wandb, and its agents found."""
    import nemo_gym

    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.58.0" if name == "ray" else version(name))
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(Histogram=object))
    monkeypatch.syspath_prepend(str(Path(nemo_gym.__file__).parents[1]))


class Answer:
    """A response of aiohttp's client in shape."""

    def __init__(self, status, content, cookies):
        self.status, self.ok, self.cookies = status, status < 400, cookies
        self.content = self
        self._content = content

    async def read(self):
        return self._content

    def raise_for_status(self):
        if not self.ok:
            raise RuntimeError(f"{self.status}: {self._content!r}")


class Model:
    """A model server: `policy(items)` gives each turn a tool call's code, or an answer; `cut` ends them early."""

    def __init__(self, policy, cut=False):
        self.policy, self.cut, self.turns = policy, cut, 0

    def answer(self, body):
        items = body["input"]
        said = self.policy([one for one in items if one.get("type") == "function_call_output"])
        self.turns += 1
        if said.startswith("####"):
            part = {"type": "output_text", "text": said, "annotations": []}
            item = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]}
        else:
            arguments = json.dumps({"code": said})
            item = {
                "type": "function_call",
                "call_id": f"c{self.turns}",
                "name": "code_interpreter",
                "arguments": arguments,
            }
        response = {
            "id": f"r{self.turns}", "created_at": 0.0, "model": "m", "object": "response", "output": [item],
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": body["tools"],
            "incomplete_details": {"reason": "max_output_tokens"} if self.cut else None,
        }  # fmt: skip
        return json.dumps(response).encode()
