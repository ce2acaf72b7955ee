/// One rank on the CPU, a block of one thread: which kernel a call runs, by size and by where its memory lies.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "busbw/device/bfloat16.hpp"
#include "busbw/device/float8.hpp"
#include "busbw/device/kernels/all_reduce.hpp"
#include "busbw/device/kernels/attached.hpp"
#include "busbw/device/kernels/chained.hpp"
#include "busbw/device/kernels/piped.hpp"
#include "busbw/execution/peer_memory.hpp"

namespace busbw::execution {

using device::AnyOp;
using device::WaitResult;

enum class Dtype : unsigned char { float16, bfloat16, float32, float64, int8, uint8, int32, uint32, int64, uint64, float8_e4m3, float8_e5m2 };
enum class Operation : unsigned char { sum, prod, min, max, avg };

constexpr std::size_t bytes_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::int8:
    case Dtype::uint8:
    case Dtype::float8_e4m3:
    case Dtype::float8_e5m2: return 1;
    case Dtype::float16:
    case Dtype::bfloat16: return 2;
    case Dtype::float32:
    case Dtype::int32:
    case Dtype::uint32: return 4;
    default: return 8;
  }
}

/// A type, an operation, and what they become: the loop that combines two runs, and the one that makes an average of a sum.
struct Reduction {
  AnyOp op;
  std::size_t element_bytes;
  std::uint32_t kind = 0;  ///< type and operation as a number
  void (*divide)(void* values, std::size_t count, std::uint32_t ranks);  ///< nullptr unless avg
  /// all_reduce_piped of this type and operation: where a message is small, a call through a pointer for the loop costs a sixth of the whole (measured).
  WaitResult (*all_reduce_piped)(const device::Pipes&, device::BlockBarrier&, const void* in, void* out, std::size_t count, device::Strips);
};

namespace detail {

/// avg is the sum over the number of ranks, as NCCL has it: integers are divided as integers.
template <class T>
void divide(void* values, std::size_t count, std::uint32_t ranks) {
  T* const value = static_cast<T*>(values);
  for (std::size_t i = 0; i < count; ++i) {
    if constexpr (sizeof(T) == 2 || std::is_class_v<T>)
      value[i] = static_cast<T>(static_cast<float>(value[i]) / static_cast<float>(ranks));
    else
      value[i] = static_cast<T>(value[i] / static_cast<T>(ranks));
  }
}

template <class T, class Op>
WaitResult piped(const device::Pipes& pipes, device::BlockBarrier& barrier, const void* in, void* out, std::size_t count, device::Strips how) {
  return device::all_reduce_piped(pipes, device::Block{0, 1, 0, 1, &barrier}, static_cast<const T*>(in), static_cast<T*>(out), count, Op{}, how);
}

template <class T>
Reduction reduction_of(Operation operation) {
  switch (operation) {
    case Operation::prod: return {device::kAnyOp<T, device::Prod>, sizeof(T), 0, nullptr, &piped<T, device::Prod>};
    case Operation::min: return {device::kAnyOp<T, device::Min>, sizeof(T), 0, nullptr, &piped<T, device::Min>};
    case Operation::max: return {device::kAnyOp<T, device::Max>, sizeof(T), 0, nullptr, &piped<T, device::Max>};
    default: return {device::kAnyOp<T, device::Sum>, sizeof(T), 0, operation == Operation::avg ? &divide<T> : nullptr, &piped<T, device::Sum>};
  }
}

/// A number that another process has by chance only.
inline std::uint64_t process_token() {
  static const std::uint64_t token = [] {
    std::random_device entropy;
    return (static_cast<std::uint64_t>(entropy()) << 32) | entropy();
  }();
  return token;
}

/// Of a core's second-level cache; 0 where the system does not say. An eighth of it holds what is read of peers before it is added: in a call of
/// 512 KiB on two ranks strips of 64 KiB take 35 us, of 128 KiB 32, of 256 KiB 31, as each costs two system calls (2 MiB of cache).
inline std::size_t second_level_bytes() {
#if defined(_SC_LEVEL2_CACHE_SIZE)
  const long found = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
  return found > 0 ? static_cast<std::size_t>(found) : 0;
#else
  return 0;
#endif
}

inline Reduction unnumbered(Dtype dtype, Operation operation) {
  if (operation == Operation::avg && (dtype == Dtype::float8_e4m3 || dtype == Dtype::float8_e5m2))
    throw std::invalid_argument("there is no average of float8: divide the sum");
  switch (dtype) {
    case Dtype::float16: return reduction_of<_Float16>(operation);
    case Dtype::bfloat16: return reduction_of<device::BFloat16>(operation);
    case Dtype::float32: return reduction_of<float>(operation);
    case Dtype::float64: return reduction_of<double>(operation);
    case Dtype::int8: return reduction_of<std::int8_t>(operation);
    case Dtype::uint8: return reduction_of<std::uint8_t>(operation);
    case Dtype::int32: return reduction_of<std::int32_t>(operation);
    case Dtype::uint32: return reduction_of<std::uint32_t>(operation);
    case Dtype::int64: return reduction_of<std::int64_t>(operation);
    case Dtype::uint64: return reduction_of<std::uint64_t>(operation);
    case Dtype::float8_e4m3: return reduction_of<device::Float8E4M3>(operation);
    case Dtype::float8_e5m2: return reduction_of<device::Float8E5M2>(operation);
  }
  throw std::invalid_argument("no such type");
}

}  // namespace detail

