#include "tests/train/hostile_weights.h"

#include <cstring>

namespace zs::test {
namespace {

/// One tensor "a" with these fields.
std::string entry(const std::string& fields) { return "{\"a\":{" + fields + "}}"; }

/// "a", of f32, so many bytes behind the header.
std::string f32(const std::string& shape, const std::string& offsets) {
  return entry("\"dtype\":\"F32\",\"shape\":" + shape + ",\"data_offsets\":" + offsets);
}

std::string u8_named(const std::string& name, int begin, int end) {
  const std::string from = std::to_string(begin), to = std::to_string(end);
  return "\"" + name + "\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(end - begin) + "],\"data_offsets\":[" +
         from + "," + to + "]}";
}

const std::string kGood = f32("[2]", "[0,8]");

std::vector<WeightCase> frame_cases() {
  const std::string good = safetensors(kGood, 8);
  std::string big_endian = good;
  std::swap(big_endian[0], big_endian[7]);
  std::string past_end = good;
  past_end[0] = static_cast<char>(good.size() - 8 + 1);
  return {
      {"empty", "", "too few"},
      {"seven bytes", good.substr(0, 7), "too few"},
      {"a length alone", good.substr(0, 8), "of which the file has 0"},
      {"length 0", length_bytes(0) + kGood, "not valid JSON"},
      {"length past the end by one", past_end, "of which the file has"},
      {"length 100000001", length_bytes(100'000'001) + kGood, "more than 100000000"},
      {"length 2^64 - 1", length_bytes(UINT64_MAX) + kGood, "more than 100000000"},
      {"length 2^64 - 8, which wraps", length_bytes(UINT64_MAX - 7) + kGood, "more than 100000000"},
      {"length 2^63", length_bytes(std::uint64_t{1} << 63) + kGood, "more than 100000000"},
      {"big-endian length", big_endian, "more than 100000000"},
      {"one byte short", good.substr(0, good.size() - 1), "the file ends at 7"},
      {"one byte over", good + "x", "the last 1 bytes belong to no tensor"},
      {"an archive behind it", good + std::string("PK\x05\x06", 4) + std::string(18, '\0'), "the last 22 bytes"},
      {"a pickle", std::string("\x80\x02}q\x00X\x00\x00\x00\x00\x00", 12), "more than 100000000"},
  };
}

std::vector<WeightCase> text_cases() {
  const auto with = [](const std::string& header) { return safetensors(header, 8); };
  const std::string body = kGood.substr(1);
  return {
      {"bytes that are not UTF-8", with("{\"\xff\":" + kGood.substr(5)), "not valid JSON"},
      {"an overlong form", with("{\"\xc0\xaf\":" + kGood.substr(5)), "not valid JSON"},
      {"a surrogate, escaped and alone", with("{\"\\ud800\":" + kGood.substr(5)), "not valid JSON"},
      {"a surrogate as bytes", with("{\"\xed\xa0\x80\":" + kGood.substr(5)), "not valid JSON"},
      {"bytes that are not UTF-8 outside a text", with("\xfe" + kGood), "not valid JSON"},
      {"a byte order mark", with("\xef\xbb\xbf" + kGood), "byte order mark"},
      {"NUL padding", with(kGood + std::string(4, '\0')), "NUL"},
      {"a NUL in front", with(std::string(1, '\0') + kGood), "NUL"},
      {"a trailing comma", with(kGood.substr(0, kGood.size() - 1) + ",}"), "not valid JSON"},
      {"a comment", with("{/* a */" + body), "not valid JSON"},
      {"a list", with("[" + kGood + "]"), "not a JSON object"},
      {"a number", with("7"), "not a JSON object"},
      {"null", with("null"), "not a JSON object"},
      {"two documents", with(kGood + "{}"), "not valid JSON"},
      {"a cut document", with(kGood.substr(0, kGood.size() - 2)), "not valid JSON"},
      {"100000 deep", with("{\"a\":" + std::string(100'000, '[')), "not an object"},
      {"deep in a field", with("{\"a\":{\"shape\":" + std::string(100'000, '[')), "a list where"},
      {"a raw newline in a name", with("{\"a\n\":" + kGood.substr(5)), "not valid JSON"},
      {"single quotes", with("{'a':" + kGood.substr(5)), "not valid JSON"},
      {"NaN", with(f32("[NaN]", "[0,8]")), "not valid JSON"},
      {"a number with a leading zero", with(f32("[02]", "[0,8]")), "not valid JSON"},
      {"only spaces", with("        "), "not valid JSON"},
  };
}

std::vector<WeightCase> key_cases() {
  const std::string same = u8_named("a", 0, 4);
  return {
      {"a name twice, one range", safetensors("{" + same + "," + same + "}", 4), "occurs twice"},
      {"a name twice, two ranges", safetensors("{" + same + "," + u8_named("a", 4, 8) + "}", 8), "occurs twice"},
      {"a name twice, once escaped", safetensors("{" + same + "," + u8_named("\\u0061", 4, 8) + "}", 8),
       "occurs twice"},
      {"a dtype twice", safetensors(entry(R"("dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8])"), 8),
       "dtype occurs twice"},
      {"a shape twice", safetensors(entry(R"("dtype":"F32","shape":[2],"shape":[1],"data_offsets":[0,8])"), 8),
       "shape occurs twice"},
      {"__metadata__ twice", safetensors(R"({"__metadata__":{},"__metadata__":{}})", 0), "occurs twice"},
      {"a key of __metadata__ twice", safetensors(R"({"__metadata__":{"a":"b","a":"c"}})", 0), "\"a\" twice"},
      {"a number in __metadata__", safetensors(R"({"__metadata__":{"a":1}})", 0), "only texts"},
      {"an object in __metadata__", safetensors(R"({"__metadata__":{"a":{"b":"c"}}})", 0), "an object"},
      {"null in __metadata__", safetensors(R"({"__metadata__":{"a":null}})", 0), "only texts"},
      {"__metadata__ is a text", safetensors(R"({"__metadata__":"a"})", 0), "not an object"},
      {"__metadata__ is null", safetensors(R"({"__metadata__":null})", 0), "not an object"},
      {"__metadata__ is a tensor",
       safetensors(R"({"__metadata__":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8), "__metadata__"},
      {"an empty name", safetensors("{" + u8_named("", 0, 4) + "}", 4), "name is empty"},
      {"a NUL in a name", safetensors("{" + u8_named("a\\u0000b", 0, 4) + "}", 4), "control characters"},
      {"a terminal's command in a name", safetensors("{" + u8_named("\\u001b[2Ja", 0, 4) + "}", 4),
       "control characters"},
      {"C1 in a name", safetensors("{" + u8_named("\\u009b2J", 0, 4) + "}", 4), "control characters"},
      {"a path that climbs", safetensors("{" + u8_named("../../etc/passwd", 0, 4) + "}", 4), "is a path"},
      {"an absolute path", safetensors("{" + u8_named("/etc/passwd", 0, 4) + "}", 4), "is a path"},
  };
}

std::vector<WeightCase> field_cases() {
  const auto with = [](const std::string& fields) { return safetensors(entry(fields), 8); };
  const auto shape = [](const std::string& text) { return safetensors(f32(text, "[0,8]"), 8); };
  const auto offsets = [](const std::string& text) { return safetensors(f32("[2]", text), 8); };
  const auto dtype = [](const std::string& text) {
    return safetensors(entry("\"dtype\":" + text + ",\"shape\":[2],\"data_offsets\":[0,8]"), 8);
  };
  return {
      {"no dtype", with(R"("shape":[2],"data_offsets":[0,8])"), "dtype is missing"},
      {"no shape", with(R"("dtype":"F32","data_offsets":[0,8])"), "shape is missing"},
      {"no offsets", with(R"("dtype":"F32","shape":[2])"), "data_offsets is missing"},
      {"no field", with(""), "is missing"},
      {"an unknown dtype", dtype("\"F31\""), "unknown dtype \"F31\""},
      {"a lower case dtype", dtype("\"f32\""), "unknown dtype \"f32\""},
      {"an empty dtype", dtype("\"\""), "unknown dtype"},
      {"dtype null", dtype("null"), "null where a dtype"},
      {"dtype 32", dtype("32"), "a number where a dtype"},
      {"dtype a list", dtype("[\"F32\"]"), "a list where a dtype"},
      {"another field", with(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"strides":[1])"),
       "unknown field \"strides\""},
      {"an upper case field", with(R"("DTYPE":"F32","shape":[2],"data_offsets":[0,8])"), "unknown field"},
      {"an entry that is a list", safetensors(R"({"a":["F32",[2],[0,8]]})", 8), "not an object"},
      {"an entry that is null", safetensors(R"({"a":null})", 0), "not an object"},
      {"an entry that is a text", safetensors(R"({"a":"F32"})", 0), "not an object"},
      {"three offsets", offsets("[0,8,8]"), "more than two"},
      {"one offset", offsets("[8]"), "1 data_offsets"},
      {"no offset", offsets("[]"), "0 data_offsets"},
      {"offsets null", offsets("null"), "null where data_offsets"},
      {"offsets an object", offsets("{}"), "an object where"},
      {"a negative offset", offsets("[-8,0]"), "the number -8"},
      {"offset -0", offsets("[-0,8]"), "the number 0"},
      {"a float offset", offsets("[0,8.0]"), "the number 8.0"},
      {"an offset as text", offsets("[0,\"8\"]"), "a text where"},
      {"an offset with an exponent", offsets("[0,8e0]"), "the number 8e0"},
      {"an offset above 2^64", offsets("[0,18446744073709551624]"), "the number 18446744073709551624"},
      {"an offset above 2^63", offsets("[0,9223372036854775808]"), "too large"},
      {"an infinite offset", offsets("[0,1e999]"), "too large"},
      {"reversed offsets", offsets("[8,0]"), "end before they begin"},
      {"a nested list of offsets", offsets("[[0],[8]]"), "a list where"},
      {"a negative shape", shape("[-2]"), "the number -2"},
      {"a float shape", shape("[2.0]"), "the number 2.0"},
      {"a scalar for a shape", shape("2"), "a number where a shape"},
      {"a shape as text", shape("\"2\""), "a text where a shape"},
      {"a shape of true", shape("[true]"), "true where a shape"},
      {"a shape of null", shape("[null]"), "null where a shape"},
  };
}

std::vector<WeightCase> geometry_cases() {
  std::string crowd = "{", ones = "[1";
  for (int i = 0; i < 1000; ++i) crowd += (i == 0 ? "" : ",") + u8_named("t" + std::to_string(i), 0, 4);
  for (int i = 0; i < 1'000'000; ++i) ones += ",1";
  return {
      {"an overlap", safetensors("{" + u8_named("a", 0, 4) + "," + u8_named("b", 2, 6) + "}", 6), "within another's"},
      {"1000 on one range", safetensors(crowd + "}", 4), "within another's"},
      {"a hole", safetensors("{" + u8_named("a", 0, 4) + "," + u8_named("b", 6, 8) + "}", 8), "belong to no tensor"},
      {"a start at 4", safetensors("{" + u8_named("a", 4, 8) + "}", 8), "those from 0 belong to no tensor"},
      {"too small", safetensors(f32("[2]", "[0,4]"), 4), "has 8 bytes, data_offsets 4"},
      {"too big", safetensors(f32("[2]", "[0,12]"), 12), "has 8 bytes, data_offsets 12"},
      {"past the end", safetensors(f32("[4]", "[0,16]"), 8), "the file ends at 8"},
      {"far past the end", safetensors(f32("[2]", "[9223372036854775799,9223372036854775807]"), 8),
       "the file ends at 8"},
      {"a product that overflows", safetensors(f32("[4294967296,4294967296]", "[0,8]"), 8), "too large"},
      {"bytes that overflow", safetensors(f32("[4611686018427387905]", "[0,4]"), 4), "too large"},
      {"a product that wraps to 4", safetensors(f32("[9223372036854775807,9223372036854775807]", "[0,4]"), 4),
       "too large"},
      {"an overflow before a zero", safetensors(f32("[9223372036854775807,2,0]", "[0,0]"), 0), "too large"},
      {"F4 with an odd count", safetensors(entry(R"("dtype":"F4","shape":[3],"data_offsets":[0,2])"), 2),
       "no whole bytes"},
      {"F6 that ends within a byte", safetensors(entry(R"("dtype":"F6_E2M3","shape":[2],"data_offsets":[0,2])"), 2),
       "no whole bytes"},
      {"a million dims", safetensors(f32(ones + "]", "[0,4]"), 4), "more than 64 dims"},
      {"a zero dim with bytes", safetensors(f32("[0]", "[0,4]"), 4), "has 0 bytes, data_offsets 4"},
      {"bytes without a tensor", safetensors("{}", 4), "the last 4 bytes"},
  };
}

std::vector<WeightCase> valid_cases() {
  std::string nan_and_infinity = safetensors(kGood, 8);
  std::memcpy(nan_and_infinity.data() + nan_and_infinity.size() - 8, "\0\0\xc0\x7f\0\0\x80\xff", 8);
  return {
      {"no tensor", safetensors("{}", 0)},
      {"a scalar", safetensors(f32("[]", "[0,4]"), 4)},
      {"a zero dim", safetensors(f32("[0]", "[0,0]"), 0)},
      {"a zero dim in the middle",
       safetensors("{" + u8_named("a", 0, 4) + R"(,"z":{"dtype":"F32","shape":[3,0,2],"data_offsets":[4,4]},)" +
                       u8_named("b", 4, 6) + "}",
                   6)},
      {"any order", safetensors("{" + u8_named("b", 4, 6) + "," + u8_named("a", 0, 4) + "}", 6)},
      {"values at odd bytes",
       safetensors("{" + u8_named("a", 0, 1) + R"(,"f":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})", 5)},
      {"NaN and infinity", nan_and_infinity},
      {"BOOL of another value", safetensors(entry(R"("dtype":"BOOL","shape":[1],"data_offsets":[0,1])"), 1)},
      {"spaces behind", safetensors(kGood + "     ", 8)},
      {"space in front", safetensors(" \n\t" + kGood, 8)},
      {"escapes",
       safetensors("{" + u8_named("caf\\u00e9 \\ud83d\\ude00 \\\\ \\/", 0, 4) + R"(,"__metadata__":{"format":"p\nt"}})",
                   4)},
      {"F4 of an even count", safetensors(entry(R"("dtype":"F4","shape":[4],"data_offsets":[0,2])"), 2)},
      {"a name with a slash", safetensors("{" + u8_named("encoder/layer..0/kernel", 0, 4) + "}", 4)},
  };
}

}  // namespace

std::string length_bytes(std::uint64_t length) { return {reinterpret_cast<const char*>(&length), sizeof length}; }

std::string safetensors(const std::string& header, std::size_t data_bytes) {
  return length_bytes(header.size()) + header + std::string(data_bytes, '\2');
}

std::vector<WeightCase> weight_cases() {
  std::vector<WeightCase> all;
  for (auto cases : {frame_cases(), text_cases(), key_cases(), field_cases(), geometry_cases(), valid_cases()})
    all.insert(all.end(), cases.begin(), cases.end());
  return all;
}

}  // namespace zs::test
