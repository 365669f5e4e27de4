#include "comm/part_table.h"

#include <catch2/catch.hpp>

#include "runtime/base/check.h"

namespace zs::test::part_table_test {
namespace {

using Catch::Matchers::Contains;

/// Of two ranks: what rank 0 sends to 0 and 1, what it expects of them; the same of rank 1.
using Said = std::vector<std::int64_t>;
const Said kAgreed{1, 20, 1, 3, 3, 5, 20, 5};

}  // namespace

TEST_CASE("parts begin where those before them end, in what is sent and in what comes") {
  const PartTable table(kAgreed, 2, "all_to_all_v(x)");
  CHECK(table.count(0, 1) == 20);
  CHECK(table.count(1, 0) == 3);
  CHECK(table.sent_begin(0, 1) == 1);
  CHECK(table.sent_begin(1, 2) == 8);
  CHECK(table.received_begin(0, 1) == 1);
  CHECK(table.received_begin(1, 1) == 20);
  CHECK(table.most_sent() == 21);
}

TEST_CASE("a part that is shorter, or longer, than its receiver expects is named") {
  for (const std::int64_t sent : {19, 21}) {
    Said said = kAgreed;
    said[1] = sent;
    const std::string message =
        fmt::format("rank 0 sends {} elements to rank 1 in all_to_all_v(x), which expects 20", sent);
    CHECK_THROWS_WITH(PartTable(said, 2, "all_to_all_v(x)"), Contains(message));
  }
}

}  // namespace zs::test::part_table_test
