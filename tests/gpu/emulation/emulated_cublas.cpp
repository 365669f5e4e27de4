#include "tests/gpu/emulation/emulated_cublas.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "runtime/base/dtype.h"

namespace zs {

// What the library's handles point to is its own affair, and here this.
struct CublasLt::Handle {
  int version = 0;
};
struct CublasLt::Operation {
  int compute_type, scale_type;
  std::map<int, std::int64_t> numbers = {};
  const void* bias = nullptr;
  const void* aux = nullptr;
};
struct CublasLt::Layout {
  int type;
  std::uint64_t rows, columns;
  std::int64_t stride;
};
struct CublasLt::Preference {
  std::map<int, std::uint64_t> numbers = {};
};

}  // namespace zs

namespace zs::test {
namespace {

std::atomic<EmulatedCublas*> active{nullptr};

std::int64_t number(const CublasLt::Operation& operation, int attribute, std::int64_t otherwise) {
  const auto found = operation.numbers.find(attribute);
  return found == operation.numbers.end() ? otherwise : found->second;
}

bool has_gelu(std::int64_t epilogue) {
  return epilogue == cublas::kGeluEpilogue || epilogue == cublas::kGeluBiasEpilogue;
}
bool has_bias(std::int64_t epilogue) {
  return epilogue == cublas::kBiasEpilogue || epilogue == cublas::kGeluBiasEpilogue;
}
bool has_aux(std::int64_t epilogue) { return has_gelu(epilogue) || epilogue == cublas::kGeluGradientEpilogue; }

constexpr double kRootTwoOverPi = 0.7978845608028654, kCubic = 0.044715;
double gelu_tanh(double x) { return std::tanh(kRootTwoOverPi * (x + kCubic * x * x * x)); }
float gelu(float x) { return static_cast<float>(0.5 * x * (1 + gelu_tanh(x))); }
float gelu_slope(float value) {
  const double x = value, t = gelu_tanh(x);
  return static_cast<float>(0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kRootTwoOverPi * (1 + 3 * kCubic * x * x));
}

float rounded_to_tf32(float value) {
  constexpr std::uint32_t kHalf = 1u << 12;
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(value) + kHalf) & ~(2 * kHalf - 1));
}

/// A matrix by columns in memory.
struct Matrix {
  void* address;
  CublasLt::Layout layout;

  float at(std::size_t i) const {
    if (layout.type == cublas::kF32) return static_cast<const float*>(address)[i];
    return static_cast<float>(static_cast<const BFloat16*>(address)[i]);
  }
  void set(std::size_t i, float value) const {
    if (layout.type == cublas::kF32)
      static_cast<float*>(address)[i] = value;
    else
      static_cast<BFloat16*>(address)[i] = BFloat16(value);
  }
};

/// The elements of op(matrix), by columns without gaps.
std::vector<float> elements(const Matrix& matrix, bool is_transposed, bool is_tf32) {
  const std::size_t rows = matrix.layout.rows, columns = matrix.layout.columns,
                    stride = static_cast<std::size_t>(matrix.layout.stride);
  std::vector<float> all(rows * columns);
  for (std::size_t column = 0; column < columns; ++column)
    for (std::size_t row = 0; row < rows; ++row) {
      const float value = matrix.at(column * stride + row);
      all[is_transposed ? row * columns + column : column * rows + row] = is_tf32 ? rounded_to_tf32(value) : value;
    }
  return all;
}

struct Product {
  Matrix a, b, c, d, bias, aux;  // bias.address null: none
  std::int64_t epilogue;
  bool is_a_transposed, is_b_transposed, is_tf32;
  float beta;
  std::byte* workspace;
  std::size_t workspace_bytes;

  std::size_t inner() const { return is_a_transposed ? a.layout.rows : a.layout.columns; }
};

