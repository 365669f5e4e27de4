#!/usr/bin/env python3
"""Starts `train` wrongly in every way a user can, on one rank and on three: it must end by itself with the right exit code and
one line that says what is wrong, where, and what to do; and leave nothing behind, neither file nor process.
Usage: train_cli_test.py TRAIN [WORD...]   (WORD: only the cases whose name contains one)"""

import os
import pathlib
import re
import signal
import struct
import sys
import tempfile
import time
from dataclasses import dataclass, field

import harness
import tiny_run

USAGE, DATASET, OUT_OF_MEMORY, CANNOT_CREATE, CANNOT_WRITE, STOPPED, NON_FINITE, CONFIG = 64, 65, 71, 73, 74, 75, 76, 78
LIMIT_S = 60


@dataclass
class Case:
    name: str
    code: int
    says: list = field(default_factory=list)  # regular expressions; each must be found in the last line of stderr
    lists: list = field(default_factory=list)  # and each of these somewhere in stderr
    sets: list = field(default_factory=list)  # --set key=value
    args: list = None  # the whole argument list, where it is not CONFIG and `sets`
    prepare: object = None  # called with the folder; may write files
    env: dict = field(default_factory=dict)
    ranks: tuple = (None, 3)  # None: without mpirun
    creates: bool = False  # a run directory may be there afterwards
    ulimit: tuple = ()  # of each process: ("-v", KiB)


def write(name, data):
    def prepare(folder):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)

    return prepare


def append(text):
    def prepare(folder):
        with open(folder / "tiny.toml", "a") as f:
            f.write(text)

    return prepare


def bad_token(writer):
    def prepare(folder):
        tokens = [i % 256 for i in range(5000)]
        tokens[1234] = 300
        writer(folder / "bad.bin", tokens)

    return prepare


def ids(code, count, most=1000):
    """Of so many bytes, as struct calls them."""
    return struct.pack(f"<{count}{code}", *[i * 37 % most for i in range(count)])


def earlier_run(folder):
    (folder / "out").mkdir()
    (folder / "out" / "config.toml").write_text("# of an earlier run\n")
    (folder / "out" / "metrics.jsonl").write_text('{"step": 1}\n')


COMMAND_LINE = [
    Case("no configuration named", USAGE, args=[], says=["--help|usage|CONFIG"]),
    Case("unknown option", USAGE, args=["{config}", "--stepz", "4"], says=["--stepz"]),
    Case("two configurations", USAGE, args=["{config}", "second.toml"], says=["second.toml"]),
    Case("--set without a value", USAGE, args=["{config}", "--set"], says=["--set"]),
    Case("--resume without a value", USAGE, args=["{config}", "--resume"], says=["--resume"]),
    Case("--resume with an empty value", USAGE, args=["{config}", "--resume", ""], says=["--resume"]),
    Case("--set without an equals sign", CONFIG, sets=["train.steps"], says=["train.steps", "key=value"]),
    Case("several ranks by PMI", USAGE, env={"PMI_SIZE": "4", "PMI_RANK": "0"}, says=["PMI_SIZE", "mpirun"], ranks=(None,)),
    Case("several ranks by Slurm", USAGE, env={"SLURM_NTASKS": "4", "SLURM_PROCID": "1", "SLURM_STEP_ID": "0"}, says=["SLURM", "mpirun"], ranks=(None,)),
    Case("several ranks by torchrun", USAGE, env={"WORLD_SIZE": "4", "RANK": "0"}, says=["WORLD_SIZE", "mpirun"], ranks=(None,)),
]

