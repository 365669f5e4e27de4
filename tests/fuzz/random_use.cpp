#include "tests/fuzz/random_use.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <stdexcept>

#include "tests/shard/scheme_cases.h"

namespace zs::test {
namespace {

constexpr const char* kKindNames[kKinds] = {"linear",      "layer_norm", "rms_norm", "mlp",  "attention",
                                            "convolution", "group_norm", "gru",      "lstm", "shared",
                                            "recomputed",  "dropout",    "scale"};
constexpr const char* kEventNames[kEvents] = {"none", "evaluation", "freeze",  "thaw",    "reload",
                                              "edit", "failed",     "skipped", "by_hand", "by_name"};

/// Sums do not depend on the number of ranks.
constexpr Division kDivision{Division::Rule::none};

Residence draw_residence(Random& random) {
  if (!random.one_in(4)) return {};
  return {.has_masters_on_host = random.one_in(2),
          .has_moments_on_host = random.one_in(2),
          .has_gradients_on_host = random.one_in(2),
          .has_accumulators_on_host = random.one_in(2)};
}

Way draw_way(Random& random) {
  Way way;
  way.ranks = random.of<int>({1, 2, 2, 3, 4, 4});
  way.scheme = random.of(scheme_names());
  if (way.ranks == 3 && way.scheme.find(' ') != std::string::npos) way.scheme = "zero3";
  ShardOptions& options = way.options;
  options.division = kDivision;
  if (random.one_in(2))
    options.layout = {.layout = Layout::per_parameter, .min_shard_bytes = random.of<std::int64_t>({0, 100})};
  options.schedule = {.prefetch = random.below(3),
                      .limit = random.below(3),
                      .max_reductions_in_flight = 1 + random.below(3),
                      .keep_root_unsharded = random.one_in(2),
                      .prefetch_after_backward = random.one_in(3),
                      .delays_reductions = random.one_in(3)};
  options.zero_copy = random.one_in(2);
  options.checks_writes = random.one_in(8) && way.ranks > 1 && way.scheme != "ddp";  // else it sees nothing
  options.residence = draw_residence(random);
  options.resident_units = random.one_in(4) ? 1 : 0;
  return way;
}

/// Sums an update over all elements of a slice: You et al. 2020 without moments.
struct Scaled : Optimizer {
  Scaled(Executor& executor, const OptimizerOptions& options)
      : Optimizer(executor, {.name = "Scaled", .has_norms = true}, options) {}
  Update slice_update() const override {
    return [](ExecContext&, const Slice& s) {
      const float rate = s.step().lr * (s.weight_norm() + 0.01f) / (s.direction_norm() + 0.01f);
      for (std::int64_t i = 0; s.step().skip == 0 && i < s.master.elems; ++i)
        s.master.as<float>()[i] -= rate * s.step().clip_coefficient * s.grad.as<float>()[i];
    };
  }
};

template <class Config>
Config with_shared(const Use& use, Config config) {
  config.clip = use.clip;
  config.order_free = true;
  if (use.has_groups) config.groups = {{.pattern = "pieces.*", .lr_scale = 0.5f, .weight_decay = 0.05f}};
  if constexpr (requires { config.average; }) config.average = use.average;
  if constexpr (requires { config.in_backward; }) config.in_backward = use.is_in_backward;
  return config;
}

std::unique_ptr<Optimizer> make_optimizer(const Use& use, Executor& executor) {
  if (use.optimizer == "sgd") return std::make_unique<Sgd>(executor, with_shared(use, SgdConfig{.momentum = 0.9f}));
  if (use.optimizer == "lion") return std::make_unique<Lion>(executor, with_shared(use, LionConfig{}));
  if (use.optimizer == "adamw8bit") return std::make_unique<AdamW8bit>(executor, with_shared(use, AdamWConfig{}));
  if (use.optimizer == "muon")
    return std::make_unique<Muon>(executor, with_shared(use, MuonConfig{.matrices = {"head.weight"}}));
  if (use.optimizer == "schedule_free")
    return std::make_unique<ScheduleFreeAdamW>(executor, with_shared(use, ScheduleFreeConfig{}));
  if (use.optimizer == "scaled") return std::make_unique<Scaled>(executor, with_shared(use, OptimizerOptions{}));
  return std::make_unique<AdamW>(executor, with_shared(use, AdamWConfig{}));
}

}  // namespace

const char* name_of(Kind kind) { return kKindNames[static_cast<std::size_t>(kind)]; }
const char* name_of(Event event) { return kEventNames[static_cast<std::size_t>(event)]; }

Use draw_use(std::uint64_t seed) {
  Random random(seed);
  Use use;
  use.seed = seed;
  for (int i = 0, count = 1 + random.below(4); i < count; ++i)
    use.pieces.push_back({static_cast<Kind>(random.below(kKinds)), !random.one_in(3)});
  for (PieceSpec& piece : use.pieces)
    if (piece.is_unit && random.one_in(6)) piece.scheme = random.of(main_schemes());
  use.optimizer = random.of<std::string>({"adamw", "sgd", "lion", "adamw8bit", "muon", "schedule_free", "scaled"});
  use.clip = random.one_in(2) ? 0 : 0.5f;
  use.average = random.one_in(5) && use.optimizer != "schedule_free" ? 0.9f : 0;
  use.has_groups = random.one_in(4);
  use.is_in_backward = use.optimizer == "adamw" && random.one_in(5);
  if (use.is_in_backward) use.clip = use.average = 0;
  use.param = random.one_in(3) ? DType::bf16 : DType::f32;
  use.steps = 2 + random.below(3);
  use.is_reduced_once = random.one_in(4);
  for (int i = 1; i < use.steps; ++i) use.events.push_back(static_cast<Event>(random.below(kEvents)));
  use.target = random.below(static_cast<int>(use.pieces.size()));
  use.way = draw_way(random);
  if (use.is_in_backward) use.way.options.zero_copy = false;
  if (use.is_in_backward || use.optimizer == "scaled" || use.average > 0 || use.optimizer == "schedule_free")
    use.way.options.residence = {}, use.way.options.resident_units = 0;
  return use;
}

std::string Use::describe() const {
  std::string text = fmt::format("seed {}: {} ranks, {}, {}, {} steps, {}", seed, way.ranks, way.scheme, optimizer,
                                 steps, zs::name_of(param));
  for (const PieceSpec& piece : pieces)
    text += fmt::format(", {}{}", test::name_of(piece.kind), piece.is_unit ? "" : " in the root") +
            (piece.scheme.empty() ? "" : " as " + piece.scheme);
  if (is_reduced_once) text += "; NoSync";
  for (const Event event : events) text += fmt::format("; {}", test::name_of(event));
  return text;
}

Use Use::plain() const {
  Use one = *this;
  for (PieceSpec& piece : one.pieces) piece.scheme.clear();
  one.way = {.ranks = is_reduced_once ? way.ranks : 1, .options = {.division = kDivision}};
  return one;
}

Piece::Piece(std::string path, Kind of) : Layer(std::move(path)), kind(of) {
  const LinearOptions wide{.init = {.normal_std = 0.3f}};
  if (kind == Kind::linear || kind == Kind::shared || kind == Kind::recomputed)
    linear = &make_child<Linear>("linear", kWidth, kWidth, wide);
  if (kind == Kind::layer_norm) norm = &make_child<LayerNorm>("norm", kWidth);
  if (kind == Kind::rms_norm) norm = &make_child<RMSNorm>("norm", kWidth);
  if (kind == Kind::mlp)
    mlp = &make_child<Mlp>("mlp", MlpOptions{.width = kWidth, .hidden = 12, .activation = Activation::swiglu});
  if (kind == Kind::attention)
    attention = &make_child<Attention>("attention", AttentionOptions{.width = kWidth, .heads = 2, .kv_heads = 1});
  if (kind == Kind::convolution)
    conv = &make_child<Conv1d>("conv", kWidth, kWidth, 3, Conv1dOptions{.padding = 1, .groups = 2});
  if (kind == Kind::group_norm) group_norm = &make_child<GroupNorm>("norm", 2, kWidth);
  if (kind == Kind::gru) gru = &make_child<Gru>("gru", kWidth, kWidth);
  if (kind == Kind::lstm) lstm = &make_child<Lstm>("lstm", kWidth, kWidth);
  if (kind == Kind::dropout) dropout = &make_child<Dropout>("dropout", 0.25f);
  if (kind == Kind::scale) scale = &add_parameter("scale", {kWidth}, {.constant = 0.5f}, false);
}

Tensor Piece::of(const Tensor& x) {
  switch (kind) {
    case Kind::linear: return x + relu((*linear)(x));
    case Kind::layer_norm:
    case Kind::rms_norm: return (*norm)(x);
    case Kind::mlp: return x + (*mlp)(x);
    case Kind::attention: return x + (*attention)(x);
    case Kind::convolution: return x + transpose((*conv)(transpose(x, 1, 2)), 1, 2);
    case Kind::group_norm: return transpose((*group_norm)(transpose(x, 1, 2)), 1, 2);
    case Kind::gru: return (*gru)(x).outputs;
    case Kind::lstm: return (*lstm)(x).outputs;
    case Kind::shared: return (*linear)(tanh((*linear)(x)));
    case Kind::recomputed:
      return recompute({x}, [this](const std::vector<Tensor>& in) { return in[0] + silu((*linear)(in[0])); });
    case Kind::dropout: return (*dropout)(x);
    case Kind::scale: return x * sigmoid(x) * as_tensor(x.context(), *scale) + square(x) * 0.125f;
  }
  throw std::logic_error("an unknown piece");
}

Tensor Piece::forward(const Tensor& x) { return output(of(input(x))); }

RandomNet::RandomNet(const std::vector<PieceSpec>& specs) {
  for (const PieceSpec& spec : specs) pieces.add(spec.kind);
}

Tensor RandomNet::forward(const Tensor& ids) {
  Tensor x = tokens(ids);
  for (Piece* piece : pieces) x = (*piece)(x);
  return head(input(x));
}

UseTrainer::UseTrainer(Job& of_job, const Use& of_use)
    : job(of_job), use(of_use), net(std::make_unique<RandomNet>(of_use.pieces)) {
  for (std::size_t i = 0; i < use.pieces.size(); ++i) {
    const PieceSpec& piece = use.pieces[i];
    UnitPolicy policy;
    if (!piece.scheme.empty()) policy.scheme = scheme_of(piece.scheme, use.way.ranks);
    if (piece.is_unit) fully_shard(net->pieces[static_cast<std::int64_t>(i)], policy);
  }
  FullyShardOptions options{.shard = use.way.options};
  options.shard.scheme = scheme_of(use.way.scheme, use.way.ranks);
  options.shard.scheme.deterministic = true;
  options.shard.precision.param = use.param;
  options.shard.seed = 3;
  model = std::make_unique<ShardedModel>(fully_shard(*net, job, options));
  optimizer = make_optimizer(use, *model);
}

Tensor UseTrainer::loss(int step, int sample) {
  std::vector<std::int32_t> ids, targets;
  for (int i = 0; i < kTime; ++i) {
    ids.push_back((step * 5 + sample * 7 + i * 3) % static_cast<int>(kVocab));
    targets.push_back((ids.back() * 5 + 1) % static_cast<int>(kVocab));
  }
  const Tensor logits = (*net)(Tensor::from_host(job.context, {1, kTime}, ids));
  return cross_entropy(logits, Tensor::from_host(job.context, {1, kTime}, targets));
}

void UseTrainer::accumulate(int step, float seed) {
  const int each = kSamples / job.ranks();
  for (int i = 0; i < each; ++i) {
    const bool is_last = i + 1 == each;
    std::optional<NoSync> no_sync;
    if (use.is_reduced_once && !is_last) no_sync.emplace(model->runtime());
    auto micro_batch = model->micro_batch({.last = is_last});
    const Tensor one = loss(step, i * job.ranks() + job.rank());
    one.backward(seed / kSamples);
    micro_batch.end();
  }
}

void UseTrainer::step(int number) {
  if (use.is_in_backward) optimizer->begin_step(0.02f);
  accumulate(number);
  use.is_in_backward ? optimizer->end_step() : optimizer->step(0.02f);
}

Weights UseTrainer::weights() {
  Weights named;
  for (std::size_t unit = 0; unit < model->executor().units().size(); ++unit) {
    model->executor().read_full(static_cast<int>(unit), [&](const Parameter& parameter, const float* values) {
      named.emplace_back(parameter.name(), std::vector<float>(values, values + parameter.numel()));
    });
  }
  std::sort(named.begin(), named.end());
  return named;
}

std::string UseTrainer::fresh_folder(const std::string& name) {
  model->runtime().mean_over_ranks(0.0);
  if (job.is_first()) std::filesystem::remove_all(name);
  model->runtime().mean_over_ranks(0.0);
  return name;
}

}  // namespace zs::test
