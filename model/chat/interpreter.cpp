#include "model/chat/interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "model/chat/filters.h"
#include "model/chat/functions.h"
#include "model/chat/operators.h"
#include "runtime/base/reader_limits.h"

namespace zs::jinja {
namespace {

/// Variables of a block, within those of another.
struct Scope {
  const Scope* outer = nullptr;
  Dict variables = {};

  const Value* find(const std::string& name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->outer)
      if (const Value* const found = scope->variables.find(name)) return found;
    return nullptr;
  }
};

class Interpreter {
 public:
  explicit Interpreter(const TemplateTree& tree) : tree_(tree) {}

  Rendered run(const Dict& variables) {
    const Scope functions{nullptr, built_in_functions()};
    const Scope given{&functions, variables};
    Scope scope{&given};
    try {
      run_block(tree_.body, scope);
    } catch (const TemplateError& error) {
      if (error.line() != 0) throw;
      throw TemplateError(error.kind(), error.what(), line_);
    }
    return {std::move(out_), std::move(generated_)};
  }

 private:
  using Kind = Expression::Kind;
  enum class Flow { on, stop, next };

  /// Counts what is evaluated within one another, for as long as it lives.
  class Level {
   public:
    explicit Level(Interpreter& interpreter) : interpreter_(interpreter) {
      constexpr int kMost = 10 * ReaderLimits::kTemplateDepth;
      if (++interpreter_.depth_ <= kMost) return;
      --interpreter_.depth_;
      fail("it calls itself too often");
    }
    ~Level() { --interpreter_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Interpreter& interpreter_;
  };

  void step(std::int64_t count = 1) {
    steps_ += count;
    if (steps_ > ReaderLimits::kTemplateSteps)
      fail(fmt::format("it takes more than {} steps", ReaderLimits::kTemplateSteps));
  }

  /// Counts a value that has been made.
  Value made(Value value) {
    bytes_ += value.is(Value::Kind::string) ? value.weight() : value.is_list() ? std::ssize(value.items()) * 16 : 16;
    if (bytes_ > ReaderLimits::kTemplateTextBytes)
      fail(fmt::format("it makes more than {} MiB of text", ReaderLimits::kTemplateTextBytes >> 20));
    return value;
  }

  void put(const std::string& text) {
    step(1 + std::ssize(text) / 64);
    check_length(std::ssize(out_) + std::ssize(text));
    out_ += text;
  }

  /// The text that `write` puts out, instead of putting it out.
  template <class Write>
  std::string captured(const Write& write) {
    std::string outer = std::exchange(out_, {});
    ++captures_;
    write();
    --captures_;
    return std::exchange(out_, std::move(outer));
  }

  std::string captured_block(const Block& body, const Scope& outer) {
    return captured([&] {
      Scope inner{&outer};
      run_block(body, inner);
    });
  }

  Flow run_block(const Block& body, Scope& scope) {
    const Level level(*this);
    for (const Statement& statement : body) {
      line_ = statement.line;
      step();
      if (const Flow flow = run(statement, scope); flow != Flow::on) return flow;
    }
    return Flow::on;
  }

  Flow run(const Statement& statement, Scope& scope) {
    switch (statement.kind) {
      case Statement::Kind::data: put(statement.text); break;
      case Statement::Kind::output: put(evaluate(*statement.expressions[0], scope).str()); break;
      case Statement::Kind::choice: return run_choice(statement, scope);
      case Statement::Kind::loop: run_loop(statement, scope); break;
      case Statement::Kind::set: assign(statement, evaluate(*statement.expressions[0], scope), scope); break;
      case Statement::Kind::set_block: {
        const Value text = Value::string(captured_block(statement.bodies[0], scope));
        const Expression* const filter = statement.expressions[0].get();
        assign(statement, filter == nullptr ? text : filtered(*filter, text, scope), scope);
        break;
      }
      case Statement::Kind::macro: scope.variables.set(statement.text, macro(statement, scope)); break;
      case Statement::Kind::call: put(call_with(statement, scope).str()); break;
      case Statement::Kind::filter:
        put(filtered(*statement.expressions[0], Value::string(captured_block(statement.bodies[0], scope)), scope)
                .str());
        break;
      case Statement::Kind::with: {
        Scope inner{&scope};
        for (std::size_t i = 0; i < statement.targets.size(); ++i)
          inner.variables.set(statement.targets[i], evaluate(*statement.expressions[i], scope));
        run_block(statement.bodies[0], inner);
        break;
      }
      case Statement::Kind::generation: run_generation(statement, scope); break;
      case Statement::Kind::stop: return Flow::stop;
      case Statement::Kind::next: return Flow::next;
    }
    return Flow::on;
  }

