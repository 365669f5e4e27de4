#!/usr/bin/env python3
"""Plants one-line faults in a copy of the product, one at a time, and prints which test catches each.

A fault stands in a table *.toml of this folder: `what` it is, the `file`, the text `old` that is there exactly once, the text `new` instead, and the
`tests` to run, in this order until one fails. A test is "shard: scheduler, schemes" (the program tests/shard/shard_test, the cases of those files;
"shard_cuda: ..." those of shard_cuda_test), "name" (a script of `meson test`) or "comm_shm_3" (the communicator's suite under mpirun).

Usage: run.py SOURCE_ROOT [--jobs N] [WORD ...]   those of which `file` or `what` holds a word, or all
       run.py SOURCE_ROOT --check                 only whether every fault can still be planted
"""

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

COMPILER = "the compiler"
SECONDS = 300  # of one test; a fault that hangs is caught too
NAMES = ("kernels", "kernels_cuda", "kernels_cuda_launch", "comm", "device", "tensor", "shard", "shard_cuda", "model", "train", "bench")
PROGRAMS = {name: f"tests/{name.partition('_')[0]}/{name}_test" for name in NAMES} | {"comm_gpu": "tests/gpu/comm_gpu_worlds_test"}
SCRIPTS = ("train/program", "bench", "project", "python")
UNDER_MPIRUN = re.compile(r"comm_(mpi|shm)_\d+")


def read_tables(root):
    faults = []
    for path in sorted((root / "tests" / "mutants").glob("*.toml")):
        faults += [{**fault, "table": path.name} for fault in tomllib.loads(path.read_text())["mutant"]]
    return faults


def program_of(test):
    """("shard", ["scheduler", "schemes"]), or None of a test that is a script."""
    program, _, files = test.partition(": ")
    return (program, [name.strip() for name in files.split(",")]) if program in PROGRAMS and files else None


def unknown_tests(root, fault):
    """A script is named as its test is; it starts the program or a benchmark, or reads the tree."""
    for test in fault["tests"]:
        if UNDER_MPIRUN.fullmatch(test):
            continue
        program, names = program_of(test) or (None, [test.removesuffix("_test")])
        places = [f"{program.partition('_')[0]}/{{}}_test.cpp"] if program else [f"{folder}/{{}}_test.py" for folder in SCRIPTS]
        yield from (f"there is no test {name} in tests/{', tests/'.join(place.rpartition('/')[0] for place in places)}"
                    for name in names if not any((root / "tests" / place.format(name)).is_file() for place in places))


def problems_of(root, fault):
    missing = [key for key in ("what", "file", "old", "new", "tests") if key not in fault]
    if missing:
        return [f"has no {', '.join(missing)}"]
    path = root / fault["file"]
    if not path.is_file():
        return [f"{fault['file']} is not there"]
    count = path.read_text().count(fault["old"])
    found = [] if count == 1 else [f"its text stands {count} times in {fault['file']}"]
    found += [] if fault["old"] != fault["new"] and fault["tests"] else ["it changes nothing, or names no test"]
    return found + list(unknown_tests(root, fault))


def check(root, faults):
    wrong = [f"{fault['table']}: {fault.get('what', '?')}: {problem}" for fault in faults for problem in problems_of(root, fault)]
    for line in wrong:
        print(line)
    print(f"{len(faults)} faults, {len(wrong)} that cannot be planted")
    return 1 if wrong or not faults else 0


class Copy:
    """A copy of the tracked files with a build folder of its own, under build-mutants."""

    def __init__(self, root, jobs):
        self.source, self.build, self.jobs = root / "build-mutants" / "source", root / "build-mutants" / "build", jobs
        names = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=root, capture_output=True, check=True).stdout.decode().split("\0")
        for name in filter(None, names):
            self.write(name, (root / name).read_bytes())
        if not (self.build / "build.ninja").exists():
            self.run(["meson", "setup", self.build, self.source, "-Dcuda=disabled", "-Doptimization=1", "-Ddefault_library=static"], check=True)
        corpus = root / "build" / "kjv.txt"
        if corpus.exists():
            shutil.copy(corpus, self.build / "kjv.txt")

    def write(self, name, content):
        path = self.source / name
        if path.exists() and path.read_bytes() == content:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        if content.startswith(b"#!"):
            path.chmod(0o755)

    def run(self, line, **options):
        return subprocess.run([str(word) for word in line], cwd=self.source, capture_output=True, stdin=subprocess.DEVNULL, **options)

    def build_targets(self, targets):
        return self.run(["ninja", "-C", self.build, f"-j{self.jobs}", *targets])

    def targets_of(self, script):
        """What the test of this name needs built."""
        tests, targets = (json.loads((self.build / "meson-info" / f"intro-{what}.json").read_text()) for what in ("tests", "targets"))
        needed = {target for test in tests if test["name"] == script for target in test["depends"]}
        return [pathlib.Path(target["filename"][0]).relative_to(self.build.resolve()) for target in targets if target["id"] in needed]

    def passes(self, test):
        """Whether it passes; None if it does not compile."""
        program = program_of(test)
        if program is None:
            targets = ["tests/comm/comm_mpi_test"] if UNDER_MPIRUN.fullmatch(test) else self.targets_of(test)
            line = ["meson", "test", "-C", self.build, "--no-rebuild", test]
        else:
            name, names = program
            targets = [PROGRAMS[name]]
            left_out = "~[.]~[cpu]" if name == "kernels_cuda" else "~[.]"
            wanted = ",".join(f"[#{file}_test]{left_out}" for file in names)
            line = [self.build / targets[0], "-w", "NoTests", "-#", wanted]
        if self.build_targets(targets).returncode != 0:
            return None
        try:
            return self.run(line, timeout=SECONDS).returncode == 0
        except subprocess.TimeoutExpired:
            print(f"  {test}: not ended after {SECONDS} s", flush=True)
            return False


def caught_by(copy, fault):
    """The test; None if all pass."""
    for test in fault["tests"]:
        passed = copy.passes(test)
        if passed is None:
            return COMPILER
        if not passed:
            return test
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    root = args.root.resolve()
    faults = read_tables(root)
    if args.check:
        return check(root, faults)
    chosen = [f for f in faults if not args.words or any(word in f["file"] or word in f["what"] for word in args.words)]
    if not chosen or check(root, chosen):
        print("nothing to plant" if not chosen else "correct the tables first")
        return 1
    copy, catching = Copy(root, args.jobs), []
    for fault in chosen:
        whole = (root / fault["file"]).read_text()
        copy.write(fault["file"], whole.replace(fault["old"], fault["new"]).encode())
        catching.append(caught_by(copy, fault))
        copy.write(fault["file"], whole.encode())
        print(f"{catching[-1] or 'SURVIVES':40} {fault['file']}: {fault['what']}", flush=True)
    failing = [test for test in sorted({*catching} - {None, COMPILER}) if not copy.passes(test)]
    for test in failing:
        print(f"{test} fails without any fault, so that it catches none")
    caught = sum(test is not None and test not in failing and test != COMPILER for test in catching)
    print(f"{caught} of {len(chosen)} faults caught")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
