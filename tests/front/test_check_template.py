"""`toolgym check-template`."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
from types import SimpleNamespace
from unittest import mock

import pytest

from tests.rollout.vlm_families import FAMILIES
from tests.trl_templates import FOLDER as TEMPLATES
from toolgym.cli.app import main
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.tokens.template_check import byte_tokenizer

CASES = {
    "single call",
    "parallel calls",
    "second tool cycle",
    "third tool cycle",
    "tool cycle in a later turn",
    "parallel calls, second tool cycle",
    "thinking",
    "thinking, second tool cycle",
    "thinking, then the user",
    "retry by the user",
    "new user turn",
    "second new user turn",
    "result and user",
    "result and system",
    "system in the middle",
    "empty content",
    "unicode",
    "truncated turn",
    "control tokens in a result",
}


def check(*arguments):
    """The command in this process: its exit status, its output, and that with its errors."""
    out, both = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["toolgym", "check-template", *map(str, arguments)]),
        mock.patch.dict(os.environ, COLUMNS="200"),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(both),
        pytest.raises(SystemExit) as left,
    ):
        main()
    return SimpleNamespace(exit_code=left.value.code, stdout=out.getvalue(), output=out.getvalue() + both.getvalue())


def cases(*arguments):
    done = check(*arguments, "--json")
    report = json.loads(done.stdout)
    assert report["exact"] == (done.exit_code == 0)
    return {case["name"]: case for case in report["cases"]}


@pytest.mark.long
def test_the_tiny_policy_as_a_user_types_it(as_typed, tmp_path):
    done = as_typed(f"toolgym check-template {tiny_policy_path()}", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert all(name in done.stdout for name in CASES)
    assert "verdict: exact" in done.stdout
    assert "a turn ends with: <|im_end|>" in done.stdout
    assert "not supported" not in done.stdout


def test_json_prints_the_cases_and_the_facts():
    done = check(tiny_policy_path(), "--json")
    report = json.loads(done.stdout)
    assert done.exit_code == 0
    assert {case["name"] for case in report["cases"]} == CASES
    assert {case["status"] for case in report["cases"]} == {"append-only", "exact by delta"}
    assert report["facts"]["merged_results"] is True
    assert report["facts"]["ends_of_turn"] == ["<|im_end|>"]
    assert report["tokenizer"] == "the model's own"


@pytest.mark.parametrize("name", ["qwen2_5", "gemma4", "glm4moe", "gptoss", "deepseekv3", "llama3_1"])
def test_a_template_without_a_tokenizer(name):
    done = check(TEMPLATES / f"{name}.jinja")
    assert done.exit_code == 0
    assert "tokenizer: none was found" in done.stdout


def test_a_template_that_rewrites_history_is_exact_by_delta():
    found = cases(TEMPLATES / "qwen3.jinja")
    assert found["single call"]["status"] == "exact by delta"
    assert found["thinking, then the user"]["status"] == "exact by delta"
    assert "earlier turns are changed" in found["thinking, then the user"]["why"]


def test_optional_cases_that_a_template_refuses_are_told_and_forgiven():
    found = cases(TEMPLATES / "qwen3_5_think.jinja")
    refused = found["system in the middle"]
    assert (refused["status"], refused["required"]) == ("not supported", False)
    assert "System message must be at the beginning" in refused["why"]
    assert "one call per message" in cases(TEMPLATES / "gptoss.jinja")["parallel calls"]["why"]


@pytest.mark.parametrize(
    ("name", "said"),
    [("gemma3", "roles must alternate"), ("phi3", "leaves it out")],
)
def test_a_template_without_tools_is_not_supported(name, said):
    done = check(TEMPLATES / f"{name}.jinja")
    assert done.exit_code == 1
    assert "verdict: not exact" in done.stdout
    assert said in " ".join(done.stdout.split())


def test_a_template_that_is_wrong_about_its_delta_is_caught(tmp_path):
    """What follows a result depends on what was said before it."""
    template = (tiny_policy_path() / "chat_template.jinja").read_text()
    counting = template.replace(
        '"<tool_response>\\n" + content',
        '"<tool_response>\\n" + (messages|map(attribute="content")|join|length)|string + content',
    )
    assert counting != template
    (tmp_path / "counting.jinja").write_text(counting)
    done = check(tmp_path / "counting.jinja")
    assert done.exit_code == 1
    assert "depends on the earlier conversation" in " ".join(done.stdout.replace("│", " ").split())


def test_variables_reach_the_template():
    facts = json.loads(check(TEMPLATES / "qwen3_5_think.jinja", "--json").stdout)["facts"]
    assert facts["generation_prompt"].endswith("<think>\n")
    silent = check(TEMPLATES / "qwen3_5_think.jinja", "--json", "--variables", '{"enable_thinking": false}')
    assert json.loads(silent.stdout)["facts"]["generation_prompt"].endswith("</think>\n\n")


@pytest.mark.parametrize("kind", ["chat_template.jinja", "chat_template.json", "tokenizer_config.json"])
def test_a_folder_with_nothing_but_a_template(tmp_path, kind):
    template = (TEMPLATES / "qwen2_5.jinja").read_text()
    text = template if kind.endswith(".jinja") else json.dumps({"chat_template": template})
    (tmp_path / kind).write_text(text)
    done = check(tmp_path)
    assert done.exit_code == 0, done.output
    assert "tokenizer: none was found" in done.stdout


def test_a_folder_with_a_tokenizer_and_no_template(tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_policy_path() / name, tmp_path)
    done = check(tmp_path)
    assert done.exit_code == 1
    assert "no chat template" in done.stdout


def test_a_saved_tokenizer_is_loaded_with_its_template(tmp_path):
    byte_tokenizer((TEMPLATES / "glm4moe.jinja").read_text()).save_pretrained(tmp_path)
    done = check(tmp_path)
    assert done.exit_code == 0
    assert "tokenizer: the model's own" in done.stdout
    assert "the next role's marker ends them" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["/no/such/folder"], "no model folder at '/no/such/folder'"),
        (["{empty}"], "it holds no tokenizer.json"),
        (["{file}"], "expected a folder or a .jinja file"),
        (["{folder}", "--variables", "{"], "--variables: not JSON: "),
        (["{folder}", "--variables", "[1]"], "--variables: expected a JSON object such as"),
        ([], "Missing argument"),
        (["{broken}"], "expected a JSON object in"),
    ],
)
def test_wrong_usage(tmp_path, arguments, said):
    for name in ("empty", "broken"):
        (tmp_path / name).mkdir()
    (tmp_path / "file.txt").write_text("")
    (tmp_path / "broken" / "chat_template.json").write_text("{")
    places = {
        "{empty}": tmp_path / "empty",
        "{file}": tmp_path / "file.txt",
        "{broken}": tmp_path / "broken",
        "{folder}": tiny_policy_path(),
    }
    done = check(*(places.get(one, one) for one in arguments))
    assert done.exit_code == 2
    assert said in " ".join(done.output.replace("│", " ").split())


def test_a_broken_tokenizer_is_told_and_not_guessed_around(tmp_path):
    shutil.copy(tiny_policy_path() / "chat_template.jinja", tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((tiny_policy_path() / "tokenizer.json").read_bytes()[:500])
    done = check(tmp_path)
    assert done.exit_code == 2
    assert "cannot load a tokenizer" in done.output
    assert "verdict" not in done.output


@pytest.mark.parametrize("as_folder", [True, False])
def test_a_template_that_is_no_text(tmp_path, as_folder):
    file = tmp_path / "chat_template.jinja"
    file.write_bytes(b"\xad\xff\x00")
    done = check(tmp_path if as_folder else file)
    assert done.exit_code == 2
    assert "UTF-8" in done.output


def test_special_tokens_that_a_bare_template_does_not_show_are_named(tmp_path):
    """`</assistant>` looks like any other text."""
    file = tmp_path / "chat_template.jinja"
    file.write_text(
        "{%- for message in messages -%}{{- '<' + message.role + '>' + message.content + '</' + message.role + '>' -}}"
        "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<assistant>' -}}{%- endif -%}"
    )
    without = check(file)
    assert without.exit_code == 1
    assert "give the model's folder, or each token with --special" in without.stdout
    named = check(file, *(part for role in ("user", "assistant") for part in ("--special", f"</{role}>")))
    assert "a turn ends with: </assistant>" in named.stdout
    refused = check(tiny_policy_path(), "--special", "</assistant>")
    assert refused.exit_code == 2
    assert "special tokens are for a template without a tokenizer" in refused.output


def test_images_are_compared_with_the_processor_beside_the_tokenizer(tmp_path):
    processor = FAMILIES["LLaVA 1.5"]()
    processor.save_pretrained(tmp_path)
    result = check(tmp_path, "--json")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["exact"]) == (0, True)
    images = ("image of the user", "image in a result", "image in a later turn")
    assert {case["status"] for case in report["cases"] if case["name"] in images} == {"append-only"}
    template = tmp_path / "chat_template.jinja"
    template.write_text(template.read_text().replace(repr("<image>\n"), '""'))
    result = check(tmp_path)
    assert result.exit_code == 0, "texts are exact still"
    assert "image of the user (optional)" in result.stdout
    assert "it drops images of such messages" in result.stdout
    (tmp_path / "processor_config.json").write_text("{")
    assert "cannot load a processor from" in check(tmp_path).stdout


def test_words_that_a_template_looks_for_are_shown_also_as_json(tmp_path):
    template = (
        "{% set off = '/no_think' in messages[0].content %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
        "{% if off %}<think></think>{% endif %}{% endif %}"
    )
    (tmp_path / "chat_template.jinja").write_text(template)
    assert json.loads(check(tmp_path, "--json").stdout)["facts"]["switch_words"] == {"system": ["/no_think"]}
    assert "words in earlier messages (system) change what follows" in check(tmp_path).stdout
