"""The page in a real Chromium: each view, by mouse and keyboard."""

from __future__ import annotations

import json

import pytest

from tests.front.viewer.page.runs import BRANCH, DEMO, FAILED, LINES, address_of, changed
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.viewer.run_index import RunIndex
from toolgym.viewer.tokens import TokenTexts, tokens_of

pytestmark = pytest.mark.asyncio(loop_scope="package")

BAD = [
    line["id"]
    for line in LINES
    if line["error"] or any(call["status"] != "ok" for turn in line["turns"] for call in turn["tool_calls"])
]


async def opened(page):
    """The id of the trajectory that is open; "" if none is."""
    return await page.eval("document.body.dataset.shows === 'detail' && view ? view.row.id : ''")


async def test_the_list_shows_all_rows_and_asks_for_nothing(page, demo):
    await page.open(demo)
    assert page.requests == [demo]
    assert await page.text("#count") == "45 of 45"
    shown = await page.eval("[...document.querySelectorAll('.row')].map((row) => row.innerText)")
    assert 20 < len(shown) < 45  # those on the screen alone
    assert LINES[0]["task_id"] in shown[0]
    await page.eval("$('list').scrollTop = 1e6")
    await page.until("document.querySelector('#row-44')")


async def test_bins_and_stop_reasons_filter_and_heads_sort(page, demo):
    await page.open(demo)
    await page.click(".bars button:last-child")
    await page.until("query === 'reward=1'")
    assert await page.eval("order.every((at) => run.row(at).reward === 1)")
    await page.click(".bars button:last-child")
    await page.until("query === ''")
    await page.click("#chips .bad")
    await page.until("query === 'stop=engine_failed'")
    assert await page.eval("order.map((at) => run.row(at).id)") == FAILED
    await page.click("#heads .tokens")
    await page.until("query.endsWith('sort:-tokens')")
    assert await page.eval("order.map((at) => run.row(at).id)") == FAILED[::-1]
    await page.eval("location.hash = ''")
    await page.until("order.length === 45")


async def test_many_rewards_fall_into_even_bins(page, tmp_path):
    rows = [changed(0, id=f"{n}", score=n / 37 - 1) for n in range(75)]
    await page.open(address_of(tmp_path, *rows))
    bins = await page.eval("binsOf(run.reward).map((bin) => run.reward.filter(bin.holds).length)")
    assert (sum(bins), len(bins) > 10) == (75, True)
    await page.click(".bars button:nth-child(3)")
    await page.until("query.startsWith('reward>=')")
    assert len(await page.eval("order")) == bins[2]


async def test_a_click_opens_the_conversation_with_calls_and_results(page, demo):
    await page.open(demo)
    await page.click("#row-1")
    await page.until("document.querySelector('#panel .message')")
    text = await page.text("#panel")
    line = LINES[1]
    assert line["messages"][1]["content"] in text
    assert "print(718-694)" in text
    assert await page.text("#panel .message.tool pre") == line["turns"][0]["tool_calls"][0]["text"]
    assert await page.eval("document.querySelectorAll('.message.assistant').length") == len(line["turns"])
    await page.press("e")  # all is folded out
    assert line["settings"]["history"] in await page.eval("document.querySelector('.about').textContent")
    await page.filter(f"id={FAILED[0]}")
    await page.press("Escape", "j", "Enter")
    await page.until("document.querySelector('.failure')")
    assert "closed the connection" in await page.text(".failure")


async def test_a_long_text_is_folded_and_never_cut(page, tmp_path):
    text = "\n".join(f"line {n}" for n in range(500)) + "the end"
    value = changed(1)
    value["messages"][1]["content"] = text
    await page.open(address_of(tmp_path, value) + f"#row={value['id']}")
    await page.until("document.querySelector('.more')")
    assert "the end" not in await page.text(".message.user")
    await page.click(".more")
    assert await page.eval("document.querySelector('.message.user pre').textContent") == text
    await page.press("e", "e")
    assert "the end" not in await page.text(".message.user")


async def test_tokens_are_those_of_the_library(page, demo):
    index = RunIndex(DEMO).read_all()
    await page.open(demo)
    each = (
        "[id, span.kind, span.sequence, span.turn, span.logprobs?.[at] ?? null, span.versions?.[at] ?? null,"
        " span.values?.entropy[at] ?? null]"
    )
    spans = f"spansOf(JSON.parse(run.line(row.at))).flatMap((span) => span.ids.map((id, at) => {each}))"
    shown = await page.eval(f"run.rows.map((row) => {spans})")
    for row, tokens in zip(index.rows, shown, strict=True):
        expected = tokens_of(index.trajectory(row))
        assert tokens == [
            [
                token.id,
                token.kind,
                token.sequence,
                token.turn,
                token.logprob,
                token.version,
                token.values.get("entropy"),
            ]
            for token in expected
        ]


