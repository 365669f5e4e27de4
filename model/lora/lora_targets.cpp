#include "model/lora/lora_targets.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "model/families/family.h"
#include "model/nn/embedding.h"
#include "runtime/base/check.h"
#include "runtime/base/pattern_entry.h"
#include "runtime/shard/runtime/unshard_scope.h"

namespace zs {
namespace {

constexpr std::string_view kBlocks = "blocks.", kWeight = ".weight", kAdapters = ".lora.";
constexpr const char* kAllLinear = "all-linear";

std::string without_ending(const std::string& name) { return name.substr(0, name.size() - kWeight.size()); }

/// "blocks.3" of "blocks.3.attention.qkv.weight", "token_embedding" of its weight.
std::string block_of(const std::string& parameter) {
  return parameter.substr(0, parameter.find('.', parameter.starts_with(kBlocks) ? kBlocks.size() : 0));
}

std::string last_of(const std::string& module) { return module.substr(module.rfind('.') + 1); }

/// Name after the number of the block: "self_attn.q_proj"; of the embedding its last part.
std::string below_block(const LoraProduct& product) {
  if (product.is_embedding) return last_of(product.module);
  const std::string number = block_of(product.parameter).substr(kBlocks.size() - 1) + ".";
  const std::size_t at = product.module.find(number);
  ZS_CHECK(at != std::string::npos, "{} is no module of {}", product.module, product.parameter);
  return product.module.substr(at + number.size());
}

void visit(Module& module, const std::function<void(Module&)>& use) {
  use(module);
  for (Module* child : module.children()) visit(*child, use);
}

/// A name, and what is after each of its dots, longest first.
std::vector<std::string> endings(const std::string& name) {
  std::vector<std::string> all{name};
  for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1))
    all.push_back(name.substr(dot + 1));
  return all;
}

/// Numbers that patterns give to products, where they differ from the rest: the first that matches counts.
class PatternValues {
 public:
  PatternValues(const char* key, const std::vector<std::string>& entries, bool are_integers) : key_(key) {
    for (const std::string& text : entries) {
      const std::string example = are_integers ? "k_proj=4" : "k_proj=32";
      const PatternEntry entry = PatternEntry::parse(key, text, example);
      double value = 0;
      const char* const end = entry.value.data() + entry.value.size();
      const auto [stop, failed] = std::from_chars(entry.value.data(), end, value);
      const bool is_number = failed == std::errc() && stop == end && value > 0 && value <= kMost;
      if (!is_number || (are_integers && value != std::floor(value))) PatternEntry::refuse(key, text, example);
      entries_.push_back({entry.pattern.text(), value});
    }
  }

  double of(const std::string& module, double otherwise) const {
    const auto found = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const auto& entry) { return is_named_by(entry.first, module); });
    return found == entries_.end() ? otherwise : found->second;
  }

  void check_used(const std::vector<LoraTarget>& targets) const {
    for (const auto& [pattern, value] : entries_)
      if (std::none_of(targets.begin(), targets.end(),
                       [&pattern = pattern](const LoraTarget& target) { return is_named_by(pattern, target.module); }))
        throw Error(ExitCode::config, fmt::format("{}: no target is called like \"{}\"", key_, pattern), {},
                    "name some of lora.targets, or leave it out");
  }

 private:
  static constexpr double kMost = 65536;
  const char* key_;
  std::vector<std::pair<std::string, double>> entries_;
};

/// Number of letters of the shorter of two names that the other has in the same order.
std::size_t common_letters(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (const char letter : a) {
    std::size_t diagonal = 0;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = letter == b[j - 1] ? diagonal + 1 : std::max(row[j], row[j - 1]);
      diagonal = above;
    }
  }
  return row.back();
}

/// The last parts of the products' names, those most like `pattern` first.
std::vector<std::string> nearest_names(const std::vector<LoraProduct>& products, const std::string& pattern) {
  std::vector<std::string> names;
  for (const LoraProduct& product : products) {
    const std::string last = endings(product.module).back();
    if (std::find(names.begin(), names.end(), last) == names.end()) names.push_back(last);
  }
  constexpr std::size_t kLongest = 80;
  const std::string of = endings(pattern.substr(0, kLongest)).back();
  std::stable_sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    const auto differing = [&](const std::string& name) {
      return of.size() + name.size() - 2 * common_letters(of, name);
    };
    return differing(a) < differing(b);
  });
  return names;
}

