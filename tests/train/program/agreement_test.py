#!/usr/bin/env python3
"""G3: ranks that were started with different configurations, programs or instruction sets end at once with exit code 72 and one line that names
the first difference, before anything is created. Hosts that differ in CPUs or free memory are one note. Usage: agreement_test.py TRAIN"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import harness
import tiny_run

LIMIT_S, LOST, DISAGREE = 60, 69, 72


def other_build(train, folder):
    """A copy of the program that says it is another build."""
    notes = subprocess.run(["readelf", "-n", train], stdout=subprocess.PIPE, text=True, check=True).stdout
    build = re.search(r"Build ID: ([0-9a-f]+)", notes).group(1)
    copy = pathlib.Path(folder, "train")
    shutil.copy(train, copy)
    data = copy.read_bytes()
    old = bytes.fromhex(build)
    assert data.count(old) == 1
    copy.write_bytes(data.replace(old, old[::-1]))
    return copy


def run(train, folder, first, last, fault=""):
    """Two ranks with the command `first`, and a third with `last`."""
    return harness.run(harness.mpirun(2, first, (1, last)), LIMIT_S, cwd=folder, env={"OMP_NUM_THREADS": "1", "TRAIN_FAULT": fault})


def hosts_that_differ(plain, folder):
    """(name, the third rank's command, what the one note says): worth a line, and no reason to end. The rank sees files of ours in place of
    the system's."""
    prefix = harness.in_namespace("-m")
    if prefix is None or os.geteuid() != 0:
        print("hosts that differ: skipped, only root can make one rank see another host")
        return
    cpus, memory = "/sys/devices/system/cpu/online", "/proc/meminfo"
    other_cpus, little, much = {cpus: "0-98\n"}, {memory: "MemAvailable: 1048576 kB\n"}, {memory: "MemAvailable: 1048576000000 kB\n"}
    shape, free = r"rank 2 has 3 ranks on 99 CPUs, rank 0 3 ranks on \d+ CPUs", r"rank 2's host has {} GiB of memory free, rank 0's \d+\.\d$"
    for name, seen, note in (
        ("a host with other CPUs", other_cpus, shape + "$"),
        ("a host with little memory", little, free.format(r"1\.0")),
        ("a first host with little memory", much, free.format(r"1000000\.0")),
        ("a host with other CPUs and little memory", other_cpus | little, shape + "; " + free.format(r"1\.0")),
    ):
        mounts = ""
        for i, (file, text) in enumerate(seen.items()):
            ours = pathlib.Path(folder, f"{pathlib.Path(file).name}.{i}")
            ours.write_text(text)
            mounts += f"mount --bind {ours} {file} && "
        yield name, [*prefix, "sh", "-c", mounts + 'exec "$@"', "sh", *plain, "--dry-run"], note


def refusal_that_stops(train, folder, plain):
    """P4 after a refusal: a rank that stops on its way out keeps nobody longer than the start may take."""
    limited = [*plain, *tiny_run.options(watchdog__init_s=2)]
    result = run(train, folder, limited, [*limited, "--set", "train.lr=0.01"], "finalize@rank=1:stop")
    says = [r"the ranks differ: rank 2 has train\.lr", r"rank 1 stopped answering [\d.]+ s ago in init"]
    errors = [line for line in result.err.splitlines() if line.startswith("train: error: ")]
    problems = [] if result.code == LOST else [f"exit code {result.code}, expected {LOST}"]
    problems += [] if len(errors) == 2 and all(map(re.search, says, errors)) else [f"two lines that say {says} expected, not {errors}"]
    return problems + ([f"{len(result.orphans)} processes were left running"] if result.orphans else []), result


def problems_of(result, before, after, says, code=DISAGREE):
    errors = [line for line in result.err.splitlines() if line.startswith("train: error: ")]
    problems = [] if result.code == code else [f"exit code {result.code}, expected {code}"]
    problems += [] if len(errors) == 1 else [f"{len(errors)} error lines"]
    problems += [f"the line does not say /{word}/: {errors}" for word in says if not errors or not re.search(word, errors[0])]
    problems += [f"{len(result.orphans)} processes were left running"] if result.orphans else []
    return problems + ([] if before == after else ["files were created or changed"])


def main():
    train = pathlib.Path(sys.argv[1]).resolve()
    harness.become_subreaper()
    report = harness.Report()
    with tempfile.TemporaryDirectory(prefix="agreement.") as folder:
        config = tiny_run.write_files(folder)
        plain, copy = [train, config], other_build(train, folder)
        other = pathlib.Path(folder, "other.toml")
        other.write_text(config.read_text().replace("warmup = 1", "warmup = 2"))
        cases = [
            ("another value on the command line", [*plain, "--set", "train.lr=0.01"], [r"rank 2 has train\.lr = 0\.01, rank 0 has 0\.001", "options"]),
            ("another file", [train, other, "--set", "name=tiny-run"], [r"rank 2 has train\.warmup = 2, rank 0 has 1"]),
            ("another build", [copy, config], [r"rank 2 has program build [0-9a-f]{12}, rank 0 has [0-9a-f]{12}"]),
            ("another transport", [*plain, "--set", "comm.transport=mpi"], [r'rank 2 has comm\.transport = "mpi", rank 0 has "auto"']),
            ("another transport by its environment", ["env", "ZSHARD_TRANSPORT=mpi", *plain], ["rank 2 has ZSHARD_TRANSPORT = mpi, rank 0 has unset"]),
            ("other hosts by its environment", ["env", "ZSHARD_HOSTS_OF=0,0,1", *plain], ["rank 2 has ZSHARD_HOSTS_OF = 0,0,1, rank 0 has unset"]),
            ("no new run", [*plain, "--resume", "latest"], ["rank 2 has --resume = latest, rank 0 has no"]),
            ("a dry run", [*plain, "--dry-run"], ["rank 2 has --dry-run = plan, rank 0 has no"]),
            ("a verified order", [*plain, "--verify-order"], ["rank 2 has --verify-order = yes, rank 0 has no"]),
            ("a refusal of its own", [train, "nowhere.toml"], [r"configuration file not found \(nowhere\.toml\)"], 78),
            ("an option that there is not", [*plain, "--frob"], ["--frob"], 64),
            ("a transport that there is not", ["env", "ZSHARD_TRANSPORT=foo", *plain], ['no transport is called "foo"'], 64),
            ("another instruction set", ["env", "ZSHARD_ISA=baseline", *plain], [r"rank 2 has kernels for baseline, rank 0 has \w+"]),
        ]
        for name, last, says, *code in cases:
            before = harness.tree(folder)
            result = run(train, folder, plain, last)
            report.case(name, problems_of(result, before, harness.tree(folder), says, *code), result)
        if not harness.is_mpich():  # Hydra kills all as soon as one is killed
            report.case("P4 a rank stops after a refusal", *refusal_that_stops(train, folder, plain))
        for name, last, note in hosts_that_differ(plain, folder):
            result = run(train, folder, [*plain, "--dry-run"], last)
            notes = [line for line in result.err.splitlines() if line.startswith("train: note: ") and "is a command now" not in line]
            problems = [] if len(notes) == 1 and re.search(note, notes[0]) else [f"one note that says /{note}/ expected, not {notes}"]
            report.case(name, problems + ([] if result.code == 0 else ["exit code 0 expected"]), result)
        result = run(train, folder, plain, plain)
        report.case("the same thrice", [] if result.code == 0 and "error" not in result.err else ["does not run"], result)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
