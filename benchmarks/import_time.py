"""What `import toolgym` takes beside `import gymnasium`, which it leaves to its user, in time and in modules.

    python benchmarks/import_time.py [--runs 15]

Each run is a fresh interpreter with warm file caches; the median over the runs is printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

MEASURE = """
import json, sys, time
before = set(sys.modules)
start = time.perf_counter()
import toolgym
middle = time.perf_counter()
added = sorted(set(sys.modules) - before)
import gymnasium
end = time.perf_counter()
print(json.dumps([end - middle, middle - start, added]))
"""


def measure(runs: int) -> tuple[float, float, list[str]]:
    """Return the median seconds of `import gymnasium`, those of `import toolgym`, and the modules that this loads."""
    results = []
    for _ in range(runs + 1):
        output = subprocess.run(
            [sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True, timeout=120
        ).stdout
        results.append(json.loads(output))
    timed = results[1:]  # the first one filled the caches
    return (
        statistics.median(run[0] for run in timed),
        statistics.median(run[1] for run in timed),
        timed[-1][2],
    )


def main() -> None:
    """Print the measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15, help="fresh interpreters to start")
    base, own, modules = measure(parser.parse_args().runs)
    print(f"import gymnasium          {base * 1e3:8.1f} ms")
    print(f"import toolgym            {own * 1e3:8.1f} ms   ({own / base:.3f} of gymnasium)")
    print(f"modules that it loads     {len(modules):8d}")
    for name in modules:
        print(f"    {name}")


if __name__ == "__main__":
    main()
