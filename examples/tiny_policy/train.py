"""Train the tiny policy from scratch: tokenizer, model, and the folder that ships as `rollout/models/tiny_policy`.

    python examples/tiny_policy/train.py --out FOLDER

Three steps, a few minutes on two CPU cores, nothing downloaded:

1. A byte-level BPE tokenizer learns from rendered transcripts.
2. The model learns from clean transcripts until it can copy numbers into a program.
3. It goes on with transcripts full of bad habits, so that reinforcement learning has something to improve.

Only the tokens that the policy itself writes are trained on. Every task is from the train split; the figures at the
end are from the test split, with a real sandbox behind the tool.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import math
import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transcripts import SCHEMA, conversation, draw_habit
from transformers import DynamicCache, GenerationConfig, Qwen2Tokenizer, Qwen3Config, Qwen3ForCausalLM

from toolgym.envs.tasks.arithmetic import ArithmeticTasks
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.tools.library.code_interpreter import CodeInterpreterTool
from toolgym.tools.message import Message, tool
from toolgym.tools.parsers.hermes import parse_hermes
from toolgym.tools.schema import ToolCall, ToolCallError, check_call

TEMPLATE = Path(__file__).resolve().parents[2] / "rollout" / "models" / "tiny_policy" / "chat_template.jinja"
VOCAB_SIZE = 512
MICRO_BATCH = 16
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")

# The split into words of Qwen 2 and 3, each digit alone. Loaders that see `qwen` in a config put this one in place
# of what a tokenizer file says, so any other would give different ids in different loaders.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_tokenizer(talks: Sequence[Sequence[Message]]) -> Qwen2Tokenizer:
    """Learn a byte-level BPE of `VOCAB_SIZE` ids from conversations."""
    bare = Qwen2Tokenizer(chat_template=TEMPLATE.read_text(encoding="utf-8"))
    texts = [bare.apply_chat_template(list(talk), tools=[SCHEMA.to_openai()], tokenize=False) for talk in talks]
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    # Marker tokens are cut out first: what is left is what the BPE will be asked to encode.
    pieces = [piece for text in texts for piece in _split_at_markers(text)]
    bpe.train_from_iterator(
        pieces,
        trainers.BpeTrainer(
            vocab_size=VOCAB_SIZE - len(SPECIAL) - len(MARKERS),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    bpe.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKERS])
    tokenizer = Qwen2Tokenizer(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token=None,
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
        additional_special_tokens=["<|im_start|>"],
    )
    tokenizer.chat_template = bare.chat_template
    return tokenizer


def _split_at_markers(text: str) -> list[str]:
    for marker in (*SPECIAL, *MARKERS):
        text = text.replace(marker, "\0")
    return [piece for piece in text.split("\0") if piece]


class Conversation(NamedTuple):
    """A conversation in tokens: `ids`, and for each whether the policy wrote it."""

    ids: list[int]
    mask: list[int]


def encode(chat: ChatRenderer, messages: Sequence[Message]) -> Conversation:
    """Encode a conversation as an episode grows: what the policy reads, then what it writes, and so on.

    Args:
        chat: the tokenizer and template; it keeps text of tools from becoming special tokens, here as in a rollout.
        messages: a conversation that ends with an assistant message; every assistant message holds a turn's text.
    """
    turns = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    ids = chat.prompt(messages[: turns[0]])
    mask = [0] * len(ids)
    for at, next_at in zip(turns, [*turns[1:], None], strict=True):
        written = chat.tokenizer.encode(messages[at]["content"] + chat.end_of_turn, add_special_tokens=False)
        read = chat.extend(messages[at + 1 : next_at]) if next_at else []
        ids += written + read
        mask += [1] * len(written) + [0] * len(read)
    return Conversation(ids, mask)


def make_model(tokenizer: Qwen2Tokenizer) -> Qwen3ForCausalLM:
    """A Qwen3 with random weights, about a million of them."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,  # 32 would do, but common attention kernels begin at 64
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config)
    # Nothing but the ids: how to sample is for the caller to say.
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    return model


