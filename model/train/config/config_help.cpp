// The schema as text: for the terminal, and for docs/configuration.md.

#include "model/train/config/config_schema.h"
#include "runtime/base/name_pattern.h"

namespace zs {
namespace {

std::string table_of(const ConfigKey& key) {
  const auto dot = key.name.find('.');
  return std::string(dot == std::string_view::npos ? "" : key.name.substr(0, dot));
}

std::string without_backticks(std::string_view text) {
  std::string plain(text);
  std::erase(plain, '`');
  return plain;
}

std::string in_cell(std::string text) {
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, "\\");
  return text;
}

}  // namespace

std::string config_help(const std::string& pattern) {
  const NamePattern wanted(pattern);
  std::string text, table;
  for (const ConfigKey& key : config_keys()) {
    if (!wanted.matches(key.name) && key.name.find(pattern) == std::string_view::npos) continue;
    if (table_of(key) != table) text += "\n", table = table_of(key);
    const std::string allowed = key.allowed();
    text += fmt::format("  {:<32} {}{}; {}{}\n      {}\n", key.name, key.type(), allowed.empty() ? "" : ": " + allowed,
                        key.is_required() ? "" : "default ", without_backticks(key.default_text()),
                        without_backticks(key.doc));
  }
  return text;
}

std::string config_markdown() {
  std::string text, table;
  const auto values = [](const ConfigKey& key) {
    const std::string allowed = in_cell(key.allowed()), type(key.type());
    if (allowed.empty()) return type;
    return type == "string" ? allowed : fmt::format("{}, {}", type, allowed);
  };
  const auto heading = [](const std::string& name) {
    return fmt::format("### {}\n\n| key | values | default | meaning |\n|---|---|---|---|\n", name);
  };
  text += heading("Top level");
  for (const ConfigKey& key : config_keys()) {
    if (table_of(key) != table) table = table_of(key), text += "\n" + heading("`[" + table + "]`");
    const bool is_constant = key.default_note.empty();
    text +=
        fmt::format("| `{}` | {} | {} | {} |\n", key.name, values(key),
                    is_constant ? "`" + key.default_text() + "`" : key.default_text(), in_cell(std::string(key.doc)));
  }
  return text;
}

}  // namespace zs
