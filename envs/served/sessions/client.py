"""`SessionClient`: sessions on one or several session servers, each pinned to the server that opened it."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import pydantic

from toolgym.envs.served.sessions.backends.base import ActionReply
from toolgym.envs.served.sessions.protocol import ActionResponse, StartResponse, read_reward, read_sid
from toolgym.tools.closeable import AsyncCloseable
from toolgym.tools.errors import (
    ConfigError,
    EpisodeError,
    RemoteSessionError,
    UnknownNameError,
    check_seconds,
    shorten,
)
from toolgym.tools.http import session as http
from toolgym.tools.http.addresses import check_address
from toolgym.tools.http.client import (
    CallError,
    ClientClosedError,
    GarbledError,
    HttpClient,
    HttpRequest,
    LazyClient,
    excerpt,
    json_body,
)
from toolgym.tools.http.replicas import Replica
from toolgym.tools.http.retries import Retries

T = TypeVar("T")

_log = logging.getLogger("toolgym.envs.served.sessions")

ABANDON_TIMEOUT = 10.0

MAX_ANSWER = 32 * 1024 * 1024

MARGIN = 10.0
"""Seconds beyond a call's own deadline until one attempt is given up."""

MAX_DELAY = 2.0
"""Most seconds between two attempts: on average half of it."""


class Reward(NamedTuple):
    """Reward of an episode, see `read_reward`, and the server's whole answer, such as `f2p_count` and `f2p_total`."""

    value: float
    answer: Mapping[str, Any]


class _NoSessionError(CallError):
    pass


class SessionClient(AsyncCloseable):
    """Opens sessions on equal servers that speak the protocol, and continues each on its server.

    A new session goes to the least busy server. A call without an answer is sent again if that is safe. A server that
    is full (429) is asked again, after the `Retry-After` that it gave. Belongs to the event loop that first uses it.

    Args:
        base_url: the servers' addresses, such as `http://host:5000`.
        token: sent as a bearer token; None: nothing is sent.
        start_timeout: seconds that a server may take to open a session.
        action_timeout: the same for an action.
        reward_timeout: the same for a reward, and for the end of an episode.
        patience: seconds beyond these until a call is given up, all its attempts together.
        max_connections: connections at once, to all servers.

    Raises:
        ConfigError: an address or a time cannot be used; says which.

    Every call raises `RemoteSessionError` if no server answered properly in time, and `ConfigError` for a mistake of
    the caller: a task that the server does not have (`UnknownNameError`), a wrong token, another server's address.
    """

    def __init__(
        self,
        base_url: str | Sequence[str],
        *,
        token: str | None = None,
        start_timeout: float = 600.0,
        action_timeout: float = 600.0,
        reward_timeout: float = 300.0,
        patience: float = 120.0,
        max_connections: int = 1024,
    ) -> None:
        addresses = [base_url] if isinstance(base_url, str) else base_url
        if not isinstance(addresses, Sequence) or not addresses:
            raise ConfigError(f"base_url must be the address of a session server, or of several, got {base_url!r}")
        self.urls = tuple(dict.fromkeys(check_address(url, "a session server") for url in addresses))
        check_seconds(
            start_timeout=start_timeout, action_timeout=action_timeout, reward_timeout=reward_timeout, patience=patience
        )
        self.start_timeout, self.action_timeout, self.reward_timeout = start_timeout, action_timeout, reward_timeout
        self._client = LazyClient(
            self,
            self.urls,
            Retries(attempt_margin=MARGIN, patience=patience, max_delay=MAX_DELAY),
            token=token,
            max_connections=max_connections,
            max_answer=MAX_ANSWER,
            health_path="/healthz",
        )
        # Only its server can answer a call of a session: one that is down is asked for about as long as `patience`.
        self._attempts = math.ceil(patience / (MAX_DELAY / 2))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(self.urls)}>"

    async def start(self, instance_hash: str | int) -> OpenSession:
        body = {"instance_hash": str(instance_hash), "request_id": uuid.uuid4().hex}
        read = functools.partial(_answer, StartResponse)
        started, replica = await self.call("/start_instance", body, self.start_timeout, read)
        return OpenSession(
            self, replica, started.sid, started.content, heeds_ids=started.request_id == body["request_id"]
        )

    async def reward(self, sid: str | int) -> Reward:
        """Return the worth of a session by its id: each server is asked whether the session is there."""
        request = HttpRequest("POST", "/compute_reward", json_body({"sid": read_sid(sid)}), self.reward_timeout)
        replicas = self._connected().pool.all
        for attempts in (1, self._attempts):
            failures: dict[Replica, CallError] = {}
            for replica in replicas:
                try:
                    return (await self._connected().call(request, _reward, replica, attempts=attempts))[0]
                except _NoSessionError:
                    continue
                except CallError as error:
                    failures[replica] = error
            replicas = list(failures)
            if not replicas:
                raise RemoteSessionError(f"no server has the session {sid}: it is unknown, has expired, or has another "
                                         f"client ({', '.join(self.urls)})")  # fmt: skip
        raise RemoteSessionError("; ".join(map(str, failures.values())))

    async def close(self) -> None:
        """Close all connections. The sessions stay open on their servers."""
        await self._client.close()

    async def call(
        self,
        path: str,
        body: Mapping[str, Any],
        seconds: float,
        read: Callable[[http.HttpResponse], T],
        *,
        at: Replica | None = None,
        repeatable: bool = True,
    ) -> tuple[T, Replica]:
        request = HttpRequest("POST", path, json_body(body), seconds, repeatable)
        try:
            return await self._connected().call(request, read, at, attempts=self._attempts if at is not None else None)
        except (CallError, ClientClosedError) as error:
            raise RemoteSessionError(f"{path}: {error}") from error

    def _connected(self) -> HttpClient[Replica]:
        try:
            return self._client.connected()
        except ClientClosedError as error:
            raise RemoteSessionError(str(error)) from error


