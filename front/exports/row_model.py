"""`TrajectoryRow`: the shape of a line of trajectories, and of its parts, with the meaning of each field.

docs/format.md and docs/trajectory.schema.json are made from it by `scripts/format_page.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from toolgym.envs.types import StopReason
from toolgym.rollout.trajectory.trajectory import FORMAT_VERSION, Trajectory


class _Row(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


def _about(description: str, **schema: Any) -> Any:
    return Field(description=description, json_schema_extra=schema or None)


TokenId = Annotated[int, Field(ge=0, lt=2**31)]

Json = Annotated[str, Field(json_schema_extra={"contentMediaType": "application/json"})]
"""JSON as a text, for values that may hold anything: a field has one type in all lines."""


class PayloadRow(_Row):
    """Further values of a segment's tokens, to the last bit."""

    name: str = _about("its name, such as `entropy` or `routed_experts`")
    dtype: str = _about("NumPy's name of its type: booleans, integers or floats of at most 64 bits")
    shape: list[int] = _about("its shape, `[tokens, ...]`")
    base64: str = _about("its little-endian bytes in C order as base64")


class VersionRunRow(_Row):
    """Tokens in a row that weights of the same version sampled."""

    version: str = _about("the version, as the engine names it")
    tokens: int = _about("tokens that it sampled", minimum=1)


class SegmentRow(_Row):
    """A run of tokens behind the prompt."""

    token_ids: list[TokenId] = _about("the ids in order")
    is_policy: bool = _about("whether the policy sampled them, so that they are trained on; else the env's")
    logprobs: list[float] = _about("natural-log probability of each id when it was sampled; empty for the env's")
    version_runs: list[VersionRunRow] = _about("versions of the weights that sampled the ids; empty for the env's")
    aligned: list[PayloadRow] = _about("further values of each token; empty for the env's")


class ImageRow(_Row):
    """An image among the ids."""

    sha256: str = _about("SHA-256 of its data URL, which is in a message")
    start: int = _about("place of its first id, the prompt's ids counted too", minimum=0)
    tokens: int = _about("how many ids stand for it", minimum=1)


class SequenceRow(_Row):
    """A context from its prompt to its end: what an engine was sent and sampled, and a row of a batch."""

    prompt_ids: list[TokenId] = _about("the ids before the first one that was sampled")
    segments: list[SegmentRow] = _about("the tokens behind the prompt, in order")
    start_reason: str = _about(
        "why it began: `start`, `template`, `env`, the name of a context policy, or a cause of the capture gateway "
        "(`sub_agent`, `compaction`, `fork`, ...)"
    )
    images: list[ImageRow] = Field([], description="the images among the ids; left out if there are none")


class FunctionRow(_Row):
    """The function of a call."""

    name: str = _about("its name")
    arguments: Json = _about("its arguments, a JSON object as a text")


class MessageCallRow(_Row):
    """A tool call of an assistant message, in the OpenAI shape."""

    model_config = ConfigDict(extra="allow")

    id: str = Field("", description="its id, which its result's `tool_call_id` names")
    type: Literal["function"] = Field("function", description="always `function`")
    function: FunctionRow = _about("the function that is called")


