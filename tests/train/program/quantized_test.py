#!/usr/bin/env python3
"""A frozen base in 8 and 4 bits, or from a folder that bitsandbytes has saved in 4: training beside it has the bits of training beside its decoded weights in a folder, which is made here from the
definitions, in every strategy; checkpoints, what is merged and evaluated, and what does not go with it. Usage: quantized_test.py TRAIN"""

import array
import hashlib
import json
import pathlib
import re
import shutil
import struct
import sys
import tempfile

import harness
from frozen_test import CASES, CONFIG, LORA, one_line, outcome, run, train_run
from huggingface_test import MODEL, copied, read_tensors, write_tensors

NF4 = (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
       0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0)
PATTERN = {"train__frozen": '["blocks.0", "*.mlp", "token_embedding"]'}


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


BOUNDS = [f32((a + b) / 2) for a, b in zip(NF4, NF4[1:])]


def decoded_nf4(block):
    """What is left of 64 numbers in 4 bits: an operation in f32 after the other, as the definition has them."""
    most = max(map(abs, block))
    inverse = f32(1 / most)
    return [f32(NF4[sum(min(1.0, max(-1.0, f32(x * inverse))) > bound for bound in BOUNDS)] * most) for x in block]


def decoded_int8(block):
    scale = f32(max(map(abs, block)) / 127)
    inverse = f32(1 / scale)
    return [f32(scale * max(-127, min(127, round(f32(x * inverse))))) for x in block]


FORMATS = {"nf4": (64, decoded_nf4), "int8": (256, decoded_int8)}


def decoded_folder(work, given, form, is_decoded=lambda name: True, name="decoded"):
    """The folder with what `form` leaves of the matrices of blocks that are frozen, in f32."""
    size, decode = FORMATS[form]

    def change(tensors):
        for name, (dtype, shape, data) in tensors.items():
            if len(shape) < 2 or ".layers." not in name or not is_decoded(name):
                continue
            numbers = array.array("f", data)
            blocks = [decode(numbers[at:at + size]) for at in range(0, len(numbers), size)]
            tensors[name] = (dtype, shape, array.array("f", [x for block in blocks for x in block]).tobytes())

    folder = work / f"{name}-{form}"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(copied(work, given, change_tensors=change), folder)
    return folder


def same_bits_cases(train, work, report):
    """The losses and weights of a training beside the decoded weights, in each strategy, and at any number of ranks where that is promised."""
    there = CASES / "qwen2"
    of_adapters = {form: decoded_folder(work, "qwen2", form) for form in FORMATS}
    of_pattern = decoded_folder(work, "qwen2", "nf4", lambda name: ".layers.0." in name or ".mlp." in name, "partly")
    for form, keys, strategy, ranks, param in (("nf4", LORA, "zero3", None, "f32"), ("nf4", LORA, "hsdp", 4, "bf16"), ("nf4", LORA, "ddp", 2, "f32"),
                                               ("int8", LORA, "zero3", 2, "bf16"), ("int8", LORA, "nested", 4, "f32"), ("nf4", PATTERN, "zero1", 2, "f32"),
                                               ("nf4", PATTERN, "shard_grad_op", 3, "bf16")):
        sets = {**keys, "shard__strategy": strategy, "precision__param": param, **({"shard__group_size": 2} if strategy in ("hsdp", "nested") else {})}
        wanted = outcome(train_run(train, work, ranks, of_adapters[form] if keys is LORA else of_pattern, **sets), work / "out")
        result = train_run(train, work, ranks, there, precision__quantize=form, **sets)
        problems = [] if isinstance(wanted, tuple) and outcome(result, work / "out") == wanted else [f"wanted {wanted}, got {outcome(result, work / 'out')}"]
        report.case(f"{form} beside {'adapters' if keys is LORA else 'what is trained'} in {param}, {strategy} at {ranks or 1} ranks", problems, result)
    sets = {**LORA, "precision__quantize": "nf4", "train__deterministic": True}
    wanted = outcome(train_run(train, work, None, there, **sets), work / "out")
    for ranks in (2, 3):
        result = train_run(train, work, ranks, there, **sets)
        report.case(f"{ranks} ranks have the bits of one", [] if outcome(result, work / "out") == wanted else [f"wanted {wanted}"], result)


def answer_cases(train, work, report):
    """A checkpoint has the adapters alone; what goes on from it, reads it or merges it decodes the folder's weights again."""
    there, tokens, saved = CASES / "qwen2", CASES / "qwen2" / "tokens.bin", {"checkpoint__every": 2, "checkpoint__keep": 0, "train__deterministic": True}
    sets = {**LORA, **saved, "precision__quantize": "nf4"}
    straight = train_run(train, work, 2, there, **sets)
    wanted, step = outcome(straight, work / "out"), work / "out" / "checkpoints" / "step-2"
    went_on = train_run(train, work, 3, there, out="went-on", resume=step, **sets)
    report.case("a run goes on at another number of ranks", [] if outcome(went_on, work / "went-on")[0] == wanted[0] else ["another end"], went_on)
    train_run(train, work, 2, work / "decoded-nf4", out="in-full", **LORA, **saved)
    commands = {"evaluate": ["--evaluate", "{}", tokens], "sample": ["--sample", "{}", "--tokens", "4", "--prompt-ids", "1,2,3"], "export": ["--export", work / "merged", "{}"]}
    for name, command, place in [(name, command, place) for name, command in commands.items() for place in ("checkpoints/step-2", ".")]:
        said = []
        for out in ("out", "in-full"):
            shutil.rmtree(work / "merged", ignore_errors=True)
            result = run([train, *(str(word).format(work / out / place) for word in command)])
            text = (work / "merged" / "model.safetensors").read_bytes() if name == "export" and result.code == 0 else re.sub(r"\d+ ms|\S+ s\b|\S+/s", "", result.out)
            said.append((result.code, text))
        report.case(f"{name} has the bits of the decoded folder's, {place}", [] if said[0] == said[1] and said[0][0] == 0 and said[0][1] else ["other answers"], result)