CONFIGURATION = [
    Case("configuration file missing", CONFIG, args=["nowhere.toml"], says=["nowhere.toml"]),
    Case("configuration is a folder", CONFIG, args=["."], says=[r"\."]),
    Case("configuration is no TOML", CONFIG, prepare=append("steps = = 3\n"), says=[r"tiny\.toml:\d+"]),
    Case("configuration is binary", CONFIG, prepare=write("tiny.toml", bytes(range(256)) * 20), says=[r"tiny\.toml"]),
    Case("empty configuration", CONFIG, prepare=write("tiny.toml", ""), says=[], lists=["train.steps", "data.train"]),
    Case("unknown key in the file", CONFIG, prepare=append("[shard]\nprefetsh = 1\n"), says=["prefetsh", r"shard\.prefetch"]),
    Case("unknown key in --set", CONFIG, sets=["train.stepz=4"], says=[r"train\.stepz", r"train\.steps"]),
    Case("unknown table", CONFIG, prepare=append("[trian]\nlr = 1\n"), says=["trian"]),
    Case("a dotted name of 40,000 parts", CONFIG, prepare=append("[x]\nx" + 40000 * ".a" + " = 1\n"), says=["nested", r"tiny\.toml:\d+"], ranks=(None,)),
    Case("arrays 100,000 deep", CONFIG, prepare=append("x = " + 100000 * "[" + 100000 * "]" + "\n"), says=["nested"], ranks=(None,)),
    Case("a dotted name of many parts behind --set", CONFIG, sets=["train.lr=1\nx" + 40000 * ".a" + "=1"], says=["nested", "--set"], ranks=(None,)),
    Case("a decay that overlaps the warm-up", CONFIG, sets=["train.schedule=wsd", "train.decay=1", "train.warmup=2"], says=["3 steps", "warm-up of 2"]),
    Case("a peer that may take no time at all", CONFIG, sets=["comm.timeout_s=1e-300"], says=[r"comm\.timeout_s is 1e-300", "1 to 86400"]),
    Case("a time limit that is none", CONFIG, sets=["train.time_limit=1:75:00"], says=[r"train\.time_limit", "H:MM:SS"], ranks=(None,)),
    Case("text where a number belongs", CONFIG, sets=["train.steps=many"], says=[r"train\.steps", "integer", "many"]),
    Case("fraction where an integer belongs", CONFIG, sets=["train.steps=2.5"], says=[r"train\.steps", "integer"]),
    Case("number where true or false belongs", CONFIG, sets=["train.deterministic=1"], says=[r"train\.deterministic", "true"]),
    Case("number out of its range", CONFIG, sets=["train.beta1=1.5"], says=[r"train\.beta1", "1.5"]),
    Case("infinite learning rate", CONFIG, sets=["train.lr=inf"], says=[r"train\.lr"]),
    Case("integer too large for 64 bits", CONFIG, sets=["train.seed=99999999999999999999"], says=[r"train\.seed"]),
    Case("unknown choice", CONFIG, sets=["train.schedule=cosinus"], says=[r"train\.schedule", "cosine"]),
    Case("heads do not divide the width", CONFIG, sets=["model.heads=5"], says=[r"model\.heads", "32"]),
    Case("sequence longer than the context", CONFIG, sets=["train.sequence=17"], says=[r"train\.sequence", "16"]),
    Case("micro-batch does not divide the batch", CONFIG, sets=["train.global_batch=16", "train.micro_batch=5"], says=["16", "5"]),
    Case("small groups do not divide the ranks", CONFIG, sets=["shard.strategy=nested", "shard.group_size=2"], says=["group_size 2", "3 ranks", "use one of 1, 3"],
         ranks=(3,)),
    Case("more ranks than micro-batches", CONFIG, sets=["train.global_batch=2"], says=["global_batch 2", "3 ranks", "3 or more", "at most 2 ranks"], ranks=(3,)),
    Case("more local ranks than micro-batches", CONFIG, sets=["train.global_batch=4", "train.micro_batch=2", "comm.ranks=3"],
         says=["global_batch 4", "3 ranks", "6 or more", "at most 2 ranks", "smaller train.micro_batch"], ranks=(None,)),
    Case("a transport of the environment that there is not", USAGE, env={"ZSHARD_TRANSPORT": "pigeon"}, says=["pigeon", "ZSHARD_TRANSPORT"], ranks=(3,)),
    Case("hosts that are not one a rank", USAGE, env={"ZSHARD_HOSTS_OF": "0,1"}, says=["0,1", "3 ranks", "ZSHARD_HOSTS_OF"], ranks=(3,)),
    Case("hosts that are no numbers", USAGE, env={"ZSHARD_HOSTS_OF": "0,a,1"}, says=["0,a,1", "ZSHARD_HOSTS_OF"], ranks=(3,)),
    Case("transport local under mpirun", CONFIG, sets=["comm.transport=local"], says=["local", "mpirun"], ranks=(3,)),
    Case("a device that this build or machine has not", CONFIG, sets=["device=cuda"], says=["cuda", "cpu|auto"]),
    Case("a CUDA graph on the CPU", CONFIG, sets=["cuda.graph=true"], says=[r"cuda\.graph", "device", "cpu|CPU"]),
    Case("several mistakes at once", CONFIG, sets=["train.stepz=4", "train.beta2=7", "model.layers=none", "data.kind=video"],
         lists=[r"train\.stepz", r"train\.beta2", r"model\.layers", r"data\.kind"]),
    Case("a key of 2000 characters", CONFIG, sets=["x" * 2000 + "=1"], says=["xxx"]),
    Case("a value with control characters", CONFIG, sets=["train.schedule=a\x1b[31m\nb"], says=[r"train\.schedule"]),
]