void run(const Product& p) {
  // What the workspace held is lost; where it lies in an operand, that shows.
  if (p.workspace_bytes > 0) std::memset(p.workspace, 0xff, p.workspace_bytes);
  const std::vector<float> a = elements(p.a, p.is_a_transposed, p.is_tf32),
                           b = elements(p.b, p.is_b_transposed, p.is_tf32);
  const std::size_t rows = p.d.layout.rows, columns = p.d.layout.columns, inner = p.inner();
  std::vector<float> sums(rows);
  for (std::size_t column = 0; column < columns; ++column) {
    std::fill(sums.begin(), sums.end(), 0.0f);
    for (std::size_t l = 0; l < inner; ++l) {
      const float factor = b[column * inner + l];
      for (std::size_t row = 0; row < rows; ++row) sums[row] += a[l * rows + row] * factor;
    }
    for (std::size_t row = 0; row < rows; ++row) {
      float sum = sums[row];
      if (p.beta != 0) sum += p.beta * p.c.at(column * static_cast<std::size_t>(p.c.layout.stride) + row);
      if (p.bias.address != nullptr) sum += p.bias.at(row);
      const std::size_t at_aux = column * static_cast<std::size_t>(p.aux.layout.stride) + row;
      if (has_gelu(p.epilogue)) {
        p.aux.set(at_aux, sum);
        sum = gelu(sum);
      } else if (p.epilogue == cublas::kGeluGradientEpilogue) {
        sum *= gelu_slope(p.aux.at(at_aux));
      }
      p.d.set(column * static_cast<std::size_t>(p.d.layout.stride) + row, sum);
    }
  }
}

/// What an algorithm was found for, as it stands in its bytes.
struct Found {
  std::uint64_t problem;
  std::uint32_t a_alignment, b_alignment, c_alignment, d_alignment, aux_alignment;
  int candidate;
  std::uint64_t workspace_bytes;
};
static_assert(sizeof(Found) <= sizeof(CublasLt::Algorithm));

std::uint64_t problem_of(const CublasLt::Operation& operation, std::initializer_list<const CublasLt::Layout*> layouts) {
  std::uint64_t hash = 1469598103934665603u;
  const auto add = [&](std::uint64_t word) { hash = (hash ^ word) * 1099511628211u; };
  add(static_cast<std::uint64_t>(operation.compute_type));
  for (const auto& [attribute, value] : operation.numbers) {
    add(static_cast<std::uint64_t>(attribute));
    add(static_cast<std::uint64_t>(value));
  }
  for (const CublasLt::Layout* layout : layouts) {
    add(static_cast<std::uint64_t>(layout->type));
    add(layout->rows);
    add(layout->columns);
    add(static_cast<std::uint64_t>(layout->stride));
  }
  return hash;
}

bool is_aligned(const void* address, std::uint64_t alignment) {
  return reinterpret_cast<std::uintptr_t>(address) % alignment == 0;
}

/// A power of two, at most 256.
std::uint32_t alignment_of(const void* address) {
  std::uint32_t alignment = 256;
  while (!is_aligned(address, alignment)) alignment /= 2;
  return alignment;
}

/// Whether the library takes the matrix for GELU's input, which has the result's type, and that the operands'.
int aux_status(const CublasLt::Operation& o, const CublasLt::Layout& a, const CublasLt::Layout& d) {
  const std::int64_t stride = number(o, cublas::kAuxStride, 0);
  if (o.aux == nullptr || stride < static_cast<std::int64_t>(d.rows) || stride % 8 != 0) return cublas::kInvalidValue;
  if (number(o, cublas::kAuxType, d.type) != d.type) return cublas::kInvalidValue;
  return a.type == d.type && is_aligned(o.aux, 16) ? cublas::kSuccess : cublas::kNotSupported;
}