def saved_folder_cases(train, work, report):
    """A folder that bitsandbytes has saved: its own decoded values, the same codes again, and one line for what is not as it should be."""
    there, exported = harness.ROOT / "tests" / "data" / "nf4" / "folder", work / "exported"
    result = run([train, "--export", exported, there, "--dtype", "f32"])
    wanted = json.loads((there / "decoded.json").read_text())
    got = {name: hashlib.sha256(data).hexdigest() for name, (_, _, data) in read_tensors(exported / "model.safetensors").items()} if result.code == 0 else {}
    problems = [f"{name} has other values" for name in wanted if got.get(name) != wanted[name]] + ["other tensors"] * (got.keys() != wanted.keys())
    problems += ["it is said to be quantized"] * ("quantization_config" in (exported / "config.json").read_text() if result.code == 0 else False)
    report.case("a folder of bitsandbytes is decoded as bitsandbytes does, with magnitudes in f32 and in 8 bits", problems, result)
    in_full = outcome(train_run(train, work, 2, exported, **LORA), work / "out")
    result = train_run(train, work, 2, there, precision__quantize="nf4", **LORA)
    report.case("it is held in its own codes", [] if isinstance(in_full, tuple) and outcome(result, work / "out") == in_full else ["other results"], result)

    name, state = "model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight.quant_state.bitsandbytes__nf4"
    faults = {"blocks of another size": (state, lambda data: data.replace(b'"blocksize": 64', b'"blocksize": 32'), "has not a blocksize of 64"),
              "a shape that is none": (state, lambda data: data.replace(b"[160, 64]", b"[160, -4]"), "has no shape"),
              "another shape": (state, lambda data: data.replace(b"[160, 64]", b"[64, 160]"), "is (64, 160), not (160, 64)"),
              "a state that is no JSON": (state, lambda data: data[1:] + b" ", "is not valid JSON"),
              "another map": (f"{name}.quant_map", lambda data: data[4:] + data[:4], "has other values than NF4's")}
    for what, (tensor, change, said) in faults.items():
        report.case(what, broken(train, work, there, said, lambda tensors: tensors | {tensor: (*tensors[tensor][:2], change(tensors[tensor][2]))}), None)
    report.case("no magnitudes", broken(train, work, there, "absmax is missing", lambda tensors: {k: t for k, t in tensors.items() if k != f"{name}.absmax"}), None)
    report.case("magnitudes of few blocks", broken(train, work, there, "is 80 U8, not 160 U8",
                                                  lambda tensors: tensors | {f"{name}.absmax": ("U8", [80], tensors[f"{name}.absmax"][2][:80])}), None)
    report.case("FP4", broken(train, work, there, "quantization_config", lambda tensors: None, lambda text: text.replace('"nf4"', '"fp4"')), None)


def broken(train, work, there, said, change_tensors, change_config=lambda text: text):
    """What is wrong with the answer to a copy of the folder with a fault."""
    folder = work / "broken"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(there, folder)
    (folder / "config.json").write_text(change_config((folder / "config.json").read_text()))
    tensors = change_tensors(read_tensors(folder / "model.safetensors"))
    if tensors:
        write_tensors(folder / "model.safetensors", tensors)
    return one_line(train_run(train, work, None, folder, out="refused", **LORA), MODEL, said)


def key_cases(train, work, report):
    for name, said, sets in (("nothing is frozen", 'precision.quantize = "nf4" has no effect: nothing is frozen', {}),
                             ("checkpoints with all", 'does not go with checkpoint.frozen = "include"', {**LORA, "checkpoint__frozen": "include"}),
                             ("no matrix of a block is frozen", 'precision.quantize = "nf4" has no effect: no matrix of a block is frozen',
                              {"train__frozen": '["token_embedding", "*norm*"]'}),
                             ("no folder", "needs model.path", {"train__frozen": '["blocks.0"]', "model__path": "", "model__preset": "tiny"})):
        result = train_run(train, work, folder=CASES / "qwen2", out="refused", precision__quantize="nf4", **sets)
        report.case(name, one_line(result, CONFIG, said) + ["a run directory was made"] * (work / "refused").exists(), result)


def main():
    train = pathlib.Path(sys.argv[1]).resolve()
    report = harness.Report()
    with tempfile.TemporaryDirectory(prefix="quantized.") as place:
        work = pathlib.Path(place).resolve()
        same_bits_cases(train, work, report)
        answer_cases(train, work, report)
        saved_folder_cases(train, work, report)
        key_cases(train, work, report)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
