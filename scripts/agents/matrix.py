"""Real agents through the capture gateway: matrix.py [--write] [NAME ...]

Installs agents below `.trainers/agents`, has each play one episode with a scripted policy, and compares the trajectory
with what the policy saw and wrote, token by token. Prints a row for each; ends with status 1 if a row is not exact, or
not what docs/capture.md has. With `--write`, the table there is written.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from toolgym.envs import Task
from toolgym.rollout import EpisodeLimits, RunConfig, Runner, SamplingParams, Trajectory
from toolgym.rollout.capture import AgentCommand, CaptureRules, agent_env
from toolgym.rollout.engines.base import Generation
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.models.tokenizer import load_tokenizer

sys.path.insert(0, str(Path(__file__).parent))
from policy import LONG, MAIN, TROUBLE, ScriptedPolicy

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs/capture.md"
PLACE = ROOT / ".trainers/agents"
BEGIN, END = "<!-- agents: scripts/agents/matrix.py --write -->\n", "<!-- end of the agents -->"

NODE, PYTHON = PLACE / "node/node_modules/.bin", PLACE / "py/bin/python"
PROMPT = f"{MAIN}: say hello with the shell."
PROMPTS = {"": PROMPT, ", in trouble": f"{PROMPT} Expect {TROUBLE}."}
GATEWAY = '{name="gw",base_url="{base_url}",env_key="OPENAI_API_KEY",wire_api="responses"}'
CODEX = ["codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
         "-c", "model_provider=gw", "-c", "model=policy", "-c", f"model_providers.gw={GATEWAY}"]  # fmt: skip
SDKS = {
    "openai-agents": ("openai-agents", ("chat", "responses")),
    "pydantic-ai": ("pydantic-ai-slim", ("chat", "responses", "messages")),
    "langchain": ("langchain", ("chat", "responses", "messages")),
}


def opencode(model: dict[str, Any]) -> dict[str, Any]:
    """The settings of opencode for a gateway that the environment names."""
    options = {"baseURL": "{env:OPENAI_BASE_URL}", "apiKey": "{env:OPENAI_API_KEY}"}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {"policy": model}}
    return {"provider": {"gw": provider}}


def commands() -> dict[str, tuple[str, AgentCommand]]:
    """Each agent by its name, with the package that has its version."""
    agents = {
        "Claude Code": (
            "@anthropic-ai/claude-code",
            ["claude", "-p", "{prompt}", "--allowedTools", "Bash,Agent", "--model", "policy"],
            {"IS_SANDBOX": "1"},
            {},
        ),
        "Codex": ("@openai/codex", [*CODEX, "{prompt}"], {}, {}),
        "Codex, compacting": (
            "@openai/codex",
            [*CODEX, "-c", "model_auto_compact_token_limit=30000", f"{{prompt}} Expect {LONG}."],
            {},
            {},
        ),
        "Qwen Code": (
            "@qwen-code/qwen-code",
            ["qwen", "--auth-type", "openai", "--yolo", "-p", "{prompt}"],
            {"OPENAI_MODEL": "policy"},
            {},
        ),
        "opencode": (
            "opencode-ai",
            ["opencode", "run", "-m", "gw/policy", "{prompt}"],
            {},
            {"opencode.json": json.dumps(opencode({})).encode()},
        ),
        "opencode, compacting": (
            "opencode-ai",
            ["opencode", "run", "-m", "gw/policy", f"{{prompt}} Expect {LONG}."],
            {},
            {"opencode.json": json.dumps(opencode({"limit": {"context": 26000, "output": 2000}})).encode()},
        ),
        "mini-swe-agent": (
            "mini-swe-agent",
            [str(PYTHON), "-m", "minisweagent.run.mini", "-y", "--exit-immediately", "-m", "openai/policy",
             "-t", "{prompt}"],
            {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors"},
            {},
        ),
    }  # fmt: skip
    for library, (package, apis) in SDKS.items():
        for api in apis:
            for stream in ("", "stream"):
                words = [str(PYTHON), str(HERE / "python_agents.py"), library, api, *filter(None, [stream])]
                agents[", ".join(filter(None, [library, api, stream]))] = (package, words, {}, {})
    path = {"PATH": f"{NODE}:{os.environ['PATH']}"}
    return {
        name: (package, AgentCommand(words, env={**path, **env}, files=files, timeout=240.0))
        for name, (package, words, env, files) in agents.items()
    }


def install() -> None:
    if not NODE.exists():
        (PLACE / "node").mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / "package.json", PLACE / "node")
        subprocess.run(["npm", "install", "--silent", "--no-fund", "--no-audit"], cwd=PLACE / "node", check=True)
        for script in ("@anthropic-ai/claude-code/install.cjs", "opencode-ai/postinstall.mjs"):
            place = PLACE / "node/node_modules" / script
            subprocess.run(["node", place.name], cwd=place.parent, check=True)
    if not PYTHON.exists():
        uv = str(Path(sys.executable).parent / "uv")
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(PLACE / "py")], check=True)
        pip = [uv, "pip", "install", "--quiet", "--python", str(PYTHON), "-r", str(HERE / "requirements.txt")]
        subprocess.run(pip, check=True)


def version_of(package: str) -> str:
    manifest = PLACE / "node/node_modules" / package / "package.json"
    if manifest.exists():
        return str(json.loads(manifest.read_text())["version"])
    [site] = (PLACE / "py/lib").glob("python*/site-packages")
    return next(iter(metadata.distributions(name=package, path=[str(site)]))).version


def faults(trajectory: Trajectory, seen: dict[str, tuple[tuple[int, ...], Generation]]) -> list[str]:
    """Where the rows are not what the policy saw and wrote."""
    left, wrong = {name: each for name, each in seen.items() if name.startswith(trajectory.id)}, []
    for number, sequence in enumerate(trajectory.sequences):
        if (sequence.start_reason == "start") != (number == 0):
            wrong.append(f"row {number} began for {sequence.start_reason!r}")
        context = tuple(sequence.prompt_ids.tolist())
        for segment in sequence.segments:
            ids = tuple(segment.token_ids.tolist())
            if segment.is_policy:
                fitting = (
                    name
                    for name, (prompt, turn) in left.items()
                    if prompt == context and turn.token_ids == ids and turn.logprobs == tuple(segment.logprobs)
                )
                if (name := next(fitting, None)) is None:
                    wrong.append(f"a turn of row {number} is none that was sampled there")
                else:
                    del left[name]
            context += ids
    return [*wrong, f"{len(left)} turns are lost"] if left else wrong


async def play(name: str, package: str, command: AgentCommand, prompt: str) -> tuple[str, list[str]]:
    """The row of an agent, and what is wrong with it."""
    policy = ScriptedPolicy(load_tokenizer(tiny_policy_path()))
    config = RunConfig(sampling=SamplingParams(max_new_tokens=2048), limits=EpisodeLimits(episode_timeout=300.0))
    task = Task(({"role": "user", "content": prompt},), id=name)
    env = agent_env(command, name=name, rules=CaptureRules(untrained=()))
    [trajectory] = await Runner(env, policy, config=config).run([task])
    wrong = faults(trajectory, policy.seen)
    if TROUBLE in prompt and policy.troubles:
        wrong.append(f"it ended before {', '.join(policy.troubles)}")
    causes = Counter(sequence.start_reason for sequence in trajectory.sequences)
    if len(policy.seen) != len(trajectory.turns):
        wrong.append(f"{len(policy.seen)} calls, {len(trajectory.turns)} turns")
    rows = ", ".join(f"{count} {cause}" for cause, count in sorted(causes.items()))
    cells = (name, version_of(package), rows, trajectory.stop_reason.value, "no" if wrong else "yes")
    return f"| {' | '.join(cells)} |", wrong


async def main(wanted: Iterable[str]) -> int:
    install()
    names = [argument for argument in wanted if not argument.startswith("-")]
    table = ["| agent | version | rows by cause | end | exact |", f"|{' --- |' * 5}"]
    is_wrong = False
    for name, (package, command) in commands().items():
        if names and not any(name.startswith(each) for each in names):
            continue
        for kind, prompt in PROMPTS.items():
            if kind and name.endswith(("compacting", "stream")):
                continue
            row, wrong = await play(name + kind, package, command, prompt)
            table.append(row)
            is_wrong |= bool(wrong)
            print(row, *wrong, sep="\n  ", flush=True)
    if names or is_wrong:
        return int(is_wrong)
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    text = "\n".join(table) + "\n"
    if "--write" in sys.argv:
        PAGE.write_text(f"{before}{BEGIN}{text}{END}{rest.partition(END)[2]}", encoding="utf-8")
        return 0
    return int(rest.partition(END)[0] != text)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
