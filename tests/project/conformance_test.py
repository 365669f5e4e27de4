#!/usr/bin/env python3
"""docs/conformance.md has one line for every row of conformance_rows.txt and no others, and every test that it names is a test of this build.
A case may be named by its begin and "...", which only one case of that file may have.
Usage: conformance_test.py SOURCE_ROOT BUILD_ROOT   (or --self-test)"""

import json
import pathlib
import re
import sys

ROWS = pathlib.Path(__file__).with_name("conformance_rows.txt")
RANGE = re.compile(r"(\d+)([a-z]?)(?:-(\d+)([a-z]?))?")
ISSUES = ("sharding schemes", "communication", "plans, unshard scope, offload, extensions, experts", "models, weights, checkpoints",
          "later: partition axes, fp8")
NAMED_TEST = re.compile(r'`(tests/[^`]+)`: "([^"]+)"')
STRING_GOES_ON = re.compile(r'(?<!\\)"\s*\n\s*"')  # a literal that stands on two lines
CASE = re.compile(r'TEST_CASE\(\s*"((?:[^"\\]|\\.)*)"\s*(?:,\s*"([^"]*)"\s*)?\)\s*\{\s*(\S[^\n]*)?')


def rows_of(text):
    """0- 1-3 4a-4c: 0-1, 0-2, 0-3, 0-4a, 0-4b, 0-4c."""
    names = []
    for line in text.splitlines():
        prefix, *words = line.partition("#")[0].split() or [""]
        for word in words:
            first, letter, last, last_letter = RANGE.fullmatch(word).groups()
            numbers = range(int(first), int(last or first) + 1)
            letters = [chr(code) for code in range(ord(letter), ord(last_letter or letter) + 1)] if letter else [""]
            names += [f"{prefix}{number}{one}" for number in numbers for one in letters]
    return names


def expected_rows():
    return rows_of(ROWS.read_text())


