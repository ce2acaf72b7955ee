/// Random numbers without state: a hash of what they are for, so that the same seed gives the same numbers in whatever order they are drawn.
#pragma once

#include <cstdint>

namespace busbw::sim::packet {

/// splitmix64's finaliser. Source: S. Vigna, splitmix64.c (public domain). busbw.hardware.routing.ecmp uses the same.
constexpr std::uint64_t mixed(std::uint64_t value) {
  value += 0x9E3779B97F4A7C15ULL;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31);
}

/// A number below `bound` from 64 random bits, by the high half of a product.
constexpr std::uint32_t below(std::uint64_t bits, std::uint32_t bound) {
  return static_cast<std::uint32_t>(((bits >> 32) * bound) >> 32);
}

}  // namespace busbw::sim::packet
