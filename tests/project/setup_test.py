#!/usr/bin/env python3
"""What ./setup does where cuDNN's headers cannot be fetched: it tries once a day.
Usage: setup_test.py SOURCE_ROOT"""

import os
import pathlib
import subprocess
import sys
import tempfile

# Stands for a python3 whose pip has no network.
PYTHON = """#!/bin/sh
echo try >>tries
echo "ERROR: no network" >&2
exit 1
"""


def problems_of(folder):
    """In a copy of which only functions are left."""
    env = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"}

    def fetch():
        done = subprocess.run(["bash", "-c", "source ./setup && fetch_cudnn_headers"], cwd=folder, env=env, capture_output=True, text=True, timeout=60)
        tries = folder / "tries"
        return done.returncode, done.stdout + done.stderr, len(tries.read_text().splitlines()) if tries.exists() else 0

    first, second = fetch(), fetch()
    mark = folder / "build-headers" / "not-fetched"
    problems = [] if first[0] == 0 and first[2] == 1 and "no network" in first[1] else [f"the first call: {first}"]
    problems += [] if second[0] == 0 and second[2] == 1 and f"remove {mark.relative_to(folder)}" in second[1] else [f"the second call tried again, or does not say how to: {second}"]
    if not mark.exists():
        return [*problems, "a failed try leaves no mark"]
    old = mark.stat().st_mtime - 25 * 3600
    os.utime(mark, (old, old))
    third = fetch()
    problems += [] if third[2] == 2 else [f"a day later: {third}"]
    mark.unlink()
    fourth = fetch()
    return problems + ([] if fourth[2] == 3 else [f"without the mark: {fourth}"])


def main():
    text = (pathlib.Path(sys.argv[1]) / "setup").read_text()
    with tempfile.TemporaryDirectory(prefix="setup_test.") as name:
        folder = pathlib.Path(name)
        (folder / "setup").write_text(text.replace('\nmain "$@"\n', "\n"))
        (folder / "bin").mkdir()
        for program, content in (("nvcc", "#!/bin/sh\n"), ("python3", PYTHON)):
            (folder / "bin" / program).write_text(content)
            (folder / "bin" / program).chmod(0o755)
        problems = problems_of(folder)
    print("\n".join(problems) or "a failed try is remembered for a day")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