/// Whether the library takes these together.
int status_of(const CublasLt::Operation& o, const CublasLt::Layout& a, const CublasLt::Layout& b,
              const CublasLt::Layout& c, const CublasLt::Layout& d) {
  const bool is_a_transposed = number(o, cublas::kTransposeA, 0) == cublas::kTransposed,
             is_b_transposed = number(o, cublas::kTransposeB, 0) == cublas::kTransposed;
  const std::uint64_t inner = is_a_transposed ? a.rows : a.columns;
  if (inner != (is_b_transposed ? b.columns : b.rows) || d.rows != (is_a_transposed ? a.columns : a.rows) ||
      d.columns != (is_b_transposed ? b.rows : b.columns) || c.rows != d.rows || c.columns != d.columns)
    return cublas::kInvalidValue;
  if (o.scale_type != cublas::kF32 || a.type != b.type || c.type != d.type ||
      (d.type != a.type && d.type != cublas::kF32))
    return cublas::kNotSupported;
  if (o.compute_type == cublas::kComputeTf32 ? a.type != cublas::kF32 : o.compute_type != cublas::kComputeF32)
    return cublas::kNotSupported;
  const std::int64_t epilogue = number(o, cublas::kEpilogue, cublas::kPlainEpilogue);
  if (epilogue != cublas::kPlainEpilogue && !has_bias(epilogue) && !has_aux(epilogue)) return cublas::kNotSupported;
  if (has_aux(epilogue)) {
    if (const int status = aux_status(o, a, d); status != cublas::kSuccess) return status;
  }
  if (!has_bias(epilogue)) return cublas::kSuccess;
  if (o.bias == nullptr) return cublas::kInvalidValue;
  return number(o, cublas::kBiasType, d.type) == d.type ? cublas::kSuccess : cublas::kNotSupported;
}

}  // namespace

struct EmulatedCublasFunctions {
  static EmulatedCublas& library() { return *active.load(); }

  /// Every function: count, fail if asked to, else `body`.
  template <class Body>
  static int call(const char* name, const Body& body) {
    EmulatedCublas& self = library();
    const std::lock_guard lock(self.driver_.mutex());
    const int status = self.calls_.enter(name);
    return status != 0 ? status : body(self);
  }

  template <class T>
  static int make(EmulatedCublas& self, T** object, T value) {
    const auto made = std::make_shared<T>(std::move(value));
    self.objects_[made.get()] = made;
    return *object = made.get(), cublas::kSuccess;
  }
  template <class T>
  static int destroy(const char* name, T* object) {
    return call(
        name, [&](auto& self) { return self.objects_.erase(object) == 1 ? cublas::kSuccess : cublas::kInvalidValue; });
  }
  template <class... T>
  static bool live(const EmulatedCublas& self, T*... objects) {
    return (self.objects_.contains(objects) && ...);
  }

  static const char* status_text(int status) {
    return status == cublas::kNotSupported ? "not supported" : "a made-up status";
  }
  static int create(CublasLt::Handle** handle) {
    return call("cublasLtCreate", [&](auto& self) {
      return self.driver_.has_current_context() ? make(self, handle, CublasLt::Handle{}) : cublas::kNotInitialized;
    });
  }
  static int handle_destroy(CublasLt::Handle* handle) { return destroy("cublasLtDestroy", handle); }
  static int operation_create(CublasLt::Operation** operation, int compute_type, int scale_type) {
    return call("cublasLtMatmulDescCreate", [&](auto& self) {
      return make(self, operation, CublasLt::Operation{compute_type, scale_type});
    });
  }
  static int operation_destroy(CublasLt::Operation* operation) {
    return destroy("cublasLtMatmulDescDestroy", operation);
  }
  static int operation_set(CublasLt::Operation* operation, int attribute, const void* value, std::size_t bytes) {
    return call("cublasLtMatmulDescSetAttribute", [&](auto& self) {
      const bool is_bias = attribute == cublas::kBiasPointer, is_aux = attribute == cublas::kAuxPointer;
      const std::size_t expected = is_bias || is_aux                 ? sizeof(void*)
                                   : attribute == cublas::kAuxStride ? sizeof(std::int64_t)
                                                                     : sizeof(int);
      if (!live(self, operation) || value == nullptr || bytes != expected) return cublas::kInvalidValue;
      if (is_bias || is_aux)
        std::memcpy(is_bias ? &operation->bias : &operation->aux, value, bytes);
      else
        std::memcpy(&(operation->numbers[attribute] = 0), value, bytes);
      return cublas::kSuccess;
    });
  }
  static int layout_create(CublasLt::Layout** layout, int type, std::uint64_t rows, std::uint64_t columns,
                           std::int64_t stride) {
    return call("cublasLtMatrixLayoutCreate", [&](auto& self) {
      if (rows == 0 || columns == 0 || stride < static_cast<std::int64_t>(rows)) return cublas::kInvalidValue;
      return make(self, layout, CublasLt::Layout{type, rows, columns, stride});
    });
  }
  static int layout_destroy(CublasLt::Layout* layout) { return destroy("cublasLtMatrixLayoutDestroy", layout); }
  static int preference_create(CublasLt::Preference** preference) {
    return call("cublasLtMatmulPreferenceCreate",
                [&](auto& self) { return make(self, preference, CublasLt::Preference{}); });
  }
  static int preference_destroy(CublasLt::Preference* preference) {
    return destroy("cublasLtMatmulPreferenceDestroy", preference);
  }
  static int preference_set(CublasLt::Preference* preference, int attribute, const void* value, std::size_t bytes) {
    return call("cublasLtMatmulPreferenceSetAttribute", [&](auto& self) {
      const std::size_t expected = attribute == cublas::kMostWorkspace ? sizeof(std::uint64_t) : sizeof(std::uint32_t);
      if (!live(self, preference) || value == nullptr || bytes != expected) return cublas::kInvalidValue;
      std::memcpy(&(preference->numbers[attribute] = 0), value, bytes);
      return cublas::kSuccess;
    });
  }

