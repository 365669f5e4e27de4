#include "model/data/file_format.h"

#include "model/data/utf8.h"
#include "tests/model/temp_dir.h"
#include "tests/model/token_files.h"

namespace file_format_test {

using namespace zs;
using namespace zs::test;

namespace {

template <class Id>
std::vector<Id> swapped(std::vector<Id> all) {
  for (Id& id : all) {
    auto* const bytes = reinterpret_cast<unsigned char*>(&id);
    std::reverse(bytes, bytes + sizeof id);
  }
  return all;
}

}  // namespace

TEST_CASE("broken token files are refused with file and offset") {
  TempDir dir;
  const auto tokens = raw<std::uint16_t>({1, 2, 3});
  const auto [content, what] = GENERATE_COPY(table<std::string, std::string>({
      {std::string("abc"), "3 bytes are not a whole number of uint16 tokens"},
      {header(20240520, 1, 3).substr(0, 500), "the header is cut off after 500 of 1024 bytes"},
      {header(20240520, 1, 3).substr(0, 4), "the header is cut off after 4 of 1024 bytes"},
      {header(20240520, 2, 3) + tokens, "token file version 2, expected 1"},
      {header(20240520, 1, 4) + tokens, "the header says 4 tokens, the file holds 6 bytes of them"},
      {header(20240520, 1, 2) + tokens, "the header says 2 tokens, the file holds 6 bytes of them"},
      {header(20240520, 1, 3) + tokens + "x", "the header says 3 tokens, the file holds 7 bytes of them"},
      {header(20240520, 1, -1) + tokens, "the header says -1 tokens, the file holds 6 bytes of them"},
      {header(20240520, 1, 2147483647) + tokens, "the header says 2147483647 tokens, the file holds 6 bytes of them"},
      {header(static_cast<std::int32_t>(__builtin_bswap32(20240520)), 1, 3) + tokens, "the header is big-endian"},
      {header(20240801, 1, 3) + tokens, "token file version 1, expected 7"},
      {header(20240801, 7, 3) + tokens, "the header says 3 tokens, the file holds 6 bytes of them"},
      {header(static_cast<std::int32_t>(__builtin_bswap32(20240801)), 7, 3) + tokens, "the header is big-endian"},
      {header(20240326, 3, 3) + tokens, "the data file is one of llm.c's, but not of tokens (magic 20240326)"},
  }));
  const auto path = dir.write("t.bin", content);
  const Error error = refusal(tokens_below(65536), {path});
  CHECK(error.what_happened() == what);
  CHECK(error.where().starts_with(path + "@"));
}

TEST_CASE("ids of 32 bits are read with llm.c's header, and without one where that is said") {
  TempDir dir;
  const std::vector<std::uint32_t> all{5, 65536, 128255, 0};
  const auto headed = dir.write("1.bin", header(20240801, 7, 4) + raw(all)), plain = dir.write("2.bin", raw(all));
  const auto narrow = dir.write("3.bin", header(20240520, 1, 1) + raw<std::uint16_t>({9}));
  CHECK(all_of(Corpus(tokens_below(128256, 4), {headed, plain, narrow})) ==
        std::vector<std::int32_t>{5, 65536, 128255, 0, 5, 65536, 128255, 0, 9});
  CHECK(all_of(Corpus(tokens_below(128256), {headed})).size() == 4);
  const Error error = refusal(tokens_below(128255, 4), {plain});
  CHECK(error.what_happened() == "token 128255 is outside the vocabulary of 128255");
  CHECK(error.where() == plain + "@2");
  const auto huge = dir.write("4.bin", raw<std::uint32_t>({1, 4294967295}));
  CHECK(refusal(tokens_below(Corpus::kMostVocab, 4), {huge}).what_happened() ==
        "token 4294967295 is outside the vocabulary of 4194304");
  CHECK(refusal(tokens_below(256, 4), {dir.write("5.bin", "abcdef")}).what_happened() ==
        "6 bytes are not a whole number of uint32 tokens");
}

TEST_CASE("what is evidently not ids of the size that was said is refused, with what to do about it") {
  TempDir dir;
  const std::size_t count = GENERATE(as<std::size_t>(), 64, 5000);
  const std::int64_t bytes = GENERATE(2, 4);
  const std::string text = std::string(count, 'a') + "\n";
  const auto [content, what, todo] = GENERATE_COPY(table<std::string, std::string, std::string>({
      {raw(ids<std::int64_t>(count, 50000)), "64-bit integers", "astype"},
      {raw(ids<std::int64_t>(count, 128256)), "64-bit integers", "astype"},
      {raw(swapped(ids<std::int32_t>(count, 50000))), "big-endian 32-bit integers", "astype"},
      {raw(swapped(ids<std::int64_t>(count, 50000))), "big-endian 64-bit integers", "astype"},
      {text, "is text", "data.kind = \"text\""},
      {"na\xc3\xafve " + text + "\xc3", "is text", "data.kind = \"text\""},
      {"caf\xe9 " + text, "is text", "data.kind = \"text\""},
      {std::string("a stray \0 byte, ", 16) + text + std::string(200, 'x'), "is text", "data.kind = \"text\""},
      {"\x93NUMPY\x01" + text, "NumPy", "tofile"},
      {std::string("PK\x03\x04\x14\x00", 6) + text, "zip archive", "unpack"},
      {"\x1f\x8b\x08" + text, "gzip", "decompress"},
      {"\x28\xb5\x2f\xfd" + text, "zstd", "decompress"},
      {std::string("\x08\0\0\0\0\0\0\0{\"a\":{}}", 16) + text, "safetensors", "name the data"},
  }));
  const auto path = dir.write("t.bin", content);
  const Error error = refusal(tokens_below(200000, bytes), {path});
  CHECK_THAT(error.what_happened(), Catch::Contains(what));
  CHECK_THAT(error.what_to_do(), Catch::Contains(todo));
  CHECK(error.where().starts_with(path));
}

TEST_CASE("ids of another size than was said are refused, with the right one") {
  TempDir dir;
  const std::size_t count = GENERATE(as<std::size_t>(), 128, 5000);
  const auto wide = dir.write("1.bin", raw(ids<std::int32_t>(count, 50000))),
             large = dir.write("2.bin", raw(ids<std::uint32_t>(count, 128256)));
  CHECK(refusal(tokens_below(50257), {wide}).what_to_do() == "set data.token_bytes = 4");
  CHECK(refusal(tokens_below(128256), {large}).what_to_do() == "set data.token_bytes = 4");
  CHECK(all_of(Corpus(tokens_below(50257, 4), {wide})) == ids<std::int32_t>(count, 50000));
  CHECK(all_of(Corpus(tokens_below(128256, 4), {large})) == ids<std::int32_t>(count, 128256));
  const auto narrow = dir.write("3.bin", raw(ids<std::uint16_t>(count, 50257)));
  CHECK(refusal(tokens_below(50257, 4), {narrow}).what_to_do() == "set data.token_bytes = 2");
  CHECK(all_of(Corpus(tokens_below(50257), {narrow})).size() == count);
  const auto big_endian = dir.write("4.bin", raw(swapped(ids<std::uint16_t>(count, 2000))));
  CHECK(refusal(tokens_below(2000), {big_endian}).what_happened() == "the data file holds big-endian ids");
  const auto bytes = dir.write("5.bin", raw(ids<std::uint8_t>(2 * count, 65)));
  CHECK_THAT(refusal(tokens_below(50257), {bytes}).what_to_do(), Catch::Contains("data.kind = \"text\""));
}

TEST_CASE("ids of every usual vocabulary are taken as such") {
  TempDir dir;
  const std::uint64_t vocab = GENERATE(1, 2, 65, 256, 1000, 32000, 50257, 65536);
  const std::size_t count = GENERATE(as<std::size_t>(), 3, 40, 8192);
  const auto bound = static_cast<std::int64_t>(vocab);
  CHECK(all_of(Corpus(tokens_below(bound), {dir.write("a.bin", raw(ids<std::uint16_t>(count, vocab)))})).size() ==
        count);
  CHECK(all_of(Corpus(tokens_below(bound, 4), {dir.write("b.bin", raw(ids<std::uint32_t>(count, vocab)))})).size() ==
        count);
  CHECK(all_of(Corpus(tokens_below(bound), {dir.write("c.bin", std::string(100000, '\0'))})).size() == 50000);
}

TEST_CASE("ids, arrays and what is compressed are refused as text, and bytes of other kinds are not") {
  TempDir dir;
  const auto todo = [&](const std::string& content) { return refusal(kText, {dir.write("t", content)}).what_to_do(); };
  CHECK(todo(header(20240520, 1, 500) + raw(ids<std::uint16_t>(500, 1000))) == "set data.kind = \"tokens\"");
  CHECK(todo(header(20240801, 7, 500) + raw(ids<std::uint32_t>(500, 1000))) == "set data.kind = \"tokens\"");
  CHECK_THAT(todo(raw(ids<std::uint16_t>(500, 50257))), Catch::StartsWith("set data.kind = \"tokens\";"));
  CHECK_THAT(todo(raw(ids<std::uint16_t>(500, 65))), Catch::StartsWith("set data.kind = \"tokens\";"));
  CHECK_THAT(todo(raw(ids<std::int32_t>(500, 50257))),
             Catch::StartsWith("set data.kind = \"tokens\" and data.token_bytes = 4;"));
  CHECK_THAT(todo(raw(ids<std::int64_t>(500, 50257))), Catch::Contains("as uint32"));
  CHECK_THAT(todo("\x93NUMPY\x01" + raw(ids<std::uint16_t>(500, 1000))), Catch::Contains("tofile"));
  CHECK_THAT(todo("\x1f\x8b\x08" + raw(ids<std::uint16_t>(500, 65536))), Catch::Contains("decompress"));
  for (const std::string& bytes :
       {raw(ids<std::uint8_t>(5000, 256)), std::string("PAR1S is how it begins"), std::string("a\0b\0\0c", 6),
        std::string("\xef\xbb\xbf\xe4\xbd\xa0\xe5\xa5\xbd\r\n"), "caf\xe9 " + std::string(30, 'x'),
        std::string("tttttttt\0ttttttttttttttttttttttttttttttttttuvwxyztuvwxyztuvwxyzt", 64)})
    CHECK(all_of(Corpus(kText, {dir.write("t", bytes)})).size() == bytes.size());
}

TEST_CASE("what a sample prints: characters as they are, a question mark for what is none") {
  CHECK(printable("na\xc3\xafve \xe4\xbd\xa0 \xf0\x9f\x98\x80\n\t.") ==
        "na\xc3\xafve \xe4\xbd\xa0 \xf0\x9f\x98\x80\n\t.");
  CHECK(printable("na\xc3\xafve", false) == "na?ve");
  CHECK(printable(std::string("\x1b[31m\0\r\x7f", 8)) == "?[31m???");
  CHECK(printable("\xc2\x9b"
                  "31m") == "?31m");                           // a control character of two bytes
  CHECK(printable("\xc0\xaf\xed\xa0\x80\xff") == "??????");    // overlong, a surrogate, never a byte
  CHECK(printable("\xf4\x90\x80\x80 \xe4\xbd") == "???? ??");  // too large; cut off
  CHECK(printable("\xe4\xbd"
                  "a\x80") == "??a?");
}

TEST_CASE("random bytes as a token file are tokens or an error, never a crash") {
  TempDir dir;
  const CounterRng random(3);
  for (std::uint64_t i = 0; i < 300; ++i) {
    std::string bytes = i % 3 == 0 ? header(20240520, 1, static_cast<std::int32_t>(random.bits(i))) : std::string();
    for (std::uint64_t j = 0; j < random.bits(1000 + i) % 64; ++j) bytes += static_cast<char>(random.bits(i * 100 + j));
    if (i % 2 == 0) bytes.resize(random.bits(5000 + i) % (bytes.size() + 1));
    const auto path = dir.write("t.bin", bytes);
    try {
      const Corpus corpus(tokens_below(50257), {path});
      CHECK(corpus.tokens() * 2 <= static_cast<std::int64_t>(bytes.size()));
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::dataset);
    }
  }
}

}  // namespace file_format_test
