#include "runtime/shard/optimizers/muon.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>

#include "runtime/base/name_pattern.h"
#include "runtime/base/usage_error.h"
#include "runtime/shard/optimizers/adamw.h"
#include "runtime/shard/optimizers/matrix_exchange.h"
#include "runtime/tensor/host_view.h"

namespace zs {
namespace {

constexpr int kIterations = 5;
/// Coefficients of X := a X + (b A + c A A) X, A = X X' (Jordan et al. 2024).
constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f, kEps = 1e-7f;

bool is_named(const std::vector<std::string>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return NamePattern(pattern).matches(name); });
}

bool is_matrix(const MuonConfig& config, const FlatView& view) {
  return view.shape.rank() == 2 && view.numel > 0 && is_named(config.matrices, view.name);
}

const MuonConfig& checked(const Executor& executor, const MuonConfig& config) {
  for (const auto& [name, value] :
       {std::pair("momentum", config.momentum), std::pair("beta1", config.beta1), std::pair("beta2", config.beta2)}) {
    if (!(value >= 0 && value < 1))
      throw UsageError(fmt::format("Muon: a {} of {}", name, value), "pass 0 or more, and less than 1");
  }
  checked_adamw("Muon", {.beta1 = config.beta1, .beta2 = config.beta2, .eps = config.eps});
  if (config.nesterov && config.momentum == 0)
    throw UsageError("Muon: nesterov without a momentum", "pass a momentum above 0, or nesterov = false");
  for (const std::string& pattern : config.matrices) {
    const auto has_one = [&](const FlatParameter& unit) {
      const auto& views = unit.layout->views();
      return std::any_of(views.begin(), views.end(),
                         [&](const FlatView& view) { return is_matrix({.matrices = {pattern}}, view); });
    };
    if (std::none_of(executor.units().begin(), executor.units().end(), has_one))
      throw UsageError(fmt::format("Muon: no matrix has a name of \"{}\"", pattern),
                       "name parameters of two dims as they are called, such as \"*.weight\"");
  }
  return config;
}

std::string as_text(const std::vector<std::string>& patterns) { return fmt::format("{}", fmt::join(patterns, ", ")); }

/// A matrix x (rows, cols), and what its products take: as large as x, and twice (side, side).
struct Products {
  Buffer x, other, gram, square, norm;
  std::int64_t rows, cols;

  std::int64_t side() const { return std::min(rows, cols); }
  bool is_wide() const { return rows <= cols; }
  /// x x', or x' x where that is smaller.
  MatmulDims of_gram() const { return {side(), side(), std::max(rows, cols), !is_wide(), is_wide()}; }
  MatmulDims of_square() const { return {side(), side(), side()}; }
  MatmulDims of_step() const { return {.m = rows, .n = cols, .k = side(), .beta = 1}; }
};

void normalise(ExecContext& exec, const KernelTable& kernels, const Products& p) {
  const std::int64_t n = p.x.elems;
  const auto dense = [](const Buffer& buffer) { return Strided{buffer, {1}}; };
  const auto once = [](const Buffer& buffer) { return Strided{buffer, {0}}; };
  kernels.map(exec, {.op = MapOp::mul, .shape = {n}, .out = dense(p.other), .in = {dense(p.x), dense(p.x)}});
  kernels.sum(exec, p.norm, p.other, 1.0f);
  kernels.map(exec, {.op = MapOp::sqrt, .shape = {1}, .out = dense(p.norm), .in = {dense(p.norm)}});
  kernels.map(exec, {.op = MapOp::add,
                     .shape = {1},
                     .out = dense(p.norm),
                     .in = {dense(p.norm), Strided{}},
                     .constants = {0, kEps, 0}});
  kernels.map(exec, {.op = MapOp::div, .shape = {n}, .out = dense(p.x), .in = {dense(p.x), once(p.norm)}});
}

