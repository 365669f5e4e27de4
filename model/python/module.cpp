#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/tokenizer/tokenizer.h"
#include "model/train/config/config.h"
#include "model/train/config/site_defaults.h"
#include "model/train/plan/fit.h"
#include "model/train/plan/plan.h"
#include "model/weights/file_dtype.h"
#include "model/weights/weight_files.h"
#include "runtime/base/check.h"
#include "runtime/device/memory_limit.h"
#include "runtime/shard/checkpoint/checkpoint_folder.h"
#include "runtime/shard/checkpoint/held_state.h"

namespace py = pybind11;

namespace zs {
namespace {

std::vector<py::ssize_t> dims_of(const Shape& shape) { return {shape.dims().begin(), shape.dims().end()}; }

/// A new array of NumPy's dtype for these elements; bf16 has none there.
py::array array_of(DType dtype, const std::vector<py::ssize_t>& dims) {
  switch (dtype) {
    case DType::f32: return py::array_t<float>(dims);
    case DType::i32: return py::array_t<std::int32_t>(dims);
    case DType::i64: return py::array_t<std::int64_t>(dims);
    case DType::u8: return py::array_t<std::uint8_t>(dims);
    case DType::bf16: return py::array_t<std::uint16_t>(dims);
    default: throw Error(ExitCode::internal, fmt::format("elements of {} have no array", name_of(dtype)));
  }
}

py::array widened(const py::array& bf16, const std::vector<py::ssize_t>& dims) {
  py::array_t<float> out(dims);
  to_f32(FileDType::bf16, bf16.data(), out.mutable_data(), out.size());
  return out;
}

/// A checkpoint's tensors, whole, whatever number of ranks has written them.
class Checkpoint {
 public:
  explicit Checkpoint(const std::string& folder) : reader_(folder) {}

  const std::string& folder() const { return reader_.folder(); }
  std::int64_t step() const { return reader_.manifest().step; }
  const std::map<std::string, std::string>& attributes() const { return reader_.manifest().attributes; }
  std::vector<std::string> kinds() const {
    std::vector<std::string> found;
    for (const CheckpointTensor& tensor : reader_.manifest().tensors)
      if (std::find(found.begin(), found.end(), tensor.kind) == found.end()) found.push_back(tensor.kind);
    return found;
  }
  std::vector<std::string> names(const std::string& kind) const {
    std::vector<std::string> found;
    for (const CheckpointTensor& tensor : reader_.manifest().tensors)
      if (tensor.kind == kind && tensor.part.index == 0) found.push_back(tensor.parameter);
    return found;
  }
  bool has(const std::string& name) const { return reader_.find(name, kMasterKind).has_value(); }
  py::array read(const std::string& name, const std::string& kind) {
    const auto number = reader_.find(name, kind);
    if (!number) throw py::key_error(fmt::format("{} has no tensor {} of kind {}", reader_.folder(), name, kind));
    const CheckpointTensor& tensor = reader_.manifest().tensors[static_cast<std::size_t>(*number)];
    py::array array = array_of(tensor.dtype, dims_of(tensor.shape));
    const Buffer out{array.mutable_data(), tensor.shape.numel(), tensor.dtype};
    {
      const py::gil_scoped_release others;
      reader_.read({{*number, 0, out}});
    }
    return tensor.dtype == DType::bf16 ? widened(array, dims_of(tensor.shape)) : array;
  }
  void verify() {
    const py::gil_scoped_release others;
    reader_.verify();
  }

 private:
  CheckpointReader reader_;
};

/// Weights in safetensors files, as f32.
class Weights {
 public:
  explicit Weights(const std::string& path) : files_(path) {}

  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& [name, tensor] : files_.tensors()) found.push_back(name);
    return found;
  }
  py::array read(const std::string& name) {
    const SafetensorsHeader::Tensor* const header = files_.find(name);
    if (header == nullptr) throw py::key_error(fmt::format("{} has no tensor {}", files_.files().front().path, name));
    if (!is_parameter_dtype(header->dtype))
      throw Error(ExitCode::model, fmt::format("tensor {} is {}", name, name_of(header->dtype)),
                  files_.files().front().path, "F32, F16 and BF16 are read");
    std::vector<char> bytes(static_cast<std::size_t>(header->end - header->begin));
    files_.read(name, 0, bytes.data(), std::ssize(bytes));
    py::array_t<float> out(std::vector<py::ssize_t>(header->shape.begin(), header->shape.end()));
    to_f32(header->dtype, bytes.data(), out.mutable_data(), out.size());
    return out;
  }

