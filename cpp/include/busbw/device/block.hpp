/// The threads that run one piece of a kernel together.
#pragma once

#include "busbw/device/wait.hpp"

namespace busbw::device {

/// A part [first, last) of a whole.
struct Share {
  std::size_t first, last;
  BUSBW_DEVICE std::size_t size() const { return last - first; }
};

/// The part-th of `parts` shares of `count`, in whole `grain`s but for the end: sizes differ by at most one grain.
BUSBW_DEVICE Share share_of(std::size_t count, std::size_t parts, std::size_t part, std::size_t grain) {
  if (parts == 1) return {0, count};  // no division, which takes as long as a small message's copy
  const std::size_t grains = (count + grain - 1) / grain;
  const std::size_t each = grains / parts, more = grains % parts;
  const std::size_t first = (part * each + (part < more ? part : more)) * grain;
  const std::size_t last = first + (each + (part < more ? 1 : 0)) * grain;
  return {first < count ? first : count, last < count ? last : count};
}

/// A thread's view of its block. Every thread has its own; all of them make the same calls.
struct Block {
  std::uint32_t block, blocks;    ///< this one, and how many the rank has
  std::uint32_t thread, threads;  ///< this one, and how many the block has
  BlockBarrier* barrier;

  /// All threads call. What one did before it, the others see after it.
  BUSBW_DEVICE void sync() const { barrier->sync(); }
  /// The same; all threads get the same answer: kArrived, or that one of them gave up.
  BUSBW_DEVICE WaitResult agreed(WaitResult mine) const {
    if (!barrier->sync_or(mine != kArrived)) return kArrived;
    return mine != kArrived ? mine : kAborted;
  }
};

}  // namespace busbw::device
