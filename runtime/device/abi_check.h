#pragma once

#include <type_traits>

/// Checks for files that nvcc compiles: a function of a table of ours is called as the one of NVIDIA's header is.
namespace zs::abi {

/// A type of ours that stands for one of theirs; specialised where there is one.
template <class Ours, class Theirs>
constexpr bool kStandsFor = false;

/// True if both types look alike to a caller: int for an enumeration, void* for any pointer.
template <class Ours, class Theirs>
constexpr bool are_alike() {
  if constexpr (std::is_same_v<Ours, Theirs> || (std::is_same_v<Ours, void*> && std::is_pointer_v<Theirs>)) {
    return true;
  } else if constexpr (std::is_same_v<Ours, int> && std::is_enum_v<Theirs>) {
    return sizeof(Theirs) == sizeof(int);
  } else if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    using To = std::remove_pointer_t<Ours>;
    using From = std::remove_pointer_t<Theirs>;
    return std::is_const_v<To> == std::is_const_v<From> &&
           are_alike<std::remove_const_t<To>, std::remove_const_t<From>>();
  } else {
    return kStandsFor<Ours, Theirs>;
  }
}

template <class Ours, class Theirs>
constexpr bool kSame = false;
template <class OurResult, class... Ours, class TheirResult, class... Theirs>
constexpr bool kSame<OurResult (*)(Ours...), TheirResult (*)(Theirs...)> = [] {
  if constexpr (sizeof...(Ours) == sizeof...(Theirs))
    return are_alike<OurResult, TheirResult>() && (are_alike<Ours, Theirs>() && ...);
  return false;
}();

}  // namespace zs::abi