 private:
  WeightFiles files_;
};

struct PlannedRun {
  Config config;
  PlanOptions options;
};

PlannedRun planned_run(const std::string& path, int ranks, const std::vector<std::string>& overrides) {
  if (ranks < 1)
    throw Error(ExitCode::usage, fmt::format("ranks is {}", ranks), {}, "give a number of ranks from 1 on");
  return {load_config(path, overrides, ConfigFor::training, site_defaults()), {.ranks = ranks}};
}

py::dict dict_of(const TrainPlan::Unit& unit) {
  py::dict found;
  std::vector<std::string> parameters;
  for (const auto& view : unit.layout->views()) parameters.push_back(view.name);
  found["name"] = unit.name;
  found["strategy"] = unit.scheme;
  found["parameters"] = parameters;
  found["elements"] = unit.layout->numel();
  found["shard_elements"] = unit.layout->shard_elems();
  found["weights_bytes"] = unit.weights_bytes();
  found["param_dtype"] = name_of(unit.precision.param);
  found["is_frozen"] = unit.is_frozen;
  found["is_zero_copy"] = unit.is_zero_copy;
  found["why"] = unit.why;
  return found;
}

py::dict plan(const std::string& path, int ranks, const std::vector<std::string>& overrides) {
  PlannedRun run;
  TrainPlan made;
  {
    const py::gil_scoped_release others;
    run = planned_run(path, ranks, overrides);
    made = make_plan(run.config, run.options);
  }
  py::dict found;
  py::list units;
  for (const TrainPlan::Unit& unit : made.units) units.append(dict_of(unit));
  found["config"] = to_toml(run.config);
  found["units"] = units;
  found["persistent_bytes"] = made.persistent_bytes;
  found["step_peak_bytes"] = made.step_peak_bytes;
  found["peak_bytes"] = made.peak_bytes;
  found["reserved_bytes"] = made.reserved_bytes;
  found["shared_bytes"] = made.shared_bytes;
  found["pinned_bytes"] = made.pinned_bytes;
  found["host_bytes"] = made.host_bytes;
  found["disk_bytes"] = made.disk_bytes;
  found["at_peak"] = made.at_peak;
  found["warnings"] = made.warnings;
  return found;
}

py::list fit(const std::string& path, int ranks, std::int64_t memory_bytes, const std::vector<std::string>& overrides) {
  std::vector<FitRow> rows;
  {
    const py::gil_scoped_release others;
    const PlannedRun run = planned_run(path, ranks, overrides);
    FitRequest request{{.config = run.config, .plan = run.options, .local_ranks = ranks}, {}, {}};
    if (memory_bytes > 0)
      request.budgets.push_back({.bytes = memory_bytes, .source = "memory_bytes", .is_per_rank = true});
    else
      request.budgets = memory_budgets(memory_limits(), 1);
    add_offload_budgets(run.config, request.budgets);
    rows = find_fits(request);
  }
  py::list found;
  for (const FitRow& row : rows) {
    py::dict one;
    one["changes"] = row.changes;
    one["peak_bytes"] = row.peak_bytes;
    one["device_bytes"] = row.bytes.device;
    one["host_bytes"] = row.bytes.host;
    one["disk_bytes"] = row.bytes.disk;
    one["share"] = row.share;
    found.append(one);
  }
  return found;
}

/// Makes an Error a zshard.Error, which has its exit code.
void raise(const py::object& type, const Error& error) {
  const py::object raised = type(error.what());
  raised.attr("code") = static_cast<int>(error.code());
  PyErr_SetObject(type.ptr(), raised.ptr());
}

