#!/usr/bin/env python3
"""O1: whatever one rank of a job communicates otherwise than the rest, the job ends with exit code 72 and one line that names two ranks and what
they do, and no rank has updated its weights. Usage: divergence_test.py PROGRAM"""

import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "project"))
import harness  # noqa: E402

LIMIT_S, DISAGREE = 60, 72


def problems_of(result):
    lines = [line for line in result.err.splitlines() if "the ranks disagree" in line]
    problems = [] if result.code == DISAGREE else [f"exit code {result.code}, expected {DISAGREE}"]
    problems += [] if len(lines) == 1 and lines[0].count("rank ") >= 2 else [f"{len(lines)} lines say that the ranks disagree"]
    problems += ["a rank has updated its weights"] if "UPDATED" in result.err else []
    return problems + ([f"{len(result.orphans)} processes were left running"] if result.orphans else [])


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    harness.become_subreaper()
    report = harness.Report()
    names = subprocess.run([program], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    for transport in ("shm", "mpi"):
        for number, name in enumerate(names):
            result = harness.run(harness.mpirun(3, [program, transport, number]), LIMIT_S, env={"OMP_NUM_THREADS": "1"})
            report.case(f"{name}, {transport}, {result.seconds:.1f} s", problems_of(result), result)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
