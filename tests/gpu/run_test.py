#!/usr/bin/env python3
"""tests/gpu/run goes on where it stopped, counts what it did, and ends in time; with made-up tests instead of a GPU's."""

import argparse
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
RUN = str(pathlib.Path(__file__).with_name("run"))


def loaded():
    spec = importlib.util.spec_from_loader("gpu_run", importlib.machinery.SourceFileLoader("gpu_run", RUN))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


run = loaded()


def expect(condition, what):
    if not condition:
        sys.exit(f"run_test: {what}")


class Made:
    """A folder with programs for tests, and runs over it."""

    def __init__(self, folder):
        self.folder, self.tests = pathlib.Path(folder), []
        run.ROOT = self.folder

    def add(self, name, script, timeout=20):
        path = self.folder / f"{name}.sh"
        path.write_text(f"echo x >> {self.folder}/{name}.calls\n{script}\n")
        self.tests.append({"name": name, "cmd": ["sh", str(path)], "env": {"SAID": "1"}, "workdir": None, "timeout": timeout})

    def calls(self, name):
        path = self.folder / f"{name}.calls"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def run(self, part="kernels", limit_s=100.0, again=False):
        """({test: outcome}, exit code, last line)"""
        arguments = argparse.Namespace(part=part, build="build", bundle="none", again=again, limit_s=limit_s)
        (self.folder / "build").mkdir(exist_ok=True)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            try:
                rows = run.Run(arguments).run_all(self.tests)
                run.report(part, rows)
            except SystemExit as ended:
                return {name: outcome for name, outcome, _ in rows}, ended.code, said.getvalue().splitlines()[-1]
        sys.exit("run_test: the report did not end")


def what_has_passed_is_not_run_again(made):
    made.add("good", 'test "$SAID" = 1')
    made.add("bad", "echo the reason; exit 3")
    made.add("absent", "exit 77")
    outcomes, code, last = made.run()
    expect(outcomes == {"good": "passed", "bad": "FAILED (3)", "absent": "skipped"}, f"wrong outcomes: {outcomes}")
    expect(code == 1 and last == "kernels: 1 passed, 1 failed, 1 skipped, 0 left for another call", f"wrong end: {code}, {last}")
    outcomes, code, _ = made.run()
    expect(outcomes["good"] == "passed before" and made.calls("good") == 1, "what has passed was run again")
    expect(code == 1 and made.calls("bad") == 2, "what had failed was not run again")
    made.run(again=True)
    expect(made.calls("good") == 2, "--again did not run what had passed")


def a_changed_program_is_run_again(made):
    made.add("changes", "exit 0")
    made.run()
    made.tests.clear()
    made.add("changes", "exit 5")
    outcomes, code, _ = made.run()
    expect(code == 1 and outcomes == {"changes": "FAILED (5)"}, "a changed program kept its old result")


def what_does_not_fit_is_left_for_another_call(made):
    made.add("slow", "exec sleep 20", timeout=30)
    made.add("later", "exit 0")
    outcomes, code, last = made.run(limit_s=1.0)
    expect(outcomes == {"slow": "not run", "later": "not run"} and code == 75, f"wrong outcomes: {outcomes}, {code}")
    expect(made.calls("slow") == 0, "a test was begun without time for it")
    expect(last == "kernels: 0 passed, 0 failed, 0 skipped, 2 left for another call", last)


def a_test_that_hangs_fails_when_it_had_its_time(made):
    made.add("hangs", "exec sleep 20", timeout=1)
    outcomes, code, _ = made.run()
    expect(outcomes == {"hangs": "FAILED (timeout)"} and code == 1, f"wrong outcomes: {outcomes}")


def without_a_gpu_it_is_one_line(_made):
    run.ctypes.CDLL = lambda name: (_ for _ in ()).throw(OSError(f"{name}: not there"))
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            run.gpu_architecture()
            code = None
        except SystemExit as ended:
            code = ended.code
    expect(code == 77 and said.getvalue() == "tests/gpu/run: no GPU here: no NVIDIA driver (libcuda.so.1: not there)\n", said.getvalue())


def a_catch_program_is_taken_case_by_case(made):
    path = made.folder / "catch.sh"
    path.write_text('printf "one, two\\nthree [x]\\n"; exit 2\n')
    test = {"name": "all", "cmd": ["sh", str(path)], "env": {}, "workdir": None, "timeout": 1}
    arguments = argparse.Namespace(part="sanitizer", build="build", bundle="none", again=False, limit_s=10)
    cases = run.Run(arguments).cases(test)
    expect([c["name"] for c in cases] == ["all: one, two", "all: three [x]"], json.dumps(cases))
    expect([c["cmd"][-1] for c in cases] == ["one\\, two", "three \\[x\\]"], json.dumps(cases))


def main():
    for case in (what_has_passed_is_not_run_again, a_changed_program_is_run_again, what_does_not_fit_is_left_for_another_call,
                 a_test_that_hangs_fails_when_it_had_its_time, a_catch_program_is_taken_case_by_case, without_a_gpu_it_is_one_line):
        with tempfile.TemporaryDirectory() as folder:
            case(Made(folder))


if __name__ == "__main__":
    main()
