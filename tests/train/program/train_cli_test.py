#!/usr/bin/env python3
"""What `train` prints, and where: its options, standard streams that are closed or full, disks that are too small, validations and samples.
Usage: train_cli_test.py TRAIN"""

import os
import pathlib
import re
import signal
import sys
import tempfile
import time

import harness
import tiny_run
from wrong_start import CANNOT_CREATE, CANNOT_WRITE, CONFIG, DATASET, LIMIT_S, NON_FINITE, STOPPED, USAGE


def run_help(train, option, wanted, report):
    """--help and --version need no configuration, write to stdout only, and end with 0."""
    result = harness.run([train, option], LIMIT_S)
    problems = [] if result.code == 0 else [f"exit code {result.code}"]
    problems += [f"stdout does not say {word}" for word in wanted if word not in result.out]
    problems += ["stderr is not empty"] if result.err else []
    report.case(option, problems, result)


def run_dry(train, ranks, report):
    """--dry-run prints a plan, warns of keys that the CPU has no use for, and creates nothing."""
    with tempfile.TemporaryDirectory(prefix="train_cli.") as name:
        config = tiny_run.write_files(name)
        before = harness.tree(name)
        gpu_keys = ["--set", "device=cpu", "--set", "cuda.tf32=true", "--set", "cuda.fused_gelu=true", "--set", "cuda.transport=staged"]
        result = harness.run(harness.launch(ranks, [train, config, "--dry-run", *gpu_keys]), LIMIT_S, cwd=name)
        problems = [] if result.code == 0 else [f"exit code {result.code}"]
        warnings = [line for line in result.err.splitlines() if "warning" in line]
        problems += [] if warnings == ["train: warning: without effect on the CPU: cuda.tf32, cuda.transport"] else [f"warnings: {warnings}"]
        problems += ["prints nothing"] if not result.out.strip() else []
        problems += ["files were created or changed"] if before != harness.tree(name) else []
        report.case(f"--dry-run, {'without mpirun' if ranks is None else f'{ranks} ranks'}", problems, result)


def run_units(train, report):
    """How many units there are, in the first lines of a run, and each in the plan of a dry run."""
    with tempfile.TemporaryDirectory(prefix="train_cli.") as name:
        config = tiny_run.write_files(name)
        for units, count in (("shard.units=block", 3), ("shard.units=model", 1), ("plan.apply=['blocks.{*}.attention', 'blocks.{*}.mlp']", 5)):
            sets = [word for one in (units, "comm.ranks=2", "train.steps=1", "run.sample_tokens=0") for word in ("--set", one)]
            dry, run = (harness.run([train, config, *flags, *sets], LIMIT_S, cwd=name) for flags in (["--dry-run"], ["--overwrite"]))
            listed = re.findall(r"^(?:root|blocks\S*) +\d+ +\d+ +\d+ ", dry.out, re.M)
            problems = [] if len(listed) == count else [f"{count} units expected in the plan, {listed}"]
            problems += [] if f" parameters in {count} units, " in "\n".join(run.out.splitlines()[:5]) else [f"the first lines do not say {count} units"]
            report.case(f"{count} units", problems, run)


def run_plans(train, report):
    """What a plan says of itself, on one rank that stands for any number."""
    units = ["--set", "plan.apply=['blocks.{*}.attention', 'blocks.{*}.mlp']"]
    for name, flags, says in (
            ("--ranks", [*units, "--set", "train.global_batch=512", "--dry-run", "--ranks=512"], ["plan: 512 ranks", r"blocks\.0\.attention +4 "]),
            ("--plan-explain", [*units, "--plan-explain", "blocks.0.mlp.up.weight", "--ranks=3"],
             [r"a part of the unit blocks\.0\.mlp", r'plan\.apply "blocks\.\{\*\}\.mlp"', r"free_full +(forward|backward)"]),
            ("--plan-diff", ["--plan-diff", "other.toml"],
             [r"shard\.prefetch +1 +->  2", "but for rounding", r'offload\.update = "auto" of other\.toml is planned as "device"'])):
        with tempfile.TemporaryDirectory(prefix="train_cli.") as folder:
            config = pathlib.Path(tiny_run.write_files(folder))
            kept = '[offload]\nweights = "host"\ngradients = "host"\nmoments = "host"\nupdate = "auto"\n'
            (pathlib.Path(folder) / "other.toml").write_text(config.read_text() + "[shard]\nprefetch = 2\n" + kept)
            before = harness.tree(folder)
            result = harness.run([train, config, *flags], LIMIT_S, cwd=folder)
            problems = [] if result.code == 0 else [f"exit code {result.code}"]
            problems += [f"stdout does not say {text!r}" for text in says if not re.search(text, result.out)]
            problems += ["files were created or changed"] if before != harness.tree(folder) else []
            report.case(f"a plan: {name}", problems, result)