def train(
    model: Qwen3ForCausalLM,
    phases: Sequence[tuple[Sequence[Conversation], int]],
    *,
    seed: int,
    learning_rate: float,
    batch_size: int,
    log: Callable[[str], None],
) -> None:
    """Teach the model the written tokens of the transcripts, with AdamW and one cosine over all phases.

    Args:
        model: changed in place.
        phases: transcripts and a number of steps, one after the other.
        seed: which transcripts make a batch.
        learning_rate: at the peak, after 30 steps.
        batch_size: transcripts per step.
        log: called with a line now and then.
    """
    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01, betas=(0.9, 0.98))
    # All conversations begin with the same system turn, more than half of their tokens. It is run once per step
    # and its keys and values are shared, which gives the same gradients for half of the work.
    columns = zip(*(transcript.ids for transcripts, _ in phases for transcript in transcripts), strict=False)
    prefix = next(at for at, column in enumerate(columns) if len(set(column)) > 1)
    total = sum(steps for _, steps in phases)
    schedule = [transcripts for transcripts, steps in phases for _ in range(steps)]
    model.train()
    for step, transcripts in enumerate(schedule):
        for group in optimizer.param_groups:
            cosine = 0.5 * (1 + math.cos(math.pi * step / total))
            group["lr"] = learning_rate * min(1.0, (step + 1) / 30) * (0.05 + 0.95 * cosine)
        batch = sorted(rng.sample(transcripts, batch_size), key=lambda transcript: len(transcript.ids))
        written = sum(sum(transcript.mask) for transcript in batch)
        optimizer.zero_grad()
        mean = 0.0
        for at in range(0, batch_size, MICRO_BATCH):  # neighbours in length, so that little is padding
            loss = shared_prefix_loss(model, batch[at : at + MICRO_BATCH], prefix) / written
            loss.backward()
            mean += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 25 == 24 or step + 1 == total:
            log(f"step {step + 1}/{total}: loss {mean:.3f}")


def shared_prefix_loss(model: Qwen3ForCausalLM, batch: Sequence[Conversation], prefix: int) -> torch.Tensor:
    """Cross-entropy summed over the written tokens of transcripts whose first `prefix` ids are the same."""
    cache = DynamicCache(config=model.config)
    # transformers 5.24 renamed the argument, and warns of the old name.
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    model(input_ids=torch.tensor([batch[0].ids[:prefix]]), use_cache=True, logits_to_keep=1, **{name: cache})
    cache.batch_repeat_interleave(len(batch))
    # Padding stands on the right, where no token of a transcript can see it, so no attention mask is needed.
    longest = max(len(transcript.ids) for transcript in batch) - prefix
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    mask = torch.zeros(len(batch), longest, dtype=torch.bool)
    for row, transcript in enumerate(batch):
        tail = len(transcript.ids) - prefix
        ids[row, :tail] = torch.tensor(transcript.ids[prefix:])
        mask[row, :tail] = torch.tensor(transcript.mask[prefix:], dtype=torch.bool)
    logits = model(input_ids=ids, use_cache=True, **{name: cache}).logits[:, :-1]
    written = mask[:, 1:]
    return torch.nn.functional.cross_entropy(logits[written], ids[:, 1:][written], reduction="sum")


class Figures(NamedTuple):
    """What the policy does on held-out tasks. Shares of tasks, but for `prompt_tokens` and `response_tokens`."""

    success: float
    """The last turn says `#### <answer>` with the right answer."""
    called: float
    """At least one call was carried out or attempted."""
    malformed: float
    """Share of all calls that could not be read or did not fit the schema."""
    prompt_tokens: float
    """Mean tokens of the task's prompt."""
    response_tokens: float
    """Mean tokens that the policy wrote in an episode."""


async def evaluate(
    model: Qwen3ForCausalLM,
    chat: ChatRenderer,
    *,
    episodes: int = 256,
    sampled: bool = True,
    seed: int = 0,
    max_turns: int = 3,
    show: int = 0,
) -> Figures:
    """Play episodes on tasks of the test split, with the real tool.

    Args:
        model: the policy.
        chat: its tokenizer and template.
        episodes: how many tasks.
        sampled: sample at temperature 1, or else take the likeliest token.
        seed: chooses tasks and samples.
        max_turns: an episode that still calls after so many turns has failed.
        show: print so many whole episodes.
    """
    model.eval()
    torch.manual_seed(seed)
    tasks = ArithmeticTasks("test").take(episodes, seed=seed)
    histories = [chat.prompt(task.messages) for task in tasks]
    prompt_tokens = sum(map(len, histories)) / episodes
    live = list(range(episodes))
    written = calls = malformed = 0
    callers: set[int] = set()
    solved: set[int] = set()
    interpreter = CodeInterpreterTool({"default_timeout": 10.0})
    try:
        for _ in range(max_turns):
            if not live:
                break
            turns = generate(model, [histories[i] for i in live], sampled=sampled)
            requests: list[tuple[int, ToolCall | ToolCallError]] = []
            for i, ids in zip(live, turns, strict=True):
                written += len(ids)
                histories[i] = histories[i] + ids
                text = chat.text(ids)
                parsed = parse_hermes(text)
                asked = sorted([*parsed.calls, *parsed.errors], key=lambda one: one.index)
                if asked and chat.ends_turn(ids):
                    checked = [_checked(one) for one in asked]
                    requests += [(i, one) for one in checked]
                    calls += len(checked)
                    malformed += sum(isinstance(one, ToolCallError) for one in checked)
                    callers.add(i)
                elif text.rpartition("#### ")[1] and text.rpartition("#### ")[2] == tasks[i].ground_truth:
                    solved.add(i)
            answers = await asyncio.gather(*(_answer(interpreter, request) for _, request in requests))
            live = sorted({i for i, _ in requests})
            for i in live:
                results = [answer for (owner, _), answer in zip(requests, answers, strict=True) if owner == i]
                histories[i] = histories[i] + chat.extend(results)
    finally:
        await interpreter.close()
    for i in range(min(show, episodes)):
        print(f"--- truth {tasks[i].ground_truth}, {'solved' if i in solved else 'failed'}")
        print(chat.decode(histories[i]))
    return Figures(
        len(solved) / episodes, len(callers) / episodes, malformed / max(1, calls), prompt_tokens, written / episodes
    )


