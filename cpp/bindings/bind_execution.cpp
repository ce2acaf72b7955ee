// Kernels on the CPU for Python: one object a rank, memory that all ranks map in, arrays by their addresses.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "busbw/device/kernels/all_gather.hpp"
#include "busbw/device/kernels/all_reduce.hpp"
#include "busbw/device/kernels/staged.hpp"
#include "element_types.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace busbw::device;
using namespace busbw::bindings;

namespace {

using Bytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstBytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class Body>
auto with_op(const std::string& op, Body body) {
  if (op == "sum" || op == "avg") return body(Sum{});
  if (op == "prod") return body(Prod{});
  if (op == "min") return body(Min{});
  if (op == "max") return body(Max{});
  throw std::invalid_argument("no operation " + op);
}

/// avg is the sum over the number of ranks, as NCCL has it: integers are divided as integers.
template <class T>
void divide(T* values, std::size_t count, std::uint32_t ranks) {
  for (std::size_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, _Float16>)
      values[i] = static_cast<T>(static_cast<float>(values[i]) / static_cast<float>(ranks));
    else
      values[i] = static_cast<T>(values[i] / static_cast<T>(ranks));
  }
}

template <class T>
const T* at(const ConstBytes& bytes, std::size_t count, const char* what) {
  if (bytes.shape(0) != count * sizeof(T)) throw std::invalid_argument(std::string(what) + " has another length");
  return reinterpret_cast<const T*>(bytes.data());
}
template <class T>
T* at(const Bytes& bytes, std::size_t count, const char* what) {
  if (bytes.shape(0) != count * sizeof(T)) throw std::invalid_argument(std::string(what) + " has another length");
  return reinterpret_cast<T*>(bytes.data());
}

/// One rank: one block of one thread.
class Rank {
 public:
  Rank(std::uint32_t rank, std::vector<Bytes> control, std::size_t slot_bytes, double wait_s) : control_(std::move(control)) {
    const auto ranks = static_cast<std::uint32_t>(control_.size());
    if (ranks > kMostRanks) throw std::invalid_argument("more ranks than a window has places for");
    if (rank >= ranks) throw std::invalid_argument("no such rank");
    if (slot_bytes == 0 || slot_bytes % 64 != 0) throw std::invalid_argument("slot_bytes must be a multiple of 64");
    comm_ = {rank, ranks, Layout{ranks, 1, slot_bytes}, {}, static_cast<std::uint64_t>(std::max(0.0, wait_s) * 1e9)};
    comm_.control = window(control_, comm_.layout.bytes());
  }

  static std::size_t control_bytes(std::uint32_t ranks, std::size_t slot_bytes) { return Layout{ranks, 1, slot_bytes}.bytes(); }

  int barrier(std::size_t times) {
    return repeated(times, [&] { return busbw::device::barrier(comm_, block()); });
  }

  int all_reduce(const ConstBytes& in, const Bytes& out, std::size_t count, const std::string& dtype, const std::string& op, std::size_t times) {
    return with_type(dtype, [&](auto type) {
      using T = typename decltype(type)::type;
      const T* const from = at<T>(in, count, "in");
      T* const to = at<T>(out, count, "out");
      return with_op(op, [&](auto reduction) {
        const bool one_shot = count * sizeof(T) <= one_shot_bytes();
        return repeated(times, [&] {
          const WaitResult result = one_shot ? all_reduce_one_shot(comm_, block(), from, to, count, reduction)
                                             : all_reduce_staged(comm_, block(), from, to, count, reduction);
          if (op == "avg" && result == kArrived) divide(to, count, comm_.ranks);
          return result;
        });
      });
    });
  }

  int all_reduce_window(std::vector<Bytes> memory, std::size_t in_offset, std::size_t out_offset, std::size_t count, const std::string& dtype,
                        const std::string& op, std::size_t times) {
    return with_type(dtype, [&](auto type) {
      using T = typename decltype(type)::type;
      const std::size_t bytes = count * sizeof(T);
      if (in_offset % sizeof(T) || out_offset % sizeof(T)) throw std::invalid_argument("offsets must be multiples of an element");
      const Window data = window(memory, std::max(in_offset, out_offset) + bytes);
      const SymPtr<const T> from(data, in_offset);
      const SymPtr<T> to(data, out_offset);
      return with_op(op, [&](auto reduction) {
        return repeated(times, [&] {
          const WaitResult result = bytes <= one_shot_bytes()
                                        ? all_reduce_one_shot(comm_, block(), from.at(comm_.rank), to.at(comm_.rank), count, reduction)
                                        : all_reduce_two_shot(comm_, block(), from, to, count, reduction);
          if (op == "avg" && result == kArrived) divide(to.at(comm_.rank), count, comm_.ranks);
          return result;
        });
      });
    });
  }

  int reduce_scatter(const ConstBytes& in, const Bytes& out, std::size_t count, const std::string& dtype, const std::string& op, std::size_t times) {
    return with_type(dtype, [&](auto type) {
      using T = typename decltype(type)::type;
      const T* const from = at<T>(in, count * comm_.ranks, "in");
      T* const to = at<T>(out, count, "out");
      return with_op(op, [&](auto reduction) {
        return repeated(times, [&] {
          const WaitResult result = reduce_scatter_staged(comm_, block(), from, to, count, reduction);
          if (op == "avg" && result == kArrived) divide(to, count, comm_.ranks);
          return result;
        });
      });
    });
  }

