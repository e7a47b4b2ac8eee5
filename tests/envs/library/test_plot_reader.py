"""`PlotReader-v0`: the plot comes back as an image, and a policy that cannot see is refused by name."""

import base64
import io

import pytest
from PIL import Image

import toolgym
from toolgym.envs.library.plot_reader import plot_tasks
from toolgym.rollout import RunConfig, open_engine, rollout
from toolgym.rollout.engines.callable import CallableEngine
from toolgym.rollout.trajectory.failures import RunFailedError
from toolgym.tools.message import assistant, images_of, tool_call


async def test_the_plot_is_an_image_and_no_text_has_the_answer():
    async with toolgym.make("PlotReader-v0") as env:
        _, info = await env.reset(seed=1)
        values = info["task"].tools_kwargs["show_plot"]["execute_kwargs"]["values"]
        shown = []
        for kind in ("bars", "line"):
            result = await env.step(assistant("", [tool_call("show_plot", {"kind": kind})]))
            [url] = images_of(result.obs[0]["content"])
            with Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) as plot:
                assert 200 < plot.width < 500
                shown.append(plot.convert("RGB").tobytes())
            assert result.info["tool_calls"][0].text == ""
            assert not any(str(value) in part.get("text", "") for value in values for part in result.obs[0]["content"])
        assert shown[0] != shown[1]
        result = await env.step(f"#### {info['task'].ground_truth}")
        assert result.reward == 1.0
        await env.reset(seed=1)
        assert (await env.step("#### 1001")).reward == 0.0


def test_the_tasks_are_the_same_each_time_and_apart():
    train, test = plot_tasks("train"), plot_tasks("test")
    assert (len(train), len(test)) == (256, 64)
    assert train == plot_tasks("train")
    values = [tuple(task.tools_kwargs["show_plot"]["execute_kwargs"]["values"]) for task in train + test]
    assert len(set(values)) == 320
    with pytest.raises(toolgym.ToolgymError, match="'train' or 'test'"):
        plot_tasks("dev")


async def test_a_policy_of_texts_alone_is_refused_by_name():
    async with open_engine("tiny") as tiny:
        tokenizer = tiny.tokenizer
    turn = '<tool_call>\n{"name": "show_plot", "arguments": {}}\n</tool_call>'
    ids = [*tokenizer.encode(turn, add_special_tokens=False), tokenizer.eos_token_id]

    async def generate(request):
        return {"token_ids": ids, "logprobs": [-1.0] * len(ids), "finish_reason": "stop"}

    async with CallableEngine(generate, tokenizer=tokenizer, context_length=8192) as engine:
        with pytest.raises(RunFailedError, match="the messages have images, and there is no processor"):
            await rollout("PlotReader-v0", engine, num_tasks=1, config=RunConfig(seed=0, parser="hermes"))
