#include "model/train/config/config_keys.h"

#include <array>

namespace zs {
namespace {

using namespace config_ranges;

constexpr std::array kTrainingKeys = {
    ConfigKey{"name", [](Config& c) -> ConfigSlot { return &c.name; }, any, "",
              "the configuration file's name without its ending", "Name of the run; letters, digits, `.`, `_` and `-`.",
              OnResume::free},
    ConfigKey{"device", [](Config& c) -> ConfigSlot { return &c.device; }, any, "auto|cpu|cuda", "",
              "Where to compute: `auto` is `cuda` where every rank finds a driver, cuBLASLt and a GPU of compute "
              "capability 8.0 or later, else `cpu`; a GPU without a loadable cuBLASLt is an error. `cuda` has not "
              "run on a real GPU yet (docs/gpu.md).",
              OnResume::free},

    ConfigKey{"model.family",
              [](Config& c) -> ConfigSlot { return &c.model.family; },
              any,
              {},
              "the preset's, or `\"gpt2\"`",
              "Architecture.",
              OnResume::refused},
    ConfigKey{"model.preset",
              [](Config& c) -> ConfigSlot { return &c.model.preset; },
              any,
              {},
              "",
              "Published sizes, of the family that the table below names; the keys below override it.",
              OnResume::free},
    ConfigKey{"model.path", [](Config& c) -> ConfigSlot { return &c.model.path; }, any, "", "",
              "Folder of a model as transformers writes it: config.json gives the keys below, its safetensors files "
              "the weights (docs/huggingface.md). A key that is given as well must be equal.",
              OnResume::free},
    ConfigKey{"model.layers", [](Config& c) -> ConfigSlot { return &c.model.layers; }, between(1, 1024), "",
              "the preset's", "Transformer blocks.", OnResume::refused},
    ConfigKey{"model.heads", [](Config& c) -> ConfigSlot { return &c.model.heads; }, between(1, 1024), "",
              "the preset's", "Attention heads; must divide `model.width`.", OnResume::refused},
    ConfigKey{"model.width", [](Config& c) -> ConfigSlot { return &c.model.width; }, between(1, 65536), "",
              "the preset's", "Size of the residual stream.", OnResume::refused},
    ConfigKey{"model.context", [](Config& c) -> ConfigSlot { return &c.model.context; }, between(1, 1048576), "",
              "the preset's", "Positions that the model knows.", OnResume::refused},
    ConfigKey{"model.vocab", [](Config& c) -> ConfigSlot { return &c.model.vocab; }, between(1, 4194304), "",
              "256 for text; for tokens the preset's, else that of the family's published models",
              "Token ids are 0 to `model.vocab` - 1; at least 256 for text.", OnResume::refused},
    ConfigKey{"model.activation", [](Config& c) -> ConfigSlot { return &c.model.activation; }, any,
              "gelu_tanh|gelu_erf", "", "GELU by its tanh approximation (as GPT-2 was published) or exactly.",
              OnResume::refused},
    ConfigKey{"model.kv_heads", [](Config& c) -> ConfigSlot { return &c.model.kv_heads; }, between(0, 1024), "",
              "the preset's, or `model.heads`",
              "Key and value heads, each shared by as many query heads; must divide `model.heads`.", OnResume::refused},
    ConfigKey{"model.hidden", [](Config& c) -> ConfigSlot { return &c.model.hidden; }, between(0, 1048576), "",
              "the preset's, or 8/3 of `model.width`, up to a multiple of 128",
              "Hidden elements of the MLP; 0: the default, for `gpt2` 4 x `model.width`.", OnResume::refused},
    ConfigKey{"model.rotary_base", [](Config& c) -> ConfigSlot { return &c.model.rotary_base; }, between(1, 1e12), "",
              "the preset's, or `10000.0`", "Base of the angles that queries and keys turn by.", OnResume::refused},
    ConfigKey{"model.tied_head", [](Config& c) -> ConfigSlot { return &c.model.tied_head; }, any, "",
              "the preset's, else `true` for `gpt2`, `false` for the others",
              "The head is the token embedding, not a matrix of its own.", OnResume::refused},
    ConfigKey{"model.norm_eps", [](Config& c) -> ConfigSlot { return &c.model.norm_eps; }, positive(1), "",
              "the preset's, or the family's", "What the norms add to a variance, or to a mean square.",
              OnResume::refused},
    ConfigKey{"model.head_dim", [](Config& c) -> ConfigSlot { return &c.model.head_dim; }, between(0, 4096), "",
              "the preset's, or the family's", "Elements of a head; 0: `model.width` / `model.heads`.",
              OnResume::refused},
    ConfigKey{"model.window", [](Config& c) -> ConfigSlot { return &c.model.window; }, between(0, 1048576), "",
              "the preset's, or `0`", "Tokens that a token sees, itself the last of them; 0: all before it.",
              OnResume::refused},
    ConfigKey{"model.rotary_scaling", [](Config& c) -> ConfigSlot { return &c.model.rotary_scaling; }, any,
              "none|linear|llama3|yarn", "the preset's, or `\"none\"`",
              "How angles are changed for a longer context. `linear`: all are divided by `model.rotary_factor`. "
              "`llama3`, as Llama 3.1 has it: "
              "only those that turn slowly, and what follows says which. `yarn` (Peng et al. 2023): those too, in "
              "part by their number, and queries and keys are multiplied with 1 + 0.1 ln(`model.rotary_factor`).",
              OnResume::refused},
    ConfigKey{"model.rotary_factor", [](Config& c) -> ConfigSlot { return &c.model.rotary_factor; }, between(1, 1e6),
              "", "the preset's, or `8.0`",
              "Divides angles; without effect where `model.rotary_scaling` is `none`, as what follows but for `llama3` "
              "and `yarn`.",
              OnResume::refused},
    ConfigKey{"model.rotary_low", [](Config& c) -> ConfigSlot { return &c.model.rotary_low; }, positive(1e6), "",
              "the preset's, or `1.0`",
              "An angle that turns less often than that in `model.rotary_context` positions is divided.",
              OnResume::refused},
    ConfigKey{"model.rotary_high", [](Config& c) -> ConfigSlot { return &c.model.rotary_high; }, positive(1e6), "",
              "the preset's, or `4.0`",
              "One that turns more often stays; what lies between is changed in part. Of `yarn` mostly 32.",
              OnResume::refused},
    ConfigKey{"model.rotary_context", [](Config& c) -> ConfigSlot { return &c.model.rotary_context; },
              between(1, 1048576), "", "the preset's, or `8192`", "Positions that the model was first trained with.",
              OnResume::refused},
    ConfigKey{"model.rotary_truncate", [](Config& c) -> ConfigSlot { return &c.model.rotary_truncate; }, any, "",
              "the preset's, or `true`",
              "Of `yarn`, the first and the last number of an angle that is changed in part are rounded to integers. "
              "Without effect otherwise.",
              OnResume::refused},
    ConfigKey{"model.pad_token_id", [](Config& c) -> ConfigSlot { return &c.model.pad_token_id; }, between(-1, 4194303),
              "", "-1, or what `config.json` says",
              "Token that gets no gradient from being looked up; -1: none. May be changed as `model.dropout`."},
    ConfigKey{"model.no_rope_layers", [](Config& c) -> ConfigSlot { return &c.model.no_rope_layers; }, between(0, 1023),
              "", "the preset's, or `[]`",
              "Layers, from 0, whose queries and keys are not turned: they know no positions.", OnResume::refused},
    ConfigKey{"model.global_layers", [](Config& c) -> ConfigSlot { return &c.model.global_layers; }, between(0, 1023),
              "", "the preset's, or `[]`",
              "Layers, from 0, whose tokens see all before them; those of the others see `model.window`.",
              OnResume::refused},
    ConfigKey{"model.local_rotary_base", [](Config& c) -> ConfigSlot { return &c.model.local_rotary_base; },
              between(1, 1e12), "", "the preset's, or `10000.0`",
              "Base of the angles in the layers that are not global, which `model.rotary_scaling` does not change.",
              OnResume::refused},
    ConfigKey{"model.experts", [](Config& c) -> ConfigSlot { return &c.model.experts; }, between(0, 1024), "",
              "the preset's, or the family's", "Experts of a mixture.", OnResume::refused},
    ConfigKey{"model.experts_per_token", [](Config& c) -> ConfigSlot { return &c.model.experts_per_token; },
              between(0, 1024), "", "the preset's, or the family's",
              "Experts that a token has: those with the largest of its probabilities, of equals the lower number.",
              OnResume::refused},
    ConfigKey{"model.expert_hidden", [](Config& c) -> ConfigSlot { return &c.model.expert_hidden; },
              between(0, 1048576), "", "the preset's, or `0`", "Hidden elements of an expert; 0: `model.hidden`.",
              OnResume::refused},
    ConfigKey{"model.shared_expert_hidden", [](Config& c) -> ConfigSlot { return &c.model.shared_expert_hidden; },
              between(0, 1048576), "", "the preset's, or `0`",
              "Hidden elements of an expert that every token has beside those chosen, times the sigmoid of a gate; 0: "
              "there is none.",
              OnResume::refused},
    ConfigKey{"model.norm_topk", [](Config& c) -> ConfigSlot { return &c.model.norm_topk; }, any, "",
              "the preset's, else `true` for `qwen3_moe`, `false` for the others",
              "The probabilities of the experts that a token has are divided by their sum.", OnResume::refused},
    ConfigKey{"model.dense_layers", [](Config& c) -> ConfigSlot { return &c.model.dense_layers; }, between(0, 1023), "",
              "the preset's, or `[]`", "Layers, from 0, with one MLP of `model.hidden` instead of a mixture.",
              OnResume::refused},
    ConfigKey{
        "model.balance_loss", [](Config& c) -> ConfigSlot { return &c.model.balance_loss; }, between(0, 1e6), "", "",
        "Coefficient of the balance loss of each mixture, which is minimised beside `loss`: experts x the sum over "
        "experts of their share of the tokens, on all ranks, times the mean of their probability. With "
        "`train.deterministic` the share is that of each micro-batch alone. This key and the next may be changed "
        "as `model.dropout`."},
    ConfigKey{
        "model.z_loss", [](Config& c) -> ConfigSlot { return &c.model.z_loss; }, between(0, 1e6), "", "",
        "Coefficient of the mean of the squared log-sum-exp of what each router computes, which is minimised too."},
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
              "(docs/fine-tuning.md).",
              OnResume::refused},
    ConfigKey{"lora.alpha", [](Config& c) -> ConfigSlot { return &c.lora.alpha; }, between(0, 1e6), "",
              "`lora.rank`; with `lora.path` the adapter's",
              "What the adapters add is multiplied by `lora.alpha` / `lora.rank`; 0: the default.", OnResume::refused},
    ConfigKey{"lora.rslora", [](Config& c) -> ConfigSlot { return &c.lora.rslora; }, any, "",
              "`false`; with `lora.path` the adapter's",
              "By `lora.alpha` / sqrt(`lora.rank`) instead (rsLoRA, Kalajdzievski 2023).", OnResume::refused},
    ConfigKey{"lora.dora", [](Config& c) -> ConfigSlot { return &c.lora.dora; }, any, "",
              "`false`; with `lora.path` the adapter's",
              "Trains a magnitude for each row of what an adapter changes, too (DoRA, Liu et al. 2024).",
              OnResume::refused},
    ConfigKey{"lora.targets", [](Config& c) -> ConfigSlot { return &c.lora.targets; }, any, "",
              "required with `lora.rank`; with `lora.path` the adapter's",
              "Which products of the blocks have an adapter, by their names in transformers: `\"q_proj\"` is that of "
              "every block, `\"layers.0.*\"` are all of the first; or the embedding, `\"embed_tokens\"`. `*` in a "
              "pattern matches any part of a name.",
              OnResume::refused},
    ConfigKey{"lora.rank_pattern", [](Config& c) -> ConfigSlot { return &c.lora.rank_pattern; }, any, "",
              "`[]`; with `lora.path` the adapter's",
              "Other ranks of some targets, `\"k_proj=4\"`, by patterns as in `lora.targets`; the first that matches "
              "counts.",
              OnResume::refused},
    ConfigKey{"lora.alpha_pattern", [](Config& c) -> ConfigSlot { return &c.lora.alpha_pattern; }, any, "",
              "`[]`; with `lora.path` the adapter's", "Other values of `lora.alpha` of some targets.",
              OnResume::refused},
    ConfigKey{"lora.modules_to_save", [](Config& c) -> ConfigSlot { return &c.lora.modules_to_save; }, any, "",
              "`[]`; with `lora.path` the adapter's",
              "Modules outside of the blocks that are trained whole beside the adapters: `\"embed_tokens\"`, "
              "`\"lm_head\"`, `\"norm\"`.",
              OnResume::refused},
    ConfigKey{"lora.dropout", [](Config& c) -> ConfigSlot { return &c.lora.dropout; }, below_one, "",
              "0.0; with `lora.path` the adapter's",
              "Probability with which training drops an element of an adapter's input. May be changed when a run goes "
              "on."},
    ConfigKey{"lora.path", [](Config& c) -> ConfigSlot { return &c.lora.path; }, any, "", "",
              "Folder of an adapter as peft writes it: its adapter_config.json gives the keys above, and training "
              "continues from its weights. A key that is given as well must be equal.",
              OnResume::free},
    ConfigKey{
        "lora.export", [](Config& c) -> ConfigSlot { return &c.lora.export_to; }, any, "", "",
        "A new folder into which the end of the run writes the adapter as peft loads it, or a new file NAME.gguf, "
        "as llama.cpp does; empty: none. "
        "`run.export` writes the model with the adapter in its weights.",
        OnResume::free},

