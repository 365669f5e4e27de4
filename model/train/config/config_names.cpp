#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "model/train/config/config_schema.h"
#include "runtime/base/name_pattern.h"

namespace zs {
namespace {

using Foreign = std::pair<std::string_view, std::string_view>;
constexpr std::array kForeign = {
    Foreign{"num_train_epochs", "train.epochs"},
    Foreign{"num_epochs", "train.epochs"},
    Foreign{"learning_rate", "train.lr"},
    Foreign{"max_steps", "train.steps"},
    Foreign{"max_iters", "train.steps"},
    Foreign{"num_steps", "train.steps"},
    Foreign{"batch_size", "train.global_batch, the sequences of a step over all ranks"},
    Foreign{"train_batch_size", "train.global_batch, the sequences of a step over all ranks"},
    Foreign{"per_device_train_batch_size", "train.micro_batch, the sequences that a rank computes at a time"},
    Foreign{"micro_batch_size", "train.micro_batch, the sequences that a rank computes at a time"},
    Foreign{"gradient_accumulation_steps", "train.global_batch: ranks x train.micro_batch x that"},
    Foreign{"warmup_steps", "train.warmup"},
    Foreign{"warmup_ratio", "train.warmup, in steps"},
    Foreign{"lr_scheduler_type", "train.schedule"},
    Foreign{"lr_scheduler", "train.schedule"},
    Foreign{"max_grad_norm", "train.clip"},
    Foreign{"gradient_clip_val", "train.clip"},
    Foreign{"grad_clip", "train.clip"},
    Foreign{"max_seq_length", "train.sequence"},
    Foreign{"max_length", "train.sequence"},
    Foreign{"seq_len", "train.sequence"},
    Foreign{"sequence_len", "train.sequence"},
    Foreign{"block_size", "train.sequence"},
    Foreign{"optim", "train.optimizer"},
    Foreign{"adam_beta1", "train.beta1"},
    Foreign{"adam_beta2", "train.beta2"},
    Foreign{"adam_epsilon", "train.eps"},
    Foreign{"bf16", "precision.param = \"bf16\""},
    Foreign{"fp16", "precision.param = \"bf16\""},
    Foreign{"dtype", "precision.param"},
    Foreign{"torch_dtype", "precision.param"},
    Foreign{"mixed_precision", "precision.param"},
    Foreign{"gradient_checkpointing", "train.recompute = \"block\""},
    Foreign{"activation_checkpointing", "train.recompute = \"block\""},
    Foreign{"output_dir", "run.dir"},
    Foreign{"save_steps", "checkpoint.every"},
    Foreign{"save_total_limit", "checkpoint.keep"},
    Foreign{"load_best_model_at_end", "checkpoint.keep_best"},
    Foreign{"eval_steps", "run.validate_every"},
    Foreign{"eval_strategy", "run.validate_every"},
    Foreign{"early_stopping_patience", "train.patience"},
    Foreign{"resume_from_checkpoint", "the option --resume"},
    Foreign{"model_name_or_path", "model.path, a folder"},
    Foreign{"model_name", "model.path, a folder"},
    Foreign{"pretrained", "model.path, a folder"},
    Foreign{"vocab_size", "model.vocab"},
    Foreign{"hidden_size", "model.width"},
    Foreign{"n_embd", "model.width"},
    Foreign{"intermediate_size", "model.hidden"},
    Foreign{"num_hidden_layers", "model.layers"},
    Foreign{"n_layer", "model.layers"},
    Foreign{"num_attention_heads", "model.heads"},
    Foreign{"n_head", "model.heads"},
    Foreign{"num_key_value_heads", "model.kv_heads"},
    Foreign{"max_position_embeddings", "model.context"},
    Foreign{"num_experts", "model.experts"},
    Foreign{"num_local_experts", "model.experts"},
    Foreign{"num_experts_per_tok", "model.experts_per_token"},
    Foreign{"moe_intermediate_size", "model.expert_hidden"},
    Foreign{"shared_expert_intermediate_size", "model.shared_expert_hidden"},
    Foreign{"norm_topk_prob", "model.norm_topk"},
    Foreign{"mlp_only_layers", "model.dense_layers"},
    Foreign{"rope_local_base_freq", "model.local_rotary_base"},
    Foreign{"layer_types", "model.global_layers"},
    Foreign{"tp_size", "tensor.parallel"},
    Foreign{"tensor_parallel_size", "tensor.parallel"},
    Foreign{"tensor_parallel_degree", "tensor.parallel"},
    Foreign{"tensor_model_parallel_size", "tensor.parallel"},
    Foreign{"router_aux_loss_coef", "model.balance_loss"},
    Foreign{"dataset", "data.train"},
    Foreign{"dataset_name", "data.train, files or folders"},
    Foreign{"train_file", "data.train"},
    Foreign{"dataset_text_field", "data.field"},
    Foreign{"text_column", "data.field"},
    Foreign{"completion_only_loss", "data.prompt_field"},
    Foreign{"train_on_inputs", "data.prompt_field"},
    Foreign{"add_special_tokens", "data.special_tokens"},
    Foreign{"lora_r", "lora.rank"},
    Foreign{"r", "lora.rank"},
    Foreign{"lora_alpha", "lora.alpha"},
    Foreign{"lora_dropout", "lora.dropout"},
    Foreign{"use_rslora", "lora.rslora"},
    Foreign{"use_dora", "lora.dora"},
    Foreign{"target_modules", "lora.targets"},
    Foreign{"lora_target_modules", "lora.targets"},
    Foreign{"sharding_strategy", "shard.strategy"},
    Foreign{"fsdp", "shard.strategy"},
    Foreign{"zero_stage", "shard.strategy"},
};

}  // namespace

std::optional<std::string_view> renamed_config_key(std::string_view name) {
  using Renamed = std::pair<std::string_view, std::string_view>;
  static constexpr std::array kRenamed = {Renamed{"comm.shadow_ms", "comm.race_check_ms"},
                                          Renamed{"shard.keep_ends", "shard.keep_root_unsharded"}};
  for (const auto& [before, now] : kRenamed)
    if (name == before) return now;
  return std::nullopt;
}

std::optional<std::string_view> foreign_config_key(std::string_view name) {
  const std::string_view leaf = name.substr(name.rfind('.') + 1);
  for (const auto& [theirs, ours] : kForeign)
    if (leaf == theirs) return ours;
  return std::nullopt;
}

std::optional<std::string_view> nearest_config_key(std::string_view name) {
  constexpr std::size_t kLongestName = 80;  // a longer one is no misspelling, and the distance costs its square
  if (name.empty() || name.size() > kLongestName) return std::nullopt;
  const auto leaf_of = [](std::string_view key) { return key.substr(key.rfind('.') + 1); };
  std::optional<std::string_view> nearest;
  std::size_t best = name.size();
  for (const ConfigKey& key : config_keys()) {
    // The right leaf in the wrong table counts as near as well: `steps` for `train.steps`.
    const std::size_t whole = edit_distance(name, key.name);
    const std::size_t leaf = edit_distance(leaf_of(name), leaf_of(key.name));
    const std::size_t distance = std::min(whole, leaf + 1);
    const bool is_near = whole <= std::max<std::size_t>(2, name.size() / 4) || leaf <= leaf_of(name).size() / 4;
    if (is_near && distance < best) best = distance, nearest = key.name;
  }
  return nearest;
}

}  // namespace zs
