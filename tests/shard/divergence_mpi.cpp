// O1 over processes, run by mpirun: TRANSPORT N, N the number of a way in which the last rank communicates otherwise than the rest, in step
// 2 of
// 3. The job must end with 72, and no rank may have updated its weights in that step: exit code 1 otherwise. Without arguments: lists the
// ways.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>

#include "comm/watchdog.h"
#include "tests/shard/chain_model.h"

using namespace zs;
using namespace zs::test;

namespace {

/// The model in training on one rank, with hooks into one step of it.
struct DivergentRun {
  explicit DivergentRun(World& world) : chain(world), extra(world.communicator()) {}

  ChainRun chain;
  std::unique_ptr<Communicator> extra;  // over the same ranks

  /// One micro-batch through the layers in this order.
  void pass(int sample, const std::vector<std::size_t>& layers, bool is_last) {
    chain.runtime.begin_micro_batch(Mode::train, is_last);
    Tensor y;
    {
      const ForwardScope scope(&chain.runtime, 0);
      y = linear(chain_input(chain.context, sample), chain.model.head, nullptr);
      for (const std::size_t i : layers) y = chain.model.layers[i]->forward(y);
      y = lm_head_loss(y, chain.model.head, chain_targets(chain.context), kChainWidth);
    }
    backward(y);
    chain.runtime.end_micro_batch();
  }
  void validate(int sample) {
    const NoGradGuard no_grad(chain.context);
    chain.runtime.begin_micro_batch(Mode::eval, true);
    chain.model.loss(chain_input(chain.context, sample), chain_targets(chain.context));
    chain.runtime.end_micro_batch();
  }
  void update(int step) { chain.optimizer->step(1e-2f, step); }
};

constexpr int kWrongStep = 2;

using Layers = std::vector<std::size_t>;

/// Two micro-batches, the second through `layers`.
void two_passes(DivergentRun& run, int step, const Layers& layers) {
  run.pass(2 * step, {0, 1, 2}, false);
  run.pass(2 * step + 1, layers, true);
  run.update(step);
}

void swapped(DivergentRun& run, int step, bool odd) { two_passes(run, step, odd ? Layers{1, 0, 2} : Layers{0, 1, 2}); }
void first_skipped(DivergentRun& run, int step, bool odd) { two_passes(run, step, odd ? Layers{1, 2} : Layers{0, 1, 2}); }
void middle_skipped(DivergentRun& run, int step, bool odd) { two_passes(run, step, odd ? Layers{0, 2} : Layers{0, 1, 2}); }
void last_skipped(DivergentRun& run, int step, bool odd) { two_passes(run, step, odd ? Layers{0, 1} : Layers{0, 1, 2}); }
void one_more(DivergentRun& run, int step, bool odd) { two_passes(run, step, odd ? Layers{0, 1, 2, 0} : Layers{0, 1, 2}); }

void micro_batch_less(DivergentRun& run, int step, bool odd) {
  if (!odd) run.pass(2 * step, {0, 1, 2}, false);
  run.pass(2 * step + 1, {0, 1, 2}, true);
  run.update(step);
}
void micro_batch_more(DivergentRun& run, int step, bool odd) {
  for (int i = 0; i < (odd ? 2 : 1); ++i) run.pass(2 * step, {0, 1, 2}, false);
  run.pass(2 * step + 1, {0, 1, 2}, true);
  run.update(step);
}
void validation_more(DivergentRun& run, int step, bool odd) {
  if (odd) run.validate(step);
  two_passes(run, step, {0, 1, 2});
}

/// An operation of the trainer's own, which one rank leaves out, or has twice, or with another size, dtype, unit or kind.
void own_operation(DivergentRun& run, int step, const std::function<void(Communicator&, Stream&, Buffer, Buffer)>& enqueue) {
  Context& context = run.chain.context;
  const Memory numbers = context.pool().acquire(64 * size_of(DType::f64), context.stream(), "scalars");
  const Buffer f32 = numbers.buffer(DType::f32, 64), f64 = numbers.buffer(DType::f64, 32);
  context.launch({"zero", {}, {f64}}, [f64](ExecContext&) { std::fill_n(f64.as<double>(), f64.elems, 0.0); });
  enqueue(run.chain.runtime.executor().compute_comm(), context.stream(), f32, f64);
  two_passes(run, step, {0, 1, 2});
}
void own_skipped(DivergentRun& run, int step, bool odd) {
  own_operation(run, step, [odd](Communicator& comm, Stream& stream, Buffer f32, Buffer) {
    if (!odd) comm.all_reduce(stream, "own", f32, ReduceOp::sum);
  });
}
void own_twice(DivergentRun& run, int step, bool odd) {
  own_operation(run, step, [odd](Communicator& comm, Stream& stream, Buffer f32, Buffer) {
    for (int i = 0; i < (odd ? 2 : 1); ++i) comm.all_reduce(stream, "own", f32, ReduceOp::sum);
  });
}
void own_resized(DivergentRun& run, int step, bool odd) {
  own_operation(run, step, [odd](Communicator& comm, Stream& stream, Buffer f32, Buffer) {
    comm.all_reduce(stream, "own", f32.slice(0, odd ? 8 : 64), ReduceOp::sum);
  });
}
void own_of_another_dtype(DivergentRun& run, int step, bool odd) {
  own_operation(run, step, [odd](Communicator& comm, Stream& stream, Buffer f32, Buffer f64) {
    comm.all_reduce(stream, "own", odd ? f64 : f32.slice(0, 32), ReduceOp::sum);
  });
}
void own_swapped(DivergentRun& run, int step, bool odd) {
  own_operation(run, step, [odd](Communicator& comm, Stream& stream, Buffer f32, Buffer) {
    for (const bool first : {!odd, odd}) comm.all_reduce(stream, first ? "x" : "y", f32, ReduceOp::sum);
  });
}
void own_of_another_kind(DivergentRun& run, int step, bool odd) {
  own_operation(run, step, [odd](Communicator& comm, Stream& stream, Buffer f32, Buffer) {
    odd ? comm.broadcast(stream, "own", f32, 0) : comm.all_reduce(stream, "own", f32, ReduceOp::sum);
  });
}
void in_another_group(DivergentRun& run, int step, bool odd) {
  own_operation(run, step, [odd, &run](Communicator& comm, Stream& stream, Buffer f32, Buffer) {
    run.extra->barrier(stream, "before");
    (odd ? *run.extra : comm).all_reduce(stream, "own", f32, ReduceOp::sum);
  });
}

struct Divergence {
  const char* name;
  void (*step)(DivergentRun& run, int step, bool odd);
};
constexpr Divergence kAll[] = {
    {"two layers swapped", swapped},
    {"the first layer skipped", first_skipped},
    {"a layer in the middle skipped", middle_skipped},
    {"the last layer skipped", last_skipped},
    {"a layer used once more", one_more},
    {"a micro-batch less", micro_batch_less},
    {"a micro-batch more", micro_batch_more},
    {"a validation more", validation_more},
    {"an operation of its own skipped", own_skipped},
    {"an operation of its own twice", own_twice},
    {"an operation of its own resized", own_resized},
    {"an operation of its own of another dtype", own_of_another_dtype},
    {"two operations of its own of one size swapped", own_swapped},
    {"another operation of its own", own_of_another_kind},
    {"an operation in another group", in_another_group},
};

/// The exit code.
int run(World& world, const Divergence& divergence) {
  DivergentRun run(world);
  const Watchdog::Observation observed(*world.watchdog(), *run.chain.device);
  std::vector<std::vector<float>> before;
  const auto masters = [&] {
    std::vector<std::vector<float>> all;
    for (const FlatParameter& unit : run.chain.runtime.executor().units()) {
      const Buffer master = unit.master_buffer();
      all.emplace_back(master.as<float>(), master.as<float>() + master.elems);
    }
    return all;
  };
  int step = 1;
  try {
    for (; step <= kWrongStep + 1; ++step) {
      world.watchdog()->enter(Phase::step, step);
      before = masters();
      divergence.step(run, step, step == kWrongStep && world.rank() == world.size() - 1);
      run.chain.device->synchronize();
    }
  } catch (const GroupEnded& error) {
    std::this_thread::sleep_for(std::chrono::seconds(2));  // the cause is another rank's to tell
    return static_cast<int>(error.code());
  } catch (const Error& error) {
    const bool is_right = step == kWrongStep && masters() == before;
    if (world.watchdog()->claim_report() || !is_right)
      std::fprintf(stderr, "rank %d, step %d, %s: %s\n", world.rank(), step, is_right ? "not updated" : "UPDATED", error.what());
    return is_right ? static_cast<int>(error.code()) : 1;
  }
  std::fprintf(stderr, "rank %d has noticed nothing\n", world.rank());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    for (const Divergence& one : kAll) std::puts(one.name);
    return 0;
  }
  WorldOptions options{.timeout_s = 60};
  options.watch.step_s = 2;
  const auto world = make_process_world(options, argv[1]);
  const int code = run(*world, kAll[std::atoi(argv[2])]);
  world->abort(code);
  return code;
}
