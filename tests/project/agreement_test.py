#!/usr/bin/env python3
"""G3: ranks that were started with different configurations, programs or instruction sets end at once with exit code 72 and one line that names
the first difference, before anything is created. Usage: agreement_test.py TRAIN"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import harness
import tiny_run

LIMIT_S, DISAGREE = 60, 72


def other_build(train, folder):
    """A copy of the program that says it is another build."""
    notes = subprocess.run(["readelf", "-n", train], stdout=subprocess.PIPE, text=True, check=True).stdout
    build = re.search(r"Build ID: ([0-9a-f]+)", notes).group(1)
    copy = pathlib.Path(folder, "train")
    shutil.copy(train, copy)
    data = copy.read_bytes()
    old = bytes.fromhex(build)
    assert data.count(old) == 1
    copy.write_bytes(data.replace(old, old[::-1]))
    return copy


def run(train, folder, first, last):
    """Two ranks with the arguments `first`, and a third with `last`."""
    command = ["mpirun", "-q", "--oversubscribe", "--mca", "btl", "self,vader", "-np", "2", *first, ":", "-np", "1", *last]
    return harness.run(command, LIMIT_S, cwd=folder, env={"OMP_NUM_THREADS": "1"})


def problems_of(result, before, after, says):
    errors = [line for line in result.err.splitlines() if line.startswith("train: error: ")]
    problems = [] if result.code == DISAGREE else [f"exit code {result.code}, expected {DISAGREE}"]
    problems += [] if len(errors) == 1 else [f"{len(errors)} error lines"]
    problems += [f"the line does not say /{word}/: {errors}" for word in says if not errors or not re.search(word, errors[0])]
    problems += [f"{len(result.orphans)} processes were left running"] if result.orphans else []
    return problems + ([] if before == after else ["files were created or changed"])


def main():
    train = pathlib.Path(sys.argv[1]).resolve()
    harness.become_subreaper()
    report = harness.Report()
    with tempfile.TemporaryDirectory(prefix="agreement.") as folder:
        config = tiny_run.write_files(folder)
        plain, copy = [train, config], other_build(train, folder)
        other = pathlib.Path(folder, "other.toml")
        other.write_text(config.read_text().replace("warmup = 1", "warmup = 2"))
        cases = [
            ("another value on the command line", [*plain, "--set", "train.lr=0.01"], [r"rank 2 has train\.lr = 0\.01, rank 0 has 0\.001", "--set"]),
            ("another file", [train, other, "--set", "name=tiny-run"], [r"rank 2 has train\.warmup = 2, rank 0 has 1"]),
            ("another build", [copy, config], [r"rank 2 has program build [0-9a-f]{12}, rank 0 has [0-9a-f]{12}"]),
            ("another instruction set", ["env", "ZSHARD_ISA=baseline", *plain], [r"rank 2 has kernels for baseline, rank 0 has \w+"]),
        ]
        for name, last, says in cases:
            before = harness.tree(folder)
            result = run(train, folder, plain, last)
            report.case(name, problems_of(result, before, harness.tree(folder), says), result)
        result = run(train, folder, plain, plain)
        report.case("the same thrice", [] if result.code == 0 and "error" not in result.err else ["does not run"], result)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
