"""The faces of the env server: each can be left out of the table."""

from __future__ import annotations

import pytest

from toolgym.envs.served.environments import app


@pytest.mark.parametrize(
    ("left_out", "status_of_reset", "status_of_splits"), [("openenv", 404, 200), ("ors", 200, 404)]
)
async def test_a_face_can_be_left_out(serve, ask, http, monkeypatch, left_out, status_of_reset, status_of_splits):
    monkeypatch.setattr(app, "FACES", tuple(face for face in app.FACES if f".{left_out}." not in face))
    service = await serve()
    async with http.post(f"{service.url}/reset", json={}) as response:
        assert response.status == status_of_reset
    async with http.get(f"{service.url}/splits") as response:
        assert response.status == status_of_splits
    assert (await ask.get(f"{service.url}/health"))[0] == 200
