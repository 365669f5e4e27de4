#include "model/train/config/config_keys.h"

#include <array>

#include "runtime/shard/experts/expert_exchange.h"

namespace zs {
namespace {

using namespace config_ranges;

constexpr std::array kRunningKeys = {
    ConfigKey{"shard.units", [](Config& c) -> ConfigSlot { return &c.shard.units; }, any, "block|model|plan",
              "`\"plan\"` where there is a `plan.apply`, else `\"block\"`",
              "What is gathered at once: transformer blocks (`shard.unit_mib`), the whole model, or the modules of "
              "a plan (docs/plans.md).",
              OnResume::free},
    ConfigKey{"shard.unit_mib", [](Config& c) -> ConfigSlot { return &c.shard.unit_mib; }, between(-1, 1048576), "", "",
              "Consecutive blocks form one unit, so that each unit has at least so many MiB of parameters (of "
              "`precision.param`). 0: each block is a unit. Below 0: 64 over NCCL, else 0. `shard.units = "
              "\"block\"` only. docs/sharding.md.",
              OnResume::free},
    ConfigKey{"shard.strategy", [](Config& c) -> ConfigSlot { return &c.shard.strategy; }, any, kStrategies, "",
              "What is sharded over which ranks; docs/sharding.md compares them.", OnResume::free},
    ConfigKey{
        "shard.group_size", [](Config& c) -> ConfigSlot { return &c.shard.group_size; }, between(0, 1048576), "", "",
        "Ranks of a small group, for `hsdp` and `nested`; must divide the ranks. 0: those of a host, if every host "
        "has equally many, one after the other.",
        OnResume::free},
    ConfigKey{"shard.reshard_after_forward", [](Config& c) -> ConfigSlot { return &c.shard.reshard_after_forward; },
              any, "", "`true` for strategies that shard parameters, but for `shard_grad_op`",
              "Free a unit's parameters after its forward and gather them again for its backward. A number k leaves "
              "them sharded over groups of k ranks in between; k divides the ranks (`zero3`) or `shard.group_size` "
              "(`hsdp`).",
              OnResume::free},
    ConfigKey{"shard.keep_root_unsharded", [](Config& c) -> ConfigSlot { return &c.shard.keep_root_unsharded; }, any,
              "", "",
              "Keep root and last unit gathered from forward to backward, and root and first unit from one "
              "micro-batch to the next.",
              OnResume::free},
    ConfigKey{"shard.prefetch", [](Config& c) -> ConfigSlot { return &c.shard.prefetch; }, between(0, 8), "", "",
              "Units gathered ahead of the one that computes; a block, its adapters and its experts count as one.",
              OnResume::free},
    ConfigKey{"shard.limit", [](Config& c) -> ConfigSlot { return &c.shard.limit; }, between(0, 64), "", "",
              "Units, beside the root and those that stay gathered, whose whole parameters may exist at once. 0: "
              "`shard.prefetch` + 1; less cuts the prefetch short, more lets gathers run further ahead of compute.",
              OnResume::free},
    ConfigKey{"shard.reduce_every_micro_batch",
              [](Config& c) -> ConfigSlot { return &c.shard.reduce_every_micro_batch; }, any, "",
              "`false` for `zero1` and `shard_grad_op`, else `true`",
              "Reduce gradients after every micro-batch, which keeps them sharded in between, or once a step. Always "
              "every micro-batch with "
              "`train.deterministic`.",
              OnResume::free},
    ConfigKey{"shard.all_reduce_every_micro_batch",
              [](Config& c) -> ConfigSlot { return &c.shard.all_reduce_every_micro_batch; }, any, "", "",
              "Sum gradients over replicas (`ddp`, `hsdp`) after every micro-batch, or once a step.", OnResume::free},
    ConfigKey{"shard.compress_gather", [](Config& c) -> ConfigSlot { return &c.shard.compress_gather; }, any,
              "none|int8|fp8", "",
              "How parameters travel when they are gathered from the master shards: as they are, as integers of 8 bits "
              "(`int8`), or as 8-bit floating-point numbers (`fp8`, e4m3), either with a scale for every 256. The "
              "master weights stay exact. Not with `train.deterministic`.",
              OnResume::free},
    ConfigKey{"shard.compress_reduce", [](Config& c) -> ConfigSlot { return &c.shard.compress_reduce; }, any,
              "none|int8", "",
              "How gradients travel that are reduce-scattered: as they are, or as integers of 8 bits in the same way; "
              "they are summed in f32. Sums over replicas (`ddp`, "
              "`hsdp`) travel as they "
              "are. Not with `train.deterministic`.",
              OnResume::free},
    ConfigKey{"shard.max_reductions_in_flight",
              [](Config& c) -> ConfigSlot { return &c.shard.max_reductions_in_flight; }, between(1, 64), "", "",
              "Whole gradient buffers that may wait for their reduction.", OnResume::free},
    ConfigKey{"shard.layout", [](Config& c) -> ConfigSlot { return &c.shard.layout; }, any, kLayouts, "",
              "How a unit is cut: `flat`, all its parameters as one, or `per_parameter`, each on a dim of its own.",
              OnResume::free},
    ConfigKey{"shard.min_shard_bytes", [](Config& c) -> ConfigSlot { return &c.shard.min_shard_bytes; },
              between(0, 1e12), "", "",
              "Parameters of fewer bytes (of `precision.param`) stay whole on every rank; `per_parameter` only. Their "
              "gradients are reduced as "
              "all others are.",
              OnResume::free},
    ConfigKey{"shard.dims", [](Config& c) -> ConfigSlot { return &c.shard.dims; }, any, "",
              "the first dim of each parameter",
              "`\"PATTERN=DIM\"`: on which dim parameters are sharded, negative from the last; `*` matches any part "
              "of a name, `{0-3}` an integer (docs/plans.md); the first pattern that matches counts. "
              "`per_parameter` only.",
              OnResume::free},
    ConfigKey{"shard.zero_copy", [](Config& c) -> ConfigSlot { return &c.shard.zero_copy; }, any, "auto|off", "",
              "`auto`: where the ranks of a host can share memory, and layout and strategy allow it, units are read "
              "where their shards lie. `off`: every rank gathers a copy. The results are the same bits.",
              OnResume::free},
    ConfigKey{"shard.pregather", [](Config& c) -> ConfigSlot { return &c.shard.pregather; }, any, "", "",
              "Gather every unit before a step begins; the whole model's parameters exist at once.", OnResume::free},

    ConfigKey{"experts.parallel", [](Config& c) -> ConfigSlot { return &c.experts.parallel; }, between(1, 1024), "", "",
              "Ranks that the experts of a mixture are dealt over, each of which has as many: tokens travel to their "
              "experts, instead of experts to all ranks (docs/sharding.md). Divides `model.experts` and the ranks. Not "
              "with `train.deterministic`.",
              OnResume::free},
    ConfigKey{"experts.group_size", [](Config& c) -> ConfigSlot { return &c.experts.group_size; }, between(0, 1048576),
              "", "",
              "Ranks over which each rank's experts are sharded; the groups are replicas of each other. 0: ranks / "
              "`experts.parallel`, sharded as `shard.strategy` says, or `zero3` where that is `hsdp` or `nested`.",
              OnResume::free},
    ConfigKey{"experts.dispatcher", [](Config& c) -> ConfigSlot { return &c.experts.dispatcher; }, any, kDispatchers,
              "",
              "How tokens travel: each to the ranks of its experts and back, or all to all `experts.parallel` ranks, "
              "which sum up what their experts make of them. The latter sends less where a token has as many experts "
              "as there are such ranks, or more.",
              OnResume::free},
    ConfigKey{"experts.divide", [](Config& c) -> ConfigSlot { return &c.experts.divide; }, between(0, 1e9), "", "",
              "Divides the sum over all ranks of the experts' gradients; 0: the number of ranks, which makes it the "
              "mean, as that of all other parameters.",
              OnResume::free},
    ConfigKey{"experts.apply", [](Config& c) -> ConfigSlot { return &c.experts.apply; }, any, "",
              "the experts of every mixture",
              "Patterns of the experts that the keys above speak of, by their modules: `\"blocks.{0-3}.mlp.experts\"`.",
              OnResume::free},

    ConfigKey{"tensor.parallel", [](Config& c) -> ConfigSlot { return &c.tensor.parallel; }, between(1, 1024), "", "",
              "Neighbouring ranks that read the same samples, and that products are cut over, by heads, by the hidden "
              "dim and by the vocabulary (docs/sharding.md). Divides the ranks, `shard.group_size`, `model.heads`, "
              "`model.kv_heads` and `model.hidden`. Not with `train.deterministic`, experts, adapters or plans.",
              OnResume::free},

    ConfigKey{"plan.apply", [](Config& c) -> ConfigSlot { return &c.plan.apply; }, any, "", "no plan",
              "Patterns of modules that are units, in the order in which they run. The root is always one and owns "
              "what is in no other. docs/plans.md.",
              OnResume::free},
    ConfigKey{"plan.hooks", [](Config& c) -> ConfigSlot { return &c.plan.hooks; }, any, "", "",
              "Patterns of modules whose forward opens all units in them at once.", OnResume::free},
    ConfigKey{"plan.reshard", [](Config& c) -> ConfigSlot { return &c.plan.reshard; }, any, "",
              "`shard.reshard_after_forward`",
              "`\"PATTERN=VALUE\"`: what units do otherwise than `shard.reshard_after_forward`: `true`, `false` or a "
              "number of ranks. The first pattern that matches a unit counts, here and below; the root is `root`.",
              OnResume::free},
    ConfigKey{"plan.strategy", [](Config& c) -> ConfigSlot { return &c.plan.strategy; }, any, "", "`shard.strategy`",
              "`\"PATTERN=STRATEGY\"`: units with another strategy. `hsdp` and `nested` have groups of "
              "`shard.group_size`, or of the ranks of a host.",
              OnResume::free},
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
              "or all of one hook's. 0: as many units as `shard.prefetch` says, in the order in which they ran.",
              OnResume::free},
    ConfigKey{"plan.backward", [](Config& c) -> ConfigSlot { return &c.plan.backward; }, between(0, 64), "", "",
              "The same in backward.", OnResume::free},

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

