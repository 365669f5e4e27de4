#pragma once

#include <initializer_list>
#include <string>

namespace zs {

/// A library of somebody else, opened while the program runs: the first of `names` that there is. It stays loaded: NVIDIA's have threads
/// that outlive by a moment what was made with them.
class SharedLibrary {
 public:
  /// `what` it is ("NVIDIA driver"), for errors; `todo`: what somebody does who has none. Without one: Error(config).
  SharedLibrary(std::initializer_list<const char*> names, std::string what, const char* todo);

  const std::string& name() const { return name_; }
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

}  // namespace zs
