"""A request of an agent and its answer, as all wires mean them: OpenAI's chat completions and Responses, Anthropic's
Messages. Wires make and read these; what keeps the tokens knows no wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from toolgym.tools.errors import ToolgymError

IMAGE = "\ufdd0"
"""Stands for an image in a text: a code point that no text has."""

AgentRole = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True)
class WrittenCall:
    """A tool call in an assistant's message, as the agent sends it back. `arguments` are as the wire has them: a JSON
    text, or an object that the agent has parsed."""

    id: str
    name: str
    arguments: str | Mapping[str, Any]


@dataclass(frozen=True)
class AgentMessage:
    """One message of a request.

    `content` is its text; parts are joined by line ends, and None is an empty one. `images` are data URLs, in the order
    in which `IMAGE` stands for them in the text of a user or tool. `reasoning` is the thinking of an
    assistant's message, None where the agent left it out. `call_id` is of the call that a tool's message answers.
    `ids` are those of the `Reply` and its calls that an assistant's message names, by the ids of the message and its
    items, its calls, its thinking's signature, without the prefixes of the wire; foreign ones are among them.
    """

    role: AgentRole
    content: str
    reasoning: str | None = None
    calls: tuple[WrittenCall, ...] = ()
    call_id: str = ""
    ids: frozenset[str] = frozenset()
    images: tuple[str, ...] = ()


@dataclass(frozen=True)
class AgentCall:
    """A request for one turn.

    Attributes:
        wire: name of the wire.
        messages: in order, system ones where the wire has them at their place.
        tools: schemas in the OpenAI shape (`{"type": "function", "function": {...}}`), in the request's order.
        model: as the agent names it; it comes back in the answer.
        max_tokens: most that the agent takes; None: it does not say.
        sampling: of `temperature`, `top_p`, `top_k`, `stop`, `seed` those that it says.
        stream: whether it wants events.
        agent: the sub-agent that its headers name; empty for the main one, or where they say nothing.
        compacts: whether it says that it asks for a summary of its context.
        agent_is_guess: whether `agent` comes from a session id that may also change within one conversation: then the
            messages decide first.
        choices: how many answers it wants.
        plain: whether calls of tools are not wanted (`tool_choice: none`): the turn is answered as a text.
        grammar: what the answer must follow, as `SamplingParams.grammar`; None for anything.
        left_out: names of fields that ask for something that the turn does not get, and that agents send all the same:
            a forced tool call, a tool that its maker's servers run.
        logprobs: whether it wants the log-probabilities of the tokens.
        extra: what only its wire's answer needs, such as `include_usage`.
    """

    wire: str
    messages: tuple[AgentMessage, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    model: str = ""
    max_tokens: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    stream: bool = False
    agent: str = ""
    compacts: bool = False
    agent_is_guess: bool = False
    choices: int = 1
    plain: bool = False
    grammar: tuple[str, str] | None = None
    left_out: tuple[str, ...] = ()
    logprobs: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplyCall:
    """A tool call in a reply. `id` is minted; `arguments` are the text as the policy wrote it, JSON or not."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class SampledToken:
    """A token of a turn, for answers with log-probabilities."""

    text: str
    logprob: float


@dataclass(frozen=True)
class Reply:
    """The answer to a call.

    `id` is minted: at most 40 characters of `[A-Za-z0-9_-]`, and wires make the ids of messages, items and signatures
    from it (`PREFIX_` before it), so that each can be found again. Counts are of tokens: those of the whole context,
    those of it that a cache had, and those that were sampled, thinking included. `stop_text` is the text of the
    request's `stop` that ended the turn; the content ends before it. `tokens` are all that were sampled, if the request
    asked for log-probabilities.
    """

    id: str
    content: str
    reasoning: str | None = None
    calls: tuple[ReplyCall, ...] = ()
    finish: Literal["stop", "length", "tool_calls"] = "stop"
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    created: int = 0
    stop_text: str | None = None
    tokens: tuple[SampledToken, ...] = ()


class CallRefusedError(ToolgymError):
    """A call gets no turn. `status` is HTTP's, `code` the reason as clients know it, such as
    `context_length_exceeded`, and `param` the field of the request that it is about. Ended and exhausted episodes are
    400 or 410: clients retry 408, 409, 429 and 5xx."""

    def __init__(self, status: int, code: str, text: str, param: str | None = None) -> None:
        super().__init__(text)
        self.status, self.code, self.param = status, code, param