/// x becomes orthogonal as far as a few steps go, times `factor`.
void make_orthogonal(ExecContext& exec, const KernelTable& kernels, const Products& p, float factor) {
  normalise(exec, kernels, p);
  Buffer x = p.x, next = p.other;
  for (int i = 0; i < kIterations; ++i) {
    kernels.matmul(exec, p.gram, x, x, {}, p.of_gram());
    kernels.matmul(exec, p.square, p.gram, p.gram, {}, p.of_square());
    kernels.scale(exec, p.square, p.square, kC);
    kernels.scale(exec, p.gram, p.gram, kB);
    kernels.accumulate(exec, p.square, p.gram);
    kernels.scale(exec, next, x, kA);
    kernels.matmul(exec, next, p.is_wide() ? p.square : x, p.is_wide() ? x : p.square, {}, p.of_step());
    std::swap(x, next);
  }
  kernels.scale(exec, p.x, x, factor);
}

double flops(const MatrixPlace& of) {
  const auto side = static_cast<double>(std::min(of.rows, of.cols)),
             length = static_cast<double>(std::max(of.rows, of.cols));
  return 2 * kIterations * side * side * (2 * length + side);
}

}  // namespace

/// A matrix in one update.
struct Muon::Matrix {
  std::size_t unit, view;
  MatrixPlace place;                              // in the view
  Memory own = {};                                // memory of a matrix that is held whole
  std::shared_ptr<MatrixExchange> exchange = {};  // exchange of a matrix that is not
  std::size_t number = 0;                         // in that
  std::optional<Part> held = {};                  // part of the weights and their state that this rank holds

  /// Part of the matrix that this rank holds.
  Buffer part() const { return exchange ? exchange->part(number) : own.buffer(DType::f32, place.numel()); }
  /// Empty where another rank has it.
  Buffer whole() const { return exchange ? exchange->whole(number) : own.buffer(DType::f32, place.numel()); }
  /// "muon:blocks.0.mlp.down.weight"; of a parameter of several, its first row too: "muon:blocks.0.mlp.up.weight[24]".
  std::string named(const char* op, const Executor& executor) const {
    const FlatView& parameter = executor.units()[unit].layout->views()[view];
    const std::string name = fmt::format("{}:{}", op, parameter.name);
    return parameter.matrix_rows.size() < 2 ? name : fmt::format("{}[{}]", name, place.begin / place.cols);
  }
  /// Cuts its own elements out of a part of the parameter; nothing: there are none.
  std::optional<Part> cut(Part part) const;
};

std::optional<Muon::Part> Muon::Matrix::cut(Part part) const {
  const ElementRuns& runs = part.slice.part;
  const ShardSegment own = ShardSegment{view, 0, runs.first, part.slice.master.elems, runs.run, runs.stride}.within(
      place.begin, place.end());
  if (own.count == 0) return std::nullopt;
  const auto take = [&](Buffer& buffer) {
    if (!buffer.empty()) buffer = buffer.slice(own.shard_offset, own.count);
  };
  for (Buffer* buffer : {&part.slice.master, &part.slice.grad, &part.slice.copy, &part.cast}) take(*buffer);
  for (Buffer& state : part.slice.state) take(state);
  part.slice.part = {own.view_offset, own.run, own.stride};
  part.rounding = {part.rounding.key, own.view_offset, own.run, own.stride};
  return part;
}

Muon::Muon(Executor& executor, const MuonConfig& config)
    : Optimizer(executor,
                {.name = "Muon",
                 .state = {"m", "v"},
                 .settings = {{"Muon's momentum", fmt::to_string(checked(executor, config).momentum)},
                              {"Muon's nesterov", fmt::to_string(config.nesterov)},
                              {"Muon's matrices", as_text(config.matrices)},
                              {"AdamW's beta1", fmt::to_string(config.beta1)},
                              {"AdamW's beta2", fmt::to_string(config.beta2)},
                              {"AdamW's eps", fmt::to_string(config.eps)}},
                 .has_state = [config](std::size_t which,
                                       const FlatView& view) { return which == 0 || !is_matrix(config, view); },
                 .is_apart = [config](const FlatView& view) { return is_matrix(config, view); },
                 .correction = {StepCorrection::Kind::adamw, config.beta1, config.beta2}},
                shared_options(config)),
      config_(config) {}

