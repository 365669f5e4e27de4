#!/usr/bin/env python3
"""Counts the results in meson test logs. Prints `PASSED FAILED SKIPPED` on stdout; on stderr, cases that a passing test program
left out, and the tests that took longest. Usage: tally.py testlog.json..."""

import json
import sys

SHOWN = 8  # of the longest


def main():
    durations = []
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    kinds = {"OK": "passed", "EXPECTEDFAIL": "passed", "SKIP": "skipped"}
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8", errors="replace") as log:
            for line in filter(None, map(str.strip, log)):
                test = json.loads(line)
                counts[kinds.get(test["result"], "failed")] += 1
                durations.append((test.get("duration", 0), test["name"]))
                if test["result"] == "OK":
                    left_out = [text for text in test.get("stdout", "").splitlines() if text.startswith("skipped: ")]
                    for text in sorted(set(left_out)):
                        print(f"  {test['name']} left a case out: {text[9:]}", file=sys.stderr)
    longest = ", ".join(f"{name.removeprefix('zshard / ')} {seconds:.0f} s" for seconds, name in sorted(durations, reverse=True)[:SHOWN])
    if longest:
        print(f"  {sum(seconds for seconds, _ in durations):.0f} s in all, the longest: {longest}", file=sys.stderr)
    print(*counts.values())


if __name__ == "__main__":
    main()
