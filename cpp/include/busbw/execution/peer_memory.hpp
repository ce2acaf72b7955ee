/// Private memory of other processes of this machine, read and written by the system (cross-memory attach), or directly if it is this process's.
#pragma once

#include <sys/types.h>
#if defined(__linux__)
#include <sys/uio.h>
#endif
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "busbw/device/block.hpp"
#include "busbw/device/window.hpp"

namespace busbw::execution {

/// What device/kernels/attached.hpp calls Reach. One thread a block.
class PeerMemory {
 public:
  /// The process that a rank lives in, and whether it is this one: processes of two containers may have the same number.
  void set_process(std::uint32_t rank, pid_t process, bool is_this) {
    process_[rank] = process;
    is_this_[rank] = is_this;
  }

  bool get(const device::Block&, std::byte* to, std::uint32_t peer, std::uint64_t address, std::size_t bytes) const {
    return move(peer, address, to, bytes, false);
  }
  bool put(const device::Block&, std::uint32_t peer, std::uint64_t address, const std::byte* from, std::size_t bytes) const {
    return move(peer, address, const_cast<std::byte*>(from), bytes, true);
  }

 private:
  bool move(std::uint32_t peer, std::uint64_t address, std::byte* here, std::size_t bytes, bool away) const {
    if (is_this_[peer]) {
      auto* const there = reinterpret_cast<std::byte*>(address);
      std::memcpy(away ? there : here, away ? here : there, bytes);
      return true;
    }
#if defined(__linux__)
    while (bytes > 0) {
      const iovec mine{here, bytes}, theirs{reinterpret_cast<void*>(address), bytes};
      const ssize_t moved = away ? ::process_vm_writev(process_[peer], &mine, 1, &theirs, 1, 0) : ::process_vm_readv(process_[peer], &mine, 1, &theirs, 1, 0);
      if (moved <= 0) return false;
      here += moved;
      address += static_cast<std::uint64_t>(moved);
      bytes -= static_cast<std::size_t>(moved);
    }
    return true;
#else
    return false;
#endif
  }

  pid_t process_[device::kMostRanks] = {};
  bool is_this_[device::kMostRanks] = {};
};

}  // namespace busbw::execution
