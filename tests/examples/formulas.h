#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/nn/module.h"
#include "model/weights/safetensors.h"
#include "tests/model/temp_dir.h"

/// Weights and data by formula, the same as in tests/data/examples/make_values.py.
namespace zs::test {

inline std::uint32_t fnv(std::string_view name) {
  std::uint32_t value = 0x811c9dc5u;
  for (const char c : name) value = (value ^ static_cast<unsigned char>(c)) * 0x01000193u;
  return value;
}

inline std::uint32_t hash_of(std::string_view name, std::int64_t i) {
  std::uint32_t x = static_cast<std::uint32_t>(i) * 0x9e3779b1u + fnv(name);
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0x2c1b3c6du;
  return x ^ (x >> 16);
}

/// In [-1, 1), exact in f32.
inline float plain(std::string_view name, std::int64_t i) {
  return static_cast<float>(static_cast<std::int32_t>(hash_of(name, i) & 0xffffu) - 32768) / 32768.0f;
}

inline std::vector<float> first_values(const Parameter& parameter) {
  const bool is_vector = parameter.shape().rank() == 1, is_bias = parameter.name().ends_with("bias");
  const float centre = is_vector && !is_bias ? 1.0f : 0.0f;
  float scale = is_bias ? 0.125f : 0.25f;
  if (!is_vector) scale = 1.0f / std::sqrt(static_cast<float>(parameter.numel() / parameter.shape()[0]));
  std::vector<float> values;
  for (std::int64_t i = 0; i < parameter.numel(); ++i) values.push_back(centre + scale * plain(parameter.name(), i));
  return values;
}

inline void list_parameters(const Module& module, std::vector<const Parameter*>& list) {
  for (const auto& parameter : module.own_parameters()) list.push_back(parameter.get());
  for (const Module* child : module.children()) list_parameters(*child, list);
}

/// Every parameter of a model by first_values, as a file.
inline void write_first_values(const Module& net, const std::string& path) {
  std::vector<const Parameter*> parameters;
  list_parameters(net, parameters);
  std::vector<TensorEntry> entries;
  for (const Parameter* parameter : parameters) entries.emplace_back(parameter->name(), DType::f32, parameter->shape());
  SafetensorsWriter writer(path, entries);
  for (const Parameter* parameter : parameters) {
    const std::vector<float> values = first_values(*parameter);
    writer.append(values.data(), static_cast<std::int64_t>(values.size() * sizeof(float)));
  }
  writer.finish();
}

}  // namespace zs::test
