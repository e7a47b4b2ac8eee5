"""Lets SGLang start beside a CPU build of torch. It is imported when Python starts, and changes two modules.

torchvision: its wheel is a CUDA build. The library that would register its operators cannot be loaded, and its Python
side then fails on `torchvision::nms`, for which it wants to register a shape function. So that operator is declared,
without an implementation, when torchvision is looked for the first time. SGLang only imports torchvision for images.

`sglang.srt.mem_cache.pool_host.common`: `--enable-return-routed-experts` keeps the experts in host memory, which
`_cuda_host_register` pins for copies from a GPU. Without a GPU there is nothing to pin, and that function is replaced
by one that does nothing.
"""

import importlib.util
import sys
from importlib.machinery import ModuleSpec

HOST_POOL = "sglang.srt.mem_cache.pool_host.common"
_KEPT = []


class _DeclareFirst:
    """A finder that finds nothing, but runs before the others do."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == "torchvision":
            sys.meta_path.remove(_DeclareFirst)
            from torch.library import Library

            library = Library("torchvision", "FRAGMENT")
            boxes = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            for operator in ("nms", "qnms"):
                library.define(operator + boxes)
            _KEPT.append(library)  # a library's declarations end with it
        return None


class _PinNothing:
    """A finder for `HOST_POOL` alone: loads it as the others would, then replaces the function that pins."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != HOST_POOL:
            return None
        sys.meta_path.remove(_PinNothing)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_replace(module: object) -> None:
            load(module)
            module._cuda_host_register = lambda *args, **kwargs: None

        spec.loader.exec_module = load_and_replace
        return spec


sys.meta_path[:0] = [_DeclareFirst, _PinNothing]
