// O1 over processes, run by mpirun: SETTING WAY FILE, the numbers of a setting and of a way in which its odd ranks
// communicate otherwise than the rest, and a file of Witness::kBytes zeros. The job must end with 72, by one line that
// says that all ranks' weights and moments are those of before the step. Without arguments: lists what there is,
// "SETTING WAY RANKS HOSTS NAME" a line, HOSTS "-" where all are on one.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>

#include "comm/health/watchdog.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/witness.h"

using namespace zs;
using namespace zs::test;

namespace {

struct Setup {
  ShardOptions options;
  Units units = Units::block;
};

/// The model in training on one rank, with hooks into one step of it.
struct DivergentRun {
  DivergentRun(World& world, const Setup& setup)
      : chain(world, setup.options, setup.units), extra(world.communicator()) {}

  ChainRun chain;
  std::unique_ptr<Communicator> extra;  // over the same ranks

  /// One micro-batch through the layers in this order.
  void pass(int sample, const std::vector<std::size_t>& layers, bool is_last) {
    ShardedRuntime& runtime = chain.runtime;
    runtime.begin_micro_batch(Mode::train, is_last);
    Tensor y;
    {
      const ForwardScope scope(&runtime, 0);
      const Tensor x = chain_input(chain.context, sample, runtime.options().precision.param);
      y = linear(x, chain.model.head, nullptr);
      for (const std::size_t i : layers) y = chain.model.layers[i]->forward(y);
      y = lm_head_loss(y, chain.model.head, chain_targets(chain.context), kChainWidth);
    }
    backward(y);
    runtime.end_micro_batch();
  }
  void validate(int sample) {
    const NoGradGuard no_grad(chain.context);
    chain.runtime.begin_micro_batch(Mode::eval, true);
    chain.model.loss(chain_input(chain.context, sample), chain_targets(chain.context));
    chain.runtime.end_micro_batch();
  }
  void update(int step) { chain.optimizer->step(1e-2f, step); }
  /// What only the optimizer may write.
  std::vector<Buffer> state() const {
    std::vector<Buffer> all;
    for (std::size_t i = 0; i < chain.runtime.executor().units().size(); ++i) {
      const FlatParameter& unit = chain.runtime.executor().units()[i];
      for (const Buffer& buffer : {unit.master_buffer(), unit.compute_copy_buffer(), chain.optimizer->first_moment(i),
                                   chain.optimizer->second_moment(i)})
        all.push_back(buffer);
    }
    return all;
  }
};

constexpr int kWrongStep = 2;
// Longer than a rank that computes is kept waiting for a core.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kStandsStillS = 6;
#else
constexpr double kStandsStillS = 2;
#endif

/// What ranks do otherwise.
enum Family : unsigned {
  order = 1,  ///< of layers, micro-batches, validations
  own = 2,    ///< an operation of the trainer's own
  units = 4,  ///< how the units are made: from the first step on
};

using Layers = std::vector<std::size_t>;
using Step = std::function<void(DivergentRun& run, int step, bool odd)>;

struct Way {
  const char* name;
  Family family;
  Step step;
  std::function<void(Setup& setup, bool odd)> make = {};
};

const Layers kAll{0, 1, 2};

/// Two micro-batches, the second through `layers`.
void two_passes(DivergentRun& run, int step, const Layers& layers) {
  run.pass(2 * step, kAll, false);
  run.pass(2 * step + 1, layers, true);
  run.update(step);
}

Step through(Layers layers) {
  return [layers = std::move(layers)](DivergentRun& run, int step, bool odd) {
    two_passes(run, step, odd ? layers : kAll);
  };
}

/// So many micro-batches through all layers, and so many validations before them.
Step times(int micro_batches, int validations) {
  return [=](DivergentRun& run, int step, bool odd) {
    for (int i = 0; i < (odd ? validations : 0); ++i) run.validate(step);
    for (int i = odd ? micro_batches : 2; i > 0; --i) run.pass(2 * step + i, kAll, i == 1);
    run.update(step);
  };
}

/// Over all ranks, on the compute stream.
struct OwnOperation {
  Communicator& comm;
  Communicator& extra;
  Stream& stream;
  Buffer f32, f64;

