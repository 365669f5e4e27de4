#!/usr/bin/env python3
"""Every C++ file is as clang-format 14 writes it. Other versions format differently, so without that one the test is skipped.
Usage: format_test.py SOURCE_ROOT"""

import os
import pathlib
import sys

import clang_tools

SKIP = 77
BATCH = 32


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
    tool = clang_tools.find("clang-format")
    if not tool:
        print(f"skipped: clang-format {clang_tools.VERSION} is not installed")
        return SKIP
    check = [tool, "--dry-run", "-Werror", "--style=file"]  # 0.03 s of CPU to start, so it takes many files at once
    batches = [names[i:i + BATCH] for i in range(0, len(names), BATCH)]
    doubtful = [name for batch, _ in clang_tools.run_over(batches, check, root) for name in batch]
    wrong = clang_tools.run_over([[name] for name in doubtful], check, root)
    for (name,), text in wrong:
        print(text.splitlines()[0] if text else name)
    if wrong:
        print(f"to correct: {os.path.basename(tool)} -i {' '.join(name for (name,), _ in wrong)}")
    print(f"{len(names)} files, {len(wrong)} not formatted")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
