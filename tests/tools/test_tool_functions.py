"""A function with `@tool` is a tool for others too: for transformers, for TRL, and for type checkers."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from toolgym.tools import tool

ROOT = Path(__file__).parents[2]


@tool
def convert(amount: float, unit: str = "km") -> str:
    """Convert a distance to miles.

    Args:
        amount: the distance
        unit: its unit, "km" or "m"
    """
    return f"{amount / (1.609344 if unit == 'km' else 1609.344):.3f} mi"


@tool
async def look_up(city: str) -> str:
    """Look up a city.

    Args:
        city: its name
    """
    return f"{city}: 1"


def test_transformers_takes_it():
    from transformers import AutoTokenizer
    from transformers.utils import get_json_schema

    schema = get_json_schema(convert)["function"]
    assert schema["name"] == "convert"
    assert schema["description"] == convert.tool_schema.description
    assert schema["parameters"]["required"] == ["amount"]
    assert schema["parameters"]["properties"]["amount"] == {"type": "number", "description": "the distance"}
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "rollout/models/tiny_policy")
    chat = [{"role": "user", "content": "How far?"}]
    text = tokenizer.apply_chat_template(chat, tools=[convert, look_up], tokenize=False)
    assert '"name": "convert"' in text
    assert '"name": "look_up"' in text


@pytest.mark.long
def test_trl_trains_with_it(tmp_path):
    """One step of the tiny policy, which calls `code_interpreter`; once a plain function, once a coroutine function."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(TRAINING), tmp_path],
        capture_output=True, text=True, timeout=540, check=False, cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    plain, coroutine = (line for line in done.stdout.splitlines() if line.startswith("calls "))
    assert int(plain.split()[1]) > 0
    assert int(coroutine.split()[1]) > 0


TRAINING = """
    import random
    import sys
    import trl
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.chat_template_utils import qwen3_template
    from toolgym.envs.tasks.arithmetic import ArithmeticTasks
    from toolgym.tools import tool

    policy = "rollout/models/tiny_policy"
    tokenizer = AutoTokenizer.from_pretrained(policy)
    tokenizer.response_template = qwen3_template  # TRL knows that of some templates; this one writes calls as Qwen's
    task = ArithmeticTasks().sample(random.Random(0))
    rows = Dataset.from_list([{"prompt": list(task.messages)}])
    calls = []

    def code_interpreter(code: str) -> str:
        \"\"\"Run a Python program and return what it prints.

        Args:
            code: The program to run.
        \"\"\"
        calls.append(code)
        return "42"

    async def as_coroutine(code: str) -> str:
        return code_interpreter(code)

    as_coroutine.__name__, as_coroutine.__doc__ = code_interpreter.__name__, code_interpreter.__doc__
    for function in (code_interpreter, as_coroutine):
        trainer = trl.GRPOTrainer(
            AutoModelForCausalLM.from_pretrained(policy),
            reward_funcs=lambda completions, **_: [float(len(one)) for one in completions],
            train_dataset=rows,
            processing_class=tokenizer,
            tools=[tool(function)],
            args=trl.GRPOConfig(
                output_dir=sys.argv[1], per_device_train_batch_size=4, num_generations=4, max_steps=1, use_cpu=True,
                max_completion_length=128, report_to=[], save_strategy="no", max_tool_calling_iterations=1, seed=0,
            ),
        )
        trainer.train()
        print("calls", len(calls))
        calls.clear()
"""


@pytest.mark.long
def test_a_type_checker_knows_its_signature(tmp_path):
    """On a tree of links in the packages' layout: mypy does not see through an editable install."""
    package = tmp_path / "toolgym"
    package.mkdir()
    for path in [*(ROOT / "front").iterdir(), ROOT / "tools"]:
        (package / path.name).symlink_to(path)
    (tmp_path / "program.py").write_text(textwrap.dedent(TYPED))
    modules = ["-m", "program", "-m", "toolgym.tools.function", "-m", "toolgym.tools.base"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=skip", "--no-incremental", *modules],
        capture_output=True, text=True, timeout=540, check=False, cwd=tmp_path,
    )  # fmt: skip
    for line in (
        'program.py:13: note: Revealed type is "str"',
        'program.py:14: error: Argument 1 to "__call__" of "ToolFunction" has incompatible type "str"; expected ',
        'program.py:15: error: Unexpected keyword argument "units"',
        'program.py:16: note: Revealed type is "typing.Coroutine[Any, Any, int]"',
        'program.py:17: note: Revealed type is "toolgym.tools.function.FunctionTool"',
    ):
        assert line in done.stdout


TYPED = """\
    from toolgym.tools.function import tool

    @tool
    def convert(amount: float, unit: str = "km") -> str:
        '''Convert.'''
        return unit

    @tool(name="other")
    async def look_up(city: str) -> int:
        '''Look up.'''
        return 1

    reveal_type(convert(3.0, unit="m"))
    convert("x")
    convert(1.0, units="m")
    reveal_type(look_up("a"))
    reveal_type(convert.tool)
"""