void define_tokenizer(py::module_& module) {
  py::class_<Tokenizer>(module, "Tokenizer",
                        "Tokenizer of a folder with tokenizer.json or tokenizer.model, or of such a file.")
      .def(py::init([](const std::string& path) { return open_tokenizer(path); }), py::arg("path"))
      .def_property_readonly("vocab_size", &Tokenizer::vocab_size)
      .def(
          "encode",
          [](const Tokenizer& tokenizer, const std::string& text, bool add_special_tokens) {
            return tokenizer.encode(text, add_special_tokens);
          },
          py::arg("text"), py::arg("add_special_tokens") = true, "Ids of a text.")
      .def(
          "decode",
          [](const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids, bool skip_special_tokens) {
            const std::string bytes = tokenizer.decode(ids, skip_special_tokens);
            return py::reinterpret_steal<py::str>(PyUnicode_DecodeUTF8(bytes.data(), std::ssize(bytes), "replace"));
          },
          py::arg("ids"), py::arg("skip_special_tokens") = false,
          "Text of ids; what is no UTF-8 in it is replaced, as by bytes.decode(errors='replace').");
}

void define_files(py::module_& module) {
  py::class_<Checkpoint>(module, "Checkpoint",
                         "A checkpoint's folder. Tensors are read whole, whatever number of ranks has written them; "
                         "checkpoint[name] is a parameter's weights.")
      .def(py::init<const std::string&>(), py::arg("folder"))
      .def_property_readonly("folder", &Checkpoint::folder)
      .def_property_readonly("step", &Checkpoint::step)
      .def_property_readonly("attributes", &Checkpoint::attributes, "Texts that the run has saved beside tensors.")
      .def_property_readonly("kinds", &Checkpoint::kinds, "Kinds of tensors: master, the weights, and the optimizer's.")
      .def("names", &Checkpoint::names, py::arg("kind") = kMasterKind, "Parameters that have a tensor of this kind.")
      .def("read", &Checkpoint::read, py::arg("name"), py::arg("kind") = kMasterKind,
           "A tensor as a new array: f32 (bf16, too), i32, i64 or u8. KeyError where there is none.")
      .def("verify", &Checkpoint::verify, "Reads every byte; zshard.Error where one is not as it was written.")
      .def("__getitem__",
           [](Checkpoint& checkpoint, const std::string& name) { return checkpoint.read(name, kMasterKind); })
      .def("__contains__", &Checkpoint::has)
      .def("__iter__", [](const Checkpoint& checkpoint) { return py::iter(py::cast(checkpoint.names(kMasterKind))); })
      .def("__len__", [](const Checkpoint& checkpoint) { return checkpoint.names(kMasterKind).size(); });
  py::class_<Weights>(module, "Weights", "A safetensors file, or a folder of them; weights[name] is an f32 array.")
      .def(py::init<const std::string&>(), py::arg("path"))
      .def("names", &Weights::names)
      .def("__getitem__", &Weights::read)
      .def("__iter__", [](const Weights& weights) { return py::iter(py::cast(weights.names())); })
      .def("__len__", [](const Weights& weights) { return weights.names().size(); });
}

}  // namespace

/// Binds what Python reads of a run. No training in Python: zshard/__init__.py starts the program.
void define_module(py::module_& module) {
  static py::object* const error = new py::object(  // there for ever, as the module is
      py::reinterpret_steal<py::object>(PyErr_NewExceptionWithDoc(
          "zshard.Error", "What zshard says of an error, in one line; `code` is the program's exit code for it.",
          PyExc_RuntimeError, nullptr)));
  module.attr("Error") = *error;
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const Error& one) {
      raise(*error, one);
    }
  });
  define_tokenizer(module);
  define_files(module);
  module.def("_plan", &plan);
  module.def("_fit", &fit);
  module.attr("__version__") = ZSHARD_VERSION;
}

}  // namespace zs

PYBIND11_MODULE(_zshard, module) { zs::define_module(module); }
