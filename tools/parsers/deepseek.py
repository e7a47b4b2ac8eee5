"""The formats of DeepSeek V3 and R1, and of V3.1 and V3.2-Exp.

V3 writes the kind, the name and a fenced block, V3.1 the name and the arguments:

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>code_interpreter
    ```json
    {"code": "print(1)"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>code_interpreter<｜tool▁sep｜>{"code": "print(1)"}<｜tool▁call▁end｜>...

Decisions, each with a test:

* A call counts with or without the markers of the section around it; a section that holds no call is an error.
* A marker inside a JSON string does not end the call.
* A call without its closing marker is an error, even if its JSON is complete.
"""

from __future__ import annotations

import re

from toolgym.tools.parsers.sections import SectionFormat, section_parser

SECTION, END_SECTION = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
OPEN, SEPARATOR, CLOSE = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
SHAPE_V3 = f"{SECTION}{OPEN}function{SEPARATOR}tool\n```json\n{{...}}\n```{CLOSE}{END_SECTION}"
SHAPE_V31 = f"{SECTION}{OPEN}tool{SEPARATOR}{{...}}{CLOSE}{END_SECTION}"

_MARKS = (SECTION, END_SECTION, OPEN, CLOSE)
_NAME = r"(?P<name>[^\s<>{}`]+)"
# None of this format's markers holds a character that is special in a pattern.
_HEAD_V3 = re.compile(rf"\s*function\s*{SEPARATOR}\s*{_NAME}\s*```json\s*")
_HEAD_V31 = re.compile(rf"\s*{_NAME}\s*{SEPARATOR}")

parse_deepseek_v3 = section_parser(
    SectionFormat(*_MARKS, head=_HEAD_V3, closing=re.compile(rf"\s*```\s*{CLOSE}"), shape=SHAPE_V3)
)
parse_deepseek_v31 = section_parser(
    SectionFormat(*_MARKS, head=_HEAD_V31, closing=re.compile(rf"\s*{CLOSE}"), shape=SHAPE_V31)
)
