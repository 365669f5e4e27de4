#include "model/train/plan/memory_check.h"

#include <catch2/catch.hpp>

#include "model/train/rank/error_line.h"
#include "tests/shard/tiny_training.h"

namespace zs::test::memory_check_test {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

/// A model whose activations, logits and parameters all weigh something: 8 sequences of 64 tokens at a time.
MemoryDemand demand(int ranks = 2, int local_ranks = 2) {
  Config config = tiny_config();
  config.model.layers = 4;
  config.model.width = 64;
  config.model.context = 64;
  config.model.vocab = 1000;
  config.train.sequence = 64;
  config.train.micro_batch = 8;
  config.train.global_batch = 48;
  config.train.deterministic = false;
  return {config, {.ranks = ranks, .transport = Transport::mpi}, local_ranks};
}

std::int64_t rank_bytes(const MemoryDemand& demand) { return make_plan(demand.config, demand.plan).reserved_bytes; }

std::int64_t host_bytes(const MemoryDemand& demand) { return demand.local_ranks * rank_bytes(demand); }

std::vector<MemoryBudget> host_budget(std::int64_t bytes) { return {{bytes, false, "90 % of physical memory"}}; }

/// The proposal for a host budget, checked: its plan fits.
MemoryChange proposal(const MemoryDemand& demand, std::int64_t bytes) {
  const auto budgets = host_budget(bytes);
  REQUIRE(exceeded(demand, rank_bytes(demand), budgets) != nullptr);
  const auto found = smallest_change(demand, budgets);
  REQUIRE(found);
  CHECK(found->rank_bytes == rank_bytes(found->demand));
  CHECK(exceeded(found->demand, found->rank_bytes, budgets) == nullptr);
  return *found;
}

template <class Set>
MemoryDemand with(MemoryDemand demand, const Set& set) {
  set(demand);
  return demand;
}

}  // namespace

TEST_CASE("a run within every budget is not refused", "[memory]") {
  const MemoryDemand run = demand();
  CHECK(exceeded(run, 50, {{100, false, "host"}, {50, true, "process"}}) == nullptr);
  CHECK(exceeded(run, 51, {{100, false, "host"}, {51, true, "process"}})->source == "host");
  CHECK(exceeded(run, 51, {{200, false, "host"}, {50, true, "process"}})->source == "process");
  CHECK(exceeded(run, 60, {{100, false, "host"}, {40, true, "process"}})->source == "process");
}

TEST_CASE("the ranks of a host share its memory, and threads of one process its limits too", "[memory]") {
  MemoryDemand run = demand(8, 4);
  CHECK(needed_bytes(run, 100, {1000, false, "host"}) == 400);
  CHECK(needed_bytes(run, 100, {1000, true, "process"}) == 100);
  run.plan.transport = Transport::local;
  CHECK(needed_bytes(run, 100, {1000, true, "process"}) == 400);
}

TEST_CASE("a budget is nine tenths of a limit, less what the process needs beside the plan", "[memory]") {
  const auto budgets = memory_budgets(
      {{.bytes = 10 * kGiB, .source = "physical memory"},
       {.bytes = 4 * kGiB,
        .source = "ulimit -v",
        .is_per_process = true,
        .used_bytes = kGiB / 2,
        .thread_bytes = kGiB / 16},
       {.bytes = 1000, .source = "ulimit -d", .is_per_process = true, .used_bytes = 950, .thread_bytes = 1}},
      4);
  REQUIRE(budgets.size() == 3);
  CHECK(budgets[0].bytes == 9 * kGiB);
  CHECK_FALSE(budgets[0].is_per_process);
  CHECK(budgets[0].source == "90 % of physical memory, 10.0 GiB");
  CHECK(budgets[1].bytes == 36 * kGiB / 10 - kGiB / 2 - kGiB / 4);
  CHECK(budgets[1].is_per_process);
  CHECK_THAT(budgets[1].source, Catch::Contains("ulimit -v, 4.0 GiB, less 768 MiB"));
  CHECK(budgets[2].bytes == 0);
}

