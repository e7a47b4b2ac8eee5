"""An LLM server of verl's that samples with transformers, in a process of Ray's; it shares no code with toolgym.

It writes each request and its answer to `$VERL_ON_CPU/requests.jsonl`. `$VERL_ON_CPU_FAILS` makes each request of that
number fail.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from pathlib import Path

import ray
import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

NAME = "toolgym_cpu_server"
GATHER = 0.03
"""Seconds in which requests come together for one batch."""


class CpuServer:
    def __init__(self, path):
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.step = 0
        self.numbers, self.waiting, self.sampling = itertools.count(1), [], None
        self.log = Path(os.environ["VERL_ON_CPU"], "requests.jsonl")
        self.fails = int(os.environ.get("VERL_ON_CPU_FAILS", 0))

    async def nothing(self, *_, **__):
        """Nothing has to be put to sleep, woken or emptied: each batch reads its prompts from the start."""

    wake_up = sleep = abort_all_requests = resume_generation = nothing
    clear_kv_cache = release_kv_cache = resume_kv_cache = nothing

    async def set_global_steps(self, step):
        self.step = step

    async def load(self, weights, step):
        parameters = dict(self.model.named_parameters())
        assert parameters.keys() <= weights.keys()
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(torch.from_numpy(weights[name]))
        self.step = self.step if step is None else step

    async def generate(self, request_id, prompt_ids, sampling_params, image_data=None, video_data=None, **further):
        number = next(self.numbers)
        if self.fails and number % self.fails == 0:
            raise RuntimeError("the server is gone")
        answer = asyncio.get_running_loop().create_future()
        self.waiting.append((list(prompt_ids), sampling_params, answer))
        if self.sampling is None or self.sampling.done():
            self.sampling = asyncio.create_task(self.sample_all())
        ids, logprobs, reason = await answer
        with self.log.open("a") as log:
            log.write(json.dumps({"prompt": list(prompt_ids), "ids": ids, "logprobs": logprobs}) + "\n")
        asked = sampling_params.get("logprobs")
        return TokenOutput(
            token_ids=ids,
            log_probs=logprobs if asked else None,
            stop_reason=reason,
            num_preempted=0,
            extra_fields={"global_steps": self.step},
        )

    async def sample_all(self):
        await asyncio.sleep(GATHER)
        while self.waiting:
            first = self.waiting[0][1]
            batch = [one for one in self.waiting if one[1] == first]
            self.waiting = [one for one in self.waiting if one[1] != first]
            try:
                answers = await asyncio.to_thread(self.sample, [prompt for prompt, _, _ in batch], first)
            except Exception as error:  # each waiter raises it
                for _, _, answer in batch:
                    answer.set_exception(error)
            else:
                for (_, _, answer), given in zip(batch, answers, strict=True):
                    answer.set_result(given)
            await asyncio.sleep(GATHER)

    @torch.no_grad()
    def sample(self, prompts, params):
        longest, temperature = max(map(len, prompts)), params["temperature"]
        ids = torch.tensor([[0] * (longest - len(one)) + one for one in prompts])
        mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in prompts])
        sampled = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        made = self.model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=params["max_tokens"],
            eos_token_id=params["stop_token_ids"],
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
            **(sampled if temperature else {"do_sample": False}),
        )
        logprobs = torch.log_softmax(torch.stack(made.logits, 1).float() / (temperature or 1.0), -1)
        answers = []
        for row, given in enumerate(made.sequences[:, longest:].tolist()):
            ends = [place for place, token in enumerate(given) if token in params["stop_token_ids"]]
            own = given[: ends[0] + 1] if ends else given
            chosen = [float(logprobs[row, place, token]) for place, token in enumerate(own)]
            answers.append((own, chosen, "completed" if ends else "length"))
        return answers


class CpuReplica(RolloutReplica):
    """Starts the server beside verl's worker."""

    async def launch_servers(self):
        remote = ray.remote(CpuServer).options(name=NAME, num_cpus=0, max_concurrency=self.max_concurrency)
        self._server_handle, self._server_address = remote.remote(self.model_config.path), NAME
        self.servers = [self._server_handle]
        await self._server_handle.nothing.remote()


class CpuRollout(BaseRollout):
    """The worker's end: hands the actor's weights over."""

    async def resume(self, tags):
        pass

    async def release(self):
        pass

    async def update_weights(self, weights, wire_format="named_tensors", global_steps=None, **_):
        given = {name: value.detach().float().cpu().numpy() for name, value in weights}
        await ray.get_actor(NAME).load.remote(given, global_steps)
