/// Units of the simulator: time, rates and work are integers in types of their own, so that order is exact, runs repeat, and a sum with
/// bytes does not compile.
#pragma once

#include <cstdint>

namespace busbw::sim {

/// Simulated time. 2^63 ps is 106 days.
enum class Picoseconds : std::int64_t {};

constexpr std::int64_t count(Picoseconds t) { return static_cast<std::int64_t>(t); }
constexpr Picoseconds operator+(Picoseconds a, Picoseconds b) { return Picoseconds{count(a) + count(b)}; }
constexpr Picoseconds operator-(Picoseconds a, Picoseconds b) { return Picoseconds{count(a) - count(b)}; }
constexpr Picoseconds kNever{INT64_MAX};

/// A rate in 1/1024 byte per second: a 1024th part of a 400 Gb/s link is still known to 2e-11 of itself.
enum class Rate : std::int64_t {};

constexpr std::int64_t count(Rate r) { return static_cast<std::int64_t>(r); }
constexpr std::int64_t kRateUnitsPerByte = 1024;

/// What a rate does in a time: 1/1024 byte/s times 1 ps. Exact for every message below 2^73 bytes.
__extension__ using Work = __int128;

constexpr std::int64_t kPicosecondsPerSecond = 1'000'000'000'000;

constexpr Work work_of(std::int64_t bytes) { return Work{bytes} * kRateUnitsPerByte * kPicosecondsPerSecond; }
constexpr Work operator*(Rate r, Picoseconds t) { return Work{count(r)} * count(t); }

/// How long work takes at a rate, rounded up: a message is never over before its last byte. kNever at rate 0, or beyond 106 days.
constexpr Picoseconds duration(Work work, Rate rate) {
  if (work <= 0) return Picoseconds{0};
  if (count(rate) <= 0) return kNever;
  const Work steps = (work + count(rate) - 1) / count(rate);
  return steps >= Work{INT64_MAX} ? kNever : Picoseconds{static_cast<std::int64_t>(steps)};
}

}  // namespace busbw::sim
