// The flow simulator for Python: a program as columns in, tasks as columns out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "busbw/sim/program.hpp"
#include "busbw/sim/program_run.hpp"
#include "busbw/sim/tree_ways.hpp"
#include "columns.hpp"

namespace nb = nanobind;
using namespace nb::literals;
namespace sim = busbw::sim;

namespace {

template <class T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Result = nb::ndarray<nb::numpy, T, nb::ndim<1>>;
using I32 = Column<std::int32_t>;
using I64 = Column<std::int64_t>;

template <class T>
sim::Column<T> values(const Column<T>& column) {
  return {column.data(), column.data() + column.shape(0)};
}

/// A numpy array that owns the values.
template <class Values, class T = typename Values::value_type>
Result<T> array(Values values) {
  const std::size_t size = values.size();
  const auto [data, owner] = busbw::bindings::kept(std::move(values));
  return Result<T>(data, {size}, owner);
}

void set_code(sim::Program& program, const I64& code) {
  if (code.shape(0) % 4 != 0) throw std::invalid_argument("code must have four numbers an instruction");
  program.code.clear();
  for (std::size_t i = 0; i < code.shape(0); i += 4) {
    const std::int64_t* n = code.data() + i;
    for (int k = 0; k < 3; ++k)
      if (n[k] < INT32_MIN || n[k] > INT32_MAX) throw std::invalid_argument("a number of an instruction is too large");
    program.code.push_back({static_cast<sim::Op>(n[0]), static_cast<std::int32_t>(n[1]), static_cast<std::int32_t>(n[2]), 0, n[3]});
  }
}

void set_ways(sim::Program& program, const I64& begin, const I32& link, const I32& share) {
  if (link.shape(0) != share.shape(0)) throw std::invalid_argument("columns of crossings differ in length");
  program.ways.begin = values(begin);
  program.ways.crossings.clear();
  program.ways.crossings.reserve(link.shape(0));
  for (std::size_t i = 0; i < link.shape(0); ++i) program.ways.crossings.push_back({link.data()[i], share.data()[i]});
}

sim::WayColumns tree_ways(std::vector<std::int64_t> down, std::vector<std::int64_t> up, std::vector<std::int64_t> parallel, const I64& src_slot,
                          const I64& dst_slot, const I64& src, const I64& dst, std::int64_t seed, bool hashed) {
  const sim::TreeWays tree({std::move(down), std::move(up), std::move(parallel)});
  sim::WayColumns ways;
  if (!hashed) {
    tree.d_mod_k(src_slot.data(), dst_slot.data(), src_slot.shape(0), dst_slot.shape(0), ways);
    return ways;
  }
  if (src.shape(0) != src_slot.shape(0) || dst.shape(0) != src_slot.shape(0)) throw std::invalid_argument("columns of flows differ in length");
  std::vector<std::uint64_t> keys;
  keys.reserve(src.shape(0));
  for (std::size_t f = 0; f < src.shape(0); ++f) keys.push_back(sim::TreeWays::key(src.data()[f], dst.data()[f], 0, static_cast<std::uint64_t>(seed)));
  tree.ecmp(src_slot.data(), dst_slot.data(), src_slot.shape(0), dst_slot.shape(0), keys, ways);
  return ways;
}

std::tuple<Result<std::int64_t>, Result<std::int32_t>> crossings(const sim::WayColumns& ways) {
  sim::Column<std::int32_t> links;
  links.reserve(ways.crossings.size());
  for (const sim::Crossing& crossing : ways.crossings) links.push_back(crossing.link);
  return {array(ways.begin), array(std::move(links))};
}

void set_capacity(sim::Program& program, const I64& units) {
  program.capacity.clear();
  for (std::size_t i = 0; i < units.shape(0); ++i) program.capacity.push_back(sim::Rate{units.data()[i]});
}

using Tasks = std::tuple<Result<std::int32_t>, Result<std::int32_t>, Result<std::int64_t>, Result<std::int64_t>, Result<std::int64_t>,
                         Result<std::int64_t>, Result<std::int32_t>, Result<std::int32_t>>;

Tasks tasks(const sim::ProgramRun& run) {
  const sim::TaskColumns& t = run.tasks();
  return {array(t.channel), array(t.stream), array(t.posted_ps), array(t.begin_ps), array(t.end_ps), array(t.size_bytes), array(t.bottleneck), array(t.cause)};
}

std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>> repeats(const sim::ProgramRun& run) {
  std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>> out;
  for (const sim::Repeat& r : run.repeats()) out.emplace_back(r.first, r.last, r.times, r.period_ps);
  return out;
}

std::vector<std::tuple<std::int32_t, std::int32_t, std::int32_t, std::int32_t>> waits(const sim::ProgramRun& run) {
  std::vector<std::tuple<std::int32_t, std::int32_t, std::int32_t, std::int32_t>> out;
  for (const auto& wait : run.waits()) out.emplace_back(wait.stream, static_cast<std::int32_t>(wait.op), wait.channel, wait.bottleneck);
  return out;
}

}  // namespace