  Flow run_choice(const Statement& statement, Scope& scope) {
    for (std::size_t i = 0; i < statement.expressions.size(); ++i)
      if (evaluate(*statement.expressions[i], scope).truth()) return run_block(statement.bodies[i], scope);
    return statement.bodies.size() > statement.expressions.size() ? run_block(statement.bodies.back(), scope)
                                                                  : Flow::on;
  }

  void run_generation(const Statement& statement, Scope& scope) {
    if (captures_ > 0) refuse("a generation block within a macro or another block is not supported");
    const std::size_t begin = out_.size();
    Scope inner{&scope};
    run_block(statement.bodies[0], inner);
    generated_.push_back({begin, out_.size()});
  }

  /// Sets names to a value, or to the parts of it.
  void assign(const Statement& to, const Value& value, Scope& scope) {
    if (!to.is_tuple) return assign_one(to.targets[0], value, scope);
    const List items = iterated(value);
    if (items.size() != to.targets.size()) fail(fmt::format("{} values for {} names", items.size(), to.targets.size()));
    for (std::size_t i = 0; i < items.size(); ++i) assign_one(to.targets[i], items[i], scope);
  }

  void assign_one(const std::string& target, const Value& value, Scope& scope) {
    const std::size_t dot = target.find('.');
    if (dot == std::string::npos) return scope.variables.set(target, value);
    const std::string name = target.substr(0, dot), field = target.substr(dot + 1);
    const Value* const owner = scope.find(name);
    if (owner == nullptr || !owner->is(Value::Kind::name_space)) fail(fmt::format("'{}' is no namespace", name));
    if (field.starts_with('_')) fail("a field of a namespace begins with an underscore");
    if (value.is(Value::Kind::name_space) || value.is(Value::Kind::callable))
      refuse(fmt::format("a {} within another value is not supported", value.type()));
    owner->fields().set(field, value);
  }

  void run_loop(const Statement& statement, Scope& scope) {
    List items = iterated(evaluate(*statement.expressions[0], scope));
    step(std::ssize(items));
    if (const Expression* const condition = statement.expressions[1].get()) {
      std::erase_if(items, [&](const Value& item) {
        Scope inner{&scope};
        assign(statement, item, inner);
        return !evaluate(*condition, inner).truth();
      });
    }
    if (items.empty() && statement.bodies.size() > 1) {
      Scope inner{&scope};
      run_block(statement.bodies[1], inner);
      return;
    }
    ++loops_;
    for (std::size_t i = 0; i < items.size(); ++i) {
      Scope inner{&scope};
      if (tree_.names.contains("loop")) inner.variables.set("loop", loop_value(items, i));
      assign(statement, items[i], inner);
      if (run_block(statement.bodies[0], inner) == Flow::stop) break;
    }
    --loops_;
  }

  Value loop_value(const List& items, std::size_t i) const {
    const std::int64_t at = static_cast<std::int64_t>(i), count = std::ssize(items);
    Value loop = Value::name_space({});
    Dict& fields = loop.fields();
    fields.set("index", Value::integer(at + 1));
    fields.set("index0", Value::integer(at));
    fields.set("revindex", Value::integer(count - at));
    fields.set("revindex0", Value::integer(count - at - 1));
    fields.set("first", Value::boolean(i == 0));
    fields.set("last", Value::boolean(at + 1 == count));
    fields.set("length", Value::integer(count));
    fields.set("depth", Value::integer(loops_));
    fields.set("depth0", Value::integer(loops_ - 1));
    fields.set("previtem", i > 0 ? items[i - 1] : Value::undefined("there is no previous item"));
    fields.set("nextitem", at + 1 < count ? items[i + 1] : Value::undefined("there is no next item"));
    fields.set("cycle", Value::callable([i](const CallArguments& given) {
                 if (given.positional.empty()) fail("'cycle' without values");
                 return given.positional[i % given.positional.size()];
               }));
    return loop;
  }

