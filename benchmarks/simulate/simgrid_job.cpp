// The jobs of S1 to S4 in SimGrid (S4U, 3.32): prints the simulated time in seconds.
// Settings of a fabric instead of the Internet: CM02, factors of bandwidth and latency 1, no TCP window, no cross traffic.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <simgrid/s4u.hpp>

namespace s4u = simgrid::s4u;

namespace {

constexpr double kBytesPerSecond = 50e9;
constexpr double kLatencySeconds = 1e-6;

std::vector<s4u::Host*> star(int hosts) {
  auto* zone = s4u::create_star_zone("star");
  std::vector<s4u::Host*> made;
  for (int i = 0; i < hosts; ++i) {
    const std::string name = std::to_string(i);
    auto* host = zone->create_host("h" + name, 1e9);
    auto* up = zone->create_link("up" + name, kBytesPerSecond)->set_latency(kLatencySeconds)->seal();
    auto* down = zone->create_link("down" + name, kBytesPerSecond)->set_latency(kLatencySeconds)->seal();
    host->seal();
    zone->add_route(host->get_netpoint(), nullptr, nullptr, nullptr, {{up, s4u::LinkInRoute::Direction::NONE}}, false);
    zone->add_route(nullptr, host->get_netpoint(), nullptr, nullptr, {{down, s4u::LinkInRoute::Direction::NONE}}, false);
    made.push_back(host);
  }
  zone->seal();
  return made;
}

/// Leaves and spines with full bisection: sqrt(hosts) leaves of as many hosts.
std::vector<s4u::Host*> fat_tree(int hosts) {
  const auto leaves = static_cast<unsigned>(std::lround(std::sqrt(hosts)));
  std::vector<s4u::Host*> made;
  auto make = [&made](s4u::NetZone* zone, const std::vector<unsigned long>&, unsigned long id) {
    auto* host = zone->create_host("h" + std::to_string(id), 1e9)->seal();
    made.push_back(host);
    return std::pair<simgrid::kernel::routing::NetPoint*, simgrid::kernel::routing::NetPoint*>{host->get_netpoint(), nullptr};
  };
  s4u::create_fatTree_zone("tree", nullptr, {2, {leaves, leaves}, {1, leaves}, {1, 1}}, s4u::ClusterCallbacks(make), kBytesPerSecond,
                           kLatencySeconds, s4u::Link::SharingPolicy::SPLITDUPLEX)
      ->seal();
  return made;
}

void wait_for(std::vector<s4u::CommPtr>& comms) {
  s4u::Comm::wait_all(comms);
  comms.clear();
}

}  // namespace

int main(int argc, char** argv) {
  s4u::Engine engine(&argc, argv);
  for (const char* setting : {"network/model:CM02", "network/bandwidth-factor:1.0", "network/latency-factor:1.0",
                              "network/TCP-gamma:0", "network/crosstraffic:0"})
    s4u::Engine::set_config(setting);
  if (argc != 4) return 2;
  const std::string job = argv[1];
  const int ranks = std::atoi(argv[2]);
  const auto bytes = std::strtoull(argv[3], nullptr, 10);
  const auto hosts = job == "ring" ? star(ranks) : fat_tree(ranks);
  s4u::Actor::create("job", hosts[0], [&] {
    std::vector<s4u::CommPtr> comms;
    if (job == "ring") {
      for (int round = 0; round < 2 * (ranks - 1); ++round) {
        for (int i = 0; i < ranks; ++i)
          comms.push_back(s4u::Comm::sendto_async(hosts[i], hosts[(i + 1) % ranks], (bytes + ranks - 1) / ranks));
        wait_for(comms);
      }
    } else {
      for (int i = 0; i < ranks; ++i)
        for (int by = 1; by < ranks; ++by) comms.push_back(s4u::Comm::sendto_async(hosts[i], hosts[(i + by) % ranks], bytes));
      wait_for(comms);
    }
  });
  engine.run();
  std::printf("%.12g\n", s4u::Engine::get_clock());
  return 0;
}
