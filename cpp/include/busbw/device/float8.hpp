/// The 8-bit floats of the Open Compute Project's specification (OFP8, revision 1.0), stored as bits, computed with as float.
#pragma once

#include "busbw/device/target.hpp"

namespace busbw::device {

/// A sign, kExponent bits with bias 2^(kExponent-1) - 1, kMantissa bits. e4m3 has no infinity: its largest code but one is 448, its largest NaN.
///
/// From float: to the nearest, ties to even; what is too large, infinity too, becomes the largest finite number (as `cvt.rn.satfinite` of PTX, and so as NCCL's sums).
template <int kExponent, int kMantissa>
struct Float8 {
  static_assert(kExponent + kMantissa == 7);
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr std::uint32_t kNan = 0x7f;
  static constexpr std::uint32_t kLargest = kExponent == 4 ? 0x7e : 0x7b;  ///< 448; 57344

  std::uint8_t bits;

  Float8() = default;
  BUSBW_DEVICE explicit Float8(float value) {
    std::uint32_t word;
    __builtin_memcpy(&word, &value, sizeof word);
    const std::uint32_t sign = word >> 24 & 0x80u, size = word & 0x7fffffffu;
    if (size > 0x7f800000u) {
      bits = static_cast<std::uint8_t>(sign | kNan);
      return;
    }
    int exponent = static_cast<int>(size >> 23) - 127;
    if (exponent < 1 - kBias) exponent = 1 - kBias;  // below, numbers are as far apart as here
    if (exponent > kBias + 1) exponent = kBias + 2;
    float magnitude, per_step;
    const std::uint32_t scale = static_cast<std::uint32_t>(127 + kMantissa - exponent) << 23;
    __builtin_memcpy(&magnitude, &size, sizeof magnitude);
    __builtin_memcpy(&per_step, &scale, sizeof per_step);
    const float steps = magnitude * per_step;  // exact: a power of two
    std::uint32_t code = kLargest;
    if (steps < static_cast<float>(2 << kMantissa)) {
      std::uint32_t whole = static_cast<std::uint32_t>(steps);
      const float rest = steps - static_cast<float>(whole);
      if (rest > 0.5f || (rest == 0.5f && whole % 2 == 1)) ++whole;
      code = (static_cast<std::uint32_t>(exponent + kBias - 1) << kMantissa) + whole;
      if (code > kLargest) code = kLargest;
    }
    bits = static_cast<std::uint8_t>(sign | code);
  }
  BUSBW_DEVICE operator float() const {
    const std::uint32_t code = bits & 0x7fu, mantissa = code & ((1u << kMantissa) - 1u);
    const int exponent = static_cast<int>(code >> kMantissa);
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80u) << 24;
    std::uint32_t word = 0x7fc00000u;
    if (kExponent == 5 && code == 0x7cu) {
      word = 0x7f800000u;
    } else if (code <= kLargest) {
      const float steps = static_cast<float>(exponent ? mantissa + (1u << kMantissa) : mantissa);
      const std::uint32_t scale = static_cast<std::uint32_t>(127 + (exponent ? exponent : 1) - kBias - kMantissa) << 23;
      float step;
      __builtin_memcpy(&step, &scale, sizeof step);
      const float value = steps * step;
      __builtin_memcpy(&word, &value, sizeof word);
    }
    word |= sign;
    float value;
    __builtin_memcpy(&value, &word, sizeof value);
    return value;
  }
};

using Float8E4M3 = Float8<4, 3>;
using Float8E5M2 = Float8<5, 2>;

}  // namespace busbw::device