def table_rows(page):
    """(line number, cells) of every line of a table of five columns, without headers and rules."""
    for number, line in enumerate(page.splitlines(), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(cells) == 5 and not re.match(r"^(:?-+|row|defect)$", cells[0]):
            yield number, cells


class Tree:
    """`sources`: text of a file, or None; `programs`: for each source file, the argument lists with which a test runs its program."""

    def __init__(self, sources, programs):
        self.sources, self.programs = sources, programs

    def problem_with(self, path, case):
        text = self.sources(path)
        if text is None:
            return f"{path} does not exist"
        if not self.programs.get(path):
            return f"{path} belongs to no test of this build"
        if path.endswith(".py"):
            known = re.search(rf"^def {re.escape(case)}\(", text, re.M) or f'"{case}"' in text
            return None if known else f'{path} has no function or case "{case}"'
        cases = CASE.findall(STRING_GOES_ON.sub("", text))
        if case.endswith("..."):
            begun = [name for name, *_rest in cases if name.startswith(case[:-3])]
            if len(begun) != 1:
                return f'{path} has {len(begun) or "no"} cases that begin with "{case[:-3]}"'
            case = begun[0]
        for name, tags, first in cases:
            if name != case:
                continue
            hidden = [tag for tag in re.findall(r"\[[^]]*\]", tags) if tag.startswith("[.") or tag == "[!hide]"]
            if hidden and not any(set(hidden) & set(args) for args in self.programs[path]):
                return f'{path}: "{case}" is hidden, and no test asks for it'
            if re.match(r"(zs::test::|test::)?skip\(", first):
                return f'{path}: "{case}" is skipped everywhere'
            return None
        return f'{path} has no case "{case}"'


def status_problems(status, tests, note, known):
    if status == "done":
        return [] if tests else ["done, but no test is named"]
    if tests:
        return [f"{status}, but a test is named"]
    superseded = re.fullmatch(r"superseded by (\S+)", status)
    if superseded:
        by = superseded[1]
        return [] if known.get(by) == "done" else [f"superseded by {by}, which is {known.get(by, 'no row')}"]
    if status == "not applicable":
        return [] if note else ["not applicable, without a reason in the note"]
    issue = re.fullmatch(r"open: (.+)", status)
    if issue:
        return [] if issue[1] in ISSUES else [f"open, but '{issue[1]}' is no issue"]
    return [f"unknown status '{status}'"]


def problems_of(page, tree):
    problems, seen, rows = [], {}, list(table_rows(page))
    expected = set(expected_rows())
    for number, (name, *_rest) in rows:
        if name not in expected:
            problems.append(f"line {number}: '{name}' is no row")
        if name in seen:
            problems.append(f"line {number}: {name} is there twice")
        seen[name] = _rest[1]
    problems += [f"{name} is missing" for name in expected_rows() if name not in seen]
    for number, (name, what, status, test, note) in rows:
        tests = NAMED_TEST.findall(test)
        faults = status_problems(status, tests, note, seen)
        if NAMED_TEST.sub("", test).strip(" ;"):
            faults.append(f"the column of tests holds '{NAMED_TEST.sub('', test).strip(' ;')}'")
        if not what:
            faults.append("nothing says what it is")
        faults += [problem for named in tests if (problem := tree.problem_with(*named))]
        problems += [f"line {number}: {name}: {fault}" for fault in faults]
    return problems, rows


def included(unity_files):
    """Sources that are compiled several at once are named in the files that include them alone."""
    return [source for file in unity_files for source in re.findall(r"^#include *[<\"]([^>\"]*)[>\"]", pathlib.Path(file).read_text(), re.M)]


def read_build(root, build):
    def load(name):
        return json.loads((build / "meson-info" / name).read_text())

    runs, programs = {}, {}
    for test in load("intro-tests.json"):
        for i, word in enumerate(test["cmd"]):
            runs.setdefault(str(pathlib.Path(word).resolve()), []).append(test["cmd"][i + 1:])
    by_output = {name: target for target in load("intro-targets.json") for name in target["filename"]}
    for path, arguments in runs.items():
        sources = [path]
        if path in by_output:
            groups = by_output[path]["target_sources"]
            sources = [source for group in groups for source in group.get("sources", []) + included(group.get("generated_sources", []))]
        for source in sources:
            try:
                name = str(pathlib.Path(source).resolve().relative_to(root))
            except ValueError:
                continue
            programs.setdefault(name, []).extend(arguments)
    return Tree(lambda name: (root / name).read_text() if (root / name).is_file() else None, programs)


def self_test():
    """A page without fault, and the same with each kind of fault planted."""
    code = ('TEST_CASE("works") {\n  CHECK(true);\n}\nTEST_CASE("hidden", "[.x]") {\n}\nTEST_CASE("asked for", "[.y]") {\n}\n'
            'TEST_CASE("given up", "[z]") {\n  skip("no machine has it");\n  return;\n}\n'
            'TEST_CASE(\n    "counts "\n    "to ten") {\n}\nTEST_CASE("counts to two") {\n}\n')
    files = {"tests/a_test.cpp": code, "tests/b_test.cpp": code, "tests/c_test.py": 'def part():\n    case("in words")\n'}
    tree = Tree(files.get, {"tests/a_test.cpp": [["[.y]"]], "tests/c_test.py": [[]]})
    lines = {name: f'| {name} | w | done | `tests/a_test.cpp`: "works" | |' for name in expected_rows()}
    lines["0-2"] = "| 0-2 | w | superseded by 0-1 | | |"
    lines["0-3"] = f"| 0-3 | w | open: {ISSUES[4]} | | |"
    lines["0-4"] = "| 0-4 | w | not applicable | | why |"
    lines["0-5"] = '| 0-5 | w | done | `tests/a_test.cpp`: "asked for"; `tests/c_test.py`: "part"; `tests/c_test.py`: "in words" | |'
    lines["0-8"] = '| 0-8 | w | done | `tests/a_test.cpp`: "counts to tw..." | |'
    lines["0.3-1"] = '| 0.3-1 | w | done | `tests/a_test.cpp`: "works" | |'
    faults = {
        "a row is missing": ({"0-6": ""}, "0-6 is missing"),
        "a defect is missing": ({"0.3-2": ""}, "0.3-2 is missing"),
        "the last row of a system is missing": ({"2A-55": ""}, "2A-55 is missing"),
        "a defect of no system": ({"0-6": lines["0-6"] + "\n" + lines["0-6"].replace("0-6", "0.3-12")}, "'0.3-12' is no row"),
        "a row is there twice": ({"0-6": lines["0-6"] + "\n" + lines["0-6"]}, "0-6 is there twice"),
        "a row of no system": ({"0-6": lines["0-6"] + "\n" + lines["0-6"].replace("0-6", "0-66")}, "'0-66' is no row"),
        "an unknown status": ({"0-6": "| 0-6 | w | nearly | | |"}, "unknown status 'nearly'"),
        "done without a test": ({"0-6": "| 0-6 | w | done | | |"}, "no test is named"),
        "a program that is not there": ({"0-6": '| 0-6 | w | done | `tests/d_test.cpp`: "works" | |'}, "does not exist"),
        "a program that is no test": ({"0-6": '| 0-6 | w | done | `tests/b_test.cpp`: "works" | |'}, "no test of this build"),
        "a case that is not there": ({"0-6": '| 0-6 | w | done | `tests/a_test.cpp`: "work" | |'}, 'no case "work"'),
        "a begin that no case has": ({"0-6": '| 0-6 | w | done | `tests/a_test.cpp`: "counts up..." | |'}, "has no cases that begin"),
        "a begin that two cases have": ({"0-6": '| 0-6 | w | done | `tests/a_test.cpp`: "counts to..." | |'}, "has 2 cases that begin"),
        "a begin of a hidden case": ({"0-6": '| 0-6 | w | done | `tests/a_test.cpp`: "hid..." | |'}, "is hidden"),
        "a hidden case": ({"0-6": '| 0-6 | w | done | `tests/a_test.cpp`: "hidden" | |'}, "is hidden"),
        "a case that is always skipped": ({"0-6": '| 0-6 | w | done | `tests/a_test.cpp`: "given up" | |'}, "skipped everywhere"),
        "a python case that is not there": ({"0-6": '| 0-6 | w | done | `tests/c_test.py`: "whole" | |'}, "no function or case"),
        "superseded by what is not done": ({"0-6": "| 0-6 | w | superseded by 0-3 | | |"}, "superseded by 0-3, which is open"),
        "superseded by no row": ({"0-6": "| 0-6 | w | superseded by 0-99 | | |"}, "which is no row"),
        "open without an issue": ({"0-6": "| 0-6 | w | open: someday | | |"}, "is no issue"),
        "not applicable without a reason": ({"0-6": "| 0-6 | w | not applicable | | |"}, "without a reason"),
        "words for a test": ({"0-6": lines["0-6"].replace('"works" |', '"works" by hand |')}, "holds 'by hand'"),
        "an open row with a test": ({"0-6": f'| 0-6 | w | open: {ISSUES[0]} | `tests/a_test.cpp`: "works" | |'}, "but a test is named"),
        "nothing said": ({"0-6": '| 0-6 | | done | `tests/a_test.cpp`: "works" | |'}, "nothing says what it is"),
        "a defect's test that is not there": ({"0.3-1": '| 0.3-1 | w | done | `tests/a_test.cpp`: "fixed" | |'}, 'no case "fixed"'),
    }
    wrong = [f"the good page: {problem}" for problem in problems_of("\n".join(lines.values()), tree)[0]]
    some = rows_of("# rows\nI 1-2\n0- 3 4a 5-6 7a-7c  # more\n")
    wrong += [] if some == ["I1", "I2", "0-3", "0-4a", "0-5", "0-6", "0-7a", "0-7b", "0-7c"] else [f"rows are read as {some}"]
    for name, (change, words) in faults.items():
        found = problems_of("\n".join({**lines, **change}.values()), tree)[0]
        if len(found) != 1 or words not in found[0]:
            wrong.append(f"{name}: {found}")
    return wrong


def main():
    if sys.argv[1:] == ["--self-test"]:
        wrong = self_test()
        print("\n".join(wrong) or "every planted fault is found")
        return 1 if wrong else 0
    root, build = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
    problems, rows = problems_of((root / "docs" / "conformance.md").read_text(), read_build(root, build))
    print("\n".join(problems))
    statuses = [cells[2].split(" by ")[0].split(":")[0] for _number, cells in rows]
    print(", ".join(f"{statuses.count(status)} {status}" for status in sorted(set(statuses))), f"of {len(rows)}; {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
