"""`SandboxFusionBackend`: sessions on any SandboxFusion server, which has none: programs and its online judge."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from toolgym.envs.served.sessions.backends.actions import bare_program, fenced_blocks
from toolgym.envs.served.sessions.backends.base import ActionReply, Instance, SessionBackend
from toolgym.tools.errors import RemoteSessionError, SandboxError, check_seconds
from toolgym.tools.http import session as http
from toolgym.tools.http.addresses import check_address
from toolgym.tools.http.client import CallError, GarbledError, HttpRequest, LazyClient, excerpt, json_body
from toolgym.tools.http.retries import Retries
from toolgym.tools.http.session import MAX_ANSWER
from toolgym.tools.judge.extraction import language_of
from toolgym.tools.library.outcome import render_result
from toolgym.tools.sandbox import RemoteSandbox
from toolgym.tools.sandbox.base import ExecutionStatus
from toolgym.tools.sandbox.protocol.fusion import Language

OUTPUT_CHARS = 16_384

NO_PROGRAM = "No program was found in your turn. Write it in a block that begins with ```python and ends with ```."


class SandboxFusionBackend(SessionBackend):
    """A backend over SandboxFusion's API: its own server, or `toolgym serve sandbox`. `docs/sessions.md` has its rules.

    Args:
        url: addresses of equal servers.
        token: bearer token for them.
        run_timeout: seconds for a program.
        submit_timeout: seconds for a verdict, without the wait for a full server.
        patience: seconds beyond these until a call is given up, all its attempts together.
        config: SandboxFusion's `config` of `/submit`, such as `{"language": "python"}`.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        token: str | None = None,
        run_timeout: float = 30.0,
        submit_timeout: float = 120.0,
        patience: float = 60.0,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        check_seconds(run_timeout=run_timeout, submit_timeout=submit_timeout, patience=patience)
        self.run_timeout, self.submit_timeout = run_timeout, submit_timeout
        self.config = dict(config or {})
        urls = [
            check_address(address, "a SandboxFusion server") for address in ([url] if isinstance(url, str) else url)
        ]
        retries = Retries(patience=patience)
        self.sandbox = RemoteSandbox(urls, token=token, kind="sandboxfusion", retries=retries)
        self._client = LazyClient(
            self, urls, retries, token=token, max_connections=256, max_answer=MAX_ANSWER, health_path="/v1/ping"
        )

    async def close(self) -> None:
        await self.sandbox.close()
        await self._client.close()

    async def open(self, instance_hash: str, state: bytes | None = None) -> Instance:
        return _Problem(self, instance_hash, None if state is None else json.loads(state))

    async def submit(self, dataset: str, id: str, completion: str) -> Mapping[str, Any]:
        body = {"dataset": dataset, "id": id, "completion": completion, "config": self.config}
        request = HttpRequest("POST", "/submit", json_body(body), self.submit_timeout)
        try:
            verdict, _ = await self._client.connected().call(request, _verdict)
        except CallError as error:
            raise RemoteSessionError(f"/submit: {error}") from error
        return verdict


class _Problem(Instance):
    def __init__(self, backend: SandboxFusionBackend, instance_hash: str, state: Mapping[str, Any] | None) -> None:
        self._backend = backend
        self._dataset, colon, self._id = instance_hash.partition(":")
        self._judged = bool(colon and self._dataset and self._id)
        self._solution: str = state["solution"] if state else ""
        self._ended_well: bool = state["ended_well"] if state else False

    async def process_action(self, content: str) -> ActionReply:
        blocks = fenced_blocks(content)
        if not blocks and (bare := await bare_program(content)) is not None:
            blocks, content = [("python", bare)], f"```python\n{bare}```"
        if not blocks:
            return ActionReply(NO_PROGRAM, True)
        kind, program = blocks[-1]
        language = language_of(kind or "python")
        if language not in get_args(Language):
            return ActionReply(f"The program was not run: {kind!r} is no language that can be run here.")
        timeout = self._backend.run_timeout
        run = await self._backend.sandbox.run(program, language=language, timeout=timeout)
        if run.status is ExecutionStatus.SANDBOX_ERROR:
            raise SandboxError(run.message)
        self._solution, self._ended_well = content, run.ok
        return ActionReply(render_result(run, timeout, OUTPUT_CHARS) or "[no output]")

    async def state(self) -> bytes:
        return json.dumps({"solution": self._solution, "ended_well": self._ended_well}).encode()

    async def compute_reward(self) -> Mapping[str, Any]:
        if not self._judged:
            return {"reward": float(self._ended_well)}
        if not self._solution:
            return {"reward": 0.0}
        verdict = await self._backend.submit(self._dataset, self._id, self._solution)
        tests = [test for test in verdict.get("tests") or () if isinstance(test, Mapping)]
        counts = {"f2p_count": sum(test.get("passed") is True for test in tests), "f2p_total": len(tests)}
        return {"reward": float(verdict["accepted"] is True), **(counts if tests else {})}

    async def close(self) -> None:
        return


def _verdict(reply: http.HttpResponse) -> Mapping[str, Any]:
    if reply.status != 200:
        raise CallError(f"the server answered {reply.status}: {excerpt(reply.body)}")
    try:
        verdict = json.loads(reply.body)
    except ValueError as error:
        raise GarbledError(f"the answer is no JSON: {error}") from None
    if not isinstance(verdict, dict) or not isinstance(verdict.get("accepted"), bool):
        raise GarbledError(f"expected a verdict with 'accepted', got {excerpt(reply.body)}")
    return verdict