  int all_gather(const ConstBytes& in, const Bytes& out, std::size_t times) {
    const std::size_t count = in.shape(0);
    std::uint8_t* const to = at<std::uint8_t>(out, count * comm_.ranks, "out");
    return repeated(times, [&] { return all_gather_staged(comm_, block(), in.data(), to, count); });
  }

  int all_to_all(const ConstBytes& in, const Bytes& out, std::size_t times) {
    if (in.shape(0) % comm_.ranks) throw std::invalid_argument("in has no equal part for each rank");
    const std::size_t count = in.shape(0) / comm_.ranks;
    std::uint8_t* const to = at<std::uint8_t>(out, in.shape(0), "out");
    return repeated(times, [&] { return all_to_all_staged(comm_, block(), in.data(), to, count); });
  }

  int broadcast(const ConstBytes& in, const Bytes& out, std::uint32_t root, std::size_t times) {
    if (root >= comm_.ranks) throw std::invalid_argument("no such root");
    std::uint8_t* const to = at<std::uint8_t>(out, in.shape(0), "out");
    return repeated(times, [&] { return broadcast_staged(comm_, block(), in.data(), to, in.shape(0), root); });
  }

  /// state, primitive, block, peer, expected, seen.
  std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, std::uint64_t, std::uint64_t> report() const {
    Report& report = comm_.report();
    const std::uint32_t state = SystemAtomic<std::uint32_t>(report.state).load(kAcquire);
    return {state, report.primitive, report.block, report.peer, report.expected, report.seen};
  }

  /// Makes the waits of a rank end: what is left to do when its process is known to be dead.
  void abort(std::uint32_t rank) {
    if (rank >= comm_.ranks) throw std::invalid_argument("no such rank");
    Report& report = *reinterpret_cast<Report*>(comm_.control.base[rank] + comm_.layout.report());
    SystemAtomic<std::uint32_t>(report.state).fetch_add(1, kRelaxed);
  }

 private:
  /// Below this everyone sends everyone its whole vector. A guess for more than two ranks: a few copies cost less than another round.
  std::size_t one_shot_bytes() const {
    return comm_.ranks <= 2 ? comm_.layout.slot_bytes : std::min<std::size_t>(comm_.layout.slot_bytes, 4096 / (comm_.ranks - 1) / 64 * 64);
  }

  Block block() { return {0, 1, 0, 1, &barrier_}; }

  static Window window(std::vector<Bytes>& memory, std::size_t bytes) {
    Window out{};
    for (std::size_t i = 0; i < memory.size(); ++i) {
      if (memory[i].shape(0) < bytes) throw std::invalid_argument("a window is smaller than what is asked of it");
      if (reinterpret_cast<std::uintptr_t>(memory[i].data()) % 64 != 0) throw std::invalid_argument("a window must begin at a cache line");
      out.base[i] = reinterpret_cast<std::byte*>(memory[i].data());
    }
    out.bytes = bytes;
    return out;
  }

  template <class Call>
  int repeated(std::size_t times, Call call) {
    nb::gil_scoped_release released;
    for (std::size_t i = 0; i < times; ++i)
      if (const WaitResult stop = call(); stop != kArrived) return static_cast<int>(stop);
    return 0;
  }

  std::vector<Bytes> control_;
  Comm comm_{};
  BlockBarrier barrier_{1};
};

}  // namespace

NB_MODULE(_cpu, m) {
  m.doc() = "Device kernels on the CPU: collectives between processes over memory that all of them map.";
  nb::class_<Rank>(m, "Rank", "One rank. Calls return 0, or 1 at the deadline, 2 if somebody had given up before; `times` calls follow each other.")
      .def(nb::init<std::uint32_t, std::vector<Bytes>, std::size_t, double>(), "rank"_a, "control"_a, "slot_bytes"_a, "wait_s"_a,
           "control: each rank's control window, zeros at first, of control_bytes. wait_s: 0 waits for ever.")
      .def_static("control_bytes", &Rank::control_bytes, "ranks"_a, "slot_bytes"_a, "Bytes of a control window.")
      .def("barrier", &Rank::barrier, "times"_a = 1)
      .def("all_reduce", &Rank::all_reduce, "source"_a, "target"_a, "count"_a, "dtype"_a, "op"_a, "times"_a = 1, "Private memory, bytes.")
      .def("all_reduce_window", &Rank::all_reduce_window, "windows"_a, "source_offset"_a, "target_offset"_a, "count"_a, "dtype"_a, "op"_a,
           "times"_a = 1, "Memory that all ranks map: nothing is copied besides.")
      .def("reduce_scatter", &Rank::reduce_scatter, "source"_a, "target"_a, "count"_a, "dtype"_a, "op"_a, "times"_a = 1,
           "count: elements of target; source has as many for each rank.")
      .def("all_gather", &Rank::all_gather, "source"_a, "target"_a, "times"_a = 1)
      .def("all_to_all", &Rank::all_to_all, "source"_a, "target"_a, "times"_a = 1)
      .def("broadcast", &Rank::broadcast, "source"_a, "target"_a, "root"_a, "times"_a = 1)
      .def("report", &Rank::report, "state, primitive, block, peer, expected, seen of whoever gave up first on this rank.")
      .def("abort", &Rank::abort, "rank"_a, "Makes the waits of a rank end.");
}
