// Bounds and symmetries of capacity graphs for Python: columns in, exact integers and arrays out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "busbw/schedule/automorphisms.hpp"
#include "busbw/schedule/capacity_graph.hpp"
#include "busbw/schedule/max_flow.hpp"
#include "busbw/schedule/throughput_bound.hpp"
#include "columns.hpp"

namespace nb = nanobind;
using namespace nb::literals;
namespace schedule = busbw::schedule;

namespace {

using busbw::bindings::Column;
using busbw::bindings::values;
template <class T>
using Answer = nb::ndarray<nb::numpy, T>;

template <class T>
Answer<T> array_of(std::vector<T> numbers, std::vector<std::size_t> shape) {
  const auto [data, owner] = busbw::bindings::kept(std::move(numbers));
  return Answer<T>(data, shape.size(), shape.data(), owner);
}

schedule::CapacityGraph graph_of(const Column<std::uint8_t>& is_gpu, const Column<std::int32_t>& src, const Column<std::int32_t>& dst,
                                 const Column<std::int64_t>& capacity) {
  return {values(is_gpu), values(src), values(dst), values(capacity)};
}

schedule::ColouredGraph coloured(const Column<std::int32_t>& colour, const Column<std::int32_t>& src, const Column<std::int32_t>& dst,
                                 const Column<std::int32_t>& edge_colour) {
  schedule::ColouredGraph graph{values(colour), values(src), values(dst), values(edge_colour)};
  if (graph.dst.size() != graph.src.size() || graph.edge_colour.size() != graph.src.size()) throw std::invalid_argument("columns of edges differ in length");
  const auto n = static_cast<std::int64_t>(graph.colour.size());
  for (std::size_t e = 0; e < graph.src.size(); ++e)
    if (graph.src[e] < 0 || graph.src[e] >= n || graph.dst[e] < 0 || graph.dst[e] >= n) throw std::invalid_argument("an edge ends at a vertex that does not exist");
  return graph;
}

}  // namespace

NB_MODULE(_bounds, m) {
  m.doc() = "Maximum flows, the throughput bound and symmetries of capacity graphs, in integers.";

  m.def(
      "throughput_bound",
      [](const Column<std::uint8_t>& is_gpu, const Column<std::int32_t>& src, const Column<std::int32_t>& dst, const Column<std::int64_t>& capacity,
         const Column<std::int32_t>& destinations) {
        const auto graph = graph_of(is_gpu, src, dst, capacity);
        const auto chosen = values(destinations);
        schedule::ThroughputBound bound;
        {
          nb::gil_scoped_release free;
          bound = schedule::throughput_bound(graph, chosen);
        }
        const std::size_t n = bound.cut.size();
        return std::tuple(bound.capacity, bound.gpus, array_of(std::move(bound.cut), {n}), bound.flows);
      },
      "is_gpu"_a, "src"_a, "dst"_a, "capacity"_a, "destinations"_a,
      "(capacity out of the tightest cut, GPUs in it, the cut as (V,) uint8, flows computed). destinations: GPUs to look at, one an orbit.");

  m.def(
      "max_flow",
      [](const Column<std::uint8_t>& is_gpu, const Column<std::int32_t>& src, const Column<std::int32_t>& dst, const Column<std::int64_t>& capacity,
         std::int32_t source, const Column<std::int32_t>& sinks) {
        const auto graph = graph_of(is_gpu, src, dst, capacity);
        graph.check();
        const auto targets = values(sinks);
        const auto n = static_cast<std::int64_t>(graph.vertices());
        if (source < 0 || source >= n) throw std::invalid_argument("the source is no vertex");
        for (const auto t : targets)
          if (t < 0 || t >= n || t == source) throw std::invalid_argument("a sink is no vertex, or the source itself");
        std::vector<std::int64_t> flows;
        {
          nb::gil_scoped_release free;
          schedule::MaxFlow<std::int64_t> network(graph.vertices());
          for (std::size_t e = 0; e < graph.edges(); ++e) network.add(graph.src[e], graph.dst[e]);
          for (const auto t : targets) {
            for (std::size_t e = 0; e < graph.edges(); ++e) network.set(e, graph.capacity[e]);
            flows.push_back(network.run(source, t, std::numeric_limits<std::int64_t>::max()));
          }
        }
        const std::size_t count = flows.size();
        return array_of(std::move(flows), {count});
      },
      "is_gpu"_a, "src"_a, "dst"_a, "capacity"_a, "source"_a, "sinks"_a, "(sinks,) int64: the largest flow from the source to each sink.");

  m.def(
      "least_cut",
      [](const Column<std::uint8_t>& is_gpu, const Column<std::int32_t>& src, const Column<std::int32_t>& dst, const Column<std::int64_t>& capacity,
         std::int32_t source, std::int32_t sink) {
        const auto graph = graph_of(is_gpu, src, dst, capacity);
        graph.check();
        const auto n = static_cast<std::int64_t>(graph.vertices());
        if (source < 0 || source >= n || sink < 0 || sink >= n || source == sink) throw std::invalid_argument("source and sink must be two vertices");
        schedule::MaxFlow<std::int64_t> network(graph.vertices());
        for (std::size_t e = 0; e < graph.edges(); ++e) network.add(graph.src[e], graph.dst[e]);
        for (std::size_t e = 0; e < graph.edges(); ++e) network.set(e, graph.capacity[e]);
        const auto flow = network.run(source, sink, std::numeric_limits<std::int64_t>::max());
        return std::tuple(flow, array_of(network.source_side(source), {graph.vertices()}));
      },
      "is_gpu"_a, "src"_a, "dst"_a, "capacity"_a, "source"_a, "sink"_a, "(flow, the smallest least cut's side of the source as (V,) uint8).");

  m.def(
      "automorphisms",
      [](const Column<std::int32_t>& colour, const Column<std::int32_t>& src, const Column<std::int32_t>& dst, const Column<std::int32_t>& edge_colour,
         std::uint64_t seed, int patience) {
        const auto graph = coloured(colour, src, dst, edge_colour);
        std::vector<std::int32_t> flat;
        std::size_t count = 0;
        {
          nb::gil_scoped_release free;
          for (const auto& image : schedule::Automorphisms(graph).find(seed, patience)) {
            flat.insert(flat.end(), image.begin(), image.end());
            ++count;
          }
        }
        return array_of(std::move(flat), {count, graph.colour.size()});
      },
      "colour"_a, "src"_a, "dst"_a, "edge_colour"_a, "seed"_a, "patience"_a,
      "(automorphisms, V) int32: maps of vertices that keep all colours, each tried edge by edge. At most one edge a pair of vertices.");

  m.def(
      "refined_classes",
      [](const Column<std::int32_t>& colour, const Column<std::int32_t>& src, const Column<std::int32_t>& dst, const Column<std::int32_t>& edge_colour) {
        const auto graph = coloured(colour, src, dst, edge_colour);
        const schedule::Refinement refinement(graph);
        std::vector<std::int32_t> cells(graph.colour.size());
        for (std::size_t v = 0; v < cells.size(); ++v) cells[v] = static_cast<std::int32_t>(refinement.cell(v));
        const std::size_t n = cells.size();
        return array_of(std::move(cells), {n});
      },
      "colour"_a, "src"_a, "dst"_a, "edge_colour"_a, "(V,) int32: classes of the coarsest equitable partition that is finer than the colours.");
}
