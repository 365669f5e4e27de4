"""What a build folder's tests need, as targets for ninja: test_targets.py BUILD SUITE_LEFT_OUT...

Prints a target a line: those of every test that is in none of the suites left out."""

import json
import sys
from pathlib import Path


def main():
    info = Path(sys.argv[1], "meson-info")
    left_out = {f"zshard:{suite}" for suite in sys.argv[2:]}
    tests = json.loads((info / "intro-tests.json").read_text())
    needed = {target for test in tests if not left_out & set(test["suite"]) for target in test["depends"]}
    for target in json.loads((info / "intro-targets.json").read_text()):
        if target["id"] in needed:
            print(Path(target["filename"][0]).relative_to(Path(sys.argv[1]).resolve()))


main()
