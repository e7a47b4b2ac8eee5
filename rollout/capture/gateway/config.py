"""The capture gateway's settings, from a YAML file and from flags, checked before anything starts."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import pydantic
from pydantic import Field

from toolgym.tools.errors import ConfigError
from toolgym.tools.serving.config import ServerSpec, ServingConfig, flag, is_loopback


class CaptureConfig(ServingConfig):
    """Settings of `toolgym serve capture`: those of every server (`ServingConfig`), and its own.

    The control API always needs `token`. If no token is set, a random one is generated.

    Attributes:
        token: secret of the control API, sent as `Authorization: Bearer ...`. None: a random one, which the command
            prints. Other users of this machine can read a command line: prefer `token_file` or the environment.
        token_file: file that holds the token. If the file does not exist, it is created with a random token, readable
            by its owner only.
        port: TCP port; 0: any free one.
        workers: processes that share the port: one, since a session lives in the process that opened it.
        max_concurrency: calls that the engine answers at once.
        queue_timeout: most seconds that a call waits for its place at the engine; then 429, which clients repeat.
        engine: as `toolgym rollout` has it: `tiny`, an SGLang server's URL, another server's with its /v1, a model
            folder, or a model's name on the hub. The environment's TOOLGYM_API_KEY is its key.
        tokenizer: tokenizer folder or name, if the engine's own path is not on this machine.
        out: folder of the run, with the files of `toolgym rollout`. A server that is started again adds to them.
        open_by: opens sessions: `control` (POST /sessions with the server's token), or `agents` too, each by its first
            request, under the name in its path or its header x-episode, or one for each key.
        agents_key: key that agents must show to open sessions, with `open_by: agents`. It opens no control route.
            None: any key opens a session, which only this machine may do.
        cors_origins: origins of web pages whose agents may call the wires from a browser, `*` for any; the control API
            is closed to all of them.
        public_url: address of this server for agents; None: the one that the request to open a session went to.
        max_sessions: sessions that are open at once; more are refused (429).
        session_idle_timeout: seconds without a call after which a session is ended as failed (`episode_timeout`), and
            written.
        heartbeat: seconds between two signs of life in a stream while the policy speaks.
        keep_ended: ended sessions that are remembered: their agents get 410, and who asks again for their end gets the
            same answer. Earlier ones are unknown (404).
        max_new_tokens: most tokens of one turn, if the session does not say; agents may ask for fewer.
        temperature: of sampling, if the session does not say.
        max_calls: most calls of an episode, if the session does not say; None: any number. The next one gets 410.
        agents_sampling: of `temperature`, `top_p` and `top_k` those that agents may set, if the session does not say.
        formats: what becomes of a request for a format of the answer, if the session does not say: `refuse`, `follow`
            (with a grammar, if the engine can) or `ignore`.
        ignored: request fields that are ignored and counted, if the session does not say.
        refused: request fields that are refused instead of ignored, if the session does not say.
        untrained: causes of sequences (`side_call`, `compaction`, `sub_agent` ...) and states of answers (`retracted`,
            `constrained`) that are left out of trajectories, and counted, if the session does not say.
        refuse_long_prompts: answer of a prompt that is too long, if the session does not say: `1`: 400, upon which many
            agents compact their context; `0`: an empty answer that was cut by its length.
        max_response_tokens: most tokens of an episode's sequence behind its prompt, if the session does not say; None:
            what the engine's context holds.
        engine_timeout: seconds for one answer of the engine, if the session does not say.
        template_kwargs: further variables for the chat template, such as `{"enable_thinking": false}`.
        fsync: when the journal of open sessions is flushed to the disk: `never` leaves it to the operating system, so a
            killed server loses nothing and a crashed machine may; `turn` flushes it before each answer.
        parser: how the model writes tool calls, by a parser's name; None: as the chat template shows it.
        seed: of sampling; with the same seed, a session in the same place of its run is sampled alike. None: at
            random.
    """

    spec = ServerSpec(
        command="capture",
        name="capture gateway",
        worker="toolgym.rollout.capture.gateway.app",
        hides_memory=True,
    )

    port: int = flag(8090, ge=0, le=65535)
    workers: int = Field(1, ge=1, le=1)
    max_concurrency: int = Field(4096, ge=1)
    queue_timeout: pydantic.FiniteFloat = Field(600.0, gt=0)
    engine: str = flag("tiny", min_length=1)
    tokenizer: str | None = flag(None)
    out: Path = flag(Path("capture-out"))
    open_by: Literal["control", "agents"] = flag("control")
    agents_key: pydantic.SecretStr | None = flag(None)
    cors_origins: tuple[str, ...] = ("*",)
    public_url: str | None = flag(None, pattern=r"^https?://[^/?#\s]+[^?#\s]*$")
    max_sessions: int = flag(4096, ge=1)
    session_idle_timeout: pydantic.FiniteFloat = flag(3600.0, gt=0)
    heartbeat: pydantic.FiniteFloat = Field(10.0, gt=0)
    keep_ended: int = Field(256, ge=1)
    max_new_tokens: int = flag(4096, ge=1)
    temperature: pydantic.FiniteFloat = flag(1.0, ge=0)
    max_calls: int | None = flag(None, ge=1)
    agents_sampling: tuple[str, ...] = ()
    formats: Literal["refuse", "follow", "ignore"] = flag("refuse")
    ignored: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    untrained: tuple[str, ...] = ("side_call", "constrained")
    refuse_long_prompts: int = flag(0, ge=0, le=1)
    max_response_tokens: int | None = flag(None, ge=1)
    engine_timeout: pydantic.FiniteFloat = Field(600.0, gt=0)
    template_kwargs: Mapping[str, Any] = flag(default={})
    fsync: Literal["never", "turn"] = "never"
    parser: str | None = flag(None)
    seed: int | None = flag(None)

    _generated: bool = pydantic.PrivateAttr(default=False)

    @property
    def agents_secret(self) -> str | None:
        return self.agents_key.get_secret_value() if self.agents_key is not None else None

    @property
    def generated_secret(self) -> str | None:
        """The token, if it was generated and no file holds it."""
        return self.secret if self._generated else None

    @classmethod
    def load(cls, path: Path | None = None, flags: Mapping[str, Any] | None = None) -> Self:
        return super().load(path, flags).guarded()

    def guarded(self) -> Self:
        """Return these settings with a token: a random one if there is none."""
        if self.token is not None:
            return self
        config = self.model_copy(update={"token": pydantic.SecretStr(_new_token())})
        config._generated = True
        return config

    def _check_reachable(self) -> None:
        if self.open_by == "agents" and self.agents_key is None and not is_loopback(self.host):
            raise ConfigError(
                f"host: {self.host!r} can be reached from other machines, and with `open_by: agents` every client "
                "there could open sessions: set agents_key, or listen on 127.0.0.1"
            )

    def _with_token_from(self, path: Path) -> Self:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return super()._with_token_from(path)
        except OSError as error:
            raise ConfigError(f"token_file: cannot create {str(path)!r}: {error}") from None
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(_new_token() + "\n")
        return super()._with_token_from(path)


def _new_token() -> str:
    return f"ctl-{secrets.token_urlsafe(32)}"
