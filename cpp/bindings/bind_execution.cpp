// Kernels on the CPU for Python: one object a rank, memory that all ranks map in, arrays by Python's buffers.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "busbw/execution/cpu_rank.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace busbw::execution;

namespace {

/// Memory of an object that has Python's buffer protocol, held until the end of the call. A DLPack import costs as much as a small collective.
class Buffer {
 public:
  Buffer(nb::handle object, bool is_written) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (is_written ? PyBUF_WRITABLE : 0)) == 0) {
      if (!has_objects(view_.format)) return;
      PyBuffer_Release(&view_);
      throw std::invalid_argument("Python objects lie in the memory of one process: pass an array of numbers");
    }
    PyErr_Clear();
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_STRIDED_RO) != 0) throw nb::python_error();
    const bool is_contiguous = PyBuffer_IsContiguous(&view_, 'C') != 0;
    PyBuffer_Release(&view_);
    throw std::invalid_argument(is_contiguous ? "the target is read-only" : "the array is not contiguous: pass np.ascontiguousarray(x)");
  }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(view_.buf); }
  std::size_t bytes() const { return static_cast<std::size_t>(view_.len); }
  std::size_t item_bytes() const { return static_cast<std::size_t>(view_.itemsize); }

  /// The type of its elements; `named` where Python has no word for it.
  Dtype dtype(const char* named) const {
    if (*named != '\0') return dtype_named(named);
    const char* format = view_.format ? view_.format : "B";
    if (*format == '=' || *format == '@' || *format == '<') ++format;  // a CPU that this runs on is little-endian
    const char letter = format[0] != '\0' && format[1] == '\0' ? format[0] : '\0';
    switch (letter) {
      case 'e': return Dtype::float16;
      case 'f': return Dtype::float32;
      case 'd': return Dtype::float64;
      case 'b': return Dtype::int8;
      case 'B': return Dtype::uint8;
      case 'i':
      case 'l':
      case 'q':
        if (item_bytes() == 4) return Dtype::int32;
        if (item_bytes() == 8) return Dtype::int64;
        break;
      case 'I':
      case 'L':
      case 'Q':
        if (item_bytes() == 4) return Dtype::uint32;
        if (item_bytes() == 8) return Dtype::uint64;
        break;
      default: break;
    }
    throw std::invalid_argument(std::string("no reduction of elements of format '") + (view_.format ? view_.format : "B") + "'");
  }

  static Dtype dtype_named(std::string_view name) {
    static constexpr std::pair<std::string_view, Dtype> kNames[] = {
        {"float32", Dtype::float32}, {"float64", Dtype::float64}, {"float16", Dtype::float16}, {"bfloat16", Dtype::bfloat16},
        {"int8", Dtype::int8},       {"uint8", Dtype::uint8},     {"int32", Dtype::int32},     {"uint32", Dtype::uint32},
        {"int64", Dtype::int64},     {"uint64", Dtype::uint64}, {"float8_e4m3", Dtype::float8_e4m3}, {"float8_e5m2", Dtype::float8_e5m2}};
    for (const auto& [known, dtype] : kNames)
      if (known == name) return dtype;
    throw std::invalid_argument("no reduction of " + std::string(name));
  }

 private:
  /// Of a format of struct's language, in which names of fields stand between colons.
  static bool has_objects(const char* format) {
    bool is_name = false;
    for (; format && *format; ++format) {
      if (*format == ':') is_name = !is_name;
      if (*format == 'O' && !is_name) return true;
    }
    return false;
  }

  Py_buffer view_{};
};

Operation operation_named(std::string_view name) {
  static constexpr std::pair<std::string_view, Operation> kNames[] = {
      {"sum", Operation::sum}, {"prod", Operation::prod}, {"min", Operation::min}, {"max", Operation::max}, {"avg", Operation::avg}};
  for (const auto& [known, operation] : kNames)
    if (known == name) return operation;
  throw std::invalid_argument("no operation '" + std::string(name) + "'; there are sum, prod, min, max, avg");
}