NB_MODULE(_flow, m) {
  m.doc() = "The flow simulator: programs as columns, run at max-min fair rates.";
  m.attr("RATE_UNITS_PER_BYTE") = sim::kRateUnitsPerByte;

  m.def(
      "tree_ways",
      [](std::vector<std::int64_t> down, std::vector<std::int64_t> up, std::vector<std::int64_t> parallel, const I64& src_slot, const I64& dst_slot,
         const I64& src, const I64& dst, std::int64_t seed, bool hashed) {
        return crossings(tree_ways(std::move(down), std::move(up), std::move(parallel), src_slot, dst_slot, src, dst, seed, hashed));
      },
      "down"_a, "up"_a, "parallel"_a, "src_slot"_a, "dst_slot"_a, "src"_a, "dst"_a, "seed"_a, "hashed"_a,
      "Ways through a fat tree, one a pair of slots: where each begins, and its links. D-mod-k, or ECMP if hashed, by endpoints src, dst.");

  nb::class_<sim::Program>(m, "Program", "Streams of instructions that exchange messages over channels; columns as in busbw/sim/program.hpp.")
      .def(nb::init<>())
      .def("set_code", &set_code, "code"_a, "(instructions x 4), flat: operation, first, count, amount.")
      .def("set_streams",
           [](sim::Program& p, const I32& entry, const I64& channels, const I32& channel_of, const I64& ports, const I32& port_of, const I64& slowness,
              const Column<std::int8_t>& background) {
             p.streams = {values(entry), values(channels), values(channel_of), values(ports), values(port_of), values(slowness), values(background)};
           },
           "entry"_a, "channels"_a, "channel_of"_a, "ports"_a, "port_of"_a, "slowness"_a, "background"_a)
      .def("set_channels",
           [](sim::Program& p, const I32& way, const I64& size_bytes, const I32& weight, const I32& slots, const I32& injector, const I64& ports,
              const I64& credit_ps, const I64& overhead_ps) {
             p.channels = {values(way), values(size_bytes), values(weight), values(slots), values(injector), values(ports), values(overhead_ps), values(credit_ps)};
           },
           "way"_a, "size_bytes"_a, "weight"_a, "slots"_a, "injector"_a, "ports"_a, "credit_ps"_a, "overhead_ps"_a)
      .def("set_ports", [](sim::Program& p, const I32& stream, const I64& latency_ps) { p.ports = {values(stream), values(latency_ps)}; }, "stream"_a,
           "latency_ps"_a)
      .def("set_ways", &set_ways, "begin"_a, "link"_a, "share"_a)
      .def("set_tree_ways",
           [](sim::Program& p, std::vector<std::int64_t> down, std::vector<std::int64_t> up, std::vector<std::int64_t> parallel, const I64& src_slot,
              const I64& dst_slot, const I64& src, const I64& dst, std::int64_t seed, bool hashed) {
             p.ways = tree_ways(std::move(down), std::move(up), std::move(parallel), src_slot, dst_slot, src, dst, seed, hashed);
             sim::Column<std::int8_t> hops;
             hops.reserve(p.ways.begin.size());
             for (std::size_t w = 0; w + 1 < p.ways.begin.size(); ++w) hops.push_back(static_cast<std::int8_t>(p.ways.begin[w + 1] - p.ways.begin[w]));
             return array(std::move(hops));
           },
           "down"_a, "up"_a, "parallel"_a, "src_slot"_a, "dst_slot"_a, "src"_a, "dst"_a, "seed"_a, "hashed"_a, "Takes what tree_ways gives; returns how many links each way has.")
      .def("set_capacity", &set_capacity, "units"_a, "(L,) in 1/1024 byte per second.")
      .def_rw("share_unit", &sim::Program::share_unit)
      .def("set_injectors", [](sim::Program& p, const I64& gap_ps) { p.injector_gap_ps.assign(gap_ps.data(), gap_ps.data() + gap_ps.shape(0)); }, "gap_ps"_a)
      .def("set_changes",
           [](sim::Program& p, const I64& time_ps, const I32& link, const I64& units, const I32& channel, const I32& way) {
             p.changes = {values(time_ps), values(link), values(units), values(channel), values(way)};
           },
           "time_ps"_a, "link"_a, "units"_a, "channel"_a, "way"_a);

  nb::class_<sim::ProgramRun>(m, "Run", "One run of a program.")
      .def("__init__",
           [](sim::ProgramRun* run, sim::Program& program, bool record, bool fast_forward, std::int64_t most_rows) {
             nb::gil_scoped_release free;
             new (run) sim::ProgramRun(std::move(program), {record, fast_forward, most_rows});
           },
           "program"_a, "record"_a, "fast_forward"_a, "most_rows"_a, "Takes the program's columns; the program is empty afterwards.")
      .def("run", [](sim::ProgramRun& run, std::int64_t events) { return static_cast<int>(run.run(events)); }, "events"_a,
           nb::call_guard<nb::gil_scoped_release>(), "Goes on for about so many events: 0 not yet done, 1 done, 2 stalled.")
      .def_prop_ro("now_ps", [](const sim::ProgramRun& run) { return sim::count(run.now()); })
      .def_prop_ro("events", &sim::ProgramRun::events)
      .def_prop_ro("messages", &sim::ProgramRun::messages)
      .def_prop_ro("messages_skipped", &sim::ProgramRun::messages_skipped)
      .def_prop_ro("solves", &sim::ProgramRun::solves)
      .def_prop_ro("rows_left_out", &sim::ProgramRun::rows_left_out)
      .def("ends_ps", [](const sim::ProgramRun& run) { return array(run.ends_ps()); }, "(S,) when each stream ended, -1 if it has not.")
      .def("causes", [](const sim::ProgramRun& run) { return array(run.causes()); }, "(S,) the row that let each stream end, -1 none.")
      .def("channel_bytes", [](const sim::ProgramRun& run) { return array(sim::Column<std::int64_t>(run.channel_bytes())); })
      .def("tasks", &tasks, "channel, stream, posted, begin, end (ps), bytes, bottleneck, cause.")
      .def("repeats", &repeats, "first row, last row, times, period in ps.")
      .def("waits", &waits, "stream, operation, channel, link without capacity; of streams that have not ended.");
}
