#pragma once

#include <cstddef>
#include <tuple>

namespace zs {

/// Parameters of a member function, where it is neither overloaded nor a template.
template <class Function>
struct ParametersOf;
template <class Result, class Class, class... Parameters>
struct ParametersOf<Result (Class::*)(Parameters...)> {
  using Types = std::tuple<Parameters...>;
};
template <class Result, class Class, class... Parameters>
struct ParametersOf<Result (Class::*)(Parameters...) const> {
  using Types = std::tuple<Parameters...>;
};

/// Type of parameter `i` of a layer's forward: what braces in its place make.
template <class Layer, std::size_t i>
using ForwardArgument = std::tuple_element_t<i, typename ParametersOf<decltype(&Layer::forward)>::Types>;

}  // namespace zs