async def test_a_turn_without_tokens_has_none_here_either(page, demo):
    value = changed(next(n for n, line in enumerate(LINES) if len(line["turns"]) == 2))
    value["turns"].insert(0, value["turns"][0] | {"generated_tokens": 0})
    await page.open(demo)
    turns = await page.eval(f"spansOf({json.dumps(value)}).flatMap((span) => span.ids.map(() => span.turn))")
    assert turns == [token.turn for token in tokens_of(Trajectory.from_json(value))]
    assert 1 in turns


@pytest.mark.parametrize(
    "kind", ["float16", "float32", "float64", "int8", "uint8", "bool", "int16", "int32", "int64", "uint64"]
)
async def test_payloads_of_every_kind_are_read(page, demo, kind):
    import numpy as np

    from toolgym.rollout.trajectory.token_sequence import array_to_json

    values = np.array([0, 1, 1, 0] if kind == "bool" else [0, 1, 100, 5], dtype=kind)
    if "float" in kind:
        values = np.array([0, -1.5, 6e-5, 1e-6, np.inf], dtype=kind)
    await page.open(demo) if not page.requests else None
    read = await page.eval(f"numbersOf({json.dumps(array_to_json(values))}).map(String)")
    assert [float(text) for text in read] == values.astype(float).tolist()


async def test_the_keyboard_moves_in_the_tokens_and_says_all_of_each(page, demo):
    line = LINES[1]
    await page.open(f"{demo}#row={line['id']}")
    await page.press("t")
    await page.until("document.querySelector('.token.current')")
    texts = TokenTexts(DEMO)
    policy = line["sequences"][0]["segments"][0]
    facts = (await page.text(".info")).split()
    assert {str(policy["token_ids"][0]), "policy,", "step-0"} <= set(facts)
    await page.press("ArrowRight", "ArrowRight")
    facts = await page.text(".info")
    assert f"\n{policy['token_ids'][2]}\n" in facts
    assert json.dumps(texts.text(policy["token_ids"][2])) in facts
    assert f"{policy['logprobs'][2]:.4g}" in facts
    assert "-0.866" in facts
    await page.press("p")
    assert "turn 1" in await page.text(".info")
    await page.press("Home")
    assert "prompt" in await page.text(".info")


@pytest.mark.parametrize("name", ["log-prob", "entropy", "version", "advantage"])
async def test_tokens_of_the_policy_are_coloured(page, demo, name):
    await page.open(f"{demo}#row={LINES[1]['id']}&view=tokens")
    select = "document.querySelector('.token-bar select')"
    await page.eval(f"{select}.value = '{name}'; {select}.dispatchEvent(new Event('change'))")
    colours = "new Set([...document.querySelectorAll('.span.%s .token')].map((token) => token.style.background))"
    assert await page.eval(f"[...{colours % 'policy'}].every((colour) => colour)")
    assert await page.eval(f"[...{colours % 'prompt'}]") == [""]
    if name in ("log-prob", "entropy"):
        assert await page.eval(f"({colours % 'policy'}).size") > 3
    await page.eval(f"{select}.value = 'kind'; {select}.dispatchEvent(new Event('change'))")


async def test_times_are_those_of_the_turns(page, demo):
    line = LINES[1]
    await page.open(f"{demo}#row={line['id']}&view=timings")
    text = await page.text("#panel")
    assert f"whole {line['seconds']:.3g} s" in text
    assert await page.eval("document.querySelectorAll('.time').length") == len(line["turns"])
    share = "parseFloat(document.querySelector('.time .track .%s').style.width)"
    turn = line["turns"][0]
    longest = max(each["engine_seconds"] + each["env_seconds"] + each["queue_seconds"] for each in line["turns"])
    for part in ("engine", "env"):
        assert await page.eval(share % part) == pytest.approx(100 * turn[f"{part}_seconds"] / longest, abs=0.1)


async def test_the_tree_shows_branches_and_a_click_opens_one(page, demo):
    await page.open(f"{demo}#row={BRANCH['id']}")
    await page.press("b")
    await page.until("document.querySelector('.tree .lane')")
    family = {BRANCH["parent"], *(line["id"] for line in LINES if line["parent"] == BRANCH["parent"])}
    shown = await page.eval(
        "[...document.querySelectorAll('.lane')].map((lane) => run.row(Number(lane.dataset.at)).id)"
    )
    assert set(shown) >= family
    assert await page.eval("run.row(Number(document.querySelector('.lane.this').dataset.at)).id") == BRANCH["id"]
    await page.click(".lane circle")
    await page.until(f"view.row.id === {json.dumps(shown[0])}")
    await page.press("Tab")
    await page.eval("document.querySelector('.lane:last-of-type').focus()")
    await page.press("Enter")
    await page.until(f"view.row.id === {json.dumps(shown[-1])}")


