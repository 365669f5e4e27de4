#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/chat/chat_template.h"
#include "model/chat/interpreter.h"
#include "model/chat/json_value.h"
#include "model/data/packed_documents.h"
#include "model/tokenizer/tokenizer.h"
#include "tests/message_of.h"
#include "tests/model/temp_dir.h"

namespace zs::test::chat_test {
namespace {

using nlohmann::json;

const std::string kData = std::string(ZSHARD_SOURCE_ROOT) + "/tests/data/";

json cases() {
  const char* const other = std::getenv("ZSHARD_CHAT_CASES");  // more of them, written by make_cases.py
  std::ifstream file(other != nullptr ? other : kData + "chats/cases.json");
  return json::parse(file);
}

/// A line as it is trained on: ids, and a 1 for each target, the first token's too.
struct Trained {
  std::vector<std::int32_t> ids;
  std::string mask;
};
Trained trained(const std::string& line, const ChatTemplate& chat, const Tokenizer& tokenizer, TrainOn train_on) {
  const EncodedDocuments all = encode_texts(
      {{.prompt = {}, .text = line, .where = "chat.jsonl:1", .is_chat = true}}, {},
      {.tokenizer = &tokenizer, .sequence = 1 << 20, .vocab = 1 << 16, .chat = &chat, .train_on = train_on});
  const Document& document = all.documents.at(0);
  Trained made{std::vector<std::int32_t>(static_cast<std::size_t>(document.length)),
               std::string(static_cast<std::size_t>(document.length), '0')};
  all.corpus->read(document.first, document.length, made.ids.data());
  for (const TokenSpan& span : document.trained)
    for (std::int64_t i = span.begin; i < span.end; ++i) made.mask[static_cast<std::size_t>(i)] = '1';
  return made;
}

}  // namespace

TEST_CASE("ids and masks of chats are those of transformers, with generation marks and by comparing texts without") {
  for (const json& family : cases()) {
    const TempDir dir;
    const std::string name = family["name"];
    std::filesystem::copy_file(kData + "tokenizers/" + family["tokenizer"].get<std::string>() + "/tokenizer.json",
                               dir / "tokenizer.json");
    dir.write("tokenizer_config.json", family["config"].dump());
    const std::string plain = dir.write("plain.jinja", family["plain"]);
    const auto tokenizer = open_tokenizer(dir / "tokenizer.json");
    const auto marked = open_chat_template(dir / "tokenizer.json", "");
    const auto unmarked = open_chat_template(dir / "tokenizer.json", plain);
    for (const json& one : family["conversations"]) {
      const std::string line = one["line"];
      CAPTURE(name, line);
      CHECK(marked->render(line, TrainOn::assistant).text == one["text"]);
      for (const ChatTemplate* const chat : {marked.get(), unmarked.get()}) {
        CAPTURE(chat == unmarked.get());
        const Trained made = trained(line, *chat, *tokenizer, TrainOn::assistant);
        CHECK(made.ids == one["ids"].get<std::vector<std::int32_t>>());
        CHECK(made.mask == one["mask"].get<std::string>());
      }
    }
  }
}

TEST_CASE("what templates say means what it means to transformers") {
  std::ifstream file(kData + "chats/snippets.json");
  const json snippets = json::parse(file);
  jinja::Value variables;
  std::ifstream again(kData + "chats/snippets.json");  // the order of keys counts
  const std::string text{std::istreambuf_iterator<char>(again), {}};
  REQUIRE_FALSE(jinja::read_value(text, variables));
  for (const json& one : snippets["snippets"]) {
    const std::string source = one["template"];
    CAPTURE(source);
    if (one.contains("error")) {
      CHECK_THROWS_AS(jinja::parse_template(source), jinja::TemplateError);
    } else {
      CHECK(jinja::render(jinja::parse_template(source), variables.entries().find("variables")->entries()).text ==
            one["text"]);
    }
  }
}

TEST_CASE("a template that is not read, or takes too much, ends with one line") {
  const auto line_of = [](const std::string& source) {
    try {
      jinja::render(jinja::parse_template(source), {});
    } catch (const jinja::TemplateError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  struct Case {
    std::string source, message;
  };
  std::string deep = "1", chain = "a";
  for (int i = 0; i < 3000; ++i) deep = "(" + deep + ")", chain += " + a";
  for (const auto& [source, message] : std::vector<Case>{
           {"{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "it takes more than 4000000 steps"},
           {"{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x * 2 %}{% endfor %}",
            "it makes more than 256 MiB of text"},
           {"{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}",
            "a value is larger than 256 MiB"},
           {"{% set ns = namespace(x=[1]) %}{% for i in range(999) %}{% set ns.x = [ns.x] %}{% endfor %}",
            "values nest deeper than 256"},
           {"{% set ns = namespace() %}{% set ns.x = ns %}", "a namespace within another value is not supported"},
           {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "it calls itself too often"},
           {"{{ 'a' * 1000000000000 }}", "a text would be longer than 256 MiB"},
           {"{{ range(1000000) }}", "a range has more than 100000 items"},
           {"{{ " + deep + " }}", "it nests deeper than 100"},
           {"{{ " + chain + " }}", "an expression is too long"},
           {"{% extends 'x' %}", "the statement 'extends' is not supported"},
           {"{{ x | xmlattr }}", "the filter 'xmlattr' is not supported"},
           {"{{ x is escaped }}", "the test 'escaped' is not supported"},
           {"{{ 'a'.format(1) }}", "the method 'format' of a text is not supported"},
           {"{{ [].append(1) }}", "the method 'append' of a list is not supported"},
           {"{{ x.y.z }}", "'x' is undefined"},
           {"{{ x() }}", "'x' is undefined, and called"},
           {"{{ 1 + 'a' }}", "'+' of a int and a str has no meaning"},
           {"{{ 9223372036854775807 + 1 }}", "an integer has more than 64 bits"},
           {"{{ 1 // 0 }}", "a division by zero"},
           {"{{ raise_exception('no') }}", "no"},
           {"{% if x %}", "the template ends where 'endif' is due"},
           {"{% for x in y %}{% endif %}", "'endif' stands where 'endfor' is due"},
           {"{% endfor %}", "'endfor' ends nothing"},
           {"{{ x", "a tag does not end: '}}' is missing"},
           {"{{ 'x }}", "a string does not end"},
           {"{# x", "a comment does not end: '#}' is missing"},
           {"{{ ) }}", "')' closes nothing"},
           {"{{ }}", "'}}' stands where a value is due"},
           {"{% break %}", "'break' outside of a loop"}}) {
    CAPTURE(source.substr(0, 80));
    CHECK(line_of(source) == message);
  }
}

TEST_CASE("a chat that is no conversation for the template is refused with a line that says where") {
  const std::map<std::string, std::string> plain = {{"default",
                                                     "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.role "
                                                     "== 'assistant' %}</s>{% endif %}{% endfor %}"}};
  const ChatTemplate chat(plain, {{"eos_token", "</s>"}}, "here");
  const auto refusal = [&](const std::string& line, const ChatTemplate& of) {
    return message_of([&] { of.render(line, TrainOn::assistant); });
  };
  const auto with = [](const std::string& message) {
    return R"({"messages": [{"role": "user", "content": "hi"}, )" + message + "]}";
  };
  const std::string good = with(R"({"role": "assistant", "content": "a"})");
  struct Case {
    std::string line, message;
  };
  for (const auto& [line, message] : std::vector<Case>{
           {R"({"text": "a"})", "the line has no field \"messages\""},
           {R"({"conversations": []})", "rename conversations, from and value"},
           {R"({"messages": {"role": "user"}})", "the field \"messages\" is a JSON dict, not a list"},
           {R"({"messages": []})", "is an empty list"},
           {R"(["messages"])", "the line is no JSON object"},
           {R"({"messages": )", "the line is not JSON"},
           {with(R"("hello")"), "messages[1] is a JSON str, not an object"},
           {with(R"({"content": "a"})"), "messages[1] has no role"},
           {with(R"({"from": "gpt", "value": "a"})"), "human: user, gpt: assistant"},
           {with(R"({"role": 1, "content": "a"})"), "messages[1] has a role that is no text"},
           {with(R"({"role": "gpt", "content": "a"})"),
            "messages[1] has the role \"gpt\", which the chat template does not know"},
           {with(R"({"role": "assistant", "content": " \n"})"), "messages[1] of the role assistant is empty"},
           {with(R"({"role": "assistant", "content": null})"), "messages[1] of the role assistant is empty"},
           {with(R"({"role": "assistant", "content": 3})"), "messages[1] has a content that is a JSON int"},
           {with(R"({"role": "user", "content": [{"type": "image", "url": "x"}]})"),
            "messages[1] has a part of type \"image\" without a text"},
           {with(R"({"role": "user", "content": "more"})"), "no message of the role assistant"},
           {R"({"tools": [{"type": "function"}], )" + good.substr(1),
            "the line has tools, and the chat template has no place for them"},
           {R"({"tools": "x", )" + good.substr(1), "the field \"tools\" is no list of objects"}}) {
    CAPTURE(line);
    CHECK_THAT(refusal(line, chat), Catch::Contains(message));
  }
  const ChatTemplate raising({{"default", "{{ raise_exception('roles must alternate') }}assistant"}}, {}, "here");
  CHECK_THAT(refusal(good, raising),
             Catch::StartsWith("the chat template refuses the conversation: roles must alternate"));
  const ChatTemplate looping(
      {{"default", "{% for i in range(9999) %}\n{% for j in range(9999) %}{% endfor %}{% endfor %}"}}, {}, "here");
  CHECK_THAT(refusal(good, looping), Catch::StartsWith("the chat template fails, its line 2: it takes more than"));
  CHECK_THROWS_WITH(ChatTemplate({{"default", "\n{{ x | pprint }}"}}, {}, "here"),
                    Catch::Contains("not supported, its line 2: the filter 'pprint'") && Catch::Contains("here"));
  CHECK_THROWS_WITH(ChatTemplate({{"default", "{% if %}"}}, {}, "here"), Catch::Contains("is no template"));
  const TempDir empty;
  empty.write("tokenizer_config.json", "{}");
  CHECK_THROWS_WITH(open_chat_template(empty.path(), ""), Catch::Contains("the folder has no chat template"));
}

TEST_CASE("a token that is the assistant's in part is trained on, as transformers' mask has it") {
  const TempDir dir;
  dir.write("tokenizer.json", R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})");
  const auto tokenizer = open_tokenizer(dir / "tokenizer.json");
  const ChatTemplate chat(
      {{"default", "{% for m in messages %}a{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"}}, {},
      "here");
  const Trained made =
      trained(R"({"messages": [{"role": "assistant", "content": "ba"}]})", chat, *tokenizer, TrainOn::assistant);
  CHECK(made.ids == std::vector<std::int32_t>{2, 0});
  CHECK(made.mask == "11");
}

TEST_CASE("of a chat the assistant's turns are trained on, or the last, or everything") {
  const ChatTemplate chat({{"default",
                            "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
                            "{% if add_generation_prompt %}<assistant>{% endif %}"}},
                          {}, "here");
  const std::string line = R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                               {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]})";
  const auto parts = [&](TrainOn train_on) {
    const ChatText made = chat.render(line, train_on);
    std::vector<std::string> texts;
    for (const auto& span : made.trained) texts.push_back(made.text.substr(span.begin, span.end - span.begin));
    return texts;
  };
  CHECK(parts(TrainOn::assistant) == std::vector<std::string>{"b</s>", "d</s>"});
  CHECK(parts(TrainOn::last) == std::vector<std::string>{"d</s>"});
  CHECK(parts(TrainOn::all) == std::vector<std::string>{"<user>a</s><assistant>b</s><user>c</s><assistant>d</s>"});
}

}  // namespace zs::test::chat_test