DATA = [
    Case("corpus missing", DATASET, sets=["data.train=nowhere.txt"], says=["nowhere.txt"]),
    Case("pattern that matches nothing", DATASET, sets=["data.train=no*where/*.txt"], says=[r"no\*where"]),
    Case("corpus empty", DATASET, prepare=write("empty.txt", ""), sets=["data.train=empty.txt"], says=["empty.txt"]),
    Case("corpus folder empty", DATASET, prepare=lambda f: (f / "texts").mkdir(), sets=["data.train=texts"], says=["texts"]),
    Case("corpus shorter than a sequence", DATASET, prepare=write("short.txt", "short"), sets=["data.train=short.txt"], says=["short.txt|5"]),
    Case("token out of range, uint16", DATASET, args=["{config}", "--verify-data"], prepare=bad_token(tiny_run.write_uint16_tokens),
         sets=["data.kind=tokens", "data.train=bad.bin", "model.vocab=256"], says=["bad.bin", "1234", "300"]),
    Case("token out of range, llm.c", DATASET, args=["{config}", "--verify-data", "--dry-run"], prepare=bad_token(tiny_run.write_llmc_tokens),
         sets=["data.kind=tokens", "data.train=bad.bin", "model.vocab=256"], says=["bad.bin", "1234", "300"]),
    Case("odd number of bytes in a token file", DATASET, prepare=write("odd.bin", b"\1\0" * 999 + b"\1"),
         sets=["data.kind=tokens", "data.train=odd.bin"], says=["odd.bin", "1999|odd|even"]),
    Case("llm.c header that promises more tokens", DATASET,
         prepare=lambda f: tiny_run.write_llmc_tokens(f / "cut.bin", [1] * 900, count=1000),
         sets=["data.kind=tokens", "data.train=cut.bin"], says=["cut.bin", "1000|900"]),
    Case("llm.c file of an unknown version", DATASET, prepare=lambda f: tiny_run.write_llmc_tokens(f / "v9.bin", [1] * 900, version=9),
         sets=["data.kind=tokens", "data.train=v9.bin"], says=["v9.bin", "version", "9"]),
    Case("tokens out of range in the first step", DATASET, prepare=write("high.bin", ids("H", 2000, 60000)),
         sets=["data.kind=tokens", "data.train=high.bin", "model.vocab=5000"], says=[r"token \d+ is outside the vocabulary of 5000", "high.bin@"]),
    Case("int32 ids", DATASET, prepare=write("i32.bin", ids("i", 500)), sets=["data.kind=tokens", "data.train=i32.bin"],
         says=["32-bit", r"i32\.bin", r"data\.token_bytes = 4"]),
    Case("int64 ids", DATASET, prepare=write("i64.bin", ids("q", 500)), sets=["data.kind=tokens", "data.train=i64.bin"], says=["64-bit", "astype"]),
    Case("a NumPy array", DATASET, prepare=write("a.bin", b"\x93NUMPY\x01\x00" + ids("H", 500)), sets=["data.kind=tokens", "data.train=a.bin"],
         says=["NumPy", "tofile"]),
    Case("text as tokens", DATASET, sets=["data.kind=tokens", "data.train=corpus.txt"], says=["text", r'data\.kind = "text"']),
    Case("tokens as text", DATASET, prepare=lambda f: tiny_run.write_llmc_tokens(f / "t.bin", range(900)), sets=["data.train=t.bin"],
         says=["llm.c", r'data\.kind = "tokens"']),
    Case("a line that is no JSON", DATASET, prepare=write("a.jsonl", '{"text": "a"}\n{"text": "b"\n'), sets=["data.format=jsonl", "data.train=a.jsonl"],
         says=[r"a\.jsonl:2", "not JSON", "byte 13"]),
    Case("a field that a line has not", DATASET, prepare=write("a.jsonl", '{"body": "a", "id": "b"}\n'), sets=["data.format=jsonl", "data.train=a.jsonl"],
         says=[r"a\.jsonl:1", 'no field "text"', "body, id"], ranks=(None,)),
    Case("a prompt without an answer", DATASET, prepare=write("a.jsonl", '{"q": "a", "text": ""}\n'),
         sets=["data.format=jsonl", "data.prompt_field=q", "data.train=a.jsonl"], says=[r"a\.jsonl:1", "empty"], ranks=(None,)),
    Case("an empty line as a document", DATASET, prepare=write("a.txt", "one\n\ntwo\n"), sets=["data.format=lines", "data.train=a.txt"],
         says=[r"a\.txt:2", "empty"], ranks=(None,)),
    Case("a document longer than a sequence", DATASET, sets=["data.format=files", "data.train=corpus.txt"],
         says=[r"corpus\.txt", "6000 tokens", "a sequence 16", r"data\.overlong"], ranks=(None,)),
    Case("one document, and a part of it for validation", DATASET, prepare=write("a.txt", "one"), sets=["data.format=lines", "data.train=a.txt"],
         says=["one document", r"data\.validation"], ranks=(None,)),
    Case("a field of what has none", CONFIG, sets=["data.field=body"], says=[r"data\.field", "jsonl"], ranks=(None,)),
    Case("weights of other sources than there are", CONFIG, sets=["data.weights=[1, 2]"], says=[r"data\.weights has 2", r"data\.train 1"], ranks=(None,)),
    Case("ids of three bytes", CONFIG, sets=["data.kind=tokens", "data.token_bytes=3"], says=[r"data\.token_bytes", "2 or 4"]),
    Case("ids of four bytes in text", CONFIG, sets=["data.token_bytes=4"], says=[r"data\.token_bytes", "text"]),
    Case("a variable that is not set", CONFIG, sets=["data.train=$ZSHARD_NOWHERE/a.txt"], says=[r"data\.train", "ZSHARD_NOWHERE is not set"]),
    Case("run.dir below a variable that is not set", CONFIG, sets=["run.dir=runs/${ZSHARD_NOWHERE}/a"], says=[r"run\.dir", "ZSHARD_NOWHERE is not set"]),
    Case("a configuration in a home that has none", CONFIG, args=["~/nowhere.toml"], env={"HOME": "/tmp/zshard home"}, says=["/tmp/zshard home/nowhere.toml"]),
    Case("a checkpoint below a variable that is not set", CONFIG, args=["{config}", "--resume=$ZSHARD_NOWHERE/run"], says=["ZSHARD_NOWHERE is not set"]),
    Case("the home of nobody", CONFIG, sets=["run.dir=~no.such.user/run"], says=[r"run\.dir", "~no.such.user"]),
    Case("a file in a home that has none", DATASET, sets=["data.train=~/nowhere.txt"], env={"HOME": "/tmp/zshard home"}, says=["/tmp/zshard home/nowhere.txt"]),
]

