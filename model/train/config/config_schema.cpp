#include "model/train/config/config_schema.h"

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <utility>

#include "model/families/family.h"
#include "model/train/config/toml_text.h"

namespace zs {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr ConfigRange between(double min, double max) { return {min, max, false, false}; }
constexpr ConfigRange positive(double max) { return {0, max, true, false}; }
constexpr ConfigRange below_one{0, 1, false, true};
constexpr ConfigRange kDropoutPart{-1, 1, false, true};
constexpr ConfigRange any{};

// The upper bounds are sanity limits: wide enough for any real run, small enough that no product of two of them
// overflows.
constexpr std::array kKeys = {
    ConfigKey{"name", [](Config& c) -> ConfigSlot { return &c.name; }, any, "",
              "the configuration file's name without its ending",
              "Name of the run; letters, digits, `.`, `_` and `-`."},
    ConfigKey{"device", [](Config& c) -> ConfigSlot { return &c.device; }, any, "auto|cpu|cuda", "",
              "Where to compute: `auto` is `cuda` where every rank finds a driver, cuBLASLt and a GPU of compute "
              "capability 8.0 or later, else `cpu`; a GPU without a loadable cuBLASLt is an error. `cuda` has not "
              "run on a real GPU yet (docs/gpu.md)."},

    ConfigKey{"model.family",
              [](Config& c) -> ConfigSlot { return &c.model.family; },
              any,
              {},
              "the preset's, or `\"gpt2\"`",
              "Architecture."},
    ConfigKey{"model.preset",
              [](Config& c) -> ConfigSlot { return &c.model.preset; },
              any,
              {},
              "",
              "Published sizes, of the family that the table below names; the keys below override it."},
    ConfigKey{"model.path", [](Config& c) -> ConfigSlot { return &c.model.path; }, any, "", "",
              "Folder of a model as transformers writes it: config.json gives the keys below, its safetensors files "
              "the weights (docs/huggingface.md). A key that is given as well must be equal."},
    ConfigKey{"model.layers", [](Config& c) -> ConfigSlot { return &c.model.layers; }, between(1, 1024), "",
              "the preset's", "Transformer blocks."},
    ConfigKey{"model.heads", [](Config& c) -> ConfigSlot { return &c.model.heads; }, between(1, 1024), "",
              "the preset's", "Attention heads; must divide `model.width`."},
    ConfigKey{"model.width", [](Config& c) -> ConfigSlot { return &c.model.width; }, between(1, 65536), "",
              "the preset's", "Size of the residual stream."},
    ConfigKey{"model.context", [](Config& c) -> ConfigSlot { return &c.model.context; }, between(1, 1048576), "",
              "the preset's", "Positions that the model knows."},
    ConfigKey{"model.vocab", [](Config& c) -> ConfigSlot { return &c.model.vocab; }, between(1, 4194304), "",
              "256 for text; for tokens the preset's, else that of the family's published models",
              "Token ids are 0 to `model.vocab` - 1; at least 256 for text."},
    ConfigKey{"model.activation", [](Config& c) -> ConfigSlot { return &c.model.activation; }, any,
              "gelu_tanh|gelu_erf", "", "GELU by its tanh approximation (as GPT-2 was published) or exactly."},
    ConfigKey{"model.kv_heads", [](Config& c) -> ConfigSlot { return &c.model.kv_heads; }, between(0, 1024), "",
              "the preset's, or `model.heads`",
              "Key and value heads, each shared by as many query heads; must divide `model.heads`."},
    ConfigKey{"model.hidden", [](Config& c) -> ConfigSlot { return &c.model.hidden; }, between(0, 1048576), "",
              "the preset's, or 8/3 of `model.width`, up to a multiple of 128",
              "Hidden elements of the MLP; 0: the default, for `gpt2` 4 x `model.width`."},
    ConfigKey{"model.rotary_base", [](Config& c) -> ConfigSlot { return &c.model.rotary_base; }, between(1, 1e12), "",
              "the preset's, or `10000.0`", "Base of the angles that queries and keys turn by."},
    ConfigKey{"model.tied_head", [](Config& c) -> ConfigSlot { return &c.model.tied_head; }, any, "",
              "the preset's, else `true` for `gpt2`, `false` for the others",
              "The head is the token embedding, not a matrix of its own."},
    ConfigKey{"model.norm_eps", [](Config& c) -> ConfigSlot { return &c.model.norm_eps; }, positive(1), "",
              "the preset's, or the family's", "What the norms add to a variance, or to a mean square."},
    ConfigKey{"model.head_dim", [](Config& c) -> ConfigSlot { return &c.model.head_dim; }, between(0, 4096), "",
              "the preset's, or the family's", "Elements of a head; 0: `model.width` / `model.heads`."},
    ConfigKey{"model.window", [](Config& c) -> ConfigSlot { return &c.model.window; }, between(0, 1048576), "",
              "the preset's, or `0`", "Tokens that a token sees, itself the last of them; 0: all before it."},
    ConfigKey{"model.rotary_scaling", [](Config& c) -> ConfigSlot { return &c.model.rotary_scaling; }, any,
              "none|linear|llama3", "the preset's, or `\"none\"`",
              "How angles are changed for a longer context. `linear`: all are divided by `model.rotary_factor`. "
              "`llama3`, as Llama 3.1 has it: "
              "only those that turn slowly, and what follows says which."},
    ConfigKey{
        "model.rotary_factor", [](Config& c) -> ConfigSlot { return &c.model.rotary_factor; }, between(1, 1e6), "",
        "the preset's, or `8.0`",
        "Divides angles; without effect where `model.rotary_scaling` is `none`, as what follows but for `llama3`."},
    ConfigKey{"model.rotary_low", [](Config& c) -> ConfigSlot { return &c.model.rotary_low; }, positive(1e6), "",
              "the preset's, or `1.0`",
              "An angle that turns less often than that in `model.rotary_context` positions is divided."},
    ConfigKey{"model.rotary_high", [](Config& c) -> ConfigSlot { return &c.model.rotary_high; }, positive(1e6), "",
              "the preset's, or `4.0`", "One that turns more often stays; what lies between is changed in part."},
    ConfigKey{"model.rotary_context", [](Config& c) -> ConfigSlot { return &c.model.rotary_context; },
              between(1, 1048576), "", "the preset's, or `8192`", "Positions that the model was first trained with."},
    ConfigKey{
        "model.dropout", [](Config& c) -> ConfigSlot { return &c.model.dropout; }, below_one, "",
        "0.0, or what `config.json` says",
        "Probability with which training drops an element: of the sum of embeddings, of attention's probabilities, "
        "and of what attention and the MLP add to the residual stream. The three keys below say it of one of them. "
        "These four may be changed when a run goes on, and beside `model.path`."},
    ConfigKey{"model.embedding_dropout", [](Config& c) -> ConfigSlot { return &c.model.embedding_dropout; },
              kDropoutPart, "", "", "That of the sum of embeddings; -1: `model.dropout`."},
    ConfigKey{"model.attention_dropout", [](Config& c) -> ConfigSlot { return &c.model.attention_dropout; },
              kDropoutPart, "", "",
              "That of attention's probabilities; -1: `model.dropout`. Above 0 attention keeps `train.sequence` "
              "squared of them for each head, and takes longer."},
    ConfigKey{"model.residual_dropout", [](Config& c) -> ConfigSlot { return &c.model.residual_dropout; }, kDropoutPart,
              "", "", "That of what is added to the residual stream; -1: `model.dropout`."},

    ConfigKey{"lora.rank", [](Config& c) -> ConfigSlot { return &c.lora.rank; }, between(0, 65536), "",
              "0; with `lora.path` the adapter's",
              "Above 0: the model stays as it is, and adapters of this rank are trained beside it "
              "(docs/fine-tuning.md)."},
    ConfigKey{"lora.alpha", [](Config& c) -> ConfigSlot { return &c.lora.alpha; }, between(0, 1e6), "",
              "`lora.rank`; with `lora.path` the adapter's",
              "What the adapters add is multiplied by `lora.alpha` / `lora.rank`; 0: the default."},
    ConfigKey{"lora.targets", [](Config& c) -> ConfigSlot { return &c.lora.targets; }, any, "",
              "required with `lora.rank`; with `lora.path` the adapter's",
              "Which products of the blocks have an adapter, by their names in transformers: `\"q_proj\"` is that of "
              "every block, `\"layers.0.*\"` are all of the first. `*` in a pattern matches any part of a name."},
    ConfigKey{"lora.dropout", [](Config& c) -> ConfigSlot { return &c.lora.dropout; }, between(0, 0), "", "",
              "Must be 0: adapters have no dropout."},
    ConfigKey{"lora.path", [](Config& c) -> ConfigSlot { return &c.lora.path; }, any, "", "",
              "Folder of an adapter as peft writes it: its adapter_config.json gives the keys above, and training "
              "continues from its weights. A key that is given as well must be equal."},
    ConfigKey{"lora.export", [](Config& c) -> ConfigSlot { return &c.lora.export_to; }, any, "", "",
              "A new folder into which the end of the run writes the adapter as peft loads it; empty: none. "
              "`run.export` writes the model with the adapter in its weights."},

    ConfigKey{"data.kind", [](Config& c) -> ConfigSlot { return &c.data.kind; }, any, "text|tokens", "",
              "`text`: any files as bytes. `tokens`: ids, in llm.c's `.bin` or, without a header, as nanoGPT writes "
              "them. Files that are "
              "evidently of another kind are refused."},
    ConfigKey{"data.token_bytes", [](Config& c) -> ConfigSlot { return &c.data.token_bytes; }, between(2, 4), "", "",
              "Bytes of an id in token files without a header: 2 (uint16), or 4 (uint32, or int32), which "
              "`model.vocab` above 65536 needs. "
              "llm.c's header says it itself."},
    ConfigKey{"data.tokenizer", [](Config& c) -> ConfigSlot { return &c.data.tokenizer; }, any, "", "",
              "`tokenizer.json` or `tokenizer.model`, or a folder with one: `text` is what it makes of the files, "
              "and samples are printed as text. A relative path is looked up in the current folder, then beside the "
              "configuration file. docs/tokenizer.md."},
    ConfigKey{
        "data.format", [](Config& c) -> ConfigSlot { return &c.data.format; }, any, "stream|lines|files|jsonl", "",
        "What a document is. `stream`: nothing, all text is one sequence. `lines`: each line; `files`: each file; "
        "`jsonl`: each line, a JSON object with the text in `data.field`. Documents are packed into sequences "
        "whole; none sees another, and positions begin anew with each. docs/data.md."},
    ConfigKey{"data.field", [](Config& c) -> ConfigSlot { return &c.data.field; }, any, "", "",
              "Field of the JSON objects that has the text; `jsonl` only."},
    ConfigKey{"data.prompt_field", [](Config& c) -> ConfigSlot { return &c.data.prompt_field; }, any, "", "",
              "Field that has a prompt, which stands before the text and whose tokens are no targets; `jsonl` only. "
              "Empty: none."},
    ConfigKey{"data.overlong", [](Config& c) -> ConfigSlot { return &c.data.overlong; }, any, "refuse|truncate|split",
              "",
              "What becomes of a document of more than `train.sequence` tokens: an error that names it, its first "
              "tokens alone, or parts, each a document."},
    ConfigKey{"data.train", [](Config& c) -> ConfigSlot { return &c.data.train; }, any, "", "required",
              "Files, globs or folders. Relative ones are looked up in the current folder, beside the configuration "
              "file, then in the build folder. `~` and `$NAME` work as in a shell at the start of a part of the "
              "path."},
    ConfigKey{"data.weights", [](Config& c) -> ConfigSlot { return &c.data.weights; }, positive(1e6), "",
              "none: all of `data.train` is one source",
              "One number for each entry of `data.train`, which is then a source, read in its own order, with that "
              "share of the sequences. docs/data.md."},
    ConfigKey{"data.validation", [](Config& c) -> ConfigSlot { return &c.data.validation; }, any, "",
              "the end of `data.train`", "The same, for validation."},
    ConfigKey{
        "data.validation_fraction", [](Config& c) -> ConfigSlot { return &c.data.validation_fraction; },
        between(0, 0.9), "", "",
        "Part at the end of `data.train` that is kept for validation; without effect when `data.validation` is set."},

    ConfigKey{"train.steps", [](Config& c) -> ConfigSlot { return &c.train.steps; }, between(1, 1e9), "", "required",
              "Optimizer steps."},
    ConfigKey{"train.global_batch", [](Config& c) -> ConfigSlot { return &c.train.global_batch; }, between(1, 1048576),
              "", "required", "Sequences a step, over all ranks; a multiple of `train.micro_batch` x ranks."},
    ConfigKey{"train.micro_batch", [](Config& c) -> ConfigSlot { return &c.train.micro_batch; }, between(1, 65536), "",
              "", "Sequences that one rank computes at a time."},
    ConfigKey{"train.sequence", [](Config& c) -> ConfigSlot { return &c.train.sequence; }, between(1, 1048576), "",
              "`model.context`", "Tokens a sequence; at most `model.context`."},
    ConfigKey{"train.lr", [](Config& c) -> ConfigSlot { return &c.train.lr; }, positive(1e12), "", "",
              "Peak learning rate."},
    ConfigKey{"train.min_lr_ratio", [](Config& c) -> ConfigSlot { return &c.train.min_lr_ratio; }, between(0, 1), "",
              "", "The schedule ends at this part of `train.lr`."},
    ConfigKey{"train.warmup", [](Config& c) -> ConfigSlot { return &c.train.warmup; }, between(0, 1e9), "", "",
              "Steps of linear warm-up; a shorter run ends within it."},
    ConfigKey{"train.schedule", [](Config& c) -> ConfigSlot { return &c.train.schedule; }, any,
              "cosine|linear|constant|wsd", "",
              "Learning rate after the warm-up; `wsd`: constant, then a decay over the last `train.decay`."},
    ConfigKey{"train.decay", [](Config& c) -> ConfigSlot { return &c.train.decay; }, positive(1), "", "",
              "Part of all steps, the last ones, over which `wsd` decays. Beside `train.warmup` it must fit into "
              "`train.steps`."},
    ConfigKey{"train.clip", [](Config& c) -> ConfigSlot { return &c.train.clip; }, between(0, 1e6), "", "",
              "Largest global norm of the gradient; 0 does not clip."},
    ConfigKey{"train.optimizer", [](Config& c) -> ConfigSlot { return &c.train.optimizer; }, any,
              "adamw|adamw8bit|lion|muon|sgd", "",
              "`adamw` (Loshchilov and Hutter 2019); `adamw8bit`, the same with moments of 8 bits (Dettmers et al. "
              "2022); `lion` (Chen et al. 2023); `muon` (Jordan et al. 2024) for the "
              "matrices that `train.muon` names, and AdamW for the rest; or `sgd`, stochastic gradient descent with a "
              "momentum (docs/optimizers.md)."},
    ConfigKey{"train.weight_decay", [](Config& c) -> ConfigSlot { return &c.train.weight_decay; }, between(0, 100), "",
              "`0.1`, with `sgd` `0.0`",
              "Weight decay, decoupled from the gradient but with `sgd`; not for norms and biases."},
    ConfigKey{"train.beta1", [](Config& c) -> ConfigSlot { return &c.train.beta1; }, below_one, "", "",
              "AdamW's first moment; of Lion, how much of a step's direction is the momentum's."},
    ConfigKey{"train.beta2", [](Config& c) -> ConfigSlot { return &c.train.beta2; }, below_one, "",
              "`0.95`, with `lion` `0.99`", "AdamW's second moment; of Lion, its momentum."},
    ConfigKey{"train.eps", [](Config& c) -> ConfigSlot { return &c.train.eps; }, positive(1), "", "",
              "AdamW's epsilon."},
    ConfigKey{"train.momentum", [](Config& c) -> ConfigSlot { return &c.train.momentum; }, below_one, "",
              "`0.0`, with `muon` `0.95`", "SGD's or Muon's momentum; 0: none."},
    ConfigKey{"train.nesterov", [](Config& c) -> ConfigSlot { return &c.train.nesterov; }, any, "",
              "`false`, with `muon` `true`", "SGD, or Muon, looks ahead by its momentum, as Nesterov's method does."},
    ConfigKey{"train.muon", [](Config& c) -> ConfigSlot { return &c.train.muon; }, any, "",
              "`[]`, with `muon` `[\"blocks.*\"]`",
              "Names of the matrices that Muon updates, as patterns in which `*` matches any part of a name; of the "
              "parameters with two dims."},
    ConfigKey{"train.average", [](Config& c) -> ConfigSlot { return &c.train.average; }, below_one, "", "",
              "Decay of an exponential average of the weights, such as 0.999: sharded, in checkpoints, and exported by "
              "`--export ... --average`; 0: none."},
    ConfigKey{"train.groups", [](Config& c) -> ConfigSlot { return &c.train.groups; }, any, "", "",
              "`\"PATTERN: lr=FACTOR, decay=VALUE\"`, one of the two or both: parameters that learn at `train.lr` "
              "times a factor, or have another weight decay, norms and biases too. `*` matches any part of a name, "
              "`{0-3}` an integer; the first pattern that matches counts."},
    ConfigKey{"train.seed", [](Config& c) -> ConfigSlot { return &c.train.seed; }, between(0, kInf), "", "",
              "Seeds the weights, the order of the data and the sample."},
    ConfigKey{"train.deterministic", [](Config& c) -> ConfigSlot { return &c.train.deterministic; }, any, "", "",
              "Bit-identical results at any number of ranks and threads."},
    ConfigKey{"train.recompute", [](Config& c) -> ConfigSlot { return &c.train.recompute; }, any,
              "none|block|attention", "",
              "Activations that backward computes again: none, all of a transformer block but its input, or what "
              "its attention makes up to the output projection. The results are the same bits."},
    ConfigKey{"train.loss", [](Config& c) -> ConfigSlot { return &c.train.loss; }, any, "tokens|sequences", "",
              "What weighs alike in a step's loss and gradient where some targets count for nothing: `tokens`, each "
              "target that counts, over all micro-batches and ranks; or `sequences`, each sequence, by the mean "
              "over its targets that count."},
    ConfigKey{"train.loss_chunk", [](Config& c) -> ConfigSlot { return &c.train.loss_chunk; }, between(0, 1e9), "", "",
              "Tokens whose logits exist at once; 0: even shares, in multiples of 32, that keep them within 128 MiB."},
    ConfigKey{"train.patience", [](Config& c) -> ConfigSlot { return &c.train.patience; }, between(0, 1e6), "", "",
              "The run ends when so many validations in a row were no better than the best before them; 0 never. "
              "Needs `run.validate_every`."},
    ConfigKey{"train.time_limit", [](Config& c) -> ConfigSlot { return &c.train.time_limit; }, between(0, 1e8), "", "",
              "Time since the start, in seconds or as `\"H:MM:SS\"`, within which the run saves a checkpoint and "
              "stops with exit code 75; 0: none. In a Slurm job that says when it ends (`SLURM_JOB_END_TIME`) the "
              "run stops in time in any case. docs/checkpoints.md."},

    ConfigKey{"shard.units", [](Config& c) -> ConfigSlot { return &c.shard.units; }, any, "block|model|plan",
              "`\"plan\"` where there is a `plan.apply`, else `\"block\"`",
              "What is gathered at once: transformer blocks (`shard.unit_mib`), the whole model, or the modules of "
              "a plan (docs/plans.md)."},
    ConfigKey{"shard.unit_mib", [](Config& c) -> ConfigSlot { return &c.shard.unit_mib; }, between(-1, 1048576), "", "",
              "Consecutive blocks form one unit, so that each unit has at least so many MiB of parameters (of "
              "`precision.param`). 0: each block is a unit. Below 0: 64 over NCCL, else 0. `shard.units = "
              "\"block\"` only. docs/sharding.md."},
    ConfigKey{"shard.strategy", [](Config& c) -> ConfigSlot { return &c.shard.strategy; }, any, kStrategies, "",
              "What is sharded over which ranks; docs/sharding.md compares them."},
    ConfigKey{
        "shard.group_size", [](Config& c) -> ConfigSlot { return &c.shard.group_size; }, between(0, 1048576), "", "",
        "Ranks of a small group, for `hsdp` and `nested`; must divide the ranks. 0: those of a host, if every host "
        "has equally many, one after the other."},
    ConfigKey{"shard.reshard_after_forward", [](Config& c) -> ConfigSlot { return &c.shard.reshard_after_forward; },
              any, "", "`true` for strategies that shard parameters, but for `shard_grad_op`",
              "Free a unit's parameters after its forward and gather them again for its backward. A number k leaves "
              "them sharded over groups of k ranks in between; k divides the ranks (`zero3`) or `shard.group_size` "
              "(`hsdp`)."},
    ConfigKey{"shard.keep_root_unsharded", [](Config& c) -> ConfigSlot { return &c.shard.keep_root_unsharded; }, any,
              "", "",
              "Keep root and last unit gathered from forward to backward, and root and first unit from one "
              "micro-batch to the next."},
    ConfigKey{"shard.prefetch", [](Config& c) -> ConfigSlot { return &c.shard.prefetch; }, between(0, 8), "", "",
              "Units gathered ahead of the one that computes."},
    ConfigKey{"shard.limit", [](Config& c) -> ConfigSlot { return &c.shard.limit; }, between(0, 64), "", "",
              "Units, beside the root and those that stay gathered, whose whole parameters may exist at once. 0: "
              "`shard.prefetch` + 1; less cuts the prefetch short, more lets gathers run further ahead of compute."},
    ConfigKey{"shard.reduce_every_micro_batch",
              [](Config& c) -> ConfigSlot { return &c.shard.reduce_every_micro_batch; }, any, "",
              "`false` for `zero1` and `shard_grad_op`, else `true`",
              "Reduce gradients after every micro-batch, which keeps them sharded in between, or once a step. Always "
              "every micro-batch with "
              "`train.deterministic`."},
    ConfigKey{"shard.all_reduce_every_micro_batch",
              [](Config& c) -> ConfigSlot { return &c.shard.all_reduce_every_micro_batch; }, any, "", "",
              "Sum gradients over replicas (`ddp`, `hsdp`) after every micro-batch, or once a step."},
    ConfigKey{"shard.compress_gather", [](Config& c) -> ConfigSlot { return &c.shard.compress_gather; }, any,
              "none|int8|fp8", "",
              "How parameters travel when they are gathered from the master shards: as they are, as integers of 8 bits "
              "(`int8`), or as 8-bit floating-point numbers (`fp8`, e4m3), either with a scale for every 256. The "
              "master weights stay exact. Not with `train.deterministic`."},
    ConfigKey{"shard.compress_reduce", [](Config& c) -> ConfigSlot { return &c.shard.compress_reduce; }, any,
              "none|int8", "",
              "How gradients travel that are reduce-scattered: as they are, or as integers of 8 bits in the same way; "
              "they are summed in f32. Sums over replicas (`ddp`, "
              "`hsdp`) travel as they "
              "are. Not with `train.deterministic`."},
    ConfigKey{"shard.max_reductions_in_flight",
              [](Config& c) -> ConfigSlot { return &c.shard.max_reductions_in_flight; }, between(1, 64), "", "",
              "Whole gradient buffers that may wait for their reduction."},
    ConfigKey{"shard.layout", [](Config& c) -> ConfigSlot { return &c.shard.layout; }, any, kLayouts, "",
              "How a unit is cut: `flat`, all its parameters as one, or `per_parameter`, each on a dim of its own."},
    ConfigKey{"shard.min_shard_bytes", [](Config& c) -> ConfigSlot { return &c.shard.min_shard_bytes; },
              between(0, 1e12), "", "",
              "Parameters of fewer bytes (of `precision.param`) stay whole on every rank; `per_parameter` only. Their "
              "gradients are reduced as "
              "all others are."},
    ConfigKey{"shard.dims", [](Config& c) -> ConfigSlot { return &c.shard.dims; }, any, "",
              "the first dim of each parameter",
              "`\"PATTERN=DIM\"`: on which dim parameters are sharded, negative from the last; `*` matches any part "
              "of a name, `{0-3}` an integer (docs/plans.md); the first pattern that matches counts. "
              "`per_parameter` only."},
    ConfigKey{"shard.zero_copy", [](Config& c) -> ConfigSlot { return &c.shard.zero_copy; }, any, "auto|off", "",
              "`auto`: where the ranks of a host can share memory, and layout and strategy allow it, units are read "
              "where their shards lie. `off`: every rank gathers a copy. The results are the same bits."},
    ConfigKey{"shard.pregather", [](Config& c) -> ConfigSlot { return &c.shard.pregather; }, any, "", "",
              "Gather every unit before a step begins; the whole model's parameters exist at once."},

    ConfigKey{"plan.apply", [](Config& c) -> ConfigSlot { return &c.plan.apply; }, any, "", "no plan",
              "Patterns of modules that are units, in the order in which they run. The root is always one and owns "
              "what is in no other. docs/plans.md."},
    ConfigKey{"plan.hooks", [](Config& c) -> ConfigSlot { return &c.plan.hooks; }, any, "", "",
              "Patterns of modules whose forward opens all units in them at once."},
    ConfigKey{"plan.reshard", [](Config& c) -> ConfigSlot { return &c.plan.reshard; }, any, "",
              "`shard.reshard_after_forward`",
              "`\"PATTERN=VALUE\"`: what units do otherwise than `shard.reshard_after_forward`: `true`, `false` or a "
              "number of ranks. The first pattern that matches a unit counts, here and below; the root is `root`."},
    ConfigKey{"plan.strategy", [](Config& c) -> ConfigSlot { return &c.plan.strategy; }, any, "", "`shard.strategy`",
              "`\"PATTERN=STRATEGY\"`: units with another strategy. `hsdp` and `nested` have groups of "
              "`shard.group_size`, or of the ranks of a host."},
    ConfigKey{"plan.param", [](Config& c) -> ConfigSlot { return &c.plan.param; }, any, "", "`precision.param`",
              "`\"PATTERN=DTYPE\"`: units whose parameters are `f32` or `bf16`, otherwise than the rest. They take and "
              "give what the others do."},
    ConfigKey{"plan.reduce", [](Config& c) -> ConfigSlot { return &c.plan.reduce; }, any, "",
              "`precision.reduce`; `f32` where the parameters are",
              "`\"PATTERN=DTYPE\"`: the same of their gradients while they are reduced."},
    ConfigKey{"plan.output", [](Config& c) -> ConfigSlot { return &c.plan.output; }, any, "", "`precision.output`",
              "`\"PATTERN=DTYPE\"`: the same of what they hand on."},
    ConfigKey{"plan.gather", [](Config& c) -> ConfigSlot { return &c.plan.gather; }, any, "", "`shard.compress_gather`",
              "`\"PATTERN=FORMAT\"`: units whose parameters travel as they are (`none`), as `int8` or as `fp8`, "
              "otherwise than the rest. Not with `train.deterministic`."},
    ConfigKey{"plan.forward", [](Config& c) -> ConfigSlot { return &c.plan.forward; }, between(0, 64), "", "",
              "Above 0: entries of the plan that are gathered ahead in forward, in the order of `plan.apply`: units, "
              "or all of one hook's. 0: as many units as `shard.prefetch` says, in the order in which they ran."},
    ConfigKey{"plan.backward", [](Config& c) -> ConfigSlot { return &c.plan.backward; }, between(0, 64), "", "",
              "The same in backward."},

    ConfigKey{"precision.param", [](Config& c) -> ConfigSlot { return &c.precision.param; }, any, "f32|bf16", "",
              "Parameters and activations; the master weights are always f32."},
    ConfigKey{"precision.reduce", [](Config& c) -> ConfigSlot { return &c.precision.reduce; }, any, "f32|bf16", "",
              "Gradients while they are reduced. Those of several micro-batches are summed in f32 in any case."},
    ConfigKey{"precision.output", [](Config& c) -> ConfigSlot { return &c.precision.output; }, any, "f32|bf16",
              "`precision.param`",
              "What a block adds up and hands on to the next. `f32` with bf16 parameters rounds no sum of the residual "
              "stream, and takes twice "
              "its memory."},
    ConfigKey{"precision.validation", [](Config& c) -> ConfigSlot { return &c.precision.validation; }, any, "f32|bf16",
              "`precision.param`",
              "Parameters and activations of validations and of the sample; `f32` with bf16 parameters gathers the "
              "master weights."},

    ConfigKey{"precision.rounding", [](Config& c) -> ConfigSlot { return &c.precision.rounding; }, any,
              "nearest|stochastic", "",
              "How the f32 master weights are rounded to bf16: to nearest, or up or down at random, so that updates "
              "too small for bf16 count on average. Needs `precision.param = \"bf16\"`."},

    ConfigKey{"offload.weights", [](Config& c) -> ConfigSlot { return &c.offload.weights; }, any, "device|host", "",
              "Where the f32 master weights are kept between updates, with `precision.param = \"bf16\"`. `host`: in "
              "memory of the host, page-locked where there is a GPU; the bf16 shards stay on the device. "
              "docs/offload.md."},
    ConfigKey{"offload.gradients", [](Config& c) -> ConfigSlot { return &c.offload.gradients; }, any, "device|host", "",
              "The same of the reduced gradients, between the micro-batches that add to them and until the update."},
    ConfigKey{"offload.moments", [](Config& c) -> ConfigSlot { return &c.offload.moments; }, any, "device|host", "",
              "The same of the optimizer's state: AdamW's two moments, SGD's momentum."},
    ConfigKey{"offload.device_mib", [](Config& c) -> ConfigSlot { return &c.offload.device_mib; }, between(0, 1e9), "",
              "", "A run whose plan needs more of the device's memory on a rank is refused; 0: the machine's limits."},
    ConfigKey{"offload.host_mib", [](Config& c) -> ConfigSlot { return &c.offload.host_mib; }, between(0, 1e9), "", "",
              "The same of the memory of the host beside the device's."},
    ConfigKey{"offload.cpu_link_gbs", [](Config& c) -> ConfigSlot { return &c.offload.cpu_link_gbs; }, between(0, 1e6),
              "", "",
              "On the CPU: the bandwidth between device and host in 10^9 bytes a second, to see what a real link "
              "would cost; 0: as fast as the CPU copies."},

    ConfigKey{"comm.transport", [](Config& c) -> ConfigSlot { return &c.comm.transport; }, any,
              "auto|hier|shm|mpi|local|null", "",
              "Under `mpirun` `auto` is `hier`, which chooses for each group of ranks: `shm`, shared memory, on one "
              "host; `mpi`, messages, where each is on a host of its own; else `shm` inside the hosts and `mpi` "
              "across. The variable `ZSHARD_TRANSPORT` may name another. Without `mpirun` it is `local`: ranks are "
              "threads of one process. `null` moves nothing, to measure a run without communication; its results "
              "are meaningless, and are not saved."},
    ConfigKey{"comm.omit", [](Config& c) -> ConfigSlot { return &c.comm.omit; }, any, "none|gathers|reductions|both",
              "",
              "What moves nothing and waits for nobody, to measure a run without it: gathers of parameters, "
              "reductions of gradients, or both. The results are meaningless, and are not saved."},
    ConfigKey{"comm.ranks", [](Config& c) -> ConfigSlot { return &c.comm.ranks; }, between(1, 256), "", "",
              "Ranks of the `local` transport; `mpirun -np` says it otherwise."},
    ConfigKey{"comm.timeout_s", [](Config& c) -> ConfigSlot { return &c.comm.timeout_s; }, between(1, 86400), "", "",
              "Seconds after which a silent peer is given up."},
    ConfigKey{"comm.race_check_ms", [](Config& c) -> ConfigSlot { return &c.comm.race_check_ms; }, between(0, 1000), "",
              "",
              "Above 0, for debugging: operations between ranks run on private copies and end up to so many "
              "milliseconds later. Touching a buffer in use is an error, exit code 70."},

    ConfigKey{"cuda.tf32", [](Config& c) -> ConfigSlot { return &c.cuda.tf32; }, any, "", "",
              "Products of f32 on a GPU may round their operands to tf32 (11 bits): faster. Without effect on those of "
              "bf16, and on the CPU."},
    ConfigKey{"cuda.fused_gelu", [](Config& c) -> ConfigSlot { return &c.cuda.fused_gelu; }, any, "", "",
              "Products of bf16 on a GPU (compute capability 9.0 and later) also compute GELU by tanh, and its "
              "gradient, where cuBLASLt has that. docs/gpu.md."},
    ConfigKey{"cuda.share_gpu", [](Config& c) -> ConfigSlot { return &c.cuda.share_gpu; }, any, "", "",
              "Use a GPU that another process has too, and let others use this one's: else that is refused."},
    ConfigKey{"cuda.transport", [](Config& c) -> ConfigSlot { return &c.cuda.transport; }, any, "auto|nccl|staged", "",
              "What moves data between the GPUs of several ranks: `nccl`, or `staged`, through the hosts' memory "
              "and `comm.transport`. `auto`: `nccl` where every rank has the library and a GPU of its own, else "
              "`staged`."},
    ConfigKey{"cuda.graph", [](Config& c) -> ConfigSlot { return &c.cuda.graph; }, any, "", "",
              "A step on GPUs, over NCCL if they are several, is captured as a CUDA graph and replayed by one "
              "launch: the same results. docs/gpu.md."},
    ConfigKey{"cuda.register", [](Config& c) -> ConfigSlot { return &c.cuda.registration; }, any, "auto|off", "",
              "Over NCCL: take the GPU's memory from NCCL and register it, so that collectives need no copy. "
              "`auto`: where NCCL can (2.19 and later), with all ranks or none."},
    ConfigKey{"cuda.libraries", [](Config& c) -> ConfigSlot { return &c.cuda.libraries; }, any, "", "",
              "Folders, separated by colons, in which cuBLASLt and NCCL are looked for first; then where the loader "
              "looks, below `$CUDA_HOME`, `$CUDA_PATH` and `/usr/local/cuda`, and in the packages of the Python in "
              "use."},

    ConfigKey{"watchdog.init_s", [](Config& c) -> ConfigSlot { return &c.watchdog.init_s; }, between(0, 86400), "", "",
              "Seconds that a rank may stand still while the job starts; 0: for ever. docs/reliability.md says what "
              "standing still is."},
    ConfigKey{"watchdog.first_step_s", [](Config& c) -> ConfigSlot { return &c.watchdog.first_step_s; },
              between(0, 86400), "", "", "The same in the first step of a run."},
    ConfigKey{"watchdog.step_s", [](Config& c) -> ConfigSlot { return &c.watchdog.step_s; }, between(0, 86400), "", "",
              "The same in every later step, and its validation."},
    ConfigKey{"watchdog.checkpoint_s", [](Config& c) -> ConfigSlot { return &c.watchdog.checkpoint_s; },
              between(0, 86400), "", "",
              "The same while a checkpoint or the final weights are written, and at the end of the job."},
    ConfigKey{"watchdog.hosts", [](Config& c) -> ConfigSlot { return &c.watchdog.hosts; }, any, "", "",
              "Ranks of several hosts tell each other what they do, once a second by UDP. docs/reliability.md."},

    ConfigKey{"checkpoint.every", [](Config& c) -> ConfigSlot { return &c.checkpoint.every; }, between(0, 1e9), "", "",
              "Steps between checkpoints, and one at the end; 0 saves only when the run is asked to stop."},
    ConfigKey{"checkpoint.every_minutes", [](Config& c) -> ConfigSlot { return &c.checkpoint.every_minutes; },
              between(0, 1e6), "", "",
              "Minutes between checkpoints, and one at the end: behind the first step that ends so long after the last "
              "one began. 0: "
              "none by time. Goes with `checkpoint.every`."},
    ConfigKey{"checkpoint.background", [](Config& c) -> ConfigSlot { return &c.checkpoint.background; }, any, "", "",
              "Steps wait only until the state is copied to memory of the host (12 bytes a parameter of the rank's "
              "shards with AdamW); a thread writes the checkpoint. docs/checkpoints.md."},
    ConfigKey{"checkpoint.keep", [](Config& c) -> ConfigSlot { return &c.checkpoint.keep; }, between(0, 1e6), "", "",
              "Checkpoints that stay, the newest; 0 keeps all. A run that goes on keeps as many as it did, unless this "
              "is given."},
    ConfigKey{"checkpoint.keep_best", [](Config& c) -> ConfigSlot { return &c.checkpoint.keep_best; }, any, "", "",
              "The step with the lowest validation loss so far is saved, and its checkpoint stays beside those of "
              "`checkpoint.keep`; needs `run.validate_every`."},
    ConfigKey{"checkpoint.on_full", [](Config& c) -> ConfigSlot { return &c.checkpoint.on_full; }, any, "stop|warn", "",
              "Where there is no room for a checkpoint: `stop` ends the run (exit code 74); `warn` goes on without "
              "it, unless a stop asked for it."},

    ConfigKey{"run.dir", [](Config& c) -> ConfigSlot { return &c.run.dir; }, any, "",
              "`runs/NAME-N` with the next free N",
              "Folder for what the run writes; `~` and `$NAME` as in `data.train`."},
    ConfigKey{"run.validate_every", [](Config& c) -> ConfigSlot { return &c.run.validate_every; }, between(0, 1e9), "",
              "", "Steps between validations; 0 never validates."},
    ConfigKey{"run.validate_first", [](Config& c) -> ConfigSlot { return &c.run.validate_first; }, any, "", "",
              "A new run validates before its first step too; needs `run.validate_every`."},
    ConfigKey{"run.validate_average", [](Config& c) -> ConfigSlot { return &c.run.validate_average; }, any, "", "",
              "Validations are of the average of the weights; needs `train.average`."},
    ConfigKey{"run.validate_batches", [](Config& c) -> ConfigSlot { return &c.run.validate_batches; }, between(1, 1e6),
              "", "", "Global batches a validation; where the validation part has less, all of it, each sample once."},
    ConfigKey{"run.lost_updates_every", [](Config& c) -> ConfigSlot { return &c.run.lost_updates_every; },
              between(0, 1e9), "", "",
              "Steps between counts of the weights that a step has left as they were (docs/looking-at-a-run.md); 0 "
              "never counts."},
    ConfigKey{"run.sample_tokens", [](Config& c) -> ConfigSlot { return &c.run.sample_tokens; }, between(0, 1e6), "",
              "200 for text and where there is a tokenizer, else 0",
              "Length of the sample that is printed at the end; 0 prints none."},
    ConfigKey{"run.sample_prompt", [](Config& c) -> ConfigSlot { return &c.run.sample_prompt; }, any, "", "",
              "Text that the sample goes on from."},
    ConfigKey{
        "run.export", [](Config& c) -> ConfigSlot { return &c.run.export_to; }, any, "", "",
        "A new folder into which the end of the run writes the model as transformers loads it, or a new file NAME.gguf "
        "(docs/huggingface.md); empty: none."},
    ConfigKey{"run.export_dtype", [](Config& c) -> ConfigSlot { return &c.run.export_dtype; }, any, "f32|bf16|f16|q8_0",
              "", "What its weights are stored in; `q8_0` in a GGUF file only."},
    ConfigKey{"run.export_shard_mib", [](Config& c) -> ConfigSlot { return &c.run.export_shard_mib; }, between(1, 1e9),
              "", "", "About how much a file of its weights has at most; more go into several files with an index."},
    ConfigKey{"run.tensorboard", [](Config& c) -> ConfigSlot { return &c.run.tensorboard; }, any, "", "",
              "Write the numbers of `metrics.jsonl` for TensorBoard, too. docs/looking-at-a-run.md."},
};

std::string number_text(double value) { return fmt::format("{}", value); }

/// What the table of families says of a key.
std::string doc_of(const ConfigKey& key) {
  std::string doc(key.doc), names;
  if (key.name == "model.family")
    for (const Family* family : families()) doc += fmt::format(" `{}`: {}.", family->name, family->summary);
  for (const Family* family : families_with(key.name))
    names += fmt::format("{}`{}`", names.empty() ? "" : ", ", family->name);
  return names.empty() ? doc : fmt::format("{} Families: {}.", doc, names);
}

auto named(std::string_view name) {
  return [name](const ConfigKey& key) { return key.name == name; };
}

}  // namespace