inline Reduction reduction_of(Dtype dtype, Operation operation) {
  Reduction out = detail::unnumbered(dtype, operation);
  out.kind = static_cast<std::uint32_t>(dtype) << 8 | static_cast<std::uint32_t>(operation);
  return out;
}

/// Sizes, in bytes, from which another kernel is the faster one; measured on two cores of an Intel Xeon (Sapphire Rapids) with
/// `python -m benchmarks execute --only X1 X2 X3`. The same on all ranks.
struct Thresholds {
  std::size_t window = 512;                   ///< all_reduce on a window: shards in place, not pipes
  std::size_t attached_reduce = 8 << 10;      ///< all_reduce: reads the peers' memory, if that can be done
  std::size_t attached_broadcast = 10 << 10;  ///< broadcast
  std::size_t attached = 8 << 10;             ///< the others
  std::size_t chained = 8 << 10;              ///< all_reduce of 3, 4 and 8 ranks on two cores: from there mostly 0.6 to 0.95 of the others' time
  std::size_t parts = 64 << 10;               ///< all_reduce by pipes: each adds up a part
  std::size_t streamed = 32 << 20;            ///< stores go past the caches
  std::size_t strip = 64 << 10;               ///< that is read from a peer and added while it is in the second-level cache: at least
  std::size_t turned = 512 << 10;             ///< of what calls move by turns from the front and from the back
  std::size_t least_strip = 4096;             ///< of a pipe
};

class CpuRank {
 public:
  /// control: each rank's control window, zeros at first, of control_bytes. wait_s: 0 waits for ever.
  CpuRank(std::uint32_t rank, const std::vector<std::byte*>& control, std::size_t cell_bytes, double wait_s) {
    const auto ranks = static_cast<std::uint32_t>(control.size());
    if (ranks > device::kMostRanks) throw std::invalid_argument("more ranks than a window has places for");
    if (rank >= ranks) throw std::invalid_argument("no such rank");
    comm_ = {rank, ranks, layout_of(ranks), {}, static_cast<std::uint64_t>(std::max(0.0, wait_s) * 1e9)};
    pipe_layout_ = pipe_layout_of(ranks, cell_bytes);
    for (std::uint32_t i = 0; i < ranks; ++i) comm_.control.base[i] = control[i];
    comm_.control.bytes = pipe_layout_.end();
  }
  CpuRank(const CpuRank&) = delete;
  CpuRank& operator=(const CpuRank&) = delete;

  static std::size_t control_bytes(std::uint32_t ranks, std::size_t cell_bytes) {
    if (cell_bytes == 0 || cell_bytes % device::PipeLayout::kPair != 0) throw std::invalid_argument("cell_bytes must be a multiple of 128");
    return pipe_layout_of(ranks, cell_bytes).end() + device::PipeLayout::kLine;
  }

  std::uint32_t ranks() const { return comm_.ranks; }
  const device::Comm& comm() const { return comm_; }
  bool is_attached() const { return attached_; }

