#include "model/json/strict_json.h"

#include <iterator>
#include <vector>

namespace zs {
namespace {

using nlohmann::json;

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

/// Characters of a text; `seen` says how far the parser is.
struct Cursor {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  reference operator*() const { return *at; }
  Cursor& operator++() {
    *seen = ++at;
    return *this;
  }
  friend bool operator==(const Cursor& a, const Cursor& b) { return a.at == b.at; }
  friend bool operator!=(const Cursor& a, const Cursor& b) { return a.at != b.at; }

  const char* at;
  const char** seen;
};

/// Hands events on, down to the depth that is allowed.
class DepthLimit final : public nlohmann::json_sax<json> {
 public:
  explicit DepthLimit(JsonHandler& handler) : handler_(handler) {}

  bool null() override { return handler_.null(); }
  bool boolean(bool value) override { return handler_.boolean(value); }
  bool number_integer(number_integer_t value) override { return handler_.number_integer(value); }
  bool number_unsigned(number_unsigned_t value) override { return handler_.number_unsigned(value); }
  bool number_float(number_float_t value, const string_t& text) override { return handler_.number_float(value, text); }
  bool string(string_t& value) override { return handler_.string(value); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return enter() && handler_.start_object(std::size_t(-1)); }
  bool key(string_t& name) override { return handler_.key(name); }
  bool end_object() override { return leave() && handler_.end_object(); }
  bool start_array(std::size_t) override { return enter() && handler_.start_array(std::size_t(-1)); }
  bool end_array() override { return leave() && handler_.end_array(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    constexpr int kNumberTooLarge = 406;
    problem = {.byte = position};
    if (error.id == kNumberTooLarge) return problem->what = "has a number that is too large", false;
    std::string reason = error.what();
    if (const auto colon = reason.find("syntax error"); colon != std::string::npos) reason.erase(0, colon);
    problem->what = "is not valid JSON: " + shortened(reason);
    problem->is_no_json = true;
    return false;
  }

  std::optional<JsonProblem> problem;

 private:
  bool enter() {
    if (++depth_ <= ReaderLimits::kJsonDepth) return true;
    problem = {.what = fmt::format("nests deeper than {}", ReaderLimits::kJsonDepth)};
    return false;
  }
  bool leave() { return --depth_, true; }

  JsonHandler& handler_;
  int depth_ = 0;
};

/// Builds a tree, and counts about what it takes.
class TreeBuilder final : public JsonHandler {
 public:
  TreeBuilder(json& root, std::int64_t most_bytes) : root_(root), bytes_left_(most_bytes) {}

  bool null() override { return put(nullptr) != nullptr; }
  bool boolean(bool value) override { return put(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return put(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return put(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override { return put(value) != nullptr; }
  bool string(string_t& value) override { return take(kTextBytes + value.size()) && put(value) != nullptr; }
  bool start_object(std::size_t) override { return open(json::object()); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_object() override { return open_.pop_back(), true; }
  bool end_array() override { return open_.pop_back(), true; }
  bool key(string_t& name) override {
    auto& members = open_.back()->get_ref<json::object_t&>();
    const auto [member, is_new] = members.try_emplace(name, nullptr);
    if (!is_new) return problem = fmt::format("has the key \"{}\", which occurs twice", shortened(name)), false;
    slot_ = &member->second;
    return take(kMemberBytes + name.size());
  }

  std::string problem;

 private:
  // Bytes that library and allocator take; a list that grows takes twice its elements.
  static constexpr std::size_t kElementBytes = 2 * sizeof(json), kMemberBytes = 112, kTextBytes = 48,
                               kContainerBytes = 64;

  bool take(std::size_t bytes) {
    bytes_left_ -= static_cast<std::int64_t>(bytes);
    if (bytes_left_ >= 0) return true;
    problem = "has more values than are read";
    return false;
  }
  json* put(json value) {
    if (open_.empty()) return &(root_ = std::move(value));
    if (open_.back()->is_object()) return &(*slot_ = std::move(value));
    if (!take(kElementBytes)) return nullptr;
    auto& elements = open_.back()->get_ref<json::array_t&>();
    return &elements.emplace_back(std::move(value));
  }
  bool open(json container) {
    json* const placed = take(kContainerBytes) ? put(std::move(container)) : nullptr;
    if (placed != nullptr) open_.push_back(placed);
    return placed != nullptr;
  }

  json& root_;
  std::vector<json*> open_;
  json* slot_ = nullptr;  // value of the member whose key has come
  std::int64_t bytes_left_;
};

[[noreturn]] void refuse(const JsonProblem& problem, const std::string& file, const char* what) {
  refuse_weights(fmt::format("{}@{}", file, problem.byte), fmt::format("{} {}", what, problem.what));
}

}  // namespace

std::optional<JsonProblem> read_json(std::string_view text, JsonHandler& handler) {
  if (text.starts_with(kByteOrderMark)) return JsonProblem{.what = "begins with a byte order mark"};
  if (const auto nul = text.find('\0'); nul != text.npos) return JsonProblem{.byte = nul, .what = "has a NUL byte"};
  DepthLimit events(handler);
  const char* seen = text.data();
  const Cursor begin{text.data(), &seen}, end{text.data() + text.size(), &seen};
  if (json::sax_parse(begin, end, &events)) return std::nullopt;
  const auto byte = static_cast<std::size_t>(seen - text.data());
  if (!events.problem) return JsonProblem{.byte = byte, .is_of_handler = true};
  if (!events.problem->is_no_json) events.problem->byte = byte;
  return events.problem;
}

std::optional<JsonProblem> read_json_tree(std::string_view text, json& tree, std::int64_t most_bytes) {
  TreeBuilder builder(tree, most_bytes);
  auto problem = read_json(text, builder);
  if (problem && problem->is_of_handler) problem->what = builder.problem;
  return problem;
}

void parse_strictly(std::string_view text, const std::string& file, const char* what, JsonHandler& handler) {
  if (const auto problem = read_json(text, handler)) refuse(*problem, file, what);
}

json parse_document(std::string_view text, const std::string& file, std::int64_t most_bytes) {
  json tree;
  if (const auto problem = read_json_tree(text, tree, most_bytes)) refuse(*problem, file, "the file");
  return tree;
}

void refuse_weights(const std::string& file, const std::string& what) {
  throw Error(ExitCode::model, what, file, "get it again from where it came from");
}

std::string shortened(const std::string& text) {
  constexpr std::size_t kMost = 60;
  if (text.size() <= kMost) return text;
  std::size_t end = kMost - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

}  // namespace zs