def _checked(request: ToolCall | ToolCallError) -> ToolCall | ToolCallError:
    if isinstance(request, ToolCallError):
        return request
    return check_call(request, {SCHEMA.name: SCHEMA})


async def _answer(interpreter: CodeInterpreterTool, request: ToolCall | ToolCallError) -> Message:
    if isinstance(request, ToolCallError):
        return tool(request.message, tool_call_id=request.id, name=request.name)
    result = await interpreter.execute("evaluation", request.arguments)
    return tool(result.text, tool_call_id=request.id, name=request.name)


@torch.no_grad()
def generate(
    model: Qwen3ForCausalLM, prompts: Sequence[list[int]], *, sampled: bool, max_new_tokens: int = 64
) -> list[list[int]]:
    """One turn for each prompt, with its end-of-turn token if it came to that."""
    pad, eos = model.config.pad_token_id, model.config.eos_token_id
    width = max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    options: dict[str, Any] = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    output = model.generate(
        ids, attention_mask=mask, max_new_tokens=max_new_tokens, **(options if sampled else {"do_sample": False})
    )
    turns = output[:, width:].tolist()
    return [turn[: turn.index(eos) + 1] if eos in turn else turn for turn in turns]


def save(folder: Path, model: Qwen3ForCausalLM | None, tokenizer: Qwen2Tokenizer) -> None:
    """Write the folder that `toolgym.rollout.models.tiny.tiny_policy_path` names."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    if model is not None:
        model.save_pretrained(folder)
        (folder / "model.safetensors").chmod(0o644)  # it is written for its owner alone, but is to be shared


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the tiny policy from scratch on CPU.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clean-steps", type=int, default=650, help="steps on clean transcripts")
    parser.add_argument("--steps", type=int, default=300, help="steps on transcripts with bad habits")
    parser.add_argument("--batch-size", type=int, default=32, help="transcripts per step")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--episodes", type=int, default=256, help="held-out tasks to evaluate on")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokenizer-only", action="store_true", help="write the tokenizer and stop")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    began = time.monotonic()

    def log(line: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {line}", flush=True)

    rng = random.Random(options.seed)
    tasks = ArithmeticTasks("train")
    clean = [conversation(tasks.problem(rng), rng) for _ in range(8000)]
    problems = [tasks.problem(rng) for _ in range(8000)]
    mixed = [conversation(problem, rng, draw_habit(problem, rng)) for problem in problems]
    tokenizer = train_tokenizer(clean[:2000] + mixed[:2000])
    if options.tokenizer_only:
        save(options.out, None, tokenizer)
        return
    chat = ChatRenderer(tokenizer, [SCHEMA])
    phases = [[encode(chat, talk) for talk in talks] for talks in (clean, mixed)]
    model = make_model(tokenizer)
    log(
        f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} ids, "
        f"{sum(len(t.ids) for t in phases[1]) / len(phases[1]):.0f} tokens in a transcript"
    )
    train(
        model,
        [(phases[0], options.clean_steps), (phases[1], options.steps)],
        seed=options.seed,
        learning_rate=options.learning_rate,
        batch_size=options.batch_size,
        log=log,
    )
    save(options.out, model, tokenizer)
    for name, sampled in (("sampled", True), ("greedy", False)):
        figures = asyncio.run(
            evaluate(model, chat, episodes=options.episodes, sampled=sampled, show=3 if sampled else 0)
        )
        log(f"held-out, {name}: " + ", ".join(f"{key} {value:.3f}" for key, value in figures._asdict().items()))


if __name__ == "__main__":
    main()