  /// A function that the statement's body is. Neither of them may outlive this and the scope.
  Value macro(const Statement& statement, const Scope& outer, std::size_t first_value = 0) {
    return Value::callable([this, &statement, &outer, first_value](const CallArguments& given) {
      const Level level(*this);
      Scope inner{&outer};
      bind(statement, given, first_value, inner);
      return made(Value::string(captured([&] { run_block(statement.bodies[0], inner); })));
    });
  }

  void bind(const Statement& statement, const CallArguments& given, std::size_t first_value, Scope& scope) {
    const std::vector<std::string>& names = statement.targets;
    if (given.positional.size() > names.size())
      fail(fmt::format("'{}' takes {} arguments at most", statement.text, names.size()));
    const std::size_t without_value = names.size() - (statement.expressions.size() - first_value);
    for (const auto& [name, value] : given.named) {
      const bool is_known = name == "caller" || std::find(names.begin(), names.end(), name) != names.end();
      if (!is_known) fail(fmt::format("'{}' has no argument '{}'", statement.text, name));
      scope.variables.set(name, value);
    }
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (i < given.positional.size())
        scope.variables.set(names[i], given.positional[i]);
      else if (scope.variables.find(names[i]) != nullptr)
        continue;
      else if (i < without_value)
        scope.variables.set(names[i], Value::undefined(names[i]));
      else
        scope.variables.set(names[i], evaluate(*statement.expressions[first_value + i - without_value], scope));
    }
  }

  Value call_with(const Statement& statement, Scope& scope) {
    const Expression& call = *statement.expressions[0];
    CallArguments given = arguments(call, scope);
    given.named.emplace_back("caller", macro(statement, scope, 1));
    return evaluate(*call.parts[0], scope).function()(given);
  }

  CallArguments arguments(const Expression& call, const Scope& scope) {
    CallArguments given;
    const std::size_t named = call.parts.size() - call.names.size();
    for (std::size_t i = 1; i < call.parts.size(); ++i) {
      Value value = evaluate(*call.parts[i], scope);
      if (i < named)
        given.positional.push_back(std::move(value));
      else
        given.named.emplace_back(call.names[i - named], std::move(value));
    }
    return given;
  }

  /// Through a block's filters: the innermost has nothing before it.
  Value filtered(const Expression& filter, const Value& of, const Scope& scope) {
    const Value before = filter.parts[0] == nullptr ? of : filtered(*filter.parts[0], of, scope);
    return made(apply_filter(filter.name, before, arguments(filter, scope)));
  }

  Value evaluate(const Expression& e, const Scope& scope) {
    const Level level(*this);
    step();
    const int line = std::exchange(line_, e.line);
    Value value = value_of(e, scope);
    line_ = line;
    return value;
  }

  Value value_of(const Expression& e, const Scope& scope) {
    const auto part = [&](std::size_t i) { return evaluate(*e.parts[i], scope); };
    switch (e.kind) {
      case Kind::constant: return e.value;
      case Kind::variable: {
        const Value* const found = scope.find(e.name);
        return found != nullptr ? *found : Value::undefined(e.name);
      }
      case Kind::list:
      case Kind::tuple: return list_of(e, scope);
      case Kind::dict: return dict_of(e, scope);
      case Kind::attribute: return attribute(part(0), e.name);
      case Kind::subscript: return made(subscript(part(0), part(1)));
      case Kind::slice: return slice_of(e, scope);
      case Kind::call: return called(e, scope);
      case Kind::filter: return filter_of(e, scope);
      case Kind::test: return Value::boolean(apply_test(e.name, part(0), arguments(e, scope)));
      case Kind::unary: return unary(e.name, part(0));
      case Kind::binary: return binary_of(e, scope);
      case Kind::compare: return comparison(e, scope);
      case Kind::choice:
        if (part(1).truth()) return part(0);
        return e.parts[2] == nullptr ? Value::undefined("the value of an 'if' without 'else'") : part(2);
    }
    return {};
  }

