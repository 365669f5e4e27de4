#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/zshard/zshard.h"

/// Uses of the library that are drawn at random: a model of random layers, a way to shard it, an optimizer, and a
/// schedule of what happens when. All of it follows from a seed.
namespace zs::test {

/// Numbers that follow from a seed, the same everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) { state_ = next(); }
  std::uint64_t next() {
    std::uint64_t x = state_ += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }
  /// 0 ... count - 1
  int below(int count) { return static_cast<int>(next() % static_cast<std::uint64_t>(count)); }
  bool one_in(int count) { return below(count) == 0; }
  template <class T>
  T of(const std::vector<T>& choices) {
    return choices[next() % choices.size()];
  }

 private:
  std::uint64_t state_;
};

inline constexpr std::int64_t kWidth = 8, kTime = 4, kVocab = 12;
/// Samples of a step, each a micro-batch of its own, dealt out to the ranks in turn.
inline constexpr int kSamples = 12;

enum class Kind : std::uint8_t {
  linear,
  layer_norm,
  rms_norm,
  mlp,
  attention,
  convolution,
  group_norm,
  gru,
  lstm,
  shared,
  recomputed,
  dropout,
  scale
};
inline constexpr int kKinds = 13;
const char* name_of(Kind kind);

/// One layer, which may be a unit.
struct PieceSpec {
  Kind kind;
  bool is_unit = true;
  std::string scheme = {};  // of a unit that is placed otherwise than the rest
};

/// Event before a step.
enum class Event : std::uint8_t { none, evaluation, freeze, thaw, reload, edit, failed, skipped, by_hand, by_name };
inline constexpr int kEvents = 10;
const char* name_of(Event event);

/// One way to shard, at so many ranks.
struct Way {
  int ranks = 1;
  std::string scheme = "zero3";
  ShardOptions options = {};
};

struct Use {
  std::uint64_t seed = 0;
  std::vector<PieceSpec> pieces;
  std::string optimizer;
  float clip = 0, average = 0;
  bool is_in_backward = false, has_groups = false;
  DType param = DType::f32;
  int steps = 2;
  bool is_reduced_once = false;  // micro-batches but the last are under NoSync
  std::vector<Event> events;     // one before each step, after the first
  int target = 0;                // piece that events are of
  Way way;

  std::string describe() const;
  /// The same on one rank, plainly sharded; where gradients of micro-batches are added up on each rank before they are
  /// reduced, which is another order, at the same number of ranks.
  Use plain() const;
};

Use draw_use(std::uint64_t seed);

/// x (B, T, kWidth) -> (B, T, kWidth)
struct Piece : Layer<Piece> {
  Piece(std::string path, Kind of);
  Tensor forward(const Tensor& x);

  Kind kind;
  Linear* linear = nullptr;
  Norm* norm = nullptr;
  Mlp* mlp = nullptr;
  Attention* attention = nullptr;
  Conv1d* conv = nullptr;
  GroupNorm* group_norm = nullptr;
  Gru* gru = nullptr;
  Lstm* lstm = nullptr;
  Dropout* dropout = nullptr;
  Parameter* scale = nullptr;

 private:
  Tensor of(const Tensor& x);
};

struct RandomNet : Layer<RandomNet> {
  explicit RandomNet(const std::vector<PieceSpec>& specs);
  /// ids (B, T) -> logits (B, T, kVocab)
  Tensor forward(const Tensor& ids);

  Embedding& tokens = make_child<Embedding>("tokens", kVocab, kWidth, Init{.normal_std = 0.5f});
  ModuleList<Piece>& pieces = make_child<ModuleList<Piece>>("pieces");
  Linear& head = make_child<Linear>("head", kWidth, kVocab, LinearOptions{.init = {.normal_std = 0.3f}});
};

/// Values of each parameter, by name.
using Weights = std::vector<std::pair<std::string, std::vector<float>>>;

/// A model, sharded as a use says, and what trains it.
class UseTrainer {
 public:
  UseTrainer(Job& job, const Use& use);

  /// Loss of one sample (1, T).
  Tensor loss(int step, int sample);
  /// This rank's micro-batches of a step.
  void accumulate(int step, float seed = 1);
  void step(int number);
  Weights weights();
  TrainingState state() { return {job.world, *model, *optimizer}; }
  /// Empty on every rank.
  std::string fresh_folder(const std::string& name);

  Job& job;
  Use use;
  std::unique_ptr<RandomNet> net;
  std::unique_ptr<ShardedModel> model;
  std::unique_ptr<Optimizer> optimizer;
  std::vector<float> losses;  // of this rank's samples
};

/// What a use came to.
struct Outcome {
  Weights weights;
  std::vector<float> evaluations;  // of rank 0
  bool operator==(const Outcome&) const = default;
};
Outcome run_use(Job& job, const Use& use);

}  // namespace zs::test
