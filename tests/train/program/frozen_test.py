#!/usr/bin/env python3
"""Weights that are not trained: held once in the dtype of the model's folder, with the results of f32 masters, and left out of checkpoints, which name the
folder. A folder that is gone or has others ends with one line. Usage: frozen_test.py TRAIN"""

import json
import pathlib
import re
import shutil
import sys
import tempfile

import harness
import tiny_run
from huggingface_test import CASES, MODEL, copied, read_tensors

LIMIT_S = 120
CONFIG = 78
ENV = {"OMP_NUM_THREADS": "1"}
LORA = {"lora__rank": 4, "lora__targets": '["q_proj","mlp.*"]'}
SAVED = {"checkpoint__every": 2, "checkpoint__keep": 0, "train__deterministic": True}


def run(command, ranks=None):
    return harness.run(harness.launch(ranks, command), LIMIT_S, env=ENV)


def bf16_folder(work, name="model"):
    """tests/data's GPT-2-sized Llama, each value cut to bf16."""
    def cut(tensors):
        return {key: ("BF16", shape, b"".join(data[i + 2:i + 4] for i in range(0, len(data), 4))) for key, (_, shape, data) in tensors.items()}

    folder = work / name
    shutil.copytree(copied(work, "qwen2", change_tensors=cut), folder)
    return folder


def train_run(train, work, ranks=None, folder=None, out="out", resume=None, fresh=True, **sets):
    if fresh:
        shutil.rmtree(work / out, ignore_errors=True)
    config = tiny_run.write_folder_config(work, folder or work / "model", CASES / "qwen2" / "tokens.bin", "1e-2", out)
    return run([train, config, *(["--resume", resume] if resume else []), *tiny_run.options(train__steps=4, run__sample_tokens=0, **sets)], ranks)


def outcome(result, out):
    """The hash of the weights and the losses, or the code."""
    return (harness.weights_hash(result.out), [m["loss"] for m in harness.read_metrics(out)]) if result.code == 0 else result.code


def manifest(checkpoint):
    return json.loads((checkpoint / "manifest.json").read_text())["manifest"]


def size(folder):
    return sum(path.stat().st_size for path in folder.iterdir())


def same_bits_cases(train, work, report):
    """The same hash and losses as with f32 masters, for adapters and for what a pattern freezes."""
    pattern = {"train__frozen": '["blocks.0", "*.mlp", "token_embedding"]'}
    for keys, strategy, ranks, param in ((LORA, "zero3", None, "f32"), (LORA, "zero3", 2, "bf16"), (LORA, "hsdp", 4, "f32"), (LORA, "zero1", 2, "bf16"),
                                         (pattern, "zero3", 2, "f32"), (pattern, "nested", 4, "bf16")):
        sets = {**keys, "shard__strategy": strategy, **({"shard__group_size": 2} if strategy in ("hsdp", "nested") else {})}
        results = {}
        for frozen in ("f32", "auto"):
            result = train_run(train, work, ranks, precision__param=param, precision__frozen=frozen, **sets)
            results[frozen] = outcome(result, work / "out")
        problems = [] if results["f32"] == results["auto"] and isinstance(results["auto"], tuple) else [f"{results}"]
        problems += [] if 'frozen = "bf16"' in (work / "out" / "config.toml").read_text() else ["auto is not bf16"]
        report.case(f"{'adapters' if keys is LORA else 'train.frozen'} of a bf16 folder in {param}, {strategy} at {ranks or 1} ranks", problems, result)


