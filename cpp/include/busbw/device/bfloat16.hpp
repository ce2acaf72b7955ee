/// bfloat16 where the compiler has no such type: the upper half of a float.
#pragma once

#include "busbw/device/target.hpp"

namespace busbw::device {

struct BFloat16 {
  std::uint16_t bits;

  BFloat16() = default;
  /// To the nearest, ties to even; NaN stays NaN.
  BUSBW_DEVICE explicit BFloat16(float value) {
    std::uint32_t word;
    __builtin_memcpy(&word, &value, sizeof word);
    const bool is_nan = (word & 0x7fffffffu) > 0x7f800000u;
    bits = static_cast<std::uint16_t>(is_nan ? (word >> 16) | 0x40u : (word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
  }
  BUSBW_DEVICE operator float() const {
    const std::uint32_t word = static_cast<std::uint32_t>(bits) << 16;
    float value;
    __builtin_memcpy(&value, &word, sizeof value);
    return value;
  }
};

}  // namespace busbw::device
