#include "bench/collectives/collective_report.h"

#include <catch2/catch.hpp>

namespace collective_report_test {

using namespace zs;
using namespace zs::bench;

namespace {

CollectiveReport report_of(Collective op) {
  CollectiveReport report{.ranks = 4, .copy_gb_per_s = 100};
  report.rows.push_back({.op = op,
                         .bytes = 8'000'000,
                         .dtype = DType::f32,
                         .transport = "shm",
                         .sets = 1,
                         .calls = 1,
                         .time_us = 1000,
                         .time_us_min = 900,
                         .wrong = 0});
  return report;
}

}  // namespace

TEST_CASE("algorithm and bus bandwidth are those of nccl-tests") {
  const auto [op, busbw] = GENERATE(table<Collective, double>({{Collective::all_gather, 6},
                                                               {Collective::reduce_scatter, 6},
                                                               {Collective::all_to_all, 6},
                                                               {Collective::all_reduce, 12},
                                                               {Collective::broadcast, 8}}));
  const CollectiveReport report = report_of(op);
  CHECK(report.algbw_gbs(report.rows[0]) == Approx(8));
  CHECK(report.busbw_gbs(report.rows[0]) == Approx(busbw));
}

TEST_CASE("a collective's bytes are what all ranks read and write in place") {
  const auto [op, percent] = GENERATE(table<Collective, double>({{Collective::all_gather, 48},
                                                                 {Collective::reduce_scatter, 40},
                                                                 {Collective::all_to_all, 64},
                                                                 {Collective::all_reduce, 64},
                                                                 {Collective::broadcast, 48}}));
  const CollectiveReport report = report_of(op);
  CHECK(report.percent(report.rows[0]) == Approx(percent));
}

TEST_CASE("wrong elements of all rows count") {
  CollectiveReport report = report_of(Collective::broadcast);
  CHECK(report.wrong() == 0);
  report.rows.push_back(report.rows[0]);
  report.rows[1].wrong = 3;
  CHECK(report.wrong() == 3);
}

}  // namespace collective_report_test
