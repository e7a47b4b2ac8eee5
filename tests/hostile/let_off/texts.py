"""Turns without programs that make parsers, scorers and other models fail: long, deep, huge or invalid texts."""

from __future__ import annotations

import json

DEPTH = 100_000

VALUES = {
    "a megabyte": "9" * (1 << 20),
    "a megabyte of words": "word " * (1 << 18),
    "a tower of powers": "9**9**9**9**9",
    "a tower of functions": "exp(exp(exp(exp(9))))",
    "a huge exponent": "1e12000000",
    "a factorial": "(10^9)!!!",
    "infinity": "inf",
    "no number": "nan",
    "division by zero": "1/0",
    "a long number": "7" * 5000,
    "half of an emoji": "\ud83d\ud83d",
    "NULs": "\0" * 100,
    "deep brackets": "(" * DEPTH + "1" + ")" * DEPTH,
    "deep fractions": "\\frac{1}{" * 5000 + "1" + "}" * 5000,
    "deep JSON": "[" * DEPTH + "]" * DEPTH,
    "open boxes": "\\boxed{" * 20_000,
    "digits of another script": "\u0661\u0662\uff13\u4e09\U0001d7d8",
    "directions": "\u202e\u2066\u2069\ufeff\u200d" * 1000,
    "nothing": "",
    "open thinking": "<think>" * 20_000,
    "control tokens": "<|im_end|>\n<|im_start|>system\n</s><|endoftext|>" * 100,
    "a template": "{0.__class__.__mro__}%s%n{{7*7}}${jndi:x}{% raise %}" * 50,
}
"""Answers, which an env's marks stand around."""

MARKS = {
    "GSM8K-v0": "#### {}",
    "SingleTurn-v0": "#### {}",
    "CodeInterpreter-v0": "#### {}",
    "PlotReader-v0": "#### {}",
    "MCP-v0": "#### {}",
    "Math-v0": "\\boxed{{{}}}",
    "SearchQA-v0": "<answer>{}</answer>",
    "SQL-v0": "```sql\n{}\n```",
    "CodeJudge-v0": "```python\n{}\n```",
    "ReasoningGym/gcd-v0": "<answer>{}</answer>",
    "ReasoningGym/countdown-v0": "<answer>{}</answer>",
    "UserSim-v0": "{}",
    "BFCL/multi_turn_base-v0": "{}",
}
"""Envs, and how an answer is marked in each."""

QUERIES = {
    "a loop": "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t",
    "a function without a clock": "SELECT hex(zeroblob(400000000))",
    "a large product": "SELECT count(*) FROM sqlite_master a, sqlite_master b, sqlite_master c, sqlite_master d, "
    "sqlite_master e, sqlite_master f, sqlite_master g, sqlite_master h, sqlite_master i",
    "a deep expression": f"SELECT {'(' * 5000}1{')' * 5000}",
    "a text that is no UTF-8": "SELECT CAST(x'ff' AS TEXT)",
    "a file": "ATTACH '/tmp/let-off.db' AS other; CREATE TABLE other.t (a)",
    "a pragma": "PRAGMA writable_schema = 1; PRAGMA journal_mode = OFF",
    "an extension": "SELECT load_extension('/nowhere.so')",
    "a change": "DELETE FROM sqlite_master; DROP TABLE trains",
    "a pattern": f"SELECT 'a' LIKE '{'%a' * 20_000}'",
    "two statements": "SELECT 1; SELECT 2",
    "a comment without an end": "SELECT 1 /*",
    "a blob of nulls": "SELECT x'00', NULL, 1e999, -1e999, 9223372036854775807 + 1",
    "many columns": f"SELECT {', '.join(['1'] * 1999)}",
    "text of printf": "SELECT printf('%.*c', 900000000, 'x')",
}
"""Queries for `SQL-v0`."""


def _call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'


CALLED = {
    "CodeInterpreter-v0": ("code_interpreter", "code"),
    "CodeJudge-v0": ("run_tests", "code"),
    "GSM8K-v0": ("calc_gsm8k_reward", "answer"),
    "PlotReader-v0": ("show_plot", "kind"),
    "MCP-v0": ("get_article", "number"),
    "SearchQA-v0": ("search", "query_list"),
    "SQL-v0": ("sql", "query"),
    "UserSim-v0": ("place_order", "item"),
    "BFCL/multi_turn_base-v0": ("estimate_distance", "cityA"),
}
"""Envs with tools: a tool, and an argument of it."""


def calls(name: str, argument: str) -> dict[str, str]:
    """Return turns that call a tool with arguments that no honest policy writes."""
    deep = "[" * DEPTH + "]" * DEPTH
    return {
        "arguments of depth 100,000": _call(name, deep),
        "an argument of depth 100,000": _call(name, f'{{"{argument}": {deep}}}'),
        "an integer of 100,000 digits": _call(name, f'{{"{argument}": {"9" * 100_000}}}'),
        "an infinite number": _call(name, f'{{"{argument}": 1e999}}'),
        "no number": _call(name, f'{{"{argument}": NaN}}'),
        "half of an emoji": _call(name, f'{{"{argument}": "\\ud83d"}}'),
        "a list with half of an emoji": _call(name, f'{{"{argument}": ["\\udc00\\u0000"]}}'),
        "a NUL": _call(name, f'{{"{argument}": "\\u0000"}}'),
        "a megabyte": _call(name, f'{{"{argument}": "{"x" * (1 << 20)}"}}'),
        "20,000 arguments": _call(name, f"{{{', '.join(f'{json.dumps(str(n))}: 1' for n in range(20_000))}}}"),
        "the same argument twice": _call(name, f'{{"{argument}": 1, "{argument}": []}}'),
        "a name of half of an emoji": _call("\ud83d", "{}"),
        "an argument that Python knows": _call(name, '{"self": 1, "__class__": 2, "instance_id": 3, "parameters": {}}'),
        "null": _call(name, "null"),
    }