def run_transports(train, report):
    """The first line names what moves the data: what was asked for, also that of groups where it is another; and the run goes through.
    What has no results leaves none."""
    hosts = {"ZSHARD_HOSTS_OF": "0,0,1,1"}
    groups = ["--set", "shard.group_size=2", "--set", "shard.strategy=hsdp"]
    null = "transport null (collectives do nothing: the results are meaningless),"

    def omit(what):
        return ["--set", f"comm.omit={what}", "--set", "checkpoint.every=1"]
    for name, ranks, env, arguments, wanted in (
        ("ZSHARD_TRANSPORT=mpi", 2, {"ZSHARD_TRANSPORT": "mpi"}, [], "transport mpi,"),
        *[(f"comm.transport=null, {ranks} ranks", ranks, {"OMP_NUM_THREADS": "1"}, ["--set", "comm.transport=null"], null) for ranks in (2, 4)],
        ("comm.omit=gathers", 2, {}, omit("gathers"), "transport shm without gathers (the results are meaningless),"),
        ("comm.omit=reductions over mpi", 2, {"ZSHARD_TRANSPORT": "mpi"}, omit("reductions"), "transport mpi without reductions (the results are meaningless),"),
        ("comm.omit=both, ranks as threads", None, {}, [*omit("both"), "--set", "comm.ranks=2"], "transport local without gathers and reductions (the results are meaningless),"),
        ("two hosts", 4, hosts, [], "transport hier (shm inside 2 hosts, mpi across),"),
        ("hsdp on two hosts", 4, hosts, groups, "transport hier (shm inside 2 hosts, mpi across) (gather shm, reduce shm, finish mpi),"),
    ):
        with tempfile.TemporaryDirectory(prefix="train_cli.") as folder:
            config = tiny_run.write_files(folder)
            result = harness.run(harness.launch(ranks, [train, config, *arguments]), LIMIT_S, cwd=folder, env=env)
            first, problems = result.out.partition("\n")[0], [] if result.code == 0 else [f"exit code {result.code}"]
            problems += [] if wanted in first else [f"the first line does not say {wanted!r}: {first!r}"]
            problems += [] if "step 3/3" in result.out else ["it did not run to its end"]
            left = {path.name for path in (pathlib.Path(folder) / "out").iterdir()}
            problems += [f"it left {left}"] if ("model.safetensors" in left) == ("meaningless" in wanted) or "checkpoints" in left else []
            report.case(f"transport, {name}", problems, result)


def run_streams(train, report):
    """Standard output and input that are closed, full or nobody's any more: the run comes to its end, and what is lost is told."""
    for name, redirected, flags, code, says in (
        ("closed", "<&- >&-", [], 0, ""),
        ("closed, standard error too", "<&- >&- 2>&-", [], 0, ""),
        ("full", ">/dev/full", [], CANNOT_WRITE, "No space left on device; weights: "),
        ("full, 60 steps", ">/dev/full", ["--set", "train.steps=60"], CANNOT_WRITE, "No space left on device; weights: "),
        ("full, standard error too", ">/dev/full 2>/dev/full", [], CANNOT_WRITE, ""),
        ("full, a dry run", ">/dev/full", ["--dry-run"], CANNOT_WRITE, "No space left on device"),
        ("full, --help", ">/dev/full", ["--help"], CANNOT_WRITE, "No space left on device"),
        ("full, --version", ">/dev/full", ["--version"], CANNOT_WRITE, "No space left on device"),
        ("full, --help-config", ">/dev/full", ["--help-config"], CANNOT_WRITE, "No space left on device"),
        ("a pipe that nobody reads", "| true", ["--dry-run"], 0, None),
    ):
        with tempfile.TemporaryDirectory(prefix="train_cli.") as folder:
            config = tiny_run.write_files(folder)
            result = harness.run(["sh", "-c", f'"$@" {redirected}', "sh", str(train), str(config), *flags], LIMIT_S, cwd=folder)
            problems = [] if result.code == code else [f"exit code {result.code}, expected {code}"]
            problems += ["a defect"] if "defect" in result.err else []
            problems += [f"the line does not say {says!r}"] if says is not None and says not in result.err else []
            if not flags or "--set" in flags:
                steps = len(harness.read_metrics(pathlib.Path(folder, "out")))
                problems += [] if steps == (60 if flags else 3) else [f"{steps} lines of metrics"]
                problems += [] if pathlib.Path(folder, "out/model.safetensors").exists() else ["no weights"]
            report.case(f"standard output {name}", problems, result)


