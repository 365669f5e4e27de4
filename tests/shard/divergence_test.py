#!/usr/bin/env python3
"""O1: whatever ranks of a job communicate otherwise than the rest, the job ends with exit code 72 and one line that names two ranks and what
they do, and on every rank the weights and the optimizer's moments are those of before the step. Usage: divergence_test.py PROGRAM [EVERY]   (one case of so many)"""

import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "train" / "program"))
import harness  # noqa: E402

LIMIT_S, DISAGREE, WITNESS_BYTES = 90, 72, 4096


def problems_of(result, ranks):
    lines = [line for line in result.err.splitlines() if "the ranks disagree" in line]
    problems = [] if result.code == DISAGREE else [f"exit code {result.code}, expected {DISAGREE}"]
    if len(lines) != 1:
        problems.append(f"{len(lines)} lines say that the ranks disagree")
    elif lines[0].partition("the ranks disagree")[2].partition(";")[0].count("rank ") < 2:
        problems.append("the line does not name two ranks")
    if f"{ranks} of {ranks} ranks are as before" not in result.err:
        problems.append("not every rank is known to be as before the step")
    return problems + ([f"{len(result.orphans)} processes were left running"] if result.orphans else [])


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    harness.become_subreaper()
    report = harness.Report()
    cases = subprocess.run([program], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    every = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    for setting, way, ranks, hosts, name in (case.split(" ", 4) for case in cases[::every]):
        env = {"OMP_NUM_THREADS": "1", **({} if hosts == "-" else {"ZSHARD_HOSTS_OF": hosts})}
        with tempfile.NamedTemporaryFile() as witness:
            witness.truncate(WITNESS_BYTES)
            result = harness.run(harness.mpirun(int(ranks), [program, setting, way, witness.name]), LIMIT_S, env=env)
        report.case(f"{name}, {result.seconds:.1f} s", problems_of(result, int(ranks)), result)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
