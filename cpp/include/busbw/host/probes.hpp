/// Probes of a machine: how fast its cores copy, add and read memory, and how soon a cache line that one stores is seen by another.
/// Threads are bound to cores where the system lets them be (Linux); a core below 0 leaves a thread where it is.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#ifdef __linux__
#include <pthread.h>
#include <sched.h>
#endif

namespace busbw::host {

namespace detail {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point begun) { return std::chrono::duration<double>(Clock::now() - begun).count(); }

/// Whether the calling thread runs on this core from now on.
inline bool bind_to(int core) {
#ifdef __linux__
  if (core < 0) return true;
  if (core >= CPU_SETSIZE) return false;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  return pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0;
#else
  return core < 0;
#endif
}

/// Nobody leaves before all have come. Yields: there may be more threads than cores.
class Meeting {
 public:
  explicit Meeting(int threads) : threads_(threads) {}
  void wait() {
    const int round = round_.load(std::memory_order_acquire);
    if (come_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      come_.store(0, std::memory_order_relaxed);
      round_.fetch_add(1, std::memory_order_release);
      return;
    }
    while (round_.load(std::memory_order_acquire) == round) std::this_thread::yield();
  }

 private:
  const int threads_;
  std::atomic<int> come_{0};
  std::atomic<int> round_{0};
};

/// Keeps a result that nothing else uses from being optimised away.
template <typename T>
inline void keep(const T& value) {
  asm volatile("" : : "g"(&value) : "memory");
}

/// Runs body(thread) on a thread for each core, bound. Throws std::runtime_error if a thread could not be bound.
template <typename Body>
void on_cores(const std::vector<int>& cores, Body body) {
  std::atomic<bool> bound{true};
  std::vector<std::thread> threads;
  threads.reserve(cores.size());
  for (std::size_t i = 0; i < cores.size(); ++i)
    threads.emplace_back([&, i] {
      if (!bind_to(cores[i])) bound = false;
      body(static_cast<int>(i));
    });
  for (auto& thread : threads) thread.join();
  if (!bound) throw std::runtime_error("a thread could not be bound to its core");
}

/// Bytes per second of the fastest of some rounds, in which every thread does body(its own arrays) at the same time.
template <typename Body>
double rate(std::size_t doubles, int arrays, const std::vector<int>& cores, int rounds, double bytes_of_a_thread, Body body) {
  const int threads = static_cast<int>(cores.size());
  Meeting meeting(threads);
  std::vector<double> took(cores.size() * static_cast<std::size_t>(rounds), 0.0);
  on_cores(cores, [&](int thread) {
    std::vector<std::vector<double>> own(static_cast<std::size_t>(arrays), std::vector<double>(doubles, 1.0));  // first touched here
    for (int round = -1; round < rounds; ++round) {
      meeting.wait();
      const auto begun = Clock::now();
      body(own);
      const double here = seconds_since(begun);
      if (round >= 0) took[static_cast<std::size_t>(round * threads + thread)] = here;
      meeting.wait();
    }
    keep(own);
  });
  double best = 0.0;
  for (int round = 0; round < rounds; ++round) {
    const auto first = took.begin() + round * threads;
    best = std::max(best, bytes_of_a_thread * threads / std::max(*std::max_element(first, first + threads), 1e-9));
  }
  return best;
}

}  // namespace detail

/// Bytes per second that threads on these cores copy together, each between two arrays of its own of so many bytes. A byte that is read and
/// stored counts once. Throws std::invalid_argument without a core, a round or a byte.
inline double copy_rate(std::size_t bytes, const std::vector<int>& cores, int rounds) {
  if (cores.empty() || rounds < 1 || bytes < sizeof(double)) throw std::invalid_argument("a core, a round and eight bytes are needed");
  const std::size_t doubles = bytes / sizeof(double);
  return detail::rate(doubles, 2, cores, rounds, static_cast<double>(doubles * sizeof(double)), [](auto& arrays) {
    std::memcpy(arrays[1].data(), arrays[0].data(), arrays[0].size() * sizeof(double));
    detail::keep(arrays[1][0]);
  });
}

