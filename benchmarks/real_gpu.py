"""A decoder of Qwen3-8B's shape on this machine's GPU, whose times the simulator's are held against.

    python benchmarks/real_gpu.py                                  # a CUDA GPU with 80 GB, and torch; --small: neither
    python benchmarks/real_gpu.py --simulator AISIM/bin/python     # the simulator's times instead; needs no GPU

Weights are random, in bf16. Timed are CUDA graphs: a decode step of requests with 2,800 tokens each in their caches,
and the prefill of one prompt. Beside each stand two bounds: bytes over the rate at which memory is read or copied here,
and arithmetic over the rate of a matrix product here. It is plain torch and no engine: no pages in the caches, no
sampling but argmax, no scheduler.
"""

import argparse
import functools
import statistics
import time
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

# As in `config.json` of Qwen/Qwen3-8B.
QWEN3_8B = {"layers": 36, "hidden": 4096, "inner": 12288, "heads": 32, "kv": 8, "dim": 128, "vocabulary": 151_936}
TINY = {"layers": 2, "hidden": 64, "inner": 96, "heads": 4, "kv": 2, "dim": 16, "vocabulary": 512}
LENGTH, BATCHES, PROMPTS = 2800, (1, 8, 32, 128), (2800, 8192)


def norm(x, weight):
    return F.rms_norm(x, x.shape[-1:], weight, 1e-6)


def before(shape, x, layer, cos, sin):
    """Queries, keys and values, `[batch, heads, tokens, dim]`, turned by their positions."""
    mixed = (norm(x, layer["norm"]) @ layer["qkv"].T).unflatten(-1, (-1, shape.dim))
    queries, keys, values = mixed.split([shape.heads, shape.kv, shape.kv], dim=2)
    turned = []
    for part in (norm(queries, layer["q_norm"]), norm(keys, layer["k_norm"])):
        low, high = part.chunk(2, dim=-1)
        turned.append(part * cos + torch.cat([-high, low], dim=-1) * sin)
    return [part.transpose(1, 2) for part in (*turned, values)]


def after(x, attended, layer):
    x = x + attended.transpose(1, 2).flatten(2) @ layer["out"].T
    gate, up = (norm(x, layer["mlp_norm"]) @ layer["gate_up"].T).chunk(2, dim=-1)
    return x + (F.silu(gate) * up) @ layer["down"].T


class Decoder:
    """Qwen3's forward pass; its layers' weights are by name, the linear ones `[out, in]`."""

    def __init__(self, sizes, device, dtype=torch.bfloat16):
        self.shape = shape = SimpleNamespace(**sizes)
        self.options, hidden, inner = {"device": device, "dtype": dtype}, shape.hidden, shape.inner
        both, query = (shape.heads + 2 * shape.kv) * shape.dim, shape.heads * shape.dim
        tables = {
            "norm": [hidden], "qkv": [both, hidden], "q_norm": [shape.dim], "k_norm": [shape.dim],
            "out": [hidden, query], "mlp_norm": [hidden], "gate_up": [2 * inner, hidden], "down": [hidden, inner],
        }  # fmt: skip
        self.layers = [{name: self.random(*size) for name, size in tables.items()} for _ in range(shape.layers)]
        self.embedding, self.head = (self.random(shape.vocabulary, hidden) for _ in range(2))
        self.norm = self.random(hidden)
        compiled = functools.partial(torch.compile, dynamic=False) if device == "cuda" else lambda work: work
        # torch's flash and flex attention were slower than cuDNN's for each shape that is timed.
        self.backend = SDPBackend.CUDNN_ATTENTION if device == "cuda" else SDPBackend.MATH
        self.before, self.after = compiled(lambda *inputs: before(shape, *inputs)), compiled(after)

    def random(self, *size):
        return torch.empty(size, **self.options).normal_(1.0 if len(size) == 1 else 0.0, 0.02)

    def caches(self, batch, length):
        """Keys and values of each layer, `[2, batch, kv, length, dim]`."""
        return [50 * self.random(2, batch, self.shape.kv, length, self.shape.dim) for _ in self.layers]

    def turns(self, start, end):
        """Cosines and sines of positions, `[2, positions, 1, dim]`."""
        powers = torch.arange(0, self.shape.dim, 2) / self.shape.dim
        angles = torch.outer(torch.arange(start, end), 1e6**-powers).repeat(1, 2)
        return torch.stack([angles.cos(), angles.sin()])[:, :, None].to(**self.options)

    @torch.no_grad()
    def logits(self, ids, caches, turns):
        """Logits behind the last of `ids`, `[batch, tokens]`; their keys and values become the last of the caches."""
        x = self.embedding[ids]
        for layer, cache in zip(self.layers, caches, strict=True):
            queries, *new = self.before(x, layer, *turns)
            for part, value in zip(cache, new, strict=True):
                part[:, :, -ids.shape[1] :] = value
            with sdpa_kernel(self.backend):
                attended = F.scaled_dot_product_attention(queries, *cache, is_causal=ids.shape[1] > 1, enable_gqa=True)
            x = self.after(x, attended, layer)
        return norm(x[:, -1], self.norm) @ self.head.T


