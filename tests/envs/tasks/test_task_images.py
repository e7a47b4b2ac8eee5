"""Tasks that bring images: as parts, as columns beside the text, and from files."""

import base64
import io
import json

import pytest
from PIL import Image

from toolgym.envs.tasks.loading import load_tasks
from toolgym.envs.tasks.stored import from_jsonl, from_parquet
from toolgym.envs.tasks.task import Task
from toolgym.envs.tasks.writing import write_tasks
from toolgym.rollout.recording.run_folder import tasks_hash
from toolgym.tools.errors import ConfigError
from toolgym.tools.message import images_of, text_of


def png(color):
    data = io.BytesIO()
    Image.new("RGB", (2, 2), color).save(data, format="PNG")
    return data.getvalue()


RED, BLUE = png("red"), png("blue")


def url(data):
    return "data:image/png;base64," + base64.b64encode(data).decode()


def row(text, *images):
    return {"prompt": [{"role": "user", "content": text}], "images": list(images), "data_source": "d"}


@pytest.mark.parametrize("form", [RED, {"bytes": RED, "path": None}, url(RED), {"image": url(RED)}, "picture"])
def test_a_column_of_images_takes_the_places_in_the_text(form):
    form = Image.open(io.BytesIO(RED)) if form == "picture" else form
    before = row("<image>Which is red, this or <image>?", form, BLUE)
    task = Task.from_row(before)
    content = task.messages[0]["content"]
    assert [part["type"] for part in content] == ["image_url", "text", "image_url", "text"]
    assert text_of(content) == "Which is red, this or \n?"
    shown = [base64.b64decode(image.partition(",")[2]) for image in images_of(content)]
    assert Image.open(io.BytesIO(shown[0])).getpixel((0, 0)) == (255, 0, 0)
    assert shown[1] == BLUE
    assert task.to_row() == before


def test_parts_bring_their_own_or_take_one_of_the_column():
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "image_url", "image_url": {"url": url(RED)}}]
    task = Task.from_row(row(parts, BLUE))
    assert images_of(task.messages[0]["content"]) == [url(BLUE), url(RED)]
    assert task.to_row() == row(parts, BLUE)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (row("no place", RED), "0 places '<image>', and the column 'images' 1 images"),
        (row("<image> <image>", RED), "expected an image for each place"),
        (row("<image>", "https://example.com/a.png"), "not fetched"),
        (row("<image>", "missing.png"), r"missing\.png"),
        (row("<image>", b"nothing"), "PNG, JPEG"),
        (row([{"type": "video", "video": "a"}]), "expected a part with a text or an image"),
    ],
)
def test_what_cannot_be_shown_is_refused_by_name(bad, why):
    with pytest.raises(ConfigError, match=why):
        Task.from_row(bad)


def test_paths_are_relative_to_the_file(tmp_path):
    (tmp_path / "red.png").write_bytes(RED)
    (tmp_path / "tasks.jsonl").write_text(json.dumps(row("<image>?", "red.png")) + "\n")
    for tasks in (load_tasks(tmp_path / "tasks.jsonl"), from_jsonl(tmp_path / "tasks.jsonl")):
        [task] = tasks
        assert images_of(task.messages[0]["content"]) == [url(RED)]
    other = tmp_path / "other"
    other.mkdir()
    for name, load in (("tasks.jsonl", from_jsonl), ("tasks.parquet", from_parquet)):
        write_tasks(other / name, [task, Task.from_row(row("none"))])
        assert [again.messages for again in load(other / name)] == [task.messages, Task.from_row(row("none")).messages]


def test_a_text_with_the_place_and_no_images_stays_text():
    assert Task.from_row(row("say <image>")).messages[0]["content"] == "say <image>"


def test_parquet_with_a_column_of_bytes(tmp_path):
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    rows = [row("<image>?", {"bytes": RED, "path": None}), row("plain")]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    tasks = list(load_tasks(tmp_path / "t.parquet"))
    assert images_of(tasks[0].messages[0]["content"]) == [url(RED)]
    assert tasks[1].messages[0]["content"] == "plain"
    assert (
        load_tasks([{"q": "<image>?", "images": [RED], "a": "1"}], columns={"prompt": "q", "ground_truth": "a"})
        .tasks[0]
        .messages
        == tasks[0].messages
    )


def test_a_row_as_json_has_its_images_in_the_messages():
    picture = Image.open(io.BytesIO(RED))
    for brought in (RED, picture):
        task = Task.from_row(row("<image>What?", brought))
        written = json.loads(json.dumps(task.to_json_row()))
        assert "images" not in written
        assert Task.from_row(written).messages == task.messages
        assert images_of(task.messages[0]["content"])
    plain = Task.from_row({"prompt": [{"role": "user", "content": "x"}], "images": []})
    assert plain.to_json_row() == plain.to_row()


def test_a_run_knows_its_tasks_with_pictures_again():
    def hashed():
        return tasks_hash([Task.from_row(row("<image>", Image.open(io.BytesIO(RED))))])

    assert hashed() == hashed()
    assert hashed() != tasks_hash([Task.from_row(row("<image>", BLUE))])