std::string ConfigRange::str() const {
  if (min == max) return number_text(min);
  const std::string low = min == -kInf ? "" : (min_open ? "above " : "") + number_text(min);
  const std::string high = max == kInf ? "" : (max_open ? "below " : "at most ") + number_text(max);
  if (low.empty() || high.empty()) return low.empty() ? high : (min_open ? low : low + " or more");
  if (!min_open && !max_open) return low + " to " + number_text(max);
  return (min_open ? low : low + " or more") + ", " + high;
}

std::vector<std::string_view> ConfigKey::choice_list() const {
  std::vector<std::string_view> list;
  if (choices.empty()) return list;
  for (std::size_t begin = 0;;) {
    const std::size_t end = choices.find('|', begin);
    list.push_back(choices.substr(begin, end - begin));
    if (end == std::string_view::npos) return list;
    begin = end + 1;
  }
}

std::string ConfigKey::type() const {
  static constexpr std::array kTypes = {"true or false",
                                        "integer",
                                        "number",
                                        "string",
                                        "string or array of strings",
                                        "true, false or integer",
                                        "seconds or \"H:MM:SS\"",
                                        "array of numbers"};
  Config config;
  return kTypes[slot(config).index()];
}

std::string ConfigKey::allowed() const {
  if (choices.empty()) return range.str();
  std::string text;
  for (const auto choice : choice_list()) text += (text.empty() ? "" : ", ") + toml_string(choice);
  return text;
}

