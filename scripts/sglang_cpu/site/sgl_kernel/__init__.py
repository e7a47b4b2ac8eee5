"""Stands in for SGLang's kernels on a CPU, whose wheels hold CUDA code only.

Two functions are what SGLang calls with `--attention-backend torch_native` and `--sampling-backend pytorch`; they are
written here in plain torch. Any other name can be imported, and says that it is not there when it is called.
"""

import torch

__version__ = "0.4.10"

_WORD = 0xFFFFFFFF


def assign_req_to_token_pool_cpu(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, pool_len):
    """Write where each request's new tokens lie in the cache: a run of `out_cache_loc` per request, one after another.

    Row `req_pool_indices[i]` of `req_to_token` gets its run in the columns from `start_offset[i]` to `end_offset[i]`.
    """
    start = start_offset.long()
    counts = end_offset.long() - start
    rows = req_pool_indices.long().repeat_interleave(counts)
    before = (counts.cumsum(0) - counts).repeat_interleave(counts)
    columns = torch.arange(rows.numel()) - before + start.repeat_interleave(counts)
    req_to_token[rows, columns] = out_cache_loc[: rows.numel()].to(req_to_token.dtype)


def _rotated(words, bits):
    return ((words << bits) | (words >> (32 - bits))) & _WORD


def murmur_hash32_cpu(seed, positions, col_indices):
    """MurmurHash3 (32 bits, x86) of (seed's low word, its high word, position, column), for seeded sampling.

    Args:
        seed: int64 `[rows]`.
        positions: `[rows]`.
        col_indices: `[columns]`.

    Returns:
        uint32 `[rows, columns]`.
    """
    seed = seed.long()[:, None]
    words = (seed & _WORD, (seed >> 32) & _WORD, positions.long()[:, None] & _WORD, col_indices.long()[None] & _WORD)
    state = torch.zeros_like(seed)
    for word in words:
        word = _rotated((word * 0xCC9E2D51) & _WORD, 15)
        state = state ^ ((word * 0x1B873593) & _WORD)
        state = (_rotated(state, 13) * 5 + 0xE6546B64) & _WORD
    state = state ^ (4 * len(words))
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = ((state ^ (state >> shift)) * factor) & _WORD
    return (state ^ (state >> 16)).to(torch.uint32)


_library = torch.library.Library("sgl_kernel", "FRAGMENT")
_library.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor col_indices) -> Tensor")
_library.impl("murmur_hash32_cpu", murmur_hash32_cpu, "CPU")
# The processor of Qwen-VL's images imports all models of its family, which look for these, and call none for images.
for _name in (
    "fused_sigmoid_mul_cpu",
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
):
    _library.define(f"{_name}() -> ()")


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*args, **kwargs):
        raise NotImplementedError(f"sgl_kernel.{name} has no stand-in for a CPU")

    return absent
