"""Images of messages in the formats of other tools: none is dropped."""

import dataclasses
import json

import pytest

from toolgym.exports.atif import as_atif
from toolgym.exports.writing import Tally
from toolgym.rollout.trajectory.file import TrajectoryWriter, read_trajectories
from toolgym.tools.message import described, image, text_part

PART = image(b"\x89PNG\r\n\x1a\n" + bytes(30))
URL = PART["image_url"]["url"]


@pytest.fixture
def seen(demo):
    """A trajectory whose task and first tool result have an image."""
    trajectory = next(item for item in demo if item.tool_calls and item.messages[-1]["role"] == "assistant")
    messages = [message.copy() for message in trajectory.messages]
    for role in ("user", "tool"):
        message = next(message for message in messages if message["role"] == role)
        message["content"] = [text_part(message["content"]), PART]
    return dataclasses.replace(trajectory, messages=tuple(messages))


def exported(export, seen, path, *arguments):
    with TrajectoryWriter(path / "run.jsonl") as writer:
        writer.write(seen)
    assert next(read_trajectories(path / "run.jsonl")).messages == seen.messages
    code, out, _ = export(path / "run.jsonl", *arguments)
    assert code == 0, out


def test_atif(seen):
    value = as_atif(seen, "tiny", Tally())
    pictures = json.dumps(value).count(
        json.dumps({"type": "image", "source": {"media_type": "image/png", "path": URL}})
    )
    assert pictures == 2
    atif = pytest.importorskip("atif", reason="needs the extra export")
    atif.Trajectory.model_validate(value)


def test_inspect(export, seen, tmp_path):
    pytest.importorskip("inspect_ai")
    from inspect_ai.log import read_eval_log

    exported(export, seen, tmp_path, "--to", "inspect", "--out", tmp_path / "log.eval")
    [sample] = read_eval_log(str(tmp_path / "log.eval")).samples
    images = [part for message in sample.messages if isinstance(message.content, list) for part in message.content]
    assert [part.image for part in images if part.type == "image"] == [URL, URL]


def test_parquet_has_them_as_json_texts(export, seen, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    exported(export, seen, tmp_path, "--to", "parquet", "--out", tmp_path / "out.parquet")
    [row] = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    texts = [message["content"] for message in row["messages"]]
    assert [json.loads(text)[1] for text in texts if text.startswith("[{")] == [PART, PART]


def test_people_read_what_it_is(seen):
    assert described(next(m for m in seen.messages if m["role"] == "tool")["content"]).endswith("[image/png, 0.0 kB]")
