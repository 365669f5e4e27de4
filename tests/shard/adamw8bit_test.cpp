// AdamW with moments of 8 bits: blocks that ranks share, against plain arithmetic.
#include "runtime/shard/optimizers/adamw8bit.h"

#include <algorithm>
#include <cmath>

#include "runtime/shard/checkpoint/checkpoint.h"
#include "runtime/shard/checkpoint/held_state.h"
#include "runtime/shard/checkpoint/state_by_name.h"
#include "tests/message_of.h"
#include "tests/model/temp_dir.h"
#include "tests/shard/optimizer_run.h"

namespace zs::test::adamw8bit_test {
namespace {

using Catch::Contains;

const AdamWConfig kConfig{.eps = 1e-4f, .clip = 0, .order_free = true};
Make adamw8bit() { return maker_of<AdamW8bit>(kConfig); }

/// The values of Dettmers et al. 2022, see tests/kernels/blockwise_adamw_test.cpp.
std::vector<double> table_of(bool is_signed) {
  std::vector<double> values{0, 1};
  for (int decade = 0; decade < 7; ++decade) {
    const int parts = (is_signed ? 1 : 2) * (1 << decade);
    for (int i = 0; i < parts; ++i)
      for (const double sign : {1.0, -1.0})
        if (is_signed || sign > 0)
          values.push_back(sign * std::pow(10.0, decade - 6) * (0.1 + 0.9 * (i + 0.5) / parts));
  }
  std::sort(values.begin(), values.end());
  return values;
}

double nearest(const std::vector<double>& table, double x) {
  return *std::min_element(table.begin(), table.end(),
                           [x](double a, double b) { return std::abs(a - x) < std::abs(b - x); });
}

/// One moment of all elements becomes what its codes stand for.
void round_moment(std::vector<Element>& elements, double Element::*moment, const std::vector<double>& table) {
  for (std::size_t begin = 0; begin < elements.size(); begin += 256) {
    const std::size_t end = std::min(elements.size(), begin + 256);
    double most = 0;
    for (std::size_t i = begin; i < end; ++i) most = std::max(most, std::abs(elements[i].*moment));
    for (std::size_t i = begin; i < end && most > 0; ++i) {
      const double before = elements[i].*moment;
      elements[i].*moment = most * nearest(table, before / most);
      if (&Element::v == moment && before > 0 && elements[i].v == 0) elements[i].v = most * table[1];
    }
  }
}

void rule(std::vector<Element>& elements, const float* grad, const FlatView& view, int step) {
  const double b1 = static_cast<double>(kConfig.beta1), b2 = static_cast<double>(kConfig.beta2);
  for (std::size_t i = 0; i < elements.size(); ++i) {
    Element& e = elements[i];
    const double g = static_cast<double>(grad[i]);
    e.m = b1 * e.m + (1 - b1) * g;
    e.v = b2 * e.v + (1 - b2) * g * g;
    const double m = e.m / (1 - std::pow(b1, step)), v = e.v / (1 - std::pow(b2, step));
    e.w -= kLr * (m / (std::sqrt(v) + static_cast<double>(kConfig.eps)) +
                  (view.has_decay ? static_cast<double>(kConfig.weight_decay) : 0) * e.w);
  }
  round_moment(elements, &Element::m, table_of(true));
  round_moment(elements, &Element::v, table_of(false));
}

const LayoutOptions kRows{.layout = Layout::per_parameter, .min_shard_bytes = 30};
const LayoutOptions kCols{.layout = Layout::per_parameter,
                          .min_shard_bytes = 30,
                          .dim = [](std::string_view, const Shape& shape) { return shape.rank() - 1; }};

}  // namespace

TEST_CASE("20 steps of 8-bit AdamW are those of plain arithmetic, in every strategy and layout") {
  check_everywhere(adamw8bit(), rule, 1e-4);  // f32 masters, over 20 steps; the codes are the same
}

TEST_CASE("8-bit AdamW trains to the same bits in every scheme and layout, at any number of ranks, in bf16 too") {
  const DType param = GENERATE(DType::f32, DType::bf16);
  const auto weights = [&](int ranks, const std::string& scheme, const LayoutOptions& layout) {
    return on_ranks(ranks, [&](World& world) {
      Run run(world, scheme_of(scheme, ranks), adamw8bit(), param, layout);
      for (int step = 1; step <= 4; ++step) run.step(step);
      return run.weights();
    })[static_cast<std::size_t>(ranks) - 1];
  };
  const Arrays one = weights(1, "zero3", {});
  for (const std::string& name : scheme_names()) {
    for (const int ranks : {2, 4}) {
      CAPTURE(name, ranks, name_of(param));
      CHECK(weights(ranks, name, {}) == one);
      CHECK(weights(ranks, name, ranks == 2 ? kRows : kCols) == one);
    }
  }
}

TEST_CASE("I2: 8-bit moments are saved as they are, and go on to the bit at any number of ranks and in any layout") {
  const auto go = [&](int ranks, const std::string& scheme, const LayoutOptions& layout, const std::string& from,
                      const std::string& to) {
    return on_ranks(ranks, [&](World& world) {
      Run run(world, scheme_of(scheme, ranks), adamw8bit(), DType::f32, layout);
      const TrainingState state{world, run.runtime.executor(), *run.optimizer};
      if (!from.empty()) load(state, from);
      for (int step = from.empty() ? 1 : 3; step <= (to.empty() ? 4 : 2); ++step) run.step(step);
      if (!to.empty()) save(state, to, {.step = 2, .attributes = {}});
      return run.weights();
    })[0];
  };
  const Arrays expected = go(1, "zero3", {}, "", "");
  const TempDir folder;
  const LayoutOptions& saved = GENERATE(LayoutOptions{}, kCols);
  go(4, "hsdp", saved, "", folder.path());
  for (const LayoutOptions& layout : {LayoutOptions{}, kRows, kCols}) {
    CHECK(go(4, "zero3", layout, folder.path() + "/step-2", "") == expected);
    CHECK(go(2, "nested", layout, folder.path() + "/step-2", "") == expected);
  }
  CHECK(go(1, "ddp", {}, folder.path() + "/step-2", "") == expected);
}

TEST_CASE("8-bit AdamW keeps a code an element and a scale a block, and says what it cannot do") {
  const auto world = make_single_world({.timeout_s = 60});
  Run run(*world, {}, adamw8bit()), plain(*world, {}, maker_of<AdamW>(kConfig));
  std::int64_t codes = 0, scales = 0;
  for (const HeldTensor& held : held_tensors(run.runtime.executor(), run.optimizer.get())) {
    if (held.tensor.dtype == DType::u8) codes += held.tensor.shape.numel();
    if (held.tensor.kind.ends_with("_scale")) scales += held.tensor.shape.numel();
  }
  std::int64_t elems = 0, blocks = 0, bytes = 0, plain_bytes = 0;
  for (std::size_t i = 0; i < run.runtime.executor().units().size(); ++i) {
    for (const FlatView& view : run.runtime.executor().units()[i].layout->views())
      elems += view.numel, blocks += (view.numel + 255) / 256;
    bytes += run.optimizer->state_bytes(i);
    plain_bytes += plain.optimizer->state_bytes(i);
  }
  CHECK(codes == 2 * elems);
  CHECK(scales == 2 * blocks);
  CHECK(bytes < plain_bytes);
  const TrainingState state{*world, run.runtime.executor(), *run.optimizer};
  CHECK_THAT(message_of([&] { state_by_name(state); }),
             Contains("whose state is not a number of f32 for each element"));
  CHECK(state_by_name(state, {.with_optimizer = false}).find("head", kMasterKind) != nullptr);
  const TempDir folder;
  save(state, folder.path(), {.step = 0, .attributes = {}});
  CHECK_THAT(
      message_of([&] {
        load({*world, plain.runtime.executor(), *plain.optimizer}, folder.path() + "/step-0");
      }),
      Contains("another optimizer: adamw8bit.m, adamw8bit.m_scale, adamw8bit.v, adamw8bit.v_scale, here adamw.m"));
}

}  // namespace zs::test::adamw8bit_test
