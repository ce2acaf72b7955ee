/// Signals from one rank to another.
#pragma once

#include "busbw/device/wait.hpp"

namespace busbw::device {

/// A counter that one rank adds to and one rank waits on. Scope: system. It only grows: nothing is reset between launches.
/// What a rank wrote before signal() is visible to the peer's thread once wait() has returned kArrived; for other threads of a block, a
/// block barrier before signal() and one after wait() carry it on.
struct Semaphore {
  std::uint64_t* arrivals;  ///< in the waiter's memory, mapped by the signaller; 8-byte aligned
  std::uint64_t* taken;     ///< signals that the waiter has taken; its own memory, one thread's

  /// One thread calls. Order: release.
  BUSBW_DEVICE void signal() const { SystemAtomic<std::uint64_t>(*arrivals).fetch_add(1, kRelease); }

  /// Takes one signal. One thread calls.
  BUSBW_DEVICE WaitResult wait(Deadline deadline, Primitive primitive, std::uint32_t block, std::uint32_t peer) const {
    const std::uint64_t expected = *taken + 1;
    const WaitResult result = wait_until(*arrivals, expected, kAcquire, deadline, primitive, block, peer);
    if (result == kArrived) *taken = expected;
    return result;
  }
};

}  // namespace busbw::device
