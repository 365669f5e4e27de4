#pragma once

/// Numbers in GELU and SiLU, for every back end. The formulas are each back end's own: the CPU's are of vectors, with
/// an e^x of their own for each dtype, and fuse other products, so that the bits differ.
namespace zs {

inline constexpr float kTwoRootTwoOverPi = 1.5957691216057308f;  // 2 sqrt(2 / pi)
inline constexpr float kCubic = 0.044715f;
inline constexpr float kRootHalf = 0.70710678118654752f;      // sqrt(1 / 2)
inline constexpr float kNormalAtZero = 0.39894228040143268f;  // 1 / sqrt(2 pi)
/// Beyond +- this GELU is 0 or x to f32; keeps powers of x finite.
inline constexpr float kMostOfGelu = 20.0f;
/// Bound below which SiLU is taken to be what it is there, -1.4e-33, so that e^-x stays finite.
inline constexpr float kLeastOfSilu = -80.0f;

}  // namespace zs
