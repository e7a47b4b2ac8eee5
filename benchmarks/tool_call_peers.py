"""Tool-call parsers of SGLang and vLLM, run by the Python in which they are installed.

`tool_call_parsers.py` starts this program as `PYTHON tool_call_peers.py sglang` or `vllm`. It reads lines of JSON:
first the tools, then a parser's name and a text in each line. It answers every text with the calls that were read. A
text is read by a forked child process, because some parsers take exponential time and hold the interpreter all the
while. The kernel ends a child that needs more than `SECONDS` of processor time, and the text counts as stalled.

vLLM's parsers need no GPU and none of its compiled parts, only its Python files and what they import. Unpack the wheel
into a folder that is on the `PYTHONPATH` of the Python of `make sglang-cpu`, and add the pure Python packages that the
import still names (cbor2, cachetools, py-cpuinfo, ijson and a newer openai for vLLM 0.33.0).
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

SECONDS = 2.0
"""Processor time for one text."""

Tools = Sequence[dict[str, Any]]
Answer = dict[str, Any]
ReadBy = Callable[[str, str], Answer]
"""Reads a text with the parser of a name."""

CONTROLS = """
<|im_end|> <think> </think> <tool_call> </tool_call> <arg_key> </arg_key> <arg_value> </arg_value>
[TOOL_CALLS] [ARGS] [CALL_ID] <|python_tag|> <|tool_call_start|> <|tool_call_end|> ｜DSML｜
<｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜>
<|tool_calls_section_begin|> <|tool_calls_section_end|> <|tool_call_begin|> <|tool_call_argument_begin|>
<|tool_call> <tool_call|> <|"|> <|channel> <channel|> <|tool_response> <turn|>
<minimax:tool_call> </minimax:tool_call>
"""
"""Tokens that vLLM's parsers look for in a vocabulary."""


def sglang_reader(tools: Tools) -> ReadBy:
    """A reader by toolgym's adapter of SGLang's parsers, which splits thinking off as SGLang's server does."""
    from toolgym.tools.parsers import get_parser
    from toolgym.tools.schema import ToolSchema

    schemas = {
        tool["function"]["name"]: ToolSchema(
            tool["function"]["name"], tool["function"].get("description", ""), tool["function"]["parameters"]
        )
        for tool in tools
    }

    def read(name: str, text: str) -> Answer:
        turn = get_parser(f"sglang:{name}")(text, schemas=schemas)
        return {"calls": [[call.name, call.arguments] for call in turn.calls], "errors": bool(turn.errors)}

    get_parser("sglang:hermes")
    return read


def byte_tokenizer() -> Any:
    """Build a tokenizer of bytes and the control tokens of all formats."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: at for at, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROLS.split()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=CONTROLS.split()[0])


def vllm_reader(tools: Tools) -> ReadBy:
    """A reader by vLLM's parsers. Text up to `</think>` is left out, as by its server's reasoning parser."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    request = ChatCompletionRequest(messages=[], model="m", tools=list(tools))
    tokenizer = byte_tokenizer()

    def read(name: str, text: str) -> Answer:
        parser_class = ToolParserManager.get_tool_parser(name)
        try:
            parser = parser_class(tokenizer, request.tools)
        except TypeError:
            parser = parser_class(tokenizer)
        _, closing, rest = text.partition("</think>")
        extracted = parser.extract_tool_calls(rest if closing else text, request)
        calls: list[list[Any]] = []
        for call in extracted.tool_calls or ():
            with contextlib.suppress(ValueError):
                calls.append([call.function.name, json.loads(call.function.arguments)])
        return {"calls": calls, "errors": False}

    return read


READERS: dict[str, Callable[[Tools], ReadBy]] = {"sglang": sglang_reader, "vllm": vllm_reader}


def serve_child(others_end: Connection, pipe: Connection, read: ReadBy) -> None:
    """Answer texts until the pipe closes. The kernel ends the process when a text takes too long."""
    others_end.close()  # this process has a copy of it, and would never see the pipe close
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    while True:
        try:
            name, text = pipe.recv()
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            answer = read(name, text)
        except Exception as error:  # noqa: BLE001  a parser that fails on a text has not read it
            answer = {"calls": [], "errors": False, "failed": f"{type(error).__name__}: {error}"[:200]}
        signal.setitimer(signal.ITIMER_PROF, 0)
        pipe.send(answer)


class Child:
    """A forked process that reads texts, replaced after each text that it does not read in time."""

    def __init__(self, read: ReadBy) -> None:
        self._read = read
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=serve_child, args=(self._pipe, other, self._read), daemon=True)
        self._process.start()
        other.close()

    def answer(self, name: str, text: str) -> Answer:
        """Read a text; report it as stalled if the child ends before it answers."""
        self._pipe.send((name, text))
        try:
            if self._pipe.poll(60 * SECONDS):
                answer: Answer = self._pipe.recv()
                return answer
        except EOFError:
            pass
        self._process.kill()
        self._process.join()
        self._start()
        return {"calls": [], "errors": False, "stalled": True}


def main() -> None:
    """Answer the lines of standard input on what was standard output; the peers' own output goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    read = READERS[sys.argv[1]](json.loads(sys.stdin.readline()))
    child = Child(read)
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        name, text = json.loads(line)
        print(json.dumps(child.answer(name, text)), file=answers, flush=True)


if __name__ == "__main__":
    main()