    ConfigKey{"data.kind", [](Config& c) -> ConfigSlot { return &c.data.kind; }, any, "text|tokens", "",
              "`text`: any files as bytes. `tokens`: ids, in llm.c's `.bin` or, without a header, as nanoGPT writes "
              "them. Files that are "
              "evidently of another kind are refused.",
              OnResume::refused},
    ConfigKey{"data.token_bytes", [](Config& c) -> ConfigSlot { return &c.data.token_bytes; }, between(2, 4), "", "",
              "Bytes of an id in token files without a header: 2 (uint16), or 4 (uint32, or int32), which "
              "`model.vocab` above 65536 needs. "
              "llm.c's header says it itself.",
              OnResume::free},
    ConfigKey{"data.tokenizer", [](Config& c) -> ConfigSlot { return &c.data.tokenizer; }, any, "", "",
              "`tokenizer.json` or `tokenizer.model`, or a folder with one: `text` is what it makes of the files, "
              "and samples are printed as text. A relative path is looked up in the current folder, then beside the "
              "configuration file. docs/tokenizer.md.",
              OnResume::free},
    ConfigKey{
        "data.format", [](Config& c) -> ConfigSlot { return &c.data.format; }, any,
        "stream|lines|files|jsonl|chat|preference", "",
        "What a document is. `stream`: nothing, all text is one sequence. `lines`: each line; `files`: each file; "
        "`jsonl`: each line, a JSON object with the text in `data.field`; `chat`: each line, one with `messages`, as "
        "the model's chat template writes them; `preference`: each line has two, of which one is preferred. Documents "
        "are packed into sequences "
        "whole; none sees another, and positions begin anew with each. docs/data.md.",
        OnResume::refused},
    ConfigKey{"data.field", [](Config& c) -> ConfigSlot { return &c.data.field; }, any, "", "",
              "Field of the JSON objects that has the text; `jsonl` only."},
    ConfigKey{"data.prompt_field", [](Config& c) -> ConfigSlot { return &c.data.prompt_field; }, any, "", "",
              "Field that has a prompt, which stands before the text and whose tokens are no targets; `jsonl` only. "
              "Empty: none."},
    ConfigKey{"data.train_on", [](Config& c) -> ConfigSlot { return &c.data.train_on; }, any, "assistant|last|all", "",
              "What of a conversation is trained on: the assistant's messages, the last of them, or all of it; `chat` "
              "only."},
    ConfigKey{"data.chat_template", [](Config& c) -> ConfigSlot { return &c.data.chat_template; }, any, "",
              "the template of the tokenizer's folder",
              "File with a chat template that takes the place of the folder's; `chat` and `preference` only."},
    ConfigKey{"data.overlong", [](Config& c) -> ConfigSlot { return &c.data.overlong; }, any, "refuse|truncate|split",
              "",
              "What becomes of a document of more than `train.sequence` tokens: an error that names it, its first "
              "tokens alone, or parts, each a document."},
    ConfigKey{"data.special_tokens", [](Config& c) -> ConfigSlot { return &c.data.special_tokens; }, any,
              "auto|always|none", "",
              "Which tokens a document gets beside those of its text, of those that the tokenizer puts around a text "
              "and the end-of-text token. `auto`: those that the text does not have there itself, as one that a chat "
              "template has made; or all, or none. docs/tokenizer.md."},
    ConfigKey{"data.train", [](Config& c) -> ConfigSlot { return &c.data.train; }, any, "", "required",
              "Files, globs or folders. Relative ones are looked up in the current folder, beside the configuration "
              "file, then in the build folder. `~` and `$NAME` work as in a shell at the start of a part of the "
              "path.",
              OnResume::free},
    ConfigKey{"data.weights", [](Config& c) -> ConfigSlot { return &c.data.weights; }, positive(1e6), "",
              "none: all of `data.train` is one source",
              "One number for each entry of `data.train`, which is then a source, read in its own order, with that "
              "share of the sequences. docs/data.md.",
              OnResume::refused},
    ConfigKey{"data.validation", [](Config& c) -> ConfigSlot { return &c.data.validation; }, any, "",
              "the end of `data.train`", "The same, for validation.", OnResume::free},
    ConfigKey{
        "data.validation_fraction", [](Config& c) -> ConfigSlot { return &c.data.validation_fraction; },
        between(0, 0.9), "", "`0.1`; of documents, or beside `model.path`, `0.0` where nothing validates",
        "Part at the end of `data.train` that is kept for validation; without effect when `data.validation` is set.",
        OnResume::free},

