#include "tests/tensor/reference.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace zs::test::ref {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

std::int64_t size(const Values& values) { return static_cast<std::int64_t>(values.size()); }

}  // namespace

Values embedding(const std::vector<std::int32_t>& ids, std::int64_t time, const Values& table, const Values* positions,
                 std::int64_t width) {
  Values out;
  for (std::size_t token = 0; token < ids.size(); ++token) {
    const std::int64_t t = static_cast<std::int64_t>(token) % time;
    for (std::int64_t c = 0; c < width; ++c) {
      out.push_back(table.at(at(ids[token] * width + c)) + (positions ? positions->at(at(t * width + c)) : 0));
    }
  }
  return out;
}

Values layer_norm(const Values& x, const Values& gamma, const Values& beta, double eps) {
  const std::int64_t width = size(gamma), rows = size(x) / width;
  Values out(x.size());
  for (std::int64_t row = 0; row < rows; ++row) {
    const double* in = &x[at(row * width)];
    double mean = 0, variance = 0;
    for (std::int64_t c = 0; c < width; ++c) mean += in[c] / static_cast<double>(width);
    for (std::int64_t c = 0; c < width; ++c) variance += (in[c] - mean) * (in[c] - mean) / static_cast<double>(width);
    for (std::int64_t c = 0; c < width; ++c) {
      out[at(row * width + c)] = (in[c] - mean) / std::sqrt(variance + eps) * gamma[at(c)] + beta[at(c)];
    }
  }
  return out;
}

Values rms_norm(const Values& x, const Values& gamma, double eps) {
  const std::int64_t width = size(gamma);
  Values out(x.size());
  for (std::int64_t first = 0; first < size(x); first += width) {
    double squares = 0;
    for (std::int64_t c = 0; c < width; ++c) squares += x[at(first + c)] * x[at(first + c)];
    for (std::int64_t c = 0; c < width; ++c)
      out[at(first + c)] = gamma[at(c)] * x[at(first + c)] / std::sqrt(squares / static_cast<double>(width) + eps);
  }
  return out;
}

Values geglu(const Values& x, std::int64_t width) {
  const Values gates = gelu(x, GeluKind::tanh);
  Values out;
  for (std::int64_t first = 0; first < size(x); first += width)
    for (std::int64_t c = 0; c < width / 2; ++c) out.push_back(gates[at(first + c)] * x[at(first + width / 2 + c)]);
  return out;
}

Values swiglu(const Values& x, std::int64_t width) {
  Values out;
  for (std::int64_t first = 0; first < size(x); first += width)
    for (std::int64_t c = 0; c < width / 2; ++c) {
      const double gate = x[at(first + c)];
      out.push_back(gate / (1 + std::exp(-gate)) * x[at(first + width / 2 + c)]);
    }
  return out;
}

namespace {

double scaled(double frequency, const RotaryScaling& scaling) {
  if (scaling.context == 0) return frequency / scaling.factor;
  const double turns = static_cast<double>(scaling.context) * frequency / (2 * std::numbers::pi);
  const double share = std::clamp((turns - scaling.low) / (scaling.high - scaling.low), 0.0, 1.0);
  return share * frequency + (1 - share) * frequency / scaling.factor;
}

}  // namespace

Values qk_norm(const Values& qkv, const Values& q_gamma, const Values& k_gamma, const Attention& dims, double eps) {
  Values out = qkv;
  for (std::int64_t token = 0; token < dims.batch * dims.time; ++token)
    for (std::int64_t head = 0; head < dims.heads + dims.kv_heads; ++head) {
      const auto first = qkv.begin() + token * dims.width() + head * dims.head_dim;
      const Values normal = rms_norm(Values(first, first + dims.head_dim), head < dims.heads ? q_gamma : k_gamma, eps);
      std::copy(normal.begin(), normal.end(), out.begin() + (first - qkv.begin()));
    }
  return out;
}

