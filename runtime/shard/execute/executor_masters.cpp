// The weights that are held: drawn, cast, updated, read.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/buffer_race_check.h"
#include "runtime/base/random.h"
#include "runtime/base/usage_error.h"
#include "runtime/shard/execute/executor.h"
#include "runtime/tensor/host_view.h"

namespace zs {
namespace {

/// Most elements that are cast or read for the host at once.
constexpr std::int64_t kPieceElems = std::int64_t{1} << 20;

bool is_zero(const Init& init) {
  return !init.function && init.normal_std == 0 && init.uniform_bound == 0 && init.constant == 0;
}

/// Draws the initial values of parameters, each by itself, so that any number of threads draw the same.
struct InitialValues {
  std::uint64_t seed;
  int threads;
  std::vector<float> values = {};

  /// The values in bf16, to nearest, where they are wanted so; else nothing.
  std::vector<BFloat16> rounded_for(DType dtype) const {
    return dtype == DType::bf16 ? std::vector<BFloat16>(values.begin(), values.end()) : std::vector<BFloat16>();
  }

  /// Draws elements of a segment from its element `begin` on, as many as are worth a copy.
  void draw(const FlatView& view, const ShardSegment& segment, std::int64_t begin) {
    constexpr std::int64_t kMost = std::int64_t{1} << 18, kWorthATeam = 1 << 12;
    values.resize(static_cast<std::size_t>(std::min(kMost, segment.count - begin)));
    const Init& init = view.init;
    const TensorParts parts(view.whole_shape(), view.part);
    const auto element = [&](std::int64_t i) { return parts.in_whole(view.part.index, segment.element(begin + i)); };
    if (init.function) {
      for (std::int64_t i = 0; i < std::ssize(values); ++i)
        values[static_cast<std::size_t>(i)] = init.function(element(i));
      return;
    }
    const bool is_normal = init.normal_std != 0;
    if (!is_normal && init.uniform_bound == 0) return std::fill(values.begin(), values.end(), init.constant);
    const CounterRng rng(seed, hash_name(view.name));
#pragma omp parallel for schedule(static) num_threads(std::ssize(values) < kWorthATeam ? 1 : threads)
    for (std::int64_t i = 0; i < std::ssize(values); ++i) {
      const auto counter = static_cast<std::uint64_t>(element(i));
      values[static_cast<std::size_t>(i)] = static_cast<float>(
          is_normal ? init.normal_std * rng.normal(counter) : init.uniform_bound * (2 * rng.uniform(counter) - 1));
    }
  }
};

/// Draws a unit in a format, and encodes it.
void draw_encoded(Context& context, const FlatParameter& unit, std::uint64_t seed) {
  InitialValues initial{seed, context.device().options().threads};
  context.launch({"initialise:" + unit.name, {}, {unit.encoded_buffer()}},
                 [&kernels = context.kernels(), format = unit.held_format, encoded = unit.encoded_buffer(), initial,
                  elems = unit.layout->shard_elems(), views = unit.layout->views(),
                  segments = unit.segments()](ExecContext& exec) mutable {
                   std::vector<float> drawn(static_cast<std::size_t>(elems));
                   for (const ShardSegment& segment : segments) {
                     for (std::int64_t at = 0; at < segment.count; at += std::ssize(initial.values)) {
                       initial.draw(views[segment.view], segment, at);
                       std::copy(initial.values.begin(), initial.values.end(),
                                 drawn.begin() + segment.shard_offset + at);
                     }
                   }
                   std::vector<std::byte> bytes(static_cast<std::size_t>(encoded.elems));
                   format->encode(bytes.data(), drawn.data(), elems);
                   kernels.upload(exec, encoded, bytes.data());
                 });
}

void draw(Context& context, const FlatParameter& unit, const Buffer& weights, std::uint64_t seed) {
  // The device's threads, not the stream's: on a GPU it is the host that draws, with all that this rank has.
  InitialValues initial{seed, context.device().options().threads};
  context.launch({"initialise:" + unit.name, {}, {weights}},
                 [&kernels = context.kernels(), weights, initial, views = unit.layout->views(),
                  segments = unit.held_segments()](ExecContext& exec) mutable {
                   kernels.zero(exec, weights);
                   for (const ShardSegment& segment : segments) {
                     if (is_zero(views[segment.view].init)) continue;
                     for (std::int64_t at = 0; at < segment.count; at += std::ssize(initial.values)) {
                       initial.draw(views[segment.view], segment, at);
                       const std::vector<BFloat16> rounded = initial.rounded_for(weights.dtype);
                       kernels.upload(exec, weights.slice(segment.shard_offset + at, std::ssize(initial.values)),
                                      rounded.empty() ? static_cast<const void*>(initial.values.data())
                                                      : static_cast<const void*>(rounded.data()));
                     }
                   }
                 });
}

/// Hands a parameter's values to the host.
void read_values(Context& context, HostLink& link, const Parameter& parameter, const Buffer& values,
                 const Executor::UsePiece& use) {
  const bool is_on_disk = link.is_on_disk(values), has_values = context.device().kind() != DeviceKind::meta;
  if (is_on_disk) context.device().synchronize();
  const bool is_one = (!is_on_disk && values.dtype == DType::f32) || values.elems == 0;
  const std::int64_t most = is_one ? values.elems : kPieceElems;
  std::vector<float> piece;
  std::int64_t first = 0;
  do {
    const Buffer part = values.slice(first, std::min(most, values.elems - first));
    if (is_on_disk) {
      piece.resize(static_cast<std::size_t>(part.elems));
      if (has_values) link.read(part, piece.data());
      use(parameter, {first, part.elems, piece.data()});
    } else {
      const HostView here(context, context.device().stream(StreamRole::unshard), part);
      link.check();
      if (!is_one && has_values) piece = std::vector<float>(here.as<BFloat16>(), here.as<BFloat16>() + part.elems);
      use(parameter, {first, part.elems, is_one ? here.as<float>() : piece.data()});
    }
    first += part.elems;
  } while (first < values.elems);
}

}  // namespace

void Executor::set_seed(std::uint64_t seed, bool draws) {
  wait_readers();
  for (FlatParameter& unit : units_) {
    unit.seed = seed;
    if (!draws) continue;
    withdraw(unit);
    initialise(unit, seed, open_masters(unit));
    if (unit.has_master && unit.compute_copy) update_compute_copy(unit);
  }
  unsharder_.masters_updated();
}

void Executor::update_compute_copy(FlatParameter& unit) {
  if (!unit.has_masters_on_host()) return cast_masters(unit, unit.master_buffer());
  HostLink::Window window = link_.load(unit.name, {unit.master_buffer()});
  context_.stream().wait(window.arrived);
  cast_masters(unit, window[0]);
  HostLink::drop(std::move(window), context_.stream());
}

void Executor::cast_masters(const FlatParameter& unit, const Buffer& master) {
  const Buffer compute_copy = unit.compute_copy_buffer();
  std::vector<std::pair<ShardSegment, StochasticRounding>> at_random;
  if (unit.precision.rounds_stochastically)
    for (const ShardSegment& segment : unit.held_segments()) at_random.emplace_back(segment, unit.rounding_of(segment));
  context_.launch(
      {"compute_copy:" + unit.name, {master}, {compute_copy}},
      [&kernels = context_.kernels(), compute_copy, master, at_random = std::move(at_random)](ExecContext& exec) {
        kernels.cast(exec, compute_copy, master);  // the padding too
        for (const auto& [segment, rounding] : at_random)
          kernels.stochastic_cast(exec, compute_copy.slice(segment.shard_offset, segment.count),
                                  master.slice(segment.shard_offset, segment.count), rounding);
      });
}

void Executor::masters_loaded(bool are_new) {
  if (are_new) write_check_.note_new_masters();
  for (FlatParameter& unit : units_) {
    if (unit.has_master && unit.compute_copy) update_compute_copy(unit);
  }
  masters_updated();
}

HostLink::Window Executor::open_masters(const FlatParameter& unit) {
  return unit.has_masters_on_host() ? link_.open(unit.name, {unit.master_buffer()}) : HostLink::Window();
}

void Executor::initialise(FlatParameter& unit, std::uint64_t seed, HostLink::Window window) {
  if (unit.is_encoded()) return draw_encoded(context_, unit, seed);
  draw(context_, unit, window.parts.empty() ? unit.weights_buffer() : window[0], seed);
  link_.store(std::move(window));
}

void Executor::check_all_sharded() const {
  for (const FlatParameter& unit : units_) {
    if (!unit.is_unsharded()) continue;
    throw UsageError(fmt::format("the weights of unit {} are updated while it is unsharded", unit.name),
                     "end the step's last micro-batch first");
  }
}

void Executor::withdraw_masters() {
  step_.check_no_scope("masters_updated()");
  check_all_sharded();
  for (FlatParameter& unit : units_) withdraw(unit);
  has_initial_weights_ = false;
}

void Executor::masters_updated() {
  withdraw_masters();
  unsharder_.masters_updated();
}

void Executor::masters_updated(const Event& done) {
  withdraw_masters();
  if (has_zero_copy()) unsharder_.masters_updated();  // shards are withdrawn on compute
  context_.device().stream(StreamRole::unshard).wait(done);
  const auto is_on_host = [](const FlatParameter& unit) { return unit.comes_from_host(); };
  if (std::any_of(units_.begin(), units_.end(), is_on_host)) context_.device().stream(StreamRole::offload).wait(done);
}

/// Whoever reads this rank's shard too early, or still, shall not find the old weights.
void Executor::withdraw(FlatParameter& unit) {
  unit.is_published = false;
  if (unit.published.empty()) return;
  context_.launch({"withdraw:" + unit.name, {}, {unit.published}},
                  [slice = unit.published](ExecContext&) { BufferRaceCheck::hide(slice); });
}

void Executor::forget_published() {
  if (!has_zero_copy()) return;
  wait_readers();  // the next step's first publication may write what another rank still reads
  for (FlatParameter& unit : units_) unit.is_published = false;
  unsharder_.masters_updated();
}

bool Executor::has_zero_copy() const {
  return std::any_of(units_.begin(), units_.end(), [](const FlatParameter& unit) { return unit.is_zero_copy(); });
}

void Executor::wait_readers() {
  deferred_updates_.settle();
  if (!has_zero_copy()) return;
  // A rank that alone has abandoned a micro-batch meets the others here: the name says why
  norm_comm().barrier(context_.stream(), step_.dropped() == 0 ? "readers" : "readers, having abandoned a micro-batch");
}

void Executor::read_full(int unit_index, const UseParameter& use) {
  std::vector<float> whole;
  read_pieces(unit_index, [&](const Parameter& parameter, const Piece& piece) {
    if (piece.count == parameter.numel()) return use(parameter, piece.values);
    if (piece.values != nullptr) {  // as the meta device has none
      whole.resize(static_cast<std::size_t>(parameter.numel()));
      std::copy_n(piece.values, piece.count, whole.begin() + piece.first);
    }
    if (piece.first + piece.count == parameter.numel()) use(parameter, whole.data());
  });
}

void Executor::read_pieces(int unit_index, const UsePiece& use) {
  deferred_updates_.settle();
  FlatParameter& unit = units_.at(static_cast<std::size_t>(unit_index));
  Memory memory;
  const Buffer full = unsharder_.gather_masters(unit, memory);
  if (unit.has_masters_on_host()) link_.settle(context_.device().stream(StreamRole::unshard));
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const FlatView& view = unit.layout->views()[i];
    read_values(context_, link_, *unit.parameters[i],
                view.is_whole ? unit.whole_view(unit.weights_buffer(), view) : full.slice(view.offset, view.numel),
                use);
  }
}

}  // namespace zs