def resume_cases(train, work, report):
    straight = train_run(train, work, 2, **LORA, **SAVED)
    wanted, step = outcome(straight, work / "out"), work / "out" / "checkpoints" / "step-2"
    saved = manifest(step)
    problems = [f"{t['parameter']} is saved" for t in saved["tensors"] if ".lora." not in t["parameter"]]
    attributes = saved["attributes"]
    if attributes.get("frozen.folder") != str(work / "model") or not re.fullmatch("[0-9a-f]{16}", attributes.get("frozen.hash", "")):
        problems.append(f"the folder is {attributes.get('frozen.folder')}, of hash {attributes.get('frozen.hash')}")
    if attributes.get("frozen.bytes") != str((work / "model" / "model.safetensors").stat().st_size):
        problems.append(f"its bytes are {attributes.get('frozen.bytes')}")
    report.case("a checkpoint has the adapters alone, and names the folder", problems, straight)
    problems = [f"{name} is written" for name in read_tensors(work / "out" / "model.safetensors") if ".lora." not in name]
    report.case("so have the final weights", problems)

    whole = train_run(train, work, 2, out="whole", checkpoint__frozen="include", checkpoint__background=True, **LORA, **SAVED)
    large = work / "whole" / "checkpoints" / "step-2"
    problems = [] if outcome(whole, work / "whole") == wanted else ["other results"]
    problems += [] if size(large) > 4 * size(step) else [f"{size(large)} bytes, {size(step)} without"]
    problems += [] if (work / "whole" / "model.safetensors").stat().st_size > 4 * (work / "out" / "model.safetensors").stat().st_size else ["not all final weights"]
    report.case("a checkpoint has all of it where it is to", problems, whole)
    end = train_run(train, work, 1, out="went-on", resume=large, **LORA, **SAVED)
    problems = [] if outcome(end, work / "went-on")[0] == wanted[0] else ["another end"]
    problems += [] if "and so will those of this run" in end.err else ["no note"]
    problems += [] if any(".mlp." in t["parameter"] for t in manifest(work / "went-on" / "checkpoints" / "step-4")["tensors"]) else ["it leaves them out"]
    report.case("a run goes on from one, and saves such ones", problems, end)

    moved = work / "elsewhere" / "model"
    moved.parent.mkdir()
    (work / "model").rename(moved)
    answers(train, work, report, step, moved)
    gone = train_run(train, work, folder=moved, out="gone", resume=step, model__path=work / "model", **LORA)
    report.case("a run does not go on without the folder", one_line(gone, MODEL, f"their folder is not there: {work / 'model'}") + ["it began"] * (work / "gone").exists(), gone)
    for ranks, frozen in ((1, "exclude"), (4, "include")):
        end = train_run(train, work, ranks, folder=moved, out="moved", resume=step, checkpoint__frozen=frozen, checkpoint__background=True, **LORA, **SAVED)
        problems = [] if isinstance(outcome(end, work / "moved"), tuple) and outcome(end, work / "moved")[0] == wanted[0] else ["another end"]
        has_all = any(".mlp." in t["parameter"] and ".lora." not in t["parameter"] for t in manifest(work / "moved" / "checkpoints" / "step-4")["tensors"])
        problems += [] if has_all == (frozen == "include") else [f"all is saved: {has_all}"]
        report.case(f"a run goes on with the folder moved, at {ranks} ranks, {frozen}", problems, end)
    moved.rename(work / "model")


def one_line(result, code, said):
    problems = [] if result.code == code else [f"code {result.code}, wanted {code}"]
    lines = [line for line in result.err.splitlines() if "error" in line]
    return problems + ([] if len(lines) == 1 and said in lines[0] else [f"said {lines}"])


