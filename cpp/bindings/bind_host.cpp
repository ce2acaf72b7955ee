// Probes of a machine for Python: cores and bytes in, rates and times out.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "busbw/host/probes.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using Unlocked = nb::call_guard<nb::gil_scoped_release>;

NB_MODULE(_host, m) {
  m.doc() = "Probes of this machine: copies, additions, reads, cache lines.";

  m.def("copy_rate", &busbw::host::copy_rate, "size_bytes"_a, "cores"_a, "rounds"_a, Unlocked(),
        "Bytes per second that threads on these cores copy together, each between arrays of size_bytes of its own.");
  m.def("triad_rate", &busbw::host::triad_rate, "size_bytes"_a, "cores"_a, "rounds"_a, Unlocked(),
        "Bytes per second of a = b + 3 c on arrays of size_bytes, three of which count.");
  m.def("line_round_trip", &busbw::host::line_round_trip, "first"_a, "second"_a, "trips"_a, "batches"_a, Unlocked(),
        "Seconds that a cache line takes from one core to another and back.");
  m.def(
      "reach",
      [](int core, int memory_core, std::size_t size_bytes, int rounds) {
        const auto found = busbw::host::reach(core, memory_core, size_bytes, rounds);
        return std::pair(found.read_bytes_per_s, found.latency_s);
      },
      "core"_a, "memory_core"_a, "size_bytes"_a, "rounds"_a, Unlocked(),
      "Bytes per second of reading, and seconds of a dependent read of, memory that another core has touched first.");
}
