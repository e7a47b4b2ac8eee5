"""Lets torchvision be imported beside a CPU build of torch.

Its wheel is a CUDA build: the library that would register its operators cannot be loaded, and its Python side then
fails on `torchvision::nms`, for which it wants to register a shape function. So that operator is declared, without an
implementation, when torchvision is looked for the first time. SGLang only imports torchvision for images.
"""

import sys
from importlib.machinery import ModuleSpec

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


sys.meta_path.insert(0, _DeclareFirst)
