#!/usr/bin/env python3
"""clang-tidy 14 has nothing to say of the product's sources and headers (.clang-tidy says what it looks for). Without it the test is skipped.
Usage: tidy_test.py SOURCE_ROOT"""

import pathlib
import re
import sys
import tempfile

import clang_tools

SKIP = 77
GCC_ONLY = "kernels/cpu/"  # its vectors are GCC's, which clang 14 does not know
FAULT = "int* fault() { return 0; }\n"  # modernize-use-nullptr


def command(tool, build):
    # GCC's options that clang does not know are no fault of the sources.
    return [tool, "-p", str(build), "--quiet", "--warnings-as-errors=*", "--extra-arg=-Wno-unknown-warning-option"]


def warnings(wrong):
    """Each once, though many files include the header that it is in."""
    return sorted({line for _, text in wrong for line in text.splitlines() if re.search(r" (warning|error): ", line)})


def sees_a_fault(tidy, root):
    with tempfile.TemporaryDirectory() as folder:
        fault = pathlib.Path(folder) / "fault.cpp"
        fault.write_text(FAULT)
        found = clang_tools.run_over([[str(fault)]], [*tidy, f"--config-file={root / '.clang-tidy'}"], root)
    return any("modernize-use-nullptr" in w for w in warnings(found))


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    tool = clang_tools.find("clang-tidy")
    if not tool:
        print(f"skipped: clang-tidy {clang_tools.VERSION} is not installed")
        return SKIP
    with tempfile.TemporaryDirectory() as build:
        names = [name for name in clang_tools.single_file_commands(root, build) if not name.startswith(GCC_ONLY)]
        tidy = command(tool, build)
        if len(names) < 50 or not sees_a_fault(tidy, root):
            print(f"{len(names)} source files were found, or a fault was not: the test looks in the wrong place or way")
            return 1
        wrong = clang_tools.run_over([[name] for name in names], tidy, root)
    for line in warnings(wrong) or [text for _, text in wrong]:
        print(line)
    print(f"{len(names)} files, {len(wrong)} with warnings")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