Error no_match(const std::vector<LoraProduct>& products, const std::string& pattern) {
  constexpr std::size_t kMostNamed = 4;
  std::vector<std::string> names = nearest_names(products, pattern);
  names.resize(std::min(names.size(), kMostNamed));
  return {ExitCode::config,
          fmt::format("lora.targets: no product of the blocks, nor the embedding, is called like \"{}\"", pattern),
          {},
          fmt::format("the nearest are {}; other weights have no adapters", fmt::join(names, ", "))};
}

constexpr std::string_view kGateUp = ".gate_up_proj", kDown = ".down_proj";

/// The packed products of a layer's experts.
LoraProduct packed_product(const TensorRule& rule, const Shape& shape, std::int64_t experts) {
  const std::string number = block_of(rule.parameter).substr(kBlocks.size() - 1) + ".";
  const std::string& tensor = rule.parts.front().tensor;
  const std::string layer = tensor.substr(0, tensor.find(number) + number.size() - 1);
  const std::string_view last = rule.parameter.ends_with(".down") ? kDown : kGateUp;
  return {.module = fmt::format("{}.mlp.experts{}", layer, last),
          .parameter = rule.parameter,
          .rows = shape[0],
          .columns = shape[1],
          .experts = experts,
          .interleaved = rule.interleaved};
}

Error of_router(const std::string& pattern, const std::string& module) {
  return {ExitCode::config,
          fmt::format("lora.targets: \"{}\" is of {}, too, and routers can have no adapters", pattern, module),
          {},
          "name what they shall be of, such as \"self_attn.*\" or \"experts.*\""};
}

/// Module that peft's files have of a target. Where both tensors of a layer's experts have adapters, peft wraps the
/// module of the gates once more.
std::string peft_module(const LoraTarget& target, const std::vector<LoraTarget>& all) {
  std::string module = std::string(kPeftPrefix) + target.module;
  if (target.experts == 0) return module;
  const std::string owner = target.module.substr(0, target.module.rfind('.')), down = owner + std::string(kDown);
  const bool is_wrapped = target.module != down && std::any_of(all.begin(), all.end(), [&](const LoraTarget& other) {
                            return other.module == down;
                          });
  return std::string(kPeftPrefix) + owner + (is_wrapped ? ".base_layer" : "");
}

/// peft has nothing but plain adapters of experts.
void check_experts(const std::vector<LoraTarget>& targets, const LoraConfig& lora) {
  const auto found =
      std::find_if(targets.begin(), targets.end(), [](const auto& target) { return target.experts > 0; });
  if (found == targets.end()) return;
  const auto refuse = [&](const char* key, const char* what) {
    throw Error(ExitCode::config,
                fmt::format("{}: the adapters of {}, of experts, have no {}", key, found->module, what), {},
                "leave it out, or name products without experts in lora.targets");
  };
  if (lora.dora) refuse("lora.dora", "magnitudes");
  if (lora.dropout > 0) refuse("lora.dropout", "dropout");
}

}  // namespace

bool is_named_by(const std::string& pattern, const std::string& module) {
  if (pattern == kAllLinear) return true;
  const NamePattern targets(pattern);
  const auto all = endings(module);
  return std::any_of(all.begin(), all.end(), [&](const std::string& ending) { return targets.matches(ending); });
}

std::map<std::string, Shape> parameter_shapes(const ModelConfig& model) {
  std::map<std::string, Shape> shapes;
  const auto network = family_named(model.family).make(model);
  visit(*network, [&](Module& module) {
    for (const auto& parameter : module.own_parameters()) shapes.emplace(parameter->name(), parameter->shape());
  });
  return shapes;
}

std::string LoraProduct::name_of(const char* last) const {
  return fmt::format("{}{}{}.{}", block_of(parameter), kAdapters, below_block(*this), last);
}

bool is_adapter_parameter(std::string_view name) { return name.find(kAdapters) != std::string_view::npos; }