    ConfigKey{
        "precision.frozen", [](Config& c) -> ConfigSlot { return &c.precision.frozen; }, any, "auto|f32|bf16", "",
        "How weights are held that are not trained (beside adapters, or by `train.frozen`). `bf16`: once, 2 bytes "
        "each, and cast for each gather where `precision.param` is f32; `f32`: as trained ones, without gradients "
        "and moments; `auto`: `bf16` where all that is in the folder `model.path` is bf16, else `f32`."},
    ConfigKey{"precision.quantize", [](Config& c) -> ConfigSlot { return &c.precision.quantize; }, any, "none|int8|nf4",
              "",
              "Format in which those of them are held, and gathered, that are matrices of blocks, instead of "
              "`precision.frozen`: `int8`, 1.02 bytes each, or `nf4`, 0.56 bytes. They are decoded for each use "
              "(docs/fine-tuning.md)."},

    ConfigKey{"offload.weights", [](Config& c) -> ConfigSlot { return &c.offload.weights; }, any,
              "device|host|disk:FOLDER", "",
              "Where the f32 weights are kept. `host`: in memory of the host, page-locked where there is a GPU, from "
              "where f32 units come for each gather; `disk:FOLDER`: in a file in that folder, with `precision.param = "
              "\"bf16\"`. bf16 shards stay on the device. docs/offload.md.",
              OnResume::free},
    ConfigKey{"offload.gradients", [](Config& c) -> ConfigSlot { return &c.offload.gradients; }, any, "device|host", "",
              "The same of the reduced gradients, between the micro-batches that add to them and until the update.",
              OnResume::free},
    ConfigKey{"offload.accumulator", [](Config& c) -> ConfigSlot { return &c.offload.accumulator; }, any, "device|host",
              "", "The same, between micro-batches, of whole gradients and sums that wait for the step's last one.",
              OnResume::free},
    ConfigKey{"offload.moments", [](Config& c) -> ConfigSlot { return &c.offload.moments; }, any,
              "device|host|disk:FOLDER", "", "The same of the optimizer's state: AdamW's two moments, SGD's momentum.",
              OnResume::free},
    ConfigKey{"offload.update", [](Config& c) -> ConfigSlot { return &c.offload.update; }, any, "device|host|auto", "",
              "Whose processors update what the host keeps. `host`: nothing of it moves for that; `auto`: the faster "
              "(docs/offload.md).",
              OnResume::free},
    ConfigKey{"offload.activations", [](Config& c) -> ConfigSlot { return &c.offload.activations; }, any, "device|host",
              "", "Where inputs of recomputed blocks are between forward and backward (docs/offload.md).",
              OnResume::free},
    ConfigKey{"offload.resident_units", [](Config& c) -> ConfigSlot { return &c.offload.resident_units; },
              between(0, 1048576), "", "",
              "The first units, of which the device keeps all but activations; `auto`: as many as fit.",
              OnResume::free},
    ConfigKey{"offload.device_mib", [](Config& c) -> ConfigSlot { return &c.offload.device_mib; }, between(0, 1e9), "",
              "", "A run whose plan needs more of the device's memory on a rank is refused; 0: the machine's limits.",
              OnResume::free},
    ConfigKey{"offload.host_mib", [](Config& c) -> ConfigSlot { return &c.offload.host_mib; }, between(0, 1e9), "", "",
              "The same of the memory of the host beside the device's.", OnResume::free},
    ConfigKey{"offload.cpu_link_gbs", [](Config& c) -> ConfigSlot { return &c.offload.cpu_link_gbs; }, between(0, 1e6),
              "", "",
              "On the CPU: the bandwidth between device and host in 10^9 bytes a second, to see what a real link "
              "would cost; 0: as fast as the CPU copies.",
              OnResume::free},