  void reduce(const char* name, const Buffer& data, ReduceOp op = ReduceOp::sum) const {
    comm.all_reduce(stream, name, data, op);
  }
  Buffer full() const { return f32.slice(0, 8 * comm.size()); }
  Buffer shard() const { return f32.slice(f32.elems - 8, 8); }
};

Step with_own(const std::function<void(const OwnOperation& own, bool odd)>& enqueue) {
  return [enqueue](DivergentRun& run, int step, bool odd) {
    Context& context = run.chain.context;
    const Memory numbers = context.pool().acquire(64 * size_of(DType::f64), context.stream(), "scalars");
    const Buffer f32 = numbers.buffer(DType::f32, 64), f64 = numbers.buffer(DType::f64, 32);
    context.launch({"zero", {}, {f64}}, [f64](ExecContext&) { std::fill_n(f64.as<double>(), f64.elems, 0.0); });
    enqueue({run.chain.runtime.executor().compute_comm(), *run.extra, context.stream(), f32, f64}, odd);
    two_passes(run, step, kAll);
  };
}

/// Units that are `usual` on every rank, and `other` too on the odd ones.
std::function<void(Setup&, bool)> made(
    void (*other)(Setup&), void (*usual)(Setup&) = [](Setup&) {}) {
  return [=](Setup& setup, bool odd) {
    usual(setup);
    if (odd) other(setup);
  };
}

void bf16(Setup& setup) { setup.options.precision.param = DType::bf16; }
void per_parameter(Setup& setup) { setup.options.layout.layout = Layout::per_parameter; }

std::vector<Way> all_ways() {
  using Op = const OwnOperation&;
  return {
      {"two layers swapped", order, through({1, 0, 2})},
      {"the first layer skipped", order, through({1, 2})},
      {"a layer in the middle skipped", order, through({0, 2})},
      {"the last layer skipped", order, through({0, 1})},
      {"a layer used once more", order, through({0, 1, 2, 0})},
      {"a micro-batch less", order, times(1, 0)},
      {"a micro-batch more", order, times(3, 0)},
      {"a validation more", order, times(2, 1)},

      {"an operation skipped", own, with_own([](Op o, bool odd) { odd ? void() : o.reduce("own", o.f32); })},
      {"an operation twice", own, with_own([](Op o, bool odd) {
         for (int i = 0; i < (odd ? 2 : 1); ++i) o.reduce("own", o.f32);
       })},
      {"an operation resized", own, with_own([](Op o, bool odd) { o.reduce("own", o.f32.slice(0, odd ? 8 : 64)); })},
      {"another dtype", own, with_own([](Op o, bool odd) { o.reduce("own", odd ? o.f64 : o.f32.slice(0, 32)); })},
      {"another reduction", own,
       with_own([](Op o, bool odd) { o.reduce("own", o.f32, odd ? ReduceOp::max : ReduceOp::sum); })},
      {"two of one size swapped", own, with_own([](Op o, bool odd) {
         for (const bool x : {!odd, odd}) o.reduce(x ? "x" : "y", o.f32);
       })},
      {"another operation", own,
       with_own([](Op o, bool odd) { odd ? o.comm.broadcast(o.stream, "own", o.f32, 0) : o.reduce("own", o.f32); })},
      {"another root", own, with_own([](Op o, bool odd) { o.comm.broadcast(o.stream, "own", o.f32, odd ? 1 : 0); })},
      {"another fold", own, with_own([](Op o, bool odd) {
         o.comm.reduce_scatter(o.stream, "own", o.full(), o.shard(),
                               odd ? ReduceInto::accumulate : ReduceInto::overwrite);
       })},
      {"another wire", own, with_own([](Op o, bool odd) {
         o.comm.reduce_scatter(o.stream, "own", o.full(), o.shard(), ReduceInto::overwrite,
                               odd ? CommDType::int8 : CommDType::exact);
       })},
      {"another group", own, with_own([](Op o, bool odd) {
         o.extra.barrier(o.stream, "before");
         (odd ? o.extra : o.comm).all_reduce(o.stream, "own", o.f32, ReduceOp::sum);
       })},

      {"units of another dtype", units, through(kAll), made(bf16)},
      {"units reduced in another dtype", units, through(kAll),
       made([](Setup& s) { s.options.precision.reduce = DType::bf16; }, bf16)},
      {"units gathered on another wire", units, through(kAll),
       made([](Setup& s) { s.options.precision.gather_format = int8_format(); })},
      {"units reduced on another wire", units, through(kAll),
       made([](Setup& s) { s.options.precision.reduce_comm_dtype = CommDType::int8; })},
      {"units folded once a step", units, through(kAll),
       made([](Setup& s) { s.options.scheme.reduce_every_micro_batch = false; })},
      {"units of other sizes", units, through(kAll),
       made([](Setup& s) { s.options.layout.min_shard_bytes = 64; }, per_parameter)},
      {"units cut elsewhere", units, through(kAll),
       made(
           [](Setup& s) {
             s.options.layout.dim = [](std::string_view, const Shape& shape) { return shape.rank() - 1; };
           },
           per_parameter)},
      {"one unit of all", units, through(kAll), made([](Setup& s) { s.units = Units::model; })},
  };
}

struct Setting {
  const char *name, *transport;
  int ranks;
  const char* hosts;
  int first_odd, odd_ranks;  // all alike
  unsigned families;
  SchemeOptions scheme = {};
};

std::vector<Setting> all_settings() {
  return {
      {"shm", "shm", 3, "-", 2, 1, order | own},
      {"mpi", "mpi", 3, "-", 2, 1, order | own | units},
      {"two hosts", "hier", 4, "0,0,1,1", 3, 1, order | own},
      {"two hosts, the first rank", "hier", 4, "0,0,1,1", 0, 1, order | own | units},
      // A rank that only its group exchanges parameters with, and a whole group that agrees within itself.
      {"hsdp, one rank", "hier", 4, "0,0,1,1", 3, 1, order, {.strategy = Strategy::hsdp, .group_size = 2}},
      {"hsdp, one group", "hier", 4, "0,0,1,1", 2, 2, order | units, {.strategy = Strategy::hsdp, .group_size = 2}},
      {"nested, one group", "hier", 4, "0,0,1,1", 2, 2, order | own, {.strategy = Strategy::nested, .group_size = 2}},
      {"nested, the first group",
       "hier",
       4,
       "0,0,1,1",
       0,
       2,
       order | units,
       {.strategy = Strategy::nested, .group_size = 2}},
  };
}

/// Only the rank that reports ends the job.
[[noreturn]] void wait_for_the_end(int code) {
  std::this_thread::sleep_for(std::chrono::seconds(40));
  std::_Exit(code);
}

/// The exit code.
int run(World& world, const Setup& setup, const Way& way, Witness& witness, bool is_odd) {
  const int wrong_step = way.family == units ? 1 : kWrongStep, last_step = wrong_step + 1;
  const auto end = [&](const Error& error) {
    witness.stop();
    if (dynamic_cast<const GroupEnded*>(&error) != nullptr || !world.watchdog()->try_claim_report())
      wait_for_the_end(1);
    const std::string found = witness.ask(way.family == units ? 0 : wrong_step, wrong_step);
    std::fprintf(stderr, "rank %d: %s; %s\n", world.rank(), error.what(), found.c_str());
    world.abort(static_cast<int>(error.code()));
    wait_for_the_end(1);
  };
  try {
    world.watchdog()->enter(Phase::init);
    DivergentRun run(world, setup);
    const StatusScope observed(world.watchdog(), *run.chain.device);
    try {
      run.chain.device->synchronize();
      for (int step = 1; step <= last_step; ++step) {
        world.watchdog()->enter(Phase::step, step);
        witness.begin_step(step, run.state());
        way.step(run, step, step == wrong_step && is_odd);
        run.chain.device->synchronize();
      }
    } catch (const OrderMismatch& mismatch) {
      try {
        throw mismatch;
      } catch (const Error& explained) {
        end(explained);
      }
    } catch (const Error& error) {
      end(error);
    }
  } catch (const Error& error) {
    end(error);
  }
  std::fprintf(stderr, "rank %d has noticed nothing\n", world.rank());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const auto ways = all_ways();
  const auto settings = all_settings();
  if (argc < 4) {
    for (std::size_t s = 0; s < settings.size(); ++s) {
      for (std::size_t w = 0; w < ways.size(); ++w) {
        if ((settings[s].families & ways[w].family) == 0) continue;
        std::printf("%zu %zu %d %s %s: %s\n", s, w, settings[s].ranks, settings[s].hosts, settings[s].name,
                    ways[w].name);
      }
    }
    return 0;
  }
  const Setting& setting = settings.at(static_cast<std::size_t>(std::atoi(argv[1])));
  const Way& way = ways.at(static_cast<std::size_t>(std::atoi(argv[2])));
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  Witness witness(argv[3], rank == nullptr ? 0 : std::atoi(rank), setting.ranks);
  const int wrong_step = way.family == units ? 1 : kWrongStep;
  WorldOptions options{.timeout_s = 30};
  options.watch.init_s = 3;
  options.watch.step_s = kStandsStillS;
  options.watch.line = [&](const Error& error, const std::string&) {
    return fmt::format("{}; {}", error.what(), witness.ask(way.family == units ? 0 : wrong_step, wrong_step));
  };
  const auto world = make_process_world(options, setting.transport);
  const bool is_odd = world->rank() >= setting.first_odd && world->rank() < setting.first_odd + setting.odd_ranks;
  Setup setup{.options = {.scheme = setting.scheme}};
  if (way.make) way.make(setup, is_odd);
  const int code = run(*world, setup, way, witness, is_odd);
  world->abort(code);
  return code;
}