TEST_CASE("recomputation is proposed first, of attention where that is enough", "[memory]") {
  const MemoryDemand run = demand();
  const auto attention = with(run, [](MemoryDemand&d) { d.config.train.recompute = {"attention"}; }),
             block = with(run, [](MemoryDemand&d) { d.config.train.recompute = {"block"}; });
  REQUIRE(host_bytes(block) < host_bytes(attention));
  REQUIRE(host_bytes(attention) < host_bytes(run));
  CHECK(proposal(run, host_bytes(run) - 1).text == "set train.recompute=attention");
  CHECK(proposal(run, host_bytes(attention)).text == "set train.recompute=attention");
  CHECK(proposal(run, host_bytes(attention) - 1).text == "set train.recompute=block");
  CHECK(proposal(attention, host_bytes(attention) - 1).text == "set train.recompute=block");
}

TEST_CASE("then the largest micro-batch that the ranks can share evenly and that fits", "[memory]") {
  const MemoryDemand run = with(demand(), [](MemoryDemand& d) { d.config.train.recompute = {"block"}; });
  const auto of_size = [&](std::int64_t size) {
    return with(run, [size](MemoryDemand& d) { d.config.train.micro_batch = size; });
  };
  CHECK(proposal(run, host_bytes(run) - 1).text == "set train.micro_batch=6");  // 7 and 5 do not divide 48 / 2
  CHECK(proposal(run, host_bytes(of_size(6)) - 1).text == "set train.micro_batch=4");
  CHECK(proposal(run, host_bytes(of_size(2))).text == "set train.micro_batch=2");
  CHECK(proposal(run, host_bytes(of_size(1))).text == "set train.micro_batch=1");
  const MemoryChange found = proposal(run, host_bytes(of_size(2)));
  CHECK_NOTHROW(check_ranks(found.demand.config, found.demand.plan.ranks));
}

TEST_CASE("then smaller chunks of the loss", "[memory]") {
  const MemoryDemand run = with(demand(), [](MemoryDemand& d) {
    d.config.train.recompute = {"block"};
    d.config.train.micro_batch = 1;
    d.config.model.vocab = 20000;
  });
  const auto chunk = [&](std::int64_t tokens) {
    return with(run, [tokens](MemoryDemand& d) { d.config.train.loss_chunk = tokens; });
  };
  REQUIRE(host_bytes(chunk(32)) < host_bytes(run));
  CHECK(proposal(run, host_bytes(run) - 1).text == "set train.loss_chunk=32");
  CHECK_FALSE(smallest_change(with(chunk(32), [](MemoryDemand& d) { d.config.shard.prefetch = 0; }),
                              host_budget(host_bytes(chunk(32)) / 4)));
}

TEST_CASE("of two changes that fit, the one that costs less is proposed", "[memory]") {
  const MemoryDemand run = with(demand(), [](MemoryDemand& d) {
    d.config.train.recompute = {"block"};
    d.config.train.micro_batch = 2;
    d.config.model.vocab = 20000;
  });
  const auto fits = [&](const MemoryDemand& other) { return host_bytes(other) < host_bytes(run); };
  REQUIRE(fits(with(run, [](MemoryDemand& d) { d.config.train.loss_chunk = 64; })));
  REQUIRE(fits(with(run, [](MemoryDemand& d) { d.plan.ranks = d.local_ranks = 1; })));
  CHECK(proposal(run, host_bytes(run) - 1).text == "set train.micro_batch=1");
  const MemoryDemand keeps = with(run, [](MemoryDemand& d) { d.config.train.recompute = {"none"}; });
  CHECK(proposal(keeps, host_bytes(keeps) - 1).text == "set train.recompute=attention");
}

TEST_CASE("then fewer blocks a unit, also where several are the default", "[memory]") {
  const MemoryDemand separate = with(demand(), [](MemoryDemand& d) {
    d.config.train.recompute = {"block"};
    d.config.train.micro_batch = 1;
    d.config.train.loss_chunk = 32;
    d.config.model.vocab = 61;
    d.config.model.layers = 8;
    d.config.model.width = 256;
    d.config.shard.unit_mib = 0;
  });
  const auto in_units = [&](double mib) {
    return with(separate, [mib](MemoryDemand& d) { d.config.shard.unit_mib = mib; });
  };
  REQUIRE(host_bytes(separate) < host_bytes(in_units(4)));
  REQUIRE(host_bytes(in_units(4)) < host_bytes(in_units(8)));
  CHECK(proposal(in_units(8), host_bytes(in_units(4))).text == "set shard.unit_mib=4");
  CHECK(proposal(in_units(4), host_bytes(separate)).text == "set shard.unit_mib=2");
  const auto on_gpus = with(in_units(-1), [](MemoryDemand& d) {
    d.plan.device = DeviceKind::cuda;
    d.plan.transport = Transport::nccl;
  });
  CHECK(proposal(on_gpus, host_bytes(on_gpus) - 1).text.starts_with("set shard.unit_mib="));
  CHECK(proposal(separate, host_bytes(separate) - 1).text == "set shard.prefetch=0");
}

