from __future__ import annotations

from pathlib import Path

from toolgym.tools.errors import EngineError

_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)


def tiny_policy_path() -> Path:
    """The folder of the tiny policy, which loads like any Hugging Face model.

    It is a Qwen3 of about a million parameters, trained from scratch by `examples/tiny_policy` on the arithmetic tasks.
    It calls the code interpreter, solves some tasks, and has bad habits enough for reinforcement learning to mend.
    Raises `EngineError` if the installed package lacks it.
    """
    folder = Path(__file__).resolve().parent / "tiny_policy"
    absent = [name for name in _FILES if not (folder / name).is_file()]
    if absent:
        raise EngineError(
            f"expected the tiny policy in {str(folder)!r}, but {', '.join(absent)} is missing. "
            "Install toolgym again, or train it with: python examples/tiny_policy/train.py --out FOLDER"
        )
    return folder
