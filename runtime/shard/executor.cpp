#include "runtime/shard/executor.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "runtime/base/random.h"

namespace zs {

Executor::Executor(Context& context, World& world, const Precision& precision)
    : context_(context),
      precision_(precision),
      gather_comm_(world.communicator()),
      reduce_comm_(world.communicator()),
      compute_comm_(world.communicator()),
      comm_pool_(gather_comm_->prefers_arena() && &gather_comm_->arena() != &context.device().allocator()
                     ? arena_.emplace(gather_comm_->arena(), context.device().memory(), context.device().options().perturb_seed != 0)
                     : context.pool()) {}

Executor::~Executor() {
  units_.clear();
  try {
    context_.device().synchronize();
  } catch (const std::exception& error) {
    fmt::print(stderr, "zshard: rank {}: work that nobody waited for failed: {}\n", rank(), error.what());
  }
}

void Executor::add_unit(std::string name, const std::vector<Parameter*>& parameters, std::uint64_t seed) {
  Stream& compute = context_.stream();
  FlatParameter unit(std::move(name), parameters, FlatLayout(parameters, precision_.param, ranks()));
  const MemoryOwner owner(context_.device().memory(), unit.name);
  const std::int64_t bytes = unit.layout.shard_elems() * size_of(DType::f32);
  unit.master = comm_pool_.acquire(bytes, compute, "master");
  unit.grad = comm_pool_.acquire(bytes, compute, "grad_shard");
  initialise(unit, seed);
  if (precision_.param == DType::bf16) {
    unit.narrow = comm_pool_.acquire(unit.layout.shard_elems() * size_of(DType::bf16), compute, "param_shard");
    narrow_master(unit);
  }
  masters_updated();
  units_.push_back(std::move(unit));
}

void Executor::narrow_master(FlatParameter& unit) {
  const Buffer narrow = unit.narrow_buffer(), master = unit.master_buffer();
  context_.launch({"narrow:" + unit.name, {master}, {narrow}},
                  [&kernels = context_.kernels(), narrow, master](ExecContext& exec) { kernels.cast(exec, narrow, master); });
}

void Executor::masters_loaded() {
  for (FlatParameter& unit : units_) {
    if (unit.narrow) narrow_master(unit);
  }
  masters_updated();
}

void Executor::initialise(FlatParameter& unit, std::uint64_t seed) {
  const Buffer master = unit.master_buffer();
  context_.launch({"initialise:" + unit.name, {}, {master}},
                  [master, seed, views = unit.layout.views(), segments = unit.layout.segments(rank())](ExecContext&) {
                    float* out = master.as<float>();
                    std::fill_n(out, master.elems, 0.0f);
                    for (const ShardSegment& segment : segments) {
                      const FlatView& view = views[segment.view];
                      const CounterRng rng(seed, hash_name(view.name));
                      for (std::int64_t i = 0; i < segment.count; ++i) {
                        const auto counter = static_cast<std::uint64_t>(segment.view_offset + i);
                        out[segment.shard_offset + i] =
                            view.init.normal_std == 0 ? view.init.constant : static_cast<float>(view.init.normal_std * rng.normal(counter));
                      }
                    }
                  });
}

void Executor::run(const std::vector<Action>& actions) {
  for (const Action& action : actions) {
    FlatParameter& unit = units_.at(static_cast<std::size_t>(action.unit));
    switch (action.kind) {
      case Action::Kind::gather: gather(unit); break;
      case Action::Kind::wait_gathered: wait_gathered(unit); break;
      case Action::Kind::free_full: free_full(unit); break;
      case Action::Kind::begin_gradient: begin_gradient(unit); break;
      case Action::Kind::reduce: reduce(unit); break;
      case Action::Kind::release_gradient: release_gradient(unit); break;
    }
  }
}

void Executor::gather(FlatParameter& unit) {
  unit.is_waited_for = false;
  if (is_gather_free()) return;
  Stream& unshard = stream(StreamRole::unshard);
  unshard.wait(masters_ready_);
  const MemoryOwner owner(context_.device().memory(), unit.name);
  unit.full = comm_pool_.acquire(unit.layout.full_elems() * size_of(precision_.param), unshard, "full_param");
  gather_comm_->all_gather(unshard, unit.name, unit.param_buffer(), unit.full.buffer(precision_.param, unit.layout.full_elems()));
  unshard.record(unit.gathered);
}

void Executor::wait_gathered(FlatParameter& unit) {
  unit.is_waited_for = true;
  const Buffer full = is_gather_free() ? unit.param_buffer() : unit.full.buffer(precision_.param, unit.layout.full_elems());
  if (!is_gather_free()) context_.stream().wait(unit.gathered);
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const FlatView& view = unit.layout.views()[i];
    unit.parameters[i]->bind(full.slice(view.offset, view.numel));
  }
}