std::vector<LoraProduct> lora_products(const ModelConfig& model) {
  const auto shapes = parameter_shapes(model);
  std::vector<LoraProduct> products;
  std::optional<LoraProduct> embedding;
  for (const TensorRule& rule : family_named(model.family).tensor_map(model).rules) {
    const Shape& shape = shapes.at(rule.parameter);
    if (rule.parameter == kTokenEmbedding)
      embedding = {.module = without_ending(rule.parts.front().tensor),
                   .parameter = kTokenEmbedding,
                   .rows = model.vocab,
                   .columns = shape[1],
                   .is_embedding = true};
    if (!rule.parameter.starts_with(kBlocks) || shape.rank() != 2) continue;
    if (rule.parameter.find(".experts.") != std::string::npos) {
      products.push_back(packed_product(rule, shape, model.experts));
      continue;
    }
    std::int64_t row = 0;
    for (const TensorPart& part : rule.parts) {
      const std::int64_t rows = part.rows != 0 ? part.rows : shape[0];
      products.push_back({without_ending(part.tensor), rule.parameter, row, rows, shape[1], rule.is_transposed,
                          rule.parameter.ends_with(".router.weight")});
      row += rows;
    }
  }
  if (embedding) products.push_back(*std::move(embedding));
  return products;
}

std::vector<LoraProduct> matching(const std::vector<LoraProduct>& products, const std::vector<std::string>& patterns) {
  std::set<std::string> used;
  std::vector<LoraProduct> found;
  for (const LoraProduct& product : products) {
    bool is_matched = false;
    for (const std::string& pattern : patterns) {
      if (!is_named_by(pattern, product.module) ||
          ((product.is_embedding || product.is_of_router) && pattern == kAllLinear))
        continue;
      if (product.is_of_router) throw of_router(pattern, product.module);
      used.insert(pattern);
      is_matched = true;
    }
    if (is_matched) found.push_back(product);
  }
  for (const std::string& pattern : patterns)
    if (!used.contains(pattern)) throw no_match(products, pattern);
  return found;
}

std::vector<LoraTarget> lora_targets(const ModelConfig& model, const LoraConfig& lora) {
  const PatternValues ranks("lora.rank_pattern", lora.rank_pattern, true),
      alphas("lora.alpha_pattern", lora.alpha_pattern, false);
  std::vector<LoraTarget> targets;
  for (LoraProduct& product : matching(lora_products(model), lora.targets)) {
    if (lora.dora && product.is_embedding)
      throw Error(ExitCode::config, fmt::format("lora.dora does not go with an adapter of {}", product.module), {},
                  "leave lora.dora out, or train the embedding whole (lora.modules_to_save)");
    const double rank = ranks.of(product.module, static_cast<double>(lora.rank));
    const double alpha = alphas.of(product.module, lora.alpha);
    targets.push_back({std::move(product), static_cast<std::int64_t>(rank), alpha,
                       static_cast<float>(alpha / (lora.rslora ? std::sqrt(rank) : rank)), lora.dora});
  }
  ranks.check_used(targets);
  alphas.check_used(targets);
  check_experts(targets, lora);
  return targets;
}

std::vector<std::string> shortest_patterns(const std::vector<LoraProduct>& all, std::span<const std::string> modules) {
  const std::set<std::string> wanted(modules.begin(), modules.end());
  std::set<std::string> patterns;
  for (const std::string& module : wanted) {
    const auto candidates = endings(module);
    const auto is_exact = [&](const std::string& ending) {
      return std::all_of(all.begin(), all.end(), [&](const LoraProduct& product) {
        return !is_named_by(ending, product.module) || wanted.contains(product.module);
      });
    };
    patterns.insert(*std::find_if(candidates.rbegin(), candidates.rend(), is_exact));
  }
  return {patterns.begin(), patterns.end()};
}