Optimizer::UnitUpdate Muon::unit_update() const {
  return [&kernels = kernels(), config = config_](ExecContext& exec, const std::vector<Slice>& slices) {
    kernels.update(exec, Slice::ranges_of(slices), AdamWOptions{config.beta1, config.beta2, config.eps});
  };
}

/// Matrices of units that are updated together, alike on every rank.
std::vector<Muon::Matrix> Muon::matrices(const std::vector<Apart>& units) {
  Context& context = executor().context();
  std::vector<Matrix> all;
  for (const auto& [unit, parts] : units) {
    const UnitLayout& layout = *executor().units()[unit].layout;
    for (std::size_t i = 0; i < layout.views().size(); ++i) {
      const FlatView& view = layout.views()[i];
      if (!is_matrix(config_, view) || !is_updated(unit, i)) continue;
      const auto part = std::find_if(parts.begin(), parts.end(), [i](const Part& one) { return one.view == i; });
      for (const MatrixPlace& place : matrices_of(view)) {
        Matrix& matrix = all.emplace_back(Matrix{unit, i, place});
        if (part != parts.end()) matrix.held = matrix.cut(*part);
        if (view.is_whole || layout.ranks() == 1)
          matrix.own = context.pool().acquire(place.numel() * size_of(DType::f32), context.stream(), "matrix");
      }
    }
  }
  share(all);
  return all;
}

/// Units that are placed alike share an exchange.
void Muon::share(std::vector<Matrix>& matrices) {
  std::map<const Placement*, std::vector<std::size_t>> sharded;
  std::vector<const Placement*> placements;  // in the order of units
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    if (matrices[i].own) continue;
    const Placement* const placement = executor().units()[matrices[i].unit].placement.get();
    if (sharded[placement].empty()) placements.push_back(placement);
    sharded[placement].push_back(i);
  }
  for (const Placement* const placement : placements) {
    std::vector<MatrixExchange::Matrix> of_exchange;
    for (const std::size_t i : sharded[placement]) {
      const Matrix& matrix = matrices[i];
      of_exchange.push_back({&executor().units()[matrix.unit], matrix.view, matrix.place, flops(matrix.place)});
    }
    const auto exchange = std::make_shared<MatrixExchange>(executor(), std::move(of_exchange));
    for (std::size_t number = 0; number < sharded[placement].size(); ++number) {
      matrices[sharded[placement][number]].exchange = exchange;
      matrices[sharded[placement][number]].number = number;
    }
  }
}

/// The scalars of the step for the kernel of SGD, in two ways: first those with which it adds the gradient up, without
/// a learning rate, then, of each slot, those with which it adds what came of that, without a clip coefficient.
Memory Muon::make_scalars() {
  Context& context = executor().context();
  const std::int64_t elems = (1 + slot_count()) * kScalars;
  Memory memory = context.pool().acquire(elems * size_of(DType::f32), context.stream(), "scalars");
  const Buffer out = memory.buffer(DType::f32, elems), in = all_scalars();
  context.launch({"muon_scalars", {in}, {out}}, [&kernels = context.kernels(), in, out](ExecContext& exec) {
    const auto set = [&](std::int64_t slot, std::size_t offset, float value) {
      const auto place = slot * kScalars + static_cast<std::int64_t>(offset / sizeof(float));
      fill_words(exec, out.slice(place, 1), std::bit_cast<std::uint32_t>(value));
    };
    kernels.copy(exec, out.slice(0, kScalars), in.slice(0, kScalars));
    kernels.copy(exec, out.slice(kScalars, in.elems), in);
    set(0, offsetof(StepScalars, lr), -1);
    for (std::int64_t slot = 1; slot < out.elems / kScalars; ++slot)
      set(slot, offsetof(StepScalars, clip_coefficient), 1);
  });
  return memory;
}

