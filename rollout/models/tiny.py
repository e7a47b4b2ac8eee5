"""The tiny policy, a small model that ships with the library, for tests, examples and first steps."""

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

    It is a Qwen3 of about a million parameters, trained from scratch on the arithmetic tasks
    (`toolgym.envs.tasks.arithmetic`). It calls the code interpreter, solves some of the tasks, and has bad habits
    enough for reinforcement learning to mend. `examples/tiny_policy` trains it again.

    Raises:
        EngineError: the installed package lacks the folder or one of its files.
    """
    folder = Path(__file__).resolve().parent / "tiny_policy"
    absent = [name for name in _FILES if not (folder / name).is_file()]
    if absent:
        raise EngineError(
            f"expected the tiny policy in {str(folder)!r}, but {', '.join(absent)} is missing. "
            "Install toolgym again, or train it with: python examples/tiny_policy/train.py --out FOLDER"
        )
    return folder
