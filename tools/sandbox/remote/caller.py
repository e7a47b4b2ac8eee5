"""Calls of sandbox servers: an HTTP client that knows which API each server has."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Sequence
from typing import TypeVar

from toolgym.tools.errors import ConfigError, SandboxClosedError
from toolgym.tools.http.client import CallError, ClientClosedError, HttpClient, HttpRequest, excerpt
from toolgym.tools.http.replicas import Replica
from toolgym.tools.http.retries import AttemptError, Retries
from toolgym.tools.http.session import HttpResponse, HttpSession
from toolgym.tools.sandbox.facts import SandboxFacts
from toolgym.tools.sandbox.remote.response_parsing import json_object, read_facts

T = TypeVar("T")

DESCRIPTION = "/openapi.json"

HEALTH = "/v1/ping"
"""Path that both kinds of server answer at once, without a token."""


class ServerKind(enum.StrEnum):
    """The API that a server has."""

    TOOLGYM = "toolgym"
    """`toolgym serve sandbox`: SandboxFusion's API and sessions."""
    SANDBOXFUSION = "sandboxfusion"
    """SandboxFusion's API alone: every call is a clean start."""


class SandboxReplica(Replica):
    """One sandbox server, with its API and facts once it was asked, and how many sessions this client has there."""

    def __init__(self, url: str, kind: ServerKind | None = None) -> None:
        super().__init__(url)
        self.kind = kind
        self.sessions = 0
        self.question: asyncio.Task[ServerKind] | None = None
        self.facts = SandboxFacts()


class Caller:
    """Calls sandbox servers from one event loop. It closes the HTTP session too."""

    def __init__(self, replicas: Sequence[SandboxReplica], retries: Retries, session: HttpSession) -> None:
        self.replicas = list(replicas)
        self._retries = retries
        self._client = HttpClient(self.replicas, retries, session, health_path=HEALTH, prepare=self._kind)

    async def close(self) -> None:
        questions = [replica.question for replica in self.replicas if replica.question is not None]
        for task in questions:
            task.cancel()
        await self._client.close()
        await asyncio.gather(*questions, return_exceptions=True)

    async def call(
        self,
        request: HttpRequest,
        read: Callable[[HttpResponse], T],
        at: SandboxReplica | None = None,
        *,
        attempts: int | None = None,
        for_session: bool = False,
    ) -> tuple[T, SandboxReplica]:
        """As `HttpClient.call`; a call `for_session` goes to the server of ours with the fewest sessions.

        Raises CallError, ConfigError for the caller's mistake, and SandboxClosedError.
        """
        try:
            if not for_session:
                return await self._client.call(request, read, at, attempts=attempts)
            return await self._client.call(
                request, read, among=self._with_sessions, load=lambda replica: (replica.sessions, replica.in_flight)
            )
        except ClientClosedError:
            raise SandboxClosedError("the sandbox is closed") from None

    async def kind(self, replica: SandboxReplica) -> ServerKind:
        """Return the API of a server, which is asked once.

        Raises CallError if it cannot be asked now, and ConfigError as `read_kind`.
        """
        try:
            async with asyncio.timeout(self._retries.connect_timeout * 2):
                return await self._kind(replica)
        except AttemptError as error:
            raise CallError(str(error), unreached=True) from None
        except TimeoutError:
            raise CallError(f"{replica.url} did not tell in time what it is", unreached=True) from None

    def _with_sessions(self) -> list[SandboxReplica]:
        able = [replica for replica in self.replicas if replica.kind is not ServerKind.SANDBOXFUSION]
        if not able:
            raise CallError("SandboxFusion's API has no sessions")
        return able

    async def _kind(self, replica: SandboxReplica) -> ServerKind:
        """Ask a server for its API; calls that need it at the same time share one request."""
        if replica.kind is None:
            if replica.question is None or replica.question.done():
                replica.question = asyncio.create_task(self._ask_kind(replica))
                replica.question.add_done_callback(_retrieve)
            question = replica.question
            await asyncio.wait({question})
            if question.cancelled():
                raise AttemptError("the sandbox was closed", sent=False)
            replica.kind = question.result()
        return replica.kind

    async def _ask_kind(self, replica: SandboxReplica) -> ServerKind:
        try:
            reply = await self._client.exchange(replica, HttpRequest("GET", DESCRIPTION), self._retries.connect_timeout)
        except AttemptError as error:
            if error.sent:  # the call that waits for this was not sent
                raise AttemptError(str(error), sent=False, after=error.after) from None
            raise
        if reply.status >= 500:
            answered = f"{replica.url} answered {reply.status}: {excerpt(reply.body)}"
            replica.failed(answered)
            raise AttemptError(answered, sent=False)
        replica.facts = read_facts(reply)
        return read_kind(replica.url, reply)


def _retrieve(task: asyncio.Task[ServerKind]) -> None:
    if not task.cancelled():
        task.exception()  # retrieved, so that asyncio does not log it if all callers were cancelled


def read_kind(url: str, reply: HttpResponse) -> ServerKind:
    """Read a server's API from its description. Raises ConfigError if it has neither, or refuses the token."""
    if reply.status in (401, 403):
        raise ConfigError(
            f"the sandbox server {url} answers {reply.status}: it wants a bearer token, and got none or a wrong one"
        )
    paths = json_object(reply).get("paths") if reply.status == 200 else None
    if isinstance(paths, dict) and "/run_code" in paths:
        return ServerKind.TOOLGYM if "/sessions/{id}/cells" in paths else ServerKind.SANDBOXFUSION
    raise ConfigError(
        f"{url} is no sandbox server: {url}{DESCRIPTION} should describe one with /run_code (it answered "
        f"{reply.status}). Where only /run_code can be reached, behind a gateway for example, give the address as "
        "sandbox_fusion_url, or kind='sandboxfusion'"
    )
