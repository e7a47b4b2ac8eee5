"""Images on their way to SGLang: one id for each, beside the data, and no answer on other ids is taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from aiohttp import web

from tests.rollout.engines.sglang_client import GOOD, SHORT, client, wrong
from toolgym.rollout.engines import GenerationRequest
from toolgym.rollout.engines.sglang.messages import check_prompt, image_fields
from toolgym.rollout.models.images import PlacedImage
from toolgym.tools.errors import EngineError

URLS = ("data:image/png;base64,AAAA", "data:image/png;base64,BBBB")
IDS = [1, 50, 9, 9, 9, 51, 2, 3, 50, 9, 51, 4]
IMAGES = (PlacedImage(URLS[0], 2, 3), PlacedImage(URLS[1], 9, 1))


def request(ids: Sequence[int] = IDS, images: Sequence[PlacedImage] = IMAGES) -> GenerationRequest:
    return GenerationRequest(tuple(ids), SHORT, "a", images=tuple(images))


class Server:
    """Puts an image's ids where one of them stands, as SGLang does."""

    def __init__(self, sizes: Sequence[int] = (3, 1), tells_ids: bool = True) -> None:
        self.sizes, self.tells_ids = sizes, tells_ids
        self.seen: list[dict[str, Any]] = []

    async def __call__(self, asked: web.Request) -> web.Response:
        body = await asked.json()
        self.seen.append(body)
        sizes = iter(self.sizes)
        ids = [part for i in body["input_ids"] for part in ([i] * next(sizes) if i == 9 else [i])]
        answer = wrong(prompt_tokens=len(ids))
        if self.tells_ids and body.get("return_prompt_token_ids"):
            answer["prompt_token_ids"] = ids
        return web.json_response(answer)


async def test_one_id_stands_for_each_image() -> None:
    server = Server()
    async with client(server) as engine:
        generation = await engine.generate(IDS, SHORT, request_id="a", images=IMAGES, forbidden_ids=(9,))
    assert generation.token_ids == tuple(GOOD["output_ids"])
    [body] = server.seen
    assert body["input_ids"] == [1, 50, 9, 51, 2, 3, 50, 9, 51, 4]
    assert body["image_data"] == list(URLS)
    assert body["sampling_params"]["logit_bias"] == {"9": -100.0}


async def test_a_request_without_images_says_nothing_of_them() -> None:
    server = Server()
    async with client(server) as engine:
        await engine.generate([1, 2], SHORT, request_id="a")
    assert not {"image_data", "return_prompt_token_ids"} & server.seen[0].keys()
    assert "logit_bias" not in server.seen[0]["sampling_params"]


@pytest.mark.parametrize("tells_ids", [True, False])
async def test_a_server_that_computes_on_other_ids_fails_by_name(tells_ids: bool) -> None:
    async with client(Server((2, 1), tells_ids)) as engine:
        with pytest.raises(EngineError, match="SGLang computed on 11 ids that are not the 12 of the request with 2"):
            await engine.generate(IDS, SHORT, request_id="a", images=IMAGES)


async def test_an_older_server_that_tells_the_number_alone_is_taken_at_its_word() -> None:
    async with client(Server(tells_ids=False)) as engine:
        assert (await engine.generate(IDS, SHORT, request_id="a", images=IMAGES)).token_ids


def test_other_ids_of_the_same_number_are_no_answer() -> None:
    answer = {"prompt_token_ids": [*IDS[:-1], 5], "meta_info": {"prompt_tokens": len(IDS)}}
    with pytest.raises(EngineError, match="that are not the 12 of the request"):
        check_prompt(answer, request())
    with pytest.raises(EngineError, match="SGLang computed on None ids"):
        check_prompt({"meta_info": {}}, request())


def test_begin_and_end_of_an_image_may_be_its_own() -> None:
    images = (PlacedImage(URLS[0], 1, 5), PlacedImage(URLS[1], 8, 3))
    assert image_fields(request(images=images))["input_ids"] == [1, 50, 9, 51, 2, 3, 50, 9, 51, 4]


def test_an_image_in_several_runs_is_refused() -> None:
    ids = [1, 9, 9, 60, 9, 9, 2]
    with pytest.raises(EngineError, match="an image is sent as one run of one id, and that at token 1 is none"):
        image_fields(request(ids, [PlacedImage(URLS[0], 1, 5)]))


def test_a_sampled_image_token_is_named_before_the_server_would_hang() -> None:
    with pytest.raises(EngineError, match="5 ids 9, and its images are 4 of them: the policy sampled a token"):
        image_fields(request([*IDS, 9]))
