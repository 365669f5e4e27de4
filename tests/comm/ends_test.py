#!/usr/bin/env python3
"""How a job ends: ends_test.py CODE[|CODE] "COUNT TEXT" COMMAND... The command must end with such a code, this number of its lines
(COUNT+: or more) must have the text, and no file of ours may be left in /dev/shm."""

import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "train" / "program"))
import harness


def main():
    harness.become_subreaper()  # other tests' jobs use /dev/shm meanwhile
    codes, (count, text), command = [int(code) for code in sys.argv[1].split("|")], sys.argv[2].split(" ", 1), sys.argv[3:]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout)
    lines = [line for line in done.stdout.splitlines() if text in line]
    left = [name for name in os.listdir("/dev/shm") if "zshard" in name]
    print(f"exit {done.returncode} (expected {sys.argv[1]}), {len(lines)} lines with '{text}' (expected {count}), left behind: {left}")
    # mpirun passes a signal's number on as 128 + n.
    least, is_open = int(count.rstrip("+")), count.endswith("+")
    is_right = len(lines) == least or (is_open and len(lines) > least)
    return 0 if done.returncode in codes and is_right and not left else 1


if __name__ == "__main__":
    sys.exit(main())
