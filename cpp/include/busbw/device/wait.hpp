/// Waiting with a way out: every wait ends by arrival, at its deadline, or because somebody gave up, and says which.
#pragma once

#include "busbw/device/target.hpp"

namespace busbw::device {

enum class WaitResult : unsigned char { kArrived, kDeadline, kAborted };
using enum WaitResult;

/// What a thread was doing when it gave up.
enum class Primitive : unsigned char { none, semaphore_wait, barrier_wait, packet_wait, channel_wait, slot_wait, flag_wait, flush_wait, memory_access };

/// Who gave up first and why; in the rank's control memory, read by the host. `state` is written last.
struct alignas(64) Report {
  std::uint32_t state;      ///< 0: nobody gave up; 1: being written; 2: complete. Also the abort word that all waits of the rank look at
  std::uint32_t primitive;  ///< Primitive
  std::uint32_t block;
  std::uint32_t peer;
  std::uint64_t expected;
  std::uint64_t seen;
};

/// When to stop waiting. One a wait; not shared between threads.
class Deadline {
 public:
  /// wait_ns: 0 waits for ever, but for the abort word.
  BUSBW_DEVICE Deadline(Report& report, std::uint64_t wait_ns) : report_(report), wait_ns_(wait_ns) {}

  /// Call between two looks. kArrived means: look again.
  BUSBW_DEVICE WaitResult poll() {
    spin_pause(looks_);
    if (++looks_ % kLooksBetweenChecks != 0 || looks_ < kLooksBeforeChecks) return kArrived;
    if (SystemAtomic<std::uint32_t>(report_.state).load(kRelaxed) != 0) return kAborted;
    if (wait_ns_ == 0) return kArrived;
    const std::uint64_t now = Clock::now_ns();
    if (until_ns_ == 0) until_ns_ = now + wait_ns_;
    return now < until_ns_ ? kArrived : kDeadline;
  }

  /// Writes down who waited for what, unless somebody has before, and so stops all waits of this rank. Returns `why`.
  BUSBW_DEVICE WaitResult give_up(WaitResult why, Primitive primitive, std::uint32_t block, std::uint32_t peer, std::uint64_t expected,
                                  std::uint64_t seen) {
    if (why == kDeadline && SystemAtomic<std::uint32_t>(report_.state).fetch_add(1, kRelaxed) == 0) {
      SystemAtomic<std::uint32_t>(report_.primitive).store(static_cast<std::uint32_t>(primitive), kRelaxed);
      SystemAtomic<std::uint32_t>(report_.block).store(block, kRelaxed);
      SystemAtomic<std::uint32_t>(report_.peer).store(peer, kRelaxed);
      SystemAtomic<std::uint64_t>(report_.expected).store(expected, kRelaxed);
      SystemAtomic<std::uint64_t>(report_.seen).store(seen, kRelaxed);
      SystemAtomic<std::uint32_t>(report_.state).store(kComplete, kRelease);
    }
    return why;
  }

  static constexpr std::uint32_t kComplete = 1u << 31;

 private:
  static constexpr std::uint32_t kLooksBetweenChecks = 32;
  /// Reading a clock takes as long as a hand-over between cores: a wait that ends soon reads none.
  static constexpr std::uint32_t kLooksBeforeChecks = 256;

  Report& report_;
  std::uint64_t wait_ns_;
  std::uint64_t until_ns_ = 0;
  std::uint32_t looks_ = 0;
};

/// Waits until a count that only grows has reached `expected`, by signed distance. Polls relaxed, so the loop drops no cache lines; one acquire
/// load of the same word ends it, if `order` asks for one. One thread calls.
BUSBW_DEVICE WaitResult wait_until(std::uint64_t& word, std::uint64_t expected, Order order, Deadline deadline, Primitive primitive,
                                   std::uint32_t block, std::uint32_t peer) {
  std::uint64_t seen;
  while (static_cast<std::int64_t>((seen = SystemAtomic<std::uint64_t>(word).load(kRelaxed)) - expected) < 0)
    if (const WaitResult stop = deadline.poll(); stop != kArrived) return deadline.give_up(stop, primitive, block, peer, expected, seen);
  if (order == kAcquire) SystemAtomic<std::uint64_t>(word).load(kAcquire);
  return kArrived;
}

}  // namespace busbw::device