class OpenSession:
    """A session on a server, with its id (digits), its `url`, and the policy's first text, if the server has one."""

    def __init__(
        self, client: SessionClient, replica: Replica, sid: str, greeting: str = "", *, heeds_ids: bool = False
    ) -> None:
        self._client, self._replica = client, replica
        self._heeds_ids = heeds_ids  # an action with a request id may be sent again
        self.sid, self.greeting, self.url = sid, greeting, replica.url

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.sid} at {self.url}>"

    async def act(self, content: str) -> ActionReply:
        """Have a turn of the policy carried out.

        Raises:
            RemoteSessionError: it was not, or nothing is known about it; the message says which.
            EpisodeError: the session takes no more actions.
        """
        body = {"sid": self.sid, "content": content}
        if self._heeds_ids:
            body["request_id"] = uuid.uuid4().hex

        read = functools.partial(_answer, ActionResponse)
        reply = await self._call("/process_action", body, self._client.action_timeout, read, self._heeds_ids)
        return ActionReply(reply.content, reply.done)

    async def postprocess(self) -> None:
        """End the episode: the session takes no more actions, and its reward stays."""
        await self._call("/postprocess", {"sid": self.sid}, self._client.reward_timeout, _nothing)

    async def abandon(self) -> None:
        """End an episode whose reward is not needed, so that its server frees the session now. A failure is logged."""
        try:
            async with asyncio.timeout(ABANDON_TIMEOUT):
                await self.postprocess()
        except (RemoteSessionError, ConfigError, TimeoutError) as error:
            _log.info("session %s was left open on its server: %s", self.sid[:6], shorten(repr(error)))

    async def reward(self) -> Reward:
        return await self._call("/compute_reward", {"sid": self.sid}, self._client.reward_timeout, _reward)

    async def _call(
        self,
        path: str,
        body: Mapping[str, Any],
        seconds: float,
        read: Callable[[http.HttpResponse], T],
        repeatable: bool = True,
    ) -> T:
        answer, _ = await self._client.call(path, body, seconds, read, at=self._replica, repeatable=repeatable)
        return answer


M = TypeVar("M", bound=pydantic.BaseModel)


def _answer(model: type[M], reply: http.HttpResponse) -> M:
    try:
        return model.model_validate(_object(reply))
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise GarbledError(f"the answer makes no sense: {where}: {first['msg']}: {excerpt(reply.body)}") from None


def _reward(reply: http.HttpResponse) -> Reward:
    answer = _object(reply)
    try:
        return Reward(read_reward(answer), answer)
    except ConfigError as error:
        raise GarbledError(str(error)) from None


def _nothing(reply: http.HttpResponse) -> None:
    if reply.status != 200:
        _object(reply)


def _object(reply: http.HttpResponse) -> dict[str, Any]:
    try:
        decoded = json.loads(reply.body)
    except (ValueError, RecursionError):
        decoded = None
    if reply.status == 200:
        if not isinstance(decoded, dict):
            raise GarbledError(f"expected a JSON object, got {excerpt(reply.body)}")
        return decoded
    reason = decoded.get("reason") if isinstance(decoded, dict) else None
    detail = (
        shorten(str(decoded["detail"])) if isinstance(decoded, dict) and "detail" in decoded else excerpt(reply.body)
    )
    text = f"the session server answered {reply.status}: {detail}"
    if reason == "no_session":
        raise _NoSessionError("the server does not know the session: it has expired, or it is another client's")
    if reason == "finished":
        raise EpisodeError(f"the session takes no more actions: {detail}")
    if reason == "no_task":
        raise UnknownNameError(f"the session server has no such task: {detail}")
    if reply.status == 404:
        raise ConfigError(f"{text}. Is that the address of a session server?")
    if 400 <= reply.status < 500:
        raise ConfigError(text)
    raise CallError(text)