Values rotary(const Values& qkv, const Attention& dims, const RotaryOptions& options) {
  Values out = qkv;
  const std::int64_t half = dims.head_dim / 2, turned = (dims.heads + dims.kv_heads) * dims.head_dim;
  for (std::int64_t token = 0; token < dims.batch * dims.time; ++token)
    for (std::int64_t head = 0; head < turned; head += dims.head_dim)
      for (std::int64_t i = 0; i < half; ++i) {
        const double frequency =
            std::pow(options.base, -2.0 * static_cast<double>(i) / static_cast<double>(dims.head_dim));
        const double angle = static_cast<double>(token % dims.time) * scaled(frequency, options.scaling);
        const std::size_t x = at(token * dims.width() + head + i), y = x + at(half);
        out[x] = std::cos(angle) * qkv[x] - std::sin(angle) * qkv[y];
        out[y] = std::sin(angle) * qkv[x] + std::cos(angle) * qkv[y];
      }
  return out;
}

Values linear(const Values& x, const Values& weight, const Values* bias, std::int64_t inputs) {
  const std::int64_t rows = size(x) / inputs, outputs = size(weight) / inputs;
  Values out;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t o = 0; o < outputs; ++o) {
      double sum = bias ? (*bias)[at(o)] : 0;
      for (std::int64_t i = 0; i < inputs; ++i) sum += x[at(row * inputs + i)] * weight[at(o * inputs + i)];
      out.push_back(sum);
    }
  }
  return out;
}

Values gelu(const Values& x, GeluKind kind) {
  Values out;
  for (const double v : x) {
    const double inner = std::sqrt(2 / std::numbers::pi) * (v + 0.044715 * v * v * v);
    out.push_back(kind == GeluKind::tanh ? 0.5 * v * (1 + std::tanh(inner))
                                         : 0.5 * v * (1 + std::erf(v / std::numbers::sqrt2)));
  }
  return out;
}

Values add(const Values& a, const Values& b) {
  Values out;
  for (std::size_t i = 0; i < a.size(); ++i) out.push_back(a[i] + b.at(i));
  return out;
}

Values causal_attention(const Values& qkv, const Attention& dims, const Values* sinks) {
  const auto [batch, time, heads, head_dim, kv_heads, window] = dims;
  const std::int64_t row_width = dims.width(), group = heads / kv_heads, shared = kv_heads;
  const std::int64_t width = heads * head_dim;
  Values out(at(batch * time * width), 0.0);
  const auto row = [&, time = time, heads = heads, head_dim = head_dim](std::int64_t b, std::int64_t t, int which,
                                                                        std::int64_t h) {
    const std::int64_t head = which == 0 ? h : heads + (which - 1) * shared + h / group;
    return &qkv[at((b * time + t) * row_width + head * head_dim)];
  };
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t t = 0; t < time; ++t) {
        Values p(at(t + 1), 0.0);
        double total = sinks != nullptr ? std::exp((*sinks)[at(h)]) : 0;
        for (std::int64_t s = std::max<std::int64_t>(0, t + 1 - window); s <= t; ++s) {
          for (std::int64_t d = 0; d < head_dim; ++d) p[at(s)] += row(b, t, 0, h)[d] * row(b, s, 1, h)[d];
          p[at(s)] = std::exp(p[at(s)] / std::sqrt(static_cast<double>(head_dim)));
          total += p[at(s)];
        }
        double* result = &out[at((b * time + t) * width + h * head_dim)];
        for (std::int64_t s = 0; s <= t; ++s) {
          for (std::int64_t d = 0; d < head_dim; ++d) result[d] += p[at(s)] / total * row(b, s, 2, h)[d];
        }
      }
    }
  }
  return out;
}

double lm_head_loss(const Values& x, const Values& weight, const std::vector<std::int32_t>& targets,
                    std::int64_t classes) {
  const std::int64_t tokens = static_cast<std::int64_t>(targets.size()), width = size(x) / tokens;
  double loss = 0;
  for (std::int64_t n = 0; n < tokens; ++n) {
    double total = 0, correct = 0;
    for (std::int64_t v = 0; v < classes; ++v) {
      double logit = 0;
      for (std::int64_t c = 0; c < width; ++c) logit += x[at(n * width + c)] * weight[at(v * width + c)];
      total += std::exp(logit);
      if (v == targets[at(n)]) correct = logit;
    }
    loss += (std::log(total) - correct) / static_cast<double>(tokens);
  }
  return loss;
}

}  // namespace zs::test::ref
