#!/usr/bin/env python3
"""Links and file names in README, CHANGELOG and docs/ exist, for whoever clones the repository too. A decision has
at most MAX_DECISION_LINES lines. docs/README.md leads to every page of docs/.
Usage: docs_test.py SOURCE_ROOT   (or --self-test)"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

MAX_DECISION_LINES = 60

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


def tracked(root):
    """Every file that git tracks and every folder above one, absolute; None without git, or where `root` is no repository of its own."""
    def git(*args):
        try:
            done = subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True, timeout=30)
        except OSError:
            return None
        return done.stdout if done.returncode == 0 else None

    top, listed = git("rev-parse", "--show-toplevel"), git("ls-files", "-z")
    if top is None or listed is None or pathlib.Path(top.strip()).resolve() != root.resolve():
        return None
    names = set()
    for name in filter(None, listed.split("\0")):
        path = root.resolve() / name
        names.update([path, *path.parents])
    return names


def problem_with(path, known):
    if not path.exists():
        return "does not exist"
    if known is not None and pathlib.Path(os.path.normpath(path.absolute())) not in known:
        return "is not tracked by git: a clone does not have it"
    return None


def check(root, page, known):
    problems = []
    raw = page.read_text()
    text = FENCE.sub(lambda m: "\n" * m.group(0).count("\n"), raw)
    def where(match):
        return f"{page.relative_to(root)}:{text.count(chr(10), 0, match.start()) + 1}"

    for link in LINK.finditer(text):  # its words may stand on two lines
        target = link[1]
        if re.match(r"^[a-z]+:", target):
            continue
        name, _, fragment = target.partition("#")
        path = (page.parent / name) if name else page
        problem = problem_with(path, known)
        if problem:
            problems.append(f"{where(link)}: the link goes to {target}, which {problem}")
        elif fragment and path.suffix == ".md" and fragment not in map(anchor, HEADING.findall(path.read_text())):
            problems.append(f"{where(link)}: {name or page.name} has no heading #{fragment}")
    for code in CODE.finditer(text):
        word = code[1].split()[0]
        problem = problem_with(root / word, known) if word.startswith(FOLDERS) and NAME.match(word) else None
        if problem:
            problems.append(f"{where(code)}: `{word}` {problem}")
    return problems


def length_problems(root, pages):
    problems = []
    for page in pages:
        lines = page.read_text().count("\n") if page.parent == root / "docs" / "decisions" else 0
        if lines > MAX_DECISION_LINES:
            problems.append(f"{page.relative_to(root)}: {lines} lines; a decision has at most {MAX_DECISION_LINES}")
    return problems


def index_problems(root, pages):
    """The index of docs/ leads to every page beside it."""
    index = root / "docs" / "README.md"
    linked = {(index.parent / target.partition("#")[0]).resolve() for target in LINK.findall(index.read_text())} if index.exists() else set()
    beside = [page for page in pages if page.parent == index.parent and page != index]
    return [f"{page.relative_to(root)}: docs/README.md has no link to it" for page in beside if index.exists() and page.resolve() not in linked]


def check_all(root):
    root = root.resolve()
    pages = [p for p in [root / "README.md", root / "CHANGELOG.md", *sorted((root / "docs").rglob("*.md"))] if p.exists()]
    known = tracked(root)
    problems = [problem for page in pages for problem in check(root, page, known)]
    return pages, problems + index_problems(root, pages) + length_problems(root, pages)


def self_test():
    """A page that names what is there, what is not there, and what only this checkout has."""
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder).resolve()
        (root / "docs").mkdir()
        (root / "bench").mkdir()
        (root / "docs" / "page.md").write_text("# A page\n[back](../README.md) [none\nat all](gone.md) [at](page.md#a-page) [off](page.md#nowhere)\n")
        (root / "README.md").write_text("`docs/page.md`, `docs/`, `docs/gone.md`, `bench/`\n")

        def faults():
            return sorted(re.sub(r"^[^ ]* ", "", problem) for problem in check_all(root)[1])

        plain = ["`docs/gone.md` does not exist", "page.md has no heading #nowhere", "the link goes to gone.md, which does not exist"]
        if faults() != plain:
            wrong.append(f"without a repository: {faults()}")
        (root / "docs" / "README.md").write_text("[all](../README.md)\n")
        if faults() != sorted(plain + ["docs/README.md has no link to it"]):
            wrong.append(f"a page that the index leaves out: {faults()}")
        (root / "docs" / "README.md").write_text("[all](page.md)\n")
        try:
            for args in (["init", "-q"], ["add", "README.md", "docs"]):
                subprocess.run(["git", "-C", folder, *args], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return wrong
        if faults() != sorted(plain + ["`bench/` is not tracked by git: a clone does not have it"]):
            wrong.append(f"in a repository: {faults()}")
    return wrong


def self_test_lengths():
    """A decision of as many lines as there may be, and one more; other pages may be longer."""
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder).resolve()
        decision = root / "docs" / "decisions" / "0001-a.md"
        decision.parent.mkdir(parents=True)
        (root / "README.md").write_text("word\n" * (MAX_DECISION_LINES + 1))
        for lines in (MAX_DECISION_LINES, MAX_DECISION_LINES + 1):
            decision.write_text("word\n" * lines)
            found = check_all(root)[1]
            if len(found) != (lines > MAX_DECISION_LINES):
                wrong.append(f"a decision of {lines} lines: {found}")
    return wrong


def main():
    if sys.argv[1:] == ["--self-test"]:
        wrong = self_test() + self_test_lengths()
        print("\n".join(wrong) or "every planted fault is found")
        return 1 if wrong else 0
    root = pathlib.Path(sys.argv[1])
    pages, problems = check_all(root)
    if root.resolve() / "README.md" not in pages:
        print("README.md was not found: the test looked in the wrong place")
        return 1
    print("\n".join(problems))
    print(f"{len(pages)} pages, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