  Value list_of(const Expression& e, const Scope& scope) {
    List list;
    for (const ExpressionPtr& part : e.parts) list.push_back(evaluate(*part, scope));
    return made(Value::list(std::move(list), e.kind == Kind::tuple ? Value::Kind::tuple : Value::Kind::list));
  }

  Value dict_of(const Expression& e, const Scope& scope) {
    Dict dict;
    for (std::size_t i = 0; i < e.parts.size(); i += 2) {
      const Value key = evaluate(*e.parts[i], scope);
      if (!key.is(Value::Kind::string)) refuse("a dict with keys that are no texts is not supported");
      dict.set(key.text(), evaluate(*e.parts[i + 1], scope));
    }
    return Value::dict(std::move(dict));
  }

  Value slice_of(const Expression& e, const Scope& scope) {
    std::vector<std::optional<Value>> bounds(3);
    const Value of = evaluate(*e.parts[0], scope);
    for (std::size_t i = 0; i < 3; ++i)
      if (e.parts[i + 1] != nullptr) bounds[i] = evaluate(*e.parts[i + 1], scope);
    const auto bound = [&](std::size_t i) { return bounds[i] ? &*bounds[i] : nullptr; };
    step(of.is(Value::Kind::string) ? std::ssize(of.text()) / 64 : of.is_list() ? std::ssize(of.items()) / 4 : 0);
    return made(slice(of, bound(0), bound(1), bound(2)));
  }

  Value called(const Expression& e, const Scope& scope) {
    const Value callee = evaluate(*e.parts[0], scope);
    const CallArguments given = arguments(e, scope);
    if (callee.is(Value::Kind::undefined)) fail(fmt::format("{} is undefined, and called", callee.name()));
    return made(callee.function()(given));
  }

  Value filter_of(const Expression& e, const Scope& scope) {
    const Value of = evaluate(*e.parts[0], scope);
    const CallArguments given = arguments(e, scope);
    step(of.weight() / 64);
    return made(apply_filter(e.name, of, given));
  }

  static Value unary(const std::string& op, const Value& of) {
    if (op == "not") return Value::boolean(!of.truth());
    if (of.is(Value::Kind::real)) return Value::real(op == "-" ? -of.as_real() : of.as_real());
    return op == "-" ? binary("-", Value::integer(0), Value::integer(of.as_integer()))
                     : Value::integer(of.as_integer());
  }

  Value binary_of(const Expression& e, const Scope& scope) {
    Value left = evaluate(*e.parts[0], scope);
    if (e.name == "and") return left.truth() ? evaluate(*e.parts[1], scope) : left;
    if (e.name == "or") return left.truth() ? left : evaluate(*e.parts[1], scope);
    return made(binary(e.name, left, evaluate(*e.parts[1], scope)));
  }

  Value comparison(const Expression& e, const Scope& scope) {
    Value left = evaluate(*e.parts[0], scope);
    for (std::size_t i = 0; i < e.names.size(); ++i) {
      Value right = evaluate(*e.parts[i + 1], scope);
      step((left.weight() + right.weight()) / 256);
      if (!compare(e.names[i], left, right)) return Value::boolean(false);
      left = std::move(right);
    }
    return Value::boolean(true);
  }

  const TemplateTree& tree_;
  std::string out_;
  std::vector<TextSpan> generated_;
  std::int64_t steps_ = 0, bytes_ = 0;
  int depth_ = 0, captures_ = 0, loops_ = 0, line_ = 0;
};

}  // namespace

Rendered render(const TemplateTree& tree, const Dict& variables) { return Interpreter(tree).run(variables); }

}  // namespace zs::jinja