TEST_CASE("then less prefetch or a lower limit, then resharding after forward", "[memory]") {
  const MemoryDemand least = with(demand(), [](MemoryDemand& d) {
    d.config.train.recompute = {"block"};
    d.config.train.micro_batch = 1;
    d.config.train.loss_chunk = 32;
    d.config.model.vocab = 61;
    d.config.model.width = 128;
  });
  const auto deep = with(least, [](MemoryDemand&d) { d.config.shard.prefetch = 3; }),
             shallow = with(least, [](MemoryDemand&d) { d.config.shard.prefetch = 2; });
  REQUIRE(host_bytes(shallow) < host_bytes(deep));
  CHECK(proposal(deep, host_bytes(deep) - 1).text == "set shard.prefetch=2");
  const auto limited = with(deep, [](MemoryDemand& d) { d.config.shard.limit = 3; });
  CHECK(proposal(limited, host_bytes(limited) - 1).text == "set shard.limit=2");
  const auto unsharded = with(least, [](MemoryDemand& d) {
    d.config.shard.prefetch = 0;
    d.config.shard.reshard_after_forward = false;
  });
  CHECK(proposal(unsharded, host_bytes(unsharded) - 1).text == "set shard.reshard_after_forward=true");
}

TEST_CASE("then fewer ranks on the host, or more where each process has its own limit, or more hosts", "[memory]") {
  const MemoryDemand run = with(demand(6, 6), [](MemoryDemand& d) {
    d.config.train.recompute = {"block"};
    d.config.train.micro_batch = 1;
    d.config.train.loss_chunk = 32;
    d.config.shard.prefetch = 0;
  });
  const auto of_ranks = [&](int ranks) {
    return with(run, [ranks](MemoryDemand& d) { d.plan.ranks = d.local_ranks = ranks; });
  };
  REQUIRE(host_bytes(of_ranks(4)) < host_bytes(run));
  CHECK(proposal(run, host_bytes(of_ranks(4))).text == "start 4 ranks (mpirun -np 4)");
  CHECK(proposal(run, host_bytes(of_ranks(4)) - 1).text == "start 3 ranks (mpirun -np 3)");
  CHECK(
      proposal(with(run, [](MemoryDemand& d) { d.plan.transport = Transport::local; }), host_bytes(of_ranks(4))).text ==
      "set comm.ranks=4");

  const std::vector<MemoryBudget> each = {{rank_bytes(of_ranks(8)), true, "ulimit -v"}};
  const auto more = smallest_change(run, each);
  REQUIRE(more);
  CHECK(more->text == "start 8 ranks (mpirun -np 8)");
  CHECK(exceeded(more->demand, more->rank_bytes, each) == nullptr);

  const MemoryDemand one = with(run, [](MemoryDemand& d) { d.plan.ranks = d.local_ranks = 1; });
  const auto hosts = proposal(one, rank_bytes(of_ranks(3)));
  CHECK(hosts.text == "use 3 hosts like this one, 3 ranks in all");
  CHECK(hosts.demand.local_ranks == 1);
}

