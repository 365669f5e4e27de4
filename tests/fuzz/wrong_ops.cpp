// Ops whose arguments do not fit.
#include <limits>
#include <numbers>

#include "tests/fuzz/wrong_uses.h"

namespace zs::test {
namespace {

Tensor floats(UseTrainer& t, const Shape& shape) { return full(t.job.context, shape, 0.5f); }
Tensor ids(UseTrainer& t, const Shape& shape, std::int32_t value) {
  return Tensor::from_host(t.job.context, shape,
                           std::vector<std::int32_t>(static_cast<std::size_t>(shape.numel()), value));
}
/// What no size, dim or index may be.
std::int64_t beyond(Random& random) {
  return random.of<std::int64_t>(
      {-1, -7, 9, 1000, std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()});
}
int wrong_dim(Random& random) {
  return random.of<int>({3, -4, 9, std::numeric_limits<int>::max(), std::numeric_limits<int>::min()});
}
std::int32_t wrong_index(Random& random) { return random.of<std::int32_t>({-2, -7, 5, 1000, 2147483647}); }
/// What is enqueued is waited for, so that an op's own errors come.
void await(const Tensor& x) { x.dtype() == DType::i32 ? void(to_host_i32(x)) : void(x.to_host()); }

std::vector<Mistake> of_shapes() {
  return {
      {"reshape",
       [](auto& t, auto& r) {
         await(floats(t, {2, 6}).reshape({r.template of<std::int64_t>({5, 13, 0, -2}), 3}));
       }},
      {"add of other shapes",
       [](auto& t, auto& r) {
         await(floats(t, {2, 3}) + floats(t, {2, 4 + r.below(5)}));
       }},
      {"matmul of other shapes",
       [](auto& t, auto& r) {
         await(matmul(floats(t, {2, 3}), floats(t, {4 + r.below(4), 2})));
       }},
      {"matmul of a vector",
       [](auto& t, auto&) {
         await(matmul(floats(t, {3}), floats(t, {3, 2})));
       }},
      {"transpose of a dim",
       [](auto& t, auto& r) {
         await(transpose(floats(t, {2, 3, 4}), 0, wrong_dim(r)));
       }},
      {"permute",
       [](auto& t, auto& r) {
         await(permute(floats(t, {2, 3, 4}), {0, 1, r.template of<int>({0, 3, -9})}));
       }},
      {"slice",
       [](auto& t, auto& r) {
         await(slice(floats(t, {4, 2}), 0, r.below(4), 5 + r.below(9)));
       }},
      {"slice from nowhere",
       [](auto& t, auto& r) {
         await(slice(floats(t, {4, 2}), 0, beyond(r), 1));
       }},
      {"slice of a dim",
       [](auto& t, auto& r) {
         await(slice(floats(t, {4, 2, 2}), wrong_dim(r), 0, 1));
       }},
      {"concat",
       [](auto& t, auto& r) {
         await(concat({floats(t, {2, 3}), floats(t, {3 + r.below(3), 4})}, 1));
       }},
      {"concat of nothing", [](auto&, auto&) { await(concat({}, 0)); }},
      {"stack",
       [](auto& t, auto& r) {
         await(stack({floats(t, {2, 3}), floats(t, {2, 4 + r.below(3)})}, 0));
       }},
      {"split",
       [](auto& t, auto& r) {
         await(split(floats(t, {2, 6}), 1, {2, 5 + r.below(4)})[0]);
       }},
      {"expand",
       [](auto& t, auto& r) {
         await(expand(floats(t, {2, 3}), {2, 4 + r.below(9)}));
       }},
      {"pad below 0",
       [](auto& t, auto& r) {
         await(pad(floats(t, {2, 3}), 0, -1 - r.below(9), 1));
       }},
      {"size of a dim",
       [](auto& t, auto& r) {
         floats(t, {2, 3}).size(wrong_dim(r));
       }},
      {"rows",
       [](auto& t, auto& r) {
         await(floats(t, {4, 2}).rows(r.below(4), 5 + r.below(5)));
       }},
      {"sum over a dim",
       [](auto& t, auto& r) {
         await(sum(floats(t, {2, 3, 4}), {wrong_dim(r)}));
       }},
      {"max over a dim twice",
       [](auto& t, auto&) {
         await(max(floats(t, {2, 3}), {1, 1}));
       }},
      {"softmax over a dim",
       [](auto& t, auto& r) {
         await(softmax(floats(t, {2, 3, 4}), wrong_dim(r)));
       }},
      {"cumsum over a dim",
       [](auto& t, auto& r) {
         await(cumsum(floats(t, {2, 3, 4}), wrong_dim(r)));
       }},
      {"topk of too many",
       [](auto& t, auto& r) {
         await(topk(floats(t, {2, 3}), 4 + r.below(9)).values);
       }},
      {"item of several", [](auto& t, auto& r) { item(floats(t, {2 + r.below(4)})); }},
      {"from_host of another size",
       [](auto& t, auto& r) {
         await(Tensor::from_host(t.job.context, {2, 3}, std::vector<float>(static_cast<std::size_t>(7 + r.below(9)))));
       }},
      {"a size below 0",
       [](auto& t, auto& r) {
         await(full(t.job.context, {2, -1 - r.below(9)}, 1));
       }},
      {"einsum",
       [](auto& t, auto& r) {
         await(einsum(r.template of<std::string>(
                          {"ab,bc", "ab,bc->ad", "aab,bc->ac", "ab->", "ab,bc,cd->ad", "->", "a1,bc->ac", ""}),
                      {floats(t, {2, 3}), floats(t, {4, 5})}));
       }},
      {"linear of another width",
       [](auto& t, auto& r) {
         await(t.net->head(floats(t, {2, kWidth + 1 + r.below(4)})));
       }},
      {"norm of another width",
       [](auto& t, auto& r) {
         LayerNorm norm("norm", 4);
         await(norm(floats(t, {2, 5 + r.below(4)})));
       }},
      {"swiglu of an odd width",
       [](auto& t, auto& r) {
         await(swiglu(floats(t, {2, 3 + 2 * r.below(4)})));
       }},
      {"mse of other shapes",
       [](auto& t, auto& r) {
         await(mse(floats(t, {2, 3}), floats(t, {2, 4 + r.below(3)})));
       }},
      {"kl_div of other shapes",
       [](auto& t, auto& r) {
         await(kl_div(floats(t, {2, 3}), floats(t, {2, 4 + r.below(3)})));
       }},
  };
}

std::vector<Mistake> of_values() {
  return {
      {"gather",
       [](auto& t, auto& r) {
         await(gather(floats(t, {5, 2}), 0, ids(t, {1, 2}, wrong_index(r))));
       }},
      {"index_select",
       [](auto& t, auto& r) {
         await(index_select(floats(t, {5, 2}), 0, ids(t, {3}, wrong_index(r))));
       }},
      {"scatter_add",
       [](auto& t, auto& r) {
         await(scatter_add(floats(t, {5, 2}), 0, ids(t, {1, 2}, wrong_index(r)), floats(t, {1, 2})));
       }},
      {"segment_mean",
       [](auto& t, auto& r) {
         await(segment_mean(floats(t, {5, 2}), ids(t, {5}, wrong_index(r)), 5));
       }},
      {"a target",
       [](auto& t, auto& r) {
         await(cross_entropy(floats(t, {3, 5}), ids(t, {3}, wrong_index(r))));
       }},
      {"smoothing",
       [](auto& t, auto& r) {
         await(smoothed_cross_entropy(floats(t, {3, 5}), ids(t, {3}, 1), r.template of<float>({-0.5f, 1.5f})));
       }},
      {"dropout",
       [](auto& t, auto& r) {
         await(dropout(floats(t, {3, 5}), r.template of<float>({-0.5f, 1, 1.5f}), RandomKey{}));
       }},
      {"arange by 0", [](auto& t, auto& r) { await(arange(t.job.context, -1 - r.below(9), 0, 1)); }},
      {"random integers of nothing",
       [](auto& t, auto& r) { await(random_integers(t.job.context, {3}, 1, 5, 5 - r.below(5))); }},
      {"floor_div by 0", [](auto& t, auto&) { await(floor_div(ids(t, {3}, 7), 0)); }},
      {"clamp the other way round", [](auto& t, auto&) { await(clamp(floats(t, {3}), 1, -1)); }},
  };
}

std::vector<Mistake> of_dtypes() {
  return {
      {"f32 and bf16",
       [](auto& t, auto&) {
         await(floats(t, {2, 3}) + cast(floats(t, {2, 3}), DType::bf16));
       }},
      {"f32 and i32",
       [](auto& t, auto&) {
         await(floats(t, {2, 3}) * ids(t, {2, 3}, 1));
       }},
      {"exp of integers",
       [](auto& t, auto&) {
         await(exp(ids(t, {2, 3}, 1)));
       }},
      {"matmul of integers",
       [](auto& t, auto&) {
         await(matmul(ids(t, {2, 3}, 1), ids(t, {3, 2}, 1)));
       }},
      {"float ids",
       [](auto& t, auto&) {
         await(index_select(floats(t, {5, 2}), 0, floats(t, {2})));
       }},
      {"float targets",
       [](auto& t, auto&) {
         await(cross_entropy(floats(t, {3, 5}), floats(t, {3})));
       }},
      {"to_host of integers", [](auto& t, auto&) { ids(t, {3}, 1).to_host(); }},
      {"to_host_i32 of floats", [](auto& t, auto&) { to_host_i32(floats(t, {3})); }},
      {"an empty tensor", [](auto& t, auto&) { await(floats(t, {3}) + Tensor()); }},
      {"to_host of an empty tensor", [](auto&, auto&) { Tensor().to_host(); }},
  };
}

std::vector<Mistake> of_layers() {
  return {
      {"heads",
       [](auto& t, auto& r) {
         await(causal_attention(floats(t, {1, 4, 24}), 5 + r.below(2)));
       }},
      {"attention of other lengths",
       [](auto& t, auto& r) {
         await(dot_product_attention(floats(t, {1, 2, 3, 4}), floats(t, {1, 2, 5, 4}),
                                     floats(t, {1, 2, 6 + r.below(3), 4})));
       }},
      {"conv1d of other channels",
       [](auto& t, auto& r) {
         await(conv1d(floats(t, {1, 4, 6}), floats(t, {2, 5 + r.below(3), 3})));
       }},
      {"conv1d of groups",
       [](auto& t, auto& r) {
         await(conv1d(floats(t, {1, 4, 6}), floats(t, {4, 2, 3}), {},
                      {.groups = r.template of<std::int64_t>({0, -2, 3, 5})}));
       }},
      {"conv2d by 0",
       [](auto& t, auto& r) {
         await(conv2d(floats(t, {1, 4, 6, 6}), floats(t, {4, 4, 3, 3}), {}, {.stride = -r.below(2)}));
       }},
      {"conv2d of a window too large",
       [](auto& t, auto& r) {
         await(conv2d(floats(t, {1, 1, 3, 3}), floats(t, {1, 1, 5 + r.below(3), 4})));
       }},
      {"upsample",
       [](auto& t, auto& r) {
         await(upsample_nearest(floats(t, {1, 1, 3, 3}), -r.below(3)));
       }},
      {"group norm",
       [](auto& t, auto& r) {
         await(group_norm(floats(t, {1, 6, 3}), r.template of<std::int64_t>({0, -1, 4, 7}), floats(t, {6}),
                          floats(t, {6})));
       }},
      {"Linear of no width", [](auto&, auto& r) { Linear("x", -r.below(3), 4); }},
      {"Embedding of no rows", [](auto&, auto& r) { Embedding("x", -r.below(3), 4); }},
      {"LayerNorm of no width", [](auto&, auto& r) { LayerNorm("x", -r.below(3)); }},
      {"RMSNorm of an eps below 0", [](auto&, auto&) { RMSNorm("x", 4, -1); }},
      {"Attention of odd heads",
       [](auto&, auto& r) {
         Attention("x", {.width = 16, .heads = r.template of<std::int64_t>({0, -1, 3, 5})});
       }},
      {"Dropout of all",
       [](auto&, auto& r) {
         Dropout("x", r.template of<float>({1, -0.5f, 2, std::numeric_limits<float>::quiet_NaN()}));
       }},
      {"Mlp of no width", [](auto&, auto& r) { Mlp("x", {.width = 8, .hidden = -r.below(3)}); }},
      {"Lstm of no width", [](auto&, auto& r) { Lstm("x", 4, -r.below(3)); }},
      {"Gru of no layers", [](auto&, auto& r) { Gru("x", 4, 4, {.layers = -r.below(3)}); }},
      {"GroupNorm of odd groups",
       [](auto&, auto& r) {
         GroupNorm("x", r.template of<std::int64_t>({0, 3, -1, 5}), 8);
       }},
      {"Conv2d of groups",
       [](auto&, auto& r) {
         Conv2d("x", 4, 4, 3, {.groups = r.template of<std::int64_t>({0, 3, -1, 5})});
       }},
      {"Lstm of another width",
       [](auto& t, auto&) {
         Lstm lstm("x", 4, 4);
         await(lstm(floats(t, {1, 3, 5})).outputs);
       }},
  };
}

}  // namespace

std::vector<Mistake> wrong_ops() {
  std::vector<Mistake> all;
  for (const auto& some : {of_shapes(), of_values(), of_dtypes(), of_layers()})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

}  // namespace zs::test