void Executor::free_full(FlatParameter& unit) {
  for (Parameter* parameter : unit.parameters) parameter->unbind();
  if (is_gather_free()) return;
  // A prefetch that nobody used still reads the master weights, which compute may write next.
  if (!unit.is_waited_for) context_.stream().wait(unit.gathered);
  unit.full.release(context_.stream());
}

void Executor::zero(Stream& stream, const char* name, std::vector<Buffer> buffers) {
  if (buffers.empty()) return;
  stream.enqueue({name, {}, buffers}, [&kernels = context_.kernels(), buffers](ExecContext& exec) {
    for (const Buffer& buffer : buffers) kernels.zero(exec, buffer);
  });
}

void Executor::begin_gradient(FlatParameter& unit) {
  const std::int64_t elems = unit.layout.full_elems();
  const MemoryOwner owner(context_.device().memory(), unit.name);
  unit.full_grad = comm_pool_.acquire(elems * size_of(precision_.reduce), context_.stream(), "full_grad");
  const Buffer full = unit.full_grad.buffer(precision_.reduce, elems);
  std::vector<Buffer> padding;
  for (const auto& [offset, count] : unit.layout.padding()) padding.push_back(full.slice(offset, count));
  zero(context_.stream(), "zero_padding", std::move(padding));
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const FlatView& view = unit.layout.views()[i];
    unit.parameters[i]->bind_grad(full.slice(view.offset, view.numel), false);
  }
}

void Executor::reduce(FlatParameter& unit) {
  const Buffer full = unit.full_grad.buffer(precision_.reduce, unit.layout.full_elems());
  std::vector<Buffer> unwritten;
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const FlatView& view = unit.layout.views()[i];
    if (!unit.parameters[i]->is_grad_written()) unwritten.push_back(full.slice(view.offset, view.numel));
    unit.parameters[i]->unbind_grad();
  }
  zero(context_.stream(), "zero_unused", std::move(unwritten));

  Stream& reduction = stream(StreamRole::reduce);
  Event ready;
  context_.stream().record(ready);
  reduction.wait(ready);
  reduce_comm_->reduce_scatter(reduction, unit.name, full, unit.grad_buffer(), unit.grad_is_written ? Fold::accumulate : Fold::overwrite);
  unit.grad_is_written = true;
  reduction.record(unit.reduced);
  last_reduction_ = unit.reduced;
}

void Executor::release_gradient(FlatParameter& unit) {
  const bool is_abandoned = !unit.parameters.empty() && unit.parameters.front()->has_grad_buffer();
  for (Parameter* parameter : unit.parameters) parameter->unbind_grad();
  if (is_abandoned) {
    unit.full_grad.release(context_.stream());
  } else {
    unit.full_grad.release(stream(StreamRole::reduce), unit.reduced);
  }
}

void Executor::wait_reductions() { context_.stream().wait(last_reduction_); }

void Executor::masters_updated() { context_.stream().record(masters_ready_); }

void Executor::clear_gradients() {
  for (FlatParameter& unit : units_) unit.grad_is_written = false;
}

void Executor::read_full(int unit_index, const UseParameter& use) {
  FlatParameter& unit = units_.at(static_cast<std::size_t>(unit_index));
  Stream& unshard = stream(StreamRole::unshard);
  unshard.wait(masters_ready_);
  const MemoryOwner owner(context_.device().memory(), unit.name);
  Memory memory = comm_pool_.acquire(unit.layout.full_elems() * size_of(DType::f32), unshard, "full_param");
  const Buffer full = memory.buffer(DType::f32, unit.layout.full_elems());
  gather_comm_->all_gather(unshard, unit.name, unit.master_buffer(), full);
  unshard.synchronize();
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const FlatView& view = unit.layout.views()[i];
    use(*unit.parameters[i], full.slice(view.offset, view.numel).as<float>());
  }
}

}  // namespace zs
