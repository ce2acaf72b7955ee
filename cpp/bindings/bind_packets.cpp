// The packet simulator for Python: routes, links and flows as columns in, results as columns out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "busbw/sim/packet/simulation.hpp"
#include "columns.hpp"

namespace nb = nanobind;
using namespace nb::literals;
namespace packet = busbw::sim::packet;
using busbw::sim::Picoseconds;

namespace {

template <class T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Integers = nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>>;

template <class T>
std::vector<T> values(const Column<T>& column) {
  return {column.data(), column.data() + column.shape(0)};
}

template <class T>
Integers column(std::vector<T> from) {
  const auto [data, owner] = busbw::bindings::kept(std::vector<std::int64_t>(from.begin(), from.end()));
  return Integers(data, {from.size()}, owner);
}

template <class Rows, class Get>
Integers column_of(const Rows& rows, Get get) {
  std::vector<std::int64_t> out;
  out.reserve(rows.size());
  for (const auto& row : rows) out.push_back(get(row));
  return column(std::move(out));
}

template <class T>
void property(nb::class_<packet::Settings>& settings, const char* name, T packet::Settings::*member) {
  settings.def_rw(name, member);
}
void property(nb::class_<packet::Settings>& settings, const char* name, Picoseconds packet::Settings::*member) {
  settings.def_prop_rw(
      name, [member](const packet::Settings& self) { return busbw::sim::count(self.*member); },
      [member](packet::Settings& self, std::int64_t ps) { self.*member = Picoseconds{ps}; });
}
template <class Enum>
void choice(nb::class_<packet::Settings>& settings, const char* name, Enum packet::Settings::*member, int last) {
  settings.def_prop_rw(
      name, [member](const packet::Settings& self) { return static_cast<int>(self.*member); },
      [member, last](packet::Settings& self, int value) {
        if (value < 0 || value > last) throw std::invalid_argument("no such choice");
        self.*member = static_cast<Enum>(value);
      });
}

void bind_settings(nb::module_& m) {
  using packet::Settings;
  nb::class_<Settings> settings(m, "Settings", "What a simulation is told. Names and meanings as in busbw/sim/packet/settings.hpp; choices by number.");
  settings.def(nb::init<>());
  choice(settings, "transport", &Settings::transport, 5);
  choice(settings, "overflow", &Settings::overflow, 3);
  choice(settings, "choice", &Settings::choice, 3);
  property(settings, "payload_bytes", &Settings::payload_bytes);
  property(settings, "header_bytes", &Settings::header_bytes);
  property(settings, "control_bytes", &Settings::control_bytes);
  property(settings, "in_order", &Settings::in_order);
  property(settings, "control_before_data", &Settings::control_before_data);
  property(settings, "queue_bytes", &Settings::queue_bytes);
  property(settings, "control_queue_bytes", &Settings::control_queue_bytes);
  property(settings, "mark_from_bytes", &Settings::mark_from_bytes);
  property(settings, "mark_all_bytes", &Settings::mark_all_bytes);
  property(settings, "mark_probability", &Settings::mark_probability);
  property(settings, "pause_above_bytes", &Settings::pause_above_bytes);
  property(settings, "resume_below_bytes", &Settings::resume_below_bytes);
  property(settings, "credit_bytes", &Settings::credit_bytes);
  property(settings, "lanes", &Settings::lanes);
  property(settings, "window_packets", &Settings::window_packets);
  property(settings, "entropies", &Settings::entropies);
  property(settings, "avoid_congested", &Settings::avoid_congested);
  property(settings, "pull_rate", &Settings::pull_rate);
  property(settings, "pull_overhead_bytes", &Settings::pull_overhead_bytes);
  property(settings, "pull_bytes", &Settings::pull_bytes);
  property(settings, "acknowledge_bytes", &Settings::acknowledge_bytes);
  property(settings, "retransmit_after_ps", &Settings::retransmit_after);
  property(settings, "seed", &Settings::seed);
  property(settings, "sample_every_ps", &Settings::sample_every);
  property(settings, "end_at_ps", &Settings::end_at);
  property(settings, "most_events", &Settings::most_events);
  property(settings, "most_bytes", &Settings::most_bytes);
  settings.def(
      "set_dcqcn",
      [](Settings& self, std::int64_t alpha_timer_ps, std::int64_t increase_timer_ps, std::int64_t notify_interval_ps, std::int64_t increase_bytes,
         double g, std::int32_t fast_recovery_rounds, double additive_bytes_per_s, double hyper_bytes_per_s, double least_bytes_per_s) {
        if (alpha_timer_ps < 1 || increase_timer_ps < 1 || increase_bytes < 1 || !(least_bytes_per_s > 0))
          throw std::invalid_argument("DCQCN: timers, byte counter and least rate must be positive");
        self.dcqcn = {Picoseconds{alpha_timer_ps}, Picoseconds{increase_timer_ps}, Picoseconds{notify_interval_ps}, increase_bytes, g,
                      fast_recovery_rounds, additive_bytes_per_s, hyper_bytes_per_s, least_bytes_per_s};
      },
      "alpha_timer_ps"_a, "increase_timer_ps"_a, "notify_interval_ps"_a, "increase_bytes"_a, "g"_a, "fast_recovery_rounds"_a,
      "additive_bytes_per_s"_a, "hyper_bytes_per_s"_a, "least_bytes_per_s"_a);
  settings.def(
      "set_window",
      [](Settings& self, double eta, std::int32_t most_stages, double additive_bytes, double beta, double most_decrease, std::int64_t target_delay_ps) {
        if (!(eta > 0) || !(additive_bytes > 0)) throw std::invalid_argument("windows: eta and the additive increase must be positive");
        self.window = {eta, most_stages, additive_bytes, beta, most_decrease, Picoseconds{target_delay_ps}};
      },
      "eta"_a, "most_stages"_a, "additive_bytes"_a, "beta"_a, "most_decrease"_a, "target_delay_ps"_a);
}

}  // namespace