TEST_CASE("memory of the device, and of the host beside it, have limits of their own", "[memory]") {
  MemoryDemand run = demand(1, 1);
  run.config.precision.param = run.config.precision.output = run.config.precision.validation = "bf16";
  run.config.train.recompute = {"block"};
  run.config.train.micro_batch = 1;
  run.config.train.loss_chunk = 32;
  run.config.shard.prefetch = 0;
  const auto kept = [&](const char* weights, const char* moments) {
    return with(run, [&](MemoryDemand& d) { d.config.offload.weights = weights, d.config.offload.moments = moments; });
  };
  const auto planned = [](const MemoryDemand& d) { return make_plan(d.config, d.plan).rank_bytes(); };
  const auto on_device = [](std::int64_t bytes) {
    return std::vector<MemoryBudget>{{bytes, true, "offload.device_mib", MemoryBudget::Of::device, true}};
  };
  run.config.offload.device_mib = 1;  // else it is no use
  const RankBytes all = planned(run), both = planned(kept("host", "host"));
  CHECK(all.host == 0);
  CHECK(both.device + both.host < all.device + all.host + all.device / 4);  // beside the windows
  const auto choice = [&](const MemoryDemand& d, const std::vector<MemoryBudget>& budgets) {
    REQUIRE(exceeded(d, planned(d), budgets) != nullptr);
    const auto found = smallest_change(d, budgets);
    REQUIRE(found);
    CHECK(exceeded(found->demand, planned(found->demand), budgets) == nullptr);
    return found->text;
  };
  CHECK(choice(run, on_device(planned(kept("host", "device")).device)) == "set offload.weights=host");
  CHECK(choice(run, on_device(planned(kept("device", "host")).device)) == "set offload.moments=host");
  CHECK(choice(run, on_device(both.device)) == "set offload.weights=host, offload.moments=host");
  const std::vector<MemoryBudget> host = {{both.host - 1, true, "offload.host_mib", MemoryBudget::Of::host, true}};
  CHECK(choice(kept("host", "host"), host) == "set offload.weights=device");
  MemoryDemand updated = kept("host", "host");
  updated.config.offload.gradients = updated.config.offload.update = "host";
  CHECK(choice(updated, {{planned(updated).host - 1, true, "offload.host_mib", MemoryBudget::Of::host, true}}) ==
        "set offload.weights=device, offload.update=device");
  const Error error = memory_refusal(run, all, on_device(both.device));
  CHECK_THAT(error.what_happened(), Catch::StartsWith("a rank needs ") && Catch::Contains(" of the device's memory, "));
  CHECK_THAT(memory_refusal(kept("host", "host"), both, host).what_happened(),
             Catch::Contains("of the host's memory, "));

  std::vector<MemoryBudget> budgets;
  run.config.offload.host_mib = 3;
  add_offload_budgets(run.config, budgets);
  REQUIRE(budgets.size() == 2);
  CHECK(budgets[0].source == "offload.device_mib = 1");
  CHECK(needed_bytes(run, {5, 7}, budgets[0]) == 5);
  CHECK(needed_bytes(run, {5, 7}, budgets[1]) == 7);
  CHECK(budgets[1].bytes == 3 << 20);
  CHECK(needed_bytes(with(run, [](MemoryDemand& d) { d.local_ranks = 4; }), {5, 7}, {1, false, "host"}) == 48);
}

TEST_CASE("0-19: what accumulates is proposed for the host where gradients are reduced once a step", "[memory]") {
  MemoryDemand run = demand(16, 16);
  run.config.model.layers = 8;
  run.config.train.micro_batch = 1;
  run.config.train.recompute = {"block"};
  run.config.train.loss_chunk = 32;
  run.config.shard.prefetch = 0;
  run.config.shard.reduce_every_micro_batch = false;
  run.config.offload.device_mib = 1;
  MemoryDemand kept = run;
  kept.config.offload.accumulator = "host";
  const RankBytes all = make_plan(run.config, run.plan).rank_bytes(),
                  fits = make_plan(kept.config, kept.plan).rank_bytes();
  CHECK(fits.host > 0);
  CHECK(fits.device + fits.host / 2 < all.device);
  const auto found = smallest_change(
      run, std::vector<MemoryBudget>{{fits.device, true, "offload.device_mib", MemoryBudget::Of::device, true}});
  REQUIRE(found);
  CHECK(found->text == "set offload.accumulator=host");
  CHECK(found->host_bytes == fits.host);
  const auto back = smallest_change(
      kept, std::vector<MemoryBudget>{{fits.host - 1, true, "offload.host_mib", MemoryBudget::Of::host, true}});
  REQUIRE(back);
  CHECK(back->text == "set offload.accumulator=device");
}

