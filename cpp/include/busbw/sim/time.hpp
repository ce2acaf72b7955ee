/// Simulated time: integer picoseconds in a type of its own. Order is exact, runs repeat, and a sum with bytes does not compile.
#pragma once

#include <cstdint>
#include <limits>

namespace busbw::sim {

enum class Picoseconds : std::int64_t {};  // 2^63 ps is 106 days

inline constexpr Picoseconds kNever{std::numeric_limits<std::int64_t>::max()};

constexpr std::int64_t count(Picoseconds time) { return static_cast<std::int64_t>(time); }
constexpr Picoseconds operator+(Picoseconds a, Picoseconds b) { return Picoseconds{count(a) + count(b)}; }
constexpr Picoseconds operator-(Picoseconds a, Picoseconds b) { return Picoseconds{count(a) - count(b)}; }
constexpr Picoseconds& operator+=(Picoseconds& a, Picoseconds b) { return a = a + b; }
constexpr Picoseconds& operator-=(Picoseconds& a, Picoseconds b) { return a = a - b; }
constexpr Picoseconds operator*(Picoseconds a, std::int64_t times) { return Picoseconds{count(a) * times}; }

}  // namespace busbw::sim
