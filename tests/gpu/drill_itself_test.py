#!/usr/bin/env python3
"""The drill tells cases that passed from those that did not, with a made-up test program: after one that breaks its process the others are run again by
themselves, one that does not end is killed with all that it has started, and a process that breaks when its cases are done is no good one."""

import os
import pathlib
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import drill_machine  # noqa: E402, beside this file
import drill_plan  # noqa: E402
import drill_steps  # noqa: E402
import drill_tools  # noqa: E402

PROGRAM = r"""#!{python}
import html, os, pathlib, re, subprocess, sys, time
CASES = {cases!r}
if "--list-test-names-only" in sys.argv:
    print(*CASES, sep="\n")
    sys.exit(len(CASES))
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
report = open(words["-o"], "w", buffering=1)
report.write("<Catch>\n<Group>\n")
is_broken = False
for line in pathlib.Path(words["-f"]).read_text().splitlines():
    if not re.fullmatch(r'(\\.|[^\\,"])*', line):
        continue  # as Catch2 does
    name = re.sub(r"\\(.)", r"\1", line)
    report.write(f'<TestCase name="{{html.escape(name)}}" tags="[x]">\n')
    with open({ran!r}, "a") as ran:
        ran.write(name + "\n")
    if "breaks" in name:
        is_broken = True
    if "kills" in name:
        os.abort()
    if "hangs" in name:
        subprocess.run(["sleep", "1000"])
    report.write(f'<OverallResult success="{{str(not is_broken).lower()}}"/>\n</TestCase>\n')
sys.exit(7 if is_broken or "ends badly" in name else 77 if "is skipped" in name else 0)
"""


def expect(condition, what):
    if not condition:
        sys.exit(f"drill_itself_test: {what}")


def run(cases, limit_s=30, processes=2):
    """(outcome, detail, the cases in the order in which they were run)"""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name in ("programs", "logs", "work"):
            (root / name).mkdir()
        program, ran = root / "programs" / "made_up_test", root / "ran"
        program.write_text(PROGRAM.format(python=sys.executable, cases=cases, ran=str(ran)))
        program.chmod(0o755)
        steps = drill_steps.Steps(root, root / "logs", root / "work", {"PATH": "/usr/bin:/bin"}, {})
        step = {"name": "made up", "kind": "cases", "program": "made_up_test", "args": [], "processes": processes}
        outcome, detail = steps.run(step, time.monotonic() + limit_s)
        return outcome, detail, ran.read_text().splitlines() if ran.is_file() else []


def check_cases():
    good = [f'case {i}, with "quotes", a \\ & <marks>' for i in range(5)]
    expect(run(good)[:2] == ("passed", "5 cases"), "what passes passed")
    outcome, detail, ran = run(["a breaks", "b", "c", "d", "e", "f"])
    expect(outcome == "FAILED" and detail.startswith("1 of 6 cases did not pass: a breaks"), f"one breaks its process: {outcome}, {detail}")
    expect(sorted(ran) == ["a breaks", "a breaks", "b", "c", "c", "d", "e", "e", "f"], f"those behind it are run again: {ran}")
    outcome, detail, _ = run(["a kills", "b", "c", "d"])
    expect(outcome == "FAILED" and detail.startswith("1 of 4 cases did not pass: a kills"), f"one kills its process: {outcome}, {detail}")
    outcome, detail, _ = run(["a", "b", "c ends badly"], processes=1)
    expect(outcome == "FAILED" and detail.startswith("1 of 3 cases did not pass: c ends badly"), f"a process ends badly: {outcome}, {detail}")
    expect(run(["a is skipped"])[:2] == ("skipped", "1 cases, none of which can be run here"), "what is skipped did not pass")
    outcome, detail, _ = run([])
    expect(outcome == "FAILED" and detail.startswith("it lists no cases"), f"a program without cases: {outcome}, {detail}")


