// Packing of trees for Python: a graph of limits in, parents and ways out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "busbw/schedule/exchange_routing.hpp"
#include "busbw/schedule/forest_packing.hpp"
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

}  // namespace

NB_MODULE(_forests, m) {
  m.doc() = "Packing of spanning trees within limits of links.";
  m.def(
      "pack",
      [](const Column<std::uint8_t>& is_gpu, const Column<std::int32_t>& src, const Column<std::int32_t>& dst, const Column<std::int64_t>& trees_allowed,
         const Column<std::int32_t>& roots, std::int32_t depth, std::int32_t sweeps, double depth_price, std::uint64_t seed) {
        schedule::CapacityGraph graph{values(is_gpu), values(src), values(dst), values(trees_allowed)};
        schedule::PackingLimits limits;
        if (depth > 0) limits.depth = depth;
        limits.sweeps = sweeps;
        limits.depth_price = depth_price;
        const std::size_t trees = roots.shape(0);
        auto starts = values(roots);
        nb::gil_scoped_release free;
        schedule::ForestPacking packing(graph, std::move(starts), limits, seed);
        const auto left = packing.pack();
        const std::size_t gpus = graph.gpus();
        const std::size_t edges = packing.load().size();
        const std::size_t begins = packing.path_begin().size();
        const std::size_t steps = packing.path_edges().size();
        auto parents = packing.parents();
        auto paths = packing.paths();
        auto load = packing.load();
        auto begin = packing.path_begin();
        auto links = packing.path_edges();
        nb::gil_scoped_acquire again;
        return std::tuple(left, array_of(std::move(parents), {trees, gpus}), array_of(std::move(paths), {trees, gpus}), array_of(std::move(load), {edges}),
                          array_of(std::move(begin), {begins}), array_of(std::move(links), {steps}));
      },
      "is_gpu"_a, "src"_a, "dst"_a, "trees_allowed"_a, "roots"_a, "depth"_a, "sweeps"_a, "depth_price"_a, "seed"_a,
      "(excess, parents (T, N), ways (T, N), load (E,), way_begin, way_edges): trees from roots; excess 0 if no edge is in more than trees_allowed. depth 0: any.");

  m.def(
      "route_pairs",
      [](const Column<std::uint8_t>& is_gpu, const Column<std::int32_t>& src, const Column<std::int32_t>& dst, const Column<std::int64_t>& pairs_allowed,
         std::int32_t sweeps, std::uint64_t seed) {
        const schedule::CapacityGraph graph{values(is_gpu), values(src), values(dst), values(pairs_allowed)};
        std::vector<std::int64_t> begin;
        std::vector<std::int32_t> edges;
        std::int64_t left = 0;
        {
          nb::gil_scoped_release free;
          schedule::ExchangeRouting routing(graph, seed);
          left = routing.route(sweeps);
          begin.reserve(routing.ways().size() + 1);
          begin.push_back(0);
          for (const auto& way : routing.ways()) {
            edges.insert(edges.end(), way.begin(), way.end());
            begin.push_back(static_cast<std::int64_t>(edges.size()));
          }
        }
        const std::size_t begins = begin.size();
        const std::size_t steps = edges.size();
        return std::tuple(left, array_of(std::move(begin), {begins}), array_of(std::move(edges), {steps}));
      },
      "is_gpu"_a, "src"_a, "dst"_a, "pairs_allowed"_a, "sweeps"_a, "seed"_a,
      "(excess, way_begin (N * N + 1,), way_edges): a way for every ordered pair, source * N + destination; excess 0 if no edge is in more than pairs_allowed.");
}
