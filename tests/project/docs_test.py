#!/usr/bin/env python3
"""Links and file names in README, CHANGELOG and docs/ exist. Usage: docs_test.py SOURCE_ROOT"""

import pathlib
import re
import sys

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
HEADING = re.compile(r"^#+\s+(.*)$", re.M)
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
# A back-quoted word is a file name when it starts with a folder of the tree and has nothing but name characters.
FOLDERS = ("runtime/", "kernels/", "comm/", "model/", "tests/", "bench/", "docs/", ".ci/", "./setup")
NAME = re.compile(r"^[A-Za-z0-9_./-]+$")


def anchor(heading):
    text = re.sub(r"[`*_]", "", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def check(root, page):
    problems = []
    raw = page.read_text()
    text = FENCE.sub(lambda m: "\n" * m.group(0).count("\n"), raw)
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{page.relative_to(root)}:{number}"
        for target in LINK.findall(line):
            if re.match(r"^[a-z]+:", target):
                continue
            name, _, fragment = target.partition("#")
            path = (page.parent / name) if name else page
            if not path.exists():
                problems.append(f"{where}: the link goes to {target}, which does not exist")
            elif fragment and path.suffix == ".md" and fragment not in map(anchor, HEADING.findall(path.read_text())):
                problems.append(f"{where}: {name or page.name} has no heading #{fragment}")
        for code in CODE.findall(line):
            word = code.split()[0]
            if word.startswith(FOLDERS) and NAME.match(word) and not (root / word).exists():
                problems.append(f"{where}: `{word}` does not exist")
    return problems


def main():
    root = pathlib.Path(sys.argv[1])
    pages = [p for p in [root / "README.md", root / "CHANGELOG.md", *sorted((root / "docs").rglob("*.md"))] if p.exists()]
    if root / "README.md" not in pages:
        print("README.md was not found: the test looked in the wrong place")
        return 1
    problems = [problem for page in pages for problem in check(root, page)]
    print("\n".join(problems))
    print(f"{len(pages)} pages, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
