#include "model/chat/functions.h"

#include <fmt/format.h>

#include <ctime>
#include <iterator>

#include "model/chat/methods.h"

namespace zs::jinja {
namespace {

Value range(const CallArguments& given) {
  const Arguments arguments("range", given, {"start", "stop", "step"});
  const bool has_start = arguments.find(1) != nullptr;
  const std::int64_t from = has_start ? arguments.get(0).as_integer() : 0;
  const std::int64_t to = arguments.get(has_start ? 1 : 0).as_integer(), step = arguments.integer(2, 1);
  constexpr std::int64_t kMost = 100'000;  // as Jinja's sandbox has it
  List list;
  if (step == 0) fail("a range has the step 0");
  for (std::int64_t i = from; step > 0 ? i < to : i > to;) {
    if (std::ssize(list) == kMost) fail(fmt::format("a range has more than {} items", kMost));
    list.push_back(Value::integer(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value::list(std::move(list));
}

Value strftime_now(const CallArguments& given) {
  const std::string format = Arguments("strftime_now", given, {"format"}).get(0).text();
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  std::string out(1024, '\0');
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &local));
  return Value::string(std::move(out));
}

Dict named_values(const CallArguments& given) {
  if (!given.positional.empty()) refuse("dict and namespace take named arguments alone");
  Dict dict;
  for (const auto& [name, value] : given.named) dict.set(name, value);
  return dict;
}

}  // namespace

Dict built_in_functions() {
  Dict functions;
  const auto add = [&](const char* name, Callable function) {
    functions.set(name, Value::callable(std::move(function)));
  };
  add("range", range);
  add("strftime_now", strftime_now);
  add("dict", [](const CallArguments& given) { return Value::dict(named_values(given)); });
  add("namespace", [](const CallArguments& given) { return Value::name_space(named_values(given)); });
  add("raise_exception", [](const CallArguments& given) -> Value {
    throw TemplateError(TemplateError::Kind::raised, Arguments("raise_exception", given, {"message"}).get(0).str());
  });
  return functions;
}

}  // namespace zs::jinja
