"""An engine whose requests wait at gates, and give back what they have when they are aborted."""

from __future__ import annotations

import asyncio
import itertools

from tests.actors import tasks
from toolgym.envs import ToolEnv
from toolgym.rollout import RunConfig, SamplingParams
from toolgym.rollout.engines.base import FinishReason, Generation

MOST = 200
"""Tokens that a turn may have."""

PARTIAL = 3
"""Tokens that an aborted request gives back."""


def endless(drawn=None):
    for number in itertools.count():
        if drawn is not None:
            drawn.append(number)
        yield from tasks(str(number))


def config(**kwargs):
    return RunConfig(**{"seed": 1, "sampling": SamplingParams(max_new_tokens=MOST), **kwargs})


def question(prompt):
    return prompt.partition("<|im_start|>user\n")[2].partition("<")[0]


def others():
    """The asyncio tasks beside the test's own."""
    return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


class Envs:
    """Makes envs, and counts those that were closed. Their reward is what the policy answered."""

    def __init__(self, tools=(), **kwargs):
        self.made, self.closed = [], []
        self._tools, self._kwargs = tools, kwargs

    def __call__(self):
        envs = self

        class Env(ToolEnv):
            async def close(self):
                await super().close()
                envs.closed.append(self)

            async def fork(self):
                envs.made.append(await super().fork())
                return envs.made[-1]

        self.made.append(Env(list(self._tools), tasks("unused"), scorer=_answered, **self._kwargs))
        return self.made[-1]

    @property
    def all_closed(self):
        return sorted(map(id, self.made)) == sorted(map(id, self.closed))


def _answered(outcome):
    answer = outcome.messages[-1]["content"].rpartition("#### ")[2].strip()
    return float(answer) if answer else 0.0


def held_engine(scripted_engine, tokenizer, script, **kwargs):
    """A scripted engine that holds the requests for which `script(question, member)` returns `(text, event)` until the
    event is set. `member` counts the first requests of each question."""

    class Held(scripted_engine):
        def __init__(self):
            super().__init__(tokenizer, self._said, **kwargs)
            self.running, self.asked, self.aborted = {}, {}, []

        def _said(self, prompt, request_id):
            asked = question(prompt)
            episode = request_id[:32]
            place = self.asked.setdefault(asked, [])
            if episode not in place:
                place.append(episode)
            return script(asked, place.index(episode))

        async def _generate(self, request):
            said = self.script(self.tokenizer.decode(request.prompt_ids), request.request_id)
            if not isinstance(said, tuple) or not isinstance(said[1], asyncio.Event):
                self.script, kept = lambda *_: said, self.script
                try:
                    return await super()._generate(request)
                finally:
                    self.script = kept
            text, gate = said
            had = MOST - request.params.max_new_tokens
            ids = [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id][had:]
            abort = self.running[request.request_id] = asyncio.Event()
            waits = [asyncio.ensure_future(event.wait()) for event in (gate, abort)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in waits:
                    one.cancel()
                del self.running[request.request_id]
            reason = FinishReason.STOP
            if not gate.is_set():
                self.aborted.append(request.request_id)
                ids, reason = ids[:PARTIAL], FinishReason.ABORT
            return Generation(tuple(ids), (-0.5,) * len(ids), reason, (self.version,) * len(ids), 0, {})

        async def abort(self, request_id):
            if request_id in self.running:
                self.running[request_id].set()

    return Held()
