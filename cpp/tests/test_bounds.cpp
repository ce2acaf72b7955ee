// Maximum flow, the throughput bound and automorphisms on graphs small enough to do by hand.
#include "busbw/schedule/automorphisms.hpp"
#include "busbw/schedule/capacity_graph.hpp"
#include "busbw/schedule/max_flow.hpp"
#include "busbw/schedule/throughput_bound.hpp"
#include "check.hpp"

namespace {

using namespace busbw::schedule;

/// n GPUs on one switch, vertex n.
CapacityGraph star(std::int32_t n, std::int64_t capacity) {
  CapacityGraph graph;
  graph.is_gpu.assign(static_cast<std::size_t>(n) + 1, 1);
  graph.is_gpu.back() = 0;
  for (std::int32_t v = 0; v < n; ++v) {
    graph.src.insert(graph.src.end(), {v, n});
    graph.dst.insert(graph.dst.end(), {n, v});
    graph.capacity.insert(graph.capacity.end(), {capacity, capacity});
  }
  return graph;
}

/// Two ways of 3 and 2 with a cross link: 5 pass, and the cut is at the source. Once more with the first way cut to 1.
void a_flow_takes_back_what_it_sent_wrong() {
  MaxFlow<std::int64_t> network(4);
  const auto a = network.add(0, 1);
  const auto b = network.add(0, 2);
  const auto cross = network.add(1, 2);
  const auto c = network.add(1, 3);
  const auto d = network.add(2, 3);
  for (const auto arc : {a, b, cross, c, d}) network.set(arc, arc == a ? 3 : arc == d ? 4 : 2);
  CHECK(network.run(0, 3, 100) == 5);
  CHECK(network.flow(a) == 3 && network.flow(cross) == 1);
  const auto side = network.source_side(0);
  CHECK(side[0] && !side[1] && !side[2] && !side[3]);
  for (const auto arc : {a, b, cross, c, d}) network.set(arc, arc == a ? 1 : 2);
  CHECK(network.run(0, 3, 100) == 3);
  for (const auto arc : {a, b, cross, c, d}) network.set(arc, 2);
  CHECK(network.run(0, 3, 1) == 1);
}

/// 7 others' data enter each GPU: 1/x* = 7 / 300. Also where products need more than 64 bits.
void a_star_is_bound_by_one_port() {
  for (const std::int64_t capacity : {std::int64_t{300}, std::int64_t{100'000'000'000'000'000}}) {
    const auto bound = throughput_bound(star(8, capacity), {0});
    CHECK(bound.capacity == capacity && bound.gpus == 7 && bound.flows == 1);
  }
}

void a_gpu_without_links_has_a_cut_of_nothing() {
  auto graph = star(3, 1);
  graph.is_gpu.push_back(1);
  CHECK(throughput_bound(graph, {0, 1, 2, 4}).capacity == 0);
}

/// A directed ring of 6 has rotations only; its classes are one, and its orbits too.
void a_ring_is_one_orbit() {
  ColouredGraph ring;
  ring.colour.assign(6, 0);
  for (std::int32_t v = 0; v < 6; ++v) {
    ring.src.push_back(v);
    ring.dst.push_back((v + 1) % 6);
    ring.edge_colour.push_back(0);
  }
  CHECK(Refinement(ring).cells() == 1);
  const auto maps = Automorphisms(ring).find(1, 20);
  CHECK(!maps.empty());
  for (const auto& map : maps)
    for (std::size_t v = 0; v < 6; ++v) CHECK(map[(v + 1) % 6] == (map[v] + 1) % 6);
  ring.edge_colour[0] = 1;
  CHECK(Refinement(ring).is_discrete());
  CHECK(Automorphisms(ring).find(1, 20).empty());
}

}  // namespace

int main() {
  a_flow_takes_back_what_it_sent_wrong();
  a_star_is_bound_by_one_port();
  a_gpu_without_links_has_a_cut_of_nothing();
  a_ring_is_one_orbit();
  return busbw::testing::failures == 0 ? 0 : 1;
}