std::string ConfigKey::default_text() const {
  if (!default_note.empty()) return std::string(default_note);
  Config config;
  return toml_value(slot(config));
}

std::span<const ConfigKey> config_keys() {
  static std::deque<std::string> texts;  // that keys point into
  static const auto keys = [] {
    auto all = kKeys;
    const auto keep = [](std::string text) -> std::string_view { return texts.emplace_back(std::move(text)); };
    for (ConfigKey& key : all) {
      key.doc = keep(doc_of(key));
      if (key.name == "model.family") key.choices = keep(family_choices());
      if (key.name == "model.preset") key.choices = keep("|" + preset_choices());
    }
    return all;
  }();
  return keys;
}

const ConfigKey* find_config_key(std::string_view name) {
  const std::span<const ConfigKey> keys = config_keys();
  const auto found = std::find_if(keys.begin(), keys.end(), named(name));
  return found == keys.end() ? nullptr : &*found;
}

std::string toml_value(const ConfigSlot& slot) {
  if (const auto* flag = std::get_if<bool*>(&slot)) return **flag ? "true" : "false";
  if (const auto* integer = std::get_if<std::int64_t*>(&slot)) return fmt::format("{}", **integer);
  if (const auto* number = std::get_if<double*>(&slot)) {
    std::string text = number_text(**number);
    return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
  }
  if (const auto* text = std::get_if<std::string*>(&slot)) return toml_string(**text);
  if (const auto* reshard = std::get_if<Reshard*>(&slot)) return (*reshard)->str();
  if (const auto* duration = std::get_if<Config::Duration*>(&slot)) return toml_value(ConfigSlot(&(*duration)->value));
  std::string list;
  if (const auto* numbers = std::get_if<std::vector<double>*>(&slot)) {
    for (double number : **numbers) list += (list.empty() ? "" : ", ") + toml_value(ConfigSlot(&number));
    return "[" + list + "]";
  }
  for (const auto& text : *std::get<std::vector<std::string>*>(slot))
    list += (list.empty() ? "" : ", ") + toml_string(text);
  return "[" + list + "]";
}

}  // namespace zs