class MessageRow(_Row):
    """A chat message in the OpenAI shape, with those of the last four fields that it needs. Further keys of a task's
    own messages are kept."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "user", "assistant", "tool"] = _about("who speaks")
    content: str | list[dict[str, Any]] | None = _about(
        "the text, without the tool calls that could be read, or a list of texts and images, as OpenAI's parts with "
        "data URLs; null only as a task may have it"
    )
    reasoning_content: str | None = Field(None, description="of an assistant message: thinking, apart from the content")
    tool_calls: list[MessageCallRow] | None = Field(None, description="of an assistant message: its calls")
    tool_call_id: str | None = Field(None, description="of a tool message: id of the call that it answers")
    name: str | None = Field(None, description="of a tool message: the tool; empty if the call could not be read")


class CallRow(_Row):
    """A tool call of a turn, and what became of it."""

    id: str = _about("the call's id")
    name: str = _about("the tool's name as the policy wrote it; empty if it could not be read")
    arguments: Json | None = _about("the arguments with defaults filled in; null if they could not be read")
    status: str = _about("`ok`, the tool's own, `timeout`, `error`, or why it was not run, as `malformed_json`")
    text: str = _about("what the policy read")
    reward: float | None = _about("the tool's reward for the call; null if it is no number")
    seconds: float = _about("seconds that the call took")
    infra_failure: bool = _about("whether the tool's infrastructure failed: the policy is not to blame")
    metrics: Json = _about("the tool's own figures, a JSON object as a text")
    retries: int = _about("requests to servers that the call sent again")


class TurnRow(_Row):
    """A turn of the policy and the observation it led to."""

    text: str = _about("the policy's text, without its end-of-turn token")
    finish_reason: str = _about("the engine's: `stop`, `length` or `abort`")
    prompt_tokens: int = _about("tokens of the context that was sent")
    generated_tokens: int = _about("tokens that were sampled, of all parts together")
    cached_tokens: int = _about("tokens of the context that the engine had in its prefix cache")
    observation_tokens: int = _about("tokens that the env put behind it; 0 if a new sequence began instead")
    tool_calls: list[CallRow] = _about("its tool calls, in order")
    reward: float | None = _about("reward of the env's step; null if the env was not stepped")
    engine_seconds: float = _about("seconds until the engine had answered, resumes included, without `queue_seconds`")
    env_seconds: float = _about("seconds of the env's step, tools included")
    sequence: int = _about("number of the sequence that it was sampled in, from 0")
    resumes: int = _about("how often it was aborted and went on from what it had")
    truncated: bool = _about("whether it ended without an end, by its length or an abort")
    closing_tokens: int = _about("tokens that the env put behind it to end a turn without its end-of-turn token")
    seed: int | None = _about("sampling seed of its first part; null if it had none")
    queue_seconds: float = _about("seconds that it waited for its place among the run's requests")
    sampling: dict[str, Any] = Field(
        {}, description="parameters by name that differ from the trajectory's `sampling`; left out if none does"
    )


class FailureRow(_Row):
    """The error that broke an episode off."""

    message: str = _about("type and text of the error")
    turn: int = _about("number of the turn, from 0")


class PeerRow(_Row):
    """Another member of the trajectory's group."""

    id: str = _about("its `id`")
    reward: float = _about("its reward when the run gave it out")


class TrajectoryRow(_Row):
    """One episode: a line of a file of trajectories.

    It takes what `Trajectory.to_json` writes, and refuses all that `Trajectory.from_json` refuses.
    """

    format_version: int = _about("version of this format", const=FORMAT_VERSION)
    input: str = _about("prompt of the last sequence as a text, special tokens included")
    output: str = _about("tokens behind that prompt as a text, likewise")
    gts: Any = _about("the task's ground truth: any JSON, null for NaN and Infinity")
    score: float = _about("the reward: sum of the rewards of all steps")
    step: int = _about("training step, from 0")
    id: str = _about("id of the trajectory, unique across runs")
    env_id: str = _about("id of the env, or the name of its class")
    task_id: str = _about("id of the task")
    source: str = _about("name of the data set that the task is from")
    group_id: str = _about("the same for all trajectories that a run sampled from one task, unique across runs")
    task_index: int = _about("number of the task in the run, from 0")
    sample_index: int = _about("number of the trajectory in its group, from 0")
    messages: list[MessageRow] = _about("the whole conversation, whatever was taken from the policy's view later")
    tools: list[Json] = _about("schemas of the tools in the OpenAI shape, each a JSON object as a text")
    stop_reason: str = _about("why it ended", enum=[str(reason) for reason in StopReason])
    error: FailureRow | None = _about("the error of a failed episode, else null")
    sampling: dict[str, Any] = _about("sampling parameters by name, `temperature` and `max_new_tokens` among them")
    metrics: dict[str, Any] = _about(
        "the env's metrics of the last step, by name, null for NaN and Infinity; `score` is the scorer's"
    )
    started_at: float = _about("when it began: seconds since the epoch")
    seconds: float = _about("seconds that it took, without those that it stood still")
    validate_: bool = Field(alias="validate", description="whether it was played to validate a policy, not to train it")
    role: str = _about("role in the env that the policy played; `policy` where there is one")
    parent: str | None = _about("id of the trajectory that it was branched from, else null")
    branch_turn: int | None = _about("number of the parent's turn, from 0, before which it was branched, else null")
    settings: dict[str, str] = _about("settings of its run, as short texts by name; empty if it was not played in one")
    level: str = Field("", description="how hard its task says that it is; left out if it does not")
    images: list[str] = Field([], description="data URLs of images among the ids that are in no message")
    peers: list[PeerRow] = Field([], description="the group that was given out before it, if that was whole without it")
    sequences: list[SequenceRow] = _about("the exact tokens: one sequence a context, none if it failed before a prompt")
    turns: list[TurnRow] = _about("the policy's turns, in order")

    @model_validator(mode="before")
    @classmethod
    def _is_trajectory(cls, value: Any) -> Any:
        Trajectory.from_json(value)  # it knows what a type cannot say: lengths, payloads, JSON in texts
        return value


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a line (draft 2020-12)."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **TrajectoryRow.model_json_schema()}