std::string parts_text(std::size_t bytes, std::size_t ranks) {
  return std::to_string(bytes) + " bytes have no equal part for each of " + std::to_string(ranks) + " ranks";
}

/// One rank: holds the memory that its core works on.
class Rank {
 public:
  Rank(std::uint32_t rank, const std::vector<nb::object>& control, std::size_t cell_bytes, double wait_s)
      : control_(control), core_(rank, places(control, CpuRank::control_bytes(static_cast<std::uint32_t>(control.size()), cell_bytes)), cell_bytes, wait_s) {}

  int attach() {
    return called(1, [&] { return core_.attach(); });
  }
  bool is_attached() const { return core_.is_attached(); }

  void set_cores(std::uint32_t cores) { core_.set_cores(cores); }
  int barrier(std::int64_t times) {
    return called(times, [&] { return core_.barrier(); });
  }

  int round_trip(std::int64_t times) {
    return called(times, [&] { return core_.round_trip(); });
  }

  void add_window(const std::vector<nb::object>& memory, std::size_t bytes) {
    core_.add_window(places(memory, bytes), bytes);
    for (const nb::object& one : memory) control_.push_back(one);
  }

  int all_reduce(nb::handle source, nb::handle target, const char* op, const char* dtype, std::int64_t times) {
    const Buffer in(source, false), out(target, true);
    const Reduction how = reduction(in, op, dtype);
    if (in.bytes() != out.bytes() || in.item_bytes() != out.item_bytes()) throw std::invalid_argument(sizes_text(in, out));
    check_place(in, out, out.data() == in.data());
    const std::size_t count = in.bytes() / how.element_bytes;
    return called(times, [&] { return core_.all_reduce(in.data(), out.data(), count, how); });
  }

  int reduce_scatter(nb::handle source, nb::handle target, const char* op, const char* dtype, std::int64_t times) {
    const Buffer in(source, false), out(target, true);
    const Reduction how = reduction(in, op, dtype);
    if (in.bytes() % (core_.ranks() * how.element_bytes)) throw std::invalid_argument(parts_text(in.bytes(), core_.ranks()));
    if (in.bytes() != out.bytes() * core_.ranks() || in.item_bytes() != out.item_bytes()) throw std::invalid_argument(sizes_text(in, out));
    check_place(in, out, out.data() == in.data() + core_.comm().rank * out.bytes());
    const std::size_t count = out.bytes() / how.element_bytes;
    return called(times, [&] { return core_.reduce_scatter(in.data(), out.data(), count, how); });
  }

  int all_gather(nb::handle source, nb::handle target, std::int64_t times) {
    const Buffer in(source, false), out(target, true);
    if (out.bytes() != in.bytes() * core_.ranks() || in.item_bytes() != out.item_bytes()) throw std::invalid_argument(sizes_text(in, out));
    check_place(in, out, in.data() == out.data() + core_.comm().rank * in.bytes());
    return called(times, [&] { return core_.all_gather(in.data(), out.data(), in.bytes()); });
  }

  int all_to_all(nb::handle source, nb::handle target, std::int64_t times) {
    const Buffer in(source, false), out(target, true);
    if (in.bytes() != out.bytes() || in.item_bytes() != out.item_bytes()) throw std::invalid_argument(sizes_text(in, out));
    if (in.bytes() % (core_.ranks() * in.item_bytes())) throw std::invalid_argument(parts_text(in.bytes(), core_.ranks()));
    if (overlap(in, out)) throw std::invalid_argument("source and target of all_to_all overlap");
    return called(times, [&] { return core_.all_to_all(in.data(), out.data(), in.bytes() / core_.ranks()); });
  }

  int broadcast(nb::handle source, nb::handle target, std::uint32_t root, std::int64_t times) {
    const Buffer in(source, false), out(target, true);
    if (in.bytes() != out.bytes() || in.item_bytes() != out.item_bytes()) throw std::invalid_argument(sizes_text(in, out));
    check_place(in, out, out.data() == in.data());
    check_root(root);
    return called(times, [&] { return core_.broadcast(in.data(), out.data(), in.bytes(), root); });
  }