# Half a gigabyte of activations, which is only planned.
LARGE = ["model.layers=8", "model.width=256", "model.context=512", "train.sequence=512", "train.micro_batch=8"]
MEMORY = [
    Case("a plan over ulimit -v", OUT_OF_MEMORY, sets=LARGE, ulimit=("-v", 1100000),
         says=[r"needs? \d+ MiB in a process, \d+ MiB may be used", "90 % of ulimit -v", r"set train\.recompute=\w+, which needs \d+ MiB"]),
    Case("a plan over ulimit -d", OUT_OF_MEMORY, sets=LARGE, ulimit=("-d", 400000),
         says=[r"needs? \d+ MiB in a process, \d+ MiB may be used", "90 % of ulimit -d", r"set train\.\w+="]),
    Case("a plan over ulimit -v, ranks as threads", OUT_OF_MEMORY, sets=[*LARGE, "comm.ranks=3"], ulimit=("-v", 2300000), ranks=(None,),
         # How much of the limit is left depends on how many arenas the C library has reserved for threads: one change may do, or two.
         says=[r"3 ranks need [\d.]+ GiB in a process", r"(set|enough;) train\.\w+="]),
    Case("a plan over every machine", OUT_OF_MEMORY, sets=["model.layers=256", "model.width=65536"],
         says=[r"needs? [\d.]+ TiB on this host", "use a smaller model|hosts like this one"]),
]

