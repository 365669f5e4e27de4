#include "bench/common/plain_product.h"

#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>

namespace zs::bench {
namespace {

/// While it lives, library calls of this thread use `threads` threads: streams run with one otherwise.
class TeamScope {
 public:
  explicit TeamScope(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
  ~TeamScope() { omp_set_num_threads(before_); }
  TeamScope(const TeamScope&) = delete;
  TeamScope& operator=(const TeamScope&) = delete;

 private:
  int before_;
};

}  // namespace

struct PlainProduct::Parts {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::matmul matmul;
  dnnl::memory a, b, c;
};

PlainProduct::PlainProduct(DType dtype, std::int64_t size, int threads) : threads_(threads) {
  using dnnl::memory;
  const TeamScope team(threads);
  const auto type = dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
  const memory::desc plain({size, size}, type, memory::dims{size, 1}),
      transposed({size, size}, type, memory::dims{1, size});
  auto parts = std::make_unique<Parts>();
  try {
#if DNNL_VERSION_MAJOR >= 3
    parts->matmul = dnnl::matmul(dnnl::matmul::primitive_desc(parts->engine, plain, transposed, plain));
#else
    parts->matmul =
        dnnl::matmul(dnnl::matmul::primitive_desc(dnnl::matmul::desc(plain, transposed, plain), parts->engine));
#endif
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_unimplemented) return;
    throw Error(ExitCode::internal,
                fmt::format("oneDNN: {} (status {})", error.what(), static_cast<int>(error.status)));
  }
  parts->a = memory(plain, parts->engine, nullptr);
  parts->b = memory(transposed, parts->engine, nullptr);
  parts->c = memory(plain, parts->engine, nullptr);
  parts_ = std::move(parts);
}

PlainProduct::~PlainProduct() = default;

void PlainProduct::run(const Buffer& c, const Buffer& a, const Buffer& b) {
  const TeamScope team(threads_);
  try {
    parts_->a.set_data_handle(a.data);
    parts_->b.set_data_handle(b.data);
    parts_->c.set_data_handle(c.data);
    parts_->matmul.execute(parts_->stream,
                           {{DNNL_ARG_SRC, parts_->a}, {DNNL_ARG_WEIGHTS, parts_->b}, {DNNL_ARG_DST, parts_->c}});
    parts_->stream.wait();
  } catch (const dnnl::error& error) {
    throw Error(ExitCode::internal,
                fmt::format("oneDNN: {} (status {})", error.what(), static_cast<int>(error.status)));
  }
}

}  // namespace zs::bench
