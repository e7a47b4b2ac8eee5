"""Draw the pictures of docs/concepts.md and docs/capture.md into docs/drawings, from a trajectory of the demo run.

    python scripts/drawings.py

They are SVG with the colours of the page's theme: light and dark.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from toolgym.rollout import group_advantages, load_tokenizer, make_batch, tiny_policy_path
from toolgym.viewer.run_index import RunIndex
from toolgym.viewer.tokens import SeenToken, TokenTexts, tokens_of

ROOT = Path(__file__).resolve().parents[1]
DEMO, OUT = ROOT / "front/viewer/demo", ROOT / "docs/drawings"
WIDTH = 900

STYLE = """
svg.drawing {
  --ink: #1f2328; --soft: #59636e; --line: #8c959f; --paper: #ffffff;
  --prompt: #eaeef2; --policy: #c5e8cf; --env: #ffe3c2; --wrong: #ffd0cc;
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
}
@media (prefers-color-scheme: dark) {
svg.drawing {
  --ink: #e6edf3; --soft: #9da7b3; --line: #6e7681; --paper: #0d1117;
  --prompt: #2a3038; --policy: #1c4a2c; --env: #5c3d17; --wrong: #6a2a2a;
}
}
svg.drawing text { fill: var(--ink); }
svg.drawing .soft { fill: var(--soft); }
svg.drawing .words { font-family: system-ui, sans-serif; }
svg.drawing .line { stroke: var(--line); fill: none; stroke-width: 1.5; }
svg.drawing .paper { fill: var(--paper); }
svg.drawing .box { stroke: var(--line); stroke-width: 1; }
svg.drawing .prompt { fill: var(--prompt); } svg.drawing .policy { fill: var(--policy); }
svg.drawing .env { fill: var(--env); } svg.drawing .wrong { fill: var(--wrong); }
"""


class Drawing:
    """Collects the elements of one picture. Lengths are pixels of a picture that is 900 wide."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def text(self, x: float, y: float, text: str, size: float = 13, kind: str = "words", anchor: str = "start") -> None:
        style = f'font-size="{size}" text-anchor="{anchor}" class="{kind}" xml:space="preserve"'
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {style}>{html.escape(text)}</text>')

    def box(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        self.parts.append(f'<rect {place} rx="4" class="box {kind}"/>')

    def arrow(self, points: Sequence[tuple[float, float]]) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" class="line" marker-end="url(#head)"/>')

    def labelled(self, x: float, y: float, width: float, lines: Sequence[str], kind: str = "prompt") -> None:
        """Draw a box with a name and lines below it."""
        self.box(x, y, width, 26 + 17 * (len(lines) - 1), kind)
        for number, line in enumerate(lines):
            size, style = (13.5, "words") if number == 0 else (11.5, "words soft")
            self.text(x + width / 2, y + 18 + 17 * number, line, size, style, "middle")

    def token(self, x: float, y: float, text: str, id: int, kind: str, below: Sequence[str] = ()) -> float:
        """Draw a token with its id, and further rows below it. Returns its width."""
        width = max(7.3 * len(text) + 8, 30)
        self.box(x, y, width, 34, kind)
        self.text(x + width / 2, y + 15, text, 11.5, "", "middle")
        self.text(x + width / 2, y + 28, str(id), 9.5, "soft", "middle")
        for number, row in enumerate(below):
            self.text(x + width / 2, y + 47 + 13 * number, row, 9.5, "" if number == 0 else "soft", "middle")
        return width

    def write(self, name: str, height: float) -> None:
        head = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        head += '<path d="M0 0 L8 4 L0 8 z" style="fill: var(--line)"/></marker>'
        start = f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing" viewBox="0 0 {WIDTH} {height:.0f}">'
        body = "\n".join([start, f"<style>{STYLE}</style>", f"<defs>{head}</defs>", *self.parts, "</svg>", ""])
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT / name).write_text(body.replace("#head", f"#{name[:-4]}-head").replace('"head"', f'"{name[:-4]}-head"'))


def shown(text: str) -> str:
    """A token's text with its blanks and ends of lines visible."""
    return text.replace(" ", "·").replace("\n", "↵")


def episode() -> tuple[list[SeenToken], TokenTexts]:
    """The shortest episode of the demo that called its tool well and solved its task."""
    index = RunIndex(DEMO).read_all()
    solved = [row for row in index.rows if row.success and row.turns == 2 and not row.problems]
    row = min(solved, key=lambda row: (row.tokens, row.number))
    return list(tokens_of(index.trajectory(row))), TokenTexts(DEMO)


def draw_tokens() -> None:
    """Draw how the ids of one episode lie, with mask and log-probs."""
    tokens, texts = episode()
    prompt = [token for token in tokens if token.kind == "prompt"]
    kept = prompt[-9:] + tokens[len(prompt) :]
    drawing = Drawing()
    x, y, row = 8.0, 48.0, 92
    for place, (kind, words) in enumerate(
        [("prompt", "prompt_ids: what the chat template wrote"), ("policy", "sampled by the policy"),
         ("env", "put there by the env: a tool's result")]
    ):  # fmt: skip
        left = 8 + [0, 330, 530][place]
        drawing.box(left, 10, 16, 16, kind)
        drawing.text(left + 23, 23, words, 13)
    left_out = f"… {len(prompt) - 9} more"
    drawing.text(x, y + 20, left_out, 11.5, "soft")
    x += 7.3 * len(left_out) + 8
    for token in kept:
        text = shown(texts.text(token.id))
        if x + max(7.3 * len(text) + 8, 30) > WIDTH - 70:
            x, y = 8.0, y + row
        mask = {"prompt": "", "policy": "1", "env": "0"}[token.kind]
        logprob = "" if token.logprob is None else f"{token.logprob:.2f}"
        x += drawing.token(x, y, text, token.id, token.kind, [mask, logprob]) + 3
    for number in range(int((y - 48) // row) + 1):
        top = 48 + row * number
        for label, offset in (("id", 28), ("mask", 47), ("log-prob", 60)):
            drawing.text(WIDTH - 4, top + offset, label, 10.5, "words soft", "end")
    policy = sum(token.kind == "policy" for token in tokens)
    env = sum(token.kind == "env" for token in tokens)
    words = (
        f"{len(prompt)} ids of the prompt, then a response of {policy + env}: {policy} are trained on, {env} are not."
    )
    drawing.text(8, y + row, words, 13)
    drawing.write("tokens.svg", y + row + 14)


def draw_loop() -> None:
    """Draw which part hands what to which, from the task to the trainer."""
    drawing = Drawing()
    drawing.box(150, 10, 610, 214, "paper")
    drawing.text(164, 30, "runner: many episodes at once", 13)
    drawing.labelled(4, 94, 116, ["task", "messages, truth"])
    drawing.labelled(180, 84, 150, ["env", "reset, step, reward", "tools and sandbox"], "env")
    drawing.labelled(385, 84, 140, ["conversation", "renders only what", "is new, keeps ids"])
    drawing.labelled(590, 84, 150, ["engine", "SGLang, vLLM,", "PyTorch"], "policy")
    drawing.arrow([(122, 116), (178, 116)])
    drawing.arrow([(332, 104), (383, 104)])
    drawing.text(357, 74, "observation", 11, "words soft", "middle")
    drawing.arrow([(527, 104), (588, 104)])
    drawing.text(557, 74, "ids", 11, "words soft", "middle")
    drawing.arrow([(588, 130), (527, 130)])
    drawing.text(557, 162, "ids, log-probs", 11, "words soft", "middle")
    drawing.arrow([(383, 130), (332, 130)])
    drawing.text(357, 162, "parsed turn", 11, "words soft", "middle")
    drawing.labelled(385, 180, 140, ["trajectory"])
    drawing.arrow([(455, 146), (455, 178)])
    drawing.arrow([(527, 193), (775, 193)])
    drawing.labelled(778, 166, 118, ["batch", "ids, mask,", "log-probs, rewards"])
    drawing.labelled(778, 84, 118, ["trainer", "TRL, verl, …"], "policy")
    drawing.arrow([(837, 164), (837, 130)])
    drawing.arrow([(776, 104), (742, 104)])
    drawing.text(837, 72, "new weights", 11, "words soft", "middle")
    drawing.write("loop.svg", 236)


def draw_drift() -> None:
    """Draw how ids change when a text is encoded again, and how they do not where they are kept."""
    tokenizer = load_tokenizer(tiny_policy_path())
    [usual] = tokenizer.encode("print", add_special_tokens=False)
    splits = [("print"[:at], "print"[at:]) for at in range(1, 5)]
    [pieces, *_] = [
        ids for split in splits
        if len(ids := [id for part in split for id in tokenizer.encode(part, add_special_tokens=False)]) == 2
    ]  # fmt: skip
    after = tokenizer.encode("(7", add_special_tokens=False)
    assert tokenizer.decode(pieces) == "print", "both spellings are one text"

    def row(y: float, ids: Sequence[int], wrong: Sequence[int], x: float = 330) -> None:
        for id in ids:
            x += drawing.token(x, y, shown(tokenizer.decode([id])), id, "wrong" if id in wrong else "policy") + 3

    drawing = Drawing()
    drawing.text(8, 22, "The policy samples a spelling that the tokenizer would not choose:", 13)
    row(34, [*pieces, *after], [])
    drawing.text(8, 55, "sampled, with its log-probs", 12, "words soft")
    drawing.text(8, 104, "Elsewhere: ids → text → ids", 13.5)
    drawing.text(8, 143, "decoded into a message", 12, "words soft")
    drawing.text(330, 143, '"print(7"', 12.5, "")
    drawing.text(8, 180, "the conversation is encoded again", 12, "words soft")
    row(159, [usual, *after], [usual])
    drawing.text(480, 180, "other ids: the log-probs are of", 12, "words")
    drawing.text(480, 196, "tokens that are not there", 12, "words")
    drawing.text(8, 236, "Here: ids stay ids", 13.5)
    drawing.text(8, 272, "kept as they were sampled", 12, "words soft")
    row(251, [*pieces, *after], [])
    drawing.text(8, 320, "only what is new is rendered", 12, "words soft")
    x = 330.0
    for token in [token for token in episode()[0] if token.kind == "env"][:8]:
        x += drawing.token(x, 299, shown(tokenizer.decode([token.id])), token.id, "env") + 3
    drawing.text(x + 4, 320, "…", 13)
    drawing.write("drift.svg", 344)


def draw_group() -> None:
    """Draw the rows that the first group with different rewards has in a batch, with rewards and advantages."""
    index = RunIndex(DEMO).read_all()
    groups = [[index.trajectory(index.rows[number]) for number in numbers] for numbers in index.groups.values()]
    group = next(group for group in groups if len({member.reward for member in group}) > 1)
    better = group_advantages(group)
    batch = make_batch(group, pad_token_id=0)
    prompt, response = batch.prompts.shape[1], batch.responses.shape[1]
    drawing = Drawing()
    left, scale = 90.0, 640 / (prompt / 4 + response)  # a token of the prompt is drawn a fourth as wide
    start = left + prompt / 4 * scale
    drawing.text(left, 18, "prompts, padded on the left", 12, "words soft")
    drawing.text(start + 4, 18, "responses, padded on the right", 12, "words soft")
    drawing.text(748, 18, "reward", 12, "words soft")
    drawing.text(812, 18, "advantage", 12, "words soft")
    for row, (member, advantage) in enumerate(zip(group, better, strict=True)):
        y = 28 + 34 * row
        drawing.text(8, y + 19, f"member {row}", 12)
        drawing.box(left, y, 640, 26, "paper")
        width = len(member.prompt_ids) / 4 * scale
        drawing.box(start - width, y, width, 26, "prompt")
        x = start
        for segment in member.sequences[0].segments:
            width = len(segment.token_ids) * scale
            drawing.box(x, y, width, 26, "policy" if segment.is_policy else "env")
            x += width
        drawing.text(748, y + 19, f"{member.reward:g}", 12.5)
        drawing.text(812, y + 19, "none" if advantage is None else f"{advantage:+.2f}", 12.5)
    drawing.write("group.svg", 34 + 34 * len(group))


def draw_forest() -> None:
    """Draw the sequences of an agent's episode: which calls each has, and where a fork left another."""
    rows: list[tuple[str, str, list[tuple[str, str, int]]]] = [
        ("side_call", "a title; not trained", [("prompt", "", 90), ("prompt", "1", 60)]),
        ("start", "the agent's main work",
         [("prompt", "", 150), ("policy", "2", 90), ("env", "", 80), ("policy", "3", 70), ("env", "", 100),
          ("policy", "7", 100)]),
        ("sub_agent", "its own prompt and tools",
         [("prompt", "", 120), ("policy", "4", 70), ("env", "", 60), ("policy", "5", 90)]),
        ("fork", "a tool result that the agent edited",
         [("prompt", "", 240), ("env", "", 80), ("policy", "6", 100)]),
        ("compaction", "the agent goes on from a summary",
         [("prompt", "", 210), ("policy", "8", 80), ("env", "", 50), ("policy", "9", 70)]),
    ]  # fmt: skip
    drawing = Drawing()
    for place, (kind, words) in enumerate(
        [("prompt", "rendered, or trained elsewhere"), ("policy", "sampled: call 2, 3, …"), ("env", "new messages")]
    ):
        left = 8 + [0, 290, 520][place]
        drawing.box(left, 10, 16, 16, kind)
        drawing.text(left + 23, 23, words, 13)
    start, height = 250.0, 52
    for number, (cause, words, parts) in enumerate(rows):
        x, y = start, 44.0 + height * number
        drawing.text(8, y + 14, cause, 12.5, "")
        drawing.text(8, y + 30, words, 11.5, "words soft")
        for kind, call, width in parts:
            drawing.box(x, y, width, 30, kind)
            drawing.text(x + width / 2, y + 20, call, 12.5, "", "middle")
            x += width
    trunk, fork = 44.0 + height, 44.0 + 3 * height
    drawing.arrow([(start + 240, trunk + 30), (start + 240, fork)])
    drawing.write("forest.svg", 44 + height * len(rows))


def main() -> None:
    draw_tokens()
    draw_forest()
    draw_group()
    draw_loop()
    draw_drift()


if __name__ == "__main__":
    main()
