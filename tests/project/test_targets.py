"""What is to be built in a build folder, as targets for ninja, one a line.

test_targets.py BUILD product              programs and library: whatever is built by default, which no test is (Meson's own `all` has the tests too)
test_targets.py BUILD tests SUITE...       what the tests need that are in none of these suites
"""

import json
import sys
from pathlib import Path


def main():
    build, what, *left_out = sys.argv[1:]
    info = Path(build, "meson-info")
    targets = json.loads((info / "intro-targets.json").read_text())
    if what == "product":
        wanted = [target for target in targets if target["build_by_default"]]
    else:
        suites = {f"zshard:{suite}" for suite in left_out}
        tests = json.loads((info / "intro-tests.json").read_text())
        needed = {target for test in tests if not suites & set(test["suite"]) for target in test["depends"]}
        wanted = [target for target in targets if target["id"] in needed]
    for target in wanted:
        print(Path(target["filename"][0]).relative_to(Path(build).resolve()))


main()