def answers(train, work, report, step, folder):
    """What reads a checkpoint finds the folder where it is said to be, or says in one line that it is not there."""
    tokens, there = CASES / "qwen2" / "tokens.bin", ["--set", f"model.path={folder}"]
    newest = run([train, "--evaluate", work / "out" / "checkpoints" / "step-4", tokens, *there])
    of_run = run([train, "--evaluate", work / "out", tokens, *there])
    report.case("the final weights and the folder", [] if of_run.out == newest.out != "" else [f"not as of the last checkpoint: {newest.out}"], of_run)
    exported = [run([train, "--export", work / f"of-{name}", source, *there]) for name, source in (("run", work / "out"), ("step", work / "out" / "checkpoints" / "step-4"))]
    same = all(e.code == 0 for e in exported) and read_tensors(work / "of-run" / "model.safetensors") == read_tensors(work / "of-step" / "model.safetensors")
    report.case("exports of both are one", [] if same else ["they differ"], exported[0])
    alone = run([train, "--export", work / "adapter-of-run", work / "out", "--adapter"])
    report.case("the run's adapter needs no folder", [] if alone.code == 0 else [f"code {alone.code}"], alone)
    for name, command in (("evaluate", ["--evaluate", work / "out", tokens]), ("export", ["--export", work / "merged-run", work / "out"])):
        missing = run([train, *command])
        report.case(f"{name} of the run without the folder", one_line(missing, MODEL, "their folder is not there"), missing)
    commands = {"evaluate": ["--evaluate", step, tokens], "sample": ["--sample", step, "--tokens", "4", "--prompt-ids", "1,2,3"], "export": ["--export", work / "merged", step]}
    for name, command in commands.items():
        missing = run([train, *command])
        report.case(f"{name} without the folder", one_line(missing, MODEL, "their folder is not there"), missing)
        found = run([train, *command, *there])
        report.case(f"{name} with the folder", [] if found.code == 0 else [f"code {found.code}"], found)
    names = set(read_tensors(work / "merged" / "model.safetensors"))
    report.case("the merged model is whole", [] if names == set(read_tensors(folder / "model.safetensors")) else ["other tensors"])
    alone = run([train, "--export", work / "adapter", step, "--adapter"])
    report.case("an adapter needs no folder", [] if alone.code == 0 else [f"code {alone.code}"], alone)
    verified = run([train, "--verify", step])
    report.case("verify without the folder", one_line(verified, MODEL, "their folder is not there"), verified)


def other_folder_cases(train, work, report):
    step = work / "out" / "checkpoints" / "step-2"
    verified = run([train, "--verify", step])
    report.case("verify compares the folder", [] if verified.code == 0 and f" in {work / 'model'}" in verified.out else [f"code {verified.code}"], verified)
    weights = work / "model" / "model.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    for name, result in (("a run", train_run(train, work, 2, out="other", resume=step, **LORA)), ("verify", run([train, "--verify", step])),
                         ("evaluate", run([train, "--evaluate", step, CASES / "qwen2" / "tokens.bin"])),
                         ("evaluate of the run", run([train, "--evaluate", work / "out", CASES / "qwen2" / "tokens.bin"])),
                         ("export of the run", run([train, "--export", work / "no", work / "out"]))):
        report.case(f"{name} refuses a folder with one other bit", one_line(result, MODEL, "frozen weights are not those of"), result)
    weights.write_bytes(good)


def key_cases(train, work, report):
    f32 = copied(work, "qwen2")
    planned = train_run(train, work, folder=f32, out="f32", **LORA)
    problems = [] if 'frozen = "f32"' in (work / "f32" / "config.toml").read_text() else ["auto is not f32"]
    report.case("an f32 folder is held as f32", problems, planned)
    for name, said, sets in (("a dtype without frozen weights", 'precision.frozen = "bf16" has no effect', {"precision__frozen": "bf16"}),
                             ("nothing to leave out", 'checkpoint.frozen = "exclude", and nothing is frozen', {"checkpoint__frozen": "exclude"}),
                             ("adapters and a pattern", "train.frozen does not go with adapters", {**LORA, "train__frozen": '["blocks.0"]'}),
                             ("a pattern of nothing", 'train.frozen: "blocks.9" matches no parameter', {"train__frozen": '["blocks.9"]'}),
                             ("a pattern of all", "train.frozen leaves nothing to train", {"train__frozen": '["*"]'}),
                             ("no pattern", "train.frozen: ", {"train__frozen": '["blocks.{x}"]'}),
                             ("patterns beside a plan", "train.frozen does not go with plan.apply", {"train__frozen": '["blocks.0"]', "plan__apply": '["blocks.*"]'})):
        result = train_run(train, work, out="refused", **sets)
        report.case(name, one_line(result, CONFIG, said) + ["a run directory was made"] * (work / "refused").exists(), result)


def main():
    train = pathlib.Path(sys.argv[1]).resolve()
    report = harness.Report()
    with tempfile.TemporaryDirectory(prefix="frozen.") as place:
        work = pathlib.Path(place).resolve()
        bf16_folder(work)
        same_bits_cases(train, work, report)
        resume_cases(train, work, report)
        other_folder_cases(train, work, report)
        key_cases(train, work, report)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
