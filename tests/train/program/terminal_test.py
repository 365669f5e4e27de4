#!/usr/bin/env python3
"""On a terminal a run prints one live line, with its share of the machine's product rate; with its output in a file it prints plain lines and
measures nothing. Usage: terminal_test.py TRAIN"""

import os
import pathlib
import pty
import re
import subprocess
import sys
import tempfile

import harness
import tiny_run


def run_on_terminal(command, folder):
    """(exit code, what the terminal saw)"""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, cwd=folder, env=harness.clean_env())
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the last writer is gone
            break
        if not part:
            break
        seen += part
    os.close(ours)
    return process.wait(60), seen.decode(errors="replace")


def main():
    train = pathlib.Path(sys.argv[1]).resolve()
    harness.become_subreaper()
    report = harness.Report()
    for ranks in (None, 2):
        name = f"{ranks or 1} rank{'s' if ranks else ''}"
        with tempfile.TemporaryDirectory(prefix="terminal.") as folder:
            config = tiny_run.write_files(folder)
            command = harness.launch(ranks, [str(train), str(config), "--verify-data", *tiny_run.options(run__sample_tokens=0)])
            code, seen = run_on_terminal([str(part) for part in command], folder)
            lines = re.findall(r"\rstep \d/3 .*?\d+% of ceiling", seen.replace("\x1b[K", ""))
            problems = [] if code == 0 else [f"exit code {code}"]
            problems += [] if len(lines) >= 3 else [f"{len(lines)} live lines with a share of the ceiling, expected 3"]
            problems += [] if "\rverifying data: 0 %" in seen else ["no line while the data is verified"]
            report.case(f"{name}, on a terminal", problems, seen if problems else "")
        with tempfile.TemporaryDirectory(prefix="terminal.") as folder:
            config = tiny_run.write_files(folder)
            result = harness.run(harness.launch(ranks, [train, config, "--verify-data", *tiny_run.options(run__sample_tokens=0)]), 60, cwd=folder)
            problems = [] if result.code == 0 else [f"exit code {result.code}"]
            problems += ["plain output speaks of a ceiling, or redraws a line"] if "ceiling" in result.out or "verifying" in result.out or "\r" in result.out else []
            report.case(f"{name}, into a file", problems, result if problems else "")
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
