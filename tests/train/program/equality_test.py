#!/usr/bin/env python3
"""With train.deterministic = true a run has one result: the loss and grad_norm columns and the final weights are the same bits
at every number of ranks, over all transports, with and without resharding, prefetch and zero-copy units, in either layout, in f32 and (among themselves)
in bf16, with one thread and with two, and where operations between ranks run on private copies. Those leave other trainings the same bits too.
Usage: equality_test.py TRAIN [--quick]"""

import pathlib
import re
import sys
import tempfile

import harness
import tiny_run

STEPS = 4
CUT_ONE_BY_ONE = {"shard__layout": "per_parameter", "shard__min_shard_bytes": 1024, "shard__dims": ["*.mlp.*.weight=1", "*embedding.weight=-1"]}
# Operations between ranks run on private copies and end up to 2 ms later: whoever touches a buffer in use has other results, or exit code 70.
RACE_CHECKED = {"comm__race_check_ms": 2}
# name, mpirun ranks (None: without mpirun), --set values (in capitals: variables of the environment), OMP_NUM_THREADS
REFERENCE = ("one rank without mpirun", None, {}, "1")
VARIANTS = [
    *[(f"mpi, {n} ranks", n, {"comm__transport": "mpi"}, "1") for n in (1, 2, 3, 4, 8)],
    *[(f"shm, {n} ranks", n, {"comm__transport": "shm"}, "1") for n in (1, 2, 3, 4, 8)],
    *[(f"local, {n} ranks", None, {"comm__transport": "local", "comm__ranks": n}, "1") for n in (2, 3, 4, 8)],
    *[(f"shm, 3 ranks, reshard {str(r).lower()}, prefetch {p}", 3, {"shard__reshard_after_forward": r, "shard__prefetch": p}, "1")
      for r, p in ((True, 0), (False, 0), (False, 1), (True, 3))],
    ("local, 4 ranks, reshard false, prefetch 0", None,
     {"comm__transport": "local", "comm__ranks": 4, "shard__reshard_after_forward": False, "shard__prefetch": 0}, "1"),
    *[(f"{n} ranks, gradients reduced once a step where order allows it", n, {"shard__reduce_every_micro_batch": False}, "1") for n in (2, 8)],
    *[(f"mpi, 4 ranks, {' '.join(str(v) for v in sets.values())}", 4, sets, "1") for sets in (
        {"shard__strategy": "ddp"}, {"shard__strategy": "zero1"}, {"shard__strategy": "hsdp", "shard__group_size": 2},
        {"shard__strategy": "nested", "shard__group_size": 2}, {"shard__reshard_after_forward": 2})],
    *[(f"{transport}, 3 ranks, parameters cut one by one", 3, {"comm__transport": transport, **CUT_ONE_BY_ONE}, "1") for transport in ("mpi", "shm")],
    ("local, 8 ranks, nested, parameters cut one by one", None,
     {"comm__transport": "local", "comm__ranks": 8, "shard__strategy": "nested", "shard__group_size": 2, **CUT_ONE_BY_ONE}, "1"),
    *[(f"hier, {hosts.count(',') + 1} ranks on hosts {hosts}{'' if not sets else ', nested'}", hosts.count(",") + 1,
       {"comm__transport": "hier", "ZSHARD_HOSTS_OF": hosts, **sets}, "1")
      for hosts, sets in (("0,0,1", {}), ("0,1,1,0", {}), ("0,0,1,1", {"shard__strategy": "nested", "shard__group_size": 2}), ("0,1,0,1,2,0,0,0", {}))],
    ("hier, 4 ranks on hosts 0,1,0,1, hsdp whose groups share memory", 4,
     {"comm__transport": "hier", "ZSHARD_HOSTS_OF": "0,1,0,1", "shard__strategy": "hsdp", "shard__group_size": 2}, "1"),
    *[(f"{t}, 4 ranks, every rank gathers a copy", n, {"comm__transport": t, "shard__zero_copy": "off", **r}, "1")
      for t, n, r in (("shm", 4, {}), ("local", None, {"comm__ranks": 4}))],
    *[(f"shm, 4 ranks, {' '.join(str(v) for v in sets.values())}", 4, sets, "1") for sets in (
        {"shard__strategy": "zero1"}, {"shard__strategy": "shard_grad_op"}, {"shard__strategy": "hsdp", "shard__group_size": 2})],
    *[(f"{t}, {n or 4} ranks, on private copies{''.join(', ' + str(v) for v in sets.values())}", n, {"comm__transport": t, **RACE_CHECKED, **where, **sets}, "1")
      for t, n, where, sets in (
          ("shm", 4, {}, {}), ("shm", 4, {}, {"shard__zero_copy": "off"}), ("mpi", 3, {}, {}), ("mpi", 4, {}, {"shard__strategy": "ddp"}),
          ("hier", 3, {"ZSHARD_HOSTS_OF": "0,0,1"}, {}), ("local", None, {"comm__ranks": 4, "shard__zero_copy": "off"}, {}))],
    *[(f"{t}, {n or 7} ranks, whose last micro-batches are empty", n, {"comm__transport": t, **sets}, "1")
      for t, n, sets in (("mpi", 5, {}), ("shm", 5, {}), ("local", None, {"comm__ranks": 7}), ("mpi", 5, {"shard__reduce_every_micro_batch": False}))],
    ("local, 2 ranks, one unit", None, {"comm__transport": "local", "comm__ranks": 2, "shard__units": "model"}, "1"),
    ("one rank, 2 threads", None, {}, "2"),
    ("mpi, 2 ranks, 2 threads", 2, {"comm__transport": "mpi"}, "2"),
    ("shm, 2 ranks, 2 threads", 2, {}, "2"),
    ("local, 3 ranks, 2 threads", None, {"comm__transport": "local", "comm__ranks": 3}, "2"),
]
BF16 = {"precision__param": "bf16"}
BF16_VARIANTS = [
    ("bf16, mpi, 3 ranks", 3, {**BF16, "comm__transport": "mpi"}, "1"),
    ("bf16, shm, 4 ranks", 4, BF16, "1"),
    ("bf16, local, 8 ranks", None, {**BF16, "comm__transport": "local", "comm__ranks": 8}, "1"),
    ("bf16, shm, 2 ranks, 2 threads", 2, BF16, "2"),
]
# Gradients summed as they usually are: the same bits with and without private copies only where both run alike.
AS_USUAL = {"train__deterministic": False}
RACE_CHECKED_AS_USUAL = [
    ("shm, 4 ranks", 4, {**AS_USUAL, "comm__transport": "shm"}, "1"),
    ("mpi, 4 ranks, hsdp, gradients reduced once a step", 4,
     {**AS_USUAL, "comm__transport": "mpi", "shard__strategy": "hsdp", "shard__group_size": 2, "shard__reduce_every_micro_batch": False}, "1"),
    ("mpi, 3 ranks, bf16, 8 bits", 3, {**AS_USUAL, **BF16, "comm__transport": "mpi", "shard__compress_gather": "int8", "shard__compress_reduce": "int8"}, "1"),
    ("hier, 4 ranks on hosts 0,0,1,1, nested", 4,
     {**AS_USUAL, "comm__transport": "hier", "ZSHARD_HOSTS_OF": "0,0,1,1", "shard__strategy": "nested"}, "1"),
    ("local, 4 ranks, every rank gathers a copy", None, {**AS_USUAL, "comm__transport": "local", "comm__ranks": 4, "shard__zero_copy": "off"}, "1"),
]