    ConfigKey{"comm.transport", [](Config& c) -> ConfigSlot { return &c.comm.transport; }, any,
              "auto|hier|shm|mpi|local|null", "",
              "Under `mpirun` `auto` is `hier`, which chooses for each group of ranks: `shm`, shared memory, on one "
              "host; `mpi`, messages, where each is on a host of its own; else `shm` inside the hosts and `mpi` "
              "across. The variable `ZSHARD_TRANSPORT` may name another. Without `mpirun` it is `local`: ranks are "
              "threads of one process. `null` moves nothing, to measure a run without communication; its results "
              "are meaningless, and are not saved.",
              OnResume::free},
    ConfigKey{"comm.omit", [](Config& c) -> ConfigSlot { return &c.comm.omit; }, any, "none|gathers|reductions|both",
              "",
              "What moves nothing and waits for nobody, to measure a run without it: gathers of parameters, "
              "reductions of gradients, or both. The results are meaningless, and are not saved.",
              OnResume::free},
    ConfigKey{"comm.ranks", [](Config& c) -> ConfigSlot { return &c.comm.ranks; }, between(1, 256), "", "",
              "Ranks of the `local` transport; `mpirun -np` says it otherwise.", OnResume::free},
    ConfigKey{"comm.interface", [](Config& c) -> ConfigSlot { return &c.comm.interface; }, any, "", "",
              "Network between hosts: names of interfaces (`eth0`), or addresses (`10.1.0.0/16`), separated by commas, "
              "for Open MPI's TCP and NCCL, unless `--mca` or the environment tells them; empty: all that they find. "
              "mpirun's own connections need `--mca oob_tcp_if_include`.",
              OnResume::free},
    ConfigKey{"comm.timeout_s", [](Config& c) -> ConfigSlot { return &c.comm.timeout_s; }, between(1, 86400), "", "",
              "Seconds after which a silent peer is given up.", OnResume::free},
    ConfigKey{"comm.race_check_ms", [](Config& c) -> ConfigSlot { return &c.comm.race_check_ms; }, between(0, 1000), "",
              "",
              "Above 0, for debugging: operations between ranks run on private copies and end up to so many "
              "milliseconds later. Touching a buffer in use is an error, exit code 70.",
              OnResume::free},

