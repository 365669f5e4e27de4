#!/usr/bin/env python3
"""Makes adapters of the models in tests/data/huggingface with peft, and what peft computes with them: the loss before and the losses of five AdamW
steps of the adapter, and the loss of the merged model behind them.
Usage: make_cases.py DIR [NAME...]   (needs torch, transformers, peft)"""

import json
import pathlib
import sys
import warnings

CASES = {  # name: (model, rank, alpha, targets[, more])
    "gpt2": ("gpt2", 4, 8, ["c_attn", "c_proj"]),
    "llama": ("llama3-rope", 4, 6, ["q_proj", "v_proj", "down_proj"]),
    "qwen2": ("qwen2", 8, 8, "model.layers.1.*(k_proj|up_proj|o_proj)"),
    "patterns": ("llama3-rope", 4, 6, "all-linear",
                 {"use_rslora": True, "rank_pattern": {"k_proj": 2, "layers.1.mlp.up_proj": 9}, "alpha_pattern": {"^model.layers.0.self_attn.q_proj": 12},
                  "modules_to_save": ["embed_tokens", "lm_head"]}),
    "dora": ("llama3-rope", 4, 6, "all-linear", {"use_dora": True, "use_rslora": True, "rank_pattern": {"k_proj": 2}}),
    "dora-gpt2": ("gpt2", 4, 8, ["c_attn", "mlp.c_proj"], {"use_dora": True}),
    "embedding": ("llama3-rope", 4, 6, ["embed_tokens", "q_proj", "down_proj"], {"use_rslora": True, "rank_pattern": {"embed_tokens": 6}}),
    "embedding-gpt2": ("gpt2", 3, 5, ["wte", "c_fc"]),
    "embedding-gemma3": ("gemma3", 4, 8, ["embed_tokens", "v_proj"]),
    "experts": ("mixtral", 4, 6, ["q_proj"], {"target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}),
    "experts-gpt-oss": ("gpt-oss", 3, 5, [], {"target_parameters": ["experts.gate_up_proj", "1.mlp.experts.down_proj"], "use_rslora": True}),
    "experts-down": ("qwen2-moe", 2, 5, ["v_proj"], {"target_parameters": ["experts.down_proj"], "rank_pattern": {"layers.1.mlp.experts.down_proj": 3}}),
    "tied": ("gpt2", 3, 5, ["c_fc"], {"modules_to_save": ["wte", "lm_head", "ln_f"], "ensure_weight_tying": True}),
}
MODELS = pathlib.Path(__file__).resolve().parent.parent / "huggingface"
LENGTH, ROWS = 64, 4


def batch_of(folder, torch):
    import numpy
    stream = torch.from_numpy(numpy.fromfile(folder / "tokens.bin", dtype="<u2").astype("int64"))
    windows = stream[:ROWS * LENGTH + 1].unfold(0, LENGTH + 1, LENGTH)
    return windows[:, :-1], windows[:, 1:]


def loss_of(model, x, y, torch):
    logits = model(x).logits.float()
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))


def five_steps(model, x, y, torch):
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": [p for p in trained if p.dim() > 1]}, {"params": [p for p in trained if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    losses, norm = [], None
    for _ in range(5):
        optimizer.zero_grad()
        loss = loss_of(model, x, y, torch)
        loss.backward()
        found = torch.nn.utils.clip_grad_norm_(trained, 1.0).item()
        norm = found if norm is None else norm
        optimizer.step()
        losses.append(loss.item())
    return losses, norm


def make(out, name):
    import peft
    import torch
    import transformers
    torch.manual_seed(7)
    base, rank, alpha, targets, more = (*CASES[name], {})[:5]
    folder = MODELS / base
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    x, y = batch_of(folder, torch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fan_in_fan_out, which peft sets itself
        model = peft.get_peft_model(model, peft.LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=targets, task_type="CAUSAL_LM", **more)).eval()
    with torch.no_grad():
        for key, value in model.named_parameters():
            if "lora_B" in key or "lora_embedding_A" in key:
                value.copy_(0.05 * torch.randn_like(value))
    to = out / name
    to.mkdir(parents=True, exist_ok=True)
    model.peft_config["default"].base_model_name_or_path = base
    model.save_pretrained(to, safe_serialization=True, save_embedding_layers="auto" if name == "embedding" else False)
    (to / "README.md").unlink(missing_ok=True)
    before = loss_of(model, x, y, torch).item()
    losses, norm = five_steps(model, x, y, torch)
    # peft merges an adapter of an embedding into the head that is tied to it, too.
    is_of_tied = model.config.tie_word_embeddings and any("lora_embedding" in key for key, _ in model.named_parameters())
    merged = loss_of(model if is_of_tied else model.merge_and_unload(), x, y, torch).item()
    want = {"model": base, "peft": peft.__version__, "transformers": transformers.__version__, "torch": torch.__version__, "loss": before,
            "grad_norm": norm, "five_adamw_steps": losses, "merged_loss": merged,
            "steps": "lr 1e-2, betas 0.9 0.95, eps 1e-8, weight decay 0.1, clip 1.0, the 4 rows of tokens.bin"}
    (to / "expected.json").write_text(json.dumps(want, indent=1) + "\n")
    print(name, before, losses, merged)


def weighted(out, weights):
    """The loss of a model to whose weights several adapters are added, each times a weight: what peft says that each changes."""
    import peft
    import torch
    import transformers
    folder = MODELS / CASES[next(iter(weights))][0]
    load = lambda: transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    model, (x, y) = load(), batch_of(folder, torch)
    for name, weight in weights.items():
        for path, module in peft.PeftModel.from_pretrained(load(), out / name).base_model.model.named_modules():
            if hasattr(module, "get_delta_weight"):
                with torch.no_grad():
                    model.get_submodule(path).weight += weight * module.get_delta_weight("default")
    with torch.no_grad():
        loss = loss_of(model, x, y, torch).item()
    (out / "weighted.json").write_text(json.dumps({"model": folder.name, "adapters": weights, "peft": peft.__version__, "loss": loss}, indent=1) + "\n")
    print("weighted", loss)


if __name__ == "__main__":
    for one in sys.argv[2:] or CASES:
        make(pathlib.Path(sys.argv[1]), one)
    if len(sys.argv) == 2:
        weighted(pathlib.Path(sys.argv[1]), {"llama": 0.7, "embedding": -0.4})