def milliseconds(work, device, repeats=20):
    """The median time of a CUDA graph of `work`, or on a CPU of a call."""
    for _ in range(2):
        work()
    if device == "cpu":
        began = time.perf_counter()
        work()
        return 1e3 * (time.perf_counter() - began)
    graph, times = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        work()
    for _ in range(repeats + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[1:])


def measure(decoder, batch, length, new, rates, device):
    """Print what `new` tokens of each request take, with `length` in the cache then, and the bounds."""
    shape, caches, turns = decoder.shape, decoder.caches(batch, length), decoder.turns(length - new, length)
    ids = torch.randint(shape.vocabulary, (batch, new), device=device)
    spent = milliseconds(lambda: decoder.logits(ids, caches, turns).argmax(-1), device)
    weights = sum(value.numel() for layer in decoder.layers for value in layer.values())
    attended = batch * new * (length - new + (new + 1) / 2)
    work = 2 * batch * (new * weights + decoder.head.numel()) + 4 * attended * shape.heads * shape.dim * shape.layers
    moved = 2 * (weights + decoder.head.numel() + sum(cache.numel() for cache in caches))
    bounds = [1e3 * moved / rates[0], 1e3 * work / rates[1]]
    print(
        f"{'prefill' if new > 1 else 'decode':8s}{batch:4d} x {length:5d} {spent:8.2f} ms "
        f"{batch * new / spent * 1e3:8.0f} tokens/s; "
        f"bounds {bounds[0]:6.2f} ms of bytes, {bounds[1]:6.2f} ms of arithmetic; "
        f"{spent / max(bounds):.2f} times the greater",
        flush=True,
    )


def rates_here(device, size):
    """Bytes a second, read or copied, whichever is faster; and operations a second of a matrix product."""
    source = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    product = 2 * size**3 / milliseconds(lambda: source @ source, device) * 1e3
    wide = source.repeat(32, 1)
    target = torch.empty_like(wide)
    read = 2 * wide.numel() / milliseconds(lambda: wide.amax(), device) * 1e3
    copied = 4 * wide.numel() / milliseconds(lambda: torch.neg(wide, out=target), device) * 1e3
    print(f"read {read / 1e12:.2f} TB/s, copied {copied / 1e12:.2f} TB/s, product {product / 1e12:.0f} TFLOP/s")
    return max(read, copied), product


def simulated(python, batch, prompt, tokens):
    """Milliseconds to the first token and between tokens in the simulator; the prompts differ at their ends only."""
    from simulate_gpus import BLOCK, request_row, simulate

    count = -(-(prompt + tokens) // BLOCK)
    contexts = [[*range(prompt // BLOCK), *range(1000 * at, 1000 * at + count)][:count] for at in range(1, batch + 1)]
    rows = [request_row(str(at), 0, blocks, prompt, tokens, BLOCK) for at, blocks in enumerate(contexts)]
    _, played = simulate(python, [{**row, "timestamp": 0.0} for row in rows], 1, "Qwen/Qwen3-8B")
    return [min(request[name] for request in played) for name in ("first_token_ms", "itl_ms")]


def main():
    """Print a line for each decode step and prefill."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulator", help="Python that has aisimulate; see simulate_gpus.py")
    parser.add_argument("--small", action="store_true", help="a tiny shape, on the CPU")
    options = parser.parse_args()
    if options.simulator:
        for batch in BATCHES:
            between = simulated(options.simulator, batch, LENGTH - 112, 224)[1]
            print(f"decode  {batch:4d} x {LENGTH:5d} {between:8.2f} ms {batch / between * 1e3:8.0f} tokens/s")
        for prompt in PROMPTS:
            print(f"prefill    1 x {prompt:5d} {simulated(options.simulator, 1, prompt, 2)[0]:8.2f} ms")
    elif options.small:
        decoder, rates = Decoder(TINY, "cpu"), rates_here("cpu", 256)
        measure(decoder, 4, 64, 1, rates, "cpu")
        measure(decoder, 1, 64, 64, rates, "cpu")
    elif torch.cuda.is_available():
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
        rates, decoder = rates_here("cuda", 8192), Decoder(QWEN3_8B, "cuda")
        for batch in BATCHES:
            measure(decoder, batch, LENGTH, 1, rates, "cuda")
        for prompt in PROMPTS:
            measure(decoder, 1, prompt, prompt, rates, "cuda")
    else:
        print("no CUDA GPU here: --small tries the program, --simulator prints the simulator's times")


if __name__ == "__main__":
    main()
