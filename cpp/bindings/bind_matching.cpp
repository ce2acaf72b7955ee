// Greedy matching in time for Python: links as columns in, transfers as columns out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "busbw/schedule/delivery.hpp"
#include "busbw/schedule/matching.hpp"
#include "columns.hpp"

namespace nb = nanobind;
using namespace nb::literals;
namespace schedule = busbw::schedule;

namespace {

using busbw::bindings::Column;
using busbw::bindings::values;
template <class T>
using Made = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

template <class T>
Made<T> made(std::vector<T>&& column) {
  const std::size_t size = column.size();
  const auto [data, owner] = busbw::bindings::kept(std::move(column));
  return {data, {size}, owner};
}

using TransferColumns = std::tuple<Made<std::int32_t>, Made<std::int32_t>, Made<std::int64_t>, Made<std::int64_t>>;

TransferColumns made(schedule::Transfers&& transfers) {
  return {made(std::move(transfers.link)), made(std::move(transfers.chunk)), made(std::move(transfers.begin_ps)), made(std::move(transfers.end_ps))};
}

}  // namespace

NB_MODULE(_matching, m) {
  m.doc() = "Greedy matching of links and chunks in time.";

  m.def(
      "spread",
      [](std::int32_t ranks, const Column<std::int32_t>& src, const Column<std::int32_t>& dst, const Column<std::int64_t>& alpha_ps,
         const Column<std::int64_t>& chunk_ps, const Column<std::int32_t>& source, std::vector<std::vector<std::int32_t>> clusters,
         std::uint64_t seed, std::int32_t most_chunks, std::int32_t rounds_ahead) {
        schedule::MatchingLinks links{values(src), values(dst), values(alpha_ps), values(chunk_ps)};
        schedule::MatchingDemand demand{ranks, static_cast<std::int32_t>(source.shape(0)), values(source)};
        schedule::MatchingOptions options{seed, most_chunks, rounds_ahead, std::move(clusters)};
        schedule::Transfers transfers;
        {
          nb::gil_scoped_release free;
          transfers = schedule::match_in_time(std::move(links), std::move(demand), std::move(options));
        }
        return made(std::move(transfers));
      },
      "ranks"_a, "src"_a, "dst"_a, "alpha_ps"_a, "chunk_ps"_a, "source"_a, "clusters"_a, "seed"_a, "most_chunks"_a, "rounds_ahead"_a,
      "Every chunk from its source to every rank: link, chunk (int32), begin and end in picoseconds (int64) of each transfer.");

  m.def(
      "deliver",
      [](std::int32_t ranks, const Column<std::int32_t>& src, const Column<std::int32_t>& dst, const Column<std::int64_t>& alpha_ps,
         const Column<std::int64_t>& chunk_ps, const Column<std::int32_t>& source, const Column<std::int32_t>& destination,
         std::uint64_t seed, std::int32_t most_chunks, std::int32_t rounds) {
        schedule::MatchingLinks links{values(src), values(dst), values(alpha_ps), values(chunk_ps)};
        schedule::DeliveryDemand demand{ranks, values(source), values(destination)};
        const schedule::DeliveryOptions options{seed, most_chunks, rounds};
        schedule::Transfers transfers;
        {
          nb::gil_scoped_release free;
          transfers = schedule::deliver_in_time(std::move(links), std::move(demand), options);
        }
        return made(std::move(transfers));
      },
      "ranks"_a, "src"_a, "dst"_a, "alpha_ps"_a, "chunk_ps"_a, "source"_a, "destination"_a, "seed"_a, "most_chunks"_a, "rounds"_a,
      "Every chunk from its source to its destination: link, chunk (int32), begin and end in picoseconds (int64) of each transfer.");
}