  static int find_algorithms(CublasLt::Handle* handle, CublasLt::Operation* operation, CublasLt::Layout* a,
                             CublasLt::Layout* b, CublasLt::Layout* c, CublasLt::Layout* d,
                             CublasLt::Preference* preference, int wanted, CublasLt::Candidate* candidates,
                             int* count) {
    return call("cublasLtMatmulAlgoGetHeuristic", [&](auto& self) {
      if (!live(self, handle, operation, a, b, c, d, preference) || wanted < 1) return cublas::kInvalidValue;
      if (const int status = status_of(*operation, *a, *b, *c, *d); status != cublas::kSuccess) return status;
      const bool is_with_aux = has_aux(number(*operation, cublas::kEpilogue, cublas::kPlainEpilogue));
      if (self.knows_nothing_ || (is_with_aux && !self.knows_gelu_)) return *count = 0, cublas::kNotSupported;
      const auto alignment = [&](int attribute) {
        const auto found = preference->numbers.find(attribute);
        return static_cast<std::uint32_t>(found == preference->numbers.end() ? 256 : found->second);
      };
      const auto limit = preference->numbers.find(cublas::kMostWorkspace);
      // Long sums over few results are cut, and their parts left in the workspace.
      const std::uint64_t parts_bytes = 1024 * d->rows * d->columns * sizeof(float);
      const bool is_cut = a->rows * a->columns > 16 * d->rows * d->columns && limit != preference->numbers.end() &&
                          parts_bytes <= limit->second;
      Found found{.problem = problem_of(*operation, {a, b, c, d}),
                  .a_alignment = alignment(cublas::kAlignmentA),
                  .b_alignment = alignment(cublas::kAlignmentB),
                  .c_alignment = alignment(cublas::kAlignmentC),
                  .d_alignment = alignment(cublas::kAlignmentD),
                  .aux_alignment = is_with_aux ? alignment_of(operation->aux) : 1,
                  .candidate = 0,
                  .workspace_bytes = is_cut ? parts_bytes : 0};
      for (*count = std::min(wanted, self.candidates_); found.candidate < *count; ++found.candidate) {
        CublasLt::Candidate& one = candidates[found.candidate] = {{}, found.workspace_bytes, 0, 0, {}};
        std::memcpy(&one.algorithm, &found, sizeof(found));
      }
      return cublas::kSuccess;
    });
  }

