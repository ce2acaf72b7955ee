// The rate x* at which every GPU of a graph can broadcast to all others at the same time, exactly.
//
// x* = min over sets S of vertices that miss a GPU of out(S) / |GPUs in S| (J. Edmonds, "Edge-disjoint branchings", 1973;
// L. Zhao et al., "ForestColl", arXiv 2402.06787). An x is feasible iff, with a source that has an edge of capacity x to
// every GPU, the flow from the source to every GPU is N x. An infeasible x shows a cut, whose ratio is the next x to try
// (W. Dinkelbach, "On nonlinear fractional programming", 1967): all numbers are ratios of cuts, so nothing is rounded, and
// the last cut is the certificate. A destination that can take x can take less, so each is looked at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "busbw/schedule/capacity_graph.hpp"
#include "busbw/schedule/max_flow.hpp"

namespace busbw::schedule {

struct ThroughputBound {
  std::int64_t capacity = 0;          ///< x* = capacity / gpus, not reduced: what leaves the cut ...
  std::int64_t gpus = 1;              ///< ... and the GPUs in it
  std::vector<std::uint8_t> cut;      ///< one entry a vertex: whether it lies in S
  std::int64_t flows = 0;             ///< maximum flows computed
};

namespace detail {

template <class Flow>
ThroughputBound throughput_bound(const CapacityGraph& graph, const std::vector<std::int32_t>& destinations) {
  const auto n = static_cast<std::int64_t>(graph.gpus());
  const auto s = static_cast<std::int32_t>(graph.vertices());
  MaxFlow<Flow> network(graph.vertices() + 1);
  for (std::size_t e = 0; e < graph.edges(); ++e) network.add(graph.src[e], graph.dst[e]);
  for (std::size_t v = 0; v < graph.vertices(); ++v)
    if (graph.is_gpu[v]) network.add(s, static_cast<std::int32_t>(v));

  ThroughputBound best;
  best.gpus = 0;
  // The cuts round one GPU, which are often the answer.
  std::vector<std::int64_t> in(graph.vertices(), 0);
  for (std::size_t e = 0; e < graph.edges(); ++e)
    if (graph.src[e] != graph.dst[e]) in[static_cast<std::size_t>(graph.dst[e])] += graph.capacity[e];
  std::size_t least = graph.vertices();
  for (std::size_t v = 0; v < graph.vertices(); ++v)
    if (graph.is_gpu[v] && (least == graph.vertices() || in[v] < in[least])) least = v;
  best.capacity = in[least];
  best.gpus = n - 1;
  best.cut.assign(graph.vertices(), 1);
  best.cut[least] = 0;

  for (const auto destination : destinations) {
    for (;;) {
      const std::int64_t divisor = std::gcd(best.capacity, best.gpus);
      const Flow numerator = best.capacity / divisor;
      const Flow denominator = best.gpus / divisor;
      for (std::size_t e = 0; e < graph.edges(); ++e) network.set(e, denominator * graph.capacity[e]);
      for (std::size_t g = 0; g < static_cast<std::size_t>(n); ++g) network.set(graph.edges() + g, numerator);
      ++best.flows;
      const Flow wanted = numerator * n;
      if (network.run(s, destination, wanted) == wanted) break;
      best.cut = network.source_side(s);
      best.cut.resize(graph.vertices());
      best.capacity = 0;
      best.gpus = 0;
      for (std::size_t v = 0; v < graph.vertices(); ++v) best.gpus += best.cut[v] && graph.is_gpu[v];
      for (std::size_t e = 0; e < graph.edges(); ++e)
        if (best.cut[static_cast<std::size_t>(graph.src[e])] && !best.cut[static_cast<std::size_t>(graph.dst[e])]) best.capacity += graph.capacity[e];
      if (best.capacity == 0) return best;
    }
  }
  return best;
}

}  // namespace detail

/// destinations: GPUs to look at, one of each orbit of a group of automorphisms at least. A capacity of 0 in the answer
/// says that the cut has no way out. Throws std::invalid_argument for graphs of less than two GPUs.
inline ThroughputBound throughput_bound(const CapacityGraph& graph, const std::vector<std::int32_t>& destinations) {
  graph.check();
  if (graph.gpus() < 2) throw std::invalid_argument("a throughput bound needs two GPUs");
  for (const auto d : destinations)
    if (d < 0 || static_cast<std::size_t>(d) >= graph.vertices() || !graph.is_gpu[static_cast<std::size_t>(d)]) throw std::invalid_argument("a destination is no GPU");
  double total = 0;
  for (const auto c : graph.capacity) total += static_cast<double>(c);
  if (total > 4e18) throw std::invalid_argument("capacities do not fit 64 bits together: take a larger unit");
  // The largest number is N times the sum of capacities.
  if (total * static_cast<double>(graph.gpus()) < 4e18) return detail::throughput_bound<std::int64_t>(graph, destinations);
  __extension__ using Wide = __int128;
  return detail::throughput_bound<Wide>(graph, destinations);
}

}  // namespace busbw::schedule
