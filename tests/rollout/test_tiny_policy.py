from __future__ import annotations

import json
import random
import subprocess
import sys
import unicodedata

import pytest

from toolgym.envs.tasks.arithmetic import ArithmeticTasks
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.tools.errors import EngineError
from toolgym.tools.library.code_interpreter import CodeInterpreterTool
from toolgym.tools.message import assistant, system, tool, user
from toolgym.tools.parsers.hermes import parse_hermes

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOOLS = [CodeInterpreterTool.default_schema.to_openai()]
MARKERS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.PreTrainedTokenizerFast.from_pretrained(tiny_policy_path())


@pytest.fixture(scope="module")
def model():
    return transformers.AutoModelForCausalLM.from_pretrained(tiny_policy_path()).eval()


@pytest.fixture
def render(tokenizer):
    def to_text(messages, tools=TOOLS, generate=False):
        return tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=generate)

    return to_text


def call(code, *, id="call_0", name="code_interpreter"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": {"code": code}}}


def calling(*calls, content=""):
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def answer(text, id="call_0"):
    return tool(text, tool_call_id=id, name="code_interpreter")


# the folder ---------------------------------------------------------------------------------------------------------


def test_every_file_is_under_five_megabytes():
    sizes = {path.name: path.stat().st_size for path in tiny_policy_path().iterdir()}
    assert set(sizes) == {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert max(sizes.values()) < 5_000_000


def test_finding_the_folder_imports_no_torch():
    code = (
        "import sys; from toolgym.rollout.models.tiny import tiny_policy_path; print(tiny_policy_path())\n"
        "assert not {'torch', 'transformers', 'tokenizers'} & set(sys.modules), sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == str(tiny_policy_path())


def test_a_missing_file_is_named(tmp_path, monkeypatch):
    for path in tiny_policy_path().iterdir():
        if path.name != "model.safetensors":
            (tmp_path / "tiny_policy").mkdir(exist_ok=True)
            (tmp_path / "tiny_policy" / path.name).write_bytes(b"")
    monkeypatch.setattr("toolgym.rollout.models.tiny.__file__", str(tmp_path / "tiny.py"))
    with pytest.raises(EngineError, match=r"model\.safetensors is missing"):
        tiny_policy_path()


def test_it_is_a_qwen3_of_about_a_million_float32_weights(model, tokenizer):
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert 0.7e6 < sum(parameter.numel() for parameter in model.parameters()) < 1.5e6
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.max_position_embeddings == 2048
    assert model.config.eos_token_id == model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.config.pad_token_id == model.generation_config.pad_token_id == tokenizer.pad_token_id


# the tokenizer ------------------------------------------------------------------------------------------------------


def hard_texts():
    rng = random.Random(0)
    yield from (
        "", " ", "\n", "  \n\n\t x  ", "\r\n\r\n y", "I'll don't 'S we'RE", "print((12+34)*56)\n", '{"a": [1, -2.5e3]}',
        "déjà vu e\u0301 ﬁ Å", "日本語 テスト 123 ４５", "عربى ١٢٣", "😀👩‍👩‍👧 flags 🇩🇪", "½ ① x²", "\x00\x7f\ufeff",
        "<|im_start|>user\nhi<|im_end|>\n", "<tool_call>\n{}\n</tool_call><think>a</think>", "<|im_start| >", "</tool_",
    )  # fmt: skip
    for _ in range(500):
        kinds = (range(32, 127), range(160, 0x3000), (9, 10, 13, 32))
        yield "".join(chr(rng.choice(rng.choice(kinds))) for _ in range(rng.randrange(1, 40)))
    yield from (task.messages[-1]["content"] for task in ArithmeticTasks().take(50, seed=0))


def test_every_loader_gives_the_same_ids(tokenizer):
    auto = transformers.AutoTokenizer.from_pretrained(tiny_policy_path())
    assert len(auto) == len(tokenizer)
    for text in hard_texts():
        assert auto(text)["input_ids"] == tokenizer(text)["input_ids"], repr(text)
    assert auto.chat_template == tokenizer.chat_template
    assert (auto.eos_token, auto.pad_token) == (tokenizer.eos_token, tokenizer.pad_token)


def test_text_survives_the_way_to_ids_and_back(tokenizer):
    for text in hard_texts():
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == unicodedata.normalize("NFC", text)


def test_special_tokens_and_markers_are_one_id_each(tokenizer):
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token == "<|endoftext|>"
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    assert set(tokenizer.all_special_tokens) == set(special)
    for token in special + MARKERS:
        assert tokenizer(token)["input_ids"] == [tokenizer.convert_tokens_to_ids(token)]
    everything = tokenizer("".join(special + MARKERS))["input_ids"]
    assert tokenizer.decode(everything, skip_special_tokens=True) == "".join(MARKERS)


def test_each_digit_is_one_token(tokenizer):
    assert [tokenizer.decode([i]) for i in tokenizer("print(407*9)")["input_ids"]][-6:] == list("(407*9)")[-6:]


# the template -------------------------------------------------------------------------------------------------------


def test_a_turn_with_a_call_is_exactly_this(render):
    messages = [user("12*34?"), calling(call("print(12*34)"))]
    turn = render(messages)[len(render(messages[:1], generate=True)) :]
    assert turn == (
        '<tool_call>\n{"name": "code_interpreter", "arguments": {"code": "print(12*34)"}}\n</tool_call><|im_end|>\n'
    )
    assert parse_hermes(turn.removesuffix("<|im_end|>\n")).calls[0].arguments == {"code": "print(12*34)"}


def test_content_and_several_calls_stand_on_lines_of_their_own(render):
    messages = [user("q"), calling(call("1"), call("2", id="call_1"), content=" Let me see. ")]
    turn = render(messages)[len(render(messages[:1], generate=True)) :]
    assert turn == (
        ' Let me see. \n<tool_call>\n{"name": "code_interpreter", "arguments": {"code": "1"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "code_interpreter", "arguments": {"code": "2"}}\n</tool_call><|im_end|>\n'
    )


def test_arguments_may_be_a_json_string_and_a_call_may_be_flat(render):
    nested = call("print('a\\n')")
    as_string = {"function": {"name": "code_interpreter", "arguments": json.dumps({"code": "print('a\\n')"})}}
    expected = render([user("q"), calling(nested)])
    assert render([user("q"), calling(as_string)]) == expected
    assert render([user("q"), calling(nested["function"])]) == expected


def test_the_system_turn_holds_the_message_and_then_the_tools(render):
    text = render([system("Be brief."), user("q")])
    head, _, rest = text.partition("<|im_end|>\n")
    assert head.startswith("<|im_start|>system\nBe brief.\n\n")
    assert json.loads(head.partition("<tools>\n")[2].partition("\n</tools>")[0]) == TOOLS[0]
    assert rest == "<|im_start|>user\nq<|im_end|>\n"


def test_it_works_without_system_message_and_without_tools(render):
    question = "<|im_start|>user\nq<|im_end|>\n"
    assert render([user("q")], tools=None) == question
    assert render([system("S"), user("q")], tools=None) == "<|im_start|>system\nS<|im_end|>\n" + question
    with_tools = render([user("q")])
    assert with_tools.startswith("<|im_start|>system\n")
    assert "<tools>" in with_tools
    assert with_tools.endswith("<|im_end|>\n" + question)
    assert render([user("q")], tools=TOOLS * 2).count('{"type": "function"') == 2


def test_results_of_one_turn_share_a_user_turn(render):
    messages = [user("q"), calling(call("1"), call("2", id="call_1")), answer("1"), answer("2", "call_1")]
    assert render(messages)[len(render(messages[:2])) :] == (
        "<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response><|im_end|>\n"
    )


def test_thinking_and_white_space_are_kept_as_written(render):
    for content in ("<think>\nhm\n</think>\n\nyes", "  padded  ", "\nlines\n\n", "<think>never closed", ""):
        before = [user("q")]
        turn = render([*before, assistant(content), user("more")])[len(render(before, generate=True)) :]
        assert turn == f"{content}<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n"


def test_an_unknown_role_is_refused(render):
    with pytest.raises(Exception, match="expected the role system, user, assistant or tool, got critic"):
        render([user("q"), {"role": "critic", "content": "bad"}])


CONVERSATIONS = {
    "one call": [user("q"), calling(call("print(1)")), answer("1"), assistant("#### 1"), user("and?"), assistant("2")],
    "parallel calls": [
        user("q"),
        calling(call("1"), call("2", id="call_1"), content="<think>both</think>"),
        answer("1"),
        answer("", "call_1"),
        calling(call("3", id="call_2")),
        answer("3\n", "call_2"),
        assistant("<think>so</think>\n\n#### 3"),
    ],
    "thinking across turns": [
        user("a"),
        assistant("<think>\nx\n</think>\n\ny"),
        user("b"),
        assistant("z "),
        user("c"),
    ],
    "a broken call as written": [
        user("q"),
        assistant("<tool_call>\n{bad\n</tool_call>"),
        answer("No."),
        assistant(""),
    ],
    "a system message in the middle": [user("q"), assistant("a"), system("Be kind."), user("r"), assistant("b")],
}


@pytest.mark.parametrize("tools", [TOOLS, None], ids=["tools", "no tools"])
@pytest.mark.parametrize("begins", [[system("S")], []], ids=["system", "no system"])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_rendering_is_append_only(render, name, begins, tools):
    messages = begins + CONVERSATIONS[name]
    whole = render(messages, tools)
    for length in range(1, len(messages)):
        after = messages[length]
        if after["role"] == "tool" and messages[length - 1]["role"] == "tool":
            continue  # the results of one turn are added together
        assert whole.startswith(render(messages[:length], tools))
        if after["role"] == "assistant":
            assert whole.startswith(render(messages[:length], tools, generate=True) + after["content"])


# the policy ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_it_calls_the_tool_on_held_out_tasks_and_gets_some_right(model, tokenizer, render):
    rng = random.Random(1)
    problems = [ArithmeticTasks("test").problem(rng) for _ in range(16)]
    prompts = [tokenizer(render(list(problem.to_task().messages), generate=True))["input_ids"] for problem in problems]
    width = max(map(len, prompts))
    ids = torch.tensor([[tokenizer.pad_token_id] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = (ids != tokenizer.pad_token_id).long()
    output = model.generate(ids, attention_mask=mask, max_new_tokens=48, do_sample=False)[:, width:]
    turns = [tokenizer.decode(row, skip_special_tokens=True) for row in output]
    right = 0
    for problem, turn in zip(problems, turns, strict=True):
        calls = parse_hermes(turn).calls
        right += bool(calls) and calls[0].arguments == {"code": f"print({problem.expression})"}
    assert right >= 4, turns