  static int multiply(CublasLt::Handle* handle, CublasLt::Operation* operation, const void* alpha, const void* a,
                      CublasLt::Layout* a_layout, const void* b, CublasLt::Layout* b_layout, const void* beta,
                      const void* c, CublasLt::Layout* c_layout, void* d, CublasLt::Layout* d_layout,
                      const CublasLt::Algorithm* algorithm, void* workspace, std::size_t workspace_bytes,
                      CUstream_st* stream) {
    return call("cublasLtMatmul", [&](auto& self) {
      if (!self.driver_.has_current_context()) return cublas::kNotInitialized;
      if (!live(self, handle, operation, a_layout, b_layout, c_layout, d_layout) || algorithm == nullptr)
        return cublas::kInvalidValue;
      if (const int status = status_of(*operation, *a_layout, *b_layout, *c_layout, *d_layout);
          status != cublas::kSuccess)
        return status;
      if (*static_cast<const float*>(alpha) != 1.0f || c != d) return cublas::kNotSupported;  // as far as this one goes
      Found found;
      std::memcpy(&found, algorithm, sizeof(found));
      if (found.problem != problem_of(*operation, {a_layout, b_layout, c_layout, d_layout}))
        return cublas::kInvalidValue;
      if (workspace_bytes < found.workspace_bytes || !is_aligned(workspace, 256)) return cublas::kInvalidValue;
      const std::int64_t epilogue = number(*operation, cublas::kEpilogue, cublas::kPlainEpilogue);
      if (!is_aligned(a, found.a_alignment) || !is_aligned(b, found.b_alignment) || !is_aligned(c, found.c_alignment) ||
          !is_aligned(d, found.d_alignment) || (has_bias(epilogue) && !is_aligned(operation->bias, 16)) ||
          (has_aux(epilogue) && !is_aligned(operation->aux, found.aux_alignment)))
        return cublas::kExecutionFailed;
      const Product product{
          .a = {const_cast<void*>(a), *a_layout},
          .b = {const_cast<void*>(b), *b_layout},
          .c = {const_cast<void*>(c), *c_layout},
          .d = {d, *d_layout},
          .bias = {has_bias(epilogue) ? const_cast<void*>(operation->bias) : nullptr, *d_layout},
          .aux = {const_cast<void*>(operation->aux),
                  {d_layout->type, d_layout->rows, d_layout->columns, number(*operation, cublas::kAuxStride, 0)}},
          .epilogue = epilogue,
          .is_a_transposed = number(*operation, cublas::kTransposeA, 0) == cublas::kTransposed,
          .is_b_transposed = number(*operation, cublas::kTransposeB, 0) == cublas::kTransposed,
          .is_tf32 = operation->compute_type == cublas::kComputeTf32,
          .beta = *static_cast<const float*>(beta),
          .workspace = static_cast<std::byte*>(workspace),
          .workspace_bytes = found.workspace_bytes};
      self.gelu_products_ += has_gelu(epilogue) ? 1 : 0;
      self.gelu_gradient_products_ += epilogue == cublas::kGeluGradientEpilogue ? 1 : 0;
      self.driver_.launch(stream, [product, &driver = self.driver_, ms = self.begin(found.candidate)] {
        run(product);
        driver.pass_time(ms);
      });
      return cublas::kSuccess;
    });
  }

  static constexpr CublasLt kTable = {
      .status_text = status_text,
      .version = [] { return std::size_t{130200}; },
      .create = create,
      .destroy = handle_destroy,
      .operation_create = operation_create,
      .operation_destroy = operation_destroy,
      .operation_set = operation_set,
      .layout_create = layout_create,
      .layout_destroy = layout_destroy,
      .preference_create = preference_create,
      .preference_destroy = preference_destroy,
      .preference_set = preference_set,
      .find_algorithms = find_algorithms,
      .multiply = multiply,
  };
};

EmulatedCublas::EmulatedCublas(EmulatedDriver& driver)
    : driver_(driver), table_(std::make_shared<const CublasLt>(EmulatedCublasFunctions::kTable)) {
  if (active.exchange(this) != nullptr) throw std::logic_error("two emulated cuBLASLt at a time");
}

EmulatedCublas::~EmulatedCublas() { active = nullptr; }

std::size_t EmulatedCublas::live_handles() const { return objects_.size(); }

}  // namespace zs::test
