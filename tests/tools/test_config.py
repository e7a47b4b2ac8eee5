"""Tools from YAML files in verl's shape."""

from __future__ import annotations

import pytest

from tests.tools.library.test_gsm8k import VERLS_FILE
from toolgym.tools import CodeInterpreterTool, from_config
from toolgym.tools.errors import ConfigError, UnknownNameError

GOOD = """
tools:
  - class_name: "toolgym.tools.CodeInterpreterTool"
    config:
      type: native
      num_workers: 4
      rate_limit: 10
      default_timeout: 5
    tool_schema:
      type: "function"
      function:
        name: "code_interpreter"
        description: "Runs code."
        parameters:
          type: "object"
          properties:
            code: {type: "string", description: "The code.", enum: null}
          required: ["code"]
"""


def write(tmp_path, text, name="tools.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_file_in_verls_shape(tmp_path):
    text = GOOD.replace(", enum: null", "")
    [made] = from_config(write(tmp_path, text))
    assert isinstance(made, CodeInterpreterTool)
    assert made.options.num_workers == 4
    assert made.options.default_timeout == 5
    assert made.tool_schema.description == "Runs code."


def test_null_enums_as_verls_own_files_have_them(tmp_path):
    [made] = from_config(write(tmp_path, GOOD))
    assert made.tool_schema.problems({"code": "1"}) == []
    assert "enum" not in made.tool_schema.parameters["properties"]["code"]


def test_the_tools_that_verl_had_are_ours(tmp_path):
    text = VERLS_FILE.replace("toolgym.tools.library.gsm8k.Gsm8kRewardTool", "verl.tools.gsm8k_tool.Gsm8kTool")
    [made] = from_config(write(tmp_path, text))
    assert type(made).__name__ == "Gsm8kRewardTool"
    assert made.tool_schema.description == "A tool for calculating the reward of gsm8k."
    names = ["verl.tools.sandbox_fusion_tools.SandboxFusionTool", "verl.tools.search_tool.SearchTool"]
    config = {"type": "native", "retrieval_service_url": "http://127.0.0.1:1/retrieve"}
    kinds = [
        type(from_config({"tools": [{"class_name": name, "config": config if "search" in name else {}}]})[0])
        for name in names
    ]
    assert [kind.__name__ for kind in kinds] == ["CodeInterpreterTool", "SearchTool"]


def test_a_schema_of_its_own_may_be_left_out():
    [made] = from_config({"tools": [{"class_name": "toolgym.tools.CodeInterpreterTool"}]})
    assert made.name == "code_interpreter"


def test_a_missing_file_names_the_nearest(tmp_path):
    write(tmp_path, GOOD, "tool_config.yaml")
    with pytest.raises(UnknownNameError, match="did you mean 'tool_config.yaml'"):
        from_config(tmp_path / "tool_confg.yaml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tools: [", "not valid YAML"),
        ("[" * 3000, "nested too deeply"),
        ("tools: []\ntools: []", "tools: is given twice"),
        ("", "at top"),
        ("tools: {}", "at tools"),
        ("tools: [{config: {}}]", "at tools.0.class_name"),
        ("tools: [{class_name: CodeInterpreterTool}]", "dotted path"),
        ("tools: [{class_name: toolgym.tools.CodeInterpretTool}]", "did you mean 'CodeInterpreterTool'"),
        ("tools: [{class_name: nowhere.Tool}]", "no module named 'nowhere'"),
        ("tools: [{class_name: pathlib.Path}]", "not a subclass"),
        ("tools: [{class_name: .here.Tool}]", "dotted path"),
        (
            "tools: [{class_name: toolgym.tools.CodeInterpreterTool, config: {default_language: pyton}}]",
            "did you mean 'python'",
        ),
        ("tools: [{class_name: toolgym.tools.BaseTool, tool_schema: {name: x}}]", "cannot be made"),
        (
            "tools: [{class_name: toolgym.tools.CodeInterpreterTool, config: {num_worker: 1}}]",
            "did you mean 'num_workers'",
        ),
        ("tools: [{class_name: toolgym.tools.CodeInterpreterTool, config: {rate_limit: 0}}]", "'rate_limit'"),
        ("tools: [{class_name: toolgym.tools.CodeInterpreterTool, confg: {}}]", "tools.0.confg"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path, text, said):
    with pytest.raises(ConfigError) as caught:
        from_config(write(tmp_path, text))
    assert said in str(caught.value)


def test_two_tools_of_one_name_are_refused():
    entry = {"class_name": "toolgym.tools.CodeInterpreterTool"}
    with pytest.raises(ConfigError, match="same name"):
        from_config({"tools": [entry, entry]})