    ConfigKey{"cuda.tf32", [](Config& c) -> ConfigSlot { return &c.cuda.tf32; }, any, "", "",
              "Products of f32 on a GPU may round their operands to tf32 (11 bits): faster. Without effect on those of "
              "bf16, and on the CPU."},
    ConfigKey{"cuda.fused_gelu", [](Config& c) -> ConfigSlot { return &c.cuda.fused_gelu; }, any, "", "",
              "Products of bf16 on a GPU (compute capability 9.0 and later) also compute GELU by tanh, and its "
              "gradient, where cuBLASLt has that. docs/gpu.md."},
    ConfigKey{
        "cuda.tune_products", [](Config& c) -> ConfigSlot { return &c.cuda.tune_products; }, any, "", "",
        "The first step times cuBLASLt's algorithms for each product; from the second on all ranks use those that "
        "were fastest on rank 0. Another run may choose others, with other bits. docs/gpu.md."},
    ConfigKey{"cuda.attention", [](Config& c) -> ConfigSlot { return &c.cuda.attention; }, any, "auto|own|cudnn", "",
              "Attention of bf16 on a GPU: `own` kernels, or cuDNN's. `auto`: cuDNN's where it is found, without "
              "`train.deterministic`. docs/gpu.md."},
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
    ConfigKey{
        "cuda.libraries", [](Config& c) -> ConfigSlot { return &c.cuda.libraries; }, any, "", "",
        "Folders, separated by colons, in which cuBLASLt, cuDNN and NCCL are looked for first; then where the loader "
        "looks, below `$CUDA_HOME`, `$CUDA_PATH` and `/usr/local/cuda`, and in the packages of the Python in "
        "use."},

