#include "model/lora/lora_targets.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "model/families/family.h"
#include "runtime/base/check.h"
#include "runtime/base/name_pattern.h"

namespace zs {
namespace {

constexpr std::string_view kBlocks = "blocks.", kWeight = ".weight", kAdapters = ".lora.";
constexpr const char* kPeftPrefix = "base_model.model.";

std::string without_ending(const std::string& name) { return name.substr(0, name.size() - kWeight.size()); }

/// "blocks.3" of "blocks.3.attention.qkv.weight".
std::string block_of(const std::string& parameter) { return parameter.substr(0, parameter.find('.', kBlocks.size())); }

/// Name after the number of the block: "self_attn.q_proj".
std::string below_block(const LoraProduct& product) {
  const std::string number = block_of(product.parameter).substr(kBlocks.size() - 1) + ".";
  const std::size_t at = product.module.find(number);
  ZS_CHECK(at != std::string::npos, "{} is no module of {}", product.module, product.parameter);
  return product.module.substr(at + number.size());
}

void visit(Module& module, const std::function<void(Module&)>& use) {
  use(module);
  for (Module* child : module.children()) visit(*child, use);
}

/// The shapes of a model's parameters, by name.
std::map<std::string, Shape> shapes_of(const ModelConfig& model) {
  std::map<std::string, Shape> shapes;
  const auto network = family_named(model.family).make(model);
  visit(*network, [&](Module& module) {
    for (const auto& parameter : module.own_parameters()) shapes.emplace(parameter->name(), parameter->shape());
  });
  return shapes;
}

/// A name, and what is after each of its dots, longest first.
std::vector<std::string> endings(const std::string& name) {
  std::vector<std::string> all{name};
  for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1))
    all.push_back(name.substr(dot + 1));
  return all;
}

/// "all-linear" is peft's word for all of them.
bool matches(const std::string& pattern, const std::string& module) {
  if (pattern == "all-linear") return true;
  const NamePattern targets(pattern);
  const auto all = endings(module);
  return std::any_of(all.begin(), all.end(), [&](const std::string& ending) { return targets.matches(ending); });
}

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
          fmt::format("lora.targets: no product of the blocks is called like \"{}\"", pattern),
          {},
          fmt::format("the nearest are {}; other weights have no adapters", fmt::join(names, ", "))};
}

}  // namespace

std::string LoraProduct::a() const {
  return fmt::format("{}{}{}.lora_A.weight", block_of(parameter), kAdapters, below_block(*this));
}

std::string LoraProduct::b() const {
  return fmt::format("{}{}{}.lora_B.weight", block_of(parameter), kAdapters, below_block(*this));
}

bool is_adapter_parameter(std::string_view name) {
  return name.starts_with(kBlocks) && name.find(kAdapters) != std::string_view::npos;
}

std::vector<LoraProduct> lora_products(const ModelConfig& model) {
  const auto shapes = shapes_of(model);
  std::vector<LoraProduct> products;
  for (const TensorRule& rule : family_named(model.family).tensor_map(model).rules) {
    const Shape& shape = shapes.at(rule.parameter);
    if (!rule.parameter.starts_with(kBlocks) || shape.rank() != 2) continue;
    std::int64_t row = 0;
    for (const TensorPart& part : rule.parts) {
      const std::int64_t rows = part.rows != 0 ? part.rows : shape[0];
      products.push_back({without_ending(part.tensor), rule.parameter, row, rows, shape[1], rule.is_transposed});
      row += rows;
    }
  }
  return products;
}

std::vector<LoraProduct> matching(const std::vector<LoraProduct>& products, const std::vector<std::string>& patterns) {
  std::set<std::string> used;
  std::vector<LoraProduct> found;
  for (const LoraProduct& product : products) {
    bool is_matched = false;
    for (const std::string& pattern : patterns) {
      if (!matches(pattern, product.module)) continue;
      used.insert(pattern);
      is_matched = true;
    }
    if (is_matched) found.push_back(product);
  }
  for (const std::string& pattern : patterns)
    if (!used.contains(pattern)) throw no_match(products, pattern);
  return found;
}

std::vector<LoraProduct> lora_targets(const ModelConfig& model, const LoraConfig& lora) {
  return matching(lora_products(model), lora.targets);
}

std::vector<std::string> shortest_patterns(const std::vector<LoraProduct>& all, std::span<const std::string> modules) {
  const std::set<std::string> wanted(modules.begin(), modules.end());
  std::set<std::string> patterns;
  for (const std::string& module : wanted) {
    const auto candidates = endings(module);
    const auto is_exact = [&](const std::string& ending) {
      return std::all_of(all.begin(), all.end(), [&](const LoraProduct& product) {
        return !matches(ending, product.module) || wanted.contains(product.module);
      });
    };
    patterns.insert(*std::find_if(candidates.rbegin(), candidates.rend(), is_exact));
  }
  return {patterns.begin(), patterns.end()};
}

void attach_adapters(LanguageModel& model, const std::vector<LoraProduct>& targets, const LoraConfig& lora) {
  std::map<std::string, Linear*> products;
  std::map<std::string, TransformerBlock*> blocks;
  visit(model, [&](Module& module) {
    if (auto* const product = dynamic_cast<Linear*>(&module)) products[module.path()] = product;
    if (auto* const block = dynamic_cast<TransformerBlock*>(&module)) blocks[module.path()] = block;
  });
  std::map<std::string, LoraAdapters*> adapters;
  for (const LoraProduct& target : targets) {
    const std::string block = block_of(target.parameter);
    LoraAdapters*& own = adapters[block];
    if (own == nullptr) own = &blocks.at(block)->make_adapters();
    products.at(without_ending(target.parameter))
        ->add_adapter(own->add(below_block(target), {.in = target.columns,
                                                     .rows = target.rows,
                                                     .rank = lora.rank,
                                                     .first_row = target.row,
                                                     .scale = lora.scale()}));
  }
}

std::vector<ParameterShape> adapter_parameters(const std::vector<LoraProduct>& targets, std::int64_t rank) {
  std::vector<ParameterShape> parameters;
  for (const LoraProduct& target : targets) {
    parameters.push_back({target.a(), {rank, target.columns}});
    parameters.push_back({target.b(), {target.rows, rank}});
  }
  return parameters;
}

TensorMap adapter_map(const std::vector<LoraProduct>& targets) {
  TensorMap map;
  for (const LoraProduct& target : targets) {
    map.rules.push_back({target.a(), {{kPeftPrefix + target.module + ".lora_A.weight"}}});
    map.rules.push_back({target.b(), {{kPeftPrefix + target.module + ".lora_B.weight"}}});
  }
  return map;
}

}  // namespace zs