def run_mute(train, report):
    """Whatever goes wrong keeps its code where standard error is closed or full."""
    for redirected in ("2>&-", "2>/dev/full", ">&- 2>&-"):
        for name, arguments, code in (
            ("no configuration", ["nowhere.toml"], CONFIG),
            ("an unknown option", ["--stepz"], USAGE),
            ("no data", ["{config}", "--set", "data.train=nowhere.txt"], DATASET),
            ("a loss that is not finite", ["{config}", "--set", "train.steps=60", "--set", "train.lr=100", "--set", "train.weight_decay=100",
                                           "--set", "train.clip=0", "--set", "train.warmup=0", "--set", "train.schedule=constant"], NON_FINITE),
        ):
            for ranks in (None, 3) if redirected == "2>/dev/full" and not harness.is_mpich() and name != "a loss that is not finite" else (None,):
                with tempfile.TemporaryDirectory(prefix="train_cli.") as folder:
                    config = tiny_run.write_files(folder)
                    command = harness.launch(ranks, [train, *[a.format(config=config) for a in arguments]])
                    result = harness.run(["sh", "-c", f'"$@" {redirected}', "sh", *command], LIMIT_S, cwd=folder)
                    problems = [] if result.code == code else [f"exit code {result.code}, expected {code}"]
                    report.case(f"{name}, {redirected}, {'without mpirun' if ranks is None else f'{ranks} ranks'}", problems, result)


def run_small_disk(train, report):
    """What the disk can never take is told before anything is created or computed; a checkpoint for which it has no room can be a warning."""
    inside = harness.in_namespace("-m")
    if inside is None:
        return
    script = 'mount -t tmpfs -o size="$1" tmpfs "$0" || exit 77; shift; "$@"; code=$?; ls "$0"; ls "$0"/out/checkpoints 2>/dev/null; exit $code'
    every = ["--set", "checkpoint.every=1", "--set", "checkpoint.keep=0"]
    for name, size, ranks, flags, code, says, leaves in (
        ("no room for the weights", "64k", None, [], CANNOT_WRITE, r"no room for the final weights: [\d.]+ KiB needed, [\d.]+ KiB free", []),
        ("no room for the weights", "64k", 3, [], CANNOT_WRITE, r"no room for the final weights: [\d.]+ KiB needed, [\d.]+ KiB free", []),
        ("no room for a checkpoint", "300k", None, every, CANNOT_WRITE, r"no room for a checkpoint beside the final weights: [\d.]+ KiB needed", []),
        ("room for one checkpoint of three", "900k", None, every, CANNOT_WRITE, "No space left", ["out", "step-1"]),
        ("room for one checkpoint of three, warned", "900k", None, [*every, "--set", "checkpoint.on_full=warn"], 0, "step 3 is not saved", ["out", "step-1"]),
        ("room for one checkpoint of three, warned", "900k", 3, [*every, "--set", "checkpoint.on_full=warn"], 0, "step 3 is not saved", ["out", "step-1"]),
        ("no room for a checkpoint, warned", "300k", None, [*every, "--set", "checkpoint.on_full=warn"], 0, "step 3 is not saved", ["out"]),
    ):
        with tempfile.TemporaryDirectory(prefix="train_cli.") as folder:
            config, disk = tiny_run.write_files(folder), pathlib.Path(folder, "disk")
            disk.mkdir()
            command = harness.launch(ranks, [train, config, "--set", f"run.dir={disk}/out", *flags])
            result = harness.run([*inside, "sh", "-c", script, disk, size, *command], LIMIT_S, cwd=folder)
            problems = [] if result.code == code else [f"exit code {result.code}, expected {code}"]
            problems += [] if re.search(says, result.err) else [f"stderr does not say /{says}/"]
            lines = result.out.splitlines()
            there = [line for line in lines if line in ("out", "step-1", "step-2", "step-3")]
            problems += [] if there == leaves else [f"on the disk: {there}"]
            problems += [] if not leaves or code != 0 or harness.weights_hash(result.out) else ["no weights"]
            problems += ["it has begun"] if not leaves and "step 1/" in result.out else []
            report.case(f"a disk of {size}, {name}, {'without mpirun' if ranks is None else f'{ranks} ranks'}", problems, result)


