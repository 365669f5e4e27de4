#!/usr/bin/env python3
"""A command line or a configuration that cannot be, on one rank and on three (wrong_start.py).
Usage: wrong_config_test.py TRAIN [WORD...]   (WORD: only the cases whose name contains one)"""

import sys

from wrong_start import CONFIG, USAGE, Case, append, run_cases, write

COMMAND_LINE = [
    Case("no configuration named", USAGE, args=[], says=["--help|usage|CONFIG"]),
    Case("unknown option", USAGE, args=["{config}", "--stepz", "4"], says=["--stepz"]),
    Case("two configurations", USAGE, args=["{config}", "second.toml"], says=["second.toml"]),
    Case("--set without a value", USAGE, args=["{config}", "--set"], says=["--set"]),
    Case("--resume without a value", USAGE, args=["{config}", "--resume"], says=["--resume"]),
    Case("--resume with an empty value", USAGE, args=["{config}", "--resume", ""], says=["--resume"]),
    *[Case(f"{option} {value}", USAGE, args=["--sample", "out", option, value], says=[option, "is not an? (number|integer)"], ranks=(None,))
      for option, value in (("--temperature", "nan"), ("--temperature", "inf"), ("--temperature", "1e999"), ("--top-p", "nan"), ("--seed", str(2**64)), ("--seed", "-1"),
                            ("--seed", str(2**63)), ("--tokens", str(2**64 + 1)), ("--top-k", "1e3"))],
    Case("--ranks 2^64 + 1", USAGE, args=["{config}", "--dry-run", "--ranks", str(2**64 + 1)], says=["--ranks", "is not an integer"], ranks=(None,)),
    Case("--shard-mib nan", USAGE, args=["--export", "x", "out", "--shard-mib", "nan"], says=["--shard-mib", "is not an integer"], ranks=(None,)),
    Case("--set without an equals sign", CONFIG, sets=["train.steps"], says=["train.steps", "key=value"]),
    Case("several ranks by PMI", USAGE, env={"PMI_SIZE": "4", "PMI_RANK": "0"}, says=["PMI_SIZE", "mpiexec", "mpirun"], ranks=(None,)),
    Case("several ranks by Slurm", USAGE, env={"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, says=["SLURM", "srun --mpi=pmix -n 4"], ranks=(None,)),
    Case("--tokenize on several tasks of Slurm", USAGE, args=["--tokenize", "nowhere", "nothing", "--out", "x.bin"],
         env={"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, says=["srun has started ranks"], ranks=(None,)),
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


if __name__ == "__main__":
    sys.exit(run_cases(COMMAND_LINE + CONFIGURATION + LAYOUT))
