#!/usr/bin/env python3
"""The README's job, whole, on four ranks: its validation loss must end below 1.65 nats a byte.
Usage: learns_test.py TRAIN CONFIG BUILD_DIR"""

import json
import pathlib
import sys
import tempfile

import harness

LIMIT_NATS = 1.65


def main():
    train, config, build_dir = (pathlib.Path(a).resolve() for a in sys.argv[1:4])
    harness.become_subreaper()
    report = harness.Report()
    with tempfile.TemporaryDirectory(prefix="learns.") as folder:
        corpus = harness.bible_text(build_dir, folder)
        if corpus is None:
            print("skipped: neither the corpus nor the bible program is here")
            return harness.SKIP
        out = pathlib.Path(folder, "out")
        sets = ["--set", f"data.train={json.dumps(str(corpus))}", "--set", f"run.dir={out}"]
        result = harness.run(harness.launch(4, [train, config, *sets]), 1500, cwd=folder)
        problems = [] if result.code == 0 else [f"exit code {result.code}"]
        if result.code == 0:
            loss = harness.read_metrics(out)[-1].get("val_loss")
            problems += [] if loss is not None and loss < LIMIT_NATS else [f"the validation loss ends at {loss}, expected below {LIMIT_NATS}"]
            print(f"validation loss {loss}")
        report.case("the README's job", problems, result)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
