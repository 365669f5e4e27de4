#!/usr/bin/env python3
"""Mixtures of experts in the form of Hugging Face folders: what transformers has computed of them is in tests/data/huggingface (huggingface_test.py).
Usage: mixtures_test.py TRAIN"""

import json
import pathlib
import random
import shutil
import struct
import sys
import tempfile

import harness
from huggingface_test import CASES, CONFIG, answers, compare, configure, copied, in_and_out, read_all, refused, run, trains

FAMILIES = ("mixtral", "qwen2-moe", "qwen3-moe", "olmoe", "gpt-oss")
OWN = {"gpt-oss": {"train__weight_decay": 0}}  # what its expected.json has otherwise


def floats(tensor):
    return struct.unpack(f"<{len(tensor[2]) // 4}f", tensor[2])


def losses_of(out):
    return [m["loss"] for m in harness.read_metrics(out)]


def balance_case(train, work, report):
    """Of three blocks the second has no experts, and one of three ranks is without samples in the second round."""
    shutil.rmtree(work / "out", ignore_errors=True)
    result = run([train, configure(work, CASES / "qwen3-moe"), "--set", "model.balance_loss=0.1", "--set", "model.z_loss=0.01", "--set", "comm.ranks=3",
                  "--set", "train.recompute=block"])
    experts = harness.read_metrics(work / "out")[-1].get("experts", {}) if result.code == 0 else {}
    lists = [experts.get(name, []) for name in ("load_max", "load_min", "load_entropy", "balance_loss")]
    problems = [] if experts.get("layers") == [0, 2] and all(len(values) == 2 for values in lists) else [f"experts are {experts}"]
    for most, least, entropy, balance in zip(*lists, strict=False):
        problems += [] if 6 >= most > 1 > least >= 0 and 0.5 < entropy < 1 and 0.9 < balance < 2 else [f"of one: {most}, {least}, {entropy}, {balance}"]
    expected = json.loads((CASES / "qwen3-moe" / "expected.json").read_text())["five_adamw_steps"]["losses"]
    told = losses_of(work / "out") if result.code == 0 else []
    problems += [] if told and abs(told[0] - expected[0]) < 1e-4 and abs(told[4] - expected[4]) > 1e-5 else [f"losses are {told}"]
    report.case("experts are balanced, and metrics say how they are", problems, result)


def adapter_cases(train, work, report):
    shutil.rmtree(work / "out", ignore_errors=True)
    result = run([train, configure(work, CASES / "olmoe"), "--set", "lora.rank=2", "--set", "lora.targets=self_attn.*", "--set", "train.lr=1e-2"])
    told = losses_of(work / "out") if result.code == 0 else []
    report.case("adapters beside experts", [] if len(told) == 5 and told[4] < told[0] else [f"losses are {told}"], result)