  /// Tries whether all ranks can reach each other's private memory; all ranks call. From then on larger messages go that way if they can.
  WaitResult attach() {
    std::random_device entropy;
    token_ = (static_cast<std::uint64_t>(entropy()) << 32) | entropy();
    const std::uint64_t mine[] = {static_cast<std::uint64_t>(::getpid()), reinterpret_cast<std::uint64_t>(&token_), token_, detail::process_token(),
                                  reinterpret_cast<std::uint64_t>(put_here_)};
    const device::Block block = this->block();
    WaitResult stop = device::kArrived;
    for (std::uint32_t i = 1; i < comm_.ranks; ++i)
      if ((stop = device::detail::push(pipes_, block, device::detail::peer_after(comm_, i), mine, 5)) != device::kArrived) return stop;
    std::uint64_t all = 1;
    for (std::uint32_t i = 1; i < comm_.ranks; ++i) {
      const std::uint32_t peer = device::detail::peer_after(comm_, i);
      std::uint64_t its[5] = {};
      if ((stop = device::detail::pop(pipes_, block, peer, its, 5, false)) != device::kArrived) return stop;
      std::uint64_t seen = ~its[2];
      memory_.set_process(peer, static_cast<pid_t>(its[0]), its[0] == mine[0] && its[3] == mine[3]);  // a child by fork has the token too
      // Only what has the peer's token is the peer: in another container its number may be another process's.
      const bool found = memory_.get(block, reinterpret_cast<std::byte*>(&seen), peer, its[1], sizeof seen) && seen == its[2];
      if (!found || !memory_.put(block, peer, its[4] + comm_.rank * sizeof seen, reinterpret_cast<const std::byte*>(&seen), sizeof seen)) all = 0;
    }
    std::uint64_t agreed = 0;
    stop = device::all_reduce_piped(pipes_, block, &all, &agreed, 1, device::Min{}, {64, false});
    if (stop != device::kArrived) return stop;
    attached_ = agreed != 0;
    if (!attached_) return stop;
    limits_.strip = std::max(limits_.strip, detail::second_level_bytes() / 8 / std::max(comm_.ranks - 1, 1u) / 4096 * 4096);
    scratch_.reset(new (std::align_val_t{4096}) std::byte[(comm_.ranks - 1) * limits_.strip + 1]);
    return stop;
  }

  /// How many cores the ranks have together; the same on all ranks. From then on kernels are chosen that suit it.
  void set_cores(std::uint32_t cores) { crowded_ = comm_.ranks > cores; }

  WaitResult barrier() { return device::meet(pipes_, block()); }

  /// A cache line goes from rank 0 to rank 1 and back: what no exchange can beat. Other ranks return at once.
  WaitResult round_trip() {
    if (comm_.rank > 1 || comm_.ranks < 2) return device::kArrived;
    const device::SystemAtomic<std::uint64_t> word(*reinterpret_cast<std::uint64_t*>(comm_.control.base[0] + pipe_layout_.end()));
    device::Deadline deadline = comm_.deadline();
    const std::uint64_t there = 2 * trips_ + 1, back = there + 1;
    const std::uint64_t due = comm_.rank == 0 ? back : there;
    ++trips_;
    if (comm_.rank == 0) word.store(there, device::kRelease);
    for (std::uint64_t seen; (seen = word.load(device::kAcquire)) != due;)
      if (const WaitResult stop = deadline.poll(); stop != device::kArrived)
        return deadline.give_up(stop, device::Primitive::channel_wait, 0, 1 - comm_.rank, due, seen);
    if (comm_.rank == 1) word.store(back, device::kRelease);
    return device::kArrived;
  }

  /// Memory that all ranks map, of so many bytes from its place on each rank. In the order in which all ranks add it.
  void add_window(const std::vector<std::byte*>& memory, std::size_t bytes) {
    device::Window window{};
    if (memory.size() != comm_.ranks) throw std::invalid_argument("a window has a place on every rank");
    for (std::size_t i = 0; i < memory.size(); ++i) {
      if (reinterpret_cast<std::uintptr_t>(memory[i]) % 64 != 0) throw std::invalid_argument("a window must begin at a cache line");
      window.base[i] = memory[i];
    }
    window.bytes = bytes;
    windows_.push_back(window);
  }