LAYOUT = [
    Case("a group of no parameter", CONFIG, sets=["train.groups=['*.wieght: lr=0.1']"],
         says=[r"train\.groups: .*no parameter is of the group \"\*\.wieght\""]),
    Case("a group that others leave nothing", CONFIG, sets=["train.optimizer=sgd", "train.groups=['*: lr=0.1', '*.bias: decay=0']"],
         says=[r"train\.groups: .*no parameter is of the group \"\*\.bias\""]),
    Case("matrices of no name", CONFIG, sets=["train.optimizer=muon", "train.muon=['blocks.*', '*.bias']"],
         says=[r"train\.muon: .*no matrix has a name of \"\*\.bias\""]),
    Case("dims of no parameter", CONFIG, sets=["shard.layout=per_parameter", "shard.dims=['*.wieght=1']"],
         says=[r"shard\.dims: no parameter matches \"\*\.wieght\"", "nearest names"]),
    Case("a dim that a parameter has not", CONFIG, sets=["shard.layout=per_parameter", "shard.dims=['*.bias=1']"],
         says=[r"bias of shape \(\d+\) has no dim 1"]),
    Case("a plan of no module", CONFIG, sets=["plan.apply=['blocks.{*}.atention']"],
         says=[r"plan\.apply: \"blocks\.\{\*\}\.atention\" matches no module", r"nearest names are blocks\.\{\*\}\.attention"]),
    Case("a plan with a pattern that is none", CONFIG, sets=["plan.apply=['blocks.{3-1}']"], says=[r"plan\.apply: .*\{3-1\}", r"write \{1-3\}"], ranks=(None,)),
    Case("a plan of a module without a forward", CONFIG, sets=["plan.apply=['blocks']"], says=[r"plan\.apply: parameter blocks\.0\."], ranks=(None,)),
    Case("a rule of no unit", CONFIG, sets=["plan.apply=['blocks.{*}']", "plan.reshard=['blocks.{*}.mlp=false']"],
         says=[r"plan\.reshard: \"blocks\.\{\*\}\.mlp\" matches no unit", "nearest units are"], ranks=(None,)),
    Case("a hook that opens nothing", CONFIG, sets=["plan.apply=['norm']", "plan.hooks=['blocks.{*}']"], says=[r"plan\.hooks: .* open no unit"], ranks=(None,)),
    Case("a rule without a plan", CONFIG, sets=["plan.reshard=['root=false']"], says=[r"plan\.reshard .*no effect without plan\.apply"], ranks=(None,)),
    Case("groups of a plan that do not go with a strategy", CONFIG, sets=["plan.apply=['norm']", "plan.strategy=['norm=ddp']", "plan.reshard=['norm=true']"],
         says=[r"unit norm: reshard_after_forward"], ranks=(None,)),
    Case("a name that is not there", USAGE, args=["{config}", "--plan-explain=blocks.0.atention"], says=["no .*blocks.0.atention", "nearest names"], ranks=(None,)),
    Case("a comparison with nothing", CONFIG, args=["{config}", "--plan-diff=nowhere.toml"], says=["nowhere.toml"], ranks=(None,)),
    Case("a plan for ranks that the batch does not fit", CONFIG, args=["{config}", "--dry-run", "--ranks=512"], says=["512 ranks", "global_batch"], ranks=(None,)),
]