TEST_CASE("a disk has a budget of its own, and is proposed where the host's memory is short of what it keeps",
          "[memory]") {
  MemoryDemand run = demand(2, 2);
  run.config.model.layers = 12;
  run.config.precision.param = run.config.precision.output = run.config.precision.validation = "bf16";
  run.config.train.micro_batch = 1;
  run.config.train.recompute = {"block"};
  run.config.train.loss_chunk = 32;
  run.config.shard.prefetch = 0;
  run.config.offload.weights = run.config.offload.moments = "host";
  const auto planned = [](const MemoryDemand& d) { return make_plan(d.config, d.plan).rank_bytes(); };
  const RankBytes on_host = planned(run);
  const auto text_of = [&](const MemoryDemand& d, std::int64_t device, std::int64_t host) {
    const std::vector<MemoryBudget> budgets = {{device, true, "device", MemoryBudget::Of::device, true},
                                               {host, true, "host", MemoryBudget::Of::host, true}};
    const auto found = smallest_change(d, budgets);
    return found ? found->text : "";
  };
  CHECK(text_of(run, on_host.device, on_host.host - 1) == "set offload.weights=disk:FOLDER");
  CHECK(text_of(run, on_host.device, on_host.host * 6 / 10) == "set offload.moments=disk:FOLDER");
  MemoryDemand away = run;
  away.config.offload.moments = "disk:/nowhere";
  const RankBytes on_disk = planned(away);
  CHECK(on_disk.host < on_host.host);
  CHECK(text_of(away, on_host.device, on_disk.host - 1) == "set offload.weights=disk:/nowhere");

  const MemoryBudget disk{on_disk.disk.at("/nowhere"), false, "free at /nowhere",
                          MemoryBudget::Of::disk,      false, "/nowhere"};
  CHECK(needed_bytes(away, on_disk, disk) == 2 * disk.bytes);
  CHECK(needed_bytes(run, on_host, disk) == 0);
  REQUIRE(exceeded(away, on_disk, {disk}) != nullptr);
  const Error error = memory_refusal(away, on_disk, {disk});
  CHECK(error.code() == ExitCode::out_of_memory);
  CHECK_THAT(error.what(), Catch::StartsWith("2 ranks need ") && Catch::Contains(" on the disk, ") &&
                               Catch::Contains("free at /nowhere") && Catch::Contains("set offload.moments=device"));
  std::vector<MemoryBudget> found;
  add_disk_budgets(away.config, found);
  REQUIRE(found.size() == 1);
  CHECK(found.front().source == "free at /nowhere");
  CHECK(found.front().bytes > 0);
}

TEST_CASE("where no single change is enough, the line says what is", "[memory]") {
  MemoryDemand run = demand(1, 1);
  run.config.train.global_batch = 8;
  const MemoryChange least = least_memory(run);
  CHECK(least.text == "train.recompute=block, train.micro_batch=1");  // nothing else saves anything
  CHECK(least.rank_bytes == rank_bytes(least.demand));
  CHECK(least.rank_bytes < rank_bytes(run));
  const Error together = memory_refusal(run, rank_bytes(run), host_budget(least.rank_bytes));
  CHECK_THAT(together.what_to_do(),
             Catch::StartsWith("no single change is enough; train.recompute=block, train.micro_batch=1"));
  const Error none = memory_refusal(run, rank_bytes(run), host_budget(least.rank_bytes / 8));
  CHECK_THAT(none.what_to_do(),
             Catch::StartsWith("use a smaller model or more memory: the least, with train.recompute=block"));
}

TEST_CASE("a refusal is one line that says what is needed, what there is, and what to do", "[memory]") {
  const MemoryDemand run = demand();
  const Error error = memory_refusal(run, rank_bytes(run), host_budget(host_bytes(run) - 1));
  CHECK(error.code() == ExitCode::out_of_memory);
  CHECK_THAT(error.what_happened(), Catch::StartsWith("2 ranks need ") && Catch::Contains(" on this host, "));
  CHECK(error.where() == "90 % of physical memory");
  CHECK_THAT(error.what_to_do(), Catch::StartsWith("set train.recompute=attention, which needs "));
  CHECK(error_line(error).size() < 300);
  CHECK_THAT(describe_budgets(run, rank_bytes(run), host_budget(host_bytes(run) - 1)),
             Catch::Contains(": too much\n        set train.recompute=attention"));
  CHECK_THAT(describe_budgets(run, rank_bytes(run), host_budget(host_bytes(run))), !Catch::Contains("too much"));
}

}  // namespace zs::test::memory_check_test
