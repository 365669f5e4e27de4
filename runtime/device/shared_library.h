#pragma once

#include <initializer_list>
#include <string>
#include <vector>

namespace zs {

/// A library of somebody else, opened while the program runs: the first of `names` that there is. It stays loaded:
/// NVIDIA's have threads that outlive by a moment what was made with them.
class SharedLibrary {
 public:
  /// `what` it is ("NVIDIA driver"), for errors; `todo`: what somebody does who has none. Looked for where the loader
  /// looks, before that in `first`, folders separated by colons, and at last in `more`. Without one: Error(config),
  /// with the loader's words; where a folder has a library that cannot be loaded, with those about that one.
  SharedLibrary(std::initializer_list<const char*> names, std::string what, const char* todo,
                const std::string& first = {}, const std::vector<std::string>& more = {});

  /// Name by which it was opened: a path, where it was found in a folder.
  const std::string& name() const { return name_; }
  /// Handle of dlopen: for code of others that looks functions up itself.
  void* handle() const { return handle_; }
  /// Error(config) where the library has no such function: then it is too old.
  template <class Function>
  void find(Function*& function, const char* symbol) const {
    find_if_there(function, symbol);
    if (function == nullptr) throw_too_old(symbol);
  }
  /// Null where it has none.
  template <class Function>
  void find_if_there(Function*& function, const char* symbol) const {
    function = reinterpret_cast<Function*>(address_of(symbol));
  }

 private:
  void* address_of(const char* symbol) const;
  [[noreturn]] void throw_too_old(const char* symbol) const;

  std::string name_, what_;
  void* handle_ = nullptr;
};

/// Folders of CUDA's libraries besides where the loader looks: below $CUDA_HOME, $CUDA_PATH and /usr/local/cuda, and in
/// the packages of the Python that $VIRTUAL_ENV, $CONDA_PREFIX and $PATH name, in this order. Folders that are there.
std::vector<std::string> cuda_folders();

}  // namespace zs