OUTPUT = [
    Case("run.dir below a file", CANNOT_CREATE, prepare=write("file", "x"), sets=["run.dir=file/out"], says=["file/out|file"]),
    Case("run.dir is a file", CANNOT_CREATE, prepare=write("file", "x"), sets=["run.dir=file"], says=["file"]),
    Case("run.dir in a kernel file system", CANNOT_CREATE, sets=["run.dir=/proc/out"], says=[r"\(/proc", "run.dir"]),
    Case("run.dir with a name too long", CANNOT_CREATE, sets=["run.dir=" + "d" * 300], says=["ddd"]),
    Case("run.dir holds a run", CANNOT_CREATE, prepare=earlier_run, says=["out", "--overwrite|--resume"]),
    Case("loss not finite", NON_FINITE, says=["loss|gradient|norm", r"step \d+"], creates=True,
         sets=["train.steps=60", "train.lr=100", "train.weight_decay=100", "train.clip=0", "train.warmup=0", "train.schedule=constant"]),
]


def problems_of(case, result, before, after):
    problems = []
    last = result.last_error_line()
    if result.timed_out:
        problems.append(f"did not end within {LIMIT_S} s")
    if result.code != case.code:
        problems.append(f"exit code {result.code}, expected {case.code}")
    if not last.startswith("train: error: "):
        problems.append(f"the last line of stderr is not `train: error: ...`: {last[:200]!r}")
    if len(last.encode()) > 300:
        problems.append(f"the last line has {len(last.encode())} bytes, more than 300")
    if re.search(r"[\x00-\x1f\x7f]", last):
        problems.append(f"control characters in the last line: {last!r}")
    problems += [f"the last line does not say /{p}/: {last!r}" for p in case.says if not re.search(p, last)]
    problems += [f"stderr does not say /{p}/" for p in case.lists if not re.search(p, result.err)]
    errors = [line for line in result.err.splitlines() if line.startswith("train: error: ")]
    if len(errors) != len(set(errors)):
        problems.append("the same error line was printed more than once")
    if before != after and not case.creates:
        changed = sorted(set(before.items()) ^ set(after.items()))
        problems.append(f"files were created or changed: {changed[:5]}")
    if result.orphans:
        problems.append(f"{len(result.orphans)} processes were left running")
    return problems


