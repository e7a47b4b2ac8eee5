"""Plays one agent of a Python library: python_agents.py NAME API [stream]. Address and key are in the environment."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

OPENAI, ANTHROPIC, KEY = (os.environ[name] for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "OPENAI_API_KEY"))
TASK = json.loads(Path("task.json").read_text())["prompt"][-1]["content"]
THINKING = {"type": "enabled", "budget_tokens": 1024}


def greet(city: str) -> str:
    """Say hello to a city."""
    return f"hello, {city}"


async def openai_agents(api: str, stream: bool) -> str:
    from agents import (
        Agent,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
        function_tool,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    kind = OpenAIResponsesModel if api == "responses" else OpenAIChatCompletionsModel
    model = kind(model="policy", openai_client=AsyncOpenAI(base_url=OPENAI, api_key=KEY))
    agent = Agent(name="a", instructions="Be brief.", model=model, tools=[function_tool(greet)])
    if not stream:
        return str((await Runner.run(agent, TASK)).final_output)
    run = Runner.run_streamed(agent, TASK)
    async for _ in run.stream_events():
        pass
    return str(run.final_output)


async def pydantic_ai(api: str, stream: bool) -> str:
    from pydantic_ai import Agent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    if api == "messages":
        provider = AnthropicProvider(base_url=ANTHROPIC, api_key=KEY)
        model = AnthropicModel("claude-sonnet-4-5", provider=provider, settings={"anthropic_thinking": THINKING})
    else:
        kind = OpenAIResponsesModel if api == "responses" else OpenAIChatModel
        model = kind("policy", provider=OpenAIProvider(base_url=OPENAI, api_key=KEY))
    agent = Agent(model, instructions="Be brief.", tools=[greet])
    if not stream:
        return (await agent.run(TASK)).output
    async with agent.iter(TASK) as run:
        async for node in run:
            if Agent.is_model_request_node(node):
                async with node.stream(run.ctx) as events:
                    async for _ in events:
                        pass
    return run.result.output


async def langchain(api: str, stream: bool) -> str:
    from langchain.agents import create_agent
    from langchain_anthropic import ChatAnthropic
    from langchain_openai import ChatOpenAI

    if api == "messages":
        options = {"model": "claude-sonnet-4-5", "base_url": ANTHROPIC, "thinking": THINKING, "max_tokens": 4096}
        model = ChatAnthropic(api_key=KEY, streaming=stream, **options)
    else:
        options = {"use_responses_api": api == "responses", "streaming": stream, "stream_usage": True}
        model = ChatOpenAI(model="policy", base_url=OPENAI, api_key=KEY, **options)
    agent = create_agent(model, [greet], system_prompt="Be brief.")
    done = await agent.ainvoke({"messages": [("user", TASK)]})
    return done["messages"][-1].text


def main() -> None:
    library, api, *stream = sys.argv[1:]
    play = {"openai-agents": openai_agents, "pydantic-ai": pydantic_ai, "langchain": langchain}[library]
    print(asyncio.run(asyncio.wait_for(play(api, bool(stream)), 120)))


if __name__ == "__main__":
    main()