def other_way(sets):
    return {**sets, "shard__zero_copy": "auto" if sets.get("shard__zero_copy") == "off" else "off"}


def column_text(run_dir, key):
    """The values as they are printed, which read back exactly."""
    pattern = re.compile(rf'"{key}"\s*:\s*([^,}}\s]+)')
    return [pattern.search(line).group(1) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def says_what_it_uses(out, ranks, threads):
    """Equal results would prove nothing if every run quietly used one rank and one thread."""
    header = out.partition("\n")[0]
    return re.search(rf"\b{ranks} ranks?\b", header) and re.search(rf"\b{threads} threads? each\b", header)


def outcome(train, ranks, sets, threads):
    """(loss column, grad_norm column, weights hash), or the failed result"""
    with tempfile.TemporaryDirectory(prefix="equality.") as folder:
        config = tiny_run.write_files(folder)
        variables = {name: value for name, value in sets.items() if name.isupper()}
        values = {"train__steps": STEPS, "train__deterministic": True, "run__sample_tokens": 0,
                  **{name: value for name, value in sets.items() if name not in variables}}
        result = harness.run(harness.launch(ranks, [train, config, *tiny_run.options(**values)]), 90, cwd=folder,
                             env={"OMP_NUM_THREADS": threads, **variables})
        count = ranks or sets.get("comm__ranks", 1)
        if result.code != 0 or result.orphans or not says_what_it_uses(result.out, count, threads):
            return None, result
        out = pathlib.Path(folder, "out")
        return (column_text(out, "loss"), column_text(out, "grad_norm"), harness.weights_hash(result.out)), result


def compare(train, reference, variants, report):
    name, ranks, sets, threads = reference
    expected, result = outcome(train, ranks, sets, threads)
    problems = [] if expected else [f"exit code {result.code}, or not the ranks and threads asked for"]
    if expected and (len(expected[0]) != STEPS or len(set(expected[0])) != STEPS or not expected[2]):
        problems.append(f"the reference run says nothing: {expected}")
    report.case(name, problems, result)
    if problems:
        return
    for name, ranks, sets, threads in variants:
        found, result = outcome(train, ranks, sets, threads)
        problems = [] if found else [f"exit code {result.code}, or not the ranks and threads asked for"]
        for what, a, b in zip(("loss", "grad_norm", "weights"), expected, found or ()):
            if a != b:
                problems.append(f"{what} differs: {a} and {b}")
        report.case(name, problems, result if not found else "")


def main():
    train, quick = pathlib.Path(sys.argv[1]).resolve(), "--quick" in sys.argv[2:]
    harness.become_subreaper()
    report = harness.Report()
    compare(train, REFERENCE, VARIANTS[1:3] + VARIANTS[6:7] + [v for v in VARIANTS if v[0].startswith("hier, 4")][:1] if quick else VARIANTS, report)
    if not quick:
        for name, ranks, sets, threads in RACE_CHECKED_AS_USUAL:
            compare(train, (name, ranks, sets, threads), [(name + ", on private copies", ranks, {**sets, **RACE_CHECKED}, threads),
                                                          (name + ", units shared the other way", ranks, other_way(sets), threads)], report)
        compare(train, ("bf16, one rank without mpirun", None, BF16, "1"), BF16_VARIANTS, report)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