    ConfigKey{
        "preference.loss", [](Config& c) -> ConfigSlot { return &c.preference.loss; }, any, "dpo|ipo|simpo", "",
        "What pairs teach (`data.format = \"preference\"`, docs/fine-tuning.md): `dpo` and `ipo` against the model "
        "without its adapters, `simpo` without a reference.",
        OnResume::refused},
    ConfigKey{"preference.beta", [](Config& c) -> ConfigSlot { return &c.preference.beta; }, positive(1000), "", "",
              "Factor of log probabilities; the higher, the nearer the model stays to the reference."},
    ConfigKey{"preference.label_smoothing", [](Config& c) -> ConfigSlot { return &c.preference.label_smoothing; },
              between(0, 0.5), "", "", "Share of pairs that are taken to be the wrong way round; `dpo` and `simpo`."},
    ConfigKey{"preference.margin", [](Config& c) -> ConfigSlot { return &c.preference.margin; }, between(0, 1000), "",
              "", "By how much, after `preference.beta`, the chosen one shall be ahead; `simpo` only."},

    ConfigKey{"train.steps", [](Config& c) -> ConfigSlot { return &c.train.steps; }, between(1, 1e9), "",
              "required, or `train.epochs`", "Optimizer steps."},
    ConfigKey{
        "train.epochs", [](Config& c) -> ConfigSlot { return &c.train.epochs; }, between(0, 1e6), "",
        "by `train.steps`",
        "Passes over the training data, such as 3 or 0.5, instead of `train.steps`: the steps are as many as they "
        "take, rounded up. The run's own configuration has the steps."},
    ConfigKey{"train.global_batch", [](Config& c) -> ConfigSlot { return &c.train.global_batch; }, between(1, 1048576),
              "", "required",
              "Sequences a step, over all ranks; a multiple of `train.micro_batch`. Ranks that do not divide it have "
              "empty micro-batches.",
              OnResume::refused},
    ConfigKey{"train.micro_batch", [](Config& c) -> ConfigSlot { return &c.train.micro_batch; }, between(1, 65536), "",
              "", "Sequences that one rank computes at a time."},
    ConfigKey{"train.sequence", [](Config& c) -> ConfigSlot { return &c.train.sequence; }, between(1, 1048576), "",
              "`model.context`; beside `model.path` at most 2048, and of documents what the longest one takes",
              "Tokens a sequence; at most `model.context`.", OnResume::refused},
    ConfigKey{"train.lr", [](Config& c) -> ConfigSlot { return &c.train.lr; }, positive(1e12), "",
              "`0.0006`; beside `model.path` `2e-5`, of adapters `2e-4`", "Peak learning rate."},
    ConfigKey{"train.min_lr_ratio", [](Config& c) -> ConfigSlot { return &c.train.min_lr_ratio; }, between(0, 1), "",
              "", "The schedule ends at this part of `train.lr`."},
    ConfigKey{"train.warmup", [](Config& c) -> ConfigSlot { return &c.train.warmup; }, between(0, 1e9), "", "",
              "Steps of linear warm-up; a shorter run ends within it."},
    ConfigKey{"train.schedule", [](Config& c) -> ConfigSlot { return &c.train.schedule; }, any,
              "cosine|linear|constant|wsd", "`\"cosine\"`, with `schedule_free_adamw` `\"constant\"`",
              "Learning rate after the warm-up; `wsd`: constant, then a decay over the last `train.decay`."},
    ConfigKey{"train.decay", [](Config& c) -> ConfigSlot { return &c.train.decay; }, positive(1), "", "",
              "Part of all steps, the last ones, over which `wsd` decays. Beside `train.warmup` it must fit into "
              "`train.steps`."},
    ConfigKey{"train.clip", [](Config& c) -> ConfigSlot { return &c.train.clip; }, between(0, 1e6), "", "",
              "Largest global norm of the gradient; 0 does not clip."},
    ConfigKey{"train.optimizer",
              [](Config& c) -> ConfigSlot { return &c.train.optimizer; },
              any,
              {},
              "",
              "What makes a step of gradients (docs/optimizers.md).",
              OnResume::refused},
    ConfigKey{"train.weight_decay", [](Config& c) -> ConfigSlot { return &c.train.weight_decay; }, between(0, 100), "",
              "`0.1`; with `sgd`, or beside `model.path`, `0.0`",
              "Weight decay, decoupled from the gradient but with `sgd`; not for norms and biases."},
    ConfigKey{"train.beta1", [](Config& c) -> ConfigSlot { return &c.train.beta1; }, below_one, "", "",
              "AdamW's first moment; of Lion, how much of a step's direction is the momentum's.", OnResume::refused},
    ConfigKey{"train.beta2", [](Config& c) -> ConfigSlot { return &c.train.beta2; }, below_one, "",
              "`0.95`, with `lion` `0.99`", "AdamW's second moment; of Lion, its momentum.", OnResume::refused},
    ConfigKey{"train.eps", [](Config& c) -> ConfigSlot { return &c.train.eps; }, positive(1), "", "",
              "AdamW's epsilon.", OnResume::refused},
    ConfigKey{"train.momentum", [](Config& c) -> ConfigSlot { return &c.train.momentum; }, below_one, "",
              "`0.0`, with `muon` `0.95`", "SGD's or Muon's momentum; 0: none.", OnResume::refused},
    ConfigKey{"train.nesterov", [](Config& c) -> ConfigSlot { return &c.train.nesterov; }, any, "",
              "`false`, with `muon` `true`", "SGD, or Muon, looks ahead by its momentum, as Nesterov's method does.",
              OnResume::refused},
    ConfigKey{"train.muon", [](Config& c) -> ConfigSlot { return &c.train.muon; }, any, "",
              "`[]`, with `muon` `[\"blocks.*\"]`",
              "Names of the matrices that Muon updates, as patterns in which `*` matches any part of a name; of the "
              "parameters with two dims.",
              OnResume::refused},
    ConfigKey{"train.average", [](Config& c) -> ConfigSlot { return &c.train.average; }, below_one, "", "",
              "Decay of an exponential average of the weights, such as 0.999: sharded, in checkpoints, and exported by "
              "`export ... --average`; 0: none.",
              OnResume::refused},
    ConfigKey{"train.groups", [](Config& c) -> ConfigSlot { return &c.train.groups; }, any, "", "",
              "`\"PATTERN: lr=FACTOR, decay=VALUE\"`, one of the two or both: parameters that learn at `train.lr` "
              "times a factor, or have another weight decay, norms and biases too. `*` matches any part of a name, "
              "`{0-3}` an integer; the first pattern that matches counts."},
    ConfigKey{"train.frozen", [](Config& c) -> ConfigSlot { return &c.train.frozen; }, any, "", "",
              "Names of parameters that are not trained, or of modules that have them, as patterns as above. They have "
              "no gradients and no moments, and `precision.frozen` says how they are held.",
              OnResume::refused},
    ConfigKey{"train.seed", [](Config& c) -> ConfigSlot { return &c.train.seed; }, between(0, kInf), "", "",
              "Seeds the weights, the order of the data and the sample.", OnResume::refused},
    ConfigKey{"train.deterministic", [](Config& c) -> ConfigSlot { return &c.train.deterministic; }, any, "", "",
              "Bit-identical results at any number of ranks and threads."},
    ConfigKey{"train.recompute", [](Config& c) -> ConfigSlot { return &c.train.recompute; }, any, "", "",
              "Activations that backward computes again: `none`, all of a transformer `block` but its input, or what "
              "its `attention` makes up to the output projection; or `PATTERN=PART` of some blocks, the first that "
              "matches counts: `blocks.{0-3}=block`; or `auto` (docs/memory.md). The results are the same bits.",
              OnResume::free},
    ConfigKey{"train.loss", [](Config& c) -> ConfigSlot { return &c.train.loss; }, any, "tokens|sequences", "",
              "What weighs alike in a step's loss and gradient where some targets count for nothing: `tokens`, each "
              "target that counts, over all micro-batches and ranks; or `sequences`, each sequence, by the mean "
              "over its targets that count."},
    ConfigKey{"train.loss_chunk", [](Config& c) -> ConfigSlot { return &c.train.loss_chunk; }, between(0, 1e9), "", "",
              "Tokens whose logits exist at once; 0: even shares, in multiples of 32, that keep them within 128 MiB, "
              "on GPUs 1 GiB (counted in f32)."},
    ConfigKey{"train.patience", [](Config& c) -> ConfigSlot { return &c.train.patience; }, between(0, 1e6), "", "",
              "The run ends when so many validations in a row were no better than the best before them; 0 never. "
              "Needs `run.validate_every`.",
              OnResume::free},
    ConfigKey{"train.time_limit", [](Config& c) -> ConfigSlot { return &c.train.time_limit; }, between(0, 1e8), "", "",
              "Time since the start, in seconds or as `\"H:MM:SS\"`, within which the run saves a checkpoint and "
              "stops with exit code 75; 0: none. In a Slurm job that says when it ends (`SLURM_JOB_END_TIME`) the "
              "run stops in time in any case. docs/checkpoints.md.",
              OnResume::free},
};

}  // namespace

std::span<const ConfigKey> keys_of_training() { return kTrainingKeys; }

}  // namespace zs
