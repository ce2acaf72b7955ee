/// Memory that all ranks map: never a bare pointer of a peer, always a place in a window and a rank.
#pragma once

#include "busbw/device/target.hpp"

namespace busbw::device {

inline constexpr std::uint32_t kMostRanks = 64;
/// Of a place in a window that vectors are moved to and from.
inline constexpr std::size_t kVectorBytes = 16;

/// Memory of the same size on every rank. Passed by value, or by `__grid_constant__` on CUDA: base is indexed at run time.
struct Window {
  std::byte* base[kMostRanks];  ///< as this rank maps it, by rank
  std::size_t bytes;
};

/// A place that is the same on all ranks.
template <class T>
class SymPtr {
 public:
  BUSBW_DEVICE SymPtr(const Window& window, std::size_t offset_bytes) : window_(&window), offset_(offset_bytes) {}
  /// It on a rank.
  BUSBW_DEVICE T* at(std::uint32_t rank) const { return reinterpret_cast<T*>(window_->base[rank] + offset_); }
  BUSBW_DEVICE SymPtr operator+(std::size_t count) const { return SymPtr(*window_, offset_ + count * sizeof(T)); }

 private:
  const Window* window_;
  std::size_t offset_;
};

}  // namespace busbw::device
