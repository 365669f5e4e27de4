"""Starts `train` wrongly: it must end by itself with the right exit code and one line that says what is wrong, where, and what to do; and leave
nothing behind, neither file nor process. Only the standard library is used."""

import os
import pathlib
import re
import sys
import tempfile
from dataclasses import dataclass, field

import harness
import tiny_run

USAGE, DATASET, MODEL, OUT_OF_MEMORY, CANNOT_CREATE, CANNOT_WRITE, STOPPED, NON_FINITE, CONFIG = 64, 65, 67, 71, 73, 74, 75, 76, 78
LIMIT_S = 60


@dataclass
class Case:
    name: str
    code: int
    says: list = field(default_factory=list)  # regular expressions; each must be found in the last line of stderr
    lists: list = field(default_factory=list)  # and each of these somewhere in stderr
    sets: list = field(default_factory=list)  # --set key=value
    args: list = None  # the whole argument list, where it is not CONFIG and `sets`
    prepare: object = None  # called with the folder; may write files
    env: dict = field(default_factory=dict)
    ranks: tuple = (None, 3)  # None: without mpirun
    creates: bool = False  # a run directory may be there afterwards
    ulimit: tuple = ()  # of each process: ("-v", KiB)


def write(name, data):
    def prepare(folder):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)

    return prepare


def append(text):
    def prepare(folder):
        with open(folder / "tiny.toml", "a") as f:
            f.write(text)

    return prepare


def problems_of(case, result, before, after):
    problems = []
    last = result.last_error_line()
    if result.timed_out:
        problems.append(f"did not end within {LIMIT_S} s")
    if result.code != case.code:
        problems.append(f"exit code {result.code}, expected {case.code}")
    if not last.startswith("train: error: "):
        problems.append(f"the last line of stderr is not `train: error: ...`: {last[:200]!r}")
    if len(last.encode()) > 300:
        problems.append(f"the last line has {len(last.encode())} bytes, more than 300")
    if re.search(r"[\x00-\x1f\x7f]", last):
        problems.append(f"control characters in the last line: {last!r}")
    problems += [f"the last line does not say /{p}/: {last!r}" for p in case.says if not re.search(p, last)]
    problems += [f"stderr does not say /{p}/" for p in case.lists if not re.search(p, result.err)]
    errors = [line for line in result.err.splitlines() if line.startswith("train: error: ")]
    if len(errors) != len(set(errors)):
        problems.append("the same error line was printed more than once")
    if before != after and not case.creates:
        changed = sorted(set(before.items()) ^ set(after.items()))
        problems.append(f"files were created or changed: {changed[:5]}")
    if result.orphans:
        problems.append(f"{len(result.orphans)} processes were left running")
    return problems


def run_case(train, case, ranks, report):
    with tempfile.TemporaryDirectory(prefix="train_cli.") as name:
        folder = pathlib.Path(name)
        config = tiny_run.write_files(folder)
        if case.prepare:
            case.prepare(folder)
        arguments = [config] if case.args is None else [a.format(config=config) for a in case.args]
        for item in case.sets:
            arguments += ["--set", item]
        before = harness.tree(folder)
        limit = ["bash", "-c", f'ulimit {case.ulimit[0]} {case.ulimit[1]} && exec "$@"', "bash"] if case.ulimit else []
        result = harness.run(harness.launch(ranks, [*limit, train, *arguments]), LIMIT_S, cwd=folder, env=case.env)
        where = "without mpirun" if ranks is None else f"{ranks} ranks"
        report.case(f"{case.name}, {where}", problems_of(case, result, before, harness.tree(folder)), result)


def run_cases(cases):
    """Of the program that the command line names; with more words, only those whose name contains one."""
    train, words = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:]
    harness.become_subreaper()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    report = harness.Report()
    for case in cases:
        if not words or any(word in case.name for word in words):
            for ranks in case.ranks:
                run_case(train, case, ranks, report)
    return report.exit_code()
