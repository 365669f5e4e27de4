// The ops of experts that are dealt over ranks do to memory what they declare, and leave what lies behind the rows
// alone.
#include <catch2/catch.hpp>

#include "runtime/shard/experts/expert_exchange.h"
#include "runtime/tensor/autograd.h"
#include "tests/shard/audit_device.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/exchange_ops.h"
#include "tests/tensor/gradient_check.h"

namespace zs::test::expert_exchange_audit_test {

TEST_CASE("ops of dealt experts touch what they declare and nothing else") {
  std::set<std::string> seen;
  for (const Dispatcher dispatcher : {Dispatcher::all_to_all, Dispatcher::all_gather}) {
    constexpr std::int64_t kTokens = 5, kExperts = 4, kWidth = 6;
    const auto world = make_single_world({.timeout_s = 60});
    AuditDevice device(std::int64_t{1} << 20);
    {
      Context context(device);
      const auto ranks = world->communicator();
      const ExpertExchange exchange(*ranks, dispatcher, "experts");
      const auto tensor = [&](const Shape& shape, const char* name) {
        Tensor made = Tensor::from_host(context, shape, to_floats(normal(shape, name).values));
        made.set_requires_grad();
        return made;
      };
      const Routing routing = route(tensor({kTokens, kExperts}, "logits"), {.chosen = 2});
      const DealtRows dealt = exchange.dispatch(tensor({kTokens, kWidth}, "x"), routing);
      const Tensor y = exchange.combine(expert_swiglu(dealt.rows, dealt.routing), routing, dealt);
      backward(weighted_sum(y, to_floats(normal(y.shape(), "weights").values)));
    }
    seen.insert(device.audited().begin(), device.audited().end());
    for (const std::string& finding : device.findings()) {
      CAPTURE(finding, dispatcher);
      // Counts that the audit changes are of rows that are not there.
      const bool is_of_counts = finding.find("fails on other memory") != finding.npos;
      // One rank exchanges nothing with anybody.
      const bool is_of_one_rank = finding.starts_with("'all_") || finding.starts_with("'reduce_");
      // Most ops read how many rows there are, which is the last offset: an audit keeps the ends of what ascends.
      const bool is_of_an_end = finding.find("declares as read, and does not read") != finding.npos &&
                                finding.find("'order_by") == finding.npos;
      CHECK((is_of_counts || is_of_one_rank || is_of_an_end));
    }
  }
  for (const std::string& name : exchange_ops()) {
    CAPTURE(name);
    CHECK((name.starts_with("repeat") || seen.count(name) == 1));
  }
}

}  // namespace zs::test::expert_exchange_audit_test
