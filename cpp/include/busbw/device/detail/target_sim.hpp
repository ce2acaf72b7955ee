/// The simulated machine as target. Included by target.hpp alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "busbw/device/order.hpp"
#include "busbw/device/sim.hpp"

#define BUSBW_DEVICE inline
#define BUSBW_DEVICE_CALL inline

namespace busbw::device {

/// Where sim::Options say so.
inline constexpr bool kLaunchIsFence = true;
inline constexpr bool kHasMultimem = false;

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

/// Runs as on the CPU, handed to other threads from call to call: nothing may count on one thread having what it had in the call before.
template <class Body>
void for_each_of_thread(std::size_t count, std::uint32_t thread, std::uint32_t threads, Body body) {
  thread = (thread + sim::world->next_call()) % threads;
  const std::size_t last = count * (thread + 1) / threads;
  for (std::size_t i = count * thread / threads; i < last; ++i) body(i);
}

inline constexpr bool kMovesRuns = false;

template <class T>
void copy_each(T* dst, const T* src, std::size_t count, std::uint32_t thread, std::uint32_t threads) {
  for_each_of_thread(count, thread, threads, [&](std::size_t i) { weak_store(dst + i, weak_load(src + i)); });
}

class BlockBarrier {
 public:
  explicit BlockBarrier(std::uint32_t) {}
  void sync() { sim::world->block_barrier(); }
  bool sync_or(bool mine) { return sim::world->block_barrier_or(mine); }
};

/// As on the CPU; that a packet is not overwritten before it is known to be taken, is checked.
inline void store_packet(std::uint64_t* p, std::uint64_t first, std::uint64_t second) {
  sim::world->packet_overwritten(p, 2 * sizeof *p);
  sim::world->atomic_store(p[0], first, kRelaxed);
  sim::world->atomic_store(p[1], second, kRelaxed);
}
inline void load_packet(std::uint64_t* p, std::uint64_t& first, std::uint64_t& second) {
  first = sim::world->atomic_load(p[0], kRelaxed);
  second = sim::world->atomic_load(p[1], kRelaxed);
}
inline void packet_taken(const std::uint64_t* p) { sim::world->packet_taken(p, 2 * sizeof *p); }

/// That 128 bytes are one is not shown: the flag is a release here, which the words are covered by.
inline void store_line(std::uint64_t* p, const std::uint64_t* words, std::uint64_t flag) {
  for (int i = 0; i < 15; ++i) weak_store(p + i, words[i]);
  sim::world->atomic_store(p[15], flag, kRelease);
}
inline bool load_line(std::uint64_t* p, std::uint64_t* words, std::uint64_t flag) {
  if (sim::world->atomic_load(p[15], kAcquire) != flag) return false;
  for (int i = 0; i < 15; ++i) words[i] = weak_load(p + i);
  return true;
}
inline void prefetch(const void*) {}

inline void spin_pause(std::uint32_t) { sim::world->spin(); }

struct Clock {
  static std::uint64_t now_ns() { return sim::world->now(); }
};

}  // namespace busbw::device
