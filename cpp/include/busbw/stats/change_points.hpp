/// Where the level of a series changes: least squares with a price on each change, searched exactly, and where each change most probably lies.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace busbw::stats {

/// Sum of squared distances from the mean of any stretch [begin, end), in constant time. Values are taken relative to the first, so that a
/// large common level costs no digits.
class SquaredErrors {
 public:
  explicit SquaredErrors(std::span<const double> values) : sums_(values.size() + 1), squares_(values.size() + 1) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double value = values[i] - values[0];
      sums_[i + 1] = sums_[i] + value;
      squares_[i + 1] = squares_[i] + value * value;
    }
  }
  double of(std::size_t begin, std::size_t end) const {
    const double sum = sums_[end] - sums_[begin];
    return std::max(0.0, squares_[end] - squares_[begin] - sum * sum / static_cast<double>(end - begin));
  }

 private:
  std::vector<double> sums_, squares_;
};

/// First indices of the stretches after the first one, ascending: the partition into stretches of at least `shortest` values with the
/// least sum of squared errors plus `price` for each change. Exact.
/// Source: Killick, Fearnhead, Eckley, JASA 107 (2012), PELT. A start that costs more at `end` than the best partition of what lies before
/// `end` is worse than a change at `end` ever after, so it is dropped once a stretch from `end` is long enough.
inline std::vector<std::int64_t> change_points(std::span<const double> values, double price, std::size_t shortest) {
  const std::size_t n = values.size();
  shortest = std::max<std::size_t>(shortest, 1);
  if (n < 2 * shortest) return {};
  const SquaredErrors errors(values);
  struct Start {
    std::size_t at, dropped_from;
  };
  constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();
  std::vector<double> best(n + 1, std::numeric_limits<double>::infinity());
  std::vector<std::size_t> last(n + 1, 0);
  std::vector<Start> starts;
  best[0] = -price;
  for (std::size_t end = shortest; end <= n; ++end) {
    const std::size_t begin = end - shortest;
    if (begin == 0 || begin >= shortest) starts.push_back({begin, kNever});
    std::erase_if(starts, [end](const Start& start) { return start.dropped_from <= end; });
    for (const Start& start : starts)
      if (const double cost = best[start.at] + errors.of(start.at, end) + price; cost < best[end]) {
        best[end] = cost;
        last[end] = start.at;
      }
    for (Start& start : starts)
      if (start.dropped_from == kNever && best[start.at] + errors.of(start.at, end) >= best[end]) start.dropped_from = end + shortest;
  }
  std::vector<std::int64_t> changes;
  for (std::size_t at = last[n]; at > 0; at = last[at]) changes.push_back(static_cast<std::int64_t>(at));
  std::reverse(changes.begin(), changes.end());
  return changes;
}

/// Where one change lies and how surely.
struct Place {
  std::int64_t at;    ///< centre of the `2 * reach + 1` places that together are most probable
  std::int64_t low;   ///< the shortest run of places, around the most probable one, that holds `share` of the probability
  std::int64_t high;  ///< its last place
};

/// The place of each change between its neighbours. With normal noise of standard deviation `noise` the probability of place k is
/// proportional to exp(-(errors of both sides) / (2 noise^2)); the level of each side is its mean. `at` is the answer that is right within
/// `reach` most often, which the most probable single place is not.
inline std::vector<Place> places(std::span<const double> values, std::span<const std::int64_t> changes, double noise, std::size_t reach, double share) {
  const SquaredErrors errors(values);
  std::vector<Place> found;
  for (std::size_t c = 0; c < changes.size(); ++c) {
    const auto begin = static_cast<std::size_t>(c == 0 ? 0 : changes[c - 1]);
    const auto end = static_cast<std::size_t>(c + 1 == changes.size() ? static_cast<std::int64_t>(values.size()) : changes[c + 1]);
    std::vector<double> weight;  // of place begin + 1 + i
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t k = begin + 1; k < end; ++k) {
      weight.push_back(errors.of(begin, k) + errors.of(k, end));
      least = std::min(least, weight.back());
    }
    double total = 0;
    for (double& w : weight) total += w = noise > 0 ? std::exp((least - w) / (2 * noise * noise)) : (w <= least ? 1.0 : 0.0);
    std::vector<double> around(weight.size(), 0);
    for (std::size_t i = 0; i < weight.size(); ++i)
      for (std::size_t j = i >= reach ? i - reach : 0; j <= std::min(weight.size() - 1, i + reach); ++j) around[i] += weight[j];
    const double mass = *std::max_element(around.begin(), around.end());
    std::size_t most = weight.size(), peak = 0;
    for (std::size_t i = 0; i < weight.size(); ++i) {
      if (weight[i] > weight[peak]) peak = i;
      // Of places that are as good to a thousandth the most probable one, so that a clean step is found where it is.
      if (around[i] >= mass * (1 - 1e-3) && (most == weight.size() || weight[i] > weight[most])) most = i;
    }
    std::size_t low = peak, high = peak;
    for (double held = weight[peak]; held < share * total && (low > 0 || high + 1 < weight.size());) {
      const double left = low > 0 ? weight[low - 1] : -1, right = high + 1 < weight.size() ? weight[high + 1] : -1;
      held += left >= right ? weight[--low] : weight[++high];
    }
    const auto place = [begin](std::size_t i) { return static_cast<std::int64_t>(begin + 1 + i); };
    found.push_back({place(most), std::min(place(low), place(most)), std::max(place(high), place(most))});
  }
  return found;
}

}  // namespace busbw::stats