  WaitResult all_reduce(const void* in, void* out, std::size_t count, const Reduction& how) {
    const WaitResult stop = by_width(how.element_bytes, [&](auto element) { return all_reduce_of(as<decltype(element)>(in), as<decltype(element)>(out), count, how); });
    if (stop == device::kArrived && how.divide) how.divide(out, count, comm_.ranks);
    return stop;
  }
  WaitResult reduce_scatter(const void* in, void* out, std::size_t count, const Reduction& how) {
    const WaitResult stop = by_width(how.element_bytes, [&](auto element) {
      using T = decltype(element);
      const std::size_t bytes = count * sizeof(T) * comm_.ranks;
      if (attached_ && bytes >= limits_.attached)
        return device::reduce_scatter_attached(pipes_, block(), memory_, as<T>(in), as<T>(out), count, how.op, reinterpret_cast<T*>(scratch_.get()),
                                               limits_.strip / sizeof(T));
      return device::reduce_scatter_piped(pipes_, block(), as<T>(in), as<T>(out), count, how.op, strips(count * sizeof(T), bytes));
    });
    if (stop == device::kArrived && how.divide) how.divide(out, count, comm_.ranks);
    return stop;
  }
  /// bytes: of one rank's part.
  WaitResult all_gather(const std::byte* in, std::byte* out, std::size_t bytes) {
    if (attached_ && bytes * comm_.ranks >= limits_.attached) return device::all_gather_attached(pipes_, block(), memory_, in, out, bytes, turn());
    return device::all_gather_piped(pipes_, block(), in, out, bytes, strips(bytes, bytes * comm_.ranks));
  }
  WaitResult all_to_all(const std::byte* in, std::byte* out, std::size_t bytes) {
    if (attached_ && bytes * comm_.ranks >= limits_.attached) return device::all_to_all_attached(pipes_, block(), memory_, in, out, bytes, turn());
    return device::all_to_all_piped(pipes_, block(), in, out, bytes, strips(bytes, bytes * comm_.ranks));
  }
  WaitResult broadcast(const std::byte* in, std::byte* out, std::size_t bytes, std::uint32_t root) {
    if (attached_ && bytes >= limits_.attached_broadcast) return device::broadcast_attached(pipes_, block(), memory_, in, out, bytes, root);
    return device::broadcast_piped(pipes_, block(), in, out, bytes, root, strips(bytes, bytes));
  }

  WaitResult reduce(const void* in, void* out, std::size_t count, const Reduction& how, std::uint32_t root) {
    const WaitResult stop = by_width(how.element_bytes, [&](auto element) {
      using T = decltype(element);
      const std::size_t bytes = count * sizeof(T);
      return device::reduce_piped(pipes_, block(), as<T>(in), as<T>(out), count, how.op, root, strips(bytes, bytes));
    });
    if (stop == device::kArrived && how.divide && comm_.rank == root) how.divide(out, count, comm_.ranks);
    return stop;
  }
  /// Bytes for each peer, one run after the other in `in`, and from each in `out`.
  WaitResult exchange(const std::byte* in, const std::vector<std::size_t>& sent, std::byte* out, const std::vector<std::size_t>& got) {
    device::Run<const std::byte> from[device::kMostRanks];
    device::Run<std::byte> to[device::kMostRanks];
    for (std::uint32_t peer = 0; peer < comm_.ranks; ++peer) {
      from[peer] = {in, sent[peer]};
      to[peer] = {out, got[peer]};
      in += sent[peer];
      out += got[peer];
    }
    return device::exchange_piped(pipes_, block(), from, to, {pipe_layout_.cell_bytes, false});
  }

  device::Report& report(std::uint32_t rank) const { return *reinterpret_cast<device::Report*>(comm_.control.base[rank] + comm_.layout.report()); }

 private:
  static device::Layout layout_of(std::uint32_t ranks) { return {ranks, 1, 64}; }
  static device::PipeLayout pipe_layout_of(std::uint32_t ranks, std::size_t cell_bytes) {
    return {ranks, 1, (layout_of(ranks).bytes() + device::PipeLayout::kPair - 1) / device::PipeLayout::kPair * device::PipeLayout::kPair, cell_bytes};
  }

  template <class T>
  static const T* as(const void* p) {
    return static_cast<const T*>(p);
  }
  template <class T>
  static T* as(void* p) {
    return static_cast<T*>(p);
  }
  template <class Body>
  static WaitResult by_width(std::size_t bytes, Body body) {
    switch (bytes) {
      case 1: return body(std::uint8_t{});
      case 2: return body(std::uint16_t{});
      case 4: return body(std::uint32_t{});
      default: return body(std::uint64_t{});
    }
  }

  device::Block block() { return {0, 1, 0, 1, &barrier_}; }

  /// Strips of a move of so many bytes to a peer: four of them, so that peers work at the same time, but no shorter than pays.
  device::Strips strips(std::size_t bytes, std::size_t stored) const {
    return {std::max(bytes / 4 / 64 * 64, limits_.least_strip), stored >= limits_.streamed};
  }

  device::Turn turn() { return {limits_.turned, (turns_++ & 1) != 0}; }