void attach_adapters(LanguageModel& model, const std::vector<LoraTarget>& targets, float dropout) {
  std::map<std::string, Linear*> products;
  std::map<std::string, TransformerBlock*> blocks;
  std::map<std::string, Embedding*> embeddings;
  std::map<std::string, Experts*> experts;
  visit(model, [&](Module& module) {
    if (auto* const product = dynamic_cast<Linear*>(&module)) products[module.path()] = product;
    if (auto* const own = dynamic_cast<Experts*>(&module)) experts[module.path()] = own;
    if (auto* const embedding = dynamic_cast<Embedding*>(&module)) embeddings[module.path()] = embedding;
    if (auto* const block = dynamic_cast<TransformerBlock*>(&module)) blocks[module.path()] = block;
  });
  std::map<std::string, LoraAdapters*> adapters;
  for (const LoraTarget& target : targets) {
    const std::string block = block_of(target.parameter);
    if (target.is_embedding) {
      embeddings.at(block)->add_adapter(below_block(target), target.rows, target.rank, target.scale);
      continue;
    }
    LoraAdapters*& own = adapters[block];
    if (own == nullptr) own = &blocks.at(block)->make_adapters();
    LoraAdapter& adapter = own->add(below_block(target), {.in = target.columns,
                                                          .rows = target.own_rows(),
                                                          .rank = target.rank,
                                                          .first_row = target.row,
                                                          .experts = target.experts,
                                                          .scale = target.scale,
                                                          .dropout = dropout,
                                                          .has_magnitude = target.has_magnitude});
    if (target.experts == 0) {
      products.at(without_ending(target.parameter))->add_adapter(adapter);
    } else {
      const std::size_t dot = target.parameter.rfind('.');
      experts.at(target.parameter.substr(0, dot))->add_adapter(target.parameter.ends_with(".down"), adapter);
    }
  }
}

void begin_magnitudes(LanguageModel& model, ShardedRuntime& runtime) {
  Context& context = runtime.context();
  std::map<int, std::vector<std::pair<const Parameter*, const LoraAdapter*>>> by_unit;  // weights and their adapters
  visit(model, [&](Module& module) {
    auto* const product = dynamic_cast<Linear*>(&module);
    if (product == nullptr) return;
    for (const LoraAdapter* adapter : product->adapters())
      if (adapter->magnitude() != nullptr)
        by_unit[runtime.unit_of(product->weight()).value()].emplace_back(&product->weight(), adapter);
  });
  for (const auto& [unit, changes] : by_unit) {
    runtime.unshard(unit).wait();
    std::vector<std::pair<const Parameter*, Tensor>> magnitudes;
    std::set<int> units;
    for (const auto& [weight, adapter] : changes) {
      magnitudes.emplace_back(adapter->magnitude(), adapter->first_magnitude(context, *weight));
      units.insert(runtime.unit_of(*adapter->magnitude()).value());
    }
    runtime.reshard(unit);
    const UnshardScope scope(runtime, {units.begin(), units.end()});
    for (const auto& [parameter, norms] : magnitudes) {
      const Buffer in = norms.buffer(), out = scope.value(*parameter);
      context.launch({"begin_magnitude", {in}, {out}},
                     [&kernels = context.kernels(), out, in](ExecContext& exec) { kernels.copy(exec, out, in); });
    }
  }
}

std::vector<ParameterShape> adapter_parameters(const std::vector<LoraTarget>& targets) {
  std::vector<ParameterShape> parameters;
  for (const LoraTarget& target : targets) {
    if (target.is_embedding) {
      parameters.push_back({target.a(), {padded_vocab(target.rows), target.rank}});
      parameters.push_back({target.b(), {target.columns, target.rank}});
      continue;
    }
    parameters.push_back({target.a(), {target.rank * std::max<std::int64_t>(1, target.experts), target.columns}});
    parameters.push_back({target.b(), {target.rows, target.rank}});
    if (target.has_magnitude) parameters.push_back({target.magnitude(), {target.rows}});
  }
  return parameters;
}

TensorMap adapter_map(const std::vector<LoraTarget>& targets) {
  TensorMap map;
  for (const LoraTarget& target : targets) {
    const std::string module = peft_module(target, targets);
    if (target.is_embedding) {
      map.rules.push_back({target.a(), {{module + ".lora_embedding_A", target.rows}}, true});
      map.rules.push_back({target.b(), {{module + ".lora_embedding_B"}}});
      continue;
    }
    map.rules.push_back({target.a(), {{module + ".lora_A.weight"}}});
    map.rules.push_back({.parameter = target.b(),
                         .parts = {{module + ".lora_B.weight"}},
                         .matrices = target.experts,
                         .interleaved = target.interleaved,
                         .are_side_by_side = target.experts > 0});
    if (target.has_magnitude) map.rules.push_back({target.magnitude(), {{module + ".lora_magnitude_vector"}}});
  }
  return map;
}

}  // namespace zs