    ConfigKey{"watchdog.init_s", [](Config& c) -> ConfigSlot { return &c.watchdog.init_s; }, between(0, 86400), "", "",
              "Seconds that a rank may stand still while the job starts; 0: for ever. docs/reliability.md says what "
              "standing still is.",
              OnResume::free},
    ConfigKey{"watchdog.first_step_s", [](Config& c) -> ConfigSlot { return &c.watchdog.first_step_s; },
              between(0, 86400), "", "", "The same in the first step of a run.", OnResume::free},
    ConfigKey{"watchdog.step_s", [](Config& c) -> ConfigSlot { return &c.watchdog.step_s; }, between(0, 86400), "", "",
              "The same in every later step, and its validation.", OnResume::free},
    ConfigKey{"watchdog.checkpoint_s", [](Config& c) -> ConfigSlot { return &c.watchdog.checkpoint_s; },
              between(0, 86400), "", "",
              "The same while a checkpoint or the final weights are written, and at the end of the job.",
              OnResume::free},
    ConfigKey{"watchdog.hosts", [](Config& c) -> ConfigSlot { return &c.watchdog.hosts; }, any, "", "",
              "Ranks of several hosts tell each other what they do, once a second by UDP. docs/reliability.md.",
              OnResume::free},

    ConfigKey{"checkpoint.every", [](Config& c) -> ConfigSlot { return &c.checkpoint.every; }, between(0, 1e9), "", "",
              "Steps between checkpoints, and one at the end; 0 saves only when the run is asked to stop.",
              OnResume::free},
    ConfigKey{"checkpoint.every_minutes", [](Config& c) -> ConfigSlot { return &c.checkpoint.every_minutes; },
              between(0, 1e6), "", "",
              "Minutes between checkpoints, and one at the end: behind the first step that ends so long after the last "
              "one began. 0: "
              "none by time. Goes with `checkpoint.every`.",
              OnResume::free},
    ConfigKey{"checkpoint.background", [](Config& c) -> ConfigSlot { return &c.checkpoint.background; }, any, "", "",
              "Steps wait only until the state is copied to memory of the host (12 bytes a parameter of the rank's "
              "shards with AdamW); a thread writes the checkpoint. docs/checkpoints.md.",
              OnResume::free},
    ConfigKey{"checkpoint.keep", [](Config& c) -> ConfigSlot { return &c.checkpoint.keep; }, between(0, 1e6), "", "",
              "Checkpoints that stay, the newest; 0 keeps all. A run that goes on keeps as many as it did, unless this "
              "is given."},
    ConfigKey{"checkpoint.keep_best", [](Config& c) -> ConfigSlot { return &c.checkpoint.keep_best; }, any, "", "",
              "The step with the lowest validation loss so far is saved, and its checkpoint stays beside those of "
              "`checkpoint.keep`; needs `run.validate_every` and validation data."},
    ConfigKey{"checkpoint.frozen", [](Config& c) -> ConfigSlot { return &c.checkpoint.frozen; }, any, "exclude|include",
              "`exclude`, where frozen weights come from `model.path`",
              "Whether checkpoints and final weights hold weights that are not trained. `exclude`: they name the "
              "folder that has them, "
              "its size and a hash, and need it to go on. docs/checkpoints.md.",
              OnResume::free},
    ConfigKey{"checkpoint.on_full", [](Config& c) -> ConfigSlot { return &c.checkpoint.on_full; }, any, "stop|warn", "",
              "Where there is no room for a checkpoint: `stop` ends the run (exit code 74); `warn` goes on without "
              "it, unless a stop asked for it.",
              OnResume::free},

