#!/usr/bin/env python3
"""The examples of the documentation beside their twins in PyTorch (bench/peers/twins): each of the eight has one, the table in bench/peers/README.md has
the lines of both, and in all zshard's are at most 1.15 times PyTorch's. Lines count that are neither empty nor comment nor docstring.
Usage: twins_test.py SOURCE_ROOT   (or --self-test)"""

import ast
import pathlib
import re
import sys

MOST_RATIO = 1.15
LEAST_TWINS = 8
ROW = re.compile(r"^\| `(\w+)` \| (\d+) \| (\d+) \|$", re.M)
SUM = re.compile(r"^\| together \| (\d+) \| (\d+) \|$", re.M)


def lines_of_cpp(text):
    return sum(1 for line in text.splitlines() if line.strip() and not line.strip().startswith("//"))


def lines_of_python(text):
    described = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            described |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(1 for number, line in lines if line.strip() and not line.strip().startswith("#") and number not in described)


def problems_of(twins, readme):
    """twins: {name: (C++, Python)}"""
    if len(twins) < LEAST_TWINS:
        yield f"{len(twins)} twins, {LEAST_TWINS} are wanted"
    counted = {name: (lines_of_cpp(cpp), lines_of_python(python)) for name, (cpp, python) in twins.items()}
    ours, theirs = (sum(pair[i] for pair in counted.values()) for i in (0, 1))
    if ours > MOST_RATIO * theirs:
        yield f"{ours} lines of zshard for {theirs} of PyTorch: more than {MOST_RATIO} times"
    rows = {name: (int(a), int(b)) for name, a, b in ROW.findall(readme)}
    for name in sorted(counted.keys() | rows.keys()):
        if rows.get(name) != counted.get(name):
            yield f"bench/peers/README.md says {rows.get(name)} lines of {name}, and counted are {counted.get(name)}"
    if SUM.findall(readme) != [(str(ours), str(theirs))]:
        yield f"bench/peers/README.md does not say that together they have {ours} and {theirs} lines"


def problems(root):
    twins = {path.stem: ((root / "docs/examples" / f"{path.stem}.cpp").read_text(), path.read_text())
             for path in sorted((root / "bench/peers/twins").glob("*.py"))}
    return list(problems_of(twins, (root / "bench/peers/README.md").read_text()))


def self_test():
    cpp = '// What it is.\n#include <vector>\n\nint main() {\n  return 0;  // done\n}\n'
    python = '"""What it is."""\nimport torch\n\n\ndef main():\n    """Says\n    more."""\n    # nothing\n    print(torch)\n\n\nmain()\n'
    assert (lines_of_cpp(cpp), lines_of_python(python)) == (4, 4)
    twins = {f"n{i}": (cpp, python) for i in range(8)}
    table = "".join(f"| `n{i}` | 4 | 4 |\n" for i in range(8)) + "| together | 32 | 32 |\n"
    assert list(problems_of(twins, table)) == []
    longer = twins | {"n0": (cpp + "int a;\n" * 6, python)}
    found = "\n".join(problems_of(longer, table))
    for words in ("38 lines of zshard for 32", "says (4, 4) lines of n0, and counted are (10, 4)", "does not say that together they have 38"):
        assert words in found, found
    assert any("7 twins" in line for line in problems_of(dict(list(twins.items())[1:]), table))


def main():
    if sys.argv[1] == "--self-test":
        self_test()
        return 0
    found = problems(pathlib.Path(sys.argv[1]))
    for problem in found:
        print(problem)
    print(f"{len(found)} problems with the examples' twins")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
