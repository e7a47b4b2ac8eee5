"""Tasks from verl's rows, JSON texts and Arrow's unions included. Needs no verl."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from tests.rollout.adapters.verl.fakes import ROW
from toolgym.rollout.adapters.task_rows import task_of_row
from toolgym.rollout.models.images import picture
from toolgym.tools.errors import ConfigError
from toolgym.tools.message import images_of

KWARGS = {"code_interpreter": {"create_kwargs": {"packages": ["a"], "limit": 3}}}
FORMS = {
    "dicts": KWARGS,
    "text": json.dumps(KWARGS),
    "text for a tool": {"code_interpreter": json.dumps(KWARGS["code_interpreter"])},
    "text for the kwargs": {"code_interpreter": {"create_kwargs": json.dumps({"packages": ["a"], "limit": 3})}},
    "Arrow's union": {**KWARGS, "search": None},
    "Arrow's union of kinds": {"code_interpreter": {**KWARGS["code_interpreter"], "release_kwargs": None}},
}


@pytest.mark.parametrize("given", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("where", ["column", "extra_info", "extra_info as text"])
def test_tools_kwargs_in_every_form_are_the_same(given, where):
    if where == "column":
        task = task_of_row({**ROW, "tools_kwargs": given})
    else:
        extra = {"index": 4, "tools_kwargs": given}
        row = {name: value for name, value in ROW.items() if name != "tools_kwargs"}
        task = task_of_row({**row, "extra_info": extra if where == "extra_info" else json.dumps(extra)})
    assert task.tools_kwargs == KWARGS


def test_the_row_is_the_task():
    task = task_of_row({**ROW, "uid": "u", "agent_name": "toolgym_agent"})
    assert task.messages == ({"role": "user", "content": "What is 2*3?"},)
    assert (task.ground_truth, task.source, task.id) == ("6", "sums", "4")


def test_ground_truths_of_several_types_survive_as_text():
    for truth in ("6", 6, [1, {"a": None}], None):
        assert task_of_row({**ROW, "reward_model": json.dumps({"ground_truth": truth})}).ground_truth == truth


def test_empty_tools_kwargs_are_none():
    for empty in (None, "", "{}", "null", {}):
        assert task_of_row({**ROW, "tools_kwargs": empty}).tools_kwargs == {}


def test_a_table_of_arrow_with_rows_of_several_tools_arrives_whole():
    arrow = pytest.importorskip("pyarrow")
    given = [KWARGS, {"search": {"create_kwargs": {"top": 1}}}, {}]
    table = arrow.Table.from_pylist([{"extra_info": {"tools_kwargs": json.dumps(one)}} for one in given])
    rows = [{**ROW, **row, "tools_kwargs": row["extra_info"]["tools_kwargs"]} for row in table.to_pylist()]
    assert [task_of_row(row).tools_kwargs for row in rows] == given


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tools_kwargs": "{no"}, "tools_kwargs is a text that is no JSON"),
        ({"tools_kwargs": {"search": [1]}}, r"tools_kwargs\['search'\] must be an object"),
        ({"tools_kwargs": {"search": {"create_kwargs": "7"}}}, r"\['create_kwargs'\] must be an object"),
        ({"reward_model": 5}, "reward_model must be an object"),
        ({"raw_prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "expected an image for each place"),
        ({"raw_prompt": [{"role": "user", "content": [{"type": "video"}]}]}, "a text or an image in a message"),
        ({"raw_prompt": []}, "'prompt', a list of messages"),
    ],
)
def test_a_row_of_another_shape_is_refused_by_the_name_of_its_field(change, message):
    with pytest.raises(ConfigError, match=message):
        task_of_row({**ROW, **change})


def test_pictures_of_verl_s_rows_become_images_of_the_task():
    parts = [{"type": "image", "image": Image.new("RGB", (3, 2), "red")}, {"type": "text", "text": "What is it?"}]
    [message] = task_of_row({**ROW, "raw_prompt": [{"role": "user", "content": parts}]}).messages
    assert [part["type"] for part in message["content"]] == ["image_url", "text"]
    [url] = images_of(message["content"])
    assert picture(url).size == (3, 2)


def test_a_row_without_a_prompt_says_what_it_has():
    with pytest.raises(ConfigError, match="'raw_prompt', got the fields data_source"):
        task_of_row({"data_source": "x"})