def run_case(train, case, ranks, report):
    with tempfile.TemporaryDirectory(prefix="train_cli.") as name:
        folder = pathlib.Path(name)
        config = tiny_run.write_files(folder)
        if case.prepare:
            case.prepare(folder)
        arguments = [config] if case.args is None else [a.format(config=config) for a in case.args]
        for item in case.sets:
            arguments += ["--set", item]
        before = harness.tree(folder)
        limit = ["bash", "-c", f'ulimit {case.ulimit[0]} {case.ulimit[1]} && exec "$@"', "bash"] if case.ulimit else []
        result = harness.run(harness.launch(ranks, [*limit, train, *arguments]), LIMIT_S, cwd=folder, env=case.env)
        where = "without mpirun" if ranks is None else f"{ranks} ranks"
        report.case(f"{case.name}, {where}", problems_of(case, result, before, harness.tree(folder)), result)


def run_help(train, option, wanted, report):
    """--help and --version need no configuration, write to stdout only, and end with 0."""
    result = harness.run([train, option], LIMIT_S)
    problems = [] if result.code == 0 else [f"exit code {result.code}"]
    problems += [f"stdout does not say {word}" for word in wanted if word not in result.out]
    problems += ["stderr is not empty"] if result.err else []
    report.case(option, problems, result)


def run_dry(train, ranks, report):
    """--dry-run prints a plan and creates nothing."""
    with tempfile.TemporaryDirectory(prefix="train_cli.") as name:
        config = tiny_run.write_files(name)
        before = harness.tree(name)
        result = harness.run(harness.launch(ranks, [train, config, "--dry-run"]), LIMIT_S, cwd=name)
        problems = [] if result.code == 0 else [f"exit code {result.code}"]
        problems += ["prints nothing"] if not result.out.strip() else []
        problems += ["files were created or changed"] if before != harness.tree(name) else []
        report.case(f"--dry-run, {'without mpirun' if ranks is None else f'{ranks} ranks'}", problems, result)


def run_plans(train, report):
    """What a plan says of itself, on one rank that stands for any number."""
    units = ["--set", "plan.apply=['blocks.{*}.attention', 'blocks.{*}.mlp']"]
    for name, flags, says in (
            ("--ranks", [*units, "--set", "train.global_batch=512", "--dry-run", "--ranks=512"], ["plan: 512 ranks", r"blocks\.0\.attention +4 "]),
            ("--plan-explain", [*units, "--plan-explain", "blocks.0.mlp.up.weight", "--ranks=3"],
             [r"a part of the unit blocks\.0\.mlp", r'plan\.apply "blocks\.\{\*\}\.mlp"', r"free_full +(forward|backward)"]),
            ("--plan-diff", ["--plan-diff", "other.toml"], [r"shard\.prefetch +1 +->  2", "but for rounding"])):
        with tempfile.TemporaryDirectory(prefix="train_cli.") as folder:
            config = pathlib.Path(tiny_run.write_files(folder))
            (pathlib.Path(folder) / "other.toml").write_text(config.read_text() + "[shard]\nprefetch = 2\n")
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
            for ranks in (None, 3) if redirected == "2>/dev/full" and name != "a loss that is not finite" else (None,):
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
            problems += [] if refused.code == 71 else [f"{limits}: exit code {refused.code}"]
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
    words = sys.argv[2:]
    harness.become_subreaper()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    report = harness.Report()
    if not words:
        run_help(train, "--help", ["--set", "--dry-run", "--version", "--overwrite", "--verify-order", "--verify-data"], report)
        run_help(train, "--version", ["zshard 0.1.0", "CUDA: ", "MPI: Open MPI v", "oneDNN: ", "CPU kernels: "], report)
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
        for ranks in (1, 3):
            run_offload(train, ranks, report)
        run_fit(train, report)
        for ranks in (None, 3):
            run_dry(train, ranks, report)
            run_data_verified(train, ranks, report)
            run_verified(train, ranks, report)
    for case in COMMAND_LINE + CONFIGURATION + LAYOUT + DATA + MEMORY + OUTPUT:
        if not words or any(word in case.name for word in words):
            for ranks in case.ranks:
                run_case(train, case, ranks, report)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