    ConfigKey{"run.dir", [](Config& c) -> ConfigSlot { return &c.run.dir; }, any, "",
              "`runs/NAME-N` with the next free N",
              "Folder for what the run writes; `~` and `$NAME` as in `data.train`.", OnResume::free},
    ConfigKey{"run.validate_every", [](Config& c) -> ConfigSlot { return &c.run.validate_every; }, between(0, 1e9), "",
              "", "Steps between validations; 0 never validates.", OnResume::free},
    ConfigKey{"run.validate_first", [](Config& c) -> ConfigSlot { return &c.run.validate_first; }, any, "", "",
              "A new run validates before its first step too; needs `run.validate_every`.", OnResume::free},
    ConfigKey{"run.validate_average", [](Config& c) -> ConfigSlot { return &c.run.validate_average; }, any, "", "",
              "Validations are of the average of the weights; needs `train.average`.", OnResume::free},
    ConfigKey{"run.validate_batches", [](Config& c) -> ConfigSlot { return &c.run.validate_batches; }, between(1, 1e6),
              "", "", "Global batches a validation; where the validation part has less, all of it, each sample once.",
              OnResume::free},
    ConfigKey{"run.evaluate", [](Config& c) -> ConfigSlot { return &c.run.evaluate; }, any, "", "none",
              "Files of tasks that each validation goes through, too (docs/inference.md); they are looked up as "
              "`data.train` is. Needs `run.validate_every`, not validation data.",
              OnResume::free},
    ConfigKey{"run.lost_updates_every", [](Config& c) -> ConfigSlot { return &c.run.lost_updates_every; },
              between(0, 1e9), "", "",
              "Steps between counts of the weights that a step has left as they were (docs/looking-at-a-run.md); 0 "
              "never counts.",
              OnResume::free},
    ConfigKey{"run.sample_tokens", [](Config& c) -> ConfigSlot { return &c.run.sample_tokens; }, between(0, 1e6), "",
              "200 for text and where there is a tokenizer, else 0",
              "Length of the sample that is printed at the end; 0 prints none.", OnResume::free},
    ConfigKey{"run.sample_prompt", [](Config& c) -> ConfigSlot { return &c.run.sample_prompt; }, any, "", "",
              "Text that the sample goes on from.", OnResume::free},
    ConfigKey{
        "run.export", [](Config& c) -> ConfigSlot { return &c.run.export_to; }, any, "", "",
        "A new folder into which the end of the run writes the model as transformers loads it, or a new file NAME.gguf "
        "(docs/huggingface.md); empty: none.",
        OnResume::free},
    ConfigKey{"run.export_dtype", [](Config& c) -> ConfigSlot { return &c.run.export_dtype; }, any,
              "f32|bf16|f16|q8_0|q6_K|q4_K_M", "`\"f32\"`; beside `model.path` what that folder has",
              "What its weights are stored in; `q8_0`, `q6_K` and `q4_K_M` in a GGUF file only.", OnResume::free},
    ConfigKey{"run.export_shard_mib", [](Config& c) -> ConfigSlot { return &c.run.export_shard_mib; }, between(1, 1e9),
              "", "", "About how much a file of its weights has at most; more go into several files with an index.",
              OnResume::free},
    ConfigKey{"run.tensorboard", [](Config& c) -> ConfigSlot { return &c.run.tensorboard; }, any, "", "",
              "Write the numbers of `metrics.jsonl` for TensorBoard, too. docs/looking-at-a-run.md.", OnResume::free},
};

}  // namespace

std::span<const ConfigKey> keys_of_running() { return kRunningKeys; }

}  // namespace zs
