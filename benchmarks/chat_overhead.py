"""What the tokens of one more tool result cost, beside tokenising its text alone and beside verl's context builder.

    python benchmarks/chat_overhead.py [--repeats 60]

Each line is a number of tools offered and a length of history. The targets: ours is flat within 1.3 times over both,
and at most 0.15 ms above tokenising the text. All columns are measured in turns in one run; the fastest of
the repeats is printed, so that other work on the machine counts little.
The column of verl needs verl; to add it without its dependencies' weight:

    pip install --no-deps --target FOLDER verl==0.9.1 && pip install --target FOLDER ray tensordict==0.10.0 --no-deps \\
        codetiming hydra-core omegaconf antlr4-python3-runtime==4.9.3 orjson pyvers importlib_metadata zipp msgpack
    PYTHONPATH=FOLDER python benchmarks/chat_overhead.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trl

from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.models.tokenizer import load_tokenizer
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.tools.message import Message, tool, user
from toolgym.tools.schema import ToolSchema

TOOLS = (0, 1, 10, 40)
HISTORIES = (1_000, 8_000, 32_000)
RESULT = "result: 12 value of the number\n" * 4


def schemas(count: int) -> list[ToolSchema]:
    """Tools of five arguments each, about 280 tokens."""
    properties = {
        f"argument_{at}": {"type": "string", "description": "the value of the parameter " * 3} for at in range(5)
    }
    parameters = {"type": "object", "properties": properties, "required": ["argument_0"]}
    return [ToolSchema(f"tool_{at}", "calculate the sum of a number " * 4, parameters) for at in range(count)]


def verl_builder(tokenizer: Any) -> Any:
    """verl's builder for Qwen, or None."""
    try:
        from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder
    except ImportError as error:
        print(f"no column of verl: {error} (the top of this file says how to install it)\n")
        return None
    return create_continuous_token_builder(tokenizer, hf_model_type="qwen2")


Works = dict[str, Callable[[], Any]]


def milliseconds(lines: list[Works], repeats: int) -> list[dict[str, float]]:
    """The least time of each, measured in turns over all lines; one measurement is several calls of a quick one."""
    calls: list[dict[str, int]] = []
    for works in lines:
        calls.append({})
        for name, work in works.items():
            work()
            start = time.perf_counter()
            work()
            calls[-1][name] = max(1, min(100, round(0.004 / (time.perf_counter() - start))))
    times = [dict.fromkeys(works, float("inf")) for works in lines]
    for _ in range(repeats):
        for at, works in enumerate(lines):
            for name, work in works.items():
                start = time.perf_counter()
                for _ in range(calls[at][name]):
                    work()
                times[at][name] = min(times[at][name], (time.perf_counter() - start) / calls[at][name] * 1e3)
    return times


def main() -> None:
    """Print the table and whether the targets hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=60, help="measurements of each")
    repeats = parser.parse_args().repeats
    tokenizer = load_tokenizer(tiny_policy_path())
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja").read_text()
    builder = verl_builder(tokenizer)
    plain = tokenizer.backend_tokenizer
    places: list[tuple[int, int]] = []
    lines: list[Works] = []
    for count in TOOLS:
        offered = schemas(count)
        chat = ChatRenderer(tokenizer, offered)
        filler = tokenizer.encode("the number is 12. ", add_special_tokens=False)
        for history in HISTORIES:
            # A long first message, so that its rendering is the history; then the turn that called the tool.
            asked: list[Message] = [user("the number is 12. " * (history // len(filler)))]
            made = {"name": "tool_0", "arguments": {}}
            turn: Message = {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "call_0", "type": "function", "function": made}],  # type: ignore[typeddict-item]
            }
            new = [tool(RESULT, tool_call_id="call_0", name="tool_0")]
            sampled = [*tokenizer.encode("I call it.", add_special_tokens=False), chat.end_of_turn_id]
            context = chat.prompt(asked) + sampled

            works: Works = {
                "text": lambda: plain.encode(RESULT, add_special_tokens=False).ids,
                "ours": lambda chat=chat, new=new, ids=context: chat.extend(new, ids[-4:]),  # type: ignore[misc]
            }
            if builder is not None:
                shown: Any = [one.to_openai() for one in offered] or None
                answered = [*asked, turn]
                works["verl"] = lambda asked=answered, new=new, ids=context, tools=shown: builder.merge_context_tokens(
                    asked, [*asked, *new], ids, tools=tools
                )
            places.append((count, len(context)))
            lines.append(works)
    rows = [(*place, times) for place, times in zip(places, milliseconds(lines, repeats), strict=True)]
    columns = list(rows[0][2])
    print(f"{'tools':>6s} {'history':>8s} " + " ".join(f"{name:>9s}" for name in columns) + f" {'ours-text':>10s}   ms")
    for count, history, times in rows:
        values = " ".join(f"{times[name]:9.3f}" for name in columns)
        print(f"{count:6d} {history:8d} {values} {times['ours'] - times['text']:10.3f}")
    given = [times["ours"] for _, _, times in rows]
    above = [times["ours"] - times["text"] for _, _, times in rows]
    for said, value, most in (
        ("slowest to fastest line, ours", max(given) / min(given), 1.3),
        ("above tokenising the text, ms", max(above), 0.15),
    ):
        print(f"{said:32s} {value:7.3f}  target at most {most}: {'holds' if value <= most else 'does not hold'}")


if __name__ == "__main__":
    main()