/// Bytes per second of a = b + 3 c on arrays of so many bytes; three arrays count, as in STREAM's triad (McCalpin, 1995).
inline double triad_rate(std::size_t bytes, const std::vector<int>& cores, int rounds) {
  if (cores.empty() || rounds < 1 || bytes < sizeof(double)) throw std::invalid_argument("a core, a round and eight bytes are needed");
  const std::size_t doubles = bytes / sizeof(double);
  return detail::rate(doubles, 3, cores, rounds, 3.0 * static_cast<double>(doubles * sizeof(double)), [](auto& arrays) {
    double* a = arrays[0].data();
    const double* b = arrays[1].data();
    const double* c = arrays[2].data();
    for (std::size_t i = 0, n = arrays[0].size(); i < n; ++i) a[i] = b[i] + 3.0 * c[i];
    detail::keep(a[0]);
  });
}

/// Seconds that a cache line takes from one core to the other and back, in the fastest of some batches of so many trips.
/// Each waits by reading; it yields after about a thousand looks, since both may have one core.
inline double line_round_trip(int first, int second, int trips, int batches) {
  if (trips < 1 || batches < 1) throw std::invalid_argument("a trip and a batch are needed");
  struct alignas(128) Line {
    std::atomic<std::uint64_t> value{0};
  };
  Line there, back;
  double best = 1e9;
  const auto wait_for = [](std::atomic<std::uint64_t>& value, std::uint64_t due) {
    for (int looks = 0; value.load(std::memory_order_acquire) != due;)
      if (++looks % 1024 == 0) std::this_thread::yield();
  };
  detail::on_cores({first, second}, [&](int thread) {
    std::uint64_t number = 0;
    for (int batch = 0; batch < batches; ++batch) {
      const auto begun = detail::Clock::now();
      for (int trip = 0; trip < trips; ++trip) {
        ++number;
        if (thread == 0) {
          there.value.store(number, std::memory_order_release);
          wait_for(back.value, number);
        } else {
          wait_for(there.value, number);
          back.value.store(number, std::memory_order_release);
        }
      }
      if (thread == 0) best = std::min(best, detail::seconds_since(begun) / trips);
    }
  });
  return best;
}

/// How one core reaches memory that another has touched first, so that it lies at that one's NUMA node: bytes per second of reading it in
/// order, and seconds of a read that must wait for the one before it (a chase of pointers in random order, a cache line apart).
struct Reach {
  double read_bytes_per_s;
  double latency_s;
};

inline Reach reach(int core, int memory_core, std::size_t bytes, int rounds) {
  constexpr std::size_t kLine = 64 / sizeof(std::size_t);
  const std::size_t lines = bytes / 64;
  if (lines < 2 || rounds < 1) throw std::invalid_argument("two cache lines and a round are needed");
  std::unique_ptr<std::size_t[]> memory(new std::size_t[lines * kLine]);  // not touched yet
  detail::on_cores({memory_core}, [&](int) {
    std::vector<std::size_t> order(lines);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::mt19937_64 random(1);
    std::shuffle(order.begin() + 1, order.end(), random);
    std::memset(memory.get(), 0, lines * 64);
    for (std::size_t i = 0; i < lines; ++i) memory[order[i] * kLine] = order[(i + 1) % lines] * kLine;
  });
  Reach found{0.0, 1e9};
  detail::on_cores({core}, [&](int) {
    for (int round = 0; round < rounds; ++round) {
      auto begun = detail::Clock::now();
      std::size_t sums[8] = {};
      for (std::size_t i = 0; i < lines * kLine; i += kLine)
        for (std::size_t j = 0; j < kLine; ++j) sums[j] += memory[i + j];
      detail::keep(sums);
      found.read_bytes_per_s = std::max(found.read_bytes_per_s, static_cast<double>(lines * 64) / std::max(detail::seconds_since(begun), 1e-9));
      const std::size_t hops = std::min<std::size_t>(lines, std::size_t{1} << 18);
      std::size_t at = 0;
      begun = detail::Clock::now();
      for (std::size_t hop = 0; hop < hops; ++hop) at = memory[at];
      detail::keep(at);
      found.latency_s = std::min(found.latency_s, detail::seconds_since(begun) / static_cast<double>(hops));
    }
  });
  return found;
}

}  // namespace busbw::host
