// The partition found is the cheapest one, and a change lies where it was planted.
#include "busbw/stats/change_points.hpp"

#include <cmath>
#include <random>
#include <vector>

#include "check.hpp"

using busbw::stats::change_points;
using busbw::stats::places;
using busbw::stats::SquaredErrors;

namespace {

double cost_of(const std::vector<double>& values, const std::vector<std::int64_t>& changes, double price) {
  const SquaredErrors errors(values);
  double cost = price * static_cast<double>(changes.size());
  std::size_t begin = 0;
  for (const std::int64_t change : changes) {
    cost += errors.of(begin, static_cast<std::size_t>(change));
    begin = static_cast<std::size_t>(change);
  }
  return cost + errors.of(begin, values.size());
}

/// All partitions into stretches of at least `shortest`, one after the other: the cheapest.
double least_cost(const std::vector<double>& values, double price, std::size_t shortest) {
  const std::size_t n = values.size();
  double least = cost_of(values, {}, price);
  for (std::uint32_t cuts = 1; cuts < (1u << (n - 1)); ++cuts) {
    std::vector<std::int64_t> changes;
    std::size_t begin = 0;
    bool legal = true;
    for (std::size_t k = 1; k < n; ++k)
      if (cuts >> (k - 1) & 1) {
        legal = legal && k - begin >= shortest;
        changes.push_back(static_cast<std::int64_t>(k));
        begin = k;
      }
    if (legal && n - begin >= shortest) least = std::min(least, cost_of(values, changes, price));
  }
  return least;
}

void no_partition_is_cheaper() {
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal;
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<double> values(2 + random() % 10);
    for (double& value : values) value = normal(random) + (random() % 4 == 0 ? 3 : 0);
    const double price = static_cast<double>(random() % 8) / 2;
    const std::size_t shortest = 1 + random() % 3;
    const auto changes = change_points(values, price, shortest);
    CHECK(std::abs(cost_of(values, changes, price) - least_cost(values, price, shortest)) < 1e-9);
  }
}

void a_step_without_noise_is_found_where_it_is() {
  for (std::int64_t step = 3; step <= 17; ++step) {
    std::vector<double> values(20, 1e9);
    for (std::size_t i = static_cast<std::size_t>(step); i < values.size(); ++i) values[i] += 1;
    const auto changes = change_points(values, 0.1, 3);
    CHECK(changes == std::vector<std::int64_t>{step});
    const auto found = places(values, changes, 0.1, 2, 0.9);
    CHECK(found.size() == 1 && found[0].at == step && found[0].low == step && found[0].high == step);
  }
}

void too_short_a_series_has_no_change() {
  CHECK(change_points(std::vector<double>{}, 1, 3).empty());
  CHECK(change_points(std::vector<double>{1, 1, 9, 9, 9}, 0, 3).empty());
}

}  // namespace

int main() {
  no_partition_is_cheaper();
  a_step_without_noise_is_found_where_it_is();
  too_short_a_series_has_no_change();
  return busbw::testing::failures == 0 ? 0 : 1;
}
