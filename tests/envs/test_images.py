"""Images of tools on their way to the policy, and the limits on them."""

import base64
import io

import gymnasium
import pytest
from PIL import Image

from toolgym.envs import ToolEnv, tool_class
from toolgym.envs.gym.spaces import ChatSpace
from toolgym.envs.result_text import ImageLimits
from toolgym.envs.tasks.task import Task
from toolgym.tools import ToolResult, image, text_part, tool
from toolgym.tools.errors import ConfigError
from toolgym.tools.function import as_tool
from toolgym.tools.message import assistant, image_part, images_of, text_of, tool_call, user


def png(width=4, height=3, color="red"):
    data = io.BytesIO()
    Image.new("RGB", (width, height), color).save(data, format="PNG")
    return data.getvalue()


@tool
def look(count: int, width: int = 4) -> ToolResult:
    """Look.

    Args:
        count: how many.
        width: of each.
    """
    return ToolResult("see", images=[image(png(width, color=(number, 0, 0))) for number in range(count)])


@tool
def parts() -> list:
    """Look at parts."""
    return [text_part("before"), image(png()), text_part("after")]


@tool
def broken() -> ToolResult:
    """Look at nothing."""
    return ToolResult(
        "", images=[image_part("data:image/png;base64,iVBORw0KGgo="), image_part("data:image/png;base64,?")]
    )


class Small(ToolEnv):
    image_limits = ImageLimits(count=2, pixels=100)


async def observed(name, **arguments):
    async with Small([look, parts, broken], [Task((user("go"),))]) as env:
        await env.reset()
        result = await env.step(assistant("", [tool_call(name, arguments)]))
        return result.obs[0]["content"], result.info["tool_calls"][0]


async def test_the_images_of_a_result_stand_behind_its_text():
    content, record = await observed("look", count=2)
    assert [part["type"] for part in content] == ["text", "image_url", "image_url"]
    assert base64.b64decode(images_of(content)[1].partition(",")[2]) == png(color=(1, 0, 0))
    assert (text_of(content), record.text) == ("see", "see")
    content, _ = await observed("parts")
    assert (text_of(content), len(images_of(content))) == ("before\nafter", 1)
    assert (await observed("look", count=0))[0] == "see"


async def test_what_is_cut_is_named():
    content, _ = await observed("look", count=5)
    assert len(images_of(content)) == 2
    assert text_of(content) == "see\n[The last 3 of 5 images left out: at most 2 are shown]"
    content, _ = await observed("look", count=1, width=50)
    assert content == "see\n[Image 1 of 1 left out: it has 50 x 3 pixels, 100 are allowed]"
    content, record = await observed("broken")
    assert content.count("it cannot be read") == 2
    assert record.status == "ok"
    for size in ((301, 3), (3, 301)):
        [note] = ImageLimits().within([image(png(*size))])[1]
        assert note.endswith(f"it has {size[0]} x {size[1]} pixels, a side may be 100 times the other]")
    assert ImageLimits().within([image(png(300, 3))])[1] == []
    assert ImageLimits(size=10).within([image(png())])[1] == [
        f"[Image 1 of 1 left out: it has {len(png())} bytes, 10 are allowed]"
    ]


def test_other_addresses_and_bytes_are_refused_by_name():
    with pytest.raises(ConfigError, match="not fetched"):
        ToolResult("", images=[{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}])
    with pytest.raises(ConfigError, match="PNG, JPEG"):
        image(b"<svg></svg>")
    jpeg = io.BytesIO()
    Image.new("RGB", (2, 2)).save(jpeg, format="JPEG")
    assert image(jpeg.getvalue())["image_url"]["url"].startswith("data:image/jpeg;base64,")


async def test_a_space_of_chats_has_messages_with_images():
    space = ChatSpace()
    assert isinstance(space, gymnasium.Space)
    assert ({"role": "tool", "content": [text_part("a"), image(png())]},) in space
    assert ({"role": "tool", "content": [{"type": "video"}]},) not in space
    assert (await as_tool(parts).execute("", {})).images


def test_a_class_of_tools_gives_a_trainer_pillow_s_images():
    played = tool_class(lambda: ToolEnv([look, parts], [Task((user("go"),), id="go")]))()
    played.reset(prompt=[user("go")])
    seen = played.parts()
    assert [part["type"] for part in seen] == ["text", "image"]
    assert seen[0]["text"] == "before\nafter"
    assert (seen[1]["image"].size, seen[1]["image"].getpixel((0, 0))) == ((4, 3), (255, 0, 0))
    assert played.look(count=0) == "see"
    played.close()
