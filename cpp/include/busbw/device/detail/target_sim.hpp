/// The simulated machine as target. Included by target.hpp alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "busbw/device/order.hpp"
#include "busbw/device/sim.hpp"

#define BUSBW_DEVICE inline

namespace busbw::device {

template <class T>
class SystemAtomic {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);

 public:
  explicit SystemAtomic(T& word) : word_(word) {}
  T load(Order order) const { return sim::world->atomic_load(word_, order); }
  void store(T value, Order order) const { sim::world->atomic_store(word_, value, order); }
  T fetch_add(T value, Order order) const { return sim::world->atomic_fetch_add(word_, value, order); }

 private:
  T& word_;
};

template <class T>
T weak_load(const T* p) {
  sim::world->weak_read(p, sizeof(T));
  return *p;
}
template <class T>
void weak_store(T* p, T value) {
  sim::world->weak_write(p, sizeof(T));
  *p = value;
}

/// As on the CPU.
template <class Body>
void for_each_of_thread(std::size_t count, std::uint32_t thread, std::uint32_t threads, Body body) {
  const std::size_t last = count * (thread + 1) / threads;
  for (std::size_t i = count * thread / threads; i < last; ++i) body(i);
}

inline constexpr bool kMovesRuns = false;

class BlockBarrier {
 public:
  explicit BlockBarrier(std::uint32_t) {}
  void sync() { sim::world->block_barrier(); }
};

inline void prefetch(const void*) {}

inline void spin_pause(std::uint32_t) { sim::world->spin(); }

struct Clock {
  static std::uint64_t now_ns() { return sim::world->now(); }
};

}  // namespace busbw::device