  int reduce(nb::handle source, nb::handle target, const char* op, const char* dtype, std::uint32_t root) {
    const Buffer in(source, false), out(target, core_.comm().rank == root);
    const Reduction how = reduction(in, op, dtype);
    check_root(root);
    if (core_.comm().rank == root && (in.bytes() != out.bytes() || in.item_bytes() != out.item_bytes()))
      throw std::invalid_argument(sizes_text(in, out));
    if (core_.comm().rank == root) check_place(in, out, out.data() == in.data());
    const std::size_t count = in.bytes() / how.element_bytes;
    return called(1, [&] { return core_.reduce(in.data(), out.data(), count, how, root); });
  }

  int exchange(nb::handle source, const std::vector<std::size_t>& sent, nb::handle target, const std::vector<std::size_t>& got) {
    const Buffer in(source, false), out(target, true);
    const auto total = [](const std::vector<std::size_t>& counts) { return std::accumulate(counts.begin(), counts.end(), std::size_t{0}); };
    if (sent.size() != core_.ranks() || got.size() != core_.ranks()) throw std::invalid_argument("a count for each rank is needed");
    if (total(sent) > in.bytes() || total(got) > out.bytes()) throw std::invalid_argument("counts exceed what the arrays hold");
    if (sent[core_.comm().rank] != got[core_.comm().rank]) throw std::invalid_argument("a rank sends itself as much as it gets from itself");
    if (overlap(in, out)) throw std::invalid_argument("source and target overlap");
    return called(1, [&] { return core_.exchange(in.data(), sent, out.data(), got); });
  }

  /// state, primitive, block, peer, expected, seen.
  std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, std::uint64_t, std::uint64_t> report() const {
    busbw::device::Report& report = core_.report(core_.comm().rank);
    const std::uint32_t state = busbw::device::SystemAtomic<std::uint32_t>(report.state).load(busbw::device::kAcquire);
    return {state, report.primitive, report.block, report.peer, report.expected, report.seen};
  }

  /// Makes the waits of a rank end: what is left to do when its process is known to be dead.
  void abort(std::uint32_t rank) {
    if (rank >= core_.ranks()) throw std::invalid_argument("no such rank");
    busbw::device::SystemAtomic<std::uint32_t>(core_.report(rank).state).fetch_add(1, busbw::device::kRelaxed);
  }

 private:
  static std::vector<std::byte*> places(const std::vector<nb::object>& memory, std::size_t bytes) {
    std::vector<std::byte*> out;
    for (const nb::object& one : memory) {
      const Buffer buffer(one, true);  // the object, which is kept, keeps its memory where it is
      if (buffer.bytes() < bytes) throw std::invalid_argument("a window is smaller than what is asked of it");
      out.push_back(buffer.data());
    }
    return out;
  }

  void check_root(std::uint32_t root) const {
    if (root >= core_.ranks())
      throw std::invalid_argument("root " + std::to_string(root) + " is none of the ranks 0.." + std::to_string(core_.ranks() - 1));
  }
  static void check_place(const Buffer& in, const Buffer& out, bool in_place) {
    if (!in_place && overlap(in, out)) throw std::invalid_argument("source and target overlap, and not as in a call in place");
  }
  static bool overlap(const Buffer& a, const Buffer& b) { return a.data() < b.data() + b.bytes() && b.data() < a.data() + a.bytes(); }

  static Reduction reduction(const Buffer& in, const char* op, const char* dtype) {
    const Dtype kind = in.dtype(dtype);
    if (bytes_of(kind) != in.item_bytes()) throw std::invalid_argument("elements of " + std::to_string(in.item_bytes()) + " bytes are no " + dtype);
    return reduction_of(kind, operation_named(op));
  }

  static std::string sizes_text(const Buffer& in, const Buffer& out) {
    const auto text = [](const Buffer& one) {
      return std::to_string(one.bytes() / one.item_bytes()) + " elements of " + std::to_string(one.item_bytes()) + " bytes";
    };
    return "target holds " + text(out) + ", source " + text(in);
  }

