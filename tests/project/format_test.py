#!/usr/bin/env python3
"""Every C++ file is as clang-format 14 writes it. Other versions format differently, so without that one the test is skipped.
Usage: format_test.py SOURCE_ROOT"""

import os
import pathlib
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

SKIP = 77


def find_clang_format():
    for name in ("clang-format-14", "clang-format"):
        path = shutil.which(name)
        if path and "version 14." in subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30).stdout:
            return path
    return None


def sources(root):
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.suffix in (".h", ".cpp", ".cu") and not name.startswith((".", "build", "runs/")):
            yield name


def main():
    root = pathlib.Path(sys.argv[1])
    names = list(sources(root))
    if not names:
        print("no source files were found: the test looked in the wrong place")
        return 1
    tool = find_clang_format()
    if not tool:
        print("skipped: clang-format 14 is not installed")
        return SKIP

    def check(name):
        done = subprocess.run([tool, "--dry-run", "-Werror", "--style=file", name], cwd=root, capture_output=True, text=True, timeout=120)
        return (name, done.stderr) if done.returncode != 0 else None

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        wrong = [r for r in pool.map(check, names) if r]
    for name, text in wrong:
        print(text.splitlines()[0] if text else name)
    if wrong:
        print(f"to correct: {os.path.basename(tool)} -i {' '.join(name for name, _ in wrong)}")
    print(f"{len(names)} files, {len(wrong)} not formatted")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
