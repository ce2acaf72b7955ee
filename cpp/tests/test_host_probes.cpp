// Probes of a machine say something positive, and refuse what they can't do. How fast a machine is, no test knows.
#include "busbw/host/probes.hpp"

#include "check.hpp"

using namespace busbw::host;

int main() {
  constexpr std::size_t kBytes = 1 << 16;
  CHECK(copy_rate(kBytes, {-1}, 2) > 0);
  CHECK(copy_rate(kBytes, {-1, -1, -1}, 2) > 0);  // more threads than there may be cores
  CHECK(triad_rate(kBytes, {-1, -1}, 2) > 0);
  const double trip = line_round_trip(-1, -1, 10, 3);
  CHECK(trip > 0 && trip < 10);
  const Reach found = reach(-1, -1, kBytes, 2);
  CHECK(found.read_bytes_per_s > 0 && found.latency_s > 0 && found.latency_s < 1);
  CHECK_THROWS(std::invalid_argument, copy_rate(kBytes, {}, 1));
  CHECK_THROWS(std::invalid_argument, copy_rate(7, {-1}, 1));
  CHECK_THROWS(std::invalid_argument, triad_rate(kBytes, {-1}, 0));
  CHECK_THROWS(std::invalid_argument, line_round_trip(-1, -1, 0, 1));
  CHECK_THROWS(std::invalid_argument, reach(-1, -1, 64, 1));
#ifdef __linux__
  CHECK_THROWS(std::runtime_error, copy_rate(kBytes, {1 << 20}, 1));  // no machine has so many cores
#endif
  return busbw::testing::failures == 0 ? 0 : 1;
}