/// m := momentum m + g, and what a step goes by, m or g + momentum m, becomes the part of the matrix.
void Muon::add_momentum(const std::vector<Matrix>& matrices, const Buffer& step) {
  for (const Matrix& matrix : matrices) {
    if (!matrix.held) continue;
    const Buffer out = matrix.part(), m = matrix.held->slice.state[0], grad = matrix.held->slice.grad;
    const SgdOptions options{config_.momentum, config_.nesterov};
    executor().context().launch({matrix.named("muon_momentum", executor()), {grad, m, step}, {out, m}},
                                [&kernels = kernels(), out, m, grad, step, options](ExecContext& exec) {
                                  kernels.zero(exec, out);
                                  kernels.update(exec, UpdateRange{out, grad, {}, m, {}, step}, options);
                                });
  }
}

void Muon::orthogonalise(const std::vector<Matrix>& matrices) {
  Context& context = executor().context();
  std::int64_t most = 0, most_side = 0;
  for (const Matrix& matrix : matrices) {
    if (matrix.whole().empty()) continue;
    most = std::max(most, matrix.place.numel());
    most_side = std::max(most_side, std::min(matrix.place.rows, matrix.place.cols));
  }
  if (most == 0) return;
  const auto acquire = [&](std::int64_t elems) {
    return context.pool().acquire(elems * size_of(DType::f32), context.stream(), "matrix");
  };
  const Memory other = acquire(most), gram = acquire(most_side * most_side), square = acquire(most_side * most_side),
               norm = acquire(1);
  for (const Matrix& matrix : matrices) {
    const Buffer x = matrix.whole();
    if (x.empty()) continue;
    const auto& [rows, cols, begin] = matrix.place;
    const std::int64_t side = std::min(rows, cols);
    const Products products{x,
                            other.buffer(DType::f32, x.elems),
                            gram.buffer(DType::f32, side * side),
                            square.buffer(DType::f32, side * side),
                            norm.buffer(DType::f32, 1),
                            rows,
                            cols};
    const auto& scratch = kernels().scratch.matmul;
    const std::int64_t scratch_bytes =
        std::max({scratch(products.of_gram()), scratch(products.of_square()), scratch(products.of_step())});
    const float factor = 0.2f * std::sqrt(static_cast<float>(std::max(rows, cols)));
    context.launch({matrix.named("muon", executor()),
                    {x},
                    {x, products.other, products.gram, products.square, products.norm},
                    scratch_bytes},
                   [&kernels = kernels(), products, factor](ExecContext& exec) {
                     make_orthogonal(exec, kernels, products, factor);
                   });
  }
}

void Muon::apply(const std::vector<Matrix>& matrices, const Buffer& steps) {
  for (const Matrix& matrix : matrices) {
    if (!matrix.held) continue;
    Part part = *matrix.held;
    part.slice.grad = matrix.part();
    part.slice.scalars = steps.slice(part.slot * kScalars, kScalars);
    const Buffer master = part.slice.master;
    std::vector<Part> parts;
    OpInfo info{matrix.named("muon_step", executor()), {master, part.slice.grad, part.slice.scalars}, {master}};
    parts.push_back(std::move(part));
    launch_parts(
        std::move(info), std::move(parts), of_each([&kernels = kernels()](ExecContext& exec, const Slice& slice) {
          kernels.update(exec,
                         UpdateRange{slice.master, slice.grad, slice.copy, {}, {}, slice.scalars, slice.weight_decay},
                         SgdOptions{0, false});
        }));
  }
}

void Muon::update_apart(std::vector<Apart> units) {
  const std::vector<Matrix> all = matrices(units);
  if (all.empty()) return;
  const Memory scalars = make_scalars();
  const Buffer both = scalars.buffer(DType::f32, (1 + slot_count()) * kScalars);
  std::vector<std::shared_ptr<MatrixExchange>> exchanges;
  for (const Matrix& matrix : all)
    if (matrix.exchange && std::find(exchanges.begin(), exchanges.end(), matrix.exchange) == exchanges.end())
      exchanges.push_back(matrix.exchange);
  add_momentum(all, both.slice(0, kScalars));
  for (const auto& exchange : exchanges) exchange->gather();
  orthogonalise(all);
  for (const auto& exchange : exchanges) exchange->scatter();
  apply(all, both.slice(kScalars, slot_count() * kScalars));
}

}  // namespace zs
