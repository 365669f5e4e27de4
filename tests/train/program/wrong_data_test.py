#!/usr/bin/env python3
"""Data, memory and places to write to that do not do, on one rank and on three (wrong_start.py).
Usage: wrong_data_test.py TRAIN [WORD...]   (WORD: only the cases whose name contains one)"""

import struct
import sys

import tiny_run
from wrong_start import CANNOT_CREATE, CONFIG, DATASET, MODEL, NON_FINITE, OUT_OF_MEMORY, Case, run_cases, write


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
    Case("one document, and a part of it for validation", DATASET, prepare=write("a.txt", "one"), sets=["data.format=lines", "data.train=a.txt", "run.validate_every=1"],
         says=["one document", r"data\.validation"], ranks=(None,)),
    Case("documents without a target", DATASET, prepare=write("a.txt", "a\nb\nc\n"), sets=["data.format=lines", "data.train=a.txt"],
         says=["no token that is trained on is a target", r"a\.txt", "name documents"], ranks=(None,)),
    Case("validation data without a target", DATASET, prepare=write("a.txt", "a\nb\nc\n"),
         sets=["data.format=lines", "data.overlong=split", "data.validation=a.txt", "run.validate_every=1"],
         says=["no token that is validated by is a target", r"a\.txt"], ranks=(None,)),
    Case("a chat that is not rendered", DATASET, prepare=write("a.jsonl", '{"messages": [{"role": "user", "content": "a"}]}\n'),
         sets=["data.format=jsonl", "data.train=a.jsonl"], says=[r"a\.jsonl:1", r"data\.format = .chat."], ranks=(None,)),
    Case("a name of the hub in place of a folder", MODEL, sets=["model.path=meta-llama/Llama-3.2-1B"], says=["no such folder", "hf download"], ranks=(None,)),
    Case("a name of the hub in place of a tokenizer", MODEL, sets=["data.tokenizer=openai-community/gpt2"], says=["hf download"], ranks=(None,)),
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
         # An arena for each thread would take a gigabyte of the limit or not, as the threads happen to meet. With one arena one change may do, or two.
         env={"MALLOC_ARENA_MAX": "1"},
         says=[r"3 ranks need [\d.]+ GiB in a process", r"(set|enough;) train\.\w+="]),
    Case("two limits that are too low, of which the other one stays so", OUT_OF_MEMORY, ranks=(None,),
         sets=["model.layers=8", "model.heads=4", "model.width=64", "model.context=256", "train.sequence=256", "offload.moments=host",
               "offload.device_mib=5", "offload.host_mib=1", "train.micro_batch=2", "comm.ranks=2"], says=["offload.device_mib = 5", r"offload.host_mib = 1.{0,8} is too low as well, of which [\d.]+ MiB are needed"]),
    Case("a plan over every machine", OUT_OF_MEMORY, sets=["model.layers=256", "model.width=65536"],
         says=[r"needs? [\d.]+ TiB on this host", "use a smaller model|hosts like this one"]),
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


if __name__ == "__main__":
    sys.exit(run_cases(DATA + MEMORY + OUTPUT))