async def test_a_group_stands_side_by_side_with_its_advantages_and_a_diff(page, demo):
    await page.open(f"{demo}#row={LINES[1]['id']}")
    await page.press("g")
    await page.until("document.querySelector('.diff .come')")
    table = await page.text("#panel table")
    assert table.count("-0.866") == table.count("+0.866") == 2
    assert (await page.text(".diff .gone"), await page.text(".diff .come")) == ("24", "#### 24")
    assert (await page.text(".diff .come mark")).strip() == "####"
    equal = await page.eval("document.querySelectorAll('.diff .equal').length")
    await page.click(".diff .more")
    assert await page.eval("document.querySelectorAll('.diff .equal').length") > equal
    await page.click("#panel tbody tr:first-child button")
    await page.until(f"view.row.id === {json.dumps(LINES[0]['id'])}")


@pytest.mark.parametrize(
    ("a", "b"),
    [("abcd", "abcd"), ("abcd", "axcd"), ("", "ab"), ("abcabba", "cbabac"), ("xaby", "yabx"), ("aaaa", "aa")],
)
async def test_a_diff_is_shortest_and_gives_both_lists_back(page, demo, a, b):
    if not page.requests:
        await page.open(demo)
    runs = await page.eval(
        f"diffLines([...{json.dumps(a)}].map((text) => ({{ text }})), [...{json.dumps(b)}].map((text) => ({{ text }})))"
    )
    sides = ["".join(line["text"] for run in runs for line in run[side]) for side in ("gone", "come")]
    assert sides == [a, b]
    common = sum(len(run["gone"]) for run in runs if run["equal"])
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for x, left in enumerate(a):
        for y, right in enumerate(b):
            table[x + 1][y + 1] = table[x][y] + 1 if left == right else max(table[x][y + 1], table[x + 1][y])
    assert common == table[-1][-1]


async def test_every_key_does_what_the_help_says(page, demo):
    await page.open(demo)
    await page.press("j", "j", "k", "Enter")
    await page.until("view")
    assert await opened(page) == LINES[0]["id"]
    await page.press("j")
    await page.until(f"view.row.id === {json.dumps(LINES[1]['id'])}")
    for key, view in {"t": "tokens", "i": "timings", "g": "group", "r": "json", "c": "conversation"}.items():
        await page.press(key)
        await page.until(f"$('panel').dataset.view === '{view}'")
    await page.press("n")
    await page.until(f"view.row.id === {json.dumps(BAD[0])}")
    await page.press("n")
    await page.until(f"view.row.id === {json.dumps(BAD[1])}")
    await page.press("N")
    await page.until(f"view.row.id === {json.dumps(BAD[0])}")
    await page.press("Escape")
    await page.until("document.body.dataset.shows === 'list'")
    await page.press("/")
    assert await page.eval("document.activeElement.id") == "filter"
    await page.press("f", "a", "i", "l", "e", "d")
    await page.until("query === 'failed' && order.length === 2")
    await page.press("Enter", "Enter")
    await page.until("document.body.dataset.shows === 'detail'")
    assert await opened(page) in FAILED
    await page.press("?")
    assert "next, previous failure" in await page.text("#help")
    await page.press("Escape")
    assert not await page.eval("$('help').open")


async def test_an_address_opens_a_row_a_view_and_a_filter(page, demo):
    await page.open(f"{demo}#row={BRANCH['id']}&view=json&q=branch")
    assert await opened(page) == BRANCH["id"]
    assert await page.eval("[order.length, $('filter').value]") == [
        sum(bool(line["parent"]) for line in LINES),
        "branch",
    ]
    await page.eval("location.hash = '#row=none-such'")
    await page.until("$('summary').innerText.includes('No trajectory none-such')")


async def test_json_keeps_every_digit(page, demo):
    await page.open(f"{demo}#row={LINES[1]['id']}&view=json")
    assert json.loads(await page.eval("document.querySelector('.json').textContent")) == LINES[1]


async def test_arrow_keys_move_in_the_tabs_and_in_the_list(page, demo):
    await page.open(demo)
    await page.press("End")
    assert await page.eval("list.at") == len(LINES) - 1
    await page.press("PageUp")
    assert 0 < await page.eval("list.at") < len(LINES) - 5
    await page.press("Home", "Enter")
    await page.until("view")
    await page.eval("$('tab-conversation').focus()")
    for key, name in (
        ("ArrowRight", "tokens"),
        ("ArrowLeft", "conversation"),
        ("ArrowLeft", "json"),
        ("Home", "conversation"),
    ):
        await page.press(key)
        await page.until(f"document.activeElement.id === 'tab-{name}' && $('panel').dataset.view === '{name}'")
    assert await page.eval("document.querySelectorAll('#tabs [tabindex=\"0\"]').length") == 1
    assert await opened(page) == LINES[0]["id"]


async def test_the_report_of_the_run_is_a_tab_apart(page, demo):
    await page.open(demo)
    await page.click("#show-report")
    await page.until("$('report').shadowRoot?.querySelectorAll('svg').length > 3")
    assert "45" in await page.eval("$('report').shadowRoot.querySelector('table').innerText")
    await page.press("Escape")
    await page.until("document.body.dataset.shows === 'list' && $('report').hidden")
