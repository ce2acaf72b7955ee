// Changes of level for Python: a series as a column in, places as columns out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "busbw/stats/change_points.hpp"
#include "columns.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using busbw::bindings::Column;

NB_MODULE(_changes, m) {
  m.doc() = "Changes of level in a series.";

  m.def(
      "change_points",
      [](const Column<double>& series, double price, std::int64_t shortest) {
        const auto values = busbw::bindings::values(series);
        nb::gil_scoped_release free;
        return busbw::stats::change_points(values, price, shortest < 1 ? 1 : static_cast<std::size_t>(shortest));
      },
      "values"_a.noconvert(), "price"_a, "shortest"_a, "First index of each stretch after the first. values: (n,) float64, finite.");

  m.def(
      "places",
      [](const Column<double>& series, const std::vector<std::int64_t>& changes, double noise, std::int64_t reach, double share) {
        std::int64_t before = 0;
        for (const std::int64_t change : changes) {
          if (change <= before || change >= static_cast<std::int64_t>(series.shape(0))) throw nb::value_error("changes must ascend inside the series");
          before = change;
        }
        std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>> found;
        for (const auto& place : busbw::stats::places({series.data(), series.shape(0)}, changes, noise, static_cast<std::size_t>(reach < 0 ? 0 : reach), share))
          found.emplace_back(place.at, place.low, place.high);
        return found;
      },
      "values"_a.noconvert(), "changes"_a, "noise"_a, "reach"_a, "share"_a, "Of each change: most probable within reach, and the interval that holds share of the probability.");
}
