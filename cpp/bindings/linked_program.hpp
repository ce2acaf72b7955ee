/// A linked plan of one rank, as Python hands it over: columns as bytes, addresses and sizes as numbers.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "busbw/device/program.hpp"

namespace busbw::bindings {

namespace nb = nanobind;
using BytesIn = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

/// The rows of a column that Python holds as bytes.
template <class Row>
std::vector<Row> rows_of(const BytesIn& bytes, const char* what) {
  static_assert(std::is_trivially_copyable_v<Row>);
  if (bytes.shape(0) % sizeof(Row) != 0) throw std::invalid_argument(std::string(what) + " is no whole number of rows");
  std::vector<Row> out(bytes.shape(0) / sizeof(Row));
  if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.shape(0));
  return out;
}

/// What a Program points to, and the Program. Spaces and wires have no base yet.
class LinkedProgram {
 public:
  /// numbers: rank, ranks, blocks, in_order, chunk_bytes, run_bytes, grain, runs, blocks_at, barriers_at, semaphores_at, proxy_at.
  LinkedProgram(const BytesIn& rows, const BytesIn& blocks, const BytesIn& walks, const BytesIn& ways, const BytesIn& groups, const Numbers& block_runs,
                const Numbers& spaces, const Numbers& numbers)
      : rows_(rows_of<device::plan::Row>(rows, "rows")), blocks_(rows_of<device::plan::Block>(blocks, "blocks")),
        walks_(rows_of<device::plan::Walk>(walks, "walks")), ways_(rows_of<device::Way>(ways, "ways")),
        groups_(rows_of<device::Multicast>(groups, "groups")) {
    if (block_runs.shape(0) != 2 * blocks_.size()) throw std::invalid_argument("block_runs has another length");
    for (std::size_t i = 0; i < blocks_.size(); ++i) block_runs_.push_back({block_runs.data()[2 * i], block_runs.data()[2 * i + 1]});
    if (numbers.shape(0) != 12) throw std::invalid_argument("numbers has another length");
    const std::uint64_t* n = numbers.data();
    program_.rank = static_cast<std::uint32_t>(n[0]);
    program_.ranks = static_cast<std::uint32_t>(n[1]);
    program_.blocks = static_cast<std::uint32_t>(n[2]);
    program_.in_order = n[3] != 0;
    program_.chunk_bytes = n[4], program_.run_bytes = n[5], program_.grain = n[6], program_.runs = static_cast<std::uint32_t>(n[7]);
    program_.blocks_at = n[8], program_.barriers_at = n[9], program_.semaphores_at = n[10], program_.proxy_at = n[11];
    if (program_.ranks > device::kMostRanks || program_.rank >= program_.ranks) throw std::invalid_argument("no such rank, or too many");
    if (spaces.shape(0) != std::size_t{program_.ranks} * device::kSpaces * 3) throw std::invalid_argument("spaces has another length");
    for (std::size_t i = 0; i < spaces.shape(0); i += 3) spaces_.push_back({nullptr, spaces.data()[i], spaces.data()[i + 1], spaces.data()[i + 2]});
    program_.rows = rows_.data(), program_.block_rows = blocks_.data(), program_.walks = walks_.data(), program_.ways = ways_.data();
    program_.way_count = static_cast<std::uint32_t>(ways_.size());
    program_.groups = groups_.data(), program_.block_runs = block_runs_.data(), program_.spaces = spaces_.data();
  }
  LinkedProgram(const LinkedProgram&) = delete;
  LinkedProgram& operator=(const LinkedProgram&) = delete;

  device::Program& program() { return program_; }
  void set_base(std::uint32_t rank, std::uint32_t space, std::byte* base) { spaces_[rank * device::kSpaces + space].base = base; }

 private:
  std::vector<device::plan::Row> rows_;
  std::vector<device::plan::Block> blocks_;
  std::vector<device::plan::Walk> walks_;
  std::vector<device::Way> ways_;
  std::vector<device::Multicast> groups_;
  std::vector<device::BlockRun> block_runs_;
  std::vector<device::Space> spaces_;
  device::Program program_{};
};

}  // namespace busbw::bindings
