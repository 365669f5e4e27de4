#!/usr/bin/env python3
"""Runs a benchmark by several ranks on this machine's GPUs: by a rank on each, up to eight, over NCCL and staged; by two that share it,
staged, where there is one alone, which shows that it runs and not how fast. Prints what it prints; its exit code is the first bad one's, 77
without a GPU.
Usage: bench_ranks.py BENCH [OPTION ...]"""

import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "train" / "program"))
import driver  # noqa: E402, beside this file
import harness  # noqa: E402

SKIPPED, MOST_RANKS = 77, 8


def commands(words, gpus):
    """The runs of a benchmark on so many GPUs."""
    program = [*words, "--device", "cuda", "--json"]
    if gpus > 1:
        return [harness.mpirun(min(gpus, MOST_RANKS), [*program, "--transport", transport]) for transport in ("nccl", "staged")]
    shares = ["--share-gpu"] if pathlib.Path(words[0]).name == "bench_collectives" else ["--set", "cuda.share_gpu=true"]
    return [harness.mpirun(2, [*program, "--transport", "staged", *shares])]


def main():
    try:
        _, gpus = driver.opened()
    except driver.NoGpu as reason:
        print(f"skipped: no GPU here: {reason}")
        return SKIPPED
    codes = [subprocess.run(command, stdin=subprocess.DEVNULL).returncode for command in commands(sys.argv[1:], gpus)]
    return next((code for code in codes if code != 0), 0)


if __name__ == "__main__":
    sys.exit(main())
