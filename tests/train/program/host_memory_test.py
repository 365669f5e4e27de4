#!/usr/bin/env python3
"""What the host keeps for a device, and settings that fit into the memory of both.
Usage: host_memory_test.py TRAIN"""

import os
import pathlib
import re
import sys
import tempfile

import harness
import tiny_run
from wrong_start import CANNOT_CREATE, LIMIT_S, OUT_OF_MEMORY, USAGE


def run_offload(train, ranks, report):
    """What the host keeps changes no number, is counted as planned, and has limits of its own."""
    with tempfile.TemporaryDirectory(prefix="train_cli.") as name:
        folder = pathlib.Path(name)
        config = tiny_run.write_files(folder)
        fixed = tiny_run.options(precision__param="bf16", train__deterministic=True, comm__ranks=ranks, run__sample_tokens=0)
        kept = tiny_run.options(offload__weights="host", offload__gradients="host", offload__moments="host")

        def run(*arguments):
            return harness.run([train, config, *fixed, *arguments], LIMIT_S, cwd=folder)

        usual, offloaded = run("--overwrite"), run("--overwrite", *kept, "--verify-order")
        problems = [f"exit code {r.code}: {r.err}" for r in (usual, offloaded) if r.code != 0]
        problems += [] if harness.weights_hash(usual.out) == harness.weights_hash(offloaded.out) else ["the weights differ"]
        metrics, plan = harness.read_metrics(folder / "out"), run("--dry-run", *kept).out
        table = plan[plan.index("memory of the host, beside this rank's device"):].split("\n\n")[0]
        planned = {line.split()[0]: int(line.split()[1]) for line in table.splitlines() if line.startswith("  ") and line.split()[1].isdigit()}
        problems += [] if set(planned) == {"grad_shard", "master", "moments"} else [f"the plan's table of the host: {table}"]
        problems += [f"host_bytes is {m.get('host_bytes')}, planned {planned}" for m in metrics if m.get("host_bytes") != sum(planned.values())]
        problems += [] if [m["allocations"] for m in metrics] == [2, 0, 0] else [f"allocations: {[m['allocations'] for m in metrics]}"]
        for units, is_as_asked in ((1, lambda n, host: n == 1 and 0 < host < sum(planned.values())), ("auto", lambda n, host: n > 1 and host == 0)):
            partly = run("--overwrite", *kept, *tiny_run.options(offload__resident_units=units))
            host = harness.read_metrics(folder / "out")[-1].get("host_bytes", 0) if partly.code == 0 else None
            chosen = re.search(r"^resident_units = (\d+)$", (folder / "out/config.toml").read_text(), re.M) if partly.code == 0 else None
            problems += [] if chosen and is_as_asked(int(chosen[1]), host) else [f"{units} resident units: {chosen and chosen[0]}, host_bytes {host}: {partly.err}"]
            problems += [] if harness.weights_hash(usual.out) == harness.weights_hash(partly.out) else [f"the weights differ with {units} resident units"]
        before = harness.tree(folder)
        for limits, words in (({"offload__device_mib": 1, "model__width": 192}, ("a rank needs", "of the device's memory", "offload.device_mib = 1")),
                              ({"offload__host_mib": 1, "model__width": 192}, ("of the host's memory", "offload.host_mib = 1", "offload.weights=device"))):
            refused = run("--overwrite", *kept, *tiny_run.options(**limits))
            problems += [] if refused.code == OUT_OF_MEMORY else [f"{limits}: exit code {refused.code}"]
            problems += [f"{limits}: the line does not say {word!r}: {refused.err}" for word in words if word not in refused.last_error_line()]
        problems += [] if harness.tree(folder) == before else ["a refused run changed files"]
        report.case("what the host keeps", problems, offloaded)


def run_fit(train, report):
    """What --fit says of a setting is what a dry run says of it, and what a run of it takes."""
    with tempfile.TemporaryDirectory(prefix="train_cli.") as name:
        folder = pathlib.Path(name)
        config = tiny_run.write_files(folder)
        sizes = tiny_run.options(model__width=64, model__context=64, precision__param="bf16", offload__device_mib=2, comm__ranks=2)

        def run(*arguments, of=config):
            return harness.run([train, of, *arguments], LIMIT_S, cwd=folder)

        asked = run(*sizes, "--fit=largest", "--out", "fit.toml")
        problems = [] if asked.code == 0 else [f"--fit: exit code {asked.code}"]
        rows = [line.split() for line in asked.out.splitlines() if line.endswith(" %")]
        chosen = next((row[1:] for row in rows if row[0] == "*"), None)
        problems += [] if rows and chosen and rows[0][1:] == chosen else [f"the first of {len(rows)} rows is not chosen"]
        peak, device, host = map(int, chosen[-5:-2]) if chosen else (0, 0, 0)
        dry, again = run("--dry-run", of="fit.toml"), run(*sizes, "--fit", "--out", "fit.toml")
        planned = [int(text) for text in re.findall(r"(?:peak_bytes|from the system) +(\d+)  ", dry.out)]
        problems += [] if planned == [peak, device] + [host] * (host > 0) else [f"a dry run plans {planned}, --fit {peak}, {device}, {host}"]
        problems += [] if 2**20 < device <= 2 * 2**20 else [f"{device} bytes are not near the limit"]
        problems += [] if again.code == 0 and "chosen (*): " in again.out else [f"--fit once more: {again.err}"]
        run(*sizes, "--fit=largest", "--out", "fit.toml")
        trained = run("--set", "train.steps=2", of="fit.toml")
        problems += [] if trained.code == 0 else [f"the chosen setting does not train: {trained.err}"]
        if trained.code == 0:
            problems += [f"peak_bytes is {m['peak_bytes']}, --fit says {peak}" for m in harness.read_metrics(folder / "out") if m["peak_bytes"] != peak]
        (folder / "mine.toml").write_text("# mine\n")
        before = harness.tree(folder)
        for arguments, code, word in ((("--fit", "--out", "mine.toml"), CANNOT_CREATE, "in the way"),
                                      (("--fit", "--set", "model.width=512"), OUT_OF_MEMORY, "offload.device_mib = 2"),
                                      (("--fit", "--resume", "latest"), USAGE, "--resume"), (("--fit=best",), USAGE, "--fit"),
                                      (("--fit", "--dry-run=full"), USAGE, "--dry-run=full")):
            refused = run(*sizes, *arguments)
            problems += [] if refused.code == code and word in refused.last_error_line() else [f"{arguments}: exit code {refused.code}: {refused.err}"]
        problems += [] if harness.tree(folder) == before else ["a refused --fit changed files"]
        report.case("what fits", problems, asked)


def main():
    train = pathlib.Path(sys.argv[1]).resolve()
    harness.become_subreaper()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    report = harness.Report()
    for ranks in (1, 3):
        run_offload(train, ranks, report)
    run_fit(train, report)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