def dealt_cases(train, work, report):
    """Experts over ranks: steps are transformers', under mpirun and as threads; a run goes on with others, and exports the same."""
    trains(train, work, report, "mixtral", 4, "experts over 2 ranks and halves of them on 2", experts__parallel=2)
    trains(train, work, report, "olmoe", name="experts over 4 ranks, all tokens to all", comm__ranks=4, experts__parallel=4, experts__dispatcher="all_gather",
           shard__layout="per_parameter")
    trains(train, work, report, "qwen2-moe", 4, "experts over 2 ranks, twice, of the second block alone", experts__parallel=2, experts__group_size=1,
           experts__apply="blocks.1.*", train__recompute='"block"', shard__strategy="hsdp", shard__group_size=2)
    trains(train, work, report, "qwen3-moe", 2, "experts over 2 ranks, bf16", experts__parallel=2, precision__param="bf16")
    shutil.rmtree(work / "out", ignore_errors=True)
    config = configure(work, CASES / "olmoe")
    first = run([train, config, "--set", "train.steps=3", "--set", "checkpoint.every=3", "--set", "experts.parallel=2"], 4)
    shutil.copytree(work / "out", work / "begun") if first.code == 0 else None
    for ranks, parallel in ((4, 4), (3, 1)):
        shutil.rmtree(work / "out", ignore_errors=True)
        shutil.copytree(work / "begun", work / "out") if first.code == 0 else None
        result = run([train, config, "--resume", "latest", "--set", "train.steps=5", "--set", f"experts.parallel={parallel}", "--set",
                      f"run.export={work / f'end-{parallel}'}"], ranks)
        report.case(f"experts over 2 of 4 ranks, then {parallel} of {ranks}", compare(result, work / "out", "olmoe") if first.code == 0 else ["not begun"], result)
    one, other = (read_all(work / f"end-{parallel}") for parallel in (4, 1))
    far = max((abs(a - b) for name in one for a, b in zip(floats(one[name]), floats(other[name]), strict=True)), default=1)
    report.case("and the same model is exported", [] if one.keys() == other.keys() and far < 1e-5 else [f"largest difference {far}"], result)
    result = run([train, "evaluate", work / "out", CASES / "olmoe" / "tokens.bin", "--set", "train.sequence=64", "--set", "experts.parallel=2"], 2)
    alone = run([train, "evaluate", work / "out", CASES / "olmoe" / "tokens.bin", "--set", "train.sequence=64"])
    losses = [float(r.out.split()[1]) if r.code == 0 else None for r in (result, alone)]
    report.case("experts over ranks in an evaluation", [] if None not in losses and abs(losses[0] - losses[1]) < 1e-5 else [f"losses {losses}"], result)
    result = run([train, "plan", config, "--ranks", "4", "--set", "experts.parallel=2", "--overwrite"])
    problems = [f"no {word!r}" for word in ("experts: over 2 ranks (ep), those of each sharded over 2 (efsdp), in 1 replica (edp)",
                                            "tokens by all_to_all: room for 256 rows of 32 a mixture, 128 on average") if word not in result.out]
    report.case("a plan names the axes", problems, result)
    refused(train, work, report, "experts over 2 of 3 ranks", CASES / "mixtral", ["experts.parallel 2 does not divide the job's 3 ranks"], CONFIG, comm__ranks=3,
            experts__parallel=2)
    refused(train, work, report, "experts that are not there", CASES / "mixtral", ['experts.apply: "blocks.7.mlp.experts" matches no experts', "blocks.{*}.mlp.experts"],
            CONFIG, comm__ranks=2, experts__parallel=2, experts__apply="blocks.7.mlp.experts")


