// Trees and ways that fit limits, on graphs small enough to count.
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "busbw/schedule/exchange_routing.hpp"
#include "busbw/schedule/forest_packing.hpp"
#include "check.hpp"

namespace {

using namespace busbw::schedule;

/// P nodes of L GPUs: GPU g on its node's switch with room for `inside`, and on plane g mod L with room for `nic`.
CapacityGraph rails(std::int32_t nodes, std::int32_t gpus, std::int64_t inside, std::int64_t nic) {
  CapacityGraph graph;
  const std::int32_t n = nodes * gpus;
  graph.is_gpu.assign(static_cast<std::size_t>(n + nodes + gpus), 0);
  const auto join = [&](std::int32_t a, std::int32_t b, std::int64_t room) {
    graph.src.insert(graph.src.end(), {a, b});
    graph.dst.insert(graph.dst.end(), {b, a});
    graph.capacity.insert(graph.capacity.end(), {room, room});
  };
  for (std::int32_t v = 0; v < n; ++v) {
    graph.is_gpu[static_cast<std::size_t>(v)] = 1;
    join(v, n + v / gpus, inside);
    join(v, n + nodes + v % gpus, nic);
  }
  return graph;
}

std::vector<std::int32_t> all(std::int32_t n) {
  std::vector<std::int32_t> roots;
  for (std::int32_t v = 0; v < n; ++v) roots.push_back(v);
  return roots;
}

/// 6 nodes of 4: every tree enters 5 nodes, so each of 4 NICs takes in 24 * 5 / 24 = 5; a GPU hears 3 * 6 others inside.
void trees_fit_the_least_room_there_can_be() {
  ForestPacking packing(rails(6, 4, 19, 5), all(24), {}, 1);
  CHECK(packing.pack() == 0);
  for (std::size_t t = 0; t < 24; ++t) {
    std::size_t without_parent = 0;
    for (std::size_t v = 0; v < 24; ++v) {
      const auto parent = packing.parents()[t * 24 + v];
      without_parent += parent < 0;
      if (parent >= 0) CHECK(packing.depths()[t * 24 + v] == packing.depths()[t * 24 + static_cast<std::size_t>(parent)] + 1);
    }
    CHECK(without_parent == 1);
  }
}

/// With room for one tree less a NIC, something must be over.
void too_little_room_is_said() { CHECK(ForestPacking(rails(6, 4, 19, 4), all(24), {}, 1).pack() > 0); }

void depth_that_cannot_be_is_refused() {
  CapacityGraph line;
  line.is_gpu.assign(3, 1);
  line.src = {0, 1, 1, 2};
  line.dst = {1, 0, 2, 1};
  line.capacity = {9, 9, 9, 9};
  PackingLimits flat;
  flat.depth = 1;
  CHECK_THROWS(std::invalid_argument, ForestPacking(line, {0}, flat, 1).pack());
}

/// 6 nodes of 4: 4 * 20 pairs leave a node over 4 NICs, 20 each.
void ways_fit_the_cut_round_a_node() {
  ExchangeRouting routing(rails(6, 4, 60, 20), 1);
  CHECK(routing.route(50) == 0);
  CHECK(routing.ways()[0].empty());
  CHECK(!routing.ways()[1].empty());
}

}  // namespace

int main() {
  trees_fit_the_least_room_there_can_be();
  too_little_room_is_said();
  depth_that_cannot_be_is_refused();
  ways_fit_the_cut_round_a_node();
  return busbw::testing::failures == 0 ? 0 : 1;
}
