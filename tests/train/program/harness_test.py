#!/usr/bin/env python3
"""What the fault tests rely on: that no process and no file which a program leaves behind escapes them. Usage: harness_test.py"""

import os
import pathlib
import sys
import time

import harness


def is_gone(pid):
    return not pathlib.Path("/proc", str(pid)).exists()


def left_running(command):
    """A program that leaves one process behind, which says who it is."""
    result = harness.run(["sh", "-c", command])
    pids = [int(word) for word in result.out.split()]
    problems = [] if result.code == 0 and len(pids) == 1 and result.orphans == pids else [f"orphans {result.orphans}, expected {pids}"]
    return problems + [f"process {pid} is still there" for pid in pids if not is_gone(pid)]


def test_that_fails():
    """An exception beside the running program ends it, whatever session its processes are in."""
    pids = []

    def fail(process):
        while len(found := harness.children(process.pid)) < 2:
            time.sleep(0.01)
        pids.extend([process.pid, *found])
        raise KeyboardInterrupt

    try:
        harness.run(["sh", "-c", "sleep 100 & setsid sleep 100 & wait"], on_start=fail)
    except KeyboardInterrupt:
        return [f"process {pid} is still there" for pid in pids if not is_gone(pid)]
    return ["the exception is lost"]


def main():
    may_have_own = harness.in_namespace("-m") is not None
    of_all = os.stat("/dev/shm").st_dev
    harness.become_subreaper()
    report = harness.Report()
    if may_have_own:
        report.case("a /dev/shm of its own", ["it is that of all"] if os.stat("/dev/shm").st_dev == of_all else [])
    report.case("a process left in the session", left_running("sleep 100 > /dev/null & echo $!"))
    report.case("a process left in a session of its own", left_running("setsid sh -c 'echo $$; exec sleep 100 > /dev/null' & sleep 1"))
    report.case("a test that fails", test_that_fails())
    result = harness.run(["sh", "-c", 'mkdir "$TMPDIR/a" && touch "$TMPDIR/a/b"; exit 3'])
    report.case("files left", [] if result.files == ["a", "a/b"] and result.code == 3 and not result.orphans else [f"{result.files}"], result)
    result = harness.run(["sleep", "100"], timeout_s=1)
    report.case("a program that takes too long", [] if result.timed_out and result.seconds < 50 else ["it was not ended"], result)
    note, error = "train: note: 11 prompts are longer\n", "train: error: rank 1 is lost\n"
    ends = [(["mpirun", "-q"], 1, note, True), (["mpirun", "-q"], 1, note + error, False), (["mpirun", "-q"], 1, "", True),
            (["mpirun", "-q"], 70, "", False), (["sh", "-c"], 1, "", False)]
    report.case("an end that mpirun misses", [f"{end}" for *end, is_missed in ends if harness.missed_an_end(*end) != is_missed])
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
