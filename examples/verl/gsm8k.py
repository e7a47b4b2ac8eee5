"""Rows for verl from GSM8K's problems, to be solved with the code interpreter: writes train.parquet and test.parquet.

Concepts (3): a row of verl's, `agent_name`, the ground truth behind `####`.

Run it: python examples/verl/gsm8k.py --out data/gsm8k            (needs `datasets`, and the hub)
        python examples/verl/gsm8k.py --out data/gsm8k --train train.jsonl --test test.jsonl
"""

import argparse
import json
from pathlib import Path

INSTRUCTION = (
    "You may run Python programs with the tool code_interpreter; what they print is what you read. "
    "When you know the result, write it on a line of its own: #### and the number."
)


def row(problem, index, split, agent_name):
    """One problem as a row. `extra_info.index` is what verl and toolgym call the task by."""
    return {
        "data_source": "openai/gsm8k",
        "agent_name": agent_name,
        "prompt": [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": problem["question"]}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth(problem["answer"])},
        "extra_info": {
            "index": index,
            "split": split,
            # As a text: Arrow would fill up what differs from row to row with None.
            "tools_kwargs": json.dumps({}),
        },
    }


def truth(answer):
    """The number behind `####`, without thousands separators."""
    return answer.rpartition("####")[2].strip().replace(",", "")


def problems(split, file):
    """The problems of a split, from a JSON Lines file or from the hub."""
    if file is not None:
        return [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines() if line.strip()]
    from datasets import load_dataset

    return load_dataset("openai/gsm8k", "main", split=split)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument(
        "--agent-name", default="gsm8k_code", help="the agent loop; toolgym_agent needs no file of loops"
    )
    parser.add_argument("--train", help="JSON Lines with `question` and `answer`, instead of the hub")
    parser.add_argument("--test", help="likewise")
    args = parser.parse_args()
    import pyarrow
    import pyarrow.parquet

    args.out.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        rows = [
            row(problem, index, split, args.agent_name)
            for index, problem in enumerate(problems(split, getattr(args, split)))
        ]
        path = args.out / f"{split}.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        print(f"{path}: {len(rows)} rows")


if __name__ == "__main__":
    main()
