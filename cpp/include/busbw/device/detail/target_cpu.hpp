/// The CPU as target: threads or processes over shared memory. Included by target.hpp alone.
///
/// Order stands on the word itself, not on fences: ThreadSanitizer does not know fences, and would report correct code.
#pragma once

#include <sched.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "busbw/device/detail/reduce_cpu.hpp"
#include "busbw/device/order.hpp"

#define BUSBW_DEVICE inline
#define BUSBW_DEVICE_CALL inline

namespace busbw::device {

constexpr std::memory_order std_order(Order order) {
  return order == Order::relaxed ? std::memory_order_relaxed
         : order == Order::acquire ? std::memory_order_acquire
                                   : std::memory_order_release;
}

/// Nothing stands between two calls of a kernel here.
inline constexpr bool kLaunchIsFence = false;
inline constexpr bool kHasMultimem = false;

template <class T>
class SystemAtomic {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);

 public:
  explicit SystemAtomic(T& word) : word_(word) {}
  T load(Order order) const { return std::atomic_ref<T>(word_).load(std_order(order)); }
  void store(T value, Order order) const { std::atomic_ref<T>(word_).store(value, std_order(order)); }
  T fetch_add(T value, Order order) const { return std::atomic_ref<T>(word_).fetch_add(value, std_order(order)); }

 private:
  T& word_;
};

template <class T>
T weak_load(const T* p) {
  return *p;
}
template <class T>
void weak_store(T* p, T value) {
  *p = value;
}

/// A thread takes one run, so that its caches and the vector unit see it whole.
template <class Body>
void for_each_of_thread(std::size_t count, std::uint32_t thread, std::uint32_t threads, Body body) {
  const std::size_t last = count * (thread + 1) / threads;
  for (std::size_t i = count * thread / threads; i < last; ++i) body(i);
}

/// A thread's run of a move or a reduction goes to the library and to loops that the compiler makes for several kinds of vectors.
inline constexpr bool kMovesRuns = true;

/// to[i] = from[i]. streamed: past the caches, so that no line is read before it is written.
template <class T>
void move_run(T* to, const T* from, std::size_t count, bool streamed) {
  const std::size_t bytes = count * sizeof(T);
#if defined(__SSE2__)
  if (streamed && reinterpret_cast<std::uintptr_t>(to) % 16 == 0) {
    const auto* const source = reinterpret_cast<const std::byte*>(from);
    auto* const target = reinterpret_cast<std::byte*>(to);
    std::size_t done = 0;
    for (; done + 64 <= bytes; done += 64) {
      const auto load = [&](std::size_t at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + done + at)); };
      const __m128i a = load(0), b = load(16), c = load(32), d = load(48);
      auto* const line = reinterpret_cast<__m128i*>(target + done);
      _mm_stream_si128(line, a);
      _mm_stream_si128(line + 1, b);
      _mm_stream_si128(line + 2, c);
      _mm_stream_si128(line + 3, d);
    }
    _mm_sfence();  // before any signal that follows
    __builtin_memcpy(target + done, source + done, bytes - done);
    return;
  }
#endif
  __builtin_memcpy(to, from, bytes);
}

/// Asks for a line that is soon read.
inline void prefetch(const void* line) { __builtin_prefetch(line); }

using detail::AnyOp;
using detail::kAnyOp;
using detail::reduce_run;

/// Looks at a word before a thread gives its core away. About 20 us of pausing, a hundred times a hand-over between cores. A guess; the host
/// lowers it where there are more ranks than cores, which must let each other run.
inline std::atomic<std::uint32_t> looks_before_yield{400};

/// The threads of a block meet here. One a block, in memory that all of them see.
class BlockBarrier {
 public:
  explicit BlockBarrier(std::uint32_t threads) : threads_(threads) {}

  void sync() {
    if (threads_ == 1) return;
    const std::uint32_t turn = turn_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      turn_.store(turn + 1, std::memory_order_release);
      return;
    }
    for (std::uint32_t spins = 0; turn_.load(std::memory_order_acquire) == turn; ++spins) pause(spins);
  }

  /// sync(), and whether any thread of the block said so.
  bool sync_or(bool mine) {
    if (threads_ == 1) return mine;
    const std::uint32_t turn = turn_.load(std::memory_order_relaxed);
    if (mine) any_[turn & 1].store(true, std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      any_[(turn + 1) & 1].store(false, std::memory_order_relaxed);  // of the turn before, which all have left
      arrived_.store(0, std::memory_order_relaxed);
      turn_.store(turn + 1, std::memory_order_release);
    } else {
      for (std::uint32_t spins = 0; turn_.load(std::memory_order_acquire) == turn; ++spins) pause(spins);
    }
    return any_[turn & 1].load(std::memory_order_relaxed);
  }

  static void pause(std::uint32_t turn) {
    if (turn < kLooksAtOnce) return;
    if (turn < looks_before_yield.load(std::memory_order_relaxed)) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#elif defined(__aarch64__)
      asm volatile("yield");
#endif
    } else {
      sched_yield();
    }
  }

 private:
  /// A hand-over between cores takes about as long; a pause may last 140 cycles (Intel's optimization reference manual, Skylake and later).
  static constexpr std::uint32_t kLooksAtOnce = 64;

  std::uint32_t threads_;
  std::atomic<std::uint32_t> arrived_{0};
  std::atomic<std::uint32_t> turn_{0};
  std::atomic<bool> any_[2]{};
};

/// Two words of a packet. Each is stored and loaded whole, without order; the pair is not.
inline void store_packet(std::uint64_t* p, std::uint64_t first, std::uint64_t second) {
  std::atomic_ref<std::uint64_t>(p[0]).store(first, std::memory_order_relaxed);
  std::atomic_ref<std::uint64_t>(p[1]).store(second, std::memory_order_relaxed);
}
inline void load_packet(std::uint64_t* p, std::uint64_t& first, std::uint64_t& second) {
  first = std::atomic_ref<std::uint64_t>(p[0]).load(std::memory_order_relaxed);
  second = std::atomic_ref<std::uint64_t>(p[1]).load(std::memory_order_relaxed);
}
/// Says that the packet's words were what this thread waited for. For the simulated memory.
inline void packet_taken(const std::uint64_t*) {}

/// 15 words and a flag behind them, as one: who sees the flag sees the words.
inline void store_line(std::uint64_t* p, const std::uint64_t* words, std::uint64_t flag) {
  for (int i = 0; i < 15; ++i) p[i] = words[i];
  std::atomic_ref<std::uint64_t>(p[15]).store(flag, std::memory_order_release);
}
/// False: the flag is not there yet.
inline bool load_line(std::uint64_t* p, std::uint64_t* words, std::uint64_t flag) {
  if (std::atomic_ref<std::uint64_t>(p[15]).load(std::memory_order_acquire) != flag) return false;
  for (int i = 0; i < 15; ++i) words[i] = p[i];
  return true;
}

/// Between two looks at a word; turn counts the looks. After some it yields the core.
inline void spin_pause(std::uint32_t turn) { BlockBarrier::pause(turn); }

struct Clock {
  static std::uint64_t now_ns() {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
  }
};

}  // namespace busbw::device