  template <class T>
  WaitResult all_reduce_of(const T* in, T* out, std::size_t count, const Reduction& how) {
    const AnyOp op = how.op;
    const std::size_t bytes = count * sizeof(T);
    if (bytes >= limits_.window)
      for (const device::Window& window : windows_)
        if (const std::optional<std::size_t> from = offset(window, in, bytes), to = offset(window, out, bytes); from && to) {
          const auto place = static_cast<std::uint64_t>(&window - windows_.data());
          if (const WaitResult stop = same_everywhere({place << 32 | how.kind, *from, *to, bytes}); stop != device::kArrived) return stop;
          return device::all_reduce_two_shot(comm_, block(), device::SymPtr<const T>(window, *from), device::SymPtr<T>(window, *to), count, op);
        }
    if (crowded_ && bytes >= limits_.chained) {  // what is ready is added up by whoever has a core
      const std::size_t piece = device::longest_piece(pipe_layout_);
      const std::uint64_t round = rounds_;
      rounds_ += device::chained_rounds(comm_.ranks, piece, bytes);
      return device::all_reduce_chained(pipes_, block(), in, out, count, op, piece, round);
    }
    if (attached_ && bytes >= limits_.attached_reduce)
      return device::all_reduce_attached(pipes_, block(), memory_, in, out, count, op, reinterpret_cast<T*>(scratch_.get()), limits_.strip / sizeof(T));
    // With many ranks the whole vector to everyone costs more than another round already when it is small. A guess beyond two.
    if (bytes * (comm_.ranks - 1) <= limits_.parts) return how.all_reduce_piped(pipes_, barrier_, in, out, count, strips(bytes, bytes));
    return device::all_reduce_piped_parts(pipes_, block(), in, out, count, op, strips(bytes / comm_.ranks, bytes));
  }

  /// Whether all ranks were called for the same window, type, operation, places and size. Told to each other when a call is not one of the last that were;
  /// a rank that was called for another place then finds no message, or another one.
  WaitResult same_everywhere(const std::array<std::uint64_t, 4>& call) {
    std::array<std::uint64_t, 4>& known = calls_[(call[0] ^ call[1] / 64 * 7 ^ call[2] / 64 * 5 ^ call[3] / 4 * 3) % kCalls];
    if (known == call) return device::kArrived;
    WaitResult stop = device::kArrived;
    const device::Block block = this->block();
    for (std::uint32_t i = 1; i < comm_.ranks; ++i)
      if ((stop = device::detail::push(pipes_, block, device::detail::peer_after(comm_, i), call.data(), call.size())) != device::kArrived) return stop;
    for (std::uint32_t i = 1; i < comm_.ranks; ++i) {
      const std::uint32_t peer = device::detail::peer_after(comm_, i);
      std::array<std::uint64_t, 4> its{};
      if ((stop = device::detail::pop(pipes_, block, peer, its.data(), its.size(), false)) != device::kArrived) return stop;
      if (its != call)
        return comm_.deadline().give_up(device::kDeadline, device::Primitive::memory_access, 0, peer, call[3], std::max<std::uint64_t>(its[3], 1));
    }
    known = call;
    return stop;
  }

  /// Where [p, p + bytes) begins in this rank's memory of a window, if it lies in it.
  std::optional<std::size_t> offset(const device::Window& window, const void* p, std::size_t bytes) const {
    const std::size_t begin = reinterpret_cast<std::uintptr_t>(p) - reinterpret_cast<std::uintptr_t>(window.base[comm_.rank]);
    if (begin > window.bytes || bytes > window.bytes - begin) return std::nullopt;
    return begin;
  }

  struct Freed {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{4096}); }
  };

  Thresholds limits_{};
  device::Comm comm_{};
  device::PipeLayout pipe_layout_{};
  device::Pipes pipes_{comm_, pipe_layout_};
  device::BlockBarrier barrier_{1};
  PeerMemory memory_{};
  bool attached_ = false, crowded_ = false;
  std::uint64_t put_here_[device::kMostRanks] = {};  ///< by each rank that tries whether it can
  std::uint64_t token_ = 0, trips_ = 0, turns_ = 0, rounds_ = 0;
  std::unique_ptr<std::byte[], Freed> scratch_;
  std::vector<device::Window> windows_;
  static constexpr std::size_t kCalls = 64;  ///< on windows, that are remembered. A guess: a training step's buckets
  std::array<std::array<std::uint64_t, 4>, kCalls> calls_{};
};

}  // namespace busbw::execution
