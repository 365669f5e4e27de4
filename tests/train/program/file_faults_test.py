#!/usr/bin/env python3
"""A disk that does half of what it is asked for, or is interrupted by a signal, changes nothing; one that fails while a run begins leaves nothing
in its way; and a signal at any time is a request. Usage: file_faults_test.py TRAIN IO_FAULTS_LIBRARY [WORD...]   (WORD: only the cases whose name contains one)"""

import os
import pathlib
import sys

import harness
from resume_test import Folder, compare, expect, whole_run

IO, STOPPED = 74, 75


def faulty(fault, file):
    return ["env", f"LD_PRELOAD={LIBRARY}", f"IO_FAULT={fault}", f"IO_FILE={file}"]


def going_on(train, whole):
    """The same bits, and no warning, with every file: half a write at a time, and EINTR from two calls of three."""
    problems = []
    for fault in ("short", "eintr"):
        with Folder(train) as folder:
            first = folder.start(prefix=faulty(fault, "/"), checkpoint__every=4)
            problems += [f"{fault}: {p}" for p in compare(folder, first, whole)]
            second = folder.start("--resume", "out/checkpoints/step-4", "--overwrite", prefix=faulty(fault, "/"))
            problems += [f"{fault}, going on: {p}" for p in compare(folder, second, whole)]
            problems += [f"{fault}: {result.err}" for result in (first, second) if "warning" in result.err or "error" in result.err]
    return problems


def begin(train, whole):
    """An error of the disk in any sync of the mark or of config.toml while a run begins: nothing stays, and the same start succeeds."""
    problems = []
    for file, number in (("zshard-run.txt", 1), ("zshard-run.txt", 2), ("zshard-run.txt", 3), ("config.toml", 1)):
        with Folder(train) as folder:
            result = folder.start(prefix=faulty(f"eio={number}", file))
            problems += [f"{file} {number}: {p}" for p in expect(result, IO, "Input/output error")]
            problems += [f"{file} {number}: something is left"] if (folder.path / "out").exists() else []
            problems += [f"{file} {number}: it says that space is short"] if "free some space" in result.err else []
            problems += [f"{file} {number}, again: {p}" for p in compare(folder, folder.start("--resume", "auto"), whole)]
    return problems


def early(train, whole):
    """A signal that comes before main, since a launcher may send one at any time, stops a run in order, and it goes on."""
    with Folder(train) as folder:
        problems = expect(folder.start(prefix=faulty("signal", "-")), STOPPED, "--resume latest")
        return problems + compare(folder, folder.start("--resume", "latest"), whole)


if __name__ == "__main__":
    LIBRARY = str(pathlib.Path(sys.argv.pop(2)).resolve())
    os.environ.pop("GOMP_SPINCOUNT", None)  # where it is set, the program does not start itself once more
    sys.exit(harness.run_cases((going_on, begin, early), whole_run(harness.begin())))