  /// So many calls in a row, without the interpreter's lock: ranks may be threads of one process.
  template <class Call>
  int called(std::int64_t times, Call call) {
    if (times < 1) throw std::invalid_argument("times=" + std::to_string(times) + ": a call is made once or more");
    nb::gil_scoped_release released;
    for (std::int64_t i = 0; i < times; ++i)
      if (const WaitResult stop = call(); stop != busbw::device::kArrived) return static_cast<int>(stop);
    return 0;
  }

  std::vector<nb::object> control_;
  CpuRank core_;
};

}  // namespace

NB_MODULE(_cpu, m) {
  m.doc() = "Device kernels on the CPU: collectives between processes or threads over memory that all of them map.";
  m.def("looks_before_yield", [](std::uint32_t looks) { busbw::device::looks_before_yield.store(looks); }, "looks"_a,
        "How often this process looks at a word before it gives its core away.");
  m.def("copy", [](nb::handle source, nb::handle target, std::int64_t times) {
    const Buffer in(source, false), out(target, true);
    if (in.bytes() != out.bytes()) throw std::invalid_argument("source and target differ in length");
    nb::gil_scoped_release released;
    for (std::int64_t i = 0; i < times; ++i) busbw::device::move_run(out.data(), in.data(), in.bytes(), false);
  }, "source"_a, "target"_a, "times"_a = 1, "Copies so often: what a collective that stores as much is measured by.");
  nb::class_<Rank>(m, "Rank", "One rank. Calls return 0, or 1 at the deadline, 2 if somebody had given up before; `times` calls follow each other.")
      .def(nb::init<std::uint32_t, const std::vector<nb::object>&, std::size_t, double>(), "rank"_a, "control"_a, "cell_bytes"_a, "wait_s"_a,
           "control: each rank's control window, zeros at first, of control_bytes. wait_s: 0 waits for ever.")
      .def_static("control_bytes", &CpuRank::control_bytes, "ranks"_a, "cell_bytes"_a, "Bytes of a control window.")
      .def("attach", &Rank::attach, "All ranks call: tries whether each can read the others' private memory, and uses it then.")
      .def_prop_ro("is_attached", &Rank::is_attached)
      .def("set_cores", &Rank::set_cores, "cores"_a, "How many cores all ranks have together, the same on all: kernels are chosen by it.")
      .def("add_window", &Rank::add_window, "memory"_a, "size_bytes"_a, "Memory that all ranks map: all_reduce on it copies nothing besides.")
      .def("barrier", &Rank::barrier, "times"_a = 1)
      .def("round_trip", &Rank::round_trip, "times"_a = 1, "A cache line goes from rank 0 to rank 1 and back.")
      .def("all_reduce", &Rank::all_reduce, "source"_a, "target"_a, "op"_a, "dtype"_a = "", "times"_a = 1,
           "dtype: of elements for which Python has no type; that of source if empty.")
      .def("reduce_scatter", &Rank::reduce_scatter, "source"_a, "target"_a, "op"_a, "dtype"_a = "", "times"_a = 1)
      .def("all_gather", &Rank::all_gather, "source"_a, "target"_a, "times"_a = 1)
      .def("all_to_all", &Rank::all_to_all, "source"_a, "target"_a, "times"_a = 1)
      .def("broadcast", &Rank::broadcast, "source"_a, "target"_a, "root"_a, "times"_a = 1)
      .def("reduce", &Rank::reduce, "source"_a, "target"_a, "op"_a, "dtype"_a, "root"_a, "target: written on the root alone.")
      .def("exchange", &Rank::exchange, "source"_a, "sent_bytes"_a, "target"_a, "got_bytes"_a,
           "For each rank bytes that go to it, one after the other in source, and bytes that come from it, in target.")
      .def("report", &Rank::report, "state, primitive, block, peer, expected, seen of whoever gave up first on this rank.")
      .def("abort", &Rank::abort, "rank"_a, "Makes the waits of a rank end.");
}
