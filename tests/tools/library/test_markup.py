"""The words of displayed HTML."""

import pytest

from toolgym.tools.library.markup import html_text


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("<h1>Title</h1><p>Some\n  <b>bold</b> text</p>", "Title\nSome bold text"),
        ("<ul><li>1<li>2</ul> x < 3 &amp; y", "1\n2\nx < 3 & y"),
        ("a<!-- <b>not this</b> -->b<script>if (1 < 2) {}</script>c", "abc"),
        ("<table><tr><th></th><th>a</th></tr><tr><td>0</td><td>1</td></tr></table>", "| a\n0 | 1"),
        ("<style>never ends", ""),
        ("", ""),
    ],
)
def test_html_reads_as_its_words(source, text):
    assert html_text(source) == text


@pytest.mark.parametrize("part", ["<!--", "<style>", "<a ", "<", "<td>", "<!-- -"])
def test_markup_that_never_ends_keeps_its_words(part):
    assert html_text("begin <b>" + part * 20_000).startswith("begin")