def run_nowhere(train, report):
    """Started in a folder that is gone."""
    with tempfile.TemporaryDirectory(prefix="train_cli.") as folder:
        config = tiny_run.write_files(folder)
        command = ["sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$@"', "sh", str(train), str(config), "--set", "run.dir=out"]
        result = harness.run(command, LIMIT_S, cwd=folder)
        good = result.code == CANNOT_CREATE and "run.dir" in result.last_error_line()
        report.case("the working directory is gone", [] if good else [f"exit code {CANNOT_CREATE} and a line with run.dir expected"], result)


def run_sample(train, report):
    """A sample that takes longer than its reader likes."""

    def stop(process):
        while not (pathlib.Path(folder, "out", "model.safetensors").exists() or process.poll() is not None):
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)

    with tempfile.TemporaryDirectory(prefix="train_cli.") as folder:
        config = tiny_run.write_files(folder)
        result = harness.run([train, config, "--set", "run.sample_tokens=1000000"], LIMIT_S, cwd=folder, on_start=stop)
        problems = [] if result.code == 0 else [f"exit code {result.code}"]
        problems += [] if "sample: " in result.out else ["what there is of the sample is not printed"]
        report.case("a sample is stopped", problems, result)


def run_validation(train, report):
    """Every window of the validation data counts once, whatever the batches and ranks; with a limit, the first ones."""
    def loss(folder, validation, **keys):
        result = harness.run([train, folder / "tiny.toml", "--overwrite", *tiny_run.options(
            data__validation=validation, train__steps=2, train__lr="1e-30", run__validate_every=2, run__sample_tokens=0, **keys)], LIMIT_S, cwd=folder)
        metrics = harness.read_metrics(folder / "out") if result.code == 0 else []
        if not metrics or metrics[1]["allocations"] != 0:
            raise RuntimeError(f"{keys}: no steps, or memory from the system in the second: {result}")
        return metrics[1]["val_loss"]

    with tempfile.TemporaryDirectory(prefix="train_cli.") as name:
        folder = pathlib.Path(name)
        tiny_run.write_files(folder)
        for windows in (10, 4):
            (folder / f"{windows}.txt").write_text(tiny_run.corpus_text(5000)[1000:1000 + windows * 16 + 1])
        problems = []
        whole, first = (loss(folder, f"{n}.txt", train__global_batch=1, run__validate_batches=1000) for n in (10, 4))
        for batch, micro, ranks in ((2, 1, 1), (4, 4, 1), (16, 1, 1), (16, 8, 1), (24, 3, 2), (24, 1, 8), (6, 2, 3), (4, 1, 4)):
            keys = {"train__global_batch": batch, "train__micro_batch": micro, "comm__ranks": ranks}
            found = loss(folder, "10.txt", run__validate_batches=1000, **keys)
            problems += [f"{keys}: {found} instead of {whole}"] if abs(found - whole) > 2e-6 else []
        found = loss(folder, "10.txt", train__global_batch=4, run__validate_batches=1)
        problems += [f"one batch of four: {found} instead of {first}"] if abs(found - first) > 2e-6 or abs(first - whole) < 1e-5 else []
        report.case("each validation window counts once", problems)


