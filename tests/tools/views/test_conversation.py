"""A conversation in a notebook: what is folded, and what is left out."""

from __future__ import annotations

import copy
import pickle

from toolgym.tools.message import assistant, tool, user
from toolgym.tools.views.conversation import conversation_html
from toolgym.tools.views.html import View, page


def call(name="f", **arguments):
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_huge_conversation_is_small_and_says_what_it_leaves_out():
    html = page("t", conversation_html([user("<" * 20_000)] * 1_000, where="env.messages"))
    assert len(html) < 1_000_000
    assert "[800 messages left out: env.messages[100:900]]" in html
    assert html.count("[... 19700 characters left out ...]") == 200


def test_the_first_and_the_last_messages_are_shown():
    html = conversation_html([user(f"number {n}.") for n in range(201)])
    assert "[1 messages left out: messages[100:101]]" in html
    assert html.index("number 99.") < html.index("left out") < html.index("number 101.")
    assert "number 100." not in html
    assert conversation_html([user(f"number {n}.") for n in range(200)]).count("number") == 200


def test_calls_and_long_results_are_folded():
    result, code = "line\n" * 100, "x = 1\nprint(x)"
    html = conversation_html(
        [
            {**assistant("I run it.", [call(code=code, n=2)]), "reasoning_content": "hm"},
            tool(result, tool_call_id="1", name="python"),
            tool("short", tool_call_id="2", name="python"),
        ],
        remarks={"1": "ok, 0.250 s"},
    )
    assert (
        "<details><summary>→ f(code=&#x27;x = 1\\nprint(x)&#x27;, n=2)</summary><pre>code:\nx = 1\nprint(x)\nn: 2"
        in html
    )
    assert "<details><summary>(thinking) 2 characters</summary>" in html
    assert "<details><summary>← python · ok, 0.250 s · line</summary>" in html
    assert "<details open><summary>← python · short</summary><pre>short</pre>" in html


def test_a_turn_of_thousands_of_calls_stays_small():
    html = conversation_html([assistant("", [call(text="y" * 10_000)] * 5_000)])
    assert len(html) < 20_000
    assert "[4984 more calls left out]" in html


def test_arguments_that_are_no_object_are_shown_as_they_came():
    broken = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": '}}
    assert "<pre>{&quot;x&quot;: </pre>" in conversation_html([assistant("", [broken])])


def test_a_view_is_a_text_that_a_notebook_shows_richly():
    view = View("plain", "<b>rich</b>")
    assert (view, repr(view), view._repr_html_()) == ("plain", "plain", "<b>rich</b>")
    for twin in (copy.copy(view), pickle.loads(pickle.dumps(view))):
        assert (twin, twin.html) == ("plain", "<b>rich</b>")