TOOL = """#!{python}
import pathlib, sys
words = sys.argv[1:]
if pathlib.Path(sys.argv[0]).name == "ncu":
    kernel = words[words.index("--kernel-name") + 1]
    print("==PROF==", kernel[len("regex:^"):-1] if "zs_seen" in kernel else "No kernels were profiled")
else:
    print(*pathlib.Path(words[words.index("-f") + 1]).read_text().splitlines(), sep="\\n")
    sys.exit(1 if "-f" in words and "bad" in words[-3] else 0)
"""


def check_tools():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name in ("tools", "programs", "logs", "work"):
            (root / name).mkdir()
        steps = drill_steps.Steps(root, root / "logs", root / "work", {"PATH": "/usr/bin:/bin"}, {}, {"good_test": ["a, b"], "bad_test": ["c"]})
        counters = {"name": "counters", "kind": "counters", "program": "bench", "args": [], "counted": {"zs_seen": "x", "zs_missed": "y"}}
        again = {"name": "again", "kind": "sanitizer"}
        os.environ["PATH"] = str(root / "tools")
        patterns, drill_tools.TOOLS_FOLDERS = drill_tools.TOOLS_FOLDERS, ()
        for step in (counters, again):
            expect(steps.run(step, time.monotonic() + 30)[0] == "skipped", f"{step['name']}: without its tool it is skipped")
        bench = root / "programs" / "bench"
        for says, outcome in (("no cuDNN here (libcudnn.so.9: cannot open)", "skipped"), ("CUDA error 700", "FAILED")):
            bench.write_text(f"#!/bin/sh\necho 'bench_kernels: error: {says}: so what' >&2\nexit 78\n")
            bench.chmod(0o755)
            figures = {"name": f"figures {outcome}", "kind": "figures", "program": "bench", "args": []}
            found = steps.run(figures, time.monotonic() + 30)
            expect(found[0] == outcome, f"figures: {says}: {found}")
        for name in ("ncu", "compute-sanitizer"):
            (root / "tools" / name).write_text(TOOL.format(python=sys.executable))
            (root / "tools" / name).chmod(0o755)
        outcome = steps.run(counters, time.monotonic() + 30)
        expect(outcome == ("FAILED", "zs_missed: 0"), f"a kernel that was not profiled: {outcome}")
        outcome = steps.run(again, time.monotonic() + 30)
        expect(outcome == ("FAILED", "bad_test: 1"), f"what compute-sanitizer finds: {outcome}")
        expect("a\\, b" in steps.log_of(again, "good_test").read_text(), "a case's name is spelled as Catch2 wants it")
        drill_tools.TOOLS_FOLDERS = patterns


def check_plans():
    for name, make in drill_plan.PLANS.items():
        for part, steps in make()["parts"].items():
            seconds = sum(step["limit_s"] for step in steps)
            expect(name == "small" or seconds <= drill_plan.PART_SECONDS[part], f"part {part} of the plan takes {seconds} s")


def lives(pid):
    try:
        return pathlib.Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def check_time():
    outcome, detail, _ = run(["a", "b hangs", "c", "d"], limit_s=3)
    expect(outcome == "not finished" and detail.startswith("2 of 4 cases did not pass: b hangs"), f"one does not end: {outcome}, {detail}")
    with tempfile.TemporaryDirectory() as folder:
        words = ["sh", "-c", "sleep 1000 & echo $!; sleep 1000"]
        log = pathlib.Path(folder, "log")
        program = drill_machine.Program(words, log, {"PATH": "/usr/bin:/bin"}, folder)
        drill_machine.finish([program], time.monotonic() + 1)
        child = log.read_text().splitlines()[1]
    expect(program.rc == "timeout", f"a program that does not end: {program.rc}")
    for _ in range(500):  # the kernel takes its time
        if not lives(child):
            return
        time.sleep(0.01)
    expect(False, "what it had started still runs")


if __name__ == "__main__":
    check_cases()
    check_plans()
    check_tools()
    check_time()
