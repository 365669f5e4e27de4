#!/usr/bin/env python3
"""Adapters and merged models that train exports give the same losses in PyPI's `peft` and `transformers`, and five steps from adapters that peft makes now
are as it takes them, where $ZSHARD_PEER_PYTHON (or this Python) has both; exit 77 where not. Usage: lora_peers_test.py TRAIN"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import harness
import lora_test

LIMIT_S = 600
# Runs in the Python that has the packages: the model, the adapter that was exported, the merged model; prints the losses of both.
PEER = """
import sys, torch, transformers
sys.path.insert(0, sys.argv[1])
import make_cases, pathlib, peft
def load(path): return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
model, adapter, merged = sys.argv[2:5]
x, y = make_cases.batch_of(pathlib.Path(model), torch)
with torch.no_grad():
    print(make_cases.loss_of(peft.PeftModel.from_pretrained(load(model), adapter).eval(), x, y, torch).item())
    print(make_cases.loss_of(load(merged), x, y, torch).item())
"""


def losses(python, model, adapter, merged):
    command = [python, "-c", PEER, str(lora_test.DATA / "lora"), str(model), str(adapter), str(merged)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False,
                            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
    return [float(line) for line in result.stdout.split()], result.stderr[-2000:]


def case(train, python, work, name, ranks, **sets):
    out = work / "out"
    lora_test.train_run(train, work, name, ranks, **sets)
    adapter, merged = work / f"adapter-{name}", work / f"merged-{name}"
    for to, options in ((adapter, ["--adapter"]), (merged, [])):
        result = lora_test.run([train, "--export", to, out, *options])
        if result.code != 0:
            return [f"the export ends with {result.code}"], result
    own, result = lora_test.evaluate(train, name, out)
    theirs, errors = losses(python, lora_test.model_of(name), adapter, merged)
    if len(theirs) != 2:
        return ["the peer failed: " + errors], result
    return lora_test.near("the adapter's loss", own, theirs[0]) + lora_test.near("the merged model's loss", own, theirs[1]), result


def side_by_side(train, python, work, report):
    """Five steps of each kind of adapter beside those that peft takes in this test, from adapters and with numbers of its own."""
    made = subprocess.run([python, str(lora_test.DATA / "lora" / "make_cases.py"), str(work / "cases")], capture_output=True, text=True, timeout=LIMIT_S, check=False,
                          env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
    if made.returncode != 0:
        report.case("peft makes its cases", [made.stderr[-2000:]])
        return
    for folder in sorted(path for path in (work / "cases").iterdir() if path.is_dir()):
        want = json.loads((folder / "expected.json").read_text())
        result = lora_test.train_run(train, work, folder.name, 2, lora__path=f'"{folder}"')
        report.case(f"five steps of {folder.name} beside peft {want['peft']}", lora_test.compare(result, work / "out", folder.name, want), result)


def main():
    train, python = pathlib.Path(sys.argv[1]).resolve(), os.environ.get("ZSHARD_PEER_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import peft, torch, transformers"], capture_output=True, check=False).returncode != 0:
        print(f"skipped: {python} has no peft, torch and transformers (pip install peft, and ZSHARD_PEER_PYTHON)")
        return 77
    report = harness.Report()
    with tempfile.TemporaryDirectory() as place:
        work = pathlib.Path(place)
        for name, ranks, sets in (("gpt2", 2, {"lora__path": lora_test.adapter("gpt2")}), ("llama", 3, {"lora__path": lora_test.adapter("llama"), "train__global_batch": 3}),
                                  ("gpt2", 1, {"lora__rank": 3, "lora__alpha": 5, "lora__targets": '["attn.*","1.mlp.c_proj"]'}),
                                  ("dora", 3, {"lora__path": lora_test.adapter("dora"), "train__global_batch": 3}),
                                  ("dora-gpt2", 2, {"lora__rank": 3, "lora__dora": "true", "lora__targets": '["attn.*","1.mlp.c_proj"]'}),
                                  ("embedding", 2, {"lora__path": lora_test.adapter("embedding")}),
                                  ("embedding-gpt2", 2, {"lora__rank": 3, "lora__targets": '["wte","c_fc"]'}),
                                  ("embedding-gemma3", 2, {"lora__path": lora_test.adapter("embedding-gemma3")}),
                                  ("experts", 2, {"lora__path": lora_test.adapter("experts")}), ("experts-down", 1, {"lora__path": lora_test.adapter("experts-down")}),
                                  ("experts-gpt-oss", 2, {"lora__rank": 2, "lora__targets": '["0.mlp.experts.*","1.mlp.experts.gate_up_proj","o_proj"]'}),
                                  ("patterns", 2, {"lora__path": lora_test.adapter("patterns")}), ("tied", 2, {"lora__path": lora_test.adapter("tied")}),
                                  ("qwen2", 2, {"lora__rank": 2, "lora__targets": '["k_proj","gate_proj"]'})):
            for folder in work.glob("*-" + name):
                subprocess.run(["rm", "-r", str(folder)], check=True)
            problems, result = case(train, python, work, name, ranks, **sets)
            report.case(f"peft and transformers load {name} from {ranks} ranks", problems, result)
        side_by_side(train, python, work, report)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
