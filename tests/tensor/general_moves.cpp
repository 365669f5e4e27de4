#include "tests/tensor/op_by_elements.h"

namespace zs::test {
namespace {

/// y[i] = x[from(index)]: moves elements, of one input.
NamedOp move(const char* name, const Shape& shape, const Shape& out, const Run& run,
             const std::function<Index(const Index&)>& from) {
  return {name, op_of({normal(shape, name)}, run, [=](const Arguments& a) {
            Values y;
            for_each_index(out, [&](const Index& i) { y.push_back(element(a[0], shape, from(i))); });
            return y;
          })};
}

/// Moves by dims.
void add_dim_moves(std::vector<NamedOp>& ops) {
  ops.push_back(move(
      "transpose", {3, 4, 5}, {5, 4, 3}, [](const Tensors& x) { return transpose(x[0], 0, -1); },
      [](const Index& i) {
        return Index{i[2], i[1], i[0]};
      }));
  ops.push_back(move(
      "permute", {3, 4, 5}, {4, 5, 3},
      [](const Tensors& x) {
        return permute(x[0], {1, 2, 0});
      },
      [](const Index& i) {
        return Index{i[2], i[0], i[1]};
      }));
  ops.push_back(move(
      "slice", {3, 6, 2}, {3, 3, 2}, [](const Tensors& x) { return slice(x[0], 1, 2, 3); },
      [](const Index& i) {
        return Index{i[0], i[1] + 2, i[2]};
      }));
  ops.push_back(move(
      "expand", {3, 1, 2}, {2, 3, 4, 2},
      [](const Tensors& x) {
        return expand(x[0], {2, 3, 4, 2});
      },
      [](const Index& i) {
        return Index{i[1], 0, i[3]};
      }));
}

/// Moves by indices, and into windows.
void add_index_moves(std::vector<NamedOp>& ops) {
  ops.push_back(move(
      "index_select", {3, 4, 5}, {3, 6, 5},
      [](const Tensors& x) {
        return index_select(x[0], 1,
                            Tensor::from_host(x[0].context(), {6}, std::vector<std::int32_t>{3, 0, 0, 1, 3, 3}));
      },
      [](const Index& i) {
        return Index{i[0], std::vector<std::int64_t>{3, 0, 0, 1, 3, 3}[static_cast<std::size_t>(i[1])], i[2]};
      }));
  const std::vector<std::int32_t> ids = {2, 0, 1, 1, 3, 3, 0, 0, 2};
  ops.push_back(move(
      "gather", {3, 4}, {3, 3},
      [=](const Tensors& x) {
        return gather(x[0], 1, Tensor::from_host(x[0].context(), {3, 3}, ids));
      },
      [=](const Index& i) {
        return Index{i[0], ids[static_cast<std::size_t>(i[0] * 3 + i[1])]};
      }));
  ops.push_back(move(
      "unfold", {2, 3, 5, 6}, {2, 12, 6},
      [](const Tensors& x) { return unfold(x[0], {.height = 2, .width = 2, .stride = 2}); },
      [](const Index& i) {
        return Index{i[0], i[1] / 4, i[2] / 3 * 2 + i[1] % 4 / 2, i[2] % 3 * 2 + i[1] % 2};
      }));
  ops.push_back(move(
      "unfold", {1, 2, 4, 3}, {1, 12, 4}, [](const Tensors& x) { return unfold(x[0], {.height = 3, .width = 2}); },
      [](const Index& i) {
        return Index{0, i[1] / 6, i[2] / 2 + i[1] % 6 / 2, i[2] % 2 + i[1] % 2};
      }));
}

/// Tensors taken apart and put together.
void add_parts(std::vector<NamedOp>& ops) {
  const auto sides = [](const Values& x, double before, double after) {
    Values y;
    for (std::size_t row = 0; row < 2; ++row) {
      y.push_back(before);
      y.insert(y.end(), x.begin() + static_cast<std::ptrdiff_t>(3 * row),
               x.begin() + static_cast<std::ptrdiff_t>(3 * row + 3));
      y.insert(y.end(), 2, after);
    }
    return y;
  };
  ops.push_back({"pad", op_of(
                            {normal({2, 3}, "x")}, [](const Tensors& x) { return pad(x[0], 1, 1, 2, 0.5f); },
                            [=](const Arguments& a) { return sides(a[0], 0.5, 0.5); })});
  ops.push_back({"parts", op_of(
                              {normal({4, 6}, "x")},
                              [](const Tensors& x) {
                                const Tensors parts = split(x[0], 1, {1, 2, 3});
                                return concat({parts[2], parts[0], x[0], parts[1]}, 1);
                              },
                              [](const Arguments& a) {
                                Values y;
                                for (std::size_t row = 0; row < 4; ++row)
                                  for (const std::size_t column : {3, 4, 5, 0, 0, 1, 2, 3, 4, 5, 1, 2})
                                    y.push_back(a[0][row * 6 + column]);
                                return y;
                              })});
  ops.push_back({"stack", op_of(
                              {normal({2, 3}, "a"), normal({2, 3}, "b")},
                              [](const Tensors& x) {
                                return stack({x[0], x[1]}, -1);
                              },
                              [](const Arguments& a) {
                                Values y;
                                for (std::size_t i = 0; i < a[0].size(); ++i) y.insert(y.end(), {a[0][i], a[1][i]});
                                return y;
                              })});
}

}  // namespace

void add_moves(std::vector<NamedOp>& ops) {
  add_dim_moves(ops);
  add_index_moves(ops);
  add_parts(ops);
}

}  // namespace zs::test