NB_MODULE(_packets, m) {
  m.doc() = "Packets through queues: a simulation that runs in pieces.";
  bind_settings(m);

  using packet::PacketSimulation;
  nb::class_<PacketSimulation>(m, "PacketSimulation", "A network with flows; time begins at 0.")
      .def("__init__",
           [](PacketSimulation* simulation, const packet::Settings& settings, const Column<std::uint32_t>& route_first,
              const Column<std::uint32_t>& route_link, const Column<std::uint32_t>& route_node, const Column<double>& link_bytes_per_s,
              const Column<std::int64_t>& link_latency_ps, const Column<std::uint32_t>& flow_forward, const Column<std::uint32_t>& flow_backward,
              const Column<std::int64_t>& flow_bytes, const Column<std::int64_t>& flow_start_ps, const Column<std::int32_t>& flow_lane) {
             new (simulation) PacketSimulation(
                 settings, packet::Routes{values(route_first), values(route_link), values(route_node)},
                 packet::LinkColumns{values(link_bytes_per_s), values(link_latency_ps)},
                 packet::FlowColumns{values(flow_forward), values(flow_backward), values(flow_bytes), values(flow_start_ps), values(flow_lane)});
           },
           "settings"_a, "route_first"_a, "route_link"_a, "route_node"_a, "link_bytes_per_s"_a, "link_latency_ps"_a, "flow_forward"_a,
           "flow_backward"_a, "flow_bytes"_a, "flow_start_ps"_a, "flow_lane"_a,
           "Routes as a graph of choices, links and flows as columns; see busbw/sim/packet/network.hpp.")
      .def("run", [](PacketSimulation& self, std::uint64_t events) { return static_cast<int>(self.run(events)); }, "events"_a,
           nb::call_guard<nb::gil_scoped_release>(),
           "Runs for about that many more events. 0 not ended, 1 done, 2 stalled, 3 time, 4 events, 5 memory limit reached.")
      .def_prop_ro("now_ps", [](const PacketSimulation& self) { return busbw::sim::count(self.now()); })
      .def_prop_ro("events", &PacketSimulation::events)
      .def_prop_ro("unfinished", &PacketSimulation::unfinished)
      .def_prop_ro("bytes", &PacketSimulation::bytes)
      .def("rate", &PacketSimulation::rate, "flow"_a, "Rate of a flow's sender, bytes/s; 0 where the transport has none.")
      .def("waiting_chain", [](const PacketSimulation& self) { return column(self.waiting_chain()); },
           "Links that wait for one another when nothing moves.")
      .def("flow_columns",
           [](const PacketSimulation& self) {
             const auto& rows = self.flow_results();
             using Row = packet::FlowResult;
             nb::dict out;
             out["delivered_ps"] = column_of(rows, [](const Row& row) { return row.delivered_ps; });
             out["completed_ps"] = column_of(rows, [](const Row& row) { return row.completed_ps; });
             out["delivered_bytes"] = column_of(rows, [](const Row& row) { return row.delivered_bytes; });
             out["sent_packets"] = column_of(rows, [](const Row& row) { return row.sent_packets; });
             out["again_packets"] = column_of(rows, [](const Row& row) { return row.again_packets; });
             out["trimmed_packets"] = column_of(rows, [](const Row& row) { return row.trimmed_packets; });
             out["marked_packets"] = column_of(rows, [](const Row& row) { return row.marked_packets; });
             out["out_of_order"] = column_of(rows, [](const Row& row) { return row.out_of_order; });
             out["timeouts"] = column_of(rows, [](const Row& row) { return row.timeouts; });
             return out;
           },
           "Results of flows, (F,) int64 each; -1 where a time is not known.")
      .def("link_columns",
           [](const PacketSimulation& self) {
             const auto& rows = self.link_counts();
             using Row = packet::LinkCounts;
             nb::dict out;
             out["sent_bytes"] = column_of(self.links(), [](const packet::Link& link) { return link.sent_bytes; });
             out["packets"] = column_of(self.links(), [](const packet::Link& link) { return link.packets; });
             out["dropped"] = column_of(rows, [](const Row& row) { return row.dropped; });
             out["trimmed"] = column_of(rows, [](const Row& row) { return row.trimmed; });
             out["marked"] = column_of(rows, [](const Row& row) { return row.marked; });
             out["pauses"] = column_of(rows, [](const Row& row) { return row.pauses; });
             out["paused_ps"] = column_of(rows, [](const Row& row) { return row.paused_ps; });
             out["most_queued_bytes"] = column_of(rows, [](const Row& row) { return row.most_queued_bytes; });
             return out;
           },
           "Counts of links, (L,) int64 each.")
      .def("sample_columns", [](const PacketSimulation& self) { return nb::make_tuple(column(self.sample_times_ps()), column(self.samples())); },
           "Times in ps, (S,) int64, and bytes queued, (S * L,) int64.");
}