def quantized(tensors):
    """The case's experts as MXFP4 has them, (experts, rows, blocks, 16) and (experts, rows, blocks), drawn; and as the numbers that these stand for."""
    draw = random.Random(7)
    blocks, plain = dict(tensors), dict(tensors)
    for name, (_, shape, _) in tensors.items():
        if not name.endswith("_proj") or "experts" not in name:
            continue
        experts, columns, rows = shape
        codes = [draw.randrange(16) for _ in range(experts * rows * columns)]
        scales = [draw.randrange(118, 124) for _ in range(len(codes) // 32)]
        values = [(-1 if code & 8 else 1) * (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)[code & 7] * 2.0 ** (scales[i // 32] - 127) for i, code in enumerate(codes)]
        turned = [values[(e * rows + row) * columns + column] for e in range(experts) for column in range(columns) for row in range(rows)]
        plain[name] = ("F32", shape, struct.pack(f"<{len(turned)}f", *turned))
        del blocks[name]
        blocks[f"{name}_blocks"] = ("U8", [experts, rows, columns // 32, 16], bytes(low | high << 4 for low, high in zip(codes[::2], codes[1::2])))
        blocks[f"{name}_scales"] = ("U8", [experts, rows, columns // 32], bytes(scales))
    return blocks, plain


def mxfp4_case(train, work, report):
    """A folder in MXFP4 is the one with its numbers, and is exported as that one, in bf16 if nothing else is said."""
    tensors = read_all(CASES / "gpt-oss")
    folders = []
    for name, own in zip(("blocks", "numbers"), quantized(tensors), strict=True):
        change = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}} if name == "blocks" else {}
        folders.append(work / name)
        copied(work, "gpt-oss", lambda config: config.update(change) or config.pop("dtype"), lambda _: own).rename(folders[-1])
    exported = [work / f"of-{folder.name}" for folder in folders]
    results = [run([train, "--export", to, folder, *more]) for to, folder, more in zip(exported, folders, ([], ["--dtype", "bf16"]), strict=True)]
    same = all(r.code == 0 for r in results) and read_all(exported[0]) == read_all(exported[1])
    config = json.loads((exported[0] / "config.json").read_text()) if same else {}
    problems = [] if same else ["the weights differ"]
    problems += [] if config.get("dtype") == "bfloat16" and "quantization_config" not in config else [f"config.json is {config}"]
    report.case("a folder in MXFP4 is exported in bf16", problems, results[0])
    metrics = []
    for folder, ranks in zip(folders, (3, 1), strict=True):
        shutil.rmtree(work / "out", ignore_errors=True)
        result = run([train, configure(work, folder, case="gpt-oss"), "--set", f"comm.ranks={ranks}", "--set", "train.deterministic=true"])
        metrics.append([(m["loss"], m["grad_norm"]) for m in harness.read_metrics(work / "out")] if result.code == 0 else [])
    report.case("and trains as the one in numbers, bit for bit", [] if len(metrics[0]) == 5 and metrics[0] == metrics[1] else [f"metrics {metrics}"], result)


def gpt_oss_cases(train, work, report):
    own = OWN["gpt-oss"]
    trains(train, work, report, "gpt-oss", name="recomputed, experts over 2 of 4 ranks", comm__ranks=4, experts__parallel=2, train__recompute='"block"', **own)
    trains(train, work, report, "gpt-oss", name="experts over 4 ranks", comm__ranks=4, experts__parallel=4, shard__layout="per_parameter", **own)
    trains(train, work, report, "gpt-oss", name="bf16", comm__ranks=2, precision__param="bf16", train__recompute='"attention"', **own)
    mxfp4_case(train, work, report)


def refusal_cases(train, work, report):
    for case, words in (("qwen3-moe", "some of its layers are no mixtures"), ("gemma3", "layers without a window are not every sixth")):
        refused(train, work, report, f"{case} as GGUF", CASES / case, ["llama.cpp would compute another model: " + words], run__export=work / "other.gguf")
    for case, changes, words in (
        ("mixtral", {"output_router_logits": True}, "output_router_logits"), ("mixtral", {"num_local_experts": 2**31}, "model.experts"),
        ("qwen2-moe", {"qkv_bias": False}, "qkv_bias"), ("qwen2-moe", {"use_sliding_window": True}, "use_sliding_window"),
        ("qwen3-moe", {"num_experts_per_tok": 7}, "a token cannot have 7 of 6 experts"), ("qwen3-moe", {"mlp_only_layers": [-1]}, "mlp_only_layers"),
        ("qwen3-moe", {"num_experts": 5}, "num_local_experts = 6"), ("qwen3-moe", {"decoder_sparse_step": 2}, "missing"), ("olmoe", {"clip_qkv": 8.0}, "clip_qkv"),
        ("gpt-oss", {"swiglu_limit": 5.0}, "swiglu_limit = 5.0"), ("gpt-oss", {"swiglu_alpha": 1.0}, "swiglu_alpha"), ("gpt-oss", {"attention_bias": False}, "attention_bias"),
        ("gpt-oss", {"layer_types": ["full_attention"]}, "layer_types"), ("gpt-oss", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ("gpt-oss", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4}}, "original_max_position_embeddings = 4"),
        ("gpt-oss", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5}}, "attention_factor = 1.5"),
        ("gpt-oss", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0}}, "mscale"),
    ):
        refused(train, work, report, f"{case} with {json.dumps(changes)}", copied(work, case, lambda config: config.update(changes)), [words])


def main():
    train = pathlib.Path(sys.argv[1]).resolve()
    report = harness.Report()
    with tempfile.TemporaryDirectory() as place:
        work = pathlib.Path(place)
        for case, ranks in zip(FAMILIES, (2, 3, 2, 3, 3), strict=True):
            trains(train, work, report, case, **OWN.get(case, {}))
            trains(train, work, report, case, name=f"{ranks} ranks as threads", comm__ranks=ranks, **OWN.get(case, {}))
            answers(train, work, report, case, None)
            in_and_out(train, work, report, case)
        trains(train, work, report, "mixtral", name="blocks recomputed, per parameter", train__recompute='"block"', shard__layout="per_parameter", comm__ranks=2)
        balance_case(train, work, report)
        adapter_cases(train, work, report)
        dealt_cases(train, work, report)
        gpt_oss_cases(train, work, report)
        refusal_cases(train, work, report)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