def run_data_verified(train, ranks, report):
    """--verify-data reads everything, and the run goes on; in a dry run it stops there."""
    for flags, ends in ((["--verify-data"], True), (["--verify-data", "--dry-run"], False)):
        with tempfile.TemporaryDirectory(prefix="train_cli.") as name:
            config = tiny_run.write_files(name)
            result = harness.run(harness.launch(ranks, [train, config, *flags]), LIMIT_S, cwd=name)
            problems = [] if result.code == 0 else [f"exit code {result.code}"]
            problems += [] if result.out.count("data verified: every token of 1 file\n") == 1 else ["it does not say that data is verified, once"]
            problems += [] if ("step 3/3" in result.out) == ends and pathlib.Path(name, "out").exists() == ends else ["trained where it should not, or not"]
            report.case(f"{' '.join(flags)}, {'without mpirun' if ranks is None else f'{ranks} ranks'}", problems, result)


def run_data_stopped(train, report):
    """Asked to stop while it reads all data, it does not begin."""
    def stop(process):
        term = 1 << (signal.SIGTERM - 1)
        while process.poll() is None and not int(re.search(r"SigCgt:\s*(\w+)", pathlib.Path(f"/proc/{process.pid}/status").read_text())[1], 16) & term:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)

    with tempfile.TemporaryDirectory(prefix="train_cli.") as name:
        config = tiny_run.write_files(name)
        before = harness.tree(name)
        result = harness.run([train, config, "--verify-data"], LIMIT_S, cwd=name, env={"TRAIN_FAULT": "data.verify:delay=1000"}, on_start=stop)
        problems = [] if result.code == STOPPED and "while the data was verified" in result.last_error_line() else [f"exit code {result.code}"]
        problems += [] if harness.tree(name) == before else ["files were created"]
        report.case("--verify-data is stopped", problems, result)


def run_utf8(train, report):
    """A prompt that is UTF-8 is printed as it is; what could move the cursor is not."""
    with tempfile.TemporaryDirectory(prefix="train_cli.") as name:
        config = tiny_run.write_files(name)
        result = harness.run([train, config, "--set", "run.sample_prompt=na\u00efve \u4f60\x1b[2J\u009b"], LIMIT_S, cwd=name)
        problems = [] if "sample: na\u00efve \u4f60?[2J?" in result.out else ["the prompt is not printed"]
        report.case("a sample in UTF-8", problems, result)


def run_verified(train, ranks, report):
    """--verify-order looks at the first two steps and the first validation, and at nothing else; at the plan in a dry run."""
    for arguments, wanted in (
        (["--set", "train.steps=5", "--set", "run.validate_every=4", "--set", "run.validate_batches=1"], ["step 1", "step 2", "step 4"]),
        (["--dry-run"], ["the plan of a step"]),
    ):
        with tempfile.TemporaryDirectory(prefix="train_cli.") as name:
            config = tiny_run.write_files(name)
            result = harness.run(harness.launch(ranks, [train, config, "--verify-order", *arguments]), LIMIT_S, cwd=name)
            found = [line.removeprefix("order verified: ").split(",")[0] for line in result.out.splitlines() if line.startswith("order verified: ")]
            problems = [] if result.code == 0 else [f"exit code {result.code}"]
            problems += [] if found == wanted else [f"verified {found}, wanted {wanted}"]
            report.case(f"--verify-order {arguments[0]}, {'without mpirun' if ranks is None else f'{ranks} ranks'}", problems, result)


def main():
    train = pathlib.Path(sys.argv[1]).resolve()
    harness.become_subreaper()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    report = harness.Report()
    run_help(train, "--help", ["--set", "train plan", "--version", "--overwrite", "--verify-order", "--verify-data"], report)
    run_help(train, "--version", ["zshard 0.1.0", "CUDA: ", "MPI: MPICH v" if harness.is_mpich() else "MPI: Open MPI v", "oneDNN: ", "CPU kernels: "], report)
    run_units(train, report)
    run_plans(train, report)
    run_transports(train, report)
    run_streams(train, report)
    run_mute(train, report)
    run_small_disk(train, report)
    run_nowhere(train, report)
    run_sample(train, report)
    run_utf8(train, report)
    run_data_stopped(train, report)
    run_validation(train, report)
    for ranks in (None, 3):
        run_dry(train, ranks, report)
        run_data_verified(train, ranks, report)
        run_verified(train, ranks, report)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
